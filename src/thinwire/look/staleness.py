"""How stale the gradients of a pipeline's parts were, from the lines of its run.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Lemma 1.4.1, Section 1.5.4 and Figure 4. What is measured, and how
it differs from the thesis, is in :mod:`thinwire.pipeline.watch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..studies.read import Run, lacks


class Stale(NamedTuple):
    """A part at an evaluation."""

    step: int
    part: int
    moved: float | None  # ||x - x'|| between a batch's forward pass and its step, mean; None where none came back
    weights: float  # ||x||
    difference: float | None  # of its last gradient from backpropagation's; None where it was not measured
    gradient: float | None  # the length of the latter
    parameters: int | None = None  # how many the part trains; None in records of before they were counted


def stale(lines: Sequence[Mapping[str, Any]]) -> list[Stale]:
    """Of a pipelined run's records, part by part."""
    found = []
    for line in lines:
        if "moved" in line:
            counted = line.get("part_parameters", [None] * len(line["moved"]))
            columns = zip(
                *(line[name] for name in ("moved", "weights", "difference", "gradient")), counted, strict=True
            )
            found += [Stale(line["step"], part, *values) for part, values in enumerate(columns)]
    return found


def recorded(run: Run) -> list[Stale]:
    """Of a run of ``thinwire pipeline run``. Raises :class:`RunError` for one without ``--record staleness``."""
    found = stale(run.rounds)
    if not found:
        raise lacks(run, "records of staleness", "pipelined", "train it with --record staleness")
    return found
