"""When clients are there: drawn by a law, or as it was recorded. Part of a simulated network.

A phone trains while it charges, is idle and has a free link. FedScale (Lai, Dai, Singapuram, Liu, Zhu, Madhyastha,
Chowdhury, "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale", ICML 2022,
arXiv:2105.11367) replays such times from a trace, over and over; so is it here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..config import Config
from ..errors import require
from ..key import Key
from ..ranges import BelowOne, Count, NonNegative, Positive

Session = tuple[float, float]  # its begin and end in seconds of a period
DAY = 86_400.0
ROUNDING = 1e-6  # seconds: far more than a sum of a year's seconds is off by


class Pattern(NamedTuple):
    """When a client is there."""

    sessions: Sequence[Session]  # one after another, none touching the next
    length: float  # seconds, after which they begin anew


class Availability(Config, ABC):
    """When each client is there: ``sessions=`` of a :class:`~thinwire.Network`. A pattern that is repeated."""

    example = "Sessions(on=600, off=1800)"

    @abstractmethod
    def pattern(self, client: int, seed: int) -> Pattern:
        """A client's sessions, from 0 seconds on."""

    def check(self, clients: int) -> None:
        """Raise ``ValueError`` where there is no pattern for each of so many clients."""

    def departure(self, client: int, time: float, seed: int) -> float:
        """Until when a client stays that is there at ``time``: ``time`` itself of one that is not."""
        sessions, length = self.pattern(client, seed)
        turn, begun, there = self._place(client, time, seed)
        if not there:
            return time
        end = sessions[begun - 1][1]
        if end < length or sessions[0][0] > 0:  # else the session goes on in the next period
            return turn * length + end
        return math.inf if len(sessions) == 1 else (turn + 1) * length + sessions[0][1]

    def next_arrival(self, client: int, time: float, seed: int) -> float:
        """When a client is there next, from ``time`` on; infinite for one that never is."""
        sessions, length = self.pattern(client, seed)
        turn, begun, there = self._place(client, time, seed)
        if there:
            return time
        if not sessions:
            return math.inf
        return turn * length + (sessions[begun][0] if begun < len(sessions) else length + sessions[0][0])

    def _place(self, client: int, time: float, seed: int) -> tuple[float, int, bool]:
        """The number of the period, how many of its sessions have begun, and whether the last of these goes on.

        A session begins and ends a microsecond early: a sum of seconds is rounded, and whoever is waited for until it
        comes, or leaves, must then have come, or left.
        """
        sessions, length = self.pattern(client, seed)
        turn, now = divmod(time + ROUNDING, length)
        begun = bisect_right(sessions, (now, math.inf))
        return turn, begun, begun > 0 and sessions[begun - 1][1] > now


@dataclass(frozen=True)
class Sessions(Availability):
    """Clients come and go: there for ``on`` seconds and away for ``off`` seconds, in the mean, with exponential laws.

    ``swing`` makes clients come more often at some hours than at others: the rate of coming is 1 / ``off`` times
    1 + swing cos(2 pi t / day), with t the simulated seconds, so it is at its height at the start of a run. 0: all
    hours are alike. A client's times are drawn once for so many ``days`` of 86,400 seconds, and repeated. With
    ``off=0`` clients are always there.
    """

    on: Positive = 600.0
    off: NonNegative = 1800.0
    swing: BelowOne = 0.0
    days: Count = 2

    def pattern(self, client: int, seed: int) -> Pattern:
        return _draw(self, client, seed)


@dataclass(frozen=True)
class Recorded(Availability):
    """The sessions of every client as they were recorded.

    ``sessions`` are a client's (begin, end) in seconds, in order. They begin anew after ``length`` seconds, a number
    for all clients or one a client.
    """

    sessions: tuple[tuple[Session, ...], ...]
    length: float | tuple[float, ...] = DAY

    def __post_init__(self) -> None:
        require(any(self.sessions), "Recorded: no client is ever there")
        lengths = self.length if isinstance(self.length, tuple) else (self.length,)
        require(
            min(lengths, default=0) > 0 and max(lengths) < math.inf and len(lengths) in (1, len(self.sessions)),
            f"Recorded(length={self.length}): positive seconds, for all clients or one a client",
        )
        for client in range(len(self.sessions)):
            sessions, length = self.pattern(client, 0)
            times = [time for session in sessions for time in session]
            require(
                all(a < b for a, b in pairwise(times)) and (not times or (times[0] >= 0 and times[-1] <= length)),
                f"Recorded: the sessions of client {client} are (begin, end) one after another, none touching the "
                f"next, from 0 to {length:g} seconds",
            )

    def pattern(self, client: int, seed: int) -> Pattern:
        return Pattern(self.sessions[client], self.length[client] if isinstance(self.length, tuple) else self.length)

    def check(self, clients: int) -> None:
        require(
            len(self.sessions) == clients,
            f"Recorded has the sessions of {len(self.sessions)} clients, and there are {clients}",
        )


@lru_cache(maxsize=1 << 14)
def _draw(law: Sessions, client: int, seed: int) -> Pattern:
    """By thinning: a client may come at the highest rate of the day, and does with the probability of the hour."""
    length = law.days * DAY
    if not law.off:
        return Pattern(((0.0, length),), length)
    draws = np.random.default_rng(Key(seed, client=client, where="network").number("sessions"))
    sessions, time = list[Session](), 0.0
    there = draws.random() * (law.on + law.off) < law.on
    while time < length:
        if there:
            end = time + draws.exponential(law.on)
            sessions.append((time, min(end, length)))
            time, there = end, False
        else:
            time += draws.exponential(law.off / (1 + law.swing))
            hour = 1 + law.swing * math.cos(2 * math.pi * time / DAY)
            there = draws.random() * (1 + law.swing) < hour
    return Pattern(tuple(sessions), length)
