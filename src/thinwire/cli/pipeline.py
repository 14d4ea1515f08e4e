"""``thinwire pipeline plan``, and the family that it is of; ``thinwire pipeline run`` is in train.py."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import typed
from .app import app
from .command import command, options_of
from .options import Json, print_json

pipeline = typer.Typer(no_args_is_help=True)
app.add_typer(pipeline, name="pipeline", help="Pipelined training: compare schedules, and plan one.")

MEASURED = ("data", "model", "data_dir", "batch", "parts", "device", "mbit", "latency")  # what a plan is made for


def _options() -> list[Any]:
    from ..studies import Pipelined

    return options_of(Pipelined, "use", *MEASURED)


@command("plan", _options, pipeline)
def plan(
    schedules: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPR]", help="Schedules to show besides those that always are.")
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            help="The places in the chain of modules where parts begin, e.g. 4,9 (default: by measured seconds)."
        ),
    ] = None,
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
    sizes = typed.numbers("shape", shape, "numbers of an example", "3,32,32", int)
    places = typed.numbers("cut", cut, "places in the chain", "4,9", int)
    asked = {name: given[name] for name in MEASURED}
    answer = planner.plan(
        schedules or (), given["use"] or (), micro=micro, shape=sizes, classes=classes, cut=places, **asked
    )
    if not as_json:
        planner.show(answer)
    print_json(as_json, answer.values())
