"""Tables: what a cell is made of, and a table on the terminal, of runs, of plans and of predictions alike.

A row has the figures of one method, by name; a column makes a text of a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import require
from ..expression import parse, vocabulary
from .read import Arm, RecordedRun

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]  # what is above it, and a row's cell

NAME = 30  # characters of a method's name that always stand side by side
BORDER = 3  # characters around a cell


def draw(
    title: str, head: Sequence[str], lines: list[list[str]], least: Sequence[str], notes: str | Mapping[str, str] = ""
) -> None:
    """A table on the terminal: a name and numbers. Where they do not fit, columns are left out, ``least`` first.

    ``notes`` stand below, and after them which columns are left out. Those of a column's name stand where it does.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # into a file nothing should be folded away
    odd = next((line for line in lines if len(line) != len(head)), head)
    require(len(odd) == len(head), f"table {title!r}: a row has {len(odd)} cells, and its head {len(head)}: {odd}")
    columns = {name: [line[i] for line in lines] for i, name in enumerate(head)}
    widths = {name: BORDER + max(map(len, [name, *column])) for name, column in columns.items()}
    widths[head[0]] = min(widths[head[0]], BORDER + NAME)  # names are folded, numbers are not
    for name in least:
        if sum(widths[n] for n in columns) >= console.width:
            columns.pop(name, None)
    caption = [notes if isinstance(notes, str) else notes_on(notes, columns)]
    absent = [name for name in head if name not in columns]
    caption += [f"No room here for: {', '.join(absent)}."] if absent else []
    table = Table(title=title, caption=" ".join(caption).strip() or None, caption_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    for line in zip(*columns.values(), strict=True):
        table.add_row(*line)
    console.print(table)


def notes_on(notes: Mapping[str, str], columns: Iterable[str]) -> str:
    """The notes on those columns that are there."""
    there = set(columns)
    return " ".join(note for name, note in notes.items() if name in there)


# -- figures of a method, over the lines of its runs ------------------------------


def measure_of(arm: Arm) -> str:
    """The measure that a model is judged by: "accuracy", or "dice" where pictures were segmented."""
    return (
        "dice"
        if any("dice" in line or "client_dice" in line for run in arm.runs for line in run.rounds)
        else "accuracy"
    )


def mean(arm: Arm, name: str) -> float:
    """The mean over seeds of a sum over lines."""
    return statistics.fmean(sum(r[name] for r in run.rounds) for run in arm.runs)


def average(values: Iterable[float | None]) -> float | None:
    """The mean. None where there is no value, or one of them is None: a mean of the others would be of other seeds."""
    all_values = list(values)
    there = [value for value in all_values if value is not None]
    return statistics.fmean(there) if there and len(there) == len(all_values) else None


def last_value(run: RecordedRun, name: str) -> float | None:
    """The newest value of a run's lines; None where none has it."""
    return mean_of_last(run, name, 1)


def mean_of_last(run: RecordedRun, name: str, count: int) -> float | None:
    """The mean of :func:`last_values`; None where there is none, or one of them is no finite number."""
    return average(last_values(run, name, count))


def last_values(run: RecordedRun, name: str, count: int) -> list[float | None]:
    """The last ``count`` values of the lines that have one. None is a value that is NaN or infinite.

    A line that was not evaluated has no value. The training loss of lines in which nobody trained is null: it is none.
    """
    return [r[name] for r in run.rounds if name in r and (name, r[name]) != ("train_loss", None)][-count:]


def best_value(run: RecordedRun, name: str) -> float | None:
    """The highest value of a run's lines; None where none has it."""
    return max((r[name] for r in run.rounds if r.get(name) is not None), default=None)


# -- figures as they are shown ---------------------------------------------------


def share_text(row: Row, x: float | None) -> str:
    """An accuracy in percent; a Dice coefficient as it is."""
    return percent_text(x) if row["measure"] == "accuracy" or x is None else f"{x:.4f}"


def deviation_text(row: Row, x: float) -> str:
    """A deviation of what :func:`share_text` shows, in the same unit."""
    return f"{100 * x:.1f}" if row["measure"] == "accuracy" else f"{x:.4f}"


def loss_text(x: float | None) -> str:
    """Three digits after the point."""
    return "-" if x is None else f"{x:.3f}"


def percent_text(x: float | None) -> str:
    """A share as percent."""
    return "-" if x is None else f"{100 * x:.1f} %"


def megabytes_text(x: float) -> str:
    """Bytes as megabytes, of 10^6 bytes."""
    if 0 < x < 1e5:  # more digits of what is less than .1 MB: of less than a kB all
        return f"{x / 1e6:.{4 if x >= 1e3 else 6}f}"
    return f"{x / 1e6:.2f}" if x < 1e8 else f"{x / 1e6:,.0f}"


def seconds_text(x: float) -> str:
    """Seconds, without a unit."""
    return f"{x:.1f}" if x < 100 else f"{x:,.0f}"


# -- figures in words ------------------------------------------------------------


def join_words(words: Sequence[str]) -> str:
    """Words with commas and "and"; of more than six the first six, and how many more there are."""
    shown = [*words[:6], *([f"{len(words) - 6} more"] if len(words) > 6 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def short_expression(text: str | None) -> str | None:
    """An expression without what it leaves at its default, where it can be read."""
    try:
        return None if text is None else repr(parse(text, names=vocabulary()))
    except ValueError:
        return text
