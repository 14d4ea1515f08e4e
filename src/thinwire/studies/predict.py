"""Bytes and seconds of a run before it is trained: the run itself, rehearsed.

One client really trains once, on its real data. Then every round is gone through with the
clients that will be sampled and messages that are really encoded, but each client is told
the change that this one training made instead of training. A link that looks back sends
anything between a whole update and a scalar: then the run is rehearsed twice, with changes
that repeat themselves and with changes of which no two have a direction in common (their
signs are drawn anew each time), and the prediction is the range between the two.

Of a link whose messages are as long as their layers say, the prediction is exact. Where the length depends on what is
in a message (QSGD, STC, Entropy, positions), it is about that of the run, whose changes are others: measured on digits,
up to 13 % off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..errors import require
from ..federated.auto_run import Chosen
from ..federated.client import Job, Reply, Round, drawing
from ..federated.ledger import Direction, Ledger
from ..federated.network import Network, transfer
from ..federated.pool import Pool, Work
from ..federated.setting import Setting
from ..federated.simulation import Simulation
from ..federated.stream import View
from ..local import Local, Memory, Trained
from ..params import Params
from ..problem import Problem
from ..train.one import train
from ..train.slot import Slot
from ..train.threads import one_thread
from .cells import draw

Range = tuple[float, float]  # lowest, highest


@dataclass(frozen=True)
class Prediction:
    """Bytes of a message, headers included, and what a whole run comes to: each lowest and highest.

    Both are one number where no link looks back. It is about that of the run where lengths depend on what is sent.
    """

    method: str
    message_up: Range
    message_down: Range
    bytes_up: Range
    bytes_down: Range
    seconds: Range  # of transfer alone, for the slowest client of each round
    per_client: bool = False  # whether each client is sent broadcasts of its own (`down=PerClient(...)`)


def predict(
    algorithm: Algorithm | Auto,
    problem: Problem,
    rounds: int,
    sample: int | None,
    mbit: float = 10.0,
    seed: int = 0,
    start: Literal["sent", "known"] = "sent",
    mbit_up: float | None = None,
) -> Prediction:
    """What ``rounds`` rounds of ``sample`` clients would cost on links of ``mbit`` Mbit/s, equal both ways.

    ``mbit_up`` is the rate from clients to the server, where it is another. Of :class:`Auto` it is what would be chosen
    before round 1, with ``start="known"``.
    ``start`` is that of :class:`~thinwire.federated.setting.Setting`: whether the starting model is sent.
    """
    require(rounds > 0, f"rounds={rounds}: it must be at least 1")
    require(mbit > 0, f"mbit={mbit}: a rate must be positive")
    require(mbit_up is None or mbit_up > 0, f"mbit_up={mbit_up}: a rate must be positive")
    name = repr(algorithm)
    if isinstance(algorithm, Auto):
        network = Network(mbit=mbit_up or mbit, down=mbit)
        algorithm, start = resolved(algorithm, problem, sample, seed, network), "known"
    setting = Setting(sample=sample, seed=seed, workers=1, plan="each", start=start)
    run = _rehearsed(algorithm, problem, rounds, setting, turning=False)
    runs = [run]
    if run.up.memory:
        runs.append(_rehearsed(algorithm, problem, rounds, setting, turning=True))
    ledgers = [run.ledger for run in runs]
    return Prediction(
        name,
        _message(ledgers, "up"),
        _message(ledgers, "down"),
        _range([ledger.bytes("up") for ledger in ledgers]),
        _range([ledger.bytes("down") for ledger in ledgers]),
        _range([_seconds(ledger, mbit, mbit_up) for ledger in ledgers]),
        run.apart,
    )


def resolved(auto: Auto, problem: Problem, sample: int | None, seed: int, network: Network) -> Algorithm:
    """The method that is chosen before round 1."""
    setting = Setting(sample=sample, seed=seed, network=network, workers=1, plan="each")
    with Chosen(auto, problem.model, problem.tasks, setting) as run:
        return run.algorithm


def _seconds(ledger: Ledger, mbit: float, mbit_up: float | None) -> float:
    """Of transfer, for the slowest client of each round."""
    if mbit_up is None:
        return transfer(sum(map(ledger.slowest, ledger.rounds)), mbit)
    rates, total = {"up": mbit_up, "down": mbit}, 0.0
    for number in ledger.rounds:
        sums: dict[int, float] = {}
        for entry in ledger.of(round=number):
            sums[entry.client] = sums.get(entry.client, 0.0) + transfer(entry.total, rates[entry.direction])
        total += max(sums.values(), default=0.0)
    return total


def _rehearsed(algorithm: Algorithm, problem: Problem, rounds: int, setting: Setting, turning: bool) -> Simulation:
    """A run whose clients do not train."""
    run = Simulation(algorithm, problem.model, problem.tasks, setting)
    run.pool.close()
    run.pool = Rehearsal(run.slot, run.pool.work, turning)
    with run.pool, one_thread():
        for _ in range(rounds):
            run.step(evaluate=False)
    return run


class Rehearsal(Pool):
    """A pool that trains its first client, and answers for all others with the change that this made."""

    def __init__(self, slot: Slot, work: Work, turning: bool) -> None:
        super().__init__(slot, 1, work)
        self.slot, self.turning = slot, turning
        self.change: Params | None = None
        self.statistics: Params | None = None

    def rounds(self, jobs: Sequence[Job], view: View, sizes: Sequence[int] | None = None) -> Iterator[Reply]:
        work = self.work
        for job in jobs:
            round = Round(work.algorithm, work.form, *work.turn(view, job))
            while round.request is not None:
                round.take(self._told(round, round.request))
            yield round.reply(self.statistics, 0.0)

    def _told(self, round: Round, request: Local) -> Trained:
        """What comes of a training that does not take place."""
        if self.change is None:
            self.slot.load_buffers(round.buffers)
            with drawing(self.slot, round.task, round.key):
                self.change = train(self.slot, round.task, request, round.draws()).x - request.x
            self.statistics = self.slot.buffers()
        change = self.change
        if self.turning:
            signs = (
                torch.rand(
                    change.flat.numel(),
                    dtype=torch.float32,
                    device="cpu",
                    generator=round.draws().generator("rehearsal"),
                )
                - 0.5
            )
            change = Params(change.layout, change.flat.copysign(signs))
        fewest = self.slot.fewest  # the number of steps is in the answer, and may be a byte longer
        steps, rate = request.trainer.num_steps(len(round.task), fewest), request.trainer.rate(round.key)
        memory = request.memory or Memory((change,) * request.trainer.num_vectors, 0)
        return Trained(request.x + change, steps, 0.0, memory, rate * steps)


def _message(ledgers: Sequence[Ledger], direction: Direction) -> Range:
    return _range([entry.total for ledger in ledgers for entry in ledger.of(direction)])


def _range(values: Sequence[float]) -> Range:
    return min(values), max(values)


def show(predictions: list[Prediction], rounds: int, sample: int, mbit: float) -> None:
    """The predictions as a table on the terminal."""
    lines = [
        [
            p.method,
            _shown(p.message_up, 1, ",.0f"),
            _shown(p.message_down, 1, ",.0f"),
            _shown(p.bytes_up, 1e6, ".2f"),
            _shown(p.bytes_down, 1e6, ".2f"),
            _shown(p.seconds, 1, ".1f"),
        ]
        for p in predictions
    ]
    title = f"{rounds} rounds of {sample} clients, links of {mbit:g} Mbit/s, transfer alone"
    draw(title, ("method", "B a reply", "B a broadcast", "MB up", "MB down", "seconds"), lines, LEAST, ABOUT)


LEAST = ("B a broadcast", "B a reply", "seconds")
ABOUT = (
    "Where the length of a message depends on what is in it (QSGD, STC, Entropy, positions of TopK), figures are about "
    "those of the run."
)


def _shown(range: Range, unit: float, form: str) -> str:
    low, high = (format(value / unit, form) for value in range)
    return low if low == high else f"{low} to {high}"
