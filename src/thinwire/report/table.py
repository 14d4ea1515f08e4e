"""The table of a study: accuracy (of segmented pictures the Dice coefficient) beside the bytes it cost, both ways."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..run.folder import write_atomic
from ..studies import KINDS
from ..studies.cells import (
    Column,
    Row,
    average,
    best_value,
    deviation_text,
    draw,
    mean,
    mean_of_last,
    measure_of,
    notes_on,
    share_text,
)
from ..studies.read import Arm, Record, comparable, not_begun, planned_length, setting


def rows(arms: list[Arm]) -> list[Row]:
    """A row for each method: means over the seeds of :func:`~thinwire.studies.read.comparable`, and their deviation.

    ``seeds_left_out`` are those that are not complete while others are, or have not begun. Shares of bytes are those of
    a method that sends everything and made as many rounds, or steps, in the same setting; else None. Where there is
    none with the same start, one that begins from another may do: its first messages are then in its bytes, or not in
    them. ``times_as_fast``, where there are simulated seconds, refers to the same method.
    """
    kind = KINDS[arms[0].kind]
    table = []
    for arm in arms:
        whole = comparable(arm)
        row = _row(whole, kind.last) | kind.row(whole)
        ahead = {seed for run in arm.runs for seed in not_begun(run).get(run.path.resolve().parent.name, ())}
        left_out = sorted(({run.seed for run in arm.runs} | ahead) - {run.seed for run in whole.runs})
        table.append({**row, "seeds_left_out": left_out})
    alike = [(row[f"{row['unit']}s"], setting(arm.runs[0])) for row, arm in zip(table, arms, strict=True)]
    dense = [
        (row, same) for row, same in zip(table, alike, strict=True) if row["bytes_up"] and kind.plain(row["expression"])
    ]
    for row, own in zip(table, alike, strict=True):
        beside = next((one for one, same in dense if same == own), None) or next(
            (one for one, same in dense if _without_start(same) == _without_start(own)), None
        )
        for way in ("up", "total"):
            row[f"share_{way}"] = row[f"bytes_{way}"] / beside[f"bytes_{way}"] if beside else None
        if "clock" in row:
            row["times_as_fast"] = beside["clock"] / row["clock"] if beside and row["clock"] else None
    return table


def _without_start(alike: tuple[int, Record]) -> tuple[int, Record]:
    """A length and a setting, whichever model clients begin with."""
    length, own = alike
    return length, {name: value for name, value in own.items() if name != "start"}


def _row(arm: Arm, last: int) -> Row:
    measure = measure_of(arm)
    each = [mean_of_last(run, measure, last) for run in arm.runs]
    final, finals = average(each), [value for value in each if value is not None]
    up, down = mean(arm, "up_bytes"), mean(arm, "down_bytes")
    return {
        "method": arm.label,
        "expression": arm.expression,
        "kind": arm.kind,
        "unit": arm.unit,
        "seeds": [run.seed for run in arm.runs],
        f"{arm.unit}s": min(run.length for run in arm.runs),
        f"{arm.unit}s_planned": max((wanted for run in arm.runs if (wanted := planned_length(run))), default=None),
        "complete": all(run.summary is not None for run in arm.runs),
        "measure": measure,
        measure: final,
        f"{measure}_deviation": statistics.stdev(finals) if final is not None and len(finals) > 1 else None,
        f"best_{measure}": average(best_value(run, measure) for run in arm.runs),
        "bytes_up": up,
        "bytes_down": down,
        "bytes_total": up + down,
        "seconds": mean(arm, "seconds"),
    }


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """The columns of rows of one kind, from left to right."""
    first: list[Column] = [
        ("method", _method),
        (rows[0]["measure"], _accuracy),
        ("best", lambda row: share_text(row, row[f"best_{row['measure']}"])),
    ]
    return [*first, *KINDS[rows[0]["kind"]].columns(rows)]


def _method(row: Row) -> str:
    unit, seeds, absent = row["unit"], len(row["seeds"]), len(row["seeds_left_out"])
    done, wanted = row[f"{unit}s"], row[f"{unit}s_planned"]
    short = not row["complete"] or (wanted is not None and done < wanted)
    states = [f"after {unit} {done:,}" + (f" of {wanted:,}" if wanted else "")] if short else []
    states += [f"{seeds} of {seeds + absent} seeds"] if absent else []
    return str(row["method"]) + (f" ({', '.join(states)})" if states else "")


def _accuracy(row: Row) -> str:
    deviation = row[f"{row['measure']}_deviation"]
    return share_text(row, row[row["measure"]]) + ("" if deviation is None else f" ± {deviation_text(row, deviation)}")


def markdown(rows: list[Row]) -> str:
    """The table as a page."""
    columns = columns_of(rows)
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + " --- |" + " ---: |" * (len(columns) - 1)]
    for row in rows:
        first, *rest = (cell(row) for _, cell in columns)
        lines.append("| " + " | ".join([f"`{first}`", *rest]) + " |")
    return "\n".join([*lines, "", notes_on(KINDS[rows[0]["kind"]].notes, [name for name, _ in columns]), ""])


def latex(rows: list[Row]) -> str:
    """The table as a tabular of LaTeX, for a page with booktabs."""
    columns = columns_of(rows)
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\toprule"]
    lines += [" & ".join(_escape(name) for name, _ in columns) + r" \\", r"\midrule"]
    for row in rows:
        first, *rest = (_escape(cell(row)) for _, cell in columns)
        lines.append(" & ".join([rf"\texttt{{{first}}}", *rest]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def _escape(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def csv(rows: list[Row]) -> str:
    """The rows as comma-separated values, not rounded: bytes, seconds, accuracies from 0 to 1, empty where none is."""
    import csv as library

    flat = [dict(_flat(row)) for row in rows]
    file = io.StringIO()
    writer = library.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue()


def _flat(row: Row) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{name}_{key}", one) for key, one in value.items())
        else:
            yield name, " ".join(map(str, value)) if isinstance(value, list) else value


def show(rows: list[Row], title: str) -> None:
    """The table on the terminal; ``table.md`` has the columns that a narrow one has no room for."""
    columns, kind = columns_of(rows), KINDS[rows[0]["kind"]]
    lines = [[cell(row) for _, cell in columns] for row in rows]
    draw(title, [name for name, _ in columns], lines, kind.least, kind.notes)


def write(rows: list[Row], out: Path, command: str) -> Path:
    """``table.md`` in a study's folder, with the command that made it."""
    path = out / "table.md"
    write_atomic(path, f"{markdown(rows)}\n```\n{command}\n```\n".encode())
    return path
