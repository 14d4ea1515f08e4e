"""DiLoCo as federated training, by FedAvg's arguments: its listing, and what its ranks make of the same batches."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import thinwire as tw
from thinwire import Detached, ErrorFeedback, FedAvg, LocalAdamW, Nesterov, Supervised, TopK
from thinwire.ddp import DiLoCo
from thinwire.ddp.collectives import Traffic
from thinwire.ddp.simulation import one_step
from thinwire.ddp.worker import Worker, batches
from thinwire.key import Key

STEPS, ROUNDS = 4, 5


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def task(**given: Any) -> Supervised:
    g = torch.Generator().manual_seed(1)
    return Supervised(torch.randn(64, 6, generator=g), torch.randint(0, 3, (64,), generator=g), **given)


def diloco(**fields: Any) -> FedAvg:
    return FedAvg(LocalAdamW(0.01, steps=STEPS, keep=True), opt=Nesterov(0.7, 0.9), weights="uniform", **fields)


def dealt(workers: int) -> list[Supervised]:
    """A client for each worker of data-parallel training, with its batches in their order."""
    rows = [row for row, _ in zip(batches(64, workers, 4, 0), range(STEPS * ROUNDS), strict=False)]
    order = [[[row[k] for row in rows[STEPS * t : STEPS * (t + 1)]] for t in range(ROUNDS)] for k in range(workers)]
    return [task(order=own) for own in order]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_one_client_over_dense_is_the_listing_of_diloco() -> None:
    """Douillard et al., Algorithm 1, with one worker: torch's AdamW inside, and its SGD with nesterov outside."""
    (client,) = dealt(1)
    assert client.order is not None
    shared = net()
    own = copy.deepcopy(shared)
    inner = torch.optim.AdamW(own.parameters(), lr=0.01, weight_decay=0.01)
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for t in range(ROUNDS):
        own.load_state_dict(shared.state_dict())  # line 3: the worker begins at the shared model
        for rows in client.order[t]:
            inner.zero_grad()
            functional.cross_entropy(own(client.inputs[rows]), client.targets[rows]).backward()
            inner.step()  # line 8
        for x, w in zip(shared.parameters(), own.parameters(), strict=True):
            x.grad = (x - w).detach()  # line 12: the outer gradient
        outer.step()  # line 14
    found = tw.simulate(diloco(), net, [client], ROUNDS, workers=1, plan="each")
    assert torch.allclose(found.params.flat, flat(shared), atol=1e-5)
    assert not torch.allclose(found.params.flat, flat(net()), atol=0.1)


def test_clients_that_all_take_part_are_the_ranks_of_diloco() -> None:
    workers = [
        Worker(net(), lambda p: torch.optim.AdamW(p, lr=0.01), DiLoCo(STEPS, outer=Nesterov(0.7, 0.9)), 3)
        for _ in range(3)
    ]
    for step, rows in zip(range(STEPS * ROUNDS), batches(64, 3, 4, 0), strict=False):
        keys = [Key(0, step, k, "ddp") for k in range(3)]
        for worker, indices, key in zip(workers, rows, keys, strict=True):
            worker.backward(task(), indices, key)
        one_step(workers, keys, Traffic())
    found = tw.simulate(diloco(), net, dealt(3), ROUNDS, workers=1, plan="each")
    assert torch.allclose(found.params.flat, workers[0].rank.x, atol=1e-5)


def test_a_run_over_error_feedback_goes_on_with_the_same_bits_though_replies_are_lost(tmp_path: Path) -> None:
    plain = diloco(up=ErrorFeedback(TopK(0.2)))
    for number, method in enumerate((plain, Detached(plain))):
        options: dict[str, Any] = {"sample": 3, "dropout": 0.3, "seed": 2, "plan": "each", "workers": 1}
        tasks = [task() for _ in range(5)]
        straight = tw.simulate(method, net, tasks, 5, **options)
        folder = tmp_path / str(number)
        tw.simulate(method, net, tasks, 3, out=folder, **options)
        found = tw.simulate(method, net, tasks, 5, out=folder, resume=True, **options)
        assert torch.equal(found.params.flat, straight.params.flat)
        assert list(found.ledger) == list(straight.ledger)
        assert sum(record["lost_replies"] for record in straight.rounds) > 0
