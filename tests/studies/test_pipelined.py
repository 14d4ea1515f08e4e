"""Studies of pipelined training: what is trained, what a line says, and the same numbers in processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import processes
import thinwire as tw
from thinwire.ddp.worker import batches
from thinwire.errors import ExpressionError
from thinwire.pipeline import FR, OneFOneB
from thinwire.report import table
from thinwire.studies import Pipelined, load
from thinwire.studies.data_parallel import method
from thinwire.studies.pipelined import OPTIMIZERS, schedule
from thinwire.studies.read import arms
from thinwire.studies.study import StudyRun
from thinwire.train.slot import make_module

pytest.importorskip("sklearn")
TIMES: dict[str, Any] = {"cut": (2,), "forward": (0.01, 0.02), "backward": (0.01, 0.02)}  # digits' mlp, two parts


def study(*schedules: str, **fields: Any) -> Pipelined:
    """A small one: a layer in each of two parts."""
    small = {"parts": 2, "batch": 16, "steps": 6, "evaluate_every": 3, "checkpoint_every": 3, **TIMES, **fields}
    return Pipelined(Pipelined.resolve(schedules), **small)


@pytest.fixture(scope="module")
def digits() -> Any:
    return study("BPK()").problem(0)


def run(
    one: Pipelined, problem: Any, resume: Any = None
) -> tuple[dict[str, torch.Tensor], list[Any], dict[int, bytes]]:
    """The model, the records and the states, as bytes, of the first schedule."""
    records, states = list[Any](), dict[int, bytes]()
    with one.start(StudyRun(one.parse_methods()[0], 0, problem)) as training:
        if resume is not None:
            training.restore(resume)
        keep: Callable[[Any], None] = lambda _: states.update({training.number: tw.dumps(training.state())})  # noqa: E731
        model = one.finish(training, records.append, keep)
    return {name: tensor.clone() for name, tensor in model.items()}, records, states


# -- what is trained ----------------------------------------------------------


def test_plain_model_parallelism_is_plain_training_on_the_batches_of_the_study(digits):
    model, records, _ = run(study("BPK()", momentum=0.5, weight_decay=0.01), digits)
    plain, task, losses = make_module(digits.model, 0), digits.tasks[0], []
    stepper = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for _, (rows,) in zip(range(6), batches(len(task), 1, 16, 0), strict=False):
        x, y = task.batch(rows)
        stepper.zero_grad()
        loss = F.cross_entropy(plain(x), y, reduction="none").mean()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert model.keys() == plain.state_dict().keys()
    assert all(torch.equal(model[name], tensor) for name, tensor in plain.state_dict().items())
    assert [line["train_loss"] for line in records] == [pytest.approx(sum(losses[k : k + 3]) / 3) for k in (0, 3)]
    plain.eval()
    x, y = digits.test.batch(torch.arange(len(digits.test)))
    right = float((plain(x).argmax(1) == y).double().mean())
    assert records[-1]["accuracy"] == pytest.approx(right)


def test_every_batch_is_used_once_before_the_last_evaluation(digits):
    one = study("DSP((1, 0), (4, 0))")
    stages = one.stages(digits, 0)
    trained = one.training(one.parse_methods()[0], 0, stages)
    for _, (x, y, _) in zip(range(6), one.draw_batches(digits, 0), strict=False):
        trained.step(x, y)
    trained.drain()
    model, _, _ = run(one, digits)
    drained = {name: tensor for stage in stages for name, tensor in stage.state_dict().items()}
    assert all(torch.equal(model[name], drained[name]) for name in model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_goes_on_from_its_bytes_to_the_same_bits_under_every_optimiser(digits, name):
    one = study("DSP((1, 0), (2, 0), activations=AQSGD(QSGD(7, norm='max'), examples=40))", optimizer=name, lr=0.01)
    model, records, states = run(one, digits)
    again, others, _ = run(one, digits, tw.loads(states[3], max_values=None))
    assert all(torch.equal(model[layer], again[layer]) for layer in model)
    assert [{**line, "seconds": 0} for line in others] == [{**records[1], "seconds": 0}]
    start = make_module(digits.model, 0).state_dict()
    assert all(not torch.equal(model[layer], start[layer]) for layer in model)


def test_autocast_computes_in_bfloat16_and_goes_on_to_the_same_bits(digits):
    """[16, 64] numbers of two bytes are 2,048 bytes and 30 of framing, and 256 announce the first."""
    one = study("PipeDream()", autocast="bfloat16")
    model, records, states = run(one, digits)
    again, others, _ = run(one, digits, tw.loads(states[3], max_values=None))
    assert all(torch.equal(model[layer], again[layer]) for layer in model)
    assert [{**line, "seconds": 0} for line in others] == [{**records[1], "seconds": 0}]
    assert records[0]["forward_bytes"] == [256 + 3 * 2078]
    wide, _, _ = run(study("PipeDream()"), digits)
    assert all(model[layer].dtype == torch.float32 and not torch.equal(model[layer], wide[layer]) for layer in model)
    start = make_module(digits.model, 0).state_dict()
    assert all((model[n] - wide[n]).norm() < 0.15 * (wide[n] - start[n]).norm() for n in model)


def test_rates_by_part_and_decay_are_factors_and_clipping_is_by_part(digits):
    start = make_module(digits.model, 0).state_dict()
    model, _, _ = run(study("FR()", rates=(0.0, 1.0)), digits)
    assert {n for n in model if torch.equal(model[n], start[n])} == {n for n in model if n.startswith("1.")}
    assert [study("FR()", decay=(0.5,), rates=(0.5, 1.0)).factor(step, 0) for step in (0, 2, 3)] == [0.5, 0.5, 0.05]
    # Six steps, none longer than 0.1 * 1e-3.
    model, _, _ = run(study("BPK()", clip=1e-3, momentum=0.0), digits)
    for part in ("1.", "3."):
        moved = torch.cat([(model[n] - start[n]).flatten() for n in model if n.startswith(part)])
        assert 0 < float(moved.norm()) <= 6.01e-4


# -- what a line and the table say ----------------------------------------------


def test_bytes_are_by_boundary_and_seconds_those_of_the_law(digits):
    """[16, 64] floats are 4,096 bytes and 32 of framing, and 256 announce the first. Seconds at 1 Tbit/s, 0.01 s:

    BPK: 0.02 + 0.04 in turn and two messages. DSP with two batches more at part 0: 0.03 with its replay, 0.04 at
    part 1, which is longer than (0.03 + 0.04 + 0.02) / 3. At 1 Mbit/s a message of 4,128 bytes takes 0.033024 s.
    """
    for text, mbit, tick in (("BPK()", 1e6, 0.08), ("DSP((1, 0), (2, 0))", 1e6, 0.04), ("BPK()", 1, 0.146048)):
        _, (first, second), _ = run(study(text, mbit=mbit), digits)
        assert first["forward_bytes"] == [256 + 3 * 4128]
        assert second["forward_bytes"] == [3 * 4128] == [second["up_bytes"]]
        assert first["backward_bytes"][0] + second["backward_bytes"][0] == 256 + 6 * 4128
        assert second["clock"] - first["clock"] == pytest.approx(3 * tick, rel=1e-3)


def test_a_method_is_as_fast_as_beside_plain_model_parallelism_over_the_same_links(tmp_path, digits):
    for mbit in (1.0, 100.0):
        study("BPK()", "FR()", mbit=mbit).run(tmp_path / str(mbit), problems={0: digits})
    clocks = {(mbit, name): clock for mbit in (1.0, 100.0) for name, clock in last_clocks(tmp_path / str(mbit)).items()}
    found = [row["times_as_fast"] for row in table.rows(arms([tmp_path])) if row["method"].startswith("FR")]
    assert found == [clocks[mbit, "01-BPK"] / clocks[mbit, "02-FR"] for mbit in (1.0, 100.0)]
    assert found[0] != found[1]


def test_seconds_without_dnis_auxiliary_networks_are_shown_as_the_least(tmp_path, digits):
    study("BPK()", "DNI()").run(tmp_path, problems={0: digits})
    found = table.rows(arms([tmp_path]))
    plain, dni = [line for line in table.markdown(found).splitlines() if line.startswith("| `")]
    by_law = dict(zip((row["method"] for row in found), found, strict=True))["DNI(1)"]
    assert f"| ≥ {by_law['seconds_per_batch']:.4g} | ≥ " in dni
    assert f"| ≤ {by_law['times_as_fast']:.2f} |" in dni
    assert not {"≥", "≤"} & set(plain)


def last_clocks(folder: Path) -> dict[str, float]:
    """The simulated seconds of a study's runs, by method."""
    runs = sorted(folder.rglob("rounds.jsonl"))
    return {path.parents[1].name: json.loads(path.read_text().splitlines()[-1])["clock"] for path in runs}


def test_accuracy_is_the_mean_of_the_last_five_evaluations(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / f"01-FR/seed-{seed}"
        folder.mkdir(parents=True)
        about = {"kind": "pipelined", "method": "FR()", "name": "FR()", "seed": seed, "staleness": [1, 0]}
        (folder / "run.json").write_text(json.dumps(about))
        lines = [
            {"step": s, "up_bytes": 5, "down_bytes": 3, "forward_bytes": [5], "backward_bytes": [3], "seconds": 1}
            | {"accuracy": s / 100 + seed / 10, "test_loss": 7 - s, "train_loss": 1.0, "clock": s / 2}
            for s in range(1, 8)
        ]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = table.rows(arms([tmp_path]))
    assert row["accuracy"] == pytest.approx(0.10)  # of 3 to 7 %, and of 13 to 17 %
    assert row["accuracy_deviation"] == pytest.approx(0.1 / 2**0.5)
    assert row["best_accuracy"] == pytest.approx(0.12)
    assert (row["test_loss"], row["clock"], row["seconds_per_batch"]) == (2.0, 3.5, 0.5)
    assert (row["bytes_forward"], row["bytes_backward"], row["bytes_total"]) == ([35], [21], 56)
    assert (
        "| `FR() (after step 7)` | 10.0 % ± 7.1 | 12.0 % | 1.000 | 2.000 | 1, 0 | 0.000035 + 0.000021 |"
        in table.markdown([row])
    )


# -- what is typed ----------------------------------------------------------------


def test_1f1b_is_another_way_to_write_its_schedule():
    assert schedule("1F1B(8)") == OneFOneB(8)
    assert schedule(" FR ") == FR()
    assert Pipelined.resolve(["1F1B(2)"]) == ("OneFOneB(micro=2, activations=Dense(), gradients=Dense())",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FedAvg()", "FedAvg is a federated method, for `thinwire run`; here are BPK, DDG"),
        ("DEF(64)", "DEF is a data-parallel method, for `thinwire ddp-sim`"),
        ("GPip(4)", r"no schedule 'GPip' \(did you mean GPipe\?\)"),
        ("Half()", r"a link is one of a schedule's, as in BPK\(activations=Half\(\)\)"),
        ("GPipe(micr=4)", r"GPipe has no argument 'micr' \(did you mean micro\?\)"),
        ("FR(gradients=EF21(TopK(0.1)))", "it remembers earlier messages"),
        ("2F1B(4)", "no schedule '2F1B'"),
    ],
)
def test_what_is_no_schedule_says_what_to_type(text, said):
    with pytest.raises(ValueError, match=said):
        schedule(text)


def test_a_schedule_among_data_parallel_methods_names_its_command():
    with pytest.raises(ExpressionError, match="is a schedule of pipelined training, for `thinwire pipeline run`"):
        method("FR()")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"parts": 0}, "--parts 0: it must be at least 1"),
        ({"parts": 3}, "--forward 0.01,0.02: a number for each of the 3 parts"),
        ({"parts": 3, "forward": (), "backward": ()}, "--cut 2: 3 parts begin at 2 places after 0"),
        ({"optimizer": "Adam"}, r"--optimizer Adam \(did you mean NAdam\?\): it is one of SGD, AdamW, NAdam, Muon"),
        ({"clip": 0.0}, "--clip 0.0: it must be positive"),
        ({"autocast": "float16"}, r"--autocast float16: bfloat16, or leave it out \(float16 needs a loss"),
        ({"mbit": 0.0}, "--mbit 0.0: it must be at least 1e-06, a bit a second"),
        ({"latency": -1.0}, "--latency -1.0: it must be from 0 to 1e\\+09 seconds"),
        ({"rates": (1.0,)}, "--rates 1: a number for each of the 2 parts"),
        ({"backward": ()}, "--forward and --backward: give both, or none"),
        ({"batch": 10}, r"OneFOneB\(4\) cuts a batch into 4 micro-batches of equal size, and 10 examples are not"),
        ({"methods": ("DSP((1, 1, 0), (4, 2, 0))",)}, "is for 3 parts, and the model is cut into 2"),
    ],
)
def test_a_study_that_cannot_be_is_refused_with_its_option(fields, said):
    methods = fields.pop("methods", ("1F1B(4)",))
    with pytest.raises(ValueError, match=said):
        study(*methods, **fields)


def test_what_is_measured_when_a_study_begins_stays_with_it(digits, tmp_path):
    one = study("FR()", cut=(), forward=(), backward=())
    assert one.run(tmp_path / "a", problems={0: digits}) == []
    found = load(tmp_path / "a")
    assert isinstance(found, Pipelined)
    assert found.cut in ((2,), (3,))  # of Flatten, Linear, ReLU, Linear: the two whose parts both have parameters
    assert len(found.forward) == len(found.backward) == 2
    assert min(*found.forward, *found.backward) > 0
    (tmp_path / "a/01-FR/seed-0/summary.json").unlink()
    assert one.run(tmp_path / "a", problems={0: digits}) == []  # with what was measured then
    assert load(tmp_path / "a") == found


# -- processes ----------------------------------------------------------------------

WORDS = ["--parts", "2", "--batch", "16", "--steps", "6", "--evaluate-every", "3", "--checkpoint-every", "3"]
WORDS += ["--cut", "2", "--forward", "0.01,0.02", "--backward", "0.01,0.02"]
SCHEDULES = ["DSP((1, 0), (2, 0), activations=Int8(), gradients=Half())", "1F1B(2)", "FR(True)"]


def commands(*each: list[str]) -> None:
    """Several, one after the other, in one process of a group; what they end with is printed."""
    for words in each:
        try:
            processes.typed(tuple(words))
        except SystemExit as end:
            print("ended with", end.code)


def files(out: Path) -> dict[str, Any]:
    """Models and lines, but for the seconds that were taken."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("seed-0/*")):
        if path.name == "model.safetensors":
            found[str(path.relative_to(out))] = path.read_bytes()
        elif path.name == "rounds.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[str(path.relative_to(out))] = [{**line, "seconds": 0} for line in lines]
        elif path.name == "summary.json":
            found[str(path.relative_to(out))] = {**json.loads(path.read_text()), "seconds": 0}
    return found


def _resumed(found: dict[str, Any]) -> dict[str, Any]:
    """Models, losses and accuracies: without bytes and the seconds that these take."""
    numbers = {}
    for name, value in found.items():
        if name.endswith("rounds.jsonl"):
            numbers[name] = [[line[key] for key in ("step", "train_loss", "test_loss", "accuracy")] for line in value]
        elif name.endswith("model.safetensors"):
            numbers[name] = value
    return numbers


@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one_go_on_with_what_it_began_and_outlive_a_schedule_that_fails(tmp_path):
    one = study(*SCHEDULES)
    one.claim(tmp_path / "whole")
    assert one.run(tmp_path / "whole") == []

    class Stop(Exception):
        pass

    def stop(name: str, record: Any) -> None:
        if name.startswith("02") and record["step"] == 6:
            raise Stop

    one.claim(tmp_path / "stopped")
    with pytest.raises(Stop):
        one.run(tmp_path / "stopped", stop)
    shutil.copytree(tmp_path / "stopped", tmp_path / "before")
    done = processes.torchrun(
        commands,
        ["pipeline", "run", *SCHEDULES, *WORDS, "--out", str(tmp_path / "ranks")],
        ["resume", str(tmp_path / "stopped")],
        ["pipeline", "run", "BPK()", "FR()", *WORDS, "--lr", "1e30", "--out", str(tmp_path / "failed")],
        ["pipeline", "run", "BPK()", "--parts", "3", "--out", str(tmp_path / "other")],
    )
    assert done.returncode == 0, done.stderr
    whole = files(tmp_path / "whole")
    assert len(whole) == 9
    assert files(tmp_path / "ranks") == whole
    assert "03-FR-True/seed-0/rounds.jsonl" not in files(tmp_path / "before")
    # Processes that go on announce their frames anew, 256 bytes in each direction.
    assert _resumed(files(tmp_path / "stopped")) == _resumed(whole)
    again, before = (found["02-OneFOneB-2/seed-0/rounds.jsonl"][1] for found in (files(tmp_path / "stopped"), whole))
    assert [again[way][0] - before[way][0] for way in ("forward_bytes", "backward_bytes")] == [256, 256]
    assert load(tmp_path / "ranks") == load(tmp_path / "whole")
    assert done.stdout.count("ended with 0") == 2 + 2 + 1  # of the third command rank 0 tells
    failed = next(line for line in done.stderr.splitlines() if line.startswith("error: BPK(), seed 0"))
    assert "lower the learning rate" in failed
    assert "FR(), seed 0: " in failed
    assert done.stderr.count("each part is a process under torchrun, and there are 2; start 3") == 2
