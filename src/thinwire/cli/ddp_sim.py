"""``thinwire ddp-sim``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import typed
from .command import command, options_of
from .finish import finish, listener
from .options import Decay, Json, LogTo, Out, Overwrite, Seed, Seeds


def _options() -> list[Any]:
    from ..studies import DataParallel

    return options_of(DataParallel)


@command("ddp-sim", _options)
def ddp_sim(
    methods: Annotated[
        list[str], typer.Argument(metavar="EXPR", help='Methods, e.g. "DEF(ratio=64)" "Hook(Dense())".')
    ],
    decay: Decay = None,
    seed: Seed = 0,
    seeds: Seeds = None,
    out: Out = Path("runs/ddp"),
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Train what --out does not have yet.")] = False,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Data-parallel methods by logical workers of one process, exactly; table, logs and plots in --out."""
    from ..studies import DataParallel

    listed = {"decay": typed.decay(decay), "seeds": typed.seeds(seeds, seed)}
    study = typed.study(DataParallel, methods, {**given, **listed})
    problems = None if resume else {study.seeds[0]: study.check()}
    told = listener(log, out)
    study.claim(out, overwrite, resume)
    finish(study, out, as_json, told, problems)
