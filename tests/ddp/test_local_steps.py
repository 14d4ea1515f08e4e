"""Local steps: laws that hold whatever the link, and whole trainings written out in numpy."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
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
from thinwire.ddp import (
    DEF,
    DEFA,
    EF,
    EF21,
    SAEF,
    DeMo,
    DetachedLoCo,
    DiLoCo,
    DisTrO,
    Hook,
    LocalSGD,
    Method,
    PSync,
    SparseLoCo,
    StreamingDiLoCo,
    compress,
    predict,
)
from thinwire.ddp.collectives import Traffic, together
from thinwire.ddp.exchange import exchange, output, start
from thinwire.ddp.rounds import Rounds, deal
from thinwire.ddp.simulation import one_step, simulate
from thinwire.ddp.sketch import sketch
from thinwire.ddp.worker import Worker, batches
from thinwire.errors import CombinationError
from thinwire.key import Key
from thinwire.params import Layout
from thinwire.studies.data_parallel import method as typed

SMALL = tw.ChunkTopK(3, chunk=4, values=tw.Bins(4))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def task() -> tw.Supervised:
    g = torch.Generator().manual_seed(1)
    return tw.Supervised(torch.randn(64, 6, generator=g), torch.randint(0, 3, (64,), generator=g))


Make = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


class Team:
    """Logical workers, and what they gave to collectives."""

    def __init__(
        self, method: Method, workers: int = 2, make: Make = sgd, model: Callable[[], nn.Module] = net
    ) -> None:
        self.workers = [Worker(model(), make, method, workers) for _ in range(workers)]
        self.method, self.made, self.traffic, self.data = method, 0, Traffic(), task()

    def run(self, steps: int) -> Team:
        for rows in list(zip(range(self.made + steps), batches(64, len(self.workers), 4, 0), strict=False))[
            self.made :
        ]:
            keys = [Key(0, self.made, k, "ddp") for k in range(len(self.workers))]
            for worker, indices, key in zip(self.workers, rows[1], keys, strict=True):
                worker.backward(self.data, indices, key)
            one_step(self.workers, keys, self.traffic)
            self.made += 1
        return self

    @property
    def x(self) -> Tensor:
        return self.workers[0].rank.x

    def flats(self) -> list[Tensor]:
        return [worker.vector.flat for worker in self.workers]

    def e(self) -> Tensor:
        return torch.stack([worker.rank.e for worker in self.workers])


# -- identities ---------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "rate"), [(1, 2.5), (2, 2.5), (4, 2.5), (5, 2.0)])
def test_the_outer_rate_of_detached_loco_goes_with_the_number_of_ranks(ranks, rate):
    link = tw.TopK(0.014, values=tw.Bins(4))
    written = DEFA(link, lam=0.5, steps=3, decay=0.8, count="senders", outer=tw.SGD(rate))
    ours, theirs = Team(DetachedLoCo(3), ranks).run(7), Team(written, ranks).run(7)
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.e(), theirs.e())
    assert not torch.equal(ours.x, Team(DetachedLoCo(3, outer=tw.SGD(0.9 * rate)), ranks).run(7).x)


def test_an_exchange_after_every_step_with_a_plain_outer_step_is_data_parallel_training():
    local, plain = Team(DiLoCo(1, outer=tw.SGD(1.0)), 3).run(20), Team(Hook(tw.Dense()), 3).run(20)
    assert torch.allclose(local.x, plain.flats()[0], atol=1e-6)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_local_steps_of_one_rank_are_plain_training_to_the_bit(make):
    local, plain = Team(LocalSGD(5), 1, make).run(23), Team(Hook(tw.Dense()), 1, make).run(23)
    assert torch.equal(local.flats()[0], plain.flats()[0])


def test_ranks_part_within_a_round_and_are_one_at_its_end():
    team = Team(LocalSGD(4), 3).run(3)
    assert not torch.equal(*team.flats()[:2])
    own = torch.stack(team.flats())
    team.run(1)
    assert all(torch.equal(flat, team.x) for flat in team.flats())
    assert not torch.allclose(own.mean(0), team.x)  # it made one step more


@pytest.mark.parametrize("link", [8, SMALL, tw.TopK(0.1), tw.ScaledSign(), tw.TransformCoding(40)], ids=repr)
@pytest.mark.parametrize("lam", [0.5, None])
def test_over_a_round_y_moves_by_the_mean_of_what_the_ranks_steps_came_to(link, lam):
    """y <- y - mean u, where u is how far a rank went from x - lam * e in H steps."""
    team, before = Team(DEF(link, lam=lam, steps=4), 3), None
    for _ in range(5):
        y, start = team.x - team.e().mean(0), team.x - team.workers[0].rank.lam * team.e()
        team.run(3)
        keys = [Key(0, team.made, k, "ddp") for k in range(3)]
        rows = list(zip(range(team.made + 1), batches(64, 3, 4, 0), strict=False))[-1][1]
        for worker, indices, key in zip(team.workers, rows, keys, strict=True):
            worker.backward(team.data, indices, key)
            worker.optimizer.step()  # the last of the round, here to see where it leads
        before = torch.stack(team.flats()).clone()
        for worker, flat in zip(team.workers, before, strict=True):
            for p in worker.vector.parameters:
                p.grad.zero_()  # plain SGD stays where it is
            worker.vector.flat.copy_(flat)
        one_step(team.workers, keys)
        team.made += 1
        u = (start - before).mean(0)
        assert torch.allclose(team.x - team.e().mean(0), y - u, atol=1e-6)


def test_one_fragment_without_a_delay_is_diloco_to_the_bit():
    streaming = StreamingDiLoCo(6, fragments=1, delay=0, mix=0.0, outer=tw.Nesterov())
    assert torch.equal(Team(streaming).run(14).flats()[0], Team(DiLoCo(6)).run(14).flats()[0])


def test_fragments_of_a_layer_each_are_a_diloco_of_each_layer():
    """H = F = 2: layer "0" is exchanged after every second step, layer "2" after the others."""
    rule, team = tw.Nesterov(0.7, 0.9), Team(DiLoCo(2, fragments=2)).run(0)
    assert [part.names for part in team.workers[0].vector.parts] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    mirror = Team(LocalSGD(100))  # makes steps alone, and is exchanged here
    spans = [slice(0, 56), slice(56, 83)]
    x = mirror.x.numpy().astype(np.float64)
    v = np.zeros_like(x)
    for made in range(1, 8):
        team.run(1)
        mirror.run(1)
        where = spans[made % 2]
        w = np.mean([flat.numpy()[where].astype(np.float64) for flat in mirror.flats()], axis=0)
        d = x[where] - w
        v[where] = rule.momentum * v[where] + d
        x[where] -= rule.lr * (d + rule.momentum * v[where])
        for flat in mirror.flats():
            flat[where] = torch.from_numpy(x[where]).float()
        assert np.allclose(team.x.numpy(), x, atol=1e-6)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(team.flats(), mirror.flats(), strict=True))


# -- by hand, in numpy ----------------------------------------------------------


class Slope(nn.Module):
    """Whose gradient is what the example says, wherever it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a.reshape(-1) * x).sum(1)


def slopes(method: Method, gradients: np.ndarray, rate: float = 0.5) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """x, and the ranks' parameters and residuals, after each step with ``gradients`` [step, rank, 4]."""
    team = [Worker(Slope(), lambda p: torch.optim.SGD(p, lr=rate), method, gradients.shape[1]) for _ in gradients[0]]
    seen = []
    for step, each in enumerate(gradients):
        keys = [Key(0, step, k, "ddp") for k in range(len(team))]
        for worker, g in zip(team, each, strict=True):
            worker.leave(step)
            worker.optimizer.zero_grad()
            worker.module(torch.from_numpy(g).float()[None]).sum().backward()
        one_step(team, keys)
        flats = np.stack([w.vector.flat.numpy().copy() for w in team])
        es = np.stack([w.rank.e.numpy().copy() for w in team])
        seen.append((team[0].rank.x.numpy().copy(), flats, es))
    return seen


G = np.random.default_rng(0).normal(size=(9, 2, 4))
X = np.array([1.0, 2.0, 3.0, 4.0])


def test_diloco_by_hand():
    """Algorithm 1: H = 3, eta = .7, mu = .9, inner SGD at .5."""
    x, v = X.copy(), np.zeros(4)
    w = np.stack([x, x])
    for step, (seen, flats, _) in enumerate(slopes(DiLoCo(3), G)):
        w = w - 0.5 * G[step]
        if step % 3 == 2:
            d = (x - w).mean(0)
            v = 0.9 * v + d
            x = x - 0.7 * (d + 0.9 * v)
            w = np.stack([x, x])
        assert np.allclose(seen, x, atol=1e-5)
        assert np.allclose(flats, w, atol=1e-5)


def test_an_exchange_that_is_applied_later_by_hand():
    """Algorithm 2 with a fragment: sent after every fourth step, applied two later, alpha = .25, plain outer step."""
    x, w, flying = X.copy(), np.stack([X, X]), None
    method = StreamingDiLoCo(4, fragments=1, delay=2, mix=0.25, outer=tw.Nesterov(0.5, 0.8))
    v = np.zeros(4)
    for step, (seen, flats, _) in enumerate(slopes(method, G)):
        w = w - 0.5 * G[step]
        if (step + 1) % 4 == 0:
            flying = (x - w).mean(0)
        if step + 1 in (6, 10):
            v = 0.8 * v + flying
            x = x - 0.5 * (flying + 0.8 * v)
            w = 0.75 * x + 0.25 * w
        assert np.allclose(seen, x, atol=1e-5)
        assert np.allclose(flats, w, atol=1e-5)


def top(p: np.ndarray, k: int) -> np.ndarray:
    """The k largest of each row, and zeros."""
    out = np.zeros_like(p)
    for row, of in zip(out, p, strict=True):
        kept = np.argsort(-abs(of))[:k]
        row[kept] = of[kept]
    return out


def test_a_detached_round_whose_mean_is_over_senders_by_hand():
    """The formulas of the page: lam = .5, decay .9, outer rate 2, two of four entries, H = 3."""
    x, e, w = X.copy(), np.zeros((2, 4)), np.stack([X, X])
    method = DEFA(tw.TopK(0.5), lam=0.5, steps=3, decay=0.9, outer=tw.SGD(2.0), count="senders")
    for step, (seen, flats, owed) in enumerate(slopes(method, G)):
        if step % 3 == 0:
            w = x - 0.5 * e
        w = w - 0.5 * G[step]
        if step % 3 == 2:
            p = (x - w) + (0.9 - 0.5) * e
            c = top(p, 2)
            e = p - c
            x = x - 2.0 * c.sum(0) / np.maximum(1, (c != 0).sum(0))
            w = np.stack([x, x])
        assert np.allclose(seen, x, atol=1e-5)
        assert np.allclose(owed, e, atol=1e-5)
        assert np.allclose(flats, w, atol=1e-5)


def test_demo_by_hand():
    """Algorithm 1 of a 2 x 2 layer, one chunk, by the cosine transform as it is defined; decay of weights .1."""
    n = np.arange(2)
    c = np.sqrt(2 / 2) * np.cos(np.pi / 4 * n[:, None] * (2 * n + 1))
    c[0] = np.sqrt(1 / 2)
    x, e = X.copy(), np.zeros((2, 4))
    for step, (seen, _, owed) in enumerate(slopes(DeMo(2, chunk=2, decay=0.9, weight_decay=0.1), G)):
        e = 0.9 * e + 0.5 * G[step]
        y = top(np.stack([(c @ one.reshape(2, 2) @ c.T).reshape(4) for one in e]), 2)
        e = e - np.stack([(c.T @ one.reshape(2, 2) @ c).reshape(4) for one in y])
        d = y.sum(0) / np.maximum(1, (y != 0).sum(0))
        x = x * (1 - 0.5 * 0.1) - 0.5 * np.sign((c.T @ d.reshape(2, 2) @ c).reshape(4))
        assert np.allclose(owed, e, atol=1e-5)
        assert np.allclose(seen, x, atol=1e-5)


# -- when, and what is sent -----------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "sent", "applied"),
    [
        (Rounds(1, 1, 0), "0 0 0 0 0 0 0 0", "0 0 0 0 0 0 0 0"),
        (Rounds(4, 1, 0), "- - - 0 - - - 0", "- - - 0 - - - 0"),
        (Rounds(4, 2, 0), "- 1 - 0 - 1 - 0", "- 1 - 0 - 1 - 0"),
        (Rounds(4, 2, 1), "- 1 - 0 - 1 - 0", "- - 1 - 0 - 1 -"),
        (Rounds(4, 1, 3), "- - - 0 - - - 0", "- - - - - - 0 -"),
        (Rounds(4, 1, 4), "- - - 0 - - - 0", "- - - - - - - 0"),
        (Rounds(4, 2, 2), "- 1 - 0 - 1 - 0", "- - - 1 - 0 - 1"),
        (Rounds(1, 1, 1), "0 0 0 0 0 0 0 0", "- 0 0 0 0 0 0 0"),
        (Rounds(3, 3, 0), "1 2 0 1 2 0 1 2", "1 2 0 1 2 0 1 2"),
    ],
)
def test_a_fragment_is_sent_in_its_turn_and_applied_after_the_delay(rounds, sent, applied):
    def words(parts: Any) -> str:
        return " ".join("-" if part is None else str(part) for part in parts)

    due = [rounds.due(step) for step in range(8)]
    assert (words(d.send for d in due), words(d.apply for d in due)) == (sent, applied)


def test_layers_are_dealt_to_fragments_in_turn():
    names = ["embed.weight", "h.0.a.weight", "h.0.b.bias", "h.1.a.weight", "h.1.0.weight", "norm.weight", "norm.bias"]
    assert deal(names, 2) == [0, 1, 1, 0, 0, 1, 1]
    assert deal(names, 1) == [0] * 7
    with pytest.raises(ValueError, match="fragments=5, and the model has 4 layer"):
        deal(names, 5)


def test_bytes_are_those_of_the_exchanges_alone():
    """83 parameters of 4 bytes every fifth step; of two fragments 56 and 27."""
    assert Team(LocalSGD(5)).run(9).traffic.summary() == {
        "steps": 9, "reduced": 332, "gathered": 0, "calls": 1, "setup": 0, "bytes": 332,
    }  # fmt: skip
    streamed = [Team(LocalSGD(4, fragments=2)).run(n).traffic.reduced for n in (1, 2, 3, 4)]
    assert streamed == [0, 4 * 27, 4 * 27, 4 * 83]


@pytest.mark.parametrize(
    "method",
    [
        Hook(tw.Dense()),
        LocalSGD(5),
        DiLoCo(4, fragments=2),
        DiLoCo(4, tw.Int8()),
        StreamingDiLoCo(4, 2, 1),
        DEF(8),
        DEF(8, steps=4),
        PSync(4),
    ],
    ids=repr,
)
def test_what_is_predicted_is_in_the_ledger(method):
    ledger = Team(method, 3).run(9).traffic
    assert ledger.bytes > 0
    assert predict(method, net(), 3, 9).summary() == ledger.summary()


@pytest.mark.parametrize("method", [SparseLoCo(4), DetachedLoCo(4), DeMo(32), DisTrO(4)], ids=repr)
def test_what_is_predicted_of_coded_positions_is_about_what_is_in_the_ledger(method):
    ledger = Team(method, 3).run(9).traffic
    assert predict(method, net(), 3, 9).bytes == pytest.approx(ledger.bytes, rel=0.15)


def test_what_is_predicted_of_a_hook_is_of_the_models_own_types():
    """PowerSGD sends 32-bit numbers, also of 64-bit ones: of rank 1 those of 8 + 1 (the flag) and then of 6."""
    model = nn.Linear(6, 8, bias=False)
    assert predict(Hook(tw.PowerSGD(1)), model, 2, 1).bytes == 4 * (8 + 1 + 6)
    assert predict(Hook(tw.PowerSGD(1)), model.double(), 2, 1).bytes == 4 * (8 + 1 + 6)
    assert predict(Hook(tw.Half()), model.bfloat16(), 2, 1).bytes == 2 * (48 + 1)
    with pytest.raises(CombinationError, match="parameter 'weight' is complex64, and what is sent is real"):
        predict(Hook(tw.Dense()), nn.Linear(6, 8, bias=False, dtype=torch.complex64), 2, 1)


def test_a_prediction_changes_no_model_and_needs_ranks():
    model = net()
    predict(DetachedLoCo(2), model, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), net().parameters(), strict=True))
    with pytest.raises(ValueError, match=r"^ranks=0: it must be at least 1$"):
        predict(DEF(8), model, 0, 4)


def test_a_sketch_is_as_long_as_its_vector_on_average_and_means_are_means():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 10_007, generator=g)
    squares = [float(sketch(x, Key(0, n)).square().sum() / x.square().sum()) for n in range(60)]
    assert np.mean(squares) == pytest.approx(1.0, abs=0.1)  # one of 64 numbers is off by .18
    assert np.std(squares) < 0.3
    key = Key(0, 3)
    assert torch.allclose(sketch((x + y) / 2, key), (sketch(x, key) + sketch(y, key)) / 2, atol=1e-3)
    assert sketch(x, key).shape == (64,)


@pytest.mark.parametrize(("common", "ranks", "best"), [(0.0, 4, 0.25), (0.5, 4, 0.625), (1.0, 3, 1.0)])
@pytest.mark.parametrize("link", [16, tw.RandK(0.1)], ids=repr)
def test_what_ranks_owe_in_common_is_measured_at_exchanges_far_apart(common, ranks, best, link):
    """Of K ranks with a share c of the variance in common it is c + (1 - c) / K. Five exchanges of 20 steps count."""
    method, g = DEF(link, steps=20), torch.Generator().manual_seed(0)
    layout = Layout(("a",), (torch.Size([16_384]),))
    team, found = [start(method, layout, torch.zeros(16_384), ranks) for _ in range(ranks)], []
    for number in range(40):
        both, own = torch.randn(16_384, generator=g), torch.randn(ranks, 16_384, generator=g)
        steps = common**0.5 * both + (1 - common) ** 0.5 * own
        after = [rank.x - rank.lam * rank.e - u for rank, u in zip(team, steps, strict=True)]
        keys = [Key(0, number, k) for k in range(ranks)]
        together([exchange(method, *of) for of in zip(team, after, keys, strict=True)])
        found.append(team[0].lam_star)
        assert {rank.lam for rank in team} == {team[0].lam}
    assert np.mean(found[10:]) == pytest.approx(best, abs=0.06)


@pytest.mark.parametrize("link", [tw.Bins(4), tw.Half(), tw.Int8()], ids=repr)
def test_a_constant_lambda_of_local_steps_is_not_measured(link):
    """So it takes no byte more than plain error feedback, where a measured one takes 260 an exchange."""
    plain, constant, measured = (
        predict(m, net(), 2, 3 * 16).bytes
        for m in (EF(link, steps=16), DEF(link, lam=0.7, steps=16), DEF(link, steps=16))
    )
    assert (constant - plain, measured - plain) == (0, 3 * 260)
    with pytest.warns(UserWarning, match=r"lam=0.2.*of 4 ranks the best lam is at least 1/4"):
        DEF(link, lam=0.2, steps=16).warn(4)


def test_what_a_layer_learnt_before_it_was_frozen_within_a_round_is_not_lost():
    """Entries 0 and 1 are frozen at the end of the round: 0 moved before that, 1 did not. Three ranks, by hand."""
    method, layout = LocalSGD(4), Layout(("a", "b"), (torch.Size([2]), torch.Size([1])))
    begin = torch.tensor([0.1, 0.7, 1.0])
    team = [start(method, layout, begin, 3) for _ in range(3)]
    after = [torch.tensor([0.1 + 0.3 * k, 0.7, 1.0 - 0.5 * k]) for k in range(3)]
    keys = [Key(0, 0, k) for k in range(3)]
    together([exchange(method, *of, still=[(0, 2)]) for of in zip(team, after, keys, strict=True)])
    for rank, w in zip(team, after, strict=True):
        assert rank.x.tolist() == pytest.approx([0.4, 0.7, 0.5])
        assert rank.x[1] == begin[1]  # to the bit
        assert torch.equal(w, rank.x)


# -- whole trainings -------------------------------------------------------------

DELAYED: list[Method] = [
    DiLoCo(4, delay=2, mix=0.25),
    DiLoCo(4, tw.Bins(4), delay=4),
    StreamingDiLoCo(4, 2, 1),
    StreamingDiLoCo(4, 2, 2, link=SMALL),
    SparseLoCo(4, delay=4),
    DEFA(tw.TopK(0.2), delay=1),
    DEFA(tw.TopK(0.2), steps=4, delay=3),
    DEF(8, delay=1),
    DEF(8, steps=2, delay=1),
    DEF(SMALL, delay=1),
    PSync(4, delay=1),
    SAEF(8, average=2, delay=1),
    DeMo(32, delay=1),
]
RESUMED: list[Method] = [
    LocalSGD(4),
    DiLoCo(4),
    DiLoCo(4, tw.Bins(4)),
    SparseLoCo(4),
    DetachedLoCo(4),
    DEF(SMALL, steps=4),
    DEF(8, steps=4),
    PSync(8, steps=4),
    SAEF(8, average=2, steps=4),
    EF21(tw.TopK(0.2), steps=4),
    DeMo(32),
    DisTrO(4),
    *DELAYED,
]


@pytest.mark.parametrize("method", RESUMED, ids=repr)
def test_a_training_goes_on_within_a_round_to_the_same_bits(method):
    """The state after six steps is two steps into the second round, with a fragment on its way where one is."""
    states: list[bytes] = []
    options: dict[str, Any] = {"workers": 2, "batch": 4, "steps": 12, "evaluate_every": 3, "optimizer": adamw}
    whole = simulate(method, net, task(), task(), on_state=lambda s: states.append(tw.dumps(s)), **options)
    again = simulate(method, net, task(), task(), resume=tw.loads(states[1], max_values=None, max_depth=100), **options)
    for a, b in zip(whole.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(a, b)
    lines = [{**line, "seconds": 0} for line in whole.records]
    assert lines == [{**line, "seconds": 0} for line in again.records]
    assert all(np.isfinite(line["train_loss"]) for line in lines)


def test_looking_within_a_round_changes_nothing():
    options: dict[str, Any] = {"workers": 2, "batch": 4, "steps": 11, "optimizer": adamw}
    for method in (DetachedLoCo(4), StreamingDiLoCo(4, 2, 1), PSync(8, steps=4)):
        often = simulate(method, net, task(), task(), evaluate_every=1, **options)
        once = simulate(method, net, task(), task(), evaluate_every=11, **options)
        assert all(torch.equal(a, b) for a, b in zip(often.module.parameters(), once.module.parameters(), strict=True))


def test_y_has_what_is_on_its_way():
    """y = x - mean e - d, which moves by what ranks do and not by when it is applied."""
    team = Team(DEF(8, lam=0.0, steps=4, delay=2)).run(4)
    before = together([output(team.method, worker.rank) for worker in team.workers])[0]
    team.run(1)
    assert torch.equal(before, together([output(team.method, worker.rank) for worker in team.workers])[0])
    assert not torch.equal(before, team.x)


# -- refusals, and expressions ------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LocalSGD(0), "LocalSGD(steps=0): steps must be at least 1"),
        (lambda: DEF(8, decay=1.5), "DEF(decay=1.5): decay must be in [0, 1]"),
        (
            lambda: DEF(8, outer=tw.Nesterov()),
            "DEF(outer=Nesterov(0.7)): y = x - mean e is right for outer=SGD(1.0) alone: leave outer out, or take "
            "EF or DEFA",
        ),
        (
            lambda: EF21(tw.TopK(0.1), outer=tw.SGD(2.0)),
            "EF21(outer=SGD(2.0)): the estimate of a step is right for outer=SGD(1.0) alone: leave outer out, or take "
            "EF or DEFA",
        ),
        (
            lambda: EF21(tw.TopK(0.1), decay=0.9),
            "EF21 keeps estimates of steps: decay, delay and count are for methods that keep a residual, such as EF",
        ),
        (
            lambda: DEF(8, count="senders"),
            "DEF(count='senders') needs a link whose messages say which entries they have, such as ChunkTopK(64) or "
            "TopK(0.01): take one, or count='all'",
        ),
        (
            lambda: DiLoCo(10, tw.Bins(4), count="senders"),
            "DiLoCo(count='senders') needs a link whose messages say which entries they have, such as ChunkTopK(64) or "
            "TopK(0.01): take one, or count='all'",
        ),
        (
            lambda: DiLoCo(10, fragments=3),
            "DiLoCo(steps=10, fragments=3): fragments take turns within a round, so give steps that are a multiple of "
            "them",
        ),
        (
            lambda: StreamingDiLoCo(10, 2, 6),
            "StreamingDiLoCo(delay=6): one fragment is on its way at a time, and one is sent every 5 step(s), steps / "
            "fragments: delay must be at most that",
        ),
        (lambda: DiLoCo(10, mix=0.5), "DiLoCo(mix=0.5): nothing is mixed without a delay: give one"),
        (
            lambda: DEF(8, steps=4, fragments=2),
            "DEF(fragments=2): fragments begin their rounds at different steps, and lam is measured for all at one: "
            "give a number, lam=0.5",
        ),
        (lambda: DeMo(outer=tw.SGD(0.5)), "DeMo(outer=SGD(0.5)): its outer step is by the sign: leave outer out"),
    ],
)  # fmt: skip
def test_switches_that_do_not_go_together_are_refused_in_one_sentence(make, text):
    with pytest.raises((ValueError, CombinationError)) as error:
        make()
    assert str(error.value) == text


def test_a_link_that_is_no_contraction_is_refused():
    with pytest.raises(CombinationError, match=r"DiLoCo needs a link that always keeps a part"):
        DiLoCo(10, tw.QSGD(16))


def test_demo_has_one_rate():
    def two(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": others, "lr": 0.2}])

    with pytest.raises(
        ValueError, match=r"^DeMo has one learning rate, and the groups of the optimisers have \[0.1, 0.2"
    ):
        Team(DeMo(), 1, two).run(1)

    def tensors(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        groups = [{"params": [first], "lr": torch.tensor(0.5)}, {"params": others, "lr": torch.tensor(0.5)}]
        return torch.optim.SGD(groups)

    def numbers(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)

    one, other = (Team(DeMo(), 1, make).run(3).workers[0].rank.x for make in (tensors, numbers))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "text",
    [
        "LocalSGD(20)",
        "DiLoCo(30, link=Bins(4))",
        "StreamingDiLoCo(100, fragments=2, delay=3)",
        "SparseLoCo(20)",
        "DetachedLoCo(20, share=0.01)",
        "DeMo(32)",
        "DisTrO(4)",
        "DEF(TransformCoding(1672), steps=20)",
        "EF(ChunkTopK(64), decay=0.95, outer=Nesterov(0.4, momentum=0.8), count='senders')",
    ],
)
def test_a_name_is_typed_as_it_is_shown(text):
    made = typed(text)
    assert typed(repr(made)) == made
    assert typed(complete(made)) == made
    assert repr(made).startswith(text.partition("(")[0])


def test_of_two_names_alike_each_kind_of_study_takes_its_own():
    assert typed("LocalSGD(20)") == LocalSGD(20)
    assert tw.parse("FedAvg(LocalSGD(0.1))").local == tw.LocalSGD(0.1)
    assert repr(LocalSGD(20)) == "LocalSGD(20)"
    assert repr(DEF(8)) == "DEF(8.0)"
    assert complete(DEF(8)) == "DEF(ratio=8.0, scope='vector', lam=None)"  # as it was before there were local steps


# -- real processes ---------------------------------------------------------------

STEPS, SAVED = 10, 6  # two into the second round of four


class Script:
    """A user's training script."""

    def __init__(self, method: Method) -> None:
        self.model = DistributedDataParallel(net())
        self.optimizer = adamw(self.model.parameters())
        self.c = compress(self.model, self.optimizer, method)
        self.data, self.step = task(), 0

    def run(self, steps: int, look: Callable[[Script], Any] = lambda script: None) -> Script:
        """``look`` is called after every step."""
        rows = [rows for rows, _ in zip(batches(64, 2, 4, 0), range(self.step + steps), strict=False)][self.step :]
        for each in rows:
            self.optimizer.zero_grad()
            self.data.loss(self.model, self.data.batch(each[dist.get_rank()])).mean().backward()
            self.optimizer.step()
            self.step += 1
            look(self)
        return self

    @property
    def saved(self) -> list[Any]:
        return [self.model.state_dict(), self.optimizer.state_dict(), self.c.state_dict()]

    @property
    def bits(self) -> list[float]:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).tolist()


def look(script: Script) -> None:
    """All that a script may do to look at its model within a round."""
    with torch.no_grad():
        script.model(script.data.inputs[:2])
    with script.c.averaged():
        x = script.bits
    state = torch.cat([p.reshape(-1) for p in script.model.state_dict().values()]).tolist()
    assert script.c.method.at_output or x == state
    script.c.state_dict()


def train(folder: str, rank: int) -> None:
    """One rank's process: every training of ``RESUMED``, whole, looked at, and in two parts."""
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=180)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=wait)
    found: dict[str, Any] = {}
    for method in RESUMED:
        whole = Script(method).run(STEPS)
        parts = [Script(method).run(STEPS, look).bits == whole.bits]
        first = Script(method).run(SAVED)
        torch.save(first.saved, f"{folder}/{rank}.pt")
        for order in ((0, 1, 2), (2, 1, 0)):
            second, states = Script(method), torch.load(f"{folder}/{rank}.pt")
            for number in order:
                (second.model, second.optimizer, second.c)[number].load_state_dict(states[number])
            second.step = SAVED
            parts.append(second.run(STEPS - SAVED).bits == whole.bits)
            parts.append(second.c.ledger.summary() == whole.c.ledger.summary())
        shared = torch.cat([p.reshape(-1) for p in whole.model.state_dict().values()]).tolist()
        found[repr(method)] = [whole.bits, shared, whole.c.ledger.bytes, whole.c.step, parts]
        try:
            Script(method).c.load_state_dict([{**first.c.state_dict(), "ranks": 1, "rank": 0}])
        except ValueError as error:
            found[repr(method)].append(str(error))
        whole.c.remove()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    with ExitStack() as stack:
        running = [stack.enter_context(Process(train, str(folder), rank)) for rank in range(2)]
        codes = [process.wait() for process in running]
        assert codes == [0, 0], "\n".join(process.stderr[-3000:] for process in running)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("method", RESUMED, ids=repr)
def test_processes_are_logical_workers_to_the_bit_go_on_within_a_round_and_send_the_same(method, processes):
    team = Team(method, 2, adamw).run(STEPS)
    flat = team.workers[0].vector.layout.spans
    for rank, worker in enumerate(team.workers):
        own, shared, sent, steps, parts, *refused = processes[rank][repr(method)]
        mine = worker.module.parameters()
        assert own == torch.cat([p.detach().reshape(-1) for p in mine]).tolist()
        spans = [flat[name] for name, _ in worker.module.named_parameters()]
        assert shared == torch.cat([worker.rank.x[a : a + size] for a, size, _ in spans]).tolist()
        assert (sent, steps, parts) == (team.traffic.bytes, STEPS, [True] * 5)
        if method.steps > 1 or method.delay:
            assert "these states are within a round" in refused[0]
