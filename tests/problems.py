"""Small problems that many tests share: tasks, models, and runs on them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import LocalSGD, Simulation, Supervised
from thinwire.data.digits import digits

# -- digits of eight clients ----------------------------------------------------------------

SIZES = (12, 20, 28, 36, 44, 24, 40, 16)  # clients of different weight, last batches of different size
LOCAL = LocalSGD(lr=0.1, batch=16)


@functools.cache
def handwriting() -> tuple[list[Supervised], Supervised]:
    """Eight clients with a few of scikit-learn's digits each, and a test set."""
    data = digits()
    parts = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(1))[: sum(SIZES)].split(SIZES)
    return [Supervised(data.inputs, data.targets, part) for part in parts], Supervised(
        data.test_inputs[:100], data.test_targets[:100]
    )


def mlp() -> nn.Module:  # 910 parameters
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def normed() -> nn.Module:  # 934, and 24 statistics
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


def trained(algorithm: tw.Algorithm, model: Any = mlp, rounds: int = 3, **options: Any) -> tw.Result:
    """A run on the digits."""
    tasks, test = handwriting()
    options = {"sample": 3, "test": test, "seed": 7, "workers": 1, "plan": "each"} | options
    return tw.simulate(algorithm, model, tasks, rounds, **options)


def assert_same_run(a: tw.Result, b: tw.Result) -> None:
    """The same model bit for bit, on the same way there."""
    assert torch.equal(a.params.flat, b.params.flat)
    for (name, left), right in zip(a.module.state_dict().items(), b.module.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    for name in ("train_loss", "test_loss", "accuracy"):
        assert [r[name] for r in a.rounds] == [r[name] for r in b.rounds]


# -- quadratics, to do by hand ---------------------------------------------------------------


class Point(nn.Module):
    """A model that is a few numbers."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def vector(self) -> Tensor:
        return self.w


@dataclass(frozen=True)
class Quadratic:
    """Loss of an example: sum of h (w - target)^2 / 2."""

    h: Tensor
    targets: Tensor  # [n, d]

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.targets[indices]

    def loss(self, module: nn.Module, batch: Tensor) -> Tensor:
        return (self.h * (module.vector() - batch) ** 2).sum(1) / 2  # type: ignore[operator]

    def metrics(self, module: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(module, batch)}


H = torch.tensor([1.0, 2.0])
PAIR = [
    Quadratic(H, torch.tensor([[1.0, 0.0]])),
    Quadratic(H, torch.tensor([[0.0, 1.0], [2.0, 3.0], [1.0, -1.0]])),
]
ONCE = LocalSGD(lr=0.1, batch=None, steps=1)
TWICE = LocalSGD(lr=0.1, batch=None, steps=2)


def path(algorithm: tw.Algorithm, rounds: int, model: nn.Module | None = None, tasks: Any = PAIR) -> list[list[float]]:
    """The model after each round."""
    run = Simulation(algorithm, model or Point(0.5, -1.0), tasks, workers=1, plan="each")
    with run.pool:
        points = []
        for _ in range(rounds):
            run.step()
            points.append(algorithm.model(run.server).flat.tolist())
    return points


def approx(x: Any) -> Any:
    return [pytest.approx(row, abs=2e-6) for row in x] if isinstance(x[0], list) else pytest.approx(x, abs=2e-6)


# -- two examples and three classes -----------------------------------------------------------


class Scores(nn.Module):
    """Three scores of a pair of numbers u: w0 u0, w1 u1, w0 u1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.0]))

    def forward(self, u: Tensor) -> Tensor:
        return torch.stack([self.w[0] * u[:, 0], self.w[1] * u[:, 1], self.w[0] * u[:, 1]], 1)


SCORED = [
    Supervised(torch.tensor([[1.0, 2.0]]), torch.tensor([0])),
    Supervised(torch.tensor([[2.0, -1.0]]), torch.tensor([1])),
]
