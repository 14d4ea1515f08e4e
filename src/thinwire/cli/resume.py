"""``thinwire resume``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .command import command, options_of
from .finish import finish, listener
from .options import Json, LogTo


def _options() -> list[Any]:
    from ..federated.setting import Setting

    return options_of(Setting, "workers")


@command("resume", _options)
def resume(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a study that was stopped.")],
    rounds: Annotated[int | None, typer.Option(help="Train to this many rounds in all.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where data sets lie now.")] = None,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Continue a study of any kind from its checkpoints, bit for bit."""
    from ..studies import load

    study = load(out).but(rounds=rounds, data_dir=data_dir, workers=given["workers"])
    finish(study, out, as_json, listener(log, out))
