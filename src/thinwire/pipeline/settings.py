"""The settings that all parts of a training have in common, and what they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..ddp.feedback import Feedback, Method
from ..ddp.methods import Hook
from ..errors import CombinationError, require
from ..links import Dense
from .base import Schedule
from .losses import Loss, mean_loss

Optimizers = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class Settings:
    """The settings that all stages of a training have in common: arguments of :func:`~thinwire.pipeline.pipeline`."""

    schedule: Schedule
    parts: int
    optimizer: Optimizers
    loss: Loss = mean_loss
    seed: int = 0
    rate: Callable[[int, int], float] | None = None
    clip: float | None = None
    replicas: int = 1
    average: Method = Hook(Dense())  # what the replicas of a part send one another at each step

    @property
    def ranks(self) -> int:
        """The parts of all replicas."""
        return self.parts * self.replicas

    def __str__(self) -> str:
        return f"{self.parts} parts" if self.replicas == 1 else f"{self.parts} parts in {self.replicas} replicas"


def settle(settings: Settings) -> Settings:
    """Settings as they are. Raises ``ValueError`` for those that cannot be."""
    replicas, average, clip = settings.replicas, settings.average, settings.clip
    schedule, optimizer = settings.schedule, settings.optimizer
    made = schedule.__name__ if isinstance(schedule, type) else "DSP"
    require(
        isinstance(schedule, Schedule),
        f"schedule={describe(schedule)}: give a schedule, with its arguments, such as {made}"
        + ("((1, 0), (2, 0))" if made == "DSP" else "()"),
    )
    require(
        callable(optimizer) and not isinstance(optimizer, Optimizer),
        f"optimizer={describe(optimizer)}: give a function that makes one of a part's parameters, such as "
        "lambda p: torch.optim.SGD(p, 0.1)",
    )
    loss, rate = settings.loss, settings.rate
    require(callable(loss), f"loss={loss!r}: give a function of outputs and targets, such as nn.CrossEntropyLoss()")
    require(rate is None or callable(rate), f"rate={rate!r}: give a function of a batch and a part, or None")
    require(clip is None or clip > 0, f"clip={clip}: the largest norm of a part's gradient, above 0, or None")
    require(type(replicas) is int and replicas >= 1, f"replicas={replicas!r}: a whole number of pipelines, at least 1")
    fits = isinstance(average, Feedback | Hook)
    require(fits, f"average={average!r}: what replicas send, a method such as DEF(ratio=64) or Hook(TopK(0.01))")
    if isinstance(average, Feedback) and not average.rounds.single:
        way = "steps=1" if average.length > 1 else "delay=0"
        raise CombinationError(
            f"average={average!r}: replicas of a pipeline exchange after every step: take {way}, or compress() a "
            f"whole model"
        )
    return settings


def describe(given: Any) -> str:
    """The thing that was given in place of another, for an error."""
    if isinstance(given, str):
        return repr(given)
    return given.__name__ if isinstance(given, type) else type(given).__name__
