"""``thinwire plan``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import require
from .command import command, open_parameters, options_of, options_with
from .options import Json, print_json
from .typed import study as study_of

DATA = ("data", "data_dir", "task", "hf", "text_length", "model", "augment")
OF_STUDY = ("use", *DATA, "clients", "split", "rounds", "unseen")


def _options() -> list[Any]:
    from ..federated.setting import Setting
    from ..studies import Federated

    known = [*options_of(Federated, *OF_STUDY), *options_of(Setting, "sample", "seed", "workers", "device")]
    return [*options_with(open_parameters(Federated)), *known]


@command("plan", _options)
def plan(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPR]", help="Methods to show besides those that always are.")
    ] = None,
    budget: Annotated[float, typer.Option(help="The share of FedAvg's bytes that Auto may take.")] = 0.01,
    mbit: Annotated[float, typer.Option(help="Rate of every client's link, Mbit/s, from the server.")] = 1.0,
    mbit_up: Annotated[float | None, typer.Option(help="Its rate to the server (default: the same).")] = None,
    local: Annotated[
        str | None, typer.Option(help="How clients train, e.g. LocalAdamW(0.001) (default: as in the first EXPR).")
    ] = None,
    target: Annotated[float | None, typer.Option(help="An accuracy to reach, e.g. 0.77.")] = None,
    rehearse: Annotated[int, typer.Option(help="Rounds that each alternative really trains.")] = 3,
    as_json: Json = False,
    **given: Any,
) -> None:
    """What methods would cost on slow links: bytes, seconds, accuracy after some rounds, and what to type."""
    from ..studies import Federated
    from ..studies import plan_federated as alternatives

    require(0 < budget <= 1, f"--budget {budget}: it is a share of FedAvg's bytes, above 0 and at most 1")
    if methods and local is None:
        study_of(Federated, methods, given)  # raises where they leave nothing open for an option: they say how to train
    auto = f"Auto({budget})" if local is None else f"Auto({budget}, local={local})"
    study = study_of(Federated, [auto, *(methods or ())], given)
    problem = study.problem(study.setting.seed)
    first, *others = study.parse_methods()
    names = [name for name in (*OF_STUDY, "sample", "seed") if name in given["typed"]]
    words = [word for name in names for word in _words(name, given[name])]
    answer = alternatives.plan(
        study,
        problem,
        auto=first,
        local=next((method.local for method in others), None) if local is None else None,
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
