"""``thinwire look ...``: what happened in a run, and what a server sees of a client.

Each command prints a table, writes its figures into ``--out`` (the run's own folder ``look``), and with ``--json`` ends
with one object that has all that the figures show. The commands are the rows of :data:`thinwire.look.LOOKS`, and their
options the fields of the looks: there is no look's name in this file.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import RunError
from ..look import LOOKS, load
from .app import app
from .command import command, options_with, parameter, parameters
from .options import Folders, Json, folder, print_json

if TYPE_CHECKING:
    from ..look.base import Look

look = typer.Typer(no_args_is_help=True, help="Look at what a run recorded, and at what a server sees of a client.")
app.add_typer(look, name="look")

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="A study, or a single run.")]
PLACES: dict[str, list[inspect.Parameter]] = {
    "run": [parameter("folder", Dir)],
    "study": [parameter("folder", Dir)],
    "studies": [parameter("folders", Folders)],
    "nothing": [],
}


def add(place: str, line: str) -> None:
    """The command of a look. Its module is imported when the command is called, or asked for its own ``--help``."""

    def options() -> list[Any]:
        cls = load(place)
        text, default = cls.out
        kind: Any = Path | None if default is None else Path
        out = parameter("out", Annotated[kind, typer.Option(help=text, callback=folder)], default)
        own, json = [*PLACES[cls.subject], *parameters(cls)], parameter("as_json", Json, False)
        flags = [own.pop()] if own[-1].default is False else []  # a flag at the end stands beside --json
        return options_with([*own, out, *flags, json])

    def more() -> str:
        return "" if load(place).subject == "nothing" else str(inspect.getdoc(load(place)))

    def call(**given: Any) -> None:
        cls = load(place)
        values = {one.name: given[one.name] for one in fields(cls) if given[one.name] is not None}
        made = cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
        typed = given.get("folders") or [given[name] for name in ("folder",) if name in given]
        folders, out = [Path(path) for path in typed], None if given["out"] is None else Path(given["out"])
        if cls.subject == "run":
            answer_each(made, folders[0], out, given["as_json"])
        else:
            answer(made, folders, out, given["as_json"])

    call.__doc__ = line
    command(place.partition(":")[0], options, look, more)(call)


def answer_each(look: Look[Any], folder: Path, out: Path | None, as_json: bool) -> None:
    """Every run below a folder.

    Of a study a run that has nothing to look at is passed over with its reason, on stderr. Where that is so of all and
    for one reason, the reason is the error, and nothing else is said.
    """
    from ..studies.read import arms

    runs = [(arm.label, run) for arm in arms([folder]) for run in arm.runs]
    results, files = dict[str, Any](), list[Path]()
    reasons, untold = set[str](), list[str]()  # why runs are passed over; what is not said until one is not
    for label, run in runs:
        name = str(run.path.relative_to(folder)) if run.path != folder else "."
        reading: Any = None  # that of the run before is not kept while this one's is made
        try:
            reading = look.read(run)
            if len(runs) > 1:
                tell(untold)
                typer.echo(f"{name}: {label}")
            drawn = show(look, reading, run.path / "look" if out is None else out / name if len(runs) > 1 else out)
            values = look.values(reading) if as_json else {}
        except (RunError, ValueError) as error:
            reasons.add(str(error).replace(str(run.path), str(folder)))
            untold.append(f"{name} is passed over: {error}")
            continue
        files += drawn
        results[name] = values
    if not results and len(reasons) == 1:
        raise RunError(reasons.pop())
    tell(untold)
    if not results:
        raise RunError(f"{folder}: each of its runs is passed over, for the reason above")
    end(as_json, {"runs": results}, files)


def answer(look: Look[Any], folders: list[Path], out: Path | None, as_json: bool) -> None:
    """All methods of studies in one figure, or what needs no run."""
    from ..studies.read import arms

    reading = look.read(arms(folders) if folders else None)
    files = show(look, reading, out or (folders[0] / "look" if folders else None))
    end(as_json, look.values(reading) if as_json else {}, files)


def show(look: Look[Any], reading: Any, into: Path | None) -> list[Path]:
    """Print what was read, and draw it into a folder, where there is one. The files of the figures."""
    from ..look.base import Note, Table
    from ..studies.cells import draw

    for row in look.rows(reading):
        if isinstance(row, Table):
            draw(row.title, row.head, [[str(cell) for cell in cells] for cells in row.cells], ())
        else:
            typer.echo(row, err=isinstance(row, Note))
    return [] if into is None else look.draw(reading, into)


def tell(untold: list[str]) -> None:
    """Say on stderr what has not been said."""
    for line in untold:
        typer.echo(line, err=True)
    untold.clear()


def end(as_json: bool, values: dict[str, Any], files: Sequence[Path]) -> None:
    """The end of an answer: the files, and all numbers where they are asked for."""
    for path in files:
        typer.echo(str(path))
    print_json(as_json, {**values, "files": [str(path) for path in files]})


for place, line in LOOKS.items():
    add(place, line)
