"""The table of a comparison: accuracy beside the bytes it cost, both ways."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..algorithms import FedAvg
from ..expression import parse
from ..links import Dense
from ..optimizers import SGD
from ..run.folder import write_atomic
from .read import Arm, Run

Row = dict[str, Any]


def rows(arms: list[Arm]) -> list[Row]:
    """One row a method: means over seeds, and the deviation where there are several."""
    found = [_row(arm) for arm in arms]
    dense = next((row for row in found if row["bytes_up"] and plain(row["expression"])), None)
    for row in found:
        for way in ("up", "total"):
            row[f"share_{way}"] = row[f"bytes_{way}"] / dense[f"bytes_{way}"] if dense else None
    return found


def plain(expression: str) -> bool:
    """Whether a method is FedAvg with nothing compressed: what shares of bytes refer to."""
    try:
        method = parse(expression)
    except ValueError:
        return False
    return isinstance(method, FedAvg) and (method.opt, method.up, method.down) == (SGD(1.0), Dense(), Dense())


def _row(arm: Arm) -> Row:
    own = {name: [v for run in arm.runs if (v := _last(run, name)) is not None] for name in CLIENTS}
    finals = [_last(run, "accuracy") for run in arm.runs]
    accuracies = [value for value in finals if value is not None]
    bests = [value for run in arm.runs if (value := _best(run, "accuracy")) is not None]
    up, down = _mean(arm, "up_bytes"), _mean(arm, "down_bytes")
    slowest = _mean(arm, "slowest_bytes")
    return {
        "method": arm.label,
        "expression": arm.expression,
        "seeds": [run.seed for run in arm.runs],
        "rounds": min(len(run.rounds) for run in arm.runs),
        "complete": all(run.summary is not None for run in arm.runs),
        "accuracy": statistics.fmean(accuracies) if accuracies else None,
        "accuracy_deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "best_accuracy": statistics.fmean(bests) if bests else None,
        **{name: statistics.fmean(values) if values else None for name, values in own.items()},
        "bytes_up": up,
        "bytes_down": down,
        "bytes_total": up + down,
        "floats_up": _mean(arm, "up_floats"),
        "seconds": _mean(arm, "seconds"),
        "network_seconds": {str(rate): slowest * 8 / (rate * 1e6) for rate in (1, 10, 100)},
        "clock": statistics.fmean(run.rounds[-1]["clock"] if run.rounds else 0.0 for run in arm.runs),
    }


def _mean(arm: Arm, name: str) -> float:
    """The mean over seeds of a sum over rounds."""
    return statistics.fmean(sum(r[name] for r in run.rounds) for run in arm.runs)


def _last(run: Run, name: str) -> float | None:
    return next((r[name] for r in reversed(run.rounds) if r.get(name) is not None), None)


def _best(run: Run, name: str) -> float | None:
    return max((r[name] for r in run.rounds if r.get(name) is not None), default=None)


CLIENTS = ("client_accuracy", "client_accuracy_spread", "client_accuracy_worst")
HEAD_CLIENTS = ("own tests", "worst client")  # where clients have tests of their own: after the best
NOTE_CLIENTS = (
    "Own tests: the mean over clients of the accuracy on each one's own, ± the standard deviation over clients. "
)
HEAD = (
    "method",
    "accuracy",
    "best",
    "MB up",
    "MB down",
    "up / FedAvg",
    "total / FedAvg",
    "s at 1 Mbit/s",
    "10",
    "100",
    "s here",
    "M floats up",
)
LEAST = ("M floats up", "s here", "10", "100", "best", "s at 1 Mbit/s", "up / FedAvg", "total / FedAvg")
NAME = 30  # characters of a method's name that always stand side by side
BORDER = 3  # characters around a cell


def head(found: Sequence[Row]) -> tuple[str, ...]:
    """The columns: :data:`HEAD`, and where clients have tests of their own theirs."""
    at = HEAD.index("best") + 1
    return (*HEAD[:at], *HEAD_CLIENTS, *HEAD[at:]) if _by_client(found) else HEAD


def _by_client(found: Sequence[Row]) -> bool:
    return any(row["client_accuracy"] is not None for row in found)


def cells(row: Row, by_client: bool = False) -> list[str]:
    """A row as text, in the order of :func:`head`."""
    accuracy = _percent(row["accuracy"])
    if row["accuracy_deviation"] is not None:
        accuracy += f" ± {100 * row['accuracy_deviation']:.1f}"
    name = row["method"] + ("" if row["complete"] else f" (stopped after round {row['rounds']})")
    return [
        name,
        accuracy,
        _percent(row["best_accuracy"]),
        *(_own_cells(row) if by_client else []),
        _megabytes(row["bytes_up"]),
        _megabytes(row["bytes_down"]),
        _percent(row["share_up"]),
        _percent(row["share_total"]),
        *(_seconds(row["network_seconds"][rate]) for rate in ("1", "10", "100")),
        _seconds(row["seconds"]),
        f"{row['floats_up'] / 1e6:.3g}",
    ]


def _own_cells(row: Row) -> list[str]:
    mean, spread, worst = (row[name] for name in CLIENTS)
    return [_percent(mean) + ("" if spread is None else f" ± {100 * spread:.1f}"), _percent(worst)]


def _percent(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:.1f} %"


def _megabytes(x: float) -> str:
    return f"{x / 1e6:.2f}" if x < 1e8 else f"{x / 1e6:,.0f}"


def _seconds(x: float) -> str:
    return f"{x:.1f}" if x < 100 else f"{x:,.0f}"


NOTE = (
    "MB are 10^6 bytes of what was really serialised, headers included, each broadcast once for every recipient. "
    "Seconds at a rate are those that the slowest client's bytes take, both ways, with equal links and no computing. "
    "M floats up is the papers' own count (millions of 32-bit floats' worth of values; positions, masks and headers "
    "count nothing): not bytes."
)


def markdown(found: list[Row]) -> str:
    """The table as a page."""
    columns, own = head(found), _by_client(found)
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" + " ---: |" * (len(columns) - 1)]
    lines += ["| " + " | ".join([f"`{first}`", *rest]) + " |" for first, *rest in (cells(row, own) for row in found)]
    return "\n".join([*lines, "", (NOTE_CLIENTS if own else "") + NOTE, ""])


def show(found: list[Row], title: str) -> None:
    """The table on the terminal; ``table.md`` has the columns that a narrow one has no room for."""
    own = _by_client(found)
    draw(title, head(found), [cells(row, own) for row in found], LEAST, (NOTE_CLIENTS if own else "") + NOTE)


def draw(
    title: str, head: Sequence[str], lines: list[list[str]], least: Sequence[str], caption: str | None = None
) -> None:
    """A table on the terminal: a name and numbers. Where they do not fit, columns are left out, ``least`` first."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # into a file nothing should be folded away
    columns = dict(zip(head, zip(*lines, strict=True), strict=True))
    widths = {name: BORDER + max(map(len, [name, *column])) for name, column in columns.items()}
    widths[head[0]] = min(widths[head[0]], BORDER + NAME)  # names are folded, numbers are not
    for name in least:
        if sum(widths[n] for n in columns) >= console.width:
            del columns[name]
    table = Table(title=title, caption=caption, caption_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    for line in zip(*columns.values(), strict=True):
        table.add_row(*line)
    console.print(table)


def write(found: list[Row], out: Path, command: str) -> Path:
    """``table.md`` in a comparison's folder, with the command that made it."""
    path = out / "table.md"
    write_atomic(path, f"{markdown(found)}\n```\n{command}\n```\n".encode())
    return path
