"""``thinwire run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from .command import command, options_of
from .finish import finish, listener
from .options import Batch, Epochs, Json, LogTo, Methods, Out, Overwrite, Rate, Seeds
from .typed import federated, refuse_other_clients


def _options() -> list[Any]:
    from ..federated.setting import Setting
    from ..studies import Federated

    return [*options_of(Federated), *options_of(Setting)]


@command("run", _options)
def run(
    methods: Methods,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    seeds: Seeds = None,
    out: Out = Path("runs/latest"),
    overwrite: Overwrite = False,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Train one model with several federated methods on the same split; table, logs and plots in --out."""
    from ..run.ranks import barrier, rank

    study = federated(methods, given, {"lr": lr, "epochs": epochs, "batch": batch}, seeds)
    problem = study.check()
    refuse_other_clients(study, given["typed"], len(problem.tasks))
    told = listener(log, out)
    if rank() == 0:
        for method in study.parsed():
            if study.rounds <= method.warm_up:
                start = f"{method.warms} in its first {method.warm_up} rounds, and --rounds is {study.rounds}"
                typer.echo(f"note: {method!r} {start}", err=True)
        study.claim(out, overwrite)
    barrier()
    finish(study, out, as_json, told, {study.seeds[0]: problem})
