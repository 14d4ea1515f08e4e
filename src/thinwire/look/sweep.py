"""A study's results by a setting: a point for each method, a curve for all that differ in that setting alone.

Methods are compared by their complete expressions. A setting is a field, wherever it stands: ``beta`` of
``DOMO(beta=0.9)``, ``share`` of ``FedAvg(up=TopK(0.01))``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Config
from ..errors import RunError, nearest, require
from ..report import curves
from ..report.curves import SHARES, axes, has, judgement
from ..studies import KINDS
from ..studies.cells import last_values
from ..studies.read import Arm, RecordedRun, comparable
from .base import Look, Row, Table, option
from .drawing import COLOURS, logarithmic, plain, plt, save

BYTES = "bytes"  # in place of a setting: MB sent, both directions; so are bytes_up and the like
PERPLEXITY = "perplexity"
NAMES = {**curves.NAMES, PERPLEXITY: "test perplexity, e to the test loss"}
"""How what was reached is called on an axis."""
LAST = 5  # evaluations, whose mean is what a run reached


class Point(NamedTuple):
    """A method: where it is, and what its seeds reached."""

    at: float
    mean: float
    low: float
    high: float
    method: str


class SweepLine(NamedTuple):
    """Methods that differ in the setting alone, in its order; ``name`` says what they share: of one method all."""

    name: str
    points: list[Point]


def settings(x: Config, above: str = "") -> dict[str, Any]:
    """Every field of a configuration, and of those in it, by its path (``opt.beta``), and every class."""
    fields: dict[str, Any] = {f"{above}class": type(x).__name__}
    for name, value in vars(x).items():
        fields |= settings(value, f"{above}{name}.") if isinstance(value, Config) else {f"{above}{name}": value}
    return fields


def sweep(
    arms: Sequence[Arm], across: str | None = None, tuned: str | None = None, of: str | None = None
) -> tuple[str, str, list[SweepLine]]:
    """The setting, the name of what was reached, and a curve for each group of methods.

    ``across`` is a setting, as a path or its last part, or what was sent: "bytes" in both directions, or a name
    of :func:`~thinwire.report.curves.sent_axes`, such as "bytes_up". Methods that differ in numbers alone are one curve
    then. By default it is the only setting that differs. Of methods that also differ in the setting ``tuned``,
    such as ``local.lr``, the best counts: of losses and perplexities the lowest. ``of`` is what was reached: a name of
    ``NAMES``, or "loss"; by default what methods are judged by. Raises ``ValueError`` for a name that is not there or
    may be several, :class:`RunError` where nothing can be drawn.
    """
    value, sent = value_of(arms, of), curves.sent_axes(arms[0].kind)
    axis = "bytes_total" if across == BYTES else across if across in sent else None
    known = [(arm, each) for arm in arms if (each := _settings(arm)) is not None]
    if not known:
        raise RunError("no method here can be read: methods of your own modules have no settings to draw against")
    path = axis or _path([each for _, each in known], across, tuned)
    best = None if tuned is None else _path([each for _, each in known], tuned, None)
    groups: dict[str, list[tuple[dict[str, Any], str, Point]]] = {}
    for arm, each in known:
        runs = [run for run in comparable(arm).runs if score(run, value) is not None]
        seeds = [number for run in runs if (number := score(run, value)) is not None]
        if not seeds or (axis is None and not _number(each.get(path))):
            continue
        if axis is not None:
            at = statistics.fmean(axes(run.kind)[axis].values(run)[-1] for run in runs)
            same = {name: v for name, v in each.items() if not _number(v)}
        else:
            at, same = float(each[path]), {name: v for name, v in each.items() if name not in (path, best)}
        point = Point(at, statistics.fmean(seeds), min(seeds), max(seeds), arm.label)
        but = repr(sorted((name, v) for name, v in each.items() if name != best))  # all that was not tuned
        groups.setdefault(repr(sorted(same.items())), []).append((same, but, point))
    if not groups:
        raise RunError(f"no method that has {path} was evaluated")
    lines = []
    shown = [some[0][0] for some in groups.values()]
    for some in groups.values():
        points = [point for *_, point in some]
        if best is not None:
            sign = -1 if value.endswith(("loss", PERPLEXITY)) else 1
            alike = [[p for _, own, p in some if own == but] for but in dict.fromkeys(but for _, but, _ in some)]
            points = [max(each, key=lambda p: -math.inf if math.isnan(p.mean) else sign * p.mean) for each in alike]
        lines.append(SweepLine(points[0].method if len(points) == 1 else _name(some[0][0], shown), sorted(points)))
    return (path if axis is None else sent[axis]), value, lines


def value_of(arms: Sequence[Arm], of: str | None) -> str:
    """The name in ``NAMES`` of what was reached. Raises ``ValueError`` for what these runs have not."""
    if of is None:
        return judgement(arms)[0]
    there = [name for name in curves.NAMES if has(arms, name)]
    there += [PERPLEXITY] * (PERPLEXITY not in there and has(arms, "test_loss"))
    value = judgement(arms)[1] if of == "loss" else of
    require(value in there, f"--of {of}{nearest(of, there)}: these runs have {', '.join(there)}")
    return value


def score(run: RecordedRun, value: str) -> float | None:
    """The mean of a value over the last evaluations of a run; shares are in percent.

    The perplexity of an evaluation, where none is recorded, is e to the power of its test loss, a mean cross-entropy in
    nats. NaN where one of these evaluations is no finite number.
    """
    unrecorded = value == PERPLEXITY and all(line.get(PERPLEXITY) is None for line in run.rounds)
    key = "test_loss" if unrecorded else value
    numbers = last_values(run, key, LAST)
    there = [number for number in numbers if number is not None]
    if len(there) < len(numbers):
        return math.nan
    if unrecorded:
        there = [math.exp(loss) if loss < MOST else math.inf for loss in there]
    return statistics.fmean(there) * (100 if value.endswith(SHARES) else 1) if there else None


MOST = 700  # nats: e to this power is about the largest number there is


def _settings(arm: Arm) -> dict[str, Any] | None:
    try:
        return settings(KINDS[arm.kind].method(arm.expression))
    except ValueError:  # of a user's own module
        return None


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _path(all_settings: Sequence[Mapping[str, Any]], asked: str | None, tuned: str | None) -> str:
    """The path of a setting, in full."""
    there = dict.fromkeys(name for each in all_settings for name, value in each.items() if _number(value))
    varied = [name for name in there if len({each[name] for each in all_settings if name in each}) > 1]
    if asked is None:
        left = [name for name in varied if tuned is None or not _ends(name, tuned)]
        require(bool(left), "these methods differ in no number: draw --across bytes")
        require(len(left) == 1, f"these methods differ in {', '.join(left)}: name one with --across")
        return left[0]
    paths = [name for name in there if name == asked] or [name for name in there if _ends(name, asked)]
    paths = [name for name in paths if name in varied] or paths
    some = ", ".join(varied) or "none"
    require(bool(paths), f"no setting {asked!r}{nearest(asked, there)}; those that differ are {some}")
    require(len(paths) == 1, f"{asked} may be {' or '.join(paths)}: write it in full")
    return paths[0]


def _ends(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _name(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The name that distinguishes a group: its classes, and the fields in which groups of these classes differ."""
    classes = {name: value for name, value in own.items() if name.endswith("class")}
    alike = [each for each in others if all(each.get(name) == value for name, value in classes.items())]
    fields = [f"{n} {v}" for n, v in own.items() if n not in classes and any(each.get(n) != v for each in alike)]
    differ = [n for n, v in classes.items() if n == "class" or any(each.get(n) != v for each in others)]
    parts = [n for n in differ if n == "class" or not any(_within(n, other) for other in differ)]
    return ", ".join([*(classes[n] for n in parts), *fields])


def _within(name: str, other: str) -> bool:
    """True for a class of a part of what has the other one: values.class of TopK is not said beside TopK."""
    above = other.removesuffix("class")
    return bool(above) and name != other and name.startswith(above)


class Reading(NamedTuple):
    """The setting, the name of what was reached, and a curve for each group of methods."""

    across: str
    value: str
    lines: list[SweepLine]


@dataclass(frozen=True)
class Sweep(Look[Reading]):
    """Needs a study with several methods that were evaluated: the mean of the last five evaluations counts."""

    subject = "studies"

    across: str | None = option(
        None,
        "A number of the methods, e.g. opt.beta (default: the only one that differs), or what was sent: "
        "bytes (both directions), bytes_up or floats_up.",
    )
    of: str | None = option(None, "accuracy, dice, loss, perplexity... (default: what the methods are judged by).")
    tuned: str | None = option(
        None, "A number that was tuned, e.g. local.lr: of methods that differ in it the best counts."
    )

    def read(self, arms: list[Arm]) -> Reading:
        return Reading(*sweep(arms, self.across, self.tuned, self.of))

    def rows(self, reading: Reading) -> Iterable[Row]:
        cells = [
            [line.name, f"{p.at:g}", f"{p.mean:.4g}", f"{p.low:.4g}", f"{p.high:.4g}"]
            for line in reading.lines
            for p in line.points
        ]
        yield Table(NAMES[reading.value], ("methods", reading.across, "mean", "lowest", "highest"), cells)

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """By the setting what was reached, a curve for each group. Bars are from the lowest seed to the highest."""
        lines = reading.lines
        figure, place = plt.subplots(figsize=(6.5, 4 + 0.22 * len(lines)), layout="constrained")
        for i, line in enumerate(lines):
            middle = [point.mean for point in line.points]
            spread = [[p.mean - p.low for p in line.points], [p.high - p.mean for p in line.points]]
            x = [point.at for point in line.points]
            style = ("o-", "s--", "^:")[i // len(COLOURS) % 3]
            place.errorbar(x, middle, spread, fmt=style, color=COLOURS[i % len(COLOURS)], capsize=3, label=line.name)
        positive = [point.at for line in lines for point in line.points]
        if min(positive) > 0 and max(positive) / min(positive) > 20:
            logarithmic(place)
        if len(lines) > 1 or lines[0].name:
            figure.legend(loc="outside lower center", frameon=False, fontsize=8)
        plain(place, reading.across, NAMES[reading.value])
        return [save(figure, folder / "sweep.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        lines = [{"name": line.name, "points": [p._asdict() for p in line.points]} for line in reading.lines]
        return {"across": reading.across, "value": reading.value, "lines": lines}
