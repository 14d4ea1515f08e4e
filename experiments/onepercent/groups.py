"""The four sets of ``curve.py``, dealt to clients: rounds, splits, models and rates.

``Auto`` and every rival are trained on these, and ``search.py`` and ``views.py`` look at them too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
import torch
from arms import patient
from torch import nn

from thinwire import data as sets
from thinwire.models import build
from thinwire.problem import Problem, standard


def group_cnn() -> nn.Module:
    """Two convolutions of 5 x 5 with group norm, for pictures of 3 x 32 x 32 in 10 classes: 878,730 parameters."""
    convolutions = [nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)]
    body = [[c, nn.GroupNorm(8, c.out_channels), nn.ReLU(), nn.MaxPool2d(2)] for c in convolutions]
    head = [nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*body[0], *body[1], *head)


@dataclass(frozen=True)
class Group:
    """A set, dealt to clients. ``minutes`` are those of FedAvg's training on one core, about."""

    name: str
    data: str
    rounds: int
    minutes: float
    split: sets.Split | None = None
    model: Callable[[], nn.Module] | None = None
    augment: tuple[sets.Augment, ...] = ()
    rates: tuple[float, float, float] = (0.02, 0.05, 0.1)
    tested: int = 4000
    clients: int = 100
    sample: int = 10

    def setting(self) -> record.Line:
        """What a line says of it."""
        about = {"name": self.name, "data": self.data, "clients": self.clients, "sample": self.sample}
        return about | {"split": repr(self.split), "augment": repr(self.augment), "tested": self.tested}


GROUPS = (
    Group("Fashion-MNIST", "fashion_mnist", 50, 1.6, sets.Dirichlet(0.1)),
    Group("CIFAR-10", "cifar10", 60, 4.2, sets.Dirichlet(0.3), group_cnn, (sets.Crop(4), sets.Flip())),
    Group("EMNIST letters", "emnist_letters", 60, 2.2, sets.Dirichlet(0.1)),
    Group("Shakespeare", "shakespeare", 60, 3.0, rates=(0.05, 0.1, 0.2), tested=1000),  # pieces of 80
)


RATES = {"Fashion-MNIST": 0.1, "CIFAR-10": 0.05, "EMNIST letters": 0.1, "Shakespeare": 0.1}
"""The learning rate of each set that ``curve.py`` found by FedAvg."""


@cache
def problem(group: Group, seed: int) -> Problem:
    split = None if group.split is None else patient(group.split)
    found = standard(group.data, None, group.clients, split, seed, augment=group.augment)
    some = torch.randperm(len(found.test), generator=torch.Generator().manual_seed(0))[: group.tested]
    found = replace(found, test=replace(found.test, indices=some))
    return found if group.model is None else replace(found, model=group.model)


@cache
def shapes(group: Group) -> list[torch.Size]:
    """Of its model's parameters."""
    given = {"fashion_mnist": ((1, 28, 28), 10), "emnist_letters": ((1, 28, 28), 26)}
    if group.model is not None:
        model = group.model()
    elif group.data in given:
        model = build("fedavg_cnn", *given[group.data])
    else:
        model = build("char_transformer", (80,), 65, vocabulary=65)
    return [p.shape for p in model.parameters()]


def size(group: Group) -> int:
    """How many parameters its model has."""
    return sum(shape.numel() for shape in shapes(group))


def kernels(group: Group) -> int:
    """How many of its layers LUAR can recycle: tensors of more than one dimension."""
    return sum(len(shape) > 1 for shape in shapes(group))
