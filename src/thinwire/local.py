"""What a client is asked to do between two messages: train from here.

An algorithm *requests* its training and does not call it, so that a runner may train many
clients at once. A request is data only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import Config
from .errors import require
from .key import Key
from .params import Params
from .schedules import Schedule, at
from .task import Batch, Task


@dataclass(frozen=True)
class LocalSGD(Config):
    """Mini-batch SGD on the client's own examples.

    ``lr`` is a number or a schedule by round; ``epochs`` may be a fraction; ``steps``, where
    given, counts mini-batches instead; ``batch`` None takes all examples at once. Gradients
    are averaged over the batch; ``weight_decay`` and ``prox`` (FedProx's mu, towards the
    broadcast model) are added to them before ``momentum``. A last batch of one example is
    left out for models with batch norm, which cannot be trained on it.
    """

    example = "LocalSGD(0.1)"

    lr: float | Schedule = 0.05
    epochs: float = 1.0
    batch: int | None = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        where = "LocalSGD({}={}): {}"
        if not isinstance(self.lr, Schedule):
            require(math.isfinite(self.lr) and self.lr > 0, where.format("lr", self.lr, "lr must be positive"))
        require(self.epochs > 0, where.format("epochs", self.epochs, "epochs must be positive"))
        require(
            self.batch is None or self.batch > 0, where.format("batch", self.batch, "batch must be positive or None")
        )
        require(0 <= self.momentum < 1, where.format("momentum", self.momentum, "momentum must be in [0, 1)"))
        require(self.weight_decay >= 0, where.format("weight_decay", self.weight_decay, "it must not be negative"))
        require(self.prox >= 0, where.format("prox", self.prox, "prox must not be negative"))
        require(
            self.steps is None or self.steps > 0, where.format("steps", self.steps, "steps must be positive or None")
        )

    def rate(self, key: Key) -> float:
        """The learning rate of the key's round."""
        return at(self.lr, key.round)

    def num_steps(self, examples: int, at_least: int = 1) -> int:
        """Mini-batches that a client with so many examples takes; those of fewer than ``at_least`` are left out."""
        return self.steps or max(1, round(self.epochs * self.per_epoch(examples, at_least)))

    def per_epoch(self, examples: int, at_least: int = 1) -> int:
        """Mini-batches of one pass over so many examples."""
        size = examples if self.batch is None else min(self.batch, examples)
        full, rest = divmod(examples, size)
        return full + (rest >= at_least)


class Local(NamedTuple):
    """Train from ``x``. The other fields bend every step; None leaves it alone."""

    x: Params
    trainer: LocalSGD
    offset: Params | None = None  # added to every gradient (SCAFFOLD)
    anchor: Params | None = None  # trainer.prox pulls towards this; None: towards x
    basis: Sequence[Tensor] | None = None  # every step is projected on these orthonormal rows (FLSS)
    mask: Params | None = None  # every step is multiplied by this (PruneFL)
    shift: Params | None = None  # added to the model, an equal part of it after every step (DOMO-S)
    momentum: Params | None = None  # where trainer.momentum begins; None: at zero (FedAvgLM)
    loss: Loss | None = None  # minimised in place of the task's own (MOON, FedNTD, FedGen)
    aside: bool = False  # :func:`look`, no training: norm statistics and the client's loss stay as they are


def look(x: Params, trainer: LocalSGD, batch: int | None = None) -> Local:
    """A request for the mean gradient at ``x`` of ``batch`` of a client's examples; None: of all, in memory at once.

    It comes back as ``Trained.momentum``, which after one step from rest is the gradient itself; ``Trained.x`` is of no
    use. Nothing else of the client moves.
    """
    return Local(x, replace(trainer, batch=batch, steps=1, momentum=0.5), aside=True)


@runtime_checkable
class Net(Protocol):
    """What a :class:`Loss` is given: the module in training, and the same module at other models."""

    module: nn.Module
    generator: torch.Generator  # of this client's training, on the CPU: for what a loss draws

    def other(self, x: Params) -> nn.Module:
        """The module holding ``x``, in evaluation mode: it is not trained. Loaded once a training."""


class Loss(ABC):
    """What is minimised in place of the task's own loss: a frozen dataclass of numbers and Params, data only."""

    @abstractmethod
    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        """One value an example."""


class Trained(NamedTuple):
    """What came of it."""

    x: Params
    steps: int
    loss: float  # what was minimised, its mean over the examples seen, before each step
    momentum: Params | None = None  # where trainer.momentum ended
