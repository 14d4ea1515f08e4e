"""Bytes and seconds of a run before it is trained: the run itself, rehearsed.

One client really trains once, on its real data. Then every round is gone through with the
clients that will be sampled and messages that are really encoded, but each client is told
the change that this one training made instead of training. A link that looks back, or a method
that does (ClusteredLBGM), sends anything between a whole update and a scalar: then the run is
rehearsed twice, with changes that repeat themselves and with changes of which no two have a
direction in common (their signs are drawn anew each time), and the prediction is the range
between the two.

Of a link whose messages are as long as their layers say, the prediction is exact. Where the length depends on what is
in a message (QSGD, STC, Entropy, positions), it is about that of the run, whose changes are others: measured on digits,
up to 13 % off. Which layers LUAR recycles, and which entries PruneFL keeps, depends on the changes too, and on what is
drawn: where layers differ much in size a run may send a fifth more or less than is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import nn

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..federated.auto_run import Chosen
from ..federated.client import Job, Reply, Round, drawing
from ..federated.ledger import Direction, Ledger
from ..federated.network import Network, transfer
from ..federated.pool import Pool, Work
from ..federated.result import Result
from ..federated.setting import Setting
from ..federated.simulate import simulate
from ..federated.simulation import Simulation
from ..federated.stream import View
from ..key import Key
from ..local import Local, Memory, Trained
from ..params import Params
from ..problem import Problem
from ..ranges import Count, Mbit, check_ranges, of_argument
from ..task import Task, as_tasks
from ..train.one import train
from ..train.slot import Slot, floats, make_module
from ..train.threads import one_thread
from .cells import draw, megabytes_text

Range = tuple[float, float]  # lowest, highest


@dataclass(frozen=True)
class Prediction:
    """Bytes of a message, headers included, and what a whole run comes to: each lowest and highest.

    Both are one number where neither a link nor the method looks back. It is about that of the run where lengths
    depend on what is sent.
    """

    method: str
    message_up: Range
    message_down: Range
    bytes_up: Range
    bytes_down: Range
    seconds: Range  # of transfer alone, for the slowest client of each round
    per_client: bool = False  # whether each client is sent broadcasts of its own (`down=PerClient(...)`)


@dataclass(frozen=True)
class Rehearsal:
    """A problem and the links that runs of it are rehearsed for: made once, and asked of one method after another.

    Runs have ``rounds`` rounds of ``sample`` clients (None: all) each. ``mbit`` is the rate of every client's link in
    Mbit/s, both ways. ``mbit_up`` is that to the server, where it is another. ``start`` is that of
    :class:`~thinwire.federated.setting.Setting`: whether the starting model is sent. Raises ``ValueError`` for what
    cannot be.
    """

    problem: Problem
    rounds: Count
    sample: int | None
    mbit: Mbit = 10.0
    seed: int = 0
    start: Literal["sent", "known"] = "sent"
    mbit_up: Mbit | None = None

    def __post_init__(self) -> None:
        check_ranges(type(self), vars(self), of_argument)

    def predict(self, algorithm: Algorithm | Auto) -> Prediction:
        """The cost of a run; of :class:`Auto` that of what would be chosen before round 1, with ``start="known"``."""
        setting = Setting(sample=self.sample, seed=self.seed, workers=1, plan="each", start=self.start)
        name = repr(algorithm)
        if isinstance(algorithm, Auto):
            setting = replace(setting, start="known")
            algorithm = self.choose(algorithm, setting).algorithm
        run = self._rehearse(algorithm, setting, turning=False)
        runs = [run, *([self._rehearse(algorithm, setting, turning=True)] if _looks_back(run) else [])]
        ledgers = [run.ledger for run in runs]
        return Prediction(
            name,
            _message(ledgers, "up"),
            _message(ledgers, "down"),
            _range([ledger.bytes("up") for ledger in ledgers]),
            _range([ledger.bytes("down") for ledger in ledgers]),
            _range([self._seconds(ledger) for ledger in ledgers]),
            run.apart,
        )

    @cached_property
    def module(self) -> nn.Module:
        """The model with which every run begins."""
        model = self.problem.model
        return model if isinstance(model, nn.Module) else make_module(model, self.seed)

    @cached_property
    def tasks(self) -> Sequence[Task]:
        """The clients' tasks, one each."""
        return as_tasks(self.problem.tasks, floats(self.module))

    @property
    def network(self) -> Network:
        """The links, for a run that is really trained."""
        return Network(mbit=self.mbit_up or self.mbit, down=self.mbit)

    def choose(self, auto: Auto, setting: Setting) -> Chosen:
        """A run of the method that is chosen before round 1 on these links."""
        run = Chosen(auto, self.module, self.tasks, replace(setting, network=self.network))
        run.close()
        return run

    def train(self, algorithm: Algorithm, rounds: int, setting: Setting) -> Result:
        """So many rounds on these links, really trained and each of them evaluated."""
        setting = replace(setting, network=self.network, evaluate_every=1)
        return simulate(algorithm, self.module, self.tasks, rounds, setting, test=self.problem.test)

    def _rehearse(self, algorithm: Algorithm, setting: Setting, turning: bool) -> Simulation:
        """A run whose clients do not train."""
        # A link may go by the rate (ByBandwidth), so the rehearsal is on the same links.
        run = Simulation(algorithm, self.module, self.tasks, replace(setting, network=self.network))
        run.pool.close()
        run.pool = Untrained(run.slot, run.pool.work, turning)
        with run.pool, one_thread():
            for _ in range(self.rounds):
                run.step(evaluate=False)
        return run

    def _seconds(self, ledger: Ledger) -> float:
        """Seconds of transfer, for the slowest client of each round."""
        if self.mbit_up is None:
            return transfer(sum(map(ledger.slowest, ledger.rounds)), self.mbit)
        rates, total = {"up": self.mbit_up, "down": self.mbit}, 0.0
        for number in ledger.rounds:
            sums: dict[int, float] = {}
            for entry in ledger.of(round=number):
                sums[entry.client] = sums.get(entry.client, 0.0) + transfer(entry.total, rates[entry.direction])
            total += max(sums.values(), default=0.0)
        return total


class Untrained(Pool):
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
                round.take(self._answer(round, round.request))
            yield round.reply(self.statistics, 0.0)

    def _answer(self, round: Round, request: Local) -> Trained:
        """The answer to a request for training, which does not take place."""
        if self.change is None:
            self.slot.load_buffers(round.buffers)
            with drawing(self.slot, round.task, round.key):
                self.change = train(self.slot, round.task, request, round.draws()).x - request.x
            self.statistics = self.slot.buffers()
        change = self.change
        if self.turning:
            draw = round.draws().generator("rehearsal")
            signs = torch.rand(change.flat.numel(), dtype=torch.float32, device="cpu", generator=draw) - 0.5
            change = Params(change.layout, change.flat.copysign(signs))
        fewest = self.slot.fewest  # the number of steps is in the answer, and may be a byte longer
        steps, rate = request.trainer.num_steps(len(round.task), fewest), request.trainer.rate(round.key)
        memory = request.memory or Memory((change,) * request.trainer.num_vectors, 0)
        return Trained(request.x + change, steps, 0.0, memory, rate * steps)


def _looks_back(run: Simulation) -> bool:
    """Whether clients choose by their update what they send: the link does, or a method with several outlines."""
    key = Key(run.seed, run.round, 0)
    return run.up.memory or len(run.algorithm.outlines(run.stream.view.state, run.up.blank, key)) > 1


def _message(ledgers: Sequence[Ledger], direction: Direction) -> Range:
    return _range([entry.total for ledger in ledgers for entry in ledger.of(direction)])


def _range(values: Sequence[float]) -> Range:
    return min(values), max(values)


def show(predictions: list[Prediction], rounds: int, sample: int, mbit: float) -> None:
    """The predictions as a table on the terminal."""
    lines = [
        [
            p.method,
            range_text(p.message_up, "{:,.0f}".format),
            range_text(p.message_down, "{:,.0f}".format),
            range_text(p.bytes_up, megabytes_text),
            range_text(p.bytes_down, megabytes_text),
            range_text(p.seconds, transfer_text(p.seconds)),
        ]
        for p in predictions
    ]
    title = f"{rounds} rounds of {sample} clients, links of {mbit:g} Mbit/s, transfer alone"
    draw(title, ("method", "B a reply", "B a broadcast", "MB up", "MB down", "seconds"), lines, LEAST, ABOUT)


LEAST = ("B a broadcast", "B a reply", "seconds")
ABOUT = (
    "Where the length of a message depends on what is in it (QSGD, STC, Entropy, positions of TopK), figures are about "
    "those of the run. Which layers a method recycles (LUAR), or which entries it keeps (PruneFL), depends on the run: "
    "figures are of those of a rehearsal."
)


def range_text(range: Range, text: Callable[[float], str]) -> str:
    """The lowest and the highest; one number where they look the same."""
    low, high = map(text, range)
    return low if low == high else f"{low} to {high}"


def transfer_text(range: Range) -> Callable[[float], str]:
    """How seconds of transfer are written, of which the highest may be a small part of one."""
    return ("{:,.1f}" if range[1] >= 1 else "{:.2g}").format
