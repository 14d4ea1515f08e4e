"""What tables are made of: lines of results, and the text of cells.

A table is a function without arguments, marked by :func:`table`, that returns the lines of a Markdown table.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Line = dict[str, Any]
TABLES: dict[str, Callable[[], list[str]]] = {}


class Missing(Exception):
    """There are no results for a table; the message is the command that makes them."""


def table(made: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """A function is the table of its name, with - for _."""
    TABLES[made.__name__.replace("_", "-")] = made
    return made


@dataclass(frozen=True)
class Results:
    """The lines of a file, and the command that makes those that are missing."""

    lines: list[Line]
    command: str

    def all(self, **fields: Any) -> list[Line]:
        """The lines with these fields; :class:`Missing` without one."""
        found = [line for line in self.lines if all(line.get(name) == value for name, value in fields.items())]
        if not found:
            raise Missing(self.command)
        return found

    def of(self, **fields: Any) -> Line:
        """The last line with these fields."""
        return self.all(**fields)[-1]


def read(path: str, command: str) -> Results:
    """A file of results, without the lines of the smallest size."""
    file = ROOT / path
    if not file.exists():
        raise Missing(command)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return Results([line for line in lines if not line.get("tiny")], command)


def of_best_rate(lines: Iterable[Line]) -> dict[tuple[str, str], list[Line]]:
    """By setting and row, those of its best rate, and of the method that was trained last at it.

    The best rate is the one where most seeds did not diverge, and of several such where these reached most on average.
    """
    found: dict[tuple[str, str], dict[Any, list[Line]]] = {}
    for line in lines:
        rates = found.setdefault((line["setting"]["name"], line["row"]), {})
        rates.setdefault(line.get("rate"), []).append(line)

    def last(some: list[Line]) -> list[Line]:
        return [line for line in some if line.get("expression") == some[-1].get("expression")]

    def did(some: list[Line]) -> tuple[int, float]:
        ended = {line["seed"]: line["accuracy_mean_of_last_5"] for line in some if "diverged" not in line}
        return len(ended), sum(ended.values())

    return {row: max(map(last, rates.values()), key=did) for row, rates in found.items()}


def processor(line: Line) -> str:
    """What a line was measured on, in few words: Intel Xeon."""
    return str(line["processor"]).replace("(R)", "").replace(" Processor", "")


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]], left: Iterable[int] = (0,)) -> list[str]:
    """Lines of a table whose columns are on the right but for those of ``left``."""
    names = list(head)
    align = [" --- " if i in left else " ---: " for i in range(len(names))]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(align)}|"]
    return [re.sub(r" {2,}", " ", line) for line in [*lines, *(f"| {' | '.join(row)} |" for row in rows)]]


def percent(x: float | None) -> str:
    """``77.2 %``; nothing for None."""
    return "" if x is None else f"{100 * x:.1f} %"


def mean(values: Iterable[float]) -> str:
    """Percent, with the standard deviation of several."""
    each = list(values)
    spread = f" ± {100 * statistics.stdev(each):.1f}" if len(each) > 1 else ""
    return f"{100 * statistics.mean(each):.1f}{spread} %"


def number(x: float, digits: int = 3) -> str:
    """To three digits, all before the point, none before it that is 0."""
    decimals = 0 if x >= 100 else 1 if x >= 10 else 2
    text = f"{x:,.{min(decimals, digits - 1)}f}"
    return text[1:] if text.startswith("0.") else text


def ends(line: Line) -> list[str]:
    """The best accuracy and that at the end."""
    return [percent(line["best_accuracy"]), percent(line["accuracy"])]


def sent(*lines: Line) -> list[str]:
    """MB up and down, the means of several lines."""
    return [number(statistics.mean(line[f"bytes_{way}"] for line in lines) / 1e6) for way in ("up", "down")]
