"""Accuracy under each schedule, by epochs and by simulated seconds, as Figure 3 of the thesis: a picture of lines.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Section 1.5.1. A curve is the mean over seeds of a row of
``train.py``, with their standard deviation as a band. Seconds are those of ``speeds.py`` over links of 1 Gbit/s and
1 ms. Backpropagation is one machine without links.

    python experiments/dsp/curves.py --out docs/pipeline-learning.svg
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train
from train import record

MBIT = 1_000.0
Curve = list[tuple[float, float, float, float]]  # epochs, seconds, accuracy in percent, its deviation
COLOURS = {"BP": "0.2", "FR": "C0", "DDG": "C2", "DNI": "C7", "DSP": ("C1", "C3", "C4")}


def curves(lines: list[record.Line], speeds: list[record.Line]) -> dict[int, dict[str, Curve]]:
    """By number of parts and row; backpropagation is with each number of parts."""
    runs: dict[tuple[int, str], list[record.Line]] = {}
    for line in lines:
        if line.get("part") == "curve" and "curve" in line and "=" not in line["row"]:
            runs.setdefault((line["parts"], line["row"]), []).append(line)
    ticks = {(s["parts"], s["row"]): s["tick"] for s in speeds if s["mbit"] == MBIT}
    ticks[1, "BP"] = next((s["alone"] for s in speeds), 0.0)
    found: dict[int, dict[str, Curve]] = {}
    for (parts, row), some in runs.items():
        epoch, curve = some[0]["examples"] // some[0]["batch"], []
        for points in zip(*(line["curve"] for line in some), strict=True):
            reached = [100 * point[2] for point in points]
            spread = statistics.stdev(reached) if len(reached) > 1 else 0.0
            took = points[0][0] * ticks.get((parts, row), float("nan"))
            curve.append((points[0][0] / epoch, took, statistics.fmean(reached), spread))
        for where in [3, 4] if parts == 1 else [parts]:
            found.setdefault(where, {})[row] = curve
    return found


def digest(found: dict[int, dict[str, Curve]]) -> str:
    """Which points a picture shows: it is kept in the file, so that a test can tell an old picture."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def colour(row: str) -> str:
    kind = row.partition("(")[0]
    if kind != "DSP":
        return str(COLOURS[kind])
    return COLOURS["DSP"][int(row.partition("((")[2][0]) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=train.RESULTS / "cifar10.jsonl")
    parser.add_argument("--speeds", type=Path, default=train.RESULTS / "speeds.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    found = curves(record.read(o.lines), record.read(o.speeds))
    if not found:
        sys.exit("there is no line to draw: python experiments/dsp/train.py makes them")
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(COLOURS)
    figure, axes = plt.subplots(len(found), 2, figsize=(10, 0.4 + 3.6 * len(found)), squeeze=False, sharey="row")
    for row, (parts, some) in zip(axes, sorted(found.items()), strict=True):
        for axis, which, what in zip(row, (0, 1), ("epochs", "simulated seconds, 1 Gbit/s and 1 ms"), strict=True):
            for name, curve in sorted(some.items(), key=lambda each: (kinds.index(each[0].partition("(")[0]), each[0])):
                at, mean, spread = ([point[i] for point in curve] for i in (which, 2, 3))
                axis.plot(at, mean, label=name, color=colour(name), linewidth=1.4)
                low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
                axis.fill_between(at, low, high, color=colour(name), alpha=0.15, linewidth=0)
            axis.set_xlabel(what)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("accuracy, %")
        row[0].set_title(f"{parts} parts", fontsize=10)
        row[1].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    said = {"Title": "Accuracy of stale training", "Description": digest(found)}
    with mpl.rc_context({"svg.hashsalt": "thinwire", "svg.fonttype": "none"}):  # the same lines are the same file
        figure.savefig(o.out, metadata=said | ({"Date": None} if o.out.suffix == ".svg" else {}))
    print(f"{o.out}: {o.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
