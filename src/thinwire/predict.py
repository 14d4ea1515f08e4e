"""Bytes and seconds of a run before it is trained.

One client really trains for a few rounds on its real data, and its messages are really
encoded; the run's total follows from how many such messages it has. A link that looks back
may send anything between a whole update and a scalar: then the prediction is a range, from
the size of an update that repeats itself to that of one that does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from .algorithms.base import Algorithm
from .errors import require
from .key import Key
from .network import transfer
from .params import Params
from .problem import Problem
from .run.simulate import Simulation
from .wire import dumps

PROBES = 3  # rounds really trained


@dataclass(frozen=True)
class Prediction:
    """Bytes of one client's messages, headers included, and what a whole run comes to."""

    method: str
    first_up: int
    later_up: tuple[int, int]  # lowest, highest
    first_down: int
    later_down: int
    bytes_up: tuple[int, int]
    bytes_down: tuple[int, int]
    seconds: tuple[float, float]  # of transfer alone


def predict(
    algorithm: Algorithm, problem: Problem, rounds: int, sample: int | None, mbit: float = 10.0, seed: int = 0
) -> Prediction:
    """What ``rounds`` rounds of ``sample`` clients would cost on links of ``mbit`` Mbit/s, equal both ways."""
    require(rounds > 0, f"rounds={rounds}: it must be at least 1")
    require(mbit > 0, f"mbit={mbit}: a rate must be positive")
    clients = len(problem.tasks)
    sample = sample or clients
    require(sample <= clients, f"sample={sample} is more than the {clients} clients")
    probe = Simulation(algorithm, problem.model, problem.tasks[:1], seed=seed, workers=1)
    with probe.pool:
        before = algorithm.model(probe.server)
        records = [probe.step(evaluate=False)]
        update = algorithm.model(probe.server) - before
        records += [probe.step(evaluate=False) for _ in range(PROBES - 1)]
    up, down = [r["up_bytes"] for r in records], [r["down_bytes"] for r in records]
    repeated = _repeated(probe, update) + records[-1]["up_framing"]
    later = (min(up[1:]), max(up[1:]))
    if _looks_back(probe):
        later = (min(later[0], repeated), max(later[1], up[0]))
    replies = rounds * sample
    first = min(clients, replies)  # each client has one first reply, if all are sampled at some time
    fewest = min(sample, clients)  # the same clients every round
    total_up = _totals(up[0], later, replies, (fewest, first))
    total_down = _totals(down[0], (down[-1], down[-1]), replies, (fewest, first))
    seconds = [transfer(up[0] + down[0], mbit) + (rounds - 1) * transfer(size + down[-1], mbit) for size in later]
    return Prediction(
        method=repr(algorithm),
        first_up=up[0],
        later_up=later,
        first_down=down[0],
        later_down=down[-1],
        bytes_up=total_up,
        bytes_down=total_down,
        seconds=(seconds[0], seconds[1]),
    )


def _totals(first: int, later: tuple[int, int], replies: int, newcomers: tuple[int, int]) -> tuple[int, int]:
    """Lowest and highest sum of ``replies`` messages, of which the first of each newcomer has its own size."""
    sums = [n * first + (replies - n) * size for n in newcomers for size in later]
    return min(sums), max(sums)


def _looks_back(probe: Simulation) -> bool:
    """Whether what is sent depends on what was sent before."""
    return any(leaf.link is not None and leaf.link.memory for leaf in probe.up.leaves)


def _repeated(probe: Simulation, update: Params) -> int:
    """Bytes of a reply whose every field is the same as in the one before."""
    form, (tx, _) = probe.up, probe.up.open()
    fits = [isinstance(leaf.blank, Params) and leaf.blank.layout == update.layout for leaf in form.leaves]
    values = [update if fit else leaf.blank for fit, leaf in zip(fits, form.leaves, strict=True)]
    for round in (1, 2):
        body, _, tx = form.send(values, tx, Key(probe.seed, round, 0))
    return len(dumps(body))


def show(predictions: list[Prediction], rounds: int, sample: int, mbit: float) -> None:
    """The predictions as a table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{rounds} rounds of {sample} clients, links of {mbit:g} Mbit/s, transfer alone")
    for i, name in enumerate(("method", "B up, first", "B up, later", "B down", "MB up", "MB down", "seconds")):
        table.add_column(name, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    for p in predictions:
        table.add_row(
            p.method,
            f"{p.first_up:,}",
            _range(*(f"{n:,}" for n in p.later_up)),
            f"{p.later_down:,}",
            _range(*(f"{n / 1e6:.2f}" for n in p.bytes_up)),
            _range(*(f"{n / 1e6:.2f}" for n in p.bytes_down)),
            _range(*(f"{s:.1f}" for s in p.seconds)),
        )
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
