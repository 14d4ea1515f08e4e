"""What the commands of ``thinwire look`` share: their options, and how they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import RunError
from ..app import app
from ..options import print_json

look = typer.Typer(no_args_is_help=True, help="Look at what a run recorded, and at what a server sees of a client.")
app.add_typer(look, name="look")

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="A study, or a single run.")]
Out = Annotated[Path | None, typer.Option(help="A folder for the figures (default: `look` in each run's folder).")]
Data = Annotated[str, typer.Option(help="A data set of `thinwire run`.")]
DataDir = Annotated[str | None, typer.Option(help="Where data sets lie (else THINWIRE_DATA, a cache, or a download).")]
Task = Annotated[str | None, typer.Option(help="my_module:make_task instead of --data and --model.")]
Squares = Annotated[
    bool, typer.Option("--squares", help="Shares of the squared singular values, in place of the paper's values.")
]


def each(folder: Path, out: Path | None, as_json: bool, one: Callable[[Any, Path], dict[str, Any]]) -> None:
    """Every run below a folder. Of a study a run that has nothing to look at is passed over with its reason, on stderr.

    Where that is so of all, the first reason is raised.
    """
    from ...report.read import arms

    runs = [(arm.label, run) for arm in arms([folder]) for run in arm.runs]
    results, refused, drawn = {}, list[Exception](), list[Path]()
    for label, run in runs:
        name = str(run.path.relative_to(folder)) if run.path != folder else "."
        try:
            if len(runs) > 1:
                typer.echo(f"{name}: {label}")
            found = one(run, run.path / "look" if out is None else out / name if len(runs) > 1 else out)
        except (RunError, ValueError) as error:
            if len(runs) > 1:
                typer.echo(f"{name} is passed over: {error}", err=True)
            refused.append(error)
            continue
        drawn += found.pop("figures")
        results[name] = found
    if not results:
        raise refused[0]
    said(as_json, {"runs": results}, drawn)


def said(as_json: bool, found: dict[str, Any], drawn: Sequence[Path]) -> None:
    """The end of an answer: the files, and all numbers where they are asked for."""
    for path in drawn:
        typer.echo(str(path))
    print_json(as_json, {**found, "files": [str(path) for path in drawn]})


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on the terminal."""
    from ...report.table import draw

    draw(title, head, [[str(cell) for cell in row] for row in rows], ())


def short(x: float | None) -> str:
    """A number with three digits, as tables have it."""
    return "-" if x is None else f"{x:.3g}"


def number(x: Any) -> Any:
    """As JSON has it: null for a PSNR without an error."""
    return None if isinstance(x, float) and not math.isfinite(x) else x
