"""Residuals of data-parallel workers, the distance of x and y, and the best lambda.

An Xu, "New Efficient and Privacy-Preserving Methods for Distributed Training", PhD thesis, University of Pittsburgh,
2023, Equation 2-9 and the remarks that follow it.

Differences from the thesis: none. lambda* is that of the moment, over all residuals whole; ``lam_star`` of a record is
the mean of the last steps, over the entries that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..studies.read import RecordedRun, lacks
from .base import Look, Row, Table, short
from .drawing import COLOURS, panels, plain, save


class Owed(NamedTuple):
    """The residuals e_k of K workers at one moment."""

    step: int
    residual: float  # the root of mean ||e_k||^2
    distance: float  # ||mean e_k||: of DEF ||x - y||
    best: float | None  # lambda* = ||mean e_k||^2 / mean ||e_k||^2; None where nothing is owed
    lam: float | None  # the one in use, of methods that have one
    accuracy: float | None = None  # of the model that the method is judged by, 0 to 1: of DEF y
    accuracy_x: float | None = None  # of x, where that is another: of DEF-A's


def best(residual: float, distance: float) -> float | None:
    """lambda* of Equation 2-9: 1 if all workers' residuals are the same, 1/K if those of K are orthogonal.

    The lengths are those of :func:`thinwire.ddp.simulation.lengths`.
    """
    return (distance / residual) ** 2 if residual else None


def residuals(lines: Sequence[Mapping[str, Any]]) -> list[Owed]:
    """The residuals in a data-parallel run's records."""
    steps = []
    for line in lines:
        if "residual" in line:
            both, reached = (line["residual"], line["distance"]), (line.get("accuracy"), line.get("accuracy_x"))
            steps.append(Owed(line["step"], *both, best(*both), line.get("lam"), *reached))
    return steps


Reading = tuple[str, list[Owed]]  # the name of a method, and its residuals by step


@dataclass(frozen=True)
class Feedback(Look[Reading]):
    """Needs a study of `thinwire ddp-sim` with a method that keeps residuals, such as DEF(64)."""

    def read(self, run: RecordedRun) -> Reading:
        if not (steps := residuals(run.rounds)):
            raise lacks(run, "residuals", "data-parallel", "its method keeps none; look at one such as DEF(64)")
        return run.about.get("name", run.expression), steps

    def rows(self, reading: Reading) -> Iterable[Row]:
        name, steps = reading
        yield Table(
            name,
            ("step", "residual", "||x - y||", "lambda*", "lambda"),
            [
                [e.step, f"{e.residual:.4g}", f"{e.distance:.4g}", short(e.best), short(e.lam)]
                for e in steps[:: max(1, len(steps) // 20)]
            ],
        )

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """Residuals and the distance of x and y by step, lambda* beside the lambda in use, and what x and y reach."""
        _, steps = reading
        averaged = any(e.accuracy_x is not None for e in steps)
        figure, places = panels(2 + averaged, 5.2, 3.8)
        x = [e.step for e in steps]
        left, right = places[:2]
        left.plot(x, [e.residual for e in steps], color=COLOURS[0], label="residual, root of mean ‖e‖²")
        left.plot(x, [e.distance for e in steps], color=COLOURS[1], label="‖x - y‖ = ‖mean e‖")
        right.plot(x, [e.best for e in steps], color=COLOURS[0], label="λ*")
        if any(e.lam is not None for e in steps):
            right.plot(x, [e.lam for e in steps], "--", color=COLOURS[1], label="λ in use")
        if averaged:  # paper 002's Figure 8
            for name, colour, label in (("accuracy", 0, "y (DEF)"), ("accuracy_x", 1, "x (DEF-A)")):
                reached = [(value := getattr(e, name)) and 100 * value for e in steps]
                places[2].plot(x, reached, color=COLOURS[colour], label=label)
        for place, label in zip(places, ("", "", "test accuracy, %"), strict=False):
            place.legend(frameon=False)
            place.set_ylim(bottom=None if label else 0)
            plain(place, "step", label)
        return [save(figure, folder / "feedback.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        return {"steps": [e._asdict() for e in reading[1]]}
