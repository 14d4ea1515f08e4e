"""The planner of pipelined training: what is measured, what a schedule makes of it, and what is printed."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from pipelines import data, net
from thinwire import cli, models
from thinwire.pipeline import (
    AQSGD,
    BPK,
    DDG,
    DNI,
    DSP,
    FR,
    GPipe,
    OneFOneB,
    PipeDream,
    PipeDream2BW,
    Simulation,
    law,
    split,
)
from thinwire.pipeline.cost import Cost
from thinwire.pipeline.plan import Profile, costs, least, measure, memory, messages, seconds
from thinwire.studies import Pipelined
from thinwire.studies import plan_pipelined as planner

FORWARD, BACKWARD = (1.0, 2.0, 3.0), (2.0, 4.0, 6.0)
BATCH = data()[0]
NOTHING: Any = ((0, 0), (0, 0))  # bytes at two boundaries


def parts() -> list[nn.Sequential]:
    return split(net(0.5), 3, at=(4, 12))


# -- links that are busy ------------------------------------------------------


def test_the_law_of_busy_links_is_what_parts_that_execute_the_operations_take():
    g = random.Random(0)
    for _ in range(100):
        parts = g.randint(2, 5)
        m = [0] * parts
        for k in range(parts - 2, -1, -1):
            m[k] = m[k + 1] + g.randint(0, 4)
        f, b = ([g.uniform(0.1, 2) for _ in range(parts)] for _ in range(2))
        busy = tuple([g.choice([0, 0.3, 1, 5]) for _ in range(parts - 1)] for _ in range(2))
        c, d = ([each + g.choice([0, 0.5, 2]) for each in way] for way in busy)
        schedule = DSP((0,) * parts, tuple(m))
        assert law.events(schedule, f, b, c, d, 200, busy) == pytest.approx(law.tick(m, f, b, c, d, busy), rel=0.03)


def test_a_link_is_no_faster_than_its_bytes_however_deep_the_delays_are():
    args = [1.0] * 2, [2.0] * 2, [5.0], [0.5]
    assert law.tick((64, 0), *args) == 3
    assert law.tick((64, 0), *args, ([4.5], [0.1])) == 4.5
    assert law.plan(*args) == DSP((1, 0), (3, 0))  # (3 + 3 + 5.5) / 3 - 1
    assert law.plan(*args, ([4.5], [0.1])) == DSP((1, 0), (2, 0))  # 11.5 / 4.5 - 1
    # GPipe with M = 2: 0.5 ahead, then two messages of 2.25 one after the other and 0.25 of latency. At part 1 the last
    # micro-batch ahead, 0.5, and both back, 2. A message of 0.25, and the last micro-batch back at part 0, 1.
    took = 0.5 + 2 * 2.25 + 0.25 + 0.5 + 2 + 0.25 + 1
    assert law.events(GPipe(2), *args, 40, ([4.5], [0.1])) == pytest.approx(took)


# -- what a schedule makes of it ------------------------------------------------


def test_a_replay_is_a_forward_pass_more_on_the_way_back():
    assert costs(BPK(), FORWARD, BACKWARD) == (FORWARD, BACKWARD)
    assert costs(DSP((1, 1, 0), (4, 2, 0)), FORWARD, BACKWARD) == (FORWARD, (3.0, 6.0, 6.0))
    # The last part, where it is late too, computes when it goes back and not before.
    assert costs(DSP((1, 1, 0), (5, 3, 1)), FORWARD, BACKWARD) == ((1.0, 2.0, 0.0), (3.0, 6.0, 9.0))
    assert costs(PipeDream(), FORWARD, BACKWARD) == (FORWARD, BACKWARD)


def test_seconds_of_a_batch_by_hand():
    """Parts need 3, 6 and 9 s. 1 MB at 8 Mbit/s is a second."""
    million: Any = ((10**6, 10**6), (10**6, 10**6))
    assert seconds(BPK(), FORWARD, BACKWARD, NOTHING, 8, 0.5) == pytest.approx(18 + 4 * 0.5)
    assert seconds(BPK(), FORWARD, BACKWARD, million, 8, 0.5) == pytest.approx(18 + 4 * 1.5)
    assert seconds(DSP((1, 1, 0), (9, 5, 0)), FORWARD, BACKWARD, million, 8, 0.5) == 9
    assert seconds(DSP((1, 1, 0), (9, 5, 0)), FORWARD, BACKWARD, million, 0.5, 0.5) == 16  # a link is busy for 16 s
    assert seconds(OneFOneB(1), FORWARD, BACKWARD, million, 8, 0.5) == pytest.approx(18 + 4 * 1.5)
    assert seconds(FR(barrier=True), FORWARD, BACKWARD, million, 8, 0.5) > seconds(
        FR(), FORWARD, BACKWARD, million, 8, 0.5
    )
    # Circles of the parts with their replays: 4 + 8 + 9 s and four messages over 1 + m.
    assert least(FORWARD, BACKWARD, NOTHING, 8, 0.0) == DSP((1, 1, 0), (2, 1, 0))
    assert least(FORWARD, BACKWARD, million, 8, 3.0) == DSP((1, 1, 0), (4, 2, 0))


def test_memory_by_hand():
    profile = Profile(8, FORWARD, BACKWARD, inputs=(10, 20, 30), graphs=(100, 200, 300), weights=(1000, 2000, 3000))

    def kept(schedule: Any, sizes: Any = NOTHING) -> tuple[int, ...]:
        found = memory(schedule, profile, sizes)
        return tuple(size - announced for size, announced in zip(found, (256, 512, 256), strict=True))

    assert kept(BPK()) == (110, 220, 330)
    assert kept(DSP((1, 1, 0), (4, 2, 0))) == (5 * 10 + 100, 3 * 20 + 200, 330)
    assert kept(DDG()) == (3 * 110 + 3 * 1000, 2 * 220 + 2 * 2000, 330)
    assert kept(GPipe(4)) == (110, 220, 330)
    assert kept(OneFOneB(4)) == (3 * 110 // 4, 2 * 220 // 4, 330 // 4)
    assert kept(PipeDream2BW(2)) == (3 * 110 // 2 + 2000, 220 + 4000, 165 + 6000)
    assert kept(DNI(2)) == (110 + 2 * 20, 220 + 2 * 30, 330)
    # Frames of each boundary, both ways: one, and as many more as a part can be ahead of its neighbour's answers.
    sizes: Any = ((1000, 10_000), (2000, 20_000))
    assert kept(BPK(), sizes) == (110 + 3000, 220 + 33_000, 330 + 30_000)
    # m falls by 2, and by 3
    assert kept(DSP((1, 1, 0), (5, 3, 0)), sizes) == (160 + 9000, 280 + 9000 + 120_000, 330 + 120_000)
    assert kept(GPipe(4), sizes) == (110 + 3000, 220 + 33_000, 330 + 30_000)  # four of a quarter
    assert kept(DNI(2), sizes) == (150 + 9000, 280 + 99_000, 330 + 90_000)
    # Whole examples, 20 and 30 bytes, come with frames for their differences.
    assert kept(BPK(activations=AQSGD()), sizes) == (110 + 3020, 220 + 33_050, 330 + 30_030)


@pytest.mark.parametrize(
    "schedule", [BPK(), DSP((1, 1, 0), (4, 2, 0)), FR(), DDG(), GPipe(4), OneFOneB(2), PipeDream2BW(2), DNI()]
)
def test_memory_is_of_as_many_batches_as_a_training_keeps(schedule):
    training = Simulation(parts(), lambda p: torch.optim.SGD(p, 0.01), schedule)
    for _ in range(8):
        training.step(*BATCH)
    alone = Profile(8, FORWARD, BACKWARD, inputs=(8,) * 3, graphs=(0,) * 3, weights=(0,) * 3)
    extra = 8 if isinstance(schedule, DNI) else 0  # an output that waits for its error gradient
    sizes = [
        size - extra * (part < 2) - 256 * (1 + (part == 1))
        for part, size in enumerate(memory(schedule, alone, NOTHING))
    ]
    assert sizes == [8 * held // schedule.pieces for held in training.held.values()]


# -- what is measured ---------------------------------------------------------


def test_measuring_leaves_model_statistics_and_dice_alone():
    stages, dice = parts(), torch.get_rng_state()
    before = [{name: tensor.clone() for name, tensor in stage.state_dict().items()} for stage in stages]
    dice = torch.get_rng_state()
    profile = measure(stages, *BATCH)
    messages(stages, DSP((1, 1, 0), (4, 2, 0), activations=tw.Int8()), *BATCH)
    for old, stage in zip(before, stages, strict=True):
        assert all(torch.equal(old[name], tensor) for name, tensor in stage.state_dict().items())
        assert all(p.grad is None for p in stage.parameters())
    assert torch.equal(torch.get_rng_state(), dice)
    assert min(*profile.forward, *profile.backward) > 0
    assert profile.inputs == (8 * 6 * 4, 8 * 8 * 4, 8 * 8 * 4)
    middle = 8 * 8 + 8 + 16
    assert profile.weights == (4 * (6 * 8 + 8 + 16), 4 * 2 * middle, 4 * (middle + 8 * 3 + 3))
    assert profile.graphs[0] >= 8 * 8  # the mask of dropout


@pytest.mark.parametrize(
    "schedule",
    [
        BPK(),
        OneFOneB(4),
        DSP((1, 1, 0), (4, 2, 0), activations=tw.Int8(), gradients=tw.Half()),
        FR(gradients=tw.Int8()),
    ],
)
def test_messages_are_as_long_as_those_of_a_training(schedule):
    stages = [nn.Sequential(nn.Linear(6, 80)), nn.Sequential(nn.Linear(80, 90)), nn.Sequential(nn.Linear(90, 3))]
    ahead, back = messages(stages, schedule, *BATCH)
    training = Simulation(stages, lambda p: torch.optim.SGD(p, 0.01), schedule)
    for _ in range(10):
        training.step(*BATCH)
    training.drain()
    each = list(training.ledger.values())
    assert [own.forward_sent - 256 for own in each[:-1]] == [10 * size for size in ahead]
    assert [own.backward_sent - 256 for own in each[1:]] == [10 * size for size in back]
    if schedule == BPK():
        assert (ahead, back) == ((8 * 80 * 4 + 32, 8 * 90 * 4 + 32),) * 2


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet20", (3, 32, 32)), ("resnet56_group", (3, 32, 32)), ("vgg11", (3, 32, 32)), ("char_transformer", (9,))],
)
def test_the_chain_of_a_model_is_the_model(name, shape):
    model = models.build(name, shape, 7).eval()
    x = torch.randn(2, *shape) if len(shape) == 3 else torch.randint(7, (2, *shape))
    stages = split(model, 4, sample=x)
    out = x
    for stage in stages:
        out = stage(out)
    assert torch.equal(out, model(x))
    assert [n for stage in stages for n in stage.state_dict()] == list(model.state_dict())


def test_a_transformer_is_cut_between_attention_and_the_dense_layers_too():
    whole = models.build("char_transformer", (9,), 7).eval()
    first, second = split(whole, 2, at=[4])  # after characters, positions, dropout and the first block's attention
    assert [n for n, _ in second.named_children()] == ["blocks", "norm", "dense"]
    assert not any("feed" in n for n in first.state_dict())
    x = torch.randint(7, (2, 9))
    assert torch.equal(second(first(x)), whole(x))


# -- the command --------------------------------------------------------------


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["thinwire", "pipeline", "plan", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


PLAN = "--shape 8 --classes 11 --model char_transformer --batch 4 --micro 2 --parts 2"


def test_the_plan_of_a_model_as_a_table_and_as_json(monkeypatch, capsys):
    words = PLAN.split()
    assert called(monkeypatch, "DSP((1,0),(3,0),activations=Int8())", *words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "char_transformer, batches of 4, links of 100 Mbit/s and 0.01 s one way" in shown
    assert "DSP((1, 0), m=(3, 0), activations=Int8())" in shown
    assert "has the least delays that hide the links" in shown
    assert called(monkeypatch, *words, "--latency", "0", "--mbit", "1e9", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(found["profile"][name]) for name in ("forward", "backward", "inputs", "graphs", "weights")] == [2] * 5
    assert found["ahead"] == [4 * 8 * 128 * 4 + 32]  # [4, 8, 128] floats, and framing
    rows = {row["schedule"]: row for row in found["rows"]}
    assert list(rows)[:8] == [
        *("BPK()", "GPipe(2)", "OneFOneB(2)", "FR()", "FR(True)", "DDG()", "PipeDream()", "PipeDream2BW(2)")
    ]
    own = [f + b for f, b in zip(found["profile"]["forward"], found["profile"]["backward"], strict=True)]
    assert rows["BPK()"]["seconds"] == pytest.approx(sum(own), rel=1e-3)
    assert rows["PipeDream()"]["seconds"] == pytest.approx(max(own), rel=1e-3)
    assert rows["PipeDream()"]["faster_than"]["BPK()"] == pytest.approx(sum(own) / max(own), rel=1e-2)
    assert found["least"] in rows
    assert found["limit"].startswith("part ")
    assert rows["BPK()"]["staleness"] == [0, 0]
    assert rows["PipeDream2BW(2)"]["staleness"] == [1, 1]
    assert len(found["cut"]) == 1


@pytest.mark.slow
def test_a_plan_and_a_study_cut_for_their_links(monkeypatch):
    """Fourteen modules of 1 s; the later one cuts, the fewer bytes: 7 | 7 or, over a slow link, 10 | 4."""

    def measured(chain: Any, sample: Any) -> list[Cost]:
        return [Cost(0.5, 0.5, 10**9 // (i + 1)) for i, _ in enumerate(chain)]

    monkeypatch.setattr(sys.modules["thinwire.pipeline.split"], "measure_modules", measured)
    study = Pipelined(("BPK()",), data="digits", model="resnet20", parts=2, batch=4, steps=1)
    for mbit, cut in ((1e6, (7,)), (1.0, (10,))):
        assert planner.plan([], model="resnet20", shape=(1, 8, 8), parts=2, batch=4, mbit=mbit).cut == cut
        over = replace(study, mbit=mbit)
        assert over.as_measured(over.problem(0)).cut == cut


def test_a_plan_shows_the_seconds_of_dni_as_the_least(monkeypatch, capsys):
    assert called(monkeypatch, "DNI()", *PLAN.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("≥ ") for line in lines if "DNI(" in line] == [1]
    assert [line.count("≤ ") for line in lines if "DNI(" in line] == [3]  # to BPK, GPipe and 1F1B
    assert "≤" not in "".join(line for line in lines if "DNI" not in line)
    assert "DNI's auxiliary networks take more seconds" in " ".join(" ".join(lines).split())


def test_a_link_that_takes_longer_than_any_part_is_named():
    found = planner.plan(shape=(6,), classes=3, model="mlp", parts=2, batch=8, mbit=0.001)
    assert found.limit == "the link between parts 0 and 1 (activations)"
    assert max(row.seconds for row in found.rows if row.schedule == found.least) > 8 * 64 * 4 * 8 / 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shape", "3,x"], "--shape 3,x: numbers of an example separated by commas, such as 3,32,32"),
        (["--shape", "6"], "--shape needs --model"),
        (["--shape", "6", "--data", "digits"], "--shape 6 is not used with --data"),
        (["--shape", "6", "--model", "mpl"], "no model 'mpl' (did you mean mlp?)"),
        (["--shape", "6", "--model", "mlp", "--classes", "1"], "--classes 1: at least 2"),
        (["--parts", "0"], "--parts 0: it must be at least 1"),
        (["--micro", "5"], "--micro 5: a batch of 64 is not so many micro-batches of equal size"),
        (["--cut", "2"], "--cut 2: 3 parts begin at 2 places"),
        (
            ["--shape", "6", "--model", "mlp", "--parts", "2", "--cut", "9"],
            "split(at=[9]): part 0 would be the modules",
        ),
        (["--shape", "6", "--model", "mlp", "--parts", "3"], "the chain has 2 modules with parameters to train"),
        (["--mbit", "0"], "--mbit 0.0: it must be at least 1e-06, a bit a second"),
        (["--mbit", "1e-320"], "--mbit 1e-320: it must be at least 1e-06, a bit a second"),
        (["--latency", "1e308"], "--latency 1e+308: it must be from 0 to 1e+09 seconds"),
        (["FedAvg()"], "FedAvg is a federated method"),
        (["DSP((1,0),(2,0))"], "is for 2 parts, and the model is cut into 3"),
        (["GPipe(3)"], "GPipe(3) cuts a batch into 3 micro-batches of equal size"),
        (["--shape", "9", "--model", "fasttext"], "FastText is no chain"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_line(monkeypatch, capsys, words, said):
    assert called(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
