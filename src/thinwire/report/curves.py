"""Curves of a study as numbers: what is drawn against what, and the band over seeds. Plots and the report draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..studies import KINDS
from ..studies.axes import Axis, Values
from ..studies.axes import count as count
from ..studies.read import Arm, RecordedRun, comparable, unit_of

Vector = NDArray[np.float64]

SHARES = ("accuracy", "dice")  # what models are judged by, from 0 to 1: the second where pictures are segmented
OWN = tuple(f"client_{share}" for share in SHARES)
NAMES = {
    "accuracy": "test accuracy, %",
    "dice": "Dice coefficient, %",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "perplexity": "test perplexity",
    "client_accuracy": "accuracy on clients' own tests, %",
    "client_dice": "Dice coefficient on clients' own tests, %",
}
"""How a value is called on an axis."""


class Curve(NamedTuple):
    """The mean over seeds in each round, or after each step, at which all of them were evaluated; the lowest and the
    highest. [points] each. The seeds are those of :func:`~thinwire.studies.read.comparable`.
    """

    x: Vector
    middle: Vector
    low: Vector
    high: Vector
    seeds: int


def curve(arm: Arm, axis: Values, value: str, best: bool = False) -> Curve | None:
    """A value of a method against an axis; shares are in percent. None where it was never measured.

    A value is a key of the lines, or of the axes of its kind: what had been sent until then. With ``best`` it is the
    best of each seed until then: the lowest of losses and perplexities, and else the highest.
    """
    seeds, choose = [], min if value.endswith(("loss", "perplexity")) else max
    for run in comparable(arm).runs:
        points = dict[int, tuple[float, float]]()
        ever = None
        for x, number, line in zip(axis(run), _values(run, value), run.rounds, strict=True):
            if number is not None:
                ever = number if ever is None or not best else choose(ever, number)
                points[line[run.unit]] = x, ever
        if points:
            seeds.append(points)
    common = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if not common:
        return None
    stack = np.array(
        [[points[number] for number in common] for points in seeds], dtype=np.float64
    )  # [seeds, points, 2]
    y = stack[..., 1] * (100 if value.endswith(SHARES) else 1)
    return Curve(stack[..., 0].mean(0), y.mean(0), y.min(0), y.max(0), len(seeds))


def _values(run: RecordedRun, value: str) -> Sequence[float | None]:
    axis = KINDS[run.kind].axes.get(value)
    return [line.get(value) for line in run.rounds] if axis is None else axis.values(run)


def has(arms: Sequence[Arm], name: str) -> bool:
    """True where some line of some run has a value."""
    return any(r.get(name) is not None for arm in arms for run in arm.runs for r in run.rounds)


def judgement(arms: Sequence[Arm]) -> tuple[str, str]:
    """The values of curves: accuracy or Dice, if there is one, and the loss, on the test set where it was measured."""
    loss = "test_loss" if has(arms, "test_loss") else "train_loss"
    return next((share for share in SHARES if has(arms, share)), loss), loss


# -- what is drawn against -------------------------------------------------------


def axes(kind: str) -> dict[str, Axis]:
    """The axes that accuracy is drawn against, with their labels, for runs of a kind."""
    unit = unit_of(kind)
    return {f"{unit}s": Axis(count, unit), **KINDS[kind].axes}


def drawn_axes(arms: Sequence[Arm]) -> dict[str, Axis]:
    """The same of some methods, without those on which no run has counted anything: none is drawn against nothing."""
    lines = [run for arm in arms for run in arm.runs if run.rounds]
    return {
        name: axis
        for name, axis in axes(arms[0].kind).items()
        if not lines or any(x > 0 for run in lines for x in axis.values(run))
    }


def sent_axes(kind: str) -> dict[str, str]:
    """Which of these count what was sent, in words. They are drawn by round or step too."""
    return {name: axis.label for name, axis in KINDS[kind].axes.items() if not name.endswith("seconds")}
