"""Workers that train clients: Python threads of one torch thread each, or processes.

Threads are as fast as processes at half the memory. Processes serve models with random
layers (dropout), which draw from the one generator that torch has a process.
"""

from __future__ import annotations

import concurrent.futures as futures
import multiprocessing
import queue
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..algorithms.base import Algorithm
from ..key import Key
from ..params import Params
from ..task import Task
from ..wire import dumps, loads, restore
from .client import ClientState, Reply, client_round
from .messages import Form
from .stream import View
from .train import Slot, evaluate


class Work(NamedTuple):
    """What every worker knows."""

    algorithm: Algorithm
    form: Form
    tasks: Sequence[Task]
    view: View  # templates, for what comes as bytes
    own: ClientState


CHUNK = 1000  # test examples a job, fixed: sums must not depend on the number of workers


class Pool:
    """``workers`` slots for the same module. ``close`` it, or use it as a context."""

    def __init__(self, slot: Slot, workers: int, work: Work) -> None:
        self.work = work
        self.processes: futures.ProcessPoolExecutor | None = None
        if slot.device.type != "cpu" or (slot.random and "fork" not in multiprocessing.get_all_start_methods()):
            workers = 1
        self.slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self.slots.put(slot)
        if slot.random and workers > 1:
            global _forked  # what the processes inherit; read in them alone
            _forked = (slot, work)
            self.processes = futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _single_thread)
            self.processes.submit(int).result()  # all of them start now, from this thread
        for _ in range(workers - 1):
            self.slots.put(Slot(slot.module, slot.device))
        self.threads = futures.ThreadPoolExecutor(workers, "client", _single_thread)

    def rounds(self, jobs: Sequence[tuple[Key, ClientState]], view: View) -> Iterator[Reply]:
        """The replies of clients, in the order of ``jobs``."""
        if self.processes is None:
            yield from self._ordered(self.threads, [(self._round, view, key, own) for key, own in jobs])
            return
        seen = dumps(view)
        for reply, own in self._ordered(self.processes, [(_forked_round, seen, k, dumps(own)) for k, own in jobs]):
            yield reply._replace(next=restore(loads(own, finite=False), self.work.own))

    def evaluate(self, x: Params, buffers: Params | None, task: Task) -> dict[str, float]:
        """The mean of every metric over a task."""
        starts = range(0, len(task), CHUNK)
        parts = list(self._ordered(self.threads, [(self._evaluate, x, buffers, task, start) for start in starts]))
        return {name: sum(part[name] for part in parts) / len(task) for name in parts[0]}

    def _round(self, view: View, key: Key, own: ClientState) -> Reply:
        assert key.client is not None
        with _Borrowed(self.slots) as slot, torch.random.fork_rng(devices=[], enabled=slot.random):
            return client_round(self.work.algorithm, self.work.form, slot, self.work.tasks[key.client], view, own, key)

    def _evaluate(self, x: Params, buffers: Params | None, task: Task, start: int) -> dict[str, float]:
        with _Borrowed(self.slots) as slot:
            slot.load(x)
            if buffers is not None:
                slot.load_buffers(buffers)
            return evaluate(slot, task, start, min(start + CHUNK, len(task)))

    @staticmethod
    def _ordered(executor: futures.Executor, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        waiting = [executor.submit(function, *arguments) for function, *arguments in calls]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        self.threads.shutdown(wait=True, cancel_futures=True)
        if self.processes is not None:
            self.processes.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Borrowed:
    """A slot for the length of a ``with``."""

    def __init__(self, slots: queue.SimpleQueue[Slot]) -> None:
        self.slots = slots

    def __enter__(self) -> Slot:
        self.slot = self.slots.get()
        return self.slot

    def __exit__(self, *_: object) -> None:
        self.slots.put(self.slot)


_forked: tuple[Slot, Work] | None = None


def _single_thread() -> None:
    torch.set_num_threads(1)


def _forked_round(view: bytes, key: Key, own: bytes) -> tuple[Reply, bytes]:
    """:meth:`Pool._round` in a forked process: states come and go as bytes."""
    assert _forked is not None
    assert key.client is not None
    slot, work = _forked
    task, seen = work.tasks[key.client], restore(loads(view, finite=False), work.view)
    state = restore(loads(own, finite=False), work.own)
    reply = client_round(work.algorithm, work.form, slot, task, seen, state, key)
    return reply._replace(next=None), dumps(reply.next)  # type: ignore[arg-type]  # it travels beside
