"""Rounds that last so many seconds: ranks make different numbers of steps, and the mean is weighted by them."""

from __future__ import annotations

import datetime
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from processes import Process
from thinwire.config import complete
from thinwire.ddp import DEF, EF, EF21, DetachedLoCo, LocalSGD, Method, PSync, Seconds, compress, predict
from thinwire.ddp.clock import Clock, advance_by
from thinwire.ddp.collectives import Traffic, together
from thinwire.ddp.exchange import start
from thinwire.ddp.worker import Worker
from thinwire.errors import CombinationError
from thinwire.key import Key
from thinwire.params import Layout
from thinwire.studies.data_parallel import method as typed

N, MADE = 48, [[3, 1, 2], [1, 5, 2]]  # steps of each of three ranks, in two rounds


class Hands:
    """Ranks whose clocks are turned by hand: each makes so many steps of its own gradients, and then they exchange."""

    def __init__(self, method: Method) -> None:
        self.method, draw = method, torch.Generator().manual_seed(0)
        x = torch.randn(N, generator=draw)
        layout = Layout(("w",), (torch.Size([N]),))
        self.ranks = [start(method, layout, x, 3) for _ in range(3)]
        self.w = [x.clone() for _ in self.ranks]
        self.clocks = [Clock(1e9) for _ in self.ranks]
        self.traffic, self.draw = Traffic(), draw

    def round(self, made: list[int]) -> list[Tensor]:
        """What the steps of each came to, uphill."""
        moves = []
        for w, rank, clock, count in zip(self.w, self.ranks, self.clocks, made, strict=True):
            torch.sub(rank.x, rank.e, alpha=rank.lam, out=w)
            moves.append(torch.zeros(N))
            for last in [False] * (count - 1) + [True]:
                move = torch.randn(N, generator=self.draw)
                w.sub_(move)
                moves[-1].add_(move)
                if last:
                    clock.calls, clock.began = 9, -1e12
                else:
                    together([advance_by(clock, True, self.method, rank, w, Key(0, 0, 0, "ddp"))], self.traffic)
        talks = [
            advance_by(clock, True, self.method, rank, w, Key(0, 7, k, "ddp"))
            for k, (clock, rank, w) in enumerate(zip(self.clocks, self.ranks, self.w, strict=True))
        ]
        together(talks, self.traffic)
        return moves

    @property
    def y(self) -> np.ndarray:
        """x - mean e."""
        return (self.ranks[0].x - torch.stack([rank.e for rank in self.ranks]).mean(0)).double().numpy()


LAW = [
    DEF(tw.TopK(0.2), steps=Seconds(5), lam=0.4),
    EF(4, steps=Seconds(5)),
    PSync(4, steps=Seconds(5)),
    LocalSGD(Seconds(5), tw.TopK(0.2)),
]


@pytest.mark.parametrize("method", LAW, ids=repr)
def test_y_moves_by_the_mean_of_what_ranks_steps_came_to_weighted_by_how_many_they_were(method):
    hands = Hands(method)
    for number, made in enumerate(MADE):
        before = hands.y
        moves = hands.round(made)
        mean = sum(h * u.double().numpy() for h, u in zip(made, moves, strict=True)) / sum(made)
        assert np.abs(hands.y - (before - mean)).max() < 2e-5
        for rank in hands.ranks:
            assert torch.equal(rank.x, hands.ranks[0].x)
        assert [(clock.exchanges, clock.made) for clock in hands.clocks] == [(number + 1, 0)] * 3


def test_the_mean_of_models_is_weighted_by_steps():
    hands = Hands(LocalSGD(Seconds(5)))
    before = hands.ranks[0].x.double().numpy()
    moves = hands.round([3, 1, 2])
    expected = before - sum(h * u.double().numpy() for h, u in zip([3, 1, 2], moves, strict=True)) / 6
    assert np.abs(hands.ranks[0].x.double().numpy() - expected).max() < 2e-6
    assert hands.traffic.bytes == 4 * (N + 1)  # all that is sent: the model, and how many steps


SLOW, RATE = 0.12, 0.5  # seconds of a step of the slow rank


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(8))

    def forward(self, c: Tensor) -> Tensor:
        return (self.w * c).sum()


def train(folder: str, rank: int) -> None:
    """One rank's process, of which rank 1 is slow. Its gradient is the same in every step: (rank + 1) times ones."""
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=180)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=wait)
    model = DistributedDataParallel(Two())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    c = compress(model, optimizer, LocalSGD(Seconds(0.1)))
    made, models, count = [], [], 0

    def step() -> None:
        nonlocal count
        before = c.exchanges
        optimizer.zero_grad()
        model(torch.full((8,), rank + 1.0)).backward()
        if rank:
            time.sleep(SLOW)
        optimizer.step()
        count += 1
        if c.exchanges > before:
            made.append(count)
            models.append(float(c.model.module.w[0]))
            count = 0

    while c.exchanges < 4:
        step()
        if c.exchanges == 2 and not count:  # where a round has ended all states are of one moment
            states: list[Any] = [None, None]
            dist.all_gather_object(states, c.state_dict())
    torch.save(c.state_dict(), f"{folder}/{rank}.pt")
    saved = c.exchanges
    c.load_state_dict(torch.load(f"{folder}/{rank}.pt"))
    same = c.exchanges == saved
    with c.averaged():
        model.module.w.detach().clone()
    c.load_state_dict(states)  # as for another number of ranks
    found = {"made": made, "models": models, "same": same, "merged": c.exchanges, "steps": c.ledger.steps}
    refused = []
    for call in (lambda: c.clip_grad_norm_(1.0), lambda: c.regroup(), lambda: c.disband()):
        try:
            call()
        except CombinationError as error:
            refused.append(str(error))
    c.remove()
    for other in (nn.BatchNorm1d(4), nn.Linear(2, 2)):
        wrapped = DistributedDataParallel(other, find_unused_parameters=isinstance(other, nn.Linear))
        try:
            compress(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), DetachedLoCo(Seconds(1)))
        except CombinationError as error:
            refused.append(str(error))
    Path(folder, f"{rank}.json").write_text(json.dumps(found | {"refused": refused}))
    dist.barrier()
    dist.destroy_process_group()


def test_unequal_ranks_train_on_while_the_slow_one_makes_its_step_and_are_averaged_by_steps(tmp_path):
    with ExitStack() as stack:
        running = [stack.enter_context(Process(train, str(tmp_path), rank)) for rank in range(2)]
        assert [process.wait() for process in running] == [0, 0], "\n".join(p.stderr[-3000:] for p in running)
    fast, slow = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert fast["models"] == slow["models"]
    assert len(fast["made"]) == 4
    assert slow["made"] == [2, 1, 1, 1]  # of the first round two, whatever the clock says
    assert fast["made"][0] >= 2
    assert sum(fast["made"]) > sum(slow["made"])
    x = 0.0
    for h, k, model in zip(fast["made"], slow["made"], fast["models"], strict=True):
        x -= RATE * (h * h * 1.0 + k * k * 2.0) / (h + k)  # each movement is h steps of the rank's gradient
        assert model == pytest.approx(x, rel=1e-5)
    assert fast["same"]
    assert fast["merged"] == 2
    assert fast["steps"] == sum(fast["made"])
    for words, text in zip(
        (
            "take torch.nn.utils.clip_grad_norm_, which clips each rank's own",
            "give steps= a number",
            "give steps= a number",
            "broadcast_buffers=False",
            "find_unused_parameters=False",
        ),
        fast["refused"],
        strict=True,
    ):
        assert words in text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DEF(8, steps=Seconds(5), delay=1), "need rounds of so many steps: give a number"),
        (lambda: EF21(tw.TopK(0.1), steps=Seconds(5)), "need rounds of so many steps: give a number"),
        (lambda: LocalSGD(Seconds(0)), "Seconds(seconds=0.0): seconds must be positive and finite"),
        (lambda: typed("LocalSGD('30s')"), "int or Seconds such as Seconds(30) is expected"),
        (lambda: predict(LocalSGD(Seconds(5)), Two(), 2, 4), "a prediction is for a number of steps"),
        (
            lambda: Worker(Two(), lambda p: torch.optim.SGD(p, 0.1), DetachedLoCo(Seconds(5)), 2),
            "workers of one process make a number of steps",
        ),
    ],
)
def test_what_has_no_clock_is_refused(make, text):
    with pytest.raises((ValueError, CombinationError)) as error:
        make()
    assert text in str(error.value)


def test_it_is_typed_as_it_is_shown():
    method = DetachedLoCo(Seconds(20))
    assert repr(method) == "DetachedLoCo(Seconds(20.0))"
    assert typed(repr(method)) == typed(complete(method)) == method
