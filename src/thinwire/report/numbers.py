"""The numbers of a page: its table, curves, costs of a target, bytes, and clients.

What every evaluation of a long run would take is thinned (``POINTS``, ``EVERY``), so that a page stays below 5 MB.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..studies import KINDS
from ..studies.axes import count
from ..studies.cells import mean, measure_of, notes_on
from ..studies.read import Arm, Record, RecordedRun, read_lines
from . import table
from .curves import NAMES, Curve, axes, curve, sent_axes

POINTS = 400  # of a curve
EVERY = 6000  # points of a value's curves, of all methods and seeds
LAYERS = 40  # of a method, one way: the largest; fewer where methods are many
EVERY_LAYER = 4000  # of all methods, both ways


def cells(rows: Sequence[Record]) -> Record:
    """The table: its head, its rows, and what the names of columns leave unsaid."""
    columns, kind = table.columns_of(rows), KINDS[rows[0]["kind"]]
    return {
        "head": [name for name, _ in columns],
        "rows": [[cell(row) for _, cell in columns] for row in rows],
        "note": notes_on(kind.notes, [name for name, _ in columns]),
    }


def axes_of(arms: Sequence[Arm]) -> Record:
    """The axes of curves, by name, in words."""
    timed = any(run.rounds and run.rounds[-1].get("clock") for arm in arms for run in arm.runs)
    known = axes(arms[0].kind)
    return {name: axis.label if timed else axis.untimed or axis.label for name, axis in known.items()}


def points(arms: Sequence[Arm]) -> int:
    """How many points each curve has at most: fewer where there are many, by method and by seed."""
    return max(2, min(POINTS, EVERY // max(1, sum(len(arm.runs) for arm in arms))))


def curves(arm: Arm, most: int = POINTS) -> Record:
    """By value: the mean over seeds, the band, and the place on every axis."""
    made: Record = {}
    for value in NAMES:
        for name, axis in axes(arm.kind).items():
            if (line := curve(arm, axis.values, value)) is not None:
                if value not in made:
                    made[value] = {"seeds": line.seeds, "x": {}, **_heights(line, most)}
                made[value]["x"][name] = _short(line.x[_thin(len(line.x), most)])
    return made


def sent_by(arm: Arm, most: int = POINTS) -> Record:
    """By name of what was sent: how much of it there was after each round or step, in the mean over seeds, the band."""
    lines = {name: curve(arm, count, name) for name in sent_axes(arm.kind)}
    return {
        name: {"x": _short(line.x[_thin(len(line.x), most)]), **_heights(line, most)}
        for name, line in lines.items()
        if line is not None
    }


def _heights(line: Curve, most: int) -> Record:
    """The mean over seeds at the points that stay, and of several seeds the lowest and the highest."""
    kept = _thin(len(line.x), most)
    band = {"low": _short(line.low[kept]), "high": _short(line.high[kept])} if line.seeds > 1 else {}
    return {"y": _short(line.middle[kept]), **band}


def _thin(length: int, most: int = POINTS) -> Any:
    """Which of so many points stay: the first, the last, and some evenly between."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))


def _short(values: Iterable[float]) -> list[float | None]:
    """Six digits, which is more than is drawn. JSON has no word for what is no number but null."""
    return [float(f"{x:.6g}") if np.isfinite(x) else None for x in values]


def targets(arm: Arm, most: int = POINTS) -> list[Record]:
    """The evaluations of each seed at which the model was better than ever before, and what they had cost.

    ``accuracy``, in percent, is the Dice coefficient where pictures are segmented.
    """
    seeds, measure = [], measure_of(arm)
    for run in arm.runs:
        best, kept = -1.0, list[int]()
        for i, line in enumerate(run.rounds):
            accuracy = line.get(measure)
            if accuracy is not None and accuracy > best:
                best, kept = accuracy, [*kept, i]
        costs = {name: np.array(axis.values(run))[kept] for name, axis in axes(arm.kind).items()}
        reached = [100 * run.rounds[i][measure] for i in kept]
        thin = _thin(len(kept), most) if kept else []
        made = {name: _short(cost[thin]) for name, cost in costs.items()} if kept else {}
        seeds.append({"seed": run.seed, "accuracy": _short(np.array(reached)[thin]) if kept else [], **made})
    return seeds


def bytes_of(arms: Sequence[Arm]) -> list[Record]:
    """The parts of all bytes, in the mean over seeds; a list with ``name`` and ``values``, one a method."""
    parts = KINDS[arms[0].kind].ways
    return [{"name": said, "values": [mean(arm, name) for arm in arms]} for name, said in parts.items()]


def layers(arms: Sequence[Arm]) -> list[Record] | None:
    """The bytes of each method's largest layers, up and down, in the mean over seeds.

    ``*`` is what has no one layer. ``rest`` are how many smaller layers there are, and their bytes.
    """
    made, most = [], max(1, min(LAYERS, EVERY_LAYER // (2 * len(arms))))
    for number, arm in enumerate(arms):
        runs = [run for run in arm.runs if any("layer_bytes" in line for line in run.rounds)]
        for way in ("up", "down"):
            sums: dict[str, float] = {}
            for run in runs:
                for line in run.rounds:
                    for name, size in line.get("layer_bytes", {}).get(way, {}).items():
                        sums[name] = sums.get(name, 0) + size / len(runs)
            if sums:
                kept = set(sorted(sums, key=lambda name: -sums[name])[:most])
                rest = [size for name, size in sums.items() if name not in kept]
                shown = {name: size for name, size in sums.items() if name in kept}
                made.append({"method": number, "way": way, "bytes": shown, "rest": [len(rest), sum(rest)]})
    return made or None


def clients(arms: Sequence[Arm], most: int = POINTS) -> list[Record] | None:
    """Clients' results on tests of their own at the last evaluation: figures over the clients of a seed, and a curve.

    All are means over seeds, as in the table. The curve has clients from the worst to the best, and its band. Where a
    client's value is NaN or infinite the figures are None, as in the table, and the curve begins after that client.
    """
    made = []
    for number, arm in enumerate(arms):
        each = [own for run in arm.runs if (own := _own(run, measure_of(arm)))]
        if not each:
            continue
        places = [(np.arange(len(own)) + 0.5) / len(own) for own in each]
        at = min(places, key=len)[_thin(min(map(len, each)), most)]
        curves = np.stack([np.interp(at, place, own) for place, own in zip(places, each, strict=True)])
        sizes = sorted({len(own) for own in each})
        whole = bool(np.isfinite(np.concatenate(each)).all())
        made.append(
            {
                "method": number,
                "x": _short(100 * at),
                "y": _short(curves.mean(0)),
                **({"low": _short(curves.min(0)), "high": _short(curves.max(0))} if len(each) > 1 else {}),
                "mean": statistics.fmean(map(statistics.fmean, each)) if whole else None,
                "median": statistics.fmean(map(statistics.median, each)) if whole else None,
                "lowest_tenth": statistics.fmean(float(np.quantile(own, 0.1)) for own in each) if whole else None,
                "worst": statistics.fmean(own[0] for own in each) if whole else None,
                "clients": " to ".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1]))),
            }
        )
    return made or None


def _own(run: RecordedRun, measure: str) -> list[float]:
    """Each client's own value of a run at its last evaluation, in percent, from the worst to the best.

    A client without a test is left out. One whose value is no finite number, so that the mean over clients in the
    round's record is null, is the worst, with NaN.
    """
    path = run.path / "clients.jsonl"
    lines = [line for line in read_lines(path, ("round",)) if line["round"] <= run.length] if path.exists() else []
    if not lines:
        return []
    record = next((line for line in run.rounds if line["round"] == lines[-1]["round"]), {})
    odd = f"client_{measure}" in record and record[f"client_{measure}"] is None
    values = lines[-1].get(measure, ())
    worst = [math.nan] * (values.count(None) if odd else 0)
    return worst + sorted(100 * x for x in values if x is not None)
