"""Curves of a study, as files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.optional import optional
from ..errors import nearest, require
from ..studies.axes import Axis, Values, count
from ..studies.read import Arm
from .curves import NAMES, OWN, axes, curve, drawn_axes, has, judgement, sent_axes

optional("matplotlib", "drawing", "plots").use("Agg")  # files only: no screen is needed
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import Locator, NullFormatter  # noqa: E402

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000", "#dd8833", "#7755cc")
SMOOTHED = 30  # points from which on a curve is drawn thin, and its running mean thick
WINDOW = 5
STYLES = ("-", "--", ":", "-.")


def plot(
    arms: list[Arm],
    out: Path,
    form: str | None = None,
    title: str | None = None,
    size: tuple[float, float] | None = None,
    best: bool = False,
) -> list[Path]:
    """Accuracy against rounds or steps, what was sent, and seconds; losses; what was sent, by round; an overview.

    Accuracy is drawn against all that :func:`~thinwire.report.curves.axes` has for the kind of training. Losses are
    drawn against all of these too: the test loss, and dashed the training loss. Where clients have tests of
    their own, their accuracies too: the mean, one standard deviation over clients around it, the lowest tenth and the
    worst client. With ``best`` accuracies and losses are the best until then, in files of their own: ``best_...``.
    ``out`` is a folder for all of these, or a file for the overview alone, in the format of its suffix. ``form`` is
    that of files in a folder (png), ``title`` a line above the curves, ``size`` width and height in inches. Raises
    ``ValueError`` for a format that matplotlib cannot write.
    """
    known = plt.figure().canvas.get_supported_filetypes()
    plt.close()
    suffix = out.suffix.removeprefix(".").lower()
    single = suffix in known and not out.is_dir()
    require(
        form is None or form in known, f"--format {form}{nearest(str(form), known)}: it is one of {', '.join(known)}"
    )
    require(not single or form in (None, suffix), f"--format {form} and --out {out} are two formats: leave one out")
    figures = Figures(arms, title, size, best)
    if single:
        return [figures.overview(out)]
    require(not out.is_file(), f"--out {out}: that is a file; name a folder, or a file with a suffix such as .svg")
    form, first = form or "png", "best_" if best else ""
    unit, (value, loss) = arms[0].unit, judgement(arms)
    files = []
    for name, axis in drawn_axes(arms).items():
        files.append(figures.single(out / f"{first}{value}_by_{name}.{form}", axis, value))
    beside = "train_loss" if loss == "test_loss" and has(arms, "train_loss") else None
    for name, axis in drawn_axes(arms).items():
        files.append(figures.single(out / f"{first}loss_by_{name}.{form}", axis, loss, beside))
    if not best:
        if own := next((name for name in OWN if has(arms, name)), None):
            files.append(figures.single(out / f"clients_by_{unit}s.{form}", Axis(count, unit), own))
        files.append(figures.sent(out / f"sent_by_{unit}s.{form}"))
    files.append(figures.overview(out / f"{first}overview.{form}"))
    return files


@dataclass(frozen=True)
class Figures:
    """The figures of some methods, and what all of them have in common: arguments of :func:`plot`."""

    arms: list[Arm]
    title: str | None
    size: tuple[float, float] | None
    best: bool

    def sent(self, path: Path) -> Path:
        """Bytes and floats sent after each round or step, a panel for each way to count them."""
        arms, names = self.arms, sent_axes(self.arms[0].kind)
        size = self.size or (5.5 * len(names), 4.2 + 0.22 * len(arms))
        figure, grid = plt.subplots(1, len(names), figsize=size, layout="constrained", squeeze=False)
        for place, name in zip(grid.flat, names, strict=True):
            _draw(place, arms, Axis(count, arms[0].unit), name)
        return self.save(figure, grid.flat[0], path)

    def overview(self, path: Path) -> Path:
        """Four panels: what models are judged by on three axes, and the loss."""
        unit, (value, loss) = self.arms[0].unit, judgement(self.arms)
        drawn = list(drawn_axes(self.arms).values())[:3]
        panels = [*((axis, value) for axis in drawn), (Axis(count, unit), loss)]
        figure, grid = plt.subplots(2, 2, figsize=self.size or (12, 9.2), layout="constrained")
        for place, (axis, name) in zip(grid.flat, panels, strict=False):
            _draw(place, self.arms, axis, name, self.best)
        for place in grid.flat[len(panels) :]:  # of a kind with fewer axes
            place.set_visible(False)
        return self.save(figure, grid.flat[0], path, 2)

    def single(self, path: Path, axis: Axis, value: str, beside: str | None = None) -> Path:
        """A figure of one panel; the value ``beside`` it is dashed."""
        size = self.size or (8, 4.6 + 0.22 * len(self.arms))
        figure, place = plt.subplots(figsize=size, layout="constrained")
        _draw(place, self.arms, axis, value, self.best)
        if beside is not None:
            for number, arm in enumerate(self.arms):
                if (line := curve(arm, axis.values, beside, self.best)) is not None:
                    place.plot(line.x, line.middle, "--", color=COLOURS[number % len(COLOURS)], linewidth=1, alpha=0.7)
            place.set_ylabel(f"{place.get_ylabel()}; dashed: {NAMES[beside]}")
        return self.save(figure, place, path)

    def save(self, figure: Any, place: Any, path: Path, columns: int = 1) -> Path:
        """The file of a figure, with its title, and the names of methods as one of its panels has them."""
        if self.title is not None:
            figure.suptitle(self.title, parse_math=False)
        handles, names = place.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        return save(figure, path)


def _trailing(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """At each point the mean of the last few."""
    sums = np.cumsum(np.concatenate([[0.0], y]))
    ends = np.arange(1, len(y) + 1)
    starts = np.maximum(0, ends - WINDOW)
    averaged: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return averaged


def save(figure: Any, path: Path, **how: Any) -> Path:
    """Write a figure to a file, whose folder is made, and forget it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, **how)
    plt.close(figure)
    return path


def _draw(place: Any, arms: list[Arm], axis: Axis, value: str, best: bool = False) -> None:
    """A curve for each method: the mean over seeds, with a band from the lowest to the highest."""
    steady = best or value in axes(arms[0].kind)  # it goes one way: there is nothing to smooth
    for number, arm in enumerate(arms):
        line = curve(arm, axis.values, value, best)
        if line is None:
            continue
        x, middle = line.x, line.middle
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        if len(middle) >= SMOOTHED and not steady:
            place.plot(x, middle, style, color=colour, alpha=0.2, linewidth=0.8)
            middle = _trailing(middle)
        place.plot(x, middle, style, color=colour, label=arm.label, linewidth=1.6)
        if value in OWN:
            spread = _part(arm, axis.values, f"{value}_spread")
            place.fill_between(x, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
            for part, dots in (("p10", "-."), ("worst", ":")):
                place.plot(x, _part(arm, axis.values, f"{value}_{part}"), dots, color=colour, linewidth=1.2)
        elif line.seeds > 1:
            place.fill_between(x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if axis.label.startswith(("MB", "millions", "seconds")):
        logarithmic(place)
    place.set_xlabel(axis.label)
    band = "\n(band: one deviation, dash-dots: lowest tenth, dots: worst client)"
    name = axes(arms[0].kind)[value].label if value in axes(arms[0].kind) else NAMES[value]
    name += (band if value in OWN else "") + (", best until then" if best else "")
    long = not steady and any(len(run.rounds) >= SMOOTHED for arm in arms for run in arm.runs)
    place.set_ylabel(name + (f" (thick: mean of the last {WINDOW})" if long else ""))
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: the first choice that has three. ``ticks`` of ``page/report.js`` are the same.

    These are powers of ten; 1, 2 and 5 of each decade; and even steps, the longest first.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = 2 if high > 1e6 * low else 1
    size = 10.0 ** math.floor(math.log10(high - low))
    choices = [
        [10.0**k for k in decades if k % every == 0],
        [digit * 10.0**k for k in decades for digit in (1, 2, 5)],
        *([n * s for n in range(math.ceil(low / s), int(high / s) + 1)] for s in (2 * size, size, size / 2, size / 4)),
    ]
    return next(within for choice in choices if len(within := [x for x in choice if low <= x <= high]) >= 3)


class _Ticks(Locator):
    """Where matplotlib puts them, whatever is drawn later."""

    def __call__(self) -> list[float]:
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        return ticks(*sorted((vmin, vmax)))


def logarithmic(place: Any) -> None:
    """A logarithmic axis below what is drawn, with plain numbers that leave each other room."""
    place.set_xscale("log")
    place.xaxis.set_major_locator(_Ticks())
    place.xaxis.set_major_formatter(lambda value, _: f"{value:,.9g}")
    place.xaxis.set_minor_formatter(NullFormatter())


def _part(arm: Arm, axis: Values, name: str) -> NDArray[np.float64]:
    """In percent, the mean over seeds of what stands beside clients' own tests, in the rounds of their curve."""
    line = curve(arm, axis, name)
    assert line is not None
    return 100 * line.middle
