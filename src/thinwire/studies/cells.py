"""A table on the terminal, and what is said below it: of runs, of plans and of predictions alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    columns = dict(zip(head, zip(*lines, strict=True), strict=True))
    widths = {name: BORDER + max(map(len, [name, *column])) for name, column in columns.items()}
    widths[head[0]] = min(widths[head[0]], BORDER + NAME)  # names are folded, numbers are not
    for name in least:
        if sum(widths[n] for n in columns) >= console.width:
            columns.pop(name, None)
    caption = [notes if isinstance(notes, str) else noted(notes, columns)]
    absent = [name for name in head if name not in columns]
    caption += [f"No room here for: {', '.join(absent)}."] if absent else []
    table = Table(title=title, caption=" ".join(caption).strip() or None, caption_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    for line in zip(*columns.values(), strict=True):
        table.add_row(*line)
    console.print(table)


def noted(notes: Mapping[str, str], columns: Iterable[str]) -> str:
    """What is said of columns that are there."""
    there = set(columns)
    return " ".join(note for name, note in notes.items() if name in there)
