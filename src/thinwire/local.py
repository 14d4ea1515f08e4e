"""What a client is asked to do between two messages: train from here.

An algorithm *requests* its training and does not call it, so that a runner may train many
clients at once. A request is data only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .config import Config
from .errors import require
from .key import Key
from .params import Params
from .schedules import Schedule, at


@dataclass(frozen=True)
class LocalSGD(Config):
    """Mini-batch SGD on the client's own examples.

    ``lr`` is a number or a schedule by round; ``epochs`` may be a fraction; ``steps``, where
    given, counts mini-batches instead; ``batch`` None takes all examples at once. Gradients
    are averaged over the batch; ``weight_decay`` and ``prox`` (FedProx's mu, towards the
    broadcast model) are added to them before ``momentum``. A last batch of one example is
    left out for models with batch norm, which cannot be trained on it.
    """

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
        for name, value in (("batch", self.batch), ("steps", self.steps)):
            require(value is None or type(value) is int, where.format(name, value, "a whole number, or None"))
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


class Local(NamedTuple):
    """Train from ``x``. The other fields bend every step; None leaves it alone."""

    x: Params
    trainer: LocalSGD
    offset: Params | None = None  # added to every gradient (SCAFFOLD)
    anchor: Params | None = None  # trainer.prox pulls towards this; None: towards x
    basis: Sequence[Tensor] | None = None  # every step is projected on these orthonormal rows (FLSS)


class Trained(NamedTuple):
    """What came of it."""

    x: Params
    steps: int
    loss: float  # mean over the examples seen, before each step
