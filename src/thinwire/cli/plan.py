"""``thinwire plan``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .command import command, options_of
from .options import Batch, Epochs, Json, Rate, print_json
from .typed import study as study_of


def _options() -> list[Any]:
    from ..federated.setting import Setting
    from ..studies import Federated

    of = ("use", "data", "model", "augment", "task", "clients", "split", "rounds", "unseen", "data_dir")
    return [*options_of(Federated, *of), *options_of(Setting, "sample", "seed", "workers", "device")]


@command("plan", _options)
def plan(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPR]", help="Methods to show besides those that always are.")
    ] = None,
    budget: Annotated[float, typer.Option(help="The share of FedAvg's bytes that Auto may take.")] = 0.01,
    mbit: Annotated[float, typer.Option(help="Rate of every client's link, Mbit/s, from the server.")] = 1.0,
    mbit_up: Annotated[float | None, typer.Option(help="Its rate to the server (default: the same).")] = None,
    target: Annotated[float | None, typer.Option(help="An accuracy to reach, e.g. 0.77.")] = None,
    rehearse: Annotated[int, typer.Option(help="Rounds that each alternative really trains.")] = 3,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """What methods would cost on slow links: bytes, seconds, accuracy after some rounds, and what to type."""
    from ..studies import Federated
    from ..studies import plan_federated as alternatives

    auto = f"Auto({budget})"
    study = study_of(Federated, [auto, *(methods or ())], {**given, "lr": lr, "epochs": epochs, "batch": batch})
    problem = study.problem(study.setting.seed)
    names = [p.name for p in _options() if p.name in given["typed"] and p.name not in ("workers", "device")]
    words = [word for name in names for word in _words(name, given[name])]
    answer = alternatives.plan(
        study,
        problem,
        auto=study.parsed()[0],
        mbit=mbit,
        mbit_up=mbit_up,
        target=target,
        rehearse=rehearse,
        typed=words,
    )
    if not as_json:
        alternatives.show(answer)
    print_json(as_json, answer.values())


def _words(name: str, value: Any) -> list[str]:
    """An option as it was typed: several times, where it has several values."""
    several = value if isinstance(value, list | tuple) else [value]
    return [word for one in several for word in (f"--{name.replace('_', '-')}", str(one))]
