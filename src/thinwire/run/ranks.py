"""The cohort shared by several processes: under ``torchrun`` each rank trains its part of it.

Every rank holds the server and makes the same step, so only replies travel between them,
as bytes. What a client's round gives does not depend on who trains it, so the results are
those of one process, bit for bit. Rank 0 alone writes to disk.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import CombinationError, DataError, NonFinite, OutOfSync, RankLost, RunError, WireError
from ..wire import Packet, State, dumps, loads, restore
from .client import ClientState, Job, Reply
from .pool import Plan, Pool
from .stream import View


def join() -> None:
    """Join the process group that ``torchrun`` made, once; nothing happens in a process on its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)  # whose threads must not outlive the interpreter


def size() -> int:
    """How many processes share the work."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if size() > 1 else 0


def placed(device: str) -> str:
    """``cuda`` as the GPU of this rank, where several share a machine."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return f"cuda:{local % torch.cuda.device_count()}" if device == "cuda" and size() > 1 else device


def barrier() -> None:
    """Wait for the others."""
    if size() > 1:
        dist.barrier()


class Ranks(Pool):
    """A pool whose jobs are dealt to all ranks in turn."""

    def rounds(self, jobs: Sequence[Job], view: View, sizes: Sequence[int] | None = None) -> Iterator[Reply]:
        """All replies, in the order of ``jobs``, on every rank."""
        units = self.units(len(jobs))
        mine = [i for i in range(len(units)) if i % size() == rank()]
        own = [job for i in mine for job in jobs[slice(*units[i])]]

        def parts() -> State:
            found = iter(list(super(Ranks, self).rounds(own, view, [units[i][1] - units[i][0] for i in mine])))
            return [[_packed(next(found)) for _ in range(*units[i])] for i in mine]

        gathered = [iter(part) for part in shared(parts)]
        for i in range(len(units)):
            for packet in next(gathered[i % size()]):
                yield _unpacked(packet, self.work.own)

    def choose(self, jobs: Sequence[Job], view: View, measured: bool = False) -> Plan:
        """Rank 0's choice."""
        plans: list[Plan] = shared(lambda: super(Ranks, self).choose(jobs, view, measured) if rank() == 0 else "each")
        return plans[0]

    def settle(self) -> None:
        """All ranks have taken the round's replies."""
        barrier()


KINDS = (NonFinite, WireError, RunError, DataError, CombinationError, OutOfSync, RankLost, ValueError)
ERRORS = {kind.__name__: kind for kind in KINDS}


def shared(work: Callable[[], State]) -> list[Any]:
    """What every rank's ``work`` gives, in the order of ranks. Where it raises, all ranks raise the first one's error.

    A rank that left alone would leave the others waiting for it. ``RankLost`` is another rank's error, which is raised
    where there is one.
    """
    if size() == 1:
        return [work()]
    failed: Exception | None = None
    try:
        mine = [work()]
    except Exception as error:
        failed, mine = error, [type(error).__name__, str(error)]
    everyone = exchange(mine)
    errors = [(number, *found) for number, found in enumerate(everyone) if len(found) == 2]
    for number, kind, text in sorted(errors, key=lambda error: error[1] == RankLost.__name__):
        if failed is not None and number == rank():
            raise failed
        raise ERRORS[kind](text) if kind in ERRORS else RuntimeError(f"rank {number}: {kind}: {text}")
    return [found[0] for found in everyone]


def exchange(x: State) -> list[Any]:
    """What every rank gave, in the order of ranks."""
    data = torch.frombuffer(bytearray(dumps(x)), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(size())]
    dist.all_gather(lengths, torch.tensor([data.numel()], device="cpu"))
    longest = int(max(lengths))
    padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
    padded[: data.numel()] = data
    everyone: list[Tensor] = [torch.empty_like(padded) for _ in range(size())]
    dist.all_gather(everyone, padded)
    pairs = zip(everyone, lengths, strict=True)
    return [loads(part[: int(n)].numpy().tobytes(), max_values=None, finite=False) for part, n in pairs]


def _packed(reply: Reply) -> Packet:
    blob = torch.frombuffer(bytearray(reply.blob), dtype=torch.uint8)
    *about, after, norms = reply[1:]
    return [blob, *about, after, norms]


def _unpacked(packet: Packet, like: ClientState) -> Reply:
    blob, examples, loss, steps, floats, seconds, looks, change, after, norms = packet
    about = examples, loss, steps, floats, seconds, looks, change
    return Reply(blob.numpy().tobytes(), *about, restore(after, like), norms)
