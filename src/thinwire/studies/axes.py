"""The axes of a run's curves: a number for each of its lines, and in words what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .read import RecordedRun

Values = Callable[[RecordedRun], list[float]]


class Axis(NamedTuple):
    """An axis. ``untimed`` is its label on a page whose runs have no simulated clock, where that is another."""

    values: Values
    label: str
    untimed: str | None = None


def count(run: RecordedRun) -> list[float]:
    """Rounds or steps."""
    return [float(line[run.unit]) for line in run.rounds]


def clock(run: RecordedRun) -> list[float]:
    """Simulated seconds."""
    return [float(line["clock"]) for line in run.rounds]


def running(*names: str, unit: float = 1e6) -> Values:
    """The counts up to each line: the running sums of some of its keys, in millions or another ``unit``."""

    def axis(run: RecordedRun) -> list[float]:
        return list(np.cumsum([sum(line[name] for name in names) / unit for line in run.rounds]))

    return axis


UP = running("up_bytes")
BOTH = running("up_bytes", "down_bytes")
WALL = running("seconds", unit=1)
