"""The table of docs/methods/local-steps.md: losses of a character transformer beside bytes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from . import Line, markdown, read, table

COMMAND = "python experiments/local_steps/shakespeare.py"
COLUMNS = {(2, 600): "2 ranks, 600 steps"}


def trained() -> dict[tuple[str, int, int], dict[int, Line]]:
    """Lines by row, ranks and steps, and then by seed."""
    lines_of: dict[tuple[str, int, int], dict[int, Line]] = {}
    for line in read("experiments/local_steps/results/shakespeare.jsonl", COMMAND).all(width=128, lr=0.004):
        lines_of.setdefault((line["row"], line["ranks"], line["steps"]), {})[line["seed"]] = line
    return lines_of


def over(lines: dict[int, Line], dense: dict[int, Line]) -> list[float]:
    """Losses over dense training's, of the seeds that both have."""
    return [lines[seed]["loss"] - dense[seed]["loss"] for seed in sorted(lines.keys() & dense.keys())]


def spread(values: Iterable[float], sign: str = "+") -> str:
    """Mean, deviation, and how many there are where that is not three."""
    values = list(values)
    if not values:
        return ""
    more = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.3f}{more}" + ("" if len(values) == 3 else f" ({len(values)})")


@table
def local_steps() -> list[str]:
    lines_of = trained()
    rows = []
    for row in dict.fromkeys(row for row, *_ in lines_of):
        first = next(iter(next(lines for (name, *_), lines in lines_of.items() if name == row).values()))
        up, down = (first[way] / first["steps"] for way in ("bytes_up", "bytes_down"))
        cells = []
        for ranks, steps in COLUMNS:
            lines, dense = (lines_of.get((name, ranks, steps), {}) for name in (row, "dense"))
            cells.append(
                spread((line["loss"] for line in lines.values()), "") if row == "dense" else spread(over(lines, dense))
            )
        small = f"1/{first['dense_bytes'] / first['bytes_up']:,.0f}"
        rows.append([f"`{row}`" if "(" in row else row, f"{up:,.0f}", f"{down:,.0f}", small, *cells])
    head = ["method", "bytes a step, up", "down", "of dense", *COLUMNS.values()]
    return markdown(head, rows, (0,))
