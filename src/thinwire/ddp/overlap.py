"""Exchanges behind the training: what is on its way, and the thread that brings it.

The thread alone speaks over a process group of its own, in the order in which it is asked. So all ranks have one order
of messages there, whatever else is sent meanwhile over the group of the model: its buffers, a norm for clipping, a
script's own sums. That group is gloo's on every device. Messages for a slow link are bytes in a CPU's memory in any
case, and NCCL wants one order of all calls of a process, which two threads do not have.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from ..key import Key
from ..params import Layout
from .collectives import Group, Talk, Traffic

PATIENCE = 60.0  # seconds that the end of a process waits for what is still on its way


class Outgoing(NamedTuple):
    """What a rank is about to send of a fragment, and all that its sending reads and writes besides e."""

    layout: Layout
    where: slice  # the fragment
    key: Key
    p: Tensor  # where anything is owed it is e itself
    runs: list[tuple[int, int]]  # entries that a block sends
    still: list[tuple[int, int, Tensor]]  # runs of frozen layers, and what is owed there
    whole: list[Tensor]  # p of the runs, where C(p) was subtracted from it and is waited for


class Flying(NamedTuple):
    """What has arrived, or will, and is to be applied."""

    d: Float[Tensor, " d"]  # mean C(p) of the fragment on its way, and zeros
    looked: Float[Tensor, "2"]  # what was measured by it, for :attr:`Rank.seen`


class Flight(NamedTuple):
    """An exchange behind the training. Until ``coded`` has a result e of the fragment belongs to it."""

    out: Outgoing
    coded: Future[Any]  # the message
    arrived: Future[tuple[Tensor, Tensor | None]]  # mean C(p) of what is sent, and what was looked at

    def take_in(self, flying: Flying) -> None:
        """Wait for what arrives, and write it. Raises what sending has raised, again each time."""
        arrived, looked = self.arrived.result()
        spread(arrived, self.out.runs, flying.d[self.out.where])
        if looked is not None:
            flying.looked.copy_(looked)


def spread(arrived: Tensor, runs: Sequence[tuple[int, int]], d: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """``d`` with what arrived where it was sent."""
    at = 0
    for a, b in runs:
        d[a:b] = arrived[at : at + b - a]
        at += b - a
    return d


class Line:
    """A thread that drives what is asked for later, one after another, over a group of the same ranks of its own.

    All ranks make theirs at the same place. ``device`` is that of the tensors.
    """

    def __init__(self, beside: dist.ProcessGroup, device: torch.device) -> None:
        self.device, self.group, self.last = device, Group(_twin(beside), Traffic()), Future[Any]()
        self.last.set_result(None)
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        thread = threading.Thread(target=_serve, args=(self.jobs, device), name="thinwire", daemon=True)
        thread.start()
        # Also when the process ends: a thread that is inside of gloo then would abort it.
        self.close = weakref.finalize(self, _close, self.jobs, thread)

    def submit(self, talk: Talk[Any], where: str) -> Future[Any]:
        """Drive a generator as :meth:`Group.drive` does, which says ``where`` in errors. They are in the future."""
        future: Future[Any] = Future()
        self.last = future
        ready = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        self.jobs.put(_Job(future, partial(self.group.drive, talk, where), ready))
        return future

    def wait(self) -> Traffic:
        """Wait until all is driven, or has failed. Gives the bytes since the last time."""
        wait([self.last])
        return self.group.traffic


class _Job(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]
    ready: Any  # the event after which a GPU has what the call reads


def _serve(jobs: queue.SimpleQueue[_Job | None], device: torch.device) -> None:
    """Do what is asked, until that is None. A GPU works at it on a stream of its own."""
    stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(stream):
        while (job := jobs.get()) is not None:
            try:
                if stream is not None:
                    stream.wait_event(job.ready)
                result = job.call()
                if stream is not None:
                    stream.synchronize()
            except BaseException as error:
                job.future.set_exception(error)
            else:
                job.future.set_result(result)
            job = None


def _close(jobs: queue.SimpleQueue[_Job | None], thread: threading.Thread) -> None:
    """End the thread after what it was asked, or leave it where that does not end."""
    jobs.put(None)
    if threading.current_thread() is not thread:  # which may be the one that collects garbage
        thread.join(PATIENCE)


def _twin(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Another group of the same ranks and the same timeout."""
    ranks, device = dist.get_process_group_ranks(group), sorted(group._device_types, key=lambda d: d.type)[0]
    made = dist.new_group(
        ranks,
        timeout=group._get_backend(device).options._timeout,
        backend="gloo",
        use_local_synchronization=len(ranks) < dist.get_world_size(),  # ranks outside of it do not call this
    )
    assert isinstance(made, dist.ProcessGroup)
    return made
