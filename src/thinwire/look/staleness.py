"""How stale the gradients of a pipeline's parts were, from the lines of its run.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Lemma 1.4.1, Section 1.5.4 and Figure 4. What is measured, and how
it differs from the thesis, is in :mod:`thinwire.pipeline.watch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..studies.read import RecordedRun, lacks
from .base import Look, Row, Table, short
from .drawing import COLOURS, plain, plt, save


class Stale(NamedTuple):
    """A part at an evaluation."""

    step: int
    part: int
    moved: float | None  # ||x - x'|| between a batch's forward pass and its step, mean; None where none came back
    weights: float  # ||x||
    difference: float | None  # of its last gradient from backpropagation's; None where it was not measured
    gradient: float | None  # the length of the latter
    parameters: int | None = None  # how many the part trains; None in records of before they were counted
    forward_difference: float | None = None  # from backpropagation's at the forward parameters (Lemma 1.4.1)
    forward_gradient: float | None = None  # the length of the latter
    ways: float | None = None  # ||x - x'|| of that batch, added up over this part and those after it


def stale(lines: Sequence[Mapping[str, Any]]) -> list[Stale]:
    """The staleness in a pipelined run's records, part by part."""
    parts = []
    for line in lines:
        if "moved" in line:
            unknown = [None] * len(line["moved"])
            columns = zip(
                *(line[name] for name in ("moved", "weights", "difference", "gradient")),
                *(line.get(name, unknown) for name in ("part_parameters", *LEMMA)),
                strict=True,
            )
            parts += [Stale(line["step"], part, *values) for part, values in enumerate(columns)]
    return parts


LEMMA = ("forward_difference", "forward_gradient", "ways")  # of records since it is measured

Reading = tuple[str, list[Stale]]  # the name of a schedule, and its parts at each evaluation


@dataclass(frozen=True)
class Staleness(Look[Reading]):
    """Needs a study of `thinwire pipeline run` with --record staleness."""

    # g' is the gradient of backpropagation at today's parameters, g" that at those with which the batch went forward.
    # "by the ways" is the ratio that Lemma 1.4.1 bounds: ||g - g"|| by how far this part and those after it moved.

    def read(self, run: RecordedRun) -> Reading:
        if not (parts := stale(run.rounds)):
            raise lacks(run, "records of staleness", "pipelined", "train it with --record staleness")
        return run.about.get("name", run.expression), parts

    def rows(self, reading: Reading) -> Iterable[Row]:
        name, parts = reading
        step = parts[-1].step
        head = ["part", "||x - x'||", "of ||x||", "||g - g'||", "of ||g'||"]
        lemma = any(e.forward_difference is not None for e in parts)
        head += ['||g - g"||', 'of ||g"||', "by the ways"] if lemma else []
        rows = [
            [
                *(e.part, short(e.moved), _of(e.moved, e.weights), short(e.difference), _of(e.difference, e.gradient)),
                *(
                    (short(e.forward_difference), _of(e.forward_difference, e.forward_gradient), _by(e))
                    if lemma
                    else ()
                ),
            ]
            for e in parts
            if e.step == step
        ]
        yield Table(f"{name}, step {step}", head, rows)

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """By part: how far parameters moved, and the difference from backpropagation (paper 002's Figure 4)."""
        _, parts = reading
        panels = [("moved", "weights", "‖x - x_old‖ / ‖x‖ while a batch is on its way")]
        if any(e.difference is not None for e in parts):
            panels.append(("difference", "gradient", "‖g - g of backpropagation‖ / ‖the latter‖"))
            if any(e.parameters for e in parts):
                panels.append(("difference", "parameters", "‖g - g of backpropagation‖ by parameters"))
        figure, grid = plt.subplots(
            1, len(panels), figsize=(5.5 * len(panels), 3.8), layout="constrained", squeeze=False
        )
        for place, (name, whole, label) in zip(grid[0], panels, strict=True):
            for part in sorted({e.part for e in parts}):
                own = [(e.step, getattr(e, name), getattr(e, whole)) for e in parts if e.part == part]
                points = [(step, value / by) for step, value, by in own if value is not None and by]
                if points:
                    place.plot(*zip(*points, strict=True), color=COLOURS[part % len(COLOURS)], label=f"part {part}")
            place.legend(frameon=False)
            place.set_ylim(bottom=0)
            plain(place, "step", label)
        return [save(figure, folder / "staleness.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        return {"parts": [e._asdict() for e in reading[1]]}


def _by(e: Stale) -> str:
    """The ratio of Lemma 1.4.1."""
    return "-" if e.forward_difference is None or not e.ways else short(e.forward_difference / e.ways)


def _of(x: float | None, whole: float | None) -> str:
    """A share of a whole, in percent: two digits, and from 100 % on a whole number."""
    if x is None or not whole:
        return "-"
    percent = 100 * x / whole
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:,.0f} %"
