"""The table of docs/methods/local-steps.md: losses of a character transformer beside bytes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch

import thinwire as tw
from thinwire import models
from thinwire.params import Layout, Params

from . import Line, markdown, read, table

COMMAND = "python experiments/local_steps/shakespeare.py"
FILE = "experiments/local_steps/results/shakespeare.jsonl"
COLUMNS = {(2, 600): "2 ranks, 600 steps", (4, 600): "4 ranks, 600 steps", (2, 1500): "2 ranks, 1,500 steps"}


def trained() -> dict[tuple[str, int, int], dict[int, Line]]:
    """Lines by row, ranks and steps, and then by seed."""
    lines_of: dict[tuple[str, int, int], dict[int, Line]] = {}
    for line in read(FILE, COMMAND).all(width=128, lr=0.004):
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
    for row in dict.fromkeys(row for row, ranks, _ in lines_of if ranks == 2):
        first = next(iter(lines_of[row, 2, 600].values()))
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


FARTHER: dict[str, Line] = {
    "8 ranks, 600 steps": {"ranks": 8, "steps": 600, "width": 128, "lr": 0.004},
    "2 ranks, 3,000 steps": {"ranks": 2, "steps": 3000, "width": 128, "lr": 0.004},
    "4 M parameters, 2 ranks, 800 steps": {"ranks": 2, "steps": 800, "width": 256, "lr": 0.002},
    "the same, 3,000 steps": {"ranks": 2, "steps": 3000, "width": 256, "lr": 0.002},
}


@table
def local_steps_farther() -> list[str]:
    by_column = dict[str, dict[str, dict[int, Line]]]()
    for name, about in FARTHER.items():
        rows_of = dict[str, dict[int, Line]]()
        for line in read(FILE, COMMAND).lines:
            if about.items() <= line.items():
                rows_of.setdefault(line["row"], {})[line["seed"]] = line
        by_column |= {name: rows_of} if "dense" in rows_of else {}
    rows = []
    for row in dict.fromkeys(["dense", *(row for rows_of in by_column.values() for row in rows_of)]):
        cells = []
        for rows_of in by_column.values():
            lines, dense = rows_of.get(row, {}), rows_of["dense"]
            small = "".join(f", 1/{line['dense_bytes'] / line['bytes_up']:,.0f}" for line in [*lines.values()][:1])
            losses = spread((line["loss"] for line in lines.values()), "")
            cells.append(losses if row == "dense" else spread(over(lines, dense)) + small)
        rows.append([f"`{row}`" if "(" in row else row, *cells])
    return markdown(["method", *by_column], rows, (0,))


TIME = "experiments/local_steps/results/time_to_loss.jsonl"


@table
def local_steps_time() -> list[str]:
    """Seconds over slow links to the loss that dense training has after 150 steps."""
    results = read(TIME, "python experiments/local_steps/time_to_loss.py --slowlink PROGRAM")
    by_row = dict[str, dict[int, Line]]()
    for line in results.all(part="time"):
        by_row.setdefault(line["row"], {})[line["mbit"]] = line
    rates, rows = sorted(by_row["dense"]), []
    for row, lines in by_row.items():
        cells = [str(lines[rates[0]]["steps"])]
        for rate in rates:
            line, dense = lines[rate], by_row["dense"][rate]
            cells += [f"{line['time']:.1f} s", f"{line['time'] / dense['time']:.3f}", f"{line['alone']:.1f} s"]
        rows.append([f"`{row}`" if "(" in row else row, *cells, f"{lines[rates[0]]['bytes']:,}"])
    head = [cell for rate in rates for cell in (f"{rate} Mbit/s", "of dense", "of it without messages")]
    return markdown(["method", "steps", *head, "bytes a rank gives"], rows, (0,))


def published(layout: Layout) -> tuple[int, float]:
    """The entries that SparseLoCo keeps of a model, and its message in bytes as the paper counts.

    An entry has 12 bits of position and 2 of value. Each tensor has a table of 5 numbers, 4 bytes each, as its authors
    send it.
    """
    x = Params(layout, torch.randn(layout.size, generator=torch.Generator().manual_seed(0)))
    _, seen, _ = tw.ChunkTopK(64, values=tw.Bins(4)).send(x, None, tw.Key(0))
    entries = int((seen.flat != 0).sum())
    return entries, entries * 14 / 8 + 20 * len(layout.names)


@table
def local_steps_message() -> list[str]:
    rows = []
    lines = read(FILE, COMMAND).lines
    for width, depth in sorted({(line["width"], line["depth"]) for line in lines}):
        of = [line for line in lines if (line["row"], line["width"]) == ("SparseLoCo(20)", width)]
        model = models.char_transformer(context=64, width=width, depth=depth)
        layout = Layout.of(model.named_parameters())
        entries, theirs = published(layout)
        ours = statistics.mean(20 * line["bytes_up"] / line["steps"] for line in of)
        dense = 4 * layout.size
        cells = [f"{layout.size:,}", f"{entries:,}", f"{theirs:,.0f}", f"1/{dense / theirs:,.0f}"]
        rows.append([*cells, f"{ours:,.0f}", f"1/{dense / ours:,.0f}", f"{theirs / ours:.2f}"])
    head = [
        "parameters",
        "entries sent",
        "12 + 2 bits, B",
        "of dense",
        "as sent here, B",
        "of dense",
        "gain without loss",
    ]
    return markdown(head, rows, ())
