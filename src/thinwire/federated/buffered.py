"""Asynchronous rounds: clients train at their own pace, and the server steps when so many replies are there.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous Aggregation"
(FedBuff), AISTATS 2022, arXiv:2106.06639, Algorithm 1. With a buffer of one reply it is FedAsync: Xie, Koyejo, Gupta,
"Asynchronous Federated Optimization", 2019, arXiv:1903.03934, Algorithm 1 with polynomial staleness.

Differences from the papers: a client that has replied is called again when the server has made its next step, not at
once on the model that it just trained on; so a version is a round, and as many clients train at any time as ``sample``
says. Replies have the method's weights, and their weighted mean is what the server steps by. Norm statistics, fields
that are summed, and those of one client alone count whole, however old they are. FedAsync mixes models: here the update
of a reply is added to the newest model, times its discount and the server's rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..algorithms.base import Algorithm
from ..config import Config
from ..errors import CombinationError, require
from ..ranges import Count, NonNegative
from ..wire import Packet, State, restore
from .envelope import Answer
from .storage import Ends


@dataclass(frozen=True)
class Buffered(Config):
    """``buffer=``: the server steps whenever ``replies`` of them are there, whoever they are from.

    Where fewer are on their way, as others are lost, it steps by these.

    A reply to a broadcast of t steps ago counts (1 + t)^-``staleness`` of what a new one does; 0 discounts nothing. The
    simulated clock (:class:`~thinwire.Network`) says when replies arrive. Equal times go by the round of the call, then
    by client. For methods whose reply means the same later (``Algorithm.late``).
    """

    paper = "Nguyen et al., AISTATS 2022, arXiv:2106.06639"
    example = "Buffered(5)"

    replies: Count
    staleness: NonNegative = 0.5

    def discount(self, steps: int) -> float:
        """What a reply to a broadcast of so many steps ago counts."""
        return float((1 + steps) ** -self.staleness)


def check_late(buffer: Buffered, algorithm: Algorithm) -> None:
    """Raise :class:`~thinwire.errors.CombinationError` for a method whose replies are for one round alone."""
    if not algorithm.late:
        raise CombinationError(
            f"buffer={buffer!r}: a reply of {algorithm!r} to an earlier broadcast means something else later; leave "
            f"buffer out"
        )


def check_replies(buffer: Buffered, cohort: int) -> None:
    """Raise ``ValueError`` for a buffer of more replies than there ever are."""
    require(
        buffer.replies <= cohort,
        f"buffer={buffer!r}: {cohort} clients train at a time, so there are never more replies",
    )


class Arrival(NamedTuple):
    """A reply on its way to the server, or there."""

    answer: Answer
    ends: Ends  # of its client once it is taken, but for the receiving ends of `up`, which are those before
    floats: float  # the papers' count for the reply
    seconds: float  # from the call to its arrival
    looks: list[dict[str, Any]]
    noted: Packet  # what training did, where that is asked for
    norms: dict[str, float] | None
    time: float = 0.0  # of the simulated clock, when it arrives


class Flights:
    """The replies that are on their way between two steps of the server, one a client."""

    def __init__(self) -> None:
        self.arrivals: dict[int, Arrival] = {}

    def land(self, departing: Iterable[Arrival], replies: int, clock: float) -> list[Arrival]:
        """Send off more replies, and take in the first so many of all, in the order of clients."""
        for arrival in departing:
            self.arrivals[arrival.answer.client] = arrival._replace(time=clock + arrival.seconds)
        order = sorted(self.arrivals.values(), key=lambda a: (a.time, a.answer.round, a.answer.client))
        landed = sorted(order[:replies], key=lambda a: a.answer.client)
        for arrival in landed:
            del self.arrivals[arrival.answer.client]
        return landed

    def state(self) -> State:
        """Everything, for a checkpoint."""
        return [[list(arrival.answer), *arrival[1:]] for _, arrival in sorted(self.arrivals.items())]

    def load(self, packet: Packet, fresh: Ends) -> None:
        """Go on from what :meth:`state` gave, after bytes and back. ``fresh`` are ends of the run."""
        blank = Answer("", 0, 0, 0, 0, 0.0, False, 0, 0.0, 0, 0.0, b"")
        arrivals = [Arrival(restore(answer, blank), restore(ends, fresh), *rest) for answer, ends, *rest in packet]
        self.arrivals = {arrival.answer.client: arrival for arrival in arrivals}
