"""The cohort shared by several processes: under ``torchrun`` each rank trains its part of it.

Every rank holds the server and makes the same step, so only replies travel between them,
as bytes. What a client's round gives does not depend on who trains it, so the results are
those of one process, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..run.ranks import barrier, rank, share, size
from ..wire import Packet, State, restore
from .client import ClientState, Job, Reply
from .pool import Plan, Pool
from .stream import View


class Ranks(Pool):
    """A pool whose jobs are dealt to all ranks in turn."""

    def rounds(self, jobs: Sequence[Job], view: View, sizes: Sequence[int] | None = None) -> Iterator[Reply]:
        """All replies, in the order of ``jobs``, on every rank."""
        units = self.units(len(jobs))
        mine = [i for i in range(len(units)) if i % size() == rank()]
        own = [job for i in mine for job in jobs[slice(*units[i])]]

        def parts() -> State:
            replies = iter(list(super(Ranks, self).rounds(own, view, [units[i][1] - units[i][0] for i in mine])))
            return [[_pack(next(replies)) for _ in range(*units[i])] for i in mine]

        gathered = [iter(part) for part in share(parts)]
        for i in range(len(units)):
            for packet in next(gathered[i % size()]):
                yield _unpack(packet, self.work.own)

    def choose(self, jobs: Sequence[Job], view: View, measured: bool = False) -> Plan:
        """Rank 0's choice."""
        plans: list[Plan] = share(lambda: super(Ranks, self).choose(jobs, view, measured) if rank() == 0 else "each")
        return plans[0]

    def settle(self) -> None:
        """All ranks have taken the round's replies."""
        barrier()


def _pack(reply: Reply) -> Packet:
    blob = torch.frombuffer(bytearray(reply.blob), dtype=torch.uint8)
    *about, after, norms = reply[1:]
    return [blob, *about, after, norms]


def _unpack(packet: Packet, like: ClientState) -> Reply:
    blob, examples, loss, steps, floats, seconds, looks, change, after, norms = packet
    about = examples, loss, steps, floats, seconds, looks, change
    return Reply(blob.numpy().tobytes(), *about, restore(after, like), norms)
