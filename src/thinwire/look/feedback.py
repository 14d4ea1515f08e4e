"""What workers owe each other: residuals, the distance of x and y, and the best lambda.

An Xu, "New Efficient and Privacy-Preserving Methods for Distributed Training", PhD thesis, University of Pittsburgh,
2023, Equation 2-9 and the remarks that follow it.

Differences from the thesis: none. lambda* is that of the moment, over all residuals whole; ``lam_star`` of a record is
the mean of the last steps, over the entries that were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..studies.read import Run, lacks


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


def owed(lines: Sequence[Mapping[str, Any]]) -> list[Owed]:
    """Of a data-parallel run's records."""
    found = []
    for line in lines:
        if "residual" in line:
            both, reached = (line["residual"], line["distance"]), (line.get("accuracy"), line.get("accuracy_x"))
            found.append(Owed(line["step"], *both, best(*both), line.get("lam"), *reached))
    return found


def recorded(run: Run) -> list[Owed]:
    """Of a run of ``thinwire ddp-sim``. Raises :class:`RunError` for one whose method keeps no residuals."""
    found = owed(run.rounds)
    if not found:
        raise lacks(run, "residuals", "data-parallel", "its method keeps none; look at one such as DEF(64)")
    return found
