"""The table of a study: accuracy (of segmented pictures the Dice coefficient) beside the bytes it cost, both ways."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..algorithms import FedAvg
from ..config import complete
from ..ddp.methods import Hook
from ..expression import parse
from ..links import Dense
from ..optimizers import SGD
from ..pipeline import BPK
from ..run.folder import write_atomic
from ..studies.cells import draw, noted
from ..studies.read import Arm, Run, chosen, counted, not_begun, planned, read_lines, setting

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]  # what is above it, and a row's cell


@dataclass(frozen=True)
class Form:
    """What the table of one kind of study has of its own."""

    plain: Callable[[str], bool]  # whether a method sends everything: what shares of bytes refer to
    more: Callable[[Arm], Row]  # what a row has besides
    columns: Callable[[Sequence[Row]], tuple[Column, ...]]  # after the best accuracy
    least: tuple[str, ...]  # the columns to leave out of a narrow terminal, these first
    notes: dict[str, str]  # what the name of a column leaves unsaid
    last: int = 1  # evaluations at the end, whose mean a method is judged by


def rows(arms: list[Arm]) -> list[Row]:
    """One row a method: means over the seeds of :func:`~thinwire.studies.read.counted`, and the deviation over them.

    ``seeds_left_out`` are those that are not complete while others are, or have not begun. Shares of bytes are those of
    a method that sends everything and made as many rounds, or steps, in the same setting; else None. ``times_as_fast``,
    where there are simulated seconds, refers to the same method.
    """
    form = FORMS[arms[0].kind]
    found = []
    for arm in arms:
        whole = counted(arm)
        row = _row(whole, form.last) | form.more(whole)
        ahead = {seed for run in arm.runs for seed in not_begun(run).get(run.path.resolve().parent.name, ())}
        left_out = sorted(({run.seed for run in arm.runs} | ahead) - {run.seed for run in whole.runs})
        found.append({**row, "seeds_left_out": left_out})
    alike = [(row[f"{row['unit']}s"], setting(arm.runs[0])) for row, arm in zip(found, arms, strict=True)]
    dense = [
        (row, same) for row, same in zip(found, alike, strict=True) if row["bytes_up"] and form.plain(row["expression"])
    ]
    for row, own in zip(found, alike, strict=True):
        beside = next((one for one, same in dense if same == own), None)
        for way in ("up", "total"):
            row[f"share_{way}"] = row[f"bytes_{way}"] / beside[f"bytes_{way}"] if beside else None
        if "clock" in row:
            row["times_as_fast"] = beside["clock"] / row["clock"] if beside and row["clock"] else None
    return found


def _row(arm: Arm, last: int) -> Row:
    measure = judged(arm)
    finals = [value for run in arm.runs if (value := _ending(run, measure, last)) is not None]
    up, down = mean(arm, "up_bytes"), mean(arm, "down_bytes")
    return {
        "method": arm.label,
        "expression": arm.expression,
        "kind": arm.kind,
        "unit": arm.unit,
        "seeds": [run.seed for run in arm.runs],
        f"{arm.unit}s": min(run.length for run in arm.runs),
        f"{arm.unit}s_planned": max((wanted for run in arm.runs if (wanted := planned(run))), default=None),
        "complete": all(run.summary is not None for run in arm.runs),
        "measure": measure,
        measure: statistics.fmean(finals) if finals else None,
        f"{measure}_deviation": statistics.stdev(finals) if len(finals) > 1 else None,
        f"best_{measure}": _averaged(_best(run, measure) for run in arm.runs),
        "bytes_up": up,
        "bytes_down": down,
        "bytes_total": up + down,
        "seconds": mean(arm, "seconds"),
    }


def judged(arm: Arm) -> str:
    """What a model is judged by: "accuracy", or "dice" where pictures were segmented."""
    return (
        "dice"
        if any("dice" in line or "client_dice" in line for run in arm.runs for line in run.rounds)
        else "accuracy"
    )


def mean(arm: Arm, name: str) -> float:
    """The mean over seeds of a sum over lines."""
    return statistics.fmean(sum(r[name] for r in run.rounds) for run in arm.runs)


def _averaged(values: Iterable[float | None]) -> float | None:
    """The mean of those that there are."""
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _last(run: Run, name: str) -> float | None:
    return _ending(run, name, 1)


def _ending(run: Run, name: str, count: int) -> float | None:
    """The mean of the last ``count`` values that there are."""
    return _averaged([r[name] for r in run.rounds if r.get(name) is not None][-count:])


def _best(run: Run, name: str) -> float | None:
    return max((r[name] for r in run.rounds if r.get(name) is not None), default=None)


# -- federated training -------------------------------------------------------

CLIENTS = tuple(f"client{part}" for part in ("", "_spread", "_p10", "_worst", "_before", "_shared"))
FEW = 10  # clients, each of which has a column
BESIDE = ("served", "predicted")  # what is tested beside the model that all share


def _federated_plain(expression: str) -> bool:
    """FedAvg with nothing compressed."""
    try:
        method = parse(expression)
    except ValueError:
        return False
    return isinstance(method, FedAvg) and (method.opt, method.up, method.down) == (SGD(1.0), Dense(), Dense())


def _federated(arm: Arm) -> Row:
    slowest, measure = mean(arm, "slowest_bytes"), judged(arm)
    own = (name.replace("client", f"client_{measure}") for name in CLIENTS)
    made = [{"seed": run.seed, **each} for run in arm.runs for each in chosen(run)]
    return {
        **{name: _averaged(_last(run, name) for run in arm.runs) for name in own},
        **({"chosen": made} if made else {}),
        **{kind: _averaged(_last(run, f"{kind}_{measure}") for run in arm.runs) for kind in BESIDE},
        "test_loss": _averaged(_last(run, "test_loss") for run in arm.runs),
        "by_client": _each_client(arm, measure),
        "personal_up": _personal(arm, "up"),
        "personal_down": _personal(arm, "down"),
        "floats_up": mean(arm, "up_floats"),
        "network_seconds": {str(rate): slowest * 8 / (rate * 1e6) for rate in (1, 10, 100)},
        "clock": statistics.fmean(run.rounds[-1]["clock"] if run.rounds else 0.0 for run in arm.runs),
    }


def _personal(arm: Arm, way: str) -> float:
    """Of the bytes up or down those of clients' own models, the mean over seeds: 0 of most methods."""
    return statistics.fmean(sum(r.get(f"{way}_personal", 0) for r in run.rounds) for run in arm.runs)


OTHERS = {"before": "before adapting", "shared": "shared model"}
"""Models besides the clients' own ones that their tests are of, and the titles of the columns."""


def _each_client(arm: Arm, measure: str) -> list[float | None] | None:
    """Of few clients with tests of their own, each one's value at the last evaluation, the mean over seeds."""
    paths = [run.path / "clients.jsonl" for run in arm.runs]
    lasts = [
        [line for line in read_lines(path) if line.get("round", 0) <= run.length][-1:]
        for path, run in zip(paths, arm.runs, strict=True)
        if path.exists()
    ]
    each = [line[measure] for lines in lasts for line in lines if measure in line]
    if not each or len(each) < len(paths) or len(each[0]) > FEW or len(set(map(len, each))) > 1:
        return None
    return [_averaged(values) for values in zip(*each, strict=True)]


def _by_client(found: Sequence[Row]) -> bool:
    """Whether clients have tests of their own."""
    return any(_of(row, "client") is not None for row in found)


def _of(row: Row, name: str) -> float | None:
    """A value by what the row is judged by: of "client_worst" that of "client_accuracy_worst"."""
    value: float | None = row[name.replace("client", f"client_{row['measure']}")]
    return value


def _own_tests(row: Row) -> str:
    mean, spread = (_of(row, name) for name in CLIENTS[:2])
    return _value(row, mean) + ("" if spread is None else f" ± {_deviation(row, spread)}")


def _client_columns(found: Sequence[Row]) -> tuple[Column, ...]:
    """A column a client, where there are few in all rows."""
    each = [row["by_client"] for row in found]
    if not all(each) or len({len(values) for values in each}) > 1:
        return ()

    def column(client: int) -> Column:
        return f"client {client}", lambda row: _value(row, row["by_client"][client])

    return tuple(column(client) for client in range(len(each[0])))


def _cell(name: str, row: Row) -> str:
    return _value(row, _of(row, name))


def _federated_columns(found: Sequence[Row]) -> tuple[Column, ...]:
    own: tuple[Column, ...] = (
        ("own tests", _own_tests),
        ("lowest tenth", partial(_cell, "client_p10")),
        ("worst client", partial(_cell, "client_worst")),
        *(
            (title, partial(_cell, f"client_{part}"))
            for part, title in OTHERS.items()
            if any(_of(row, f"client_{part}") is not None for row in found)
        ),
    )
    apart: tuple[Column, ...] = (
        ("own MB up", lambda row: _megabytes(row["personal_up"])),
        ("own MB down", lambda row: _megabytes(row["personal_down"])),
    )
    beside = [kind for kind in BESIDE if any(row[kind] is not None for row in found)]
    loss: tuple[Column, ...] = (("test loss", lambda row: _loss(row["test_loss"])),)
    only = all(row[row["measure"]] is None for row in found) and any(row["test_loss"] is not None for row in found)
    return (
        *(loss if only else ()),
        *((kind, lambda row, kind=kind: _value(row, row[kind])) for kind in beside),
        *((*own, *_client_columns(found)) if _by_client(found) else ()),
        ("MB up", lambda row: _megabytes(row["bytes_up"])),
        ("MB down", lambda row: _megabytes(row["bytes_down"])),
        *(apart if any(row["personal_up"] or row["personal_down"] for row in found) else ()),
        ("up / FedAvg", lambda row: _percent(row["share_up"])),
        ("total / FedAvg", lambda row: _percent(row["share_total"])),
        ("s at 1 Mbit/s", lambda row: _seconds(row["network_seconds"]["1"])),
        ("s at 10", lambda row: _seconds(row["network_seconds"]["10"])),
        ("s at 100", lambda row: _seconds(row["network_seconds"]["100"])),
        ("s here", lambda row: _seconds(row["seconds"])),
        ("M floats up", lambda row: f"{row['floats_up'] / 1e6:.3g}"),
    )


FEDERATED_NOTES = {
    "own tests": "Own tests: the mean over clients of what each one's own model reaches on its own test, ± the "
    "standard deviation over clients.",
    "lowest tenth": "Lowest tenth and worst client: over the clients of a seed the 10th percentile and the lowest, in "
    "the mean over seeds.",
    OTHERS["shared"]: "Shared model: the mean over clients' own tests of the model that all share.",
    OTHERS["before"]: "Before adapting: that of what a client's own model is made of, before it is fine-tuned.",
    "own MB up": "Own MB: of MB up and down those of clients' own models, which the server mixes; the rest is shared.",
    "served": "Served: the model that the server keeps beside the trained one, such as an average.",
    "predicted": "Predicted: what the method makes of an example of no named client, such as by its selector.",
    "MB up": "MB are 10^6 bytes of what was really serialised, headers included, each broadcast once for every "
    "recipient.",
    "s at 1 Mbit/s": "Seconds at a rate are those that the slowest client's bytes take, both ways, with equal links "
    "and no computing.",
    "M floats up": "M floats up is the papers' own count (millions of 32-bit floats' worth of values; positions, masks "
    "and headers count nothing): not bytes.",
}


# -- data-parallel training ---------------------------------------------------


def _data_parallel(arm: Arm) -> Row:
    return {
        "accuracy_x": _averaged(_last(run, "accuracy_x") for run in arm.runs),
        "bytes_reduced": mean(arm, "reduced_bytes"),
        "bytes_gathered": mean(arm, "gathered_bytes"),
        "bytes_per_step": statistics.fmean(
            sum(r["up_bytes"] for r in run.rounds) / max(1, run.length) for run in arm.runs
        ),
    }


def _data_parallel_columns(found: Sequence[Row]) -> tuple[Column, ...]:
    return (
        ("of x", lambda row: _percent(row["accuracy_x"])),
        ("kB a step", lambda row: f"{row['bytes_per_step'] / 1e3:,.2f}"),
        ("MB up", lambda row: _megabytes(row["bytes_up"])),
        ("MB down", lambda row: _megabytes(row["bytes_down"])),
        ("up / Dense", lambda row: _percent(row["share_up"])),
        ("s here", lambda row: _seconds(row["seconds"])),
    )


DATA_PARALLEL_NOTES = {
    "kB a step": "kB (10^3 bytes) a step and MB (10^6) up are what one worker gives to collectives: of an all-reduce "
    "among W workers 2 (W - 1) / W times that crosses each link, of an all-gather W - 1 times.",
    "MB down": "MB down is what it gets back.",
    "of x": "'of x': the accuracy of x, where y is judged.",
}


# -- pipelined training -------------------------------------------------------

LAST = 5  # evaluations, whose mean is the accuracy
BOUNDARIES = 4  # each of which has a column


def _pipelined(arm: Arm) -> Row:
    about = arm.runs[0].about
    by = {f"bytes_{way}": _by_boundary(arm, f"{way}_bytes") for way in ("forward", "backward")}
    clocks = [run.rounds[-1]["clock"] if run.rounds else 0.0 for run in arm.runs]
    return {
        "train_loss": _averaged(_ending(run, "train_loss", LAST) for run in arm.runs),
        "test_loss": _averaged(_ending(run, "test_loss", LAST) for run in arm.runs),
        **by,
        "staleness": about["staleness"],
        "clock": statistics.fmean(clocks),
        "seconds_per_batch": statistics.fmean(c / max(1, run.length) for c, run in zip(clocks, arm.runs, strict=True)),
    }


def _by_boundary(arm: Arm, name: str) -> list[float]:
    """The mean over seeds of a sum over lines, of each boundary between parts."""
    sums = [[sum(each) for each in zip(*(r[name] for r in run.rounds), strict=True)] for run in arm.runs]
    return [statistics.fmean(each) for each in zip(*sums, strict=True)]


def _pipelined_columns(found: Sequence[Row]) -> tuple[Column, ...]:
    boundaries = max(len(row["bytes_forward"]) for row in found)

    def between(part: int) -> Column:
        def cell(row: Row) -> str:
            ways = [row[f"bytes_{way}"] for way in ("forward", "backward")]
            return " + ".join(_megabytes(way[part]) for way in ways) if part < len(ways[0]) else "-"

        return f"MB {part}-{part + 1}", cell

    return (
        ("loss", lambda row: _loss(row["train_loss"])),
        ("test loss", lambda row: _loss(row["test_loss"])),
        ("staleness", lambda row: ", ".join(map(str, row["staleness"]))),
        *(between(part) for part in range(boundaries) if boundaries <= BOUNDARIES),
        ("MB ahead", lambda row: _megabytes(row["bytes_up"])),
        ("MB back", lambda row: _megabytes(row["bytes_down"])),
        ("total / BPK", lambda row: _percent(row["share_total"])),
        ("s a batch", lambda row: _bound("≥", row) + f"{row['seconds_per_batch']:.4g}"),
        ("s by the law", lambda row: _bound("≥", row) + _seconds(row["clock"])),
        ("x BPK", lambda row: _bound("≤", row) + f"{row['times_as_fast']:.2f}" if row["times_as_fast"] else "-"),
        ("s here", lambda row: _seconds(row["seconds"])),
    )


def _bound(sign: str, row: Row) -> str:
    """Before seconds that leave out what a schedule computes besides its parts."""
    return f"{sign} " if row["expression"].startswith("DNI(") else ""


def _pipelined_plain(expression: str) -> bool:
    return expression == complete(BPK())


PIPELINED_NOTES = {
    "loss": f"Accuracy and losses are means of the last {LAST} evaluations.",
    "staleness": "Staleness: batches between a batch's forward pass and the step that it leads to, part by part.",
    "MB ahead": "MB (10^6 bytes) ahead are activations, MB back error gradients, of what was really serialised, "
    "headers included.",
    "MB 0-1": "'0-1' is the boundary between parts 0 and 1, ahead + back.",
    "s by the law": "Seconds by the law are those of the parts' measured times and of the links' rate and latency. "
    "DNI's auxiliary networks take more (≥).",
    "x BPK": "'x BPK': how many times as fast as plain model parallelism.",
}


# -----------------------------------------------------------------------------

FORMS = {
    "federated": Form(
        _federated_plain,
        _federated,
        _federated_columns,
        (
            *(
                "M floats up",
                "own MB down",
                "own MB up",
                "s here",
                "s at 10",
                "s at 100",
                "best",
                "s at 1 Mbit/s",
                "up / FedAvg",
                "total / FedAvg",
            ),
            "lowest tenth",
            *(f"client {client}" for client in reversed(range(FEW))),
        ),
        FEDERATED_NOTES,
    ),
    "data-parallel": Form(
        lambda expression: expression == complete(Hook(Dense())),
        _data_parallel,
        _data_parallel_columns,
        ("s here", "best", "of x", "MB down", "MB up"),
        DATA_PARALLEL_NOTES,
    ),
    "pipelined": Form(
        _pipelined_plain,
        _pipelined,
        _pipelined_columns,
        (
            *("s here", "best", "test loss", "total / BPK", "s by the law", "MB back", "MB ahead"),
            *(f"MB {part}-{part + 1}" for part in reversed(range(BOUNDARIES))),
        ),
        PIPELINED_NOTES,
        LAST,
    ),
}
"""By the kind of the runs."""


def columns_of(found: Sequence[Row]) -> list[Column]:
    """The columns of rows of one kind, from left to right."""
    first: list[Column] = [
        ("method", _method),
        (found[0]["measure"], _accuracy),
        ("best", lambda row: _value(row, row[f"best_{row['measure']}"])),
    ]
    return [*first, *FORMS[found[0]["kind"]].columns(found)]


def _method(row: Row) -> str:
    unit, seeds, absent = row["unit"], len(row["seeds"]), len(row["seeds_left_out"])
    done, wanted = row[f"{unit}s"], row[f"{unit}s_planned"]
    short = not row["complete"] or (wanted is not None and done < wanted)
    states = [f"after {unit} {done:,}" + (f" of {wanted:,}" if wanted else "")] if short else []
    states += [f"{seeds} of {seeds + absent} seeds"] if absent else []
    return str(row["method"]) + (f" ({', '.join(states)})" if states else "")


def _accuracy(row: Row) -> str:
    deviation = row[f"{row['measure']}_deviation"]
    return _value(row, row[row["measure"]]) + ("" if deviation is None else f" ± {_deviation(row, deviation)}")


def _value(row: Row, x: float | None) -> str:
    """An accuracy in percent; a Dice coefficient as it is."""
    return _percent(x) if row["measure"] == "accuracy" or x is None else f"{x:.4f}"


def _deviation(row: Row, x: float) -> str:
    return f"{100 * x:.1f}" if row["measure"] == "accuracy" else f"{x:.4f}"


def _loss(x: float | None) -> str:
    return "-" if x is None else f"{x:.3f}"


def _percent(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:.1f} %"


def _megabytes(x: float) -> str:
    if 0 < x < 1e5:  # more digits of what is less than .1 MB: of less than a kB all
        return f"{x / 1e6:.{4 if x >= 1e3 else 6}f}"
    return f"{x / 1e6:.2f}" if x < 1e8 else f"{x / 1e6:,.0f}"


def _seconds(x: float) -> str:
    return f"{x:.1f}" if x < 100 else f"{x:,.0f}"


def markdown(found: list[Row]) -> str:
    """The table as a page."""
    columns = columns_of(found)
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + " --- |" + " ---: |" * (len(columns) - 1)]
    for row in found:
        first, *rest = (cell(row) for _, cell in columns)
        lines.append("| " + " | ".join([f"`{first}`", *rest]) + " |")
    return "\n".join([*lines, "", noted(FORMS[found[0]["kind"]].notes, [name for name, _ in columns]), ""])


def latex(found: list[Row]) -> str:
    """The table as a tabular of LaTeX, for a page with booktabs."""
    columns = columns_of(found)
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\toprule"]
    lines += [" & ".join(_escaped(name) for name, _ in columns) + r" \\", r"\midrule"]
    for row in found:
        first, *rest = (_escaped(cell(row)) for _, cell in columns)
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


def _escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def csv(found: list[Row]) -> str:
    """The rows as comma-separated values, not rounded: bytes, seconds, accuracies from 0 to 1, empty where none is."""
    import csv as library

    flat = [dict(_flat(row)) for row in found]
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


def show(found: list[Row], title: str) -> None:
    """The table on the terminal; ``table.md`` has the columns that a narrow one has no room for."""
    columns, form = columns_of(found), FORMS[found[0]["kind"]]
    lines = [[cell(row) for _, cell in columns] for row in found]
    draw(title, [name for name, _ in columns], lines, form.least, form.notes)


def write(found: list[Row], out: Path, command: str) -> Path:
    """``table.md`` in a study's folder, with the command that made it."""
    path = out / "table.md"
    write_atomic(path, f"{markdown(found)}\n```\n{command}\n```\n".encode())
    return path
