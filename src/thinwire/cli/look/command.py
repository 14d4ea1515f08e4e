"""What the commands of ``thinwire look`` share: their options, and how they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ...errors import RunError
from ..app import app
from ..options import folder, print_json

look = typer.Typer(no_args_is_help=True, help="Look at what a run recorded, and at what a server sees of a client.")
app.add_typer(look, name="look")

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="A study, or a single run.")]
Out = Annotated[
    Path | None, typer.Option(help="A folder for the figures (default: `look` in each run's folder).", callback=folder)
]
Data = Annotated[str, typer.Option(help="A data set of `thinwire run`.")]
DataDir = Annotated[str | None, typer.Option(help="Where data sets lie (else THINWIRE_DATA, a cache, or a download).")]
Task = Annotated[str | None, typer.Option(help="my_module:make_task instead of --data and --model.")]
Own = Annotated[
    str | None,
    typer.Option("--task", help="my_module:make_task: model and data of a run in no study, as `simulate` leaves it."),
]
Squares = Annotated[
    bool, typer.Option("--squares", help="Shares of the squared singular values, in place of the paper's values.")
]


T = TypeVar("T")


def each(
    folder: Path,
    out: Path | None,
    as_json: bool,
    read: Callable[[Any], T],
    show: Callable[[Any, T, Path], dict[str, Any]],
) -> None:
    """Every run below a folder: ``read`` takes from it what is looked at, and ``show`` prints and draws that.

    Of a study a run that has nothing to look at is passed over with its reason, on stderr. Where that is so of all and
    for one reason, the reason is the error, and nothing else is said.
    """
    from ...studies.read import arms

    runs = [(arm.label, run) for arm in arms([folder]) for run in arm.runs]
    results, drawn = dict[str, Any](), list[Path]()
    reasons, untold = set[str](), list[str]()  # why runs are passed over; what is not said until one is not
    for label, run in runs:
        name = str(run.path.relative_to(folder)) if run.path != folder else "."
        try:
            found = read(run)
            if len(runs) > 1:
                _tell(untold)
                typer.echo(f"{name}: {label}")
            shown = show(run, found, run.path / "look" if out is None else out / name if len(runs) > 1 else out)
        except (RunError, ValueError) as error:
            reasons.add(str(error).replace(str(run.path), str(folder)))
            untold.append(f"{name} is passed over: {error}")
            continue
        drawn += shown.pop("figures")
        results[name] = shown
    if not results and len(reasons) == 1:
        raise RunError(reasons.pop())
    _tell(untold)
    if not results:
        raise RunError(f"{folder}: each of its runs is passed over, for the reason above")
    said(as_json, {"runs": results}, drawn)


def _tell(untold: list[str]) -> None:
    """Say on stderr what has not been said."""
    for line in untold:
        typer.echo(line, err=True)
    untold.clear()


def said(as_json: bool, found: dict[str, Any], drawn: Sequence[Path]) -> None:
    """The end of an answer: the files, and all numbers where they are asked for."""
    for path in drawn:
        typer.echo(str(path))
    print_json(as_json, {**found, "files": [str(path) for path in drawn]})


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on the terminal."""
    from ...studies.cells import draw

    draw(title, head, [[str(cell) for cell in row] for row in rows], ())


def short(x: float | None) -> str:
    """A number with three digits, as tables have it."""
    return "-" if x is None else f"{x:.3g}"


def number(x: Any) -> Any:
    """As JSON has it: null for a PSNR without an error."""
    return None if isinstance(x, float) and not math.isfinite(x) else x
