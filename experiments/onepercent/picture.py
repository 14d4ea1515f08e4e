"""The picture of ``curve.py``: accuracy against the bytes of a whole run, up and down together.

python experiments/onepercent/curve.py --picture curve.svg --only "Fashion-MNIST"
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
from groups import GROUPS
from methods import METHODS
from pages import of_best_rate

from thinwire.report.plots import logarithmic

PALETTE = "0.1", "0.55", "C3", "C1", "C4", "C0", "navy", "C2", "C5", "purple", "brown", "C6", "pink", "C8", "C9"
COLOURS = dict(zip(METHODS, (*PALETTE, "gold", "teal", "deeppink"), strict=True))


Points = dict[str, list[tuple[float, list[float], list[float]]]]


def points(lines: list[record.Line], name: str) -> Points:
    """By method: megabytes of a run both ways, L5 and EMA in percent, a value a seed; in the order of bytes."""
    found: dict[str, dict[str, list[record.Line]]] = {}
    runs = of_best_rate(line for line in lines if line["setting"]["name"] == name and line["kind"] == "run")
    for (_, row), some in runs.items():
        method = max((m for m in METHODS if row.startswith(m)), key=len)
        more = row.partition(" times the rounds")
        method += f", {more[0].rpartition(' ')[2]} times the rounds" if more[1] else ""
        if ended := [line for line in some if "diverged" not in line]:
            found.setdefault(method, {})[row] = ended
    return {
        method: sorted(
            (
                statistics.fmean(line["bytes_up"] + line["bytes_down"] for line in some) / 1e6,
                [100 * line["accuracy_mean_of_last_5"] for line in some],
                [100 * line["served"][-1][1] for line in some if line.get("served")],
            )
            for some in rows.values()
        )
        for method, rows in found.items()
    }


def digest(drawn: dict[str, Points]) -> str:
    """Which points a picture shows: it is kept in the file, so that a test can tell an old picture."""
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:16]


def drawable(lines: list[record.Line], only: Sequence[str] | None) -> dict[str, Points]:
    """The points of each set, or of those with one of these words in their names."""
    names = [group.name for group in GROUPS if any(line["setting"]["name"] == group.name for line in lines)]
    return {name: points(lines, name) for name in names if not only or any(part in name for part in only)}


def draw(lines: list[record.Line], only: Sequence[str] | None, out: Path) -> None:
    """Accuracy against bytes both ways on a log axis: L5 and EMA side by side, a row a set."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawn = drawable(lines, only)
    if not drawn:
        sys.exit("there is no line to draw: train some first")
    figure, axes = plt.subplots(len(drawn), 2, figsize=(11, 0.6 + 3.8 * len(drawn)), squeeze=False, sharey="row")
    for row, (name, methods) in zip(axes, drawn.items(), strict=True):
        titles = "mean of the last five evaluations", "served average"
        for axis, which, title in zip(row, (1, 2), titles, strict=True):
            for method, found in methods.items():
                there = [(point[0], point[which]) for point in found if point[which]]
                spread = [statistics.stdev(y) if len(y) > 1 else 0.0 for _, y in there]
                own = method.startswith("Auto")
                axis.errorbar(
                    [x for x, _ in there],
                    [statistics.fmean(y) for _, y in there],
                    yerr=spread,
                    label=method,
                    color=COLOURS[max((m for m in METHODS if method.startswith(m)), key=len)],
                    marker="D" if "times" in method else "o",
                    markersize=6 if own else 4,
                    linewidth=2.5 if own else 1,
                    capsize=2,
                )
            logarithmic(axis)
            axis.set_title(f"{name}: {title}", fontsize=9)
            axis.set_xlabel("MB of a run, up and down together")
            axis.grid(alpha=0.3)
        row[0].set_ylabel("accuracy, %")
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), fontsize=8, loc="center right", frameon=False)
    figure.tight_layout(rect=(0, 0, 0.8, 1))
    said = {"Title": "Accuracy against bytes both ways", "Description": digest(drawn)}
    with mpl.rc_context({"svg.hashsalt": "thinwire", "svg.fonttype": "none"}):  # the same lines are the same file
        figure.savefig(out, metadata=said | ({"Date": None} if out.suffix == ".svg" else {}))
    plt.close(figure)
    print(f"{out}: {out.stat().st_size:,} bytes")
