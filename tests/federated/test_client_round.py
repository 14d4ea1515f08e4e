"""A client's round: when its state moves, and what its loss draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import thinwire as tw
from problems import LOCAL, handwriting, mlp, trained
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
