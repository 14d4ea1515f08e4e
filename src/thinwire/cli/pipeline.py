"""``thinwire pipeline run`` and ``thinwire pipeline plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import typed
from .app import app
from .command import command, options_of
from .finish import finish, listener
from .options import Decay, Json, LogTo, Out, Overwrite, Seed, Seeds, print_json

pipeline = typer.Typer(no_args_is_help=True)
app.add_typer(pipeline, name="pipeline", help="Pipelined training: compare schedules, and plan one.")

Cut = Annotated[
    str | None,
    typer.Option(help="The places in the chain of modules where parts begin, e.g. 4,9 (default: by measured seconds)."),
]
MEASURED = ("data", "model", "data_dir", "batch", "parts", "device", "mbit", "latency")  # what a plan is made for


def _options() -> list[Any]:
    from ..studies import Pipelined

    return options_of(Pipelined)


def _options_of_plan() -> list[Any]:
    from ..studies import Pipelined

    return options_of(Pipelined, "use", *MEASURED)


@command("run", _options, pipeline)
def run(
    schedules: Annotated[
        list[str], typer.Argument(metavar="EXPR", help='Schedules, e.g. "BPK()" "DSP((1,1,0),(4,2,0))" "1F1B(4)".')
    ],
    cut: Cut = None,
    rates: Annotated[str | None, typer.Option(help="A factor of the rate for each part, e.g. 0.5,0.7,1.")] = None,
    forward: Annotated[
        str | None, typer.Option(help="Seconds of a batch at each part, forward, e.g. 0.02,0.03,0.02 (else measured).")
    ] = None,
    backward: Annotated[str | None, typer.Option(help="Seconds of a batch at each part, back (else measured).")] = None,
    decay: Decay = None,
    seed: Seed = 0,
    seeds: Seeds = None,
    out: Out = Path("runs/pipeline"),
    overwrite: Overwrite = False,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Train one model under several schedules; table, logs and plots in --out. Under torchrun each rank has a part."""
    from ..run.ranks import barrier, rank
    from ..studies import Pipelined

    listed = {
        "cut": _places(cut),
        "rates": typed.numbers("rates", rates, "a factor for each part", "0.5,0.7,1"),
        "forward": typed.numbers("forward", forward, "seconds for each part", "0.02,0.03,0.02"),
        "backward": typed.numbers("backward", backward, "seconds for each part", "0.02,0.03,0.02"),
        "decay": typed.decay(decay),
        "seeds": typed.seeds(seeds, seed),
    }
    study = typed.study(Pipelined, schedules, {**given, **listed})
    problem = study.problem(study.seeds[0])
    study = study.settled(problem)
    for method in study.parsed():
        study.rehearse(method, problem)
    told = listener(log, out)
    if rank() == 0:
        study.claim(out, overwrite)
    barrier()
    finish(study, out, as_json, told, {study.seeds[0]: problem})


@command("plan", _options_of_plan, pipeline)
def plan(
    schedules: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPR]", help="Schedules to show besides those that always are.")
    ] = None,
    cut: Cut = None,
    micro: Annotated[int, typer.Option(help="Micro-batches of GPipe, 1F1B and PipeDream-2BW.")] = 4,
    shape: Annotated[
        str | None, typer.Option(help="In place of --data: an example's shape, 3,32,32 or, of texts, 80.")
    ] = None,
    classes: Annotated[int, typer.Option(help="With --shape: classes, or different ids of texts.")] = 10,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Measure a model's parts, and say how long a batch takes under each schedule, and which delays hide the links."""
    from ..studies import plan_pipelined as planner

    if shape is not None and "data" in given["typed"]:
        raise ValueError(f"--shape {shape} is not used with --data: leave one of the two out")
    sizes = typed.integers("shape", shape, "numbers of an example", "3,32,32")
    asked = {name: given[name] for name in MEASURED}
    found = planner.plan(
        schedules or (), given["use"] or (), micro=micro, shape=sizes, classes=classes, cut=_places(cut), **asked
    )
    if not as_json:
        planner.show(found)
    print_json(as_json, found.values())


def _places(cut: str | None) -> tuple[int, ...]:
    return typed.integers("cut", cut, "places in the chain", "4,9")
