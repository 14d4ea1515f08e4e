"""``thinwire predict`` and ``thinwire ddp-predict``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .command import command, open_parameters, options_of, options_with
from .options import Json, Methods, print_json
from .typed import study as study_of


def _options() -> list[Any]:
    from ..federated.setting import Setting
    from ..studies import Federated

    known = options_of(Federated, "use", "data", "model", "task", "clients", "split", "rounds", "data_dir")
    return [*options_with(open_parameters(Federated)), *known, *options_of(Setting, "sample", "seed", "start")]


@command("predict", _options)
def predict(
    methods: Methods,
    mbit: Annotated[float, typer.Option(help="Rate of every client's link, Mbit/s, both ways.")] = 10.0,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Bytes and seconds of a federated run before it is trained, from messages that are really encoded."""
    from ..studies import Federated
    from ..studies.predict import Rehearsal, show

    study = study_of(Federated, methods, given)
    rounds, sample, seed, start = study.rounds, study.setting.sample, study.setting.seed, study.setting.start
    problem = study.problem(seed)
    rehearsal = Rehearsal(problem, rounds, sample, mbit, seed, start)
    predictions = [rehearsal.predict(method) for method in study.parse_methods()]
    show(predictions, rounds, sample or len(problem.tasks), mbit)
    print_json(as_json, {"predictions": [vars(p) for p in predictions]})


def _options_of_ranks() -> list[Any]:
    from ..studies import DataParallel

    return options_of(DataParallel, "use", "data", "model", "task", "workers", "data_dir")


@command("ddp-predict", _options_of_ranks)
def ddp_predict(methods: Methods, as_json: Json = False, **given: Any) -> None:
    """Bytes of data-parallel methods before anything is trained, from messages that are really encoded."""
    from ..studies import DataParallel
    from ..studies.predict_ranks import rehearse, show

    study = study_of(DataParallel, methods, given)
    exchanges = rehearse(study.parse_methods(), study.problem(0), study.workers)
    show(exchanges, study.workers)
    print_json(as_json, {"exchanges": [vars(one) for one in exchanges]})
