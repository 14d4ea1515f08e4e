"""What crossed the network: bytes, as ``len`` of what was sent.

One entry a round, client and direction. ``payload`` is the message's blob, ``framing`` its
header, ``retries`` bytes that had to be sent again. ``personal`` are those bytes of the payload that are of
one client's own model, as SoftPull and FedSM send it; all others are shared. ``floats`` is the papers' own
figure (32-bit floats' worth of values; positions, masks and headers count nothing): kept beside the bytes,
never in place of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args

Direction = Literal["up", "down"]


class Entry(NamedTuple):
    """Bytes of one client in one direction in one round."""

    round: int
    client: int
    direction: Direction
    payload: int
    framing: int
    retries: int = 0
    floats: float = 0.0
    used: bool = True  # False: the bytes crossed, but came too late
    personal: int = 0  # of the payload

    @property
    def total(self) -> int:
        """All bytes that crossed."""
        return self.payload + self.framing + self.retries


class Ledger:
    """Entries by round, in the order in which they were made."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.rounds: dict[int, list[Entry]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Enter what crossed."""
        self.rounds.setdefault(entry.round, []).append(entry)

    def enter_framing(self, round: int, client: int, direction: Direction, size: int, retries: int = 0) -> None:
        """Enter bytes beside a client's message of a round, and bytes that were sent before.

        Where it sent no message they are of one of their own.
        """
        entries = self.rounds.setdefault(round, [])
        for number, entry in enumerate(entries):
            if (entry.client, entry.direction) == (client, direction):
                entries[number] = entry._replace(framing=entry.framing + size, retries=entry.retries + retries)
                return
        entries.append(Entry(round, client, direction, 0, size, retries, used=False))

    def __iter__(self) -> Iterator[Entry]:
        for entries in self.rounds.values():
            yield from entries

    def of(self, direction: Direction | None = None, round: int | None = None) -> list[Entry]:
        """The entries of a direction, of a round, of both."""
        entries = self if round is None else self.rounds.get(round, [])
        return [e for e in entries if direction in (None, e.direction)]

    def bytes(self, direction: Direction | None = None, round: int | None = None) -> int:
        """All bytes, or those of one direction or round."""
        return sum(e.total for e in self.of(direction, round))

    def slowest(self, round: int) -> int:
        """Bytes, both ways, of the client that had the most: what a round waits for on equal links."""
        sums: dict[int, int] = {}
        for e in self.of(round=round):
            sums[e.client] = sums.get(e.client, 0) + e.total
        return max(sums.values(), default=0)

    def sums(self, round: int) -> dict[str, float]:
        """Bytes and floats of a round by direction, for its record, and the bytes of its slowest client."""
        ways = {way: self.of(way, round) for way in get_args(Direction)}
        return {
            **{f"{way}_bytes": sum(e.total for e in entries) for way, entries in ways.items()},
            **{f"{way}_{x}": sum(getattr(e, x) for e in ways[way]) for way in ways for x in ("payload", "framing")},
            **{f"{way}_floats": sum(e.floats for e in entries) for way, entries in ways.items()},
            "slowest_bytes": self.slowest(round),
        }

    def lines(self, round: int) -> str:
        """A round as JSON lines."""
        return "".join(json.dumps(_fields(e)) + "\n" for e in self.of(round=round))

    @staticmethod
    def parse(text: str) -> Ledger:
        """What :meth:`lines` wrote. Raises ``ValueError``, naming the line that is no entry."""
        return Ledger(_entry(number, line) for number, line in enumerate(text.splitlines(), 1))


def _fields(entry: Entry) -> dict[str, Any]:
    """The fields of an entry; ``personal`` where there is any."""
    fields = entry._asdict()
    return fields if entry.personal else {name: value for name, value in fields.items() if name != "personal"}


def _entry(number: int, line: str) -> Entry:
    try:
        return Entry(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise ValueError(f"line {number} is no entry of a ledger ({error}): {line[:60]}") from error
