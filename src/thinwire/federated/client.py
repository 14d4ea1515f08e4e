"""A client's round: take in the view, run the algorithm's half, send the reply through its links."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import operator
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from ..algorithms.base import Algorithm, Start
from ..dice import Dice, put_back, seeded
from ..errors import NonFinite, require
from ..key import Key
from ..local import Local, Memory, Trained
from ..params import Params
from ..task import Supervised, Task
from ..train import one_in_c
from ..train.many import Apart, batchable, train_many
from ..train.one import train
from ..train.slot import Slot
from ..wire import MOST, Packet, State, dumps, largest, modest
from .answers import Training, check_steps, with_checks
from .changes import change_of
from .hostile import Hostile
from .letters import private, read_letter
from .messages import Form
from .stream import Parcel, View, catch_up

log = logging.getLogger("thinwire")
LOGGING = threading.Lock()


class ClientState(NamedTuple):
    """What a client keeps between its rounds: committed when the server has its reply."""

    state: State  # the algorithm's
    tx: State  # the sending ends of `up`
    buffers: Params | None  # norm statistics, where they stay with the client
    memory: Memory | None = None  # the trainer's, where it goes on from round to round
    rx: State = None  # the receiving ends of `personal`
    own_buffers: Params | None = None  # norm statistics of the client's own model, where it may have one


def unheard(algorithm: Algorithm, start: Start, form: Form, statistics: Params | None) -> ClientState:
    """What a client keeps before its first round."""
    kept = statistics if algorithm.buffers == "local" else None
    memory = algorithm.local.begin(algorithm.model(start.server).layout) if algorithm.local.keep else None
    alone = private(algorithm, start)
    rx = None if alone is None else alone.open()[1]
    own_buffers = statistics if algorithm.personal_models else None
    return ClientState(start.client, form.open()[0], kept, memory, rx, own_buffers)


def statistics_of(algorithm: Algorithm, own: ClientState, shared: Params | None) -> Params | None:
    """The norm statistics of a client's own model, given those of the shared one."""
    if algorithm.own_statistics(own.state):
        return own.own_buffers
    return shared if algorithm.buffers == "mean" else own.buffers


class Job(NamedTuple):
    """A client's round that is to be made: who, when, from what state, and what it alone was sent."""

    key: Key
    own: ClientState
    alone: bytes = b""
    anew: bool = False  # whether client and server hold nothing in common yet
    held: View | None = None  # what it holds of a downlink of its own; None: the view is everyone's
    parcel: Parcel | None = None  # and what it is sent there
    told: bytes = b""  # what a hostile client knows of the others' replies


def client_inputs(
    algorithm: Algorithm, form: Form | None, view: View, job: Job, known: Start | None = None, down: Form | None = None
) -> tuple[View, ClientState]:
    """What a client goes by in its round: the view, with what it alone was sent, and its state. Raises ``WireError``.

    ``form`` is that of what one client alone is sent; None where the method sends nothing of the kind. ``known`` is
    the start, where clients know it. ``down`` is the form of broadcasts, for jobs that have a ``parcel``.
    """
    if job.parcel is not None:
        assert job.held is not None
        assert down is not None
        view = catch_up(algorithm, down, job.held, job.parcel, Key(job.key.seed))
    if form is None:
        return view, job.own
    assert job.key.client is not None
    first = algorithm.alone(known.server, job.key.client) if known is not None and job.anew else None
    msg, rx = read_letter(form, job.alone, job.own.rx, job.key, job.anew, first)
    return view._replace(state=algorithm.take(view.state, msg)), job.own._replace(rx=rx)


class Turn(NamedTuple):
    """What a client's round is made of."""

    task: Task
    view: View
    own: ClientState
    key: Key
    told: bytes = b""


class Reply(NamedTuple):
    """What a client's round gives: bytes for the server, and its own next state."""

    blob: bytes
    examples: int
    loss: float
    steps: int
    floats: float  # the papers' count for the blob
    seconds: float  # of wall time
    looks: list[dict[str, Any]]  # LBGM's tests, where they are asked for: a line for each field and layer
    noted: Packet  # what training did, where that is asked for (`changes.change_of`)
    next: ClientState
    norms: dict[str, float] | None = None  # of what the server will see, by field


class Manner(NamedTuple):
    """How clients' rounds are made, beside what the method says."""

    train: Training | None = None  # answers requests; None: they are trained
    looks: bool = False  # whether replies say how their links tested them
    changes: bool = False  # whether they say what training did
    exact: bool = False  # whether something is decided by how long they are
    hostile: Hostile | None = None  # who lies, and how; None: nobody


PLAIN = Manner()


class Round:
    """A client's round between two messages: it asks for training as often as it likes, then replies."""

    def __init__(
        self, algorithm: Algorithm, form: Form, task: Task, view: View, own: ClientState, key: Key, told: bytes = b""
    ) -> None:
        self.algorithm, self.form, self.task, self.own, self.key, self.told = algorithm, form, task, own, key, told
        self.buffers = own.buffers if algorithm.buffers == "local" else view.buffers
        self.own_buffers = own.own_buffers
        self.steps, self.counted, self.loss, self.asked, self.memory = 0, 0, 0.0, 0, own.memory
        self.first: tuple[Params, Trained] | None = None  # where the first training began, what came in the end
        self.apart = False  # whether another training began elsewhere, or was of the client's own model
        self.ordered = getattr(task, "order", None) is not None
        self.work = algorithm.client(algorithm.depart(view.state, form.residual(own.tx)), own.state, task, key)
        require(
            isinstance(self.work, Generator),
            f"{type(algorithm).__name__}.client has no yield: it asks for training by `trained = yield Local(...)`, "
            f"and returns its reply and its state",
        )
        self.request: Local | None = None  # the training it waits for; None when it is done
        self._go(None)

    def take(self, trained: Trained) -> None:
        """Hand it what it asked for."""
        assert self.request is not None
        check_steps(self.algorithm, self.request, trained, len(self.task), self.key)
        if not self.request.aside and not self.request.gradient:
            if self.first is None:
                self.first = self.request.x, trained
            elif self.request.x is self.first[1].x:  # it goes on where that ended
                before = self.first[1]
                steps, rates = before.steps + trained.steps, before.rates + trained.rates
                self.first = self.first[0], trained._replace(steps=steps, rates=rates)
            else:
                self.apart = True
            self.apart = self.apart or self.request.own
        self.steps, self.asked = self.steps + trained.steps, self.asked + 1
        if not self.request.aside and trained.steps:  # the mean over all steps
            self.counted += trained.steps
            self.loss += (trained.loss - self.loss) * (trained.steps / self.counted)
        self.memory = trained.memory if self.keeps(self.request) else self.memory
        self._go(trained)

    def _go(self, trained: Trained | None) -> None:
        try:
            self.request = next(self.work) if trained is None else self.work.send(trained)
        except StopIteration as done:
            pair, name = done.value, type(self.algorithm).__name__
            fits = isinstance(pair, tuple) and len(pair) == 2 and not hasattr(pair, "_fields")
            require(fits, f"{name}.client returned {type(pair).__name__}: it returns (reply, state)")
            self.request, (self.message, self.state) = None, pair
        if self.request is not None and self.ordered and not self.request.aside and not self.request.again:
            require(
                self.first is None and not self.request.gradient,
                f"client {self.key.client}: its task has an order of mini-batches for the one training of a round, and "
                f"{type(self.algorithm).__name__} asks for several; leave order at None",
            )
        if self.request is not None and self.keeps(self.request):
            require(
                self.memory is not None,
                f"{self.request.trainer!r}: what is kept is that of the method's field `local`, and "
                f"{type(self.algorithm).__name__} has another trainer there",
            )
            self.request = self.request._replace(memory=self.memory)

    @staticmethod
    def keeps(request: Local) -> bool:
        """Whether the trainer goes on from the client's last round."""
        return request.trainer.keep and not request.aside

    def draws(self) -> Key:
        """The key of the training it waits for: another one each time it asks, unless it asks for the same again."""
        assert self.request is not None
        number = batches_of(self.asked, self.request)
        return self.key.at(f"training{number}") if number else self.key

    def reply(self, statistics: Params | None, seconds: float, manner: Manner = PLAIN) -> Reply:
        """The bytes for the server, and the client's next state. Raises :class:`NonFinite`."""
        algorithm, form, key = self.algorithm, self.form, self.key
        values, hostile = form.values(self.message, statistics), manner.hostile
        if hostile is not None and key.client in hostile.clients:
            form, values = hostile.form, hostile.values(values, self.told, key)
        norms = form.norms(values, exact=False)
        for leaf, value in zip(form.leaves, values, strict=True):
            short = norms.get(leaf.name, math.inf) <= MOST / 2  # then no number is larger; of NaN the norm is NaN
            if not short and not modest(value):
                what = "NaN or infinity in it"
                if math.isfinite(largest(value)):
                    what = f"numbers beyond {MOST:.0e}"
                layers = value.items() if isinstance(value, Params) else ()
                where = next((f" (the first in layer {name!r})" for name, layer in layers if not modest(layer)), "")
                raise NonFinite(f"round {key.round}, client {key.client}: {leaf.name} has {what}; lower lr{where}")
        looks = form.look(values, self.own.tx, key) if manner.looks else []
        body, seen, tx = form.send(values, self.own.tx, key)
        self.seen = form.build(seen)
        if manner.exact or not all(map(operator.is_, values, seen)):
            norms = form.norms(seen, manner.exact)
        kept = statistics if algorithm.buffers == "local" else None
        state = algorithm.sent(self.state, self.seen[0])
        after = ClientState(state, tx, kept, self.memory, self.own.rx, self.own_buffers)
        training = None if self.apart else self.first
        if training is not None:
            looks = [{**line, "steps": training[1].steps, "rates": training[1].rates} for line in looks]
        change = change_of(training, form.unsent(values)) if manner.changes else None
        about = len(self.task), self.loss, self.steps, form.floats(body), seconds
        return Reply(dumps(body), *about, looks, change, after, norms)


def one_round(
    algorithm: Algorithm, form: Form, slot: Slot, turn: Turn, manner: Manner = PLAIN, in_c: bool = False
) -> Reply:
    """Everything a client does between two messages; ``in_c``: it is trained there, where that can be.

    Raises :class:`NonFinite`, naming round and client.
    """
    began = time.perf_counter()
    answer = _training_in(slot, one_in_c.train) if in_c and manner.train is None else manner.train
    round = play(algorithm, form, slot, turn, answer)
    return round.reply(slot.buffers(), time.perf_counter() - began, manner)


def play(algorithm: Algorithm, form: Form, slot: Slot, turn: Turn, answer: Training | None = None) -> Round:
    """A round all of whose requests have been answered, by training in the slot or by ``answer``."""
    task, make = turn.task, _training_in(slot, train) if answer is None else with_checks(answer)
    with drawing(slot, task, turn.key):
        round = Round(algorithm, form, *turn)
        slot.load_buffers(round.buffers)
        began: list[Dice] = []  # the dice where each request began
        while (request := round.request) is not None:
            began += [Dice.now()] if slot.random else []
            before = slot.buffers() if request.aside else None
            if request.own and request.aside:
                slot.load_buffers(round.own_buffers)
            with repeating(began, request.again if request.aside and not request.own else 0):
                trained = make(request, task, round.draws())
            if request.own:
                round.own_buffers = slot.buffers()
            if request.aside:
                slot.load_buffers(before)
            round.take(trained)
    return round


@contextlib.contextmanager
def repeating(began: Sequence[Dice], again: int) -> Iterator[None]:
    """Let dropout fall as it fell in the request so many before the last one: what differs then is the model alone.

    The dice go on afterwards as if nothing had been drawn. Nothing where ``again`` is 0, or nobody throws dice; of
    dropout on another device than the CPU nothing is known.
    """
    if not again or not began:
        yield
        return
    with put_back():
        began[-1 - again].restore()
        yield


def _training_in(slot: Slot, by: Callable[[Slot, Task, Local, Key], Trained]) -> Training:
    return lambda request, task, key: by(slot, task, request, key)


@contextlib.contextmanager
def drawing(slot: Slot, task: Task, key: Key) -> Iterator[None]:
    """A client's work, which may draw from the generators that a process shares where ``slot.random`` says so.

    What it draws is a function of the key: dropout, and what a ``batch`` or a loss of the user's draws. Then nobody
    else works in this process. Raises ``ValueError`` for draws of a task of the user's that nobody expected: they would
    be others each time.
    """
    with seeded(key.number("layers"), slot.random):
        before = None if slot.random or type(task) is Supervised else Dice.now()
        yield
        if before is not None and before.differs():
            raise ValueError(
                f"round {key.round}, client {key.client}: its work drew from the generators of torch, numpy or Python "
                f"that all share, and its first two examples did not, so that two runs would differ: draw from the "
                f"generator that `batch` is given, or draw for every example"
            )


def batches_of(asked: int, request: Local) -> int:
    """The number, from 0, of the request whose mini-batches a round's request of number ``asked`` is trained on."""
    fits = 0 <= request.again <= asked
    require(fits, f"Local(again={request.again}): there are {asked} requests of this round before it")
    return asked - request.again


def adapt_model(
    algorithm: Algorithm,
    slot: Slot,
    task: Task,
    x: Params,
    statistics: Params | None,
    key: Key,
    answer: Training | None = None,
) -> tuple[Params, Params | None]:
    """A client's own model, and its norm statistics, after ``Algorithm.adapt``. Trained in the slot.

    A task's ``order`` is that of rounds. Here mini-batches are drawn.
    """
    if isinstance(task, Supervised) and task.order is not None:
        task = dataclasses.replace(task, order=None)
    work, asked = algorithm.adapt(x, task, key), 0
    try:
        request = next(work)
    except StopIteration as done:
        return done.value, statistics
    make = _training_in(slot, train) if answer is None else with_checks(answer)
    slot.load_buffers(statistics)
    with drawing(slot, task, key):
        while True:
            before = slot.buffers()
            trained = make(request, task, key.at(f"training{batches_of(asked, request)}"))
            asked += 1
            if request.aside:
                slot.load_buffers(before)
            try:
                request = work.send(trained)
            except StopIteration as done:
                return done.value, slot.buffers()


def _train(slot: Slot, tasks: Sequence[Task], requests: Sequence[Local], keys: Sequence[Key]) -> Iterator[Trained]:
    """What many clients' training came to: of all at once, or where that cannot be had of one after the other."""
    if batchable(slot, tasks, requests):
        try:
            return train_many(slot, tasks, requests, keys)
        except Apart as why:
            with LOGGING:  # clients of other threads fail alike
                _log_once(str(why).partition("\n")[0][:200])
    return (train(slot, *one) for one in zip(tasks, requests, keys, strict=True))


@cache
def _log_once(why: str) -> None:
    """Log once why clients are trained one by one."""
    log.warning("plan='together': the clients are trained one by one, because they cannot be trained as one: %s", why)


def many_rounds(
    algorithm: Algorithm, form: Form, slot: Slot, turns: Sequence[Turn], manner: Manner = PLAIN
) -> list[Reply]:
    """:func:`one_round` for many clients at once, where their requests can be trained as one."""
    began = time.perf_counter()
    if slot.first or slot.random or manner.train:  # with buffers or dice of their own they are trained one by one
        return [one_round(algorithm, form, slot, turn, manner) for turn in turns]
    rounds, replies = [Round(algorithm, form, *turn) for turn in turns], dict[Round, Reply]()
    while waiting := [round for round in rounds if round.request is not None]:
        requests = [round.request for round in waiting if round.request is not None]
        results = _train(slot, [round.task for round in waiting], requests, [round.draws() for round in waiting])
        for round, trained in zip(waiting, results, strict=True):
            round.take(trained)
            if round.request is None:  # its model is still in the processor's cache, where it was trained alone
                replies[round] = round.reply(None, 0.0, manner)
    each = (time.perf_counter() - began) / len(rounds)
    answers = (replies.get(round) or round.reply(None, 0.0, manner) for round in rounds)
    return [answer._replace(seconds=each) for answer in answers]
