"""Several pipelines side by side, whose equal parts average: one process, and 2 x 2 processes under gloo."""

from __future__ import annotations

import datetime
import math
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from pipelines import bits, cut, data, dsp, forked, net, plain, refusal, run, sgd, small_sgd
from thinwire.ddp import DEF, DEFA, EF, EF21, SAEF, Hook, Method, PSync
from thinwire.ddp.simulation import one_step
from thinwire.ddp.worker import Worker
from thinwire.errors import NonFinite
from thinwire.key import Key
from thinwire.pipeline import BPK, DSP, FR, PipeDream2BW, Simulation, pipeline

AVERAGES = [Hook(tw.Dense()), Hook(tw.ErrorFeedback(tw.TopK(0.3))), DEF(4), DEFA(tw.TopK(0.3)), PSync(4), EF(4)]


@pytest.mark.parametrize("average", [*AVERAGES, SAEF(4, average=2), EF21(tw.TopK(0.3)), Hook(tw.PowerSGD(1))], ids=repr)
def test_one_part_in_two_replicas_is_data_parallel_training_bit_for_bit(average):
    piped = Simulation(cut(net(norm=False), 1), sgd, BPK(), replicas=2, average=average)
    team = [Worker(net(norm=False), sgd, average, 2) for _ in range(2)]
    for number, (x, y) in enumerate(data()):
        piped.step(x, y)
        for worker, rows in zip(team, (slice(4), slice(4, 8)), strict=True):
            worker.leave()
            worker.optimizer.zero_grad()
            nn.functional.cross_entropy(worker.module(x[rows]), y[rows]).backward()
        one_step(team, [Key(0, number, k, "pipeline/0") for k in range(2)])
    for worker in team:
        worker.leave()
    for rank, worker in enumerate(team):
        assert torch.equal(bits(piped.stages[rank].module), bits(worker.module))


def test_the_mean_of_gradients_is_the_gradient_of_the_whole_batch():
    model = net(norm=False)
    plain(data(), model)
    for schedule in (BPK(), DSP((0, 0), (0, 0))):
        piped = Simulation(cut(net(norm=False), 2), sgd, schedule, replicas=4)
        for x, y in data():
            piped.step(x, y)
        assert torch.allclose(bits(piped.whole_state_dict()), bits(model), atol=1e-6)


def test_a_delayed_pipeline_in_replicas_is_the_delayed_pipeline_of_whole_batches():
    whole, dealt = (Simulation(cut(net(norm=False), 3), sgd, dsp(3), replicas=n) for n in (1, 2))
    assert run(dealt, data()) == pytest.approx(run(whole, data()), abs=1e-5)
    assert torch.allclose(bits(dealt.whole_state_dict()), bits(whole.whole_state_dict()), atol=1e-5)


def test_an_optimisers_function_may_read_the_parameters_twice():
    def groups(parameters: Any) -> torch.optim.Optimizer:
        matrices, others = ([p for p in parameters if (p.ndim > 1) == one] for one in (True, False))
        return torch.optim.SGD([{"params": matrices, "weight_decay": 0.1}, {"params": others}], 0.1)

    one, two = (Simulation(cut(net(norm=False), 2), groups, BPK(), replicas=n) for n in (1, 2))
    for x, y in data():
        one.step(x, y)
        two.step(x, y)
    assert torch.allclose(bits(one.whole_state_dict()), bits(two.whole_state_dict()), atol=1e-6)


def test_bytes_to_replicas_and_to_neighbours_are_counted_apart():
    """Parts of 26 and 24 numbers: a fourth of them and one to measure lambda by, 4 bytes each: 28 and 28 a step."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 5, bias=False), nn.Linear(5, 3), nn.Linear(3, 2, bias=False))
    sizes = [sum(p.numel() for p in part.parameters()) for part in (model[:2], model[2:])]
    assert sizes == [36, 24]
    found = {}
    for average in (DEF(4), Hook(tw.Dense())):
        piped = Simulation([model[:2], model[2:]], small_sgd, BPK(), replicas=2, average=average)
        for x, y in data(batches=3):
            piped.step(x, y % 2)
        found[average] = [ledger.averaged for ledger in piped.ledger.values()]
        # 4 examples of 5 numbers: framing fills each frame to 256 bytes, and the first one is announced.
        assert [piped.ledger[rank].forward_sent for rank in range(4)] == [4 * 256, 0, 4 * 256, 0]
    assert found[DEF(4)] == [3 * 4 * (36 // 4 + 1), 3 * 4 * (24 // 4 + 1)] * 2
    # Every number, and one that says whether all are finite.
    assert found[Hook(tw.Dense())] == [3 * 4 * 37, 3 * 4 * 25] * 2


def test_what_is_looked_at_is_the_model_that_the_method_is_judged_by():
    """DEF is judged by x - mean e, which follows uncompressed training; its parameters are elsewhere."""
    piped = Simulation(cut(net(norm=False), 2), small_sgd, BPK(), replicas=2, average=DEF(16))
    for x, y in data(batches=3):
        piped.step(x, y)
    before = [bits(stage.module) for stage in piped.stages.values()]
    judged, out = piped.whole_state_dict(), piped.predict(data()[0][0])
    model = net(norm=False)
    model.load_state_dict(judged)
    assert torch.allclose(out, model.eval()(data()[0][0]), atol=1e-6)
    assert not torch.allclose(bits(piped.stages[0].module), bits(cut(model, 2)[0]), atol=1e-4)
    assert all(torch.equal(a, bits(s.module)) for a, s in zip(before, piped.stages.values(), strict=True))


@pytest.mark.parametrize("average", AVERAGES, ids=repr)
def test_replicas_go_on_from_their_states_to_the_same_bits(average, tmp_path):
    whole, first = (Simulation(cut(net(0.3), 2), sgd, dsp(2), replicas=2, average=average) for _ in range(2))
    expected = run(whole, data())
    for x, y in data()[:5]:
        first.step(x, y)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Simulation(cut(net(0.3), 2), sgd, dsp(2), replicas=2, average=average)
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    found = run(second, data(), 5)
    assert found == expected[-len(found) :]
    assert torch.equal(bits(second.whole_state_dict()), bits(whole.whole_state_dict()))
    assert [b.summary() for b in second.ledger.values()] == [b.summary() for b in whole.ledger.values()]


def test_replicas_draw_masks_of_their_own():
    piped = Simulation(cut(net(0.5, norm=False), 2), sgd, BPK(), replicas=2)
    seen: list[Any] = []
    for rank in (0, 2):
        dropout = next(m for m in piped.stages[rank].module.modules() if isinstance(m, nn.Dropout))
        dropout.register_forward_hook(lambda module, given, out: seen.append(out == 0))
    x, y = data()[0]
    piped.step(torch.cat([x[:4], x[:4]]), torch.cat([y[:4], y[:4]]))
    assert len(seen) == 2
    assert not torch.equal(*seen)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Simulation(cut(net(), 2), sgd, BPK(), replicas=0), "replicas=0: a whole number of pipelines"),
        (
            lambda: Simulation(cut(net(), 2), sgd, BPK(), replicas=2, average=Method()),
            "average=Method..: what rep",
        ),
        (
            lambda: Simulation(cut(net(), 2), sgd, BPK(), replicas=2, average=DEF(4, steps=2)),
            "exchange after every step: take steps=1, or",
        ),
        (
            lambda: Simulation(cut(net(), 2), sgd, BPK(), replicas=2, average=DEF(4, delay=1)),
            "exchange after every step: take delay=0, or",
        ),
        (lambda: Simulation(cut(net(), 2), sgd, BPK(), replicas=3).step(*data()[0]), "batch 0 has 8 examples for 3"),
        (lambda: pipeline(cut(net(), 2), sgd, BPK(), replicas=2), "2 parts in 2 replicas are 4 processes"),
        (lambda: pipeline(cut(net(), 1), sgd, BPK(), replicas=2), "1 parts in 2 replicas are 2 processes"),
    ],
)
def test_replicas_that_cannot_be_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_state_of_other_replicas_is_refused():
    make = lambda **more: Simulation(cut(net(), 2), sgd, BPK(), **more)  # noqa: E731
    states = make(replicas=2, average=DEF(4)).state_dict()
    for other, given, said in (
        (make(replicas=2, average=DEF(8)), states, "of another average"),
        (make(), states[:2], "of another replicas: 2, not 1"),
        (make(replicas=2, average=DEF(4)), states[:2], "2 states for 2 parts in 2 replicas"),
        (make(replicas=2, average=DEF(4)), states[2:] + states[:2], "of replica 1, and this is replica 0"),
    ):
        with pytest.raises(ValueError, match=said):
            other.load_state_dict(given)


def test_a_gradient_that_is_not_finite_is_an_error_of_the_step():
    piped = Simulation(cut(net(norm=False), 2), lambda p: torch.optim.SGD(p, 1e30), FR(), replicas=2)
    with pytest.raises(NonFinite):
        run(piped, data())


# -- processes ----------------------------------------------------------------

CASES = {
    "DEF": (lambda: dsp(2), DEF(4)),
    "top-k": (lambda: dsp(2, activations=tw.Int8(), gradients=tw.Half()), Hook(tw.ErrorFeedback(tw.TopK(0.3)))),
    "mean": (lambda: FR(barrier=True), Hook(tw.Dense())),
    "2BW": (lambda: PipeDream2BW(2), PSync(4)),
}


def half(whole: Any, replica: int) -> Any:
    return whole[4 * replica : 4 * replica + 4]


def work(rank: int) -> dict[str, Any]:
    replica, found = rank // 2, {}
    for name, (schedule, average) in CASES.items():
        make = lambda: pipeline(cut(net(0.2), 2), sgd, schedule(), replicas=2, average=average, timeout=100)  # noqa: B023, E731
        training, losses = make(), []
        for number, (x, y) in enumerate(data()):
            time.sleep(0.002 * ((rank + number) % 3))
            losses.append(training.step(half(x, replica), half(y, replica)))
            if number == 4:
                training.predict(half(x, replica))
                state = training.state_dict()
        losses.append(training.drain())
        found[name] = {
            "model": training.whole_state_dict(),
            "losses": [float(loss) for loss in losses if loss is not None],
            "bytes": training.bytes.summary(),
            "held": training.held,
            "state": state,
        }
        if name == "DEF":
            again = make()
            again.load_state_dict(state)
            for x, y in data()[5:]:
                again.step(half(x, replica), half(y, replica))
            again.drain()
            found[name]["again"] = again.whole_state_dict()
    found["average"] = refusal(lambda: pipeline(cut(net(), 2), sgd, BPK(), replicas=2, average=DEF(4 + rank // 3)))
    found["ranks"] = refusal(lambda: pipeline(cut(net(), 2), sgd, BPK()))
    alone = dist.new_group(list(range(4)), timeout=datetime.timedelta(seconds=100))
    training = pipeline(cut(net(), 2), sgd, dsp(2), replicas=2, average=DEF(4), group=alone, timeout=100)
    began = time.monotonic()
    batches = [(x * (math.nan if n == 3 and replica else 1), y) for n, (x, y) in enumerate(data())]
    found["nan"] = refusal(lambda: [training.step(half(x, replica), half(y, replica)) for x, y in batches])
    found["seconds"] = time.monotonic() - began
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return forked(4, work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_by_two_processes_are_the_simulation_bit_for_bit(name, ranks):
    schedule, average = CASES[name]
    training, losses = Simulation(cut(net(0.2), 2), sgd, schedule(), replicas=2, average=average), []
    for number, (x, y) in enumerate(data()):
        losses.append(training.step(x, y))
        if number == 4:
            training.predict(x)
    losses.append(training.drain())
    means = torch.tensor([ranks[1][name]["losses"], ranks[3][name]["losses"]]).mean(0)
    assert [float(loss) for loss in losses if loss is not None] == means.tolist()
    model = training.whole_state_dict()
    for rank, found in enumerate(ranks):
        assert found[name]["model"].keys() == model.keys()
        assert torch.equal(bits(found[name]["model"]), bits(model))
        assert {**found[name]["bytes"], "setup": 0} == training.ledger[rank].summary()
        assert found[name]["bytes"]["averaged"] > 0
        assert found[name]["held"] == {rank: training.held[rank]}
    again = Simulation(cut(net(0.2), 2), sgd, schedule(), replicas=2, average=average)
    again.load_state_dict([found[name]["state"] for found in ranks])
    for x, y in data()[5:]:
        again.step(x, y)
    again.drain()
    assert torch.equal(bits(again.whole_state_dict()), bits(model))


def test_processes_go_on_from_their_states(ranks):
    for found in ranks:
        assert torch.equal(bits(found["DEF"]["again"]), bits(found["DEF"]["model"]))


def test_replicas_that_want_something_else_are_refused_on_every_rank(ranks):
    for found in ranks:
        assert found["average"].startswith("OutOfSync: rank 3 has another average than rank 0: DEF(ratio=5.0")
        assert found["ranks"].startswith("ValueError: 2 parts, and 4 ranks: split(model, parts=4, ...)")


def test_an_error_in_one_replica_ends_all_of_them(ranks):
    assert ranks[3]["nan"].startswith("NonFinite: batch 3: the loss became nan")
    assert "part 1: batch 3: the loss became nan" in ranks[2]["nan"]
    for rank in (0, 1):
        assert ranks[rank]["nan"].startswith("RankLost: part ")
        assert "another replica of this part died, failed" in ranks[rank]["nan"]
    for found in ranks:
        assert found["seconds"] < 60
