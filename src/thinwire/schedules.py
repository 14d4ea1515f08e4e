"""A learning rate that depends on the round: ``LocalSGD(lr=Decay(0.2, rounds=(100, 150)))``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

from .config import Config
from .errors import require
from .ranges import AboveZero, Count, Range, at_least

__all__ = ["Cosine", "Decay", "Exponential", "Schedule", "Triangle", "Warmup"]


class Schedule(Config, ABC):
    """A function of the round, counted from 1."""

    @abstractmethod
    def at(self, round: int) -> float:
        """The value in this round."""


@dataclass(frozen=True)
class Decay(Schedule):
    """``start``, times ``factor`` after each of the ``rounds``."""

    start: AboveZero
    rounds: tuple[int, ...]
    factor: AboveZero = 0.1

    def at(self, round: int) -> float:
        return self.start * self.factor ** sum(round > r for r in self.rounds)


@dataclass(frozen=True)
class Exponential(Schedule):
    """``start``, times ``factor`` every round."""

    start: AboveZero
    factor: AboveZero = 0.99

    def at(self, round: int) -> float:
        return float(self.start * self.factor ** (round - 1))


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from ``start`` in round 1 down to ``end`` in round ``rounds``."""

    start: AboveZero
    rounds: Annotated[int, at_least(2)]
    end: Annotated[float, Range(lambda x: x >= 0, "must not be negative")] = 0.0

    def at(self, round: int) -> float:
        done = min(1.0, (round - 1) / (self.rounds - 1))
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Triangle(Schedule):
    """Straight up to ``peak`` in round ``top``, straight down to zero after round ``rounds``."""

    peak: AboveZero
    top: int
    rounds: int

    def __post_init__(self) -> None:
        require(
            0 < self.top < self.rounds, f"Triangle(top={self.top}): top must lie between 0 and rounds={self.rounds}"
        )

    def at(self, round: int) -> float:
        up = round / self.top
        return self.peak * max(0.0, min(up, (self.rounds + 1 - round) / (self.rounds + 1 - self.top)))


@dataclass(frozen=True)
class Warmup(Schedule):
    """Straight up to ``lr``, a number or another schedule, over the first ``rounds``: 1/rounds of it in round 1.

    Goyal et al., 2017, arXiv:1706.02677, Section 2.2. ``Warmup(Decay(0.1, rounds=(120, 160)), rounds=5)``. A warm-up
    by local steps is the field ``warmup`` of :class:`LocalSGD` and :class:`LocalAdam`; the two multiply.
    """

    lr: AboveZero | Schedule
    rounds: Count = 5

    def at(self, round: int) -> float:
        return at(self.lr, round) * min(1.0, round / self.rounds)


def at(value: float | Schedule, round: int) -> float:
    """A number, or what a schedule says for this round."""
    return value.at(round) if isinstance(value, Schedule) else value
