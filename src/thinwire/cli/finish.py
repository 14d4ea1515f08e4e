"""The end of every command that trains: what is left of a study is run, and shown with a table and plots."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from ..errors import ThinwireError
from .app import INTERRUPTED
from .options import print_json


def listener(tools: list[str] | None, out: Path) -> Any:
    """A listener that hands rounds on to other tools. An error in it is raised before a folder is taken."""
    from ..report.loggers import Log
    from ..run.ranks import rank

    return Log((tools or ()) if rank() == 0 else (), out)


def finish(study: Any, out: Path, as_json: bool, told: Any, problems: dict[int, Any] | None = None) -> None:
    """Run what is left; then table and plots from what is on disk. A method that diverged is an error at the end.

    ``told`` is a :func:`listener`. ``problems`` may hold those of some seeds, built already.
    """
    from ..data.optional import check_there
    from ..report import table
    from ..run.folder import roomy
    from ..run.ranks import rank
    from ..studies.read import arms

    check_there("matplotlib", "drawing", "plots")  # before there is anything to draw; importing it can wait
    speaks = rank() == 0
    watched = sys.stderr.isatty() and speaks
    try:
        with roomy(out, f"`thinwire resume {out}`"), told:
            heard: list[Callable[[str, dict[str, Any]], None]] = [_choice] if speaks else []
            heard += [_log] if speaks and not watched else []
            heard += [told] if told.tools else []
            failures = study.run(out, _each(heard), watched, problems, told.fail)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; `thinwire resume {out}` continues from the last checkpoint", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not speaks:
        return
    if failures and not any(out.rglob("rounds.jsonl")):
        raise ThinwireError("; ".join(failures))
    methods = arms([out])
    rows = table.rows(methods)
    table.show(rows, study.title(methods[0].runs[0].about))
    table.write(rows, out, shlex.join(["thinwire", *sys.argv[1:]]))
    from ..report.plots import plot

    files = plot(methods, out)
    typer.echo(f"table and plots: {out}/table.md, {', '.join(file.name for file in files)}")
    print_json(as_json, {"out": str(out), "rows": rows, "failures": failures})
    if failures:
        raise ThinwireError("; ".join(failures))


def _each(heard: list[Callable[[str, dict[str, Any]], None]]) -> Callable[[str, dict[str, Any]], None] | None:
    """A listener that tells several others."""

    def tell(name: str, record: dict[str, Any]) -> None:
        for one in heard:
            one(name, record)

    return tell if heard else None


def _choice(name: str, record: dict[str, Any]) -> None:
    """Say what a run chose, as it is typed, and why."""
    if (made := record.get("chosen")) is not None:
        how, why = f'"{made["expression"]}" --start {made["start"]}', "".join(f"\n  {one}" for one in made["why"])
        typer.echo(f"{name} from round {made['round']}: {how}{why}", err=True)


def _log(name: str, record: dict[str, Any]) -> None:
    """A line now and then, where nobody watches: of every tenth round, and of all evaluations of steps."""
    from ..studies.read import number_of

    unit, made = number_of(record)
    if unit != "round" or made % 10 == 0 or made == 1:
        measures = [name for name in ("accuracy", "dice") if record.get(name) is not None]
        shown = "".join(f" {name} {record[name]:.3f}" for name in measures)
        typer.echo(f"{name} {unit} {made}{shown} up {record['up_bytes']} B", err=True)
