"""The commands that train a study: ``thinwire run``, ``ddp-sim``, ``pipeline run``, one for each of ``KINDS``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command_name

from ..errors import require
from ..studies import KINDS
from . import typed
from .app import app
from .command import command, open_parameters, options_of, options_with, parameter
from .finish import finish, listener
from .options import Json, LogTo, Out, Overwrite, Seed, Seeds

Resume = Annotated[bool, typer.Option("--resume", help="Train what --out does not have yet.")]


def add_all() -> None:
    """Add the commands of all kinds."""
    for kind in KINDS:
        add(kind)


def add(kind: str) -> None:
    """Add the command of a kind of study to the program, or to the family that its first word names.

    A family that is not there yet begins with it.
    """
    place = KINDS.places[kind]
    *family, name = place.command.split()
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    within = groups.get(family[0]) if family else app
    if within is None:
        within = typer.Typer(no_args_is_help=True)
        app.add_typer(within, name=family[0], help=place.help)

    made = [one.name or get_command_name(getattr(one.callback, "__name__", "")) for one in within.registered_commands]
    there = [*made, *(group.name for group in within.registered_groups)]
    require(name not in there, f"KINDS[{kind!r}]: `thinwire {place.command}` is there already; choose another command")

    def train(**given: Any) -> None:
        _train(KINDS[kind], **given)

    train.__doc__ = place.help
    command(name, lambda: _options(KINDS[kind]), within)(train)


def _options(cls: Any) -> list[Any]:
    """Arguments and options: what is typed for every kind, what is this one's, and the fields of its study."""
    fields = [option for part in (cls, *cls.settings) for option in options_of(part)]
    name, help = cls.asks
    own = [parameter(name, Annotated[list[str], typer.Argument(metavar="EXPR", help=help)])]
    own += open_parameters(cls)
    for name, row in cls.lists.items():
        own.append(parameter(name, Annotated[str | None, typer.Option(help=row.help)], None))
    own += [] if any(option.name == "seed" for option in fields) else [parameter("seed", Seed, 0)]
    own += [parameter("seeds", Seeds, None), parameter("out", Out, Path(cls.out))]
    own += [parameter("overwrite", Overwrite, False)]
    own += [parameter("resume", Resume, False)] if cls.resumes else []
    own += [parameter("log", LogTo, None), parameter("as_json", Json, False)]
    return [*options_with(own), *fields]


def _train(
    cls: Any,
    out: Path,
    overwrite: bool,
    log: Sequence[str] | None,
    as_json: bool,
    resume: bool = False,
    **given: Any,
) -> None:
    """Check a study of a kind, take its folder, and train."""
    from ..run.ranks import barrier, rank

    study, problems = typed.study(cls, given.pop(cls.asks[0]), given), None
    if not resume:
        problem = study.problem(study.seeds[0])
        study, problems = study.as_measured(problem), {study.seeds[0]: problem}
        study.check(problem)
    told = listener(list(log or ()), out)
    if rank() == 0:
        for note in study.hints():
            typer.echo(f"note: {note}", err=True)
        study.claim(out, overwrite, resume)
    barrier()
    finish(study, out, as_json, told, problems)
