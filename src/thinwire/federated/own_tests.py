"""What clients' own tests say, wherever they lie: with the simulator, or with a client that sends the figures alone.

A client's own model is tested; beside it, where the method gives clients models of their own, the model that all share
(``_shared``), and where that method makes them anew for each use (FT, Per-FedAvg), what they are made of (``_before``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import check, require
from ..params import Params
from ..run.loop import finite
from ..task import Task, as_task
from ..wire import MOST, dumps, loads

Metrics = dict[str, float]
LOW = ("loss", "mae", "perplexity")  # metrics of which less is better
PARTS = ("_spread", "_p10", "_worst")  # of clients, in a record
MANY = 24  # metrics in one answer, at most
NAME = re.compile("[a-z][a-z0-9_]{0,31}")


class Model(NamedTuple):
    """What is tested."""

    x: Params
    statistics: Params | None  # of its norm layers


def as_tests(
    test: Any, client_tests: Sequence[Any] | None, clients: int, kind: torch.dtype
) -> tuple[Task | None, list[Task]]:
    """What all are tested on, and each client, as tasks. Raises ``ValueError`` for too few, and for empty ones."""
    tested = None if test is None else as_task(test, "test", kind)
    apart = [as_task(task, f"client_tests[{client}]", kind) for client, task in enumerate(client_tests or ())]
    require(tested is None or len(tested) > 0, "the test set has no examples")
    require(all(len(task) > 0 for task in apart), "client_tests has a task without examples")
    require(
        client_tests is None or len(apart) == clients, f"client_tests has {len(apart)} entries for {clients} clients"
    )
    return tested, apart


def evaluate_models(
    evaluate: Callable[[Params, Params | None], Metrics], own: Model, before: Model, shared: Model
) -> Metrics:
    """Every metric of a client's test: of its own model, ``_before`` of what that is made of, ``_shared``.

    What is the same object as the one before it is not tested twice: where ``before`` is ``own`` it is left out, and
    so is ``shared``.
    """
    metrics = evaluate(*own)
    known, others = [(own, metrics)], {"_before": before, "_shared": shared}
    for suffix, model in others.items():
        if model.x is own.x and model.statistics is own.statistics:
            continue
        values = next((v for m, v in known if m.x is model.x and m.statistics is model.statistics), None)
        values = evaluate(*model) if values is None else values
        known.append((model, values))
        metrics = metrics | {f"{name}{suffix}": value for name, value in values.items() if name in known[0][1]}
    return metrics


def over_clients(metrics_of: Mapping[int, Metrics], num_clients: int) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """A record's fields, and each client's own values by metric: a list over all clients, None for who has none.

    Of every metric there are the mean over clients, each as good as another, their standard deviation, the tenth
    percentile and the worst client. Of those with a suffix there is the mean.
    """
    values: dict[str, float] = {}
    by_client: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for metrics in metrics_of.values() for name in metrics):
        each = {client: metrics[name] for client, metrics in metrics_of.items() if name in metrics}
        by_client[name] = [finite(each.get(client)) for client in range(num_clients)]
        column = torch.tensor(list(each.values()), dtype=torch.float64, device="cpu")
        values[f"client_{name}"] = float(column.mean())
        if not name.endswith(("_before", "_shared")):
            values[f"client_{name}_spread"] = float(column.std(correction=0))  # over all the clients there are
            values[f"client_{name}_p10"] = float(column.quantile(0.1))
            values[f"client_{name}_worst"] = float(column.max() if name in LOW else column.min())
    return values, by_client


def pack_metrics(metrics: Metrics) -> bytes:
    """Metrics as they travel with an answer; those that are no numbers stay."""
    return dumps({name: value for name, value in metrics.items() if abs(value) <= MOST})


def unpack_metrics(data: bytes) -> Metrics:
    """What :func:`pack_metrics` packed, by a client that may lie. Raises ``WireError``."""
    if not data:
        return {}
    metrics = loads(data, max_depth=1, max_values=2 * MANY + 1)
    check(isinstance(metrics, dict) and len(metrics) <= MANY, f"at most {MANY} metrics")
    for name, value in metrics.items():
        check(isinstance(name, str) and NAME.fullmatch(name) and not name.endswith(PARTS), "the name of a metric")
        check(type(value) is float and abs(value) <= MOST, f"numbers of at most {MOST:.0e} as metrics")
    return dict(metrics)
