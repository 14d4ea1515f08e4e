"""``plan="together"``: what it trains is what ``plan="each"`` trains, or the clients are trained one by one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from problems import SIZES, handwriting, mlp, normed
from tables import LINKS, METHODS
from thinwire import FedAvg, LocalSGD, Params, Supervised
from thinwire.train.many import batchable
from tiers import tiers

LOCAL = LocalSGD(0.1, batch=8, momentum=0.5, weight_decay=0.01)


# -- parameters without entries, of one entry, without dimensions --------------------------------------------------


class Odd(nn.Module):
    """Parameters of shapes [0, 3], [], [1] and [2, 0]; x * scale + shift, of which nothing is known else."""

    def __init__(self) -> None:
        super().__init__()
        self.empty, self.none = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.zeros(2, 0))
        self.scale, self.shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift + self.empty.sum() + self.none.sum()


def odd() -> nn.Module:
    """64 to 12 to 10, around such parameters."""
    first, dense, *rest = mlp().children()
    return nn.Sequential(first, dense, Odd(), *rest)


def odd_normed() -> nn.Module:
    first, dense, norm, *rest = normed().children()
    return nn.Sequential(first, dense, norm, Odd(), *rest)


def odd_first() -> nn.Module:
    """The same, with such parameters before all others, an empty one the first of them."""
    return nn.Sequential(Odd(), *mlp().children())


def twice() -> nn.Module:
    """64 to 12 to 12 to 10: a layer that stands at two places, and one whose weights are another's."""
    first, dense, act, last = mlp().children()
    one, other = nn.Linear(12, 12), nn.Linear(12, 12)
    other.weight = one.weight
    return nn.Sequential(first, dense, act, one, act, other, act, one, last)


SELECTED = ("FedSM", "FedSMExtra", "Ensemble")  # their selector is made for the module that the model begins with
EXPRESSIONS = [row.trained[0] for row in METHODS]
UNIFORM = {"SecureSum": ", weights='uniform'"}
CODED = [f"FedAvg(up={next(iter(row.laws))}{UNIFORM.get(row.name, '')})" for row in LINKS if row.name != "PerClient"]
SENT = [f"FedAvg(down={text})" for row in LINKS for text, (_, said) in list(row.laws.items())[:1] if "a" in said]


@pytest.mark.slow
@pytest.mark.parametrize("expression", [each for rows in (EXPRESSIONS, CODED, SENT) for each in tiers(rows, slow=12)])
def test_parameters_of_no_entry_and_of_one_are_trained_by_every_method_and_link_in_either_plan(expression: str) -> None:
    method = tw.parse(expression, {"lr": 0.2, "batch": 8})
    tasks, test = handwriting()
    own = {"client_tests": tasks} if method.personal_models else {"test": test}
    if expression.startswith("FedBN"):
        makes: Any = [odd_normed]
    else:
        makes = [odd] if expression.startswith(SELECTED) else [odd, odd_first]
    for make in makes:
        runs = [
            tw.simulate(method, make, tasks, 2, sample=4, workers=1, plan=plan, seed=1, **own)  # type: ignore[arg-type]
            for plan in ("each", "together")
        ]
        one, many = (run.module.state_dict() for run in runs)
        assert one.keys() == many.keys()
        assert all(torch.isfinite(x).all() for x in one.values())
        if "TopK" not in expression and "STC" not in expression:  # whose choice hangs on last bits
            losses = [run.rounds[0]["train_loss"] for run in runs]
            assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-4)


def test_a_pruned_model_keeps_its_parameters_of_no_entry_and_of_one() -> None:
    run = tw.simulate(tw.PruneFL(FedAvg(LOCAL), every=1, share=0.6), odd, handwriting()[0], 3, workers=1)
    assert run.params.layout == Params.trainable(odd()).layout
    assert run.params["2.empty"].shape == (0, 3)
    kernel = run.params["1.weight"]
    assert 0 < int((kernel == 0).sum()) < kernel.numel()


# -- what cannot be trained side by side ------------------------------------------------------------------------------


class Branches(nn.Module):
    """One of two layers, as a flag says."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x.flatten(1))
        return out


class ByData(Branches):
    """One of two layers, as their weights say."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.a(x) if self.a.weight.sum() > self.b.weight.sum() else self.b(x)
        return out


class ByBatch(Branches):
    """One of two layers, as the batch says."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.a(x) if x.sum() > 0.3 * x.numel() else self.b(x)
        return out


class ByNumber(Branches):
    """A number that is read off a weight."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x.flatten(1)) * (1 + self.b.bias[0].item())
        return out


class Chosen(Branches):
    """Rows that a mask of the batch chooses."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.a(x).clone()
        out[x[:, 20] > 0.5] = 0
        return out


class Centred(Branches):
    """Examples less the mean of their batch."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.a(x - x.mean(0))
        return out


class Detached(Branches):
    """A layer that is used and not trained."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x.flatten(1)).detach() + self.b(x.flatten(1))
        return out


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(12, track_running_stats=False)  # without buffers
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), norm, nn.Linear(12, 10))


class Words(nn.Module):
    """Words of a vocabulary of 50, and their mean."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.dense = nn.Embedding(50, 8, **options), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.words(x).mean(1))
        return out


class Bag(Words):
    """The same by the module that torch has for it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(50, 8, sparse=True)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.words(x))
        return out


def texts() -> list[Supervised]:
    x = torch.randint(0, 50, (200, 7), generator=torch.Generator().manual_seed(0))
    y = x[:, 0] % 4
    return [Supervised(x, y, indices=torch.arange(20 * i, 20 * i + n)) for i, n in enumerate((20, 11, 16, 7))]


ALONE: list[tuple[Any, str | None]] = [  # a model, and the reason in the log where it is found out while training
    (ByData, "data-dependent control flow"),
    (ByNumber, "calling .item() on a Tensor"),
    (Chosen, "boolean mask"),
    (ByBatch, "the loss of an example depends on the other examples of its batch"),
    (Centred, "the loss of an example depends on the other examples of its batch"),
    (batch_norm, None),
    (lambda: Words(sparse=True), None),
    (lambda: Words(max_norm=0.5), None),
    (Bag, None),
]
TOGETHER = [Branches, Detached, Words, odd, odd_first, twice]


def both(make: Any, **options: Any) -> list[tw.Result]:
    first = next(make().parameters())
    tasks = texts() if first.shape == (50, 8) else handwriting()[0]
    plans: Any = ("each", "together")
    return [tw.simulate(FedAvg(LOCAL), make, tasks, 2, plan=plan, seed=1, **options) for plan in plans]


@pytest.mark.parametrize(("make", "why"), ALONE)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_cannot_be_trained_side_by_side_is_trained_one_by_one_bit_for_bit(
    make: Any, why: str | None, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    from thinwire.federated import client

    client._log_once.cache_clear()
    caplog.set_level(logging.WARNING, "thinwire")
    one, many = both(make, workers=workers)
    assert torch.equal(one.params.flat, many.params.flat)
    assert [r["train_loss"] for r in one.rounds] == [r["train_loss"] for r in many.rounds]
    said = [record.message for record in caplog.records]
    if why is None:
        assert said == []
    else:
        assert all(text.startswith("plan='together': the clients are trained one by one, because") for text in said)
        assert any(why in text for text in said)
        assert len(set(said)) == len(said)


@pytest.mark.parametrize("make", TOGETHER)
def test_a_model_of_which_only_parts_are_used_is_trained_side_by_side(make: Any) -> None:
    one, many = both(make, workers=1)
    assert torch.allclose(one.params.flat, many.params.flat, rtol=1e-4, atol=1e-6)
    tasks = texts() if make is Words else handwriting()[0]
    slot = tw.Simulation(FedAvg(LOCAL), make, tasks).slot
    assert batchable(slot, tasks, [tw.Local(slot.params(), LOCAL)] * len(tasks))


def test_clients_of_sizes_that_fill_no_batch_see_their_own_examples_alone() -> None:
    # x less the mean of its batch, a step of clients of three examples and of eight; by hand.
    assert {size % 8 for size in SIZES} > {0}
    x, y = torch.randn(22, 64, generator=torch.Generator().manual_seed(3)), torch.arange(22) % 10
    parts = [range(3), range(3, 11), range(11, 14), range(14, 22)]  # two of a chunk
    tasks = [Supervised(x, y, indices=torch.tensor(part)) for part in parts]
    torch.manual_seed(5)  # with it the loss of the first example is by chance the same beside others
    module = Centred()
    start = module.a.weight.detach().clone()
    method = FedAvg(LocalSGD(0.5, batch=8), weights="uniform")
    run = tw.simulate(method, module, tasks, 1, plan="together", workers=1, seed=1)
    slopes = []
    for part in parts:
        module.zero_grad()
        nn.functional.cross_entropy(module(x[part]), y[part]).backward()
        slopes.append(module.a.weight.grad.clone())  # type: ignore[union-attr]
    assert torch.allclose(run.params["a.weight"], start - 0.5 * sum(slopes) / 4, atol=1e-6)
