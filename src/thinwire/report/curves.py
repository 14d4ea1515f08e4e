"""Curves of a study as numbers: what is drawn against what, and the band over seeds. Plots and the report draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..run.network import transfer
from .read import UNITS, Arm, Run, counted

Axis = Callable[[Run], list[float]]
Vector = NDArray[np.float64]

SHARES = ("accuracy", "dice")  # what models are judged by, from 0 to 1: the second where pictures are segmented
OWN = tuple(f"client_{share}" for share in SHARES)
NAMES = {
    "accuracy": "test accuracy, %",
    "dice": "Dice coefficient, %",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "client_accuracy": "accuracy on clients' own tests, %",
    "client_dice": "Dice coefficient on clients' own tests, %",
}
"""How a value is called on an axis."""


class Curve(NamedTuple):
    """The mean over seeds in each round, or after each step, at which all of them were evaluated; the lowest and the
    highest. [points] each. The seeds are those of :func:`~thinwire.report.read.counted`.
    """

    x: Vector
    middle: Vector
    low: Vector
    high: Vector
    seeds: int


def curve(arm: Arm, axis: Axis, value: str) -> Curve | None:
    """A value of a method against an axis; shares are in percent. None where it was never measured."""
    found = []
    for run in counted(arm).runs:
        points = {
            line[run.unit]: (x, line[value])
            for x, line in zip(axis(run), run.rounds, strict=True)
            if line.get(value) is not None
        }
        if points:
            found.append(points)
    common = sorted(set.intersection(*map(set, found))) if found else []
    if not common:
        return None
    stack = np.array(
        [[points[number] for number in common] for points in found], dtype=np.float64
    )  # [seeds, points, 2]
    y = stack[..., 1] * (100 if value.endswith(SHARES) else 1)
    return Curve(stack[..., 0].mean(0), y.mean(0), y.min(0), y.max(0), len(found))


def has(arms: Sequence[Arm], name: str) -> bool:
    """Whether some line of some run has a value."""
    return any(r.get(name) is not None for arm in arms for run in arm.runs for r in run.rounds)


def judged(arms: Sequence[Arm]) -> tuple[str, str]:
    """What curves show: accuracy or Dice where there is one, and the loss, on the test set where it was measured."""
    loss = "test_loss" if has(arms, "test_loss") else "train_loss"
    return next((share for share in SHARES if has(arms, share)), loss), loss


# -- what is drawn against -------------------------------------------------------


def count(run: Run) -> list[float]:
    """Rounds or steps."""
    return [float(r[run.unit]) for r in run.rounds]


def _running(*names: str) -> Axis:
    def axis(run: Run) -> list[float]:
        return list(np.cumsum([sum(r[name] for name in names) / 1e6 for r in run.rounds]))

    return axis


def _seconds(run: Run) -> list[float]:
    clock = [float(r["clock"]) for r in run.rounds]
    if clock and clock[-1] > 0:
        return clock
    return list(np.cumsum([transfer(r["slowest_bytes"], 10) for r in run.rounds]))


SENT = {
    "federated": {
        "bytes_up": "MB sent by clients",
        "bytes_total": "MB sent, both directions",
        "seconds": "seconds on the simulated network",
    },
    # There is no simulated clock: a collective's time hangs on how it is done.
    "data-parallel": {"bytes_up": "MB sent by a worker", "bytes_total": "MB sent and received by a worker"},
    "pipelined": {
        "bytes_total": "MB sent between parts, both directions",
        "seconds": "seconds by the law",
    },
}
"""What accuracy is drawn against besides rounds or steps, and how that axis is labelled, by the kind of the runs."""
COSTS: dict[str, Axis] = {
    "bytes_up": _running("up_bytes"),
    "bytes_total": _running("up_bytes", "down_bytes"),
    "seconds": _seconds,
}


def axes(kind: str) -> dict[str, tuple[Axis, str]]:
    """What accuracy is drawn against, and how the axis is labelled, for runs of a kind."""
    unit = UNITS[kind]
    return {f"{unit}s": (count, unit), **{name: (COSTS[name], label) for name, label in SENT[kind].items()}}
