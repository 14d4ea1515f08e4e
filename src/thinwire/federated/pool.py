"""Workers that train clients: Python threads of one torch thread each, or processes.

Threads are as fast as processes at half the memory. Processes serve models with random
layers (dropout), which draw from the one generator that torch has a process.
"""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import ctypes
import mmap
import multiprocessing
import queue
import signal
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, TypeVar

from torch import nn

from ..algorithms.base import Algorithm, Start
from ..dice import Dice, seeded
from ..errors import NonFinite
from ..params import Params
from ..run.folder import release
from ..task import Task
from ..train.evaluation import Tally, evaluate, mean_metrics, portions
from ..train.many import batchable, chain_of, train_many
from ..train.one import train
from ..train.one_in_c import chain_for
from ..train.precision import Precision
from ..train.processors import Processors
from ..train.slot import Slot
from ..train.threads import single
from ..wire import dumps, loads, pieces, restore
from .client import PLAIN, ClientState, Job, Manner, Reply, Round, Turn, client_inputs, many_rounds, one_round
from .messages import Form
from .question import local_loss
from .stream import View

T = TypeVar("T")
S = TypeVar("S")


class Work(NamedTuple):
    """What every worker knows."""

    algorithm: Algorithm
    form: Form
    tasks: Sequence[Task]
    view: View  # templates, for what comes as bytes
    own: ClientState
    manner: Manner = PLAIN
    private: Form | None = None  # of what one client alone is sent
    known: Start | None = None  # the start, where clients know it
    down: Form | None = None  # of broadcasts

    def turn(self, view: View, job: Job) -> Turn:
        """What a client's round is made of."""
        assert job.key.client is not None
        inputs = client_inputs(self.algorithm, self.private, view, job, self.known, self.down)
        return Turn(self.tasks[job.key.client], *inputs, job.key, job.told)


Plan = Literal["each", "together", "compiled"]
"""Clients one by one in torch, many small ones trained as one, or one by one in C where the loops there know the model.

Chosen once, then kept: it moves the last bits.
"""
# What together is taken for. Linear layers of 407,050 parameters took .65 to .78 of the time of one by one, of 1.9
# million .61 to 1.47, convolutions with 10 examples a batch .64 to 1.78 and with more always longer. On a GPU a
# step of one small model is the launches of its kernels, whatever its layers are.
SMALL = 500_000  # parameters, of linear layers alone
SMALL_WORDS = 1_000_000  # of fastText in C: a step moves few of them, but each client of a job holds a model
SMALL_CONVOLUTIONS = 2_000_000  # of convolutions in C, which read all weights anew in each step
SMALL_GPU = 1_000_000  # parameters, of any layers
WORTH = 200  # local steps a round, of all clients: below that torch.func's import costs more than is saved
PROBE = 3  # steps timed of each, where it is measured
MARGIN = 0.8  # of the time, below which together is then taken
TOGETHER = 50  # clients trained as one, at most
CHUNK = 1000  # test examples a job, fixed: sums must not depend on the number of workers


class Crew:
    """The threads and processes of a pool at work. They end when it is closed, or when nobody holds their pool."""

    def __init__(self, slot: Slot, workers: int, work: Work) -> None:
        self.slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self.slots.put(slot)
        self.processes: futures.ProcessPoolExecutor | None = None
        if slot.random and workers > 1:
            global _forked  # what the processes inherit; read in them alone
            self.views, self.version = tempfile.TemporaryFile(), 0  # noqa: SIM115  the newest view, for all
            _forked = (slot, work, self.views.fileno())
            self.processes = futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _end_with_parent)
            self.processes.submit(int).result()  # all of them start now, from this thread
            _forked = None
        for _ in range(workers - 1):
            self.slots.put(slot.twin())
        self.threads, self.processors = futures.ThreadPoolExecutor(workers, "client", single), Processors(workers)

    def end(self, wait: bool) -> None:
        """Let go of all threads and processes. Jobs that have not begun are dropped; ``wait`` for the others."""
        self.threads.shutdown(wait, cancel_futures=True)
        if self.processes is not None:
            self.processes.shutdown(wait, cancel_futures=True)
            self.views.close()


class Pool:
    """``workers`` slots for the same module. Its threads and processes begin with the first job.

    They end with :meth:`close`, at the end of a ``with``, or when nobody holds the pool any more. After that the next
    job begins them anew.
    """

    def __init__(self, slot: Slot, workers: int, work: Work) -> None:
        self.work, self.slot = work, slot
        self.plan: Plan = "each"
        self.random = slot.random  # then everyone is trained alone
        self.drawing = dict[type, bool]()  # by kind of task: whether its evaluation throws dice too
        # A process of multiprocessing.Pool is a daemon, which may have no children.
        forks = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
        alone = slot.device.type != "cpu" or (slot.random and not forks) or work.manner.train is not None
        self.workers = 1 if alone else workers
        self._crew: Crew | None = None

    @property
    def crew(self) -> Crew:
        """Who does the jobs."""
        if self._crew is None:
            self._crew = Crew(self.slot, self.workers, self.work)
            # No waiting there: the last to hold the pool may be one of its own threads.
            self._abandoned = weakref.finalize(self, self._crew.end, False)
        return self._crew

    def units(self, jobs: int) -> list[tuple[int, int]]:
        """(start, stop) of the jobs that are done as one, whatever the number of workers."""
        together = self.plan == "together" and not self.random
        return _chunks(jobs) if together else [(i, i + 1) for i in range(jobs)]

    def rounds(self, jobs: Sequence[Job], view: View, sizes: Sequence[int] | None = None) -> Iterator[Reply]:
        """The replies of clients, in the order of ``jobs``; ``sizes`` are those of the units they make."""
        sizes = [stop - start for start, stop in self.units(len(jobs))] if sizes is None else sizes
        crew = self.crew
        if self.plan == "together" and not self.random:
            edges = list(pairwise(accumulate(sizes, initial=0)))
            chunks = [jobs[start:stop] for start, stop in edges]
            for replies in self._in_order(crew.threads, [(self._rounds, view, chunk) for chunk in chunks]):
                yield from replies
            return
        if crew.processes is None:
            yield from self._in_order(crew.threads, [(self._round, view, job) for job in jobs])
            return
        crew.version += 1
        crew.views.seek(0)
        crew.views.truncate()
        crew.views.writelines(pieces(view))
        crew.views.flush()
        calls = [
            (_round_in_fork, crew.version, job._replace(own=NOBODY, held=None), dumps([job.own, job.held]))
            for job in jobs
        ]
        for reply, own in self._in_order(crew.processes, calls):
            yield reply._replace(next=restore(loads(own, max_values=None, finite=False), self.work.own))

    def choose(self, jobs: Sequence[Job], view: View, measured: bool = False) -> Plan:
        """How clients are trained: by a rule from model and sizes, the same every time, or by timing a few steps.

        Compiled is taken for convolutions that the loops in C know. Together is taken for clients that can be trained
        as one, of a small model of linear layers alone or of a small fastText in C; where it is measured, for any
        that it makes faster by a clear margin.
        """
        work, everyone = self.work, len(jobs)
        jobs = jobs[: _chunks(len(jobs))[0][1]] if jobs else []
        if self.random or work.manner.train is not None:
            return "each"
        rounds = [Round(work.algorithm, work.form, *work.turn(view, job)) for job in jobs]
        rounds = [round for round in rounds if round.request is not None]  # those that train
        requests = [round.request for round in rounds if round.request is not None]
        tasks, keys = [round.task for round in rounds], [round.key for round in rounds]
        with _borrow(self.crew.slots) as slot, warnings.catch_warnings():
            known = chain_for(slot, tasks[0], requests[0]) if requests else None
            if known is not None and known.convs and slot.layout.size <= SMALL_CONVOLUTIONS:
                return "compiled"
            if len(jobs) < 2 or not requests or not batchable(slot, tasks, requests):
                return "each"
            in_c = chain_of(slot, tasks[0])
            few = in_c is not None and in_c.texts and slot.layout.size <= SMALL_WORDS
            if not measured and not (_small(slot) or few):
                return "each"
            steps = sum(r.trainer.num_steps(len(task)) for r, task in zip(requests, tasks, strict=True))
            if not measured and not in_c and steps * everyone < WORTH * len(rounds):
                return "each"
            if not measured and in_c:
                return "together"
            short = [r._replace(trainer=replace(r.trainer, epochs=1.0, steps=PROBE)) for r in requests]
            # What this thread computes: a busy neighbour must not decide.
            clock = time.thread_time if slot.device.type == "cpu" else time.perf_counter
            try:
                warnings.filterwarnings("error", ".*batching rule.*")  # then torch.func would go one by one itself
                if not measured:
                    list(train_many(slot, tasks, short, keys))
                    return "together"
                alone = _seconds(lambda: train(slot, tasks[0], short[0], keys[0]), clock)
                together = _seconds(lambda: list(train_many(slot, tasks, short, keys)), clock) / len(rounds)
            except (RuntimeError, ValueError, UserWarning, NonFinite):  # torch.func cannot batch it, or it diverges
                return "each"
        return "together" if together < MARGIN * alone else "each"

    def each(self, function: Callable[[T], S], items: Sequence[T]) -> list[S]:
        """A function of each item, by the threads; in order."""
        return list(self._in_order(self.crew.threads, [(function, item) for item in items]))

    def losses(self, jobs: Sequence[Job], view: View, statistics: Params | None) -> list[float]:
        """The mean loss of the model that all share on each client's examples, in the order of ``jobs``."""
        if self.random:  # one after the other: dice are seeded
            return [self._loss(view, job, statistics) for job in jobs]
        return list(self._in_order(self.crew.threads, [(self._loss, view, job, statistics) for job in jobs]))

    def _loss(self, view: View, job: Job, statistics: Params | None) -> float:
        work = self.work
        with _borrow(self.crew.slots) as slot:
            turn = work.turn(view, job)
            return local_loss(work.algorithm, slot, turn.task, turn.view, work.own.state, statistics)

    def evaluate(self, x: Params, buffers: Params | None, task: Task) -> dict[str, float]:
        """The mean of every metric over a task."""
        calls = [(self._evaluate, x, buffers, task, *chunk) for chunk in portions(0, len(task), CHUNK, 2)]
        if self.drawing.get(type(task), True):  # it is not known yet, or one after the other
            parts = [next(self._in_order(self.crew.threads, [call])) for call in calls[:1]]
            more = calls[1:]
            if self.drawing[type(task)]:
                parts += [next(self._in_order(self.crew.threads, [call])) for call in more]
                return mean_metrics(parts)
            return mean_metrics([*parts, *self._in_order(self.crew.threads, more)])
        return mean_metrics(self._in_order(self.crew.threads, calls))

    def _round(self, view: View, job: Job) -> Reply:
        work = self.work
        with _borrow(self.crew.slots) as slot:
            turn, in_c = work.turn(view, job), self.plan == "compiled"
            return one_round(work.algorithm, work.form, slot, turn, work.manner, in_c)

    def _rounds(self, view: View, jobs: Sequence[Job]) -> list[Reply]:
        work = self.work
        turns = [work.turn(view, job) for job in jobs]
        with self.crew.processors.spread(), _borrow(self.crew.slots) as slot:
            return many_rounds(work.algorithm, work.form, slot, turns, work.manner)

    def _evaluate(self, x: Params, buffers: Params | None, task: Task, start: int, stop: int) -> dict[str, Tally]:
        with _borrow(self.crew.slots) as slot:
            slot.load(x)
            slot.load_buffers(buffers)
            if not self.drawing.get(type(task), True):
                return evaluate(slot, task, start, stop)
            with seeded(start):
                before = Dice.now()
                parts = evaluate(slot, task, start, stop)
                self.drawing[type(task)] = before.differs()
            return parts

    def precision(self) -> Precision:
        """That of the thread that asks: whoever runs a simulation under autocast means its workers too."""
        return Precision.now(self.slot.device.type)

    def _in_order(self, executor: futures.Executor, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        waiting = [executor.submit(self.precision().call, function, *arguments) for function, *arguments in calls]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()

    def settle(self) -> None:
        """The round's replies are all taken."""

    def close(self) -> None:
        if self._crew is not None:
            self._abandoned.detach()
            self._crew.end(True)
            self._crew = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _small(slot: Slot) -> bool:
    """Whether a model gains from being trained together with others."""
    if slot.device.type != "cpu":
        return slot.layout.size <= SMALL_GPU
    own = [m for m in slot.module.modules() if any(True for _ in m.parameters(recurse=False))]
    return slot.layout.size <= SMALL and all(type(m) is nn.Linear for m in own)


def _chunks(jobs: int) -> list[tuple[int, int]]:
    """Equal parts of at most ``TOGETHER`` jobs, an even number of them, whatever the number of workers."""
    parts = min(jobs, 2 * -(-jobs // (2 * TOGETHER)))
    edges = [jobs * i // parts for i in range(parts + 1)] if parts else []
    return list(pairwise(edges))


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Of the better of two runs, after one that is not timed."""
    work()
    times = []
    for _ in range(2):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


@contextlib.contextmanager
def _borrow(slots: queue.SimpleQueue[Slot]) -> Iterator[Slot]:
    """A slot for the length of a ``with``."""
    slot = slots.get()
    try:
        yield slot
    finally:
        slots.put(slot)


_forked: tuple[Slot, Work, int] | None = None  # the last: a descriptor of the newest view's bytes


def _end_with_parent() -> None:
    """In a forked process: end with the one that made it, and do not hold its folder."""
    single()
    release()
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


PR_SET_PDEATHSIG = 1
NOBODY = ClientState(None, None, None)  # what travels beside is not pickled


def _round_in_fork(version: int, job: Job, own: bytes) -> tuple[Reply, bytes]:
    """:meth:`Pool._round` in a forked process: states come and go as bytes."""
    assert _forked is not None
    slot, work, _ = _forked
    like = [work.own, None if job.parcel is None else work.view]
    state, held = restore(loads(own, max_values=None, finite=False), like)
    job = job._replace(own=state, held=held)
    reply = one_round(work.algorithm, work.form, slot, work.turn(_newest(version), job), work.manner)
    return reply._replace(next=None), dumps(reply.next)  # type: ignore[arg-type]  # it travels beside


@lru_cache(maxsize=1)
def _newest(version: int) -> View:
    """The view of this round, read once by every process."""
    assert _forked is not None
    _, work, descriptor = _forked
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        view: View = restore(loads(bytes(data), max_values=None, finite=False), work.view)
    return view
