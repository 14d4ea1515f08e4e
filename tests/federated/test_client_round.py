"""A client's round: when its state moves, and what its loss draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thinwire as tw
from problems import LOCAL, handwriting, mlp, normed, trained
from thinwire import MOON, SCAFFOLD, FedAvg, FedDC, FedDyn, Key, Local, LocalSGD, Simulation


@pytest.mark.parametrize("method", [FedDyn(LOCAL), FedDC(LOCAL), SCAFFOLD(LOCAL, option="I"), MOON(LOCAL)], ids=repr)
def test_the_state_of_a_client_moves_when_its_reply_arrives_and_only_then(method: tw.Algorithm) -> None:
    tasks, _ = handwriting()
    run = Simulation(method, mlp, tasks, sample=5, dropout=0.4, workers=1, plan="each")
    lost = arrived = 0
    with run.pool:
        for _ in range(4):
            before = [tw.dumps(run.states.get(i).own.state) for i in range(8)]
            run.step()
            after = [tw.dumps(run.states.get(i).own.state) for i in range(8)]
            replied = {entry.client for entry in run.ledger.of("up", run.round)}
            asked = {entry.client for entry in run.ledger.of("down", run.round)}
            assert {i for i in range(8) if before[i] != after[i]} == replied
            lost, arrived = lost + len(asked - replied), arrived + len(replied)
    assert lost > 2
    assert arrived > 2


def test_a_loss_draws_from_its_clients_key_alone() -> None:
    drawn: list[Tensor] = []

    @dataclass(frozen=True)
    class Draws(tw.local.Loss):
        def __call__(self, net: tw.local.Net, task: tw.Task, batch: Any) -> Tensor:
            drawn.append(torch.rand(2, generator=net.generator))
            return task.loss(net.module, batch)

    @dataclass(frozen=True)
    class Drawing(FedAvg):
        def client(self, view: Any, state: Any, task: tw.Task, key: Key) -> Any:
            y = yield Local(view.x, self.local, loss=Draws())
            return tw.algorithms.fedavg.Reply(y.x - view.x), state

    once = LocalSGD(0.1, steps=1)
    for _ in range(2):
        trained(Drawing(once), rounds=2, sample=None)
    assert len(drawn) == 32
    assert all(torch.equal(a, b) for a, b in zip(drawn[:16], drawn[16:], strict=True))
    assert len({tuple(d.tolist()) for d in drawn}) == 16


class Says(NamedTuple):
    """A reply."""

    update: tw.Params


@dataclass(frozen=True)
class Saying(FedAvg):
    """Every client replies these numbers, one after the other over again."""

    numbers: tuple[float, ...] = (0.0,)

    def client(self, view: Any, state: Any, task: tw.Task, key: Key) -> Any:
        yield Local(view.x, self.local)
        numbers = torch.tensor(self.numbers).repeat(-(-view.x.flat.numel() // len(self.numbers)))
        return Says(view.x.map(lambda x: numbers[: x.numel()].clone())), state


MOST = 2.0**96  # no number of a message may be beyond
ANSWERS = {
    "one number is the largest there may be": ((MOST, *[0.0] * 1000), True),
    "one number is a little beyond": ((MOST * 1.001, *[0.0] * 1000), False),
    "one is a little beyond, on the other side": ((-MOST * 1.001, *[0.0] * 1000), False),
    "all are far below, and their norm is not": ((MOST * 0.1,), True),
    "all are small, and their squares are no numbers": ((1e25,), True),
    "one is no number": ((float("nan"), *[1e-3] * 1000), False),
    "one is infinite": ((float("inf"), *[1e-3] * 1000), False),
    "one is infinite, and its square is left out of 0": ((-float("inf"), *[0.0] * 1000), False),
    "all are 0": ((0.0,), True),
}


@pytest.mark.parametrize("up", [tw.Dense(), tw.TopK(0.9)], ids=repr)
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("plan", ["each", "together"])
def test_a_reply_is_sent_if_none_of_its_numbers_is_too_large(answer: str, up: tw.Link, plan: Any) -> None:
    numbers, fits = ANSWERS[answer]
    tasks, _ = handwriting()
    # A server that goes nowhere: whether it can take the step is not asked here.
    method = Saying(LOCAL, opt=tw.SGD(1e-30), up=up, numbers=numbers)
    with Simulation(method, mlp, tasks, sample=3, workers=1, plan=plan) as run:
        if not fits:
            said = r"client \d: update has (NaN or infinity in it|numbers beyond)"
            with pytest.raises(tw.errors.NonFinite, match=said):
                run.step(evaluate=False)
            return
        record = run.step(evaluate=False)
    if isinstance(up, tw.Dense):
        norm = float(torch.tensor(numbers).repeat(910)[:910].double().norm())
        assert record["norms"]["update"] == pytest.approx([norm] * 5, rel=1e-3)


@pytest.mark.parametrize("plan", ["each", "together"])
def test_weights_by_steps_are_refused_where_other_steps_are_made_than_are_counted(plan: Any) -> None:
    x, y = torch.randn(9, 64, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 10
    method, said = FedAvg(LocalSGD(0.1, batch=4), weights="steps"), "client 0: weights='steps' counts 3 steps, and"
    whole = tw.Supervised(x, y)
    assert tw.simulate(method, mlp, [whole], 1, plan=plan).rounds[0]["train_loss"] is not None
    with pytest.raises(ValueError, match=f"{said} 2 were made"):  # batch norm leaves the last example out
        tw.simulate(method, normed, [whole], 1, plan=plan)
    with pytest.raises(ValueError, match=f"{said} 1 were made"):
        tw.simulate(method, mlp, [tw.Supervised(x, y, order=[[[0, 1]]])], 1, plan=plan)
