"""What the clients of a round and the server say to one another, so that the server learns a sum and nothing else.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Figure 4 without its
signatures, among the neighbours of Bell, Bonawitz, Gascón, Lepoint, Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, Algorithm 2. A server that follows the protocol, and up to ``threshold``
neighbours of a client that tell it everything, learn no more of that client than the sum.

=========  ==========================================  ==========================================
trip       a client sends                              and is sent
=========  ==========================================  ==========================================
keys       two public keys, of channels and of masks   those of its neighbours
shares     for each neighbour, sealed: a share of its  those that are for it
           mask key, and of the seed of its own mask
reply      its numbers, with all masks                 who has replied, of its neighbours
reveal     of those, and of itself, the share of the
           own mask's seed; of others that of the
           mask key
=========  ==========================================  ==========================================

Of i and j the lower adds what both draw from their common key, and the higher subtracts it. What is left in the sum are
the own masks of those who replied, and what the others' neighbours share with them: both are drawn again from the
secrets that ``threshold`` + 1 shares give back, of which a client holds one of its own. It gives of each neighbour the
one share or the other, once. It hides one reply in a round; and where the round is begun again, with other keys, it
helps to uncover the sum of the same clients or none, for two sums that differ by a client are its reply.

Differences from the papers: keys are new in every round, and masks are drawn for each field by its name. Neighbours
stand in a ring that the round's public seed draws; where those who replied are not connected in it, nothing is
uncovered. Messages are not signed: a server that lies about who replied, or makes up clients, is not guarded against.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from ...errors import ThinwireError, check
from ...key import Key
from ...links.base import octets, row
from ...wire import dumps, loads
from . import shamir
from .masks import LENGTH, Pair, agree, draw, seal, unseal

SEALED = 2 * LENGTH + 16  # bytes of two shares, sealed
ALL_UP_TO = 33  # clients of a round, all of whom are neighbours


class TooFew(ThinwireError):
    """Fewer neighbours than the threshold are left: the sum cannot be had, and nobody learns anything."""


@dataclass(frozen=True)
class Circle:
    """The clients of a round, and who is whose neighbour: known to everyone."""

    about: bytes  # names run and round
    neighbours: dict[int, tuple[int, ...]]
    threshold: int
    size: int  # clients

    @staticmethod
    def of(clients: Iterable[int], key: Key, about: bytes, degree: int | None, threshold: int | None) -> Circle:
        """``degree`` neighbours each, an even number; None: all of up to 33 clients, else 16 log2 of their number.

        ``threshold`` of them have to answer beside the client, None: half of them, rounded up, so that together they
        are more than half. Raises ``ValueError`` for a threshold that fewer neighbours than there are can reach.
        """
        clients = sorted(clients)
        n = len(clients)
        degree = min(degree or (n if n <= ALL_UP_TO else 16 * math.ceil(math.log2(n))), shamir.MOST - 1)
        order = [clients[i] for i in torch.randperm(n, generator=key.everyone().generator("ring"), device="cpu")]
        neighbours = dict[int, tuple[int, ...]]()
        for place, client in enumerate(order):
            near = {order[(place + sign * step) % n] for step in range(1, (degree + 1) // 2 + 1) for sign in (1, -1)}
            neighbours[client] = tuple(sorted(near - {client}))
        least = min(map(len, neighbours.values()), default=0)
        threshold = threshold or (least + 1) // 2
        if n < 2 or threshold > least:
            raise ValueError(
                f"{n} client(s) in a round of which {threshold} neighbours have to answer: a secure sum needs two "
                f"clients at least, and no more answers than a client has neighbours ({least})"
            )
        return Circle(about, neighbours, threshold, n)


class Kept(NamedTuple):
    """What a client keeps of a round between two messages, on its disk where it is a process of its own."""

    about: bytes = b""
    client: int = 0
    threshold: int = 0
    size: int = 0
    neighbours: bytes = b""
    private: bytes = b""  # the keys of channels and of masks, and the seed; nothing once shares are given
    public: bytes = b""
    held: bytes = b""
    hidden: bytes = b""
    replied: bytes = b""


class Member:
    """One client's half of a round. ``before`` is what it kept of the same round, where that is begun again."""

    def __init__(self, client: int, circle: Circle, before: Kept | None = None) -> None:
        self.client, self.circle = client, circle
        self.neighbours = circle.neighbours[client]
        self.channel, self.mask, self.seed = Pair.new(), Pair.new(), Pair.new().private
        self.public: dict[int, tuple[bytes, bytes]] = {}
        self.held: dict[int, tuple[bytes, bytes]] = {}  # of whom: shares of its mask key, and of its seed
        self.given = False
        self.hidden = b""  # a digest of the reply that it has hidden
        again = before is not None and before.about == circle.about
        self.replied = before.replied if before is not None and again else b""  # of whose sum it has given shares

    def keep(self) -> Kept:
        """For a file. When shares are given the keys are not in it."""
        public = _write({i: b"".join(pair) for i, pair in self.public.items()})
        held = _write({i: b"".join(pair) for i, pair in self.held.items()})
        circle, near = self.circle, write_clients(self.neighbours)
        about = circle.about, self.client, circle.threshold, circle.size, near
        if self.given:
            return Kept(*about, replied=self.replied)
        private = self.channel.private + self.mask.private + self.seed
        return Kept(*about, private, public, held, self.hidden, self.replied)

    @staticmethod
    def of(kept: Kept) -> Member:
        """The client that :meth:`keep` was asked of. Raises ``WireError`` where its keys are gone."""
        check(kept.private, "keys that have not given their shares")
        near = {kept.client: tuple(list_clients(kept.neighbours))}
        member = Member(kept.client, Circle(kept.about, near, kept.threshold, kept.size))
        member.channel, member.mask = Pair.of(kept.private[:LENGTH]), Pair.of(kept.private[LENGTH : 2 * LENGTH])
        member.seed, member.hidden, member.replied = kept.private[2 * LENGTH :], kept.hidden, kept.replied
        member.public = _pairs(kept.public)
        member.held = _pairs(kept.held)
        return member

    def keys(self) -> bytes:
        """What it sends first."""
        return self.channel.public + self.mask.public

    def shares(self, data: bytes) -> bytes:
        """What it sends on its neighbours' public keys. Raises :class:`TooFew`, and ``WireError``."""
        check(not self.held, "one question for shares: others would be of the same keys")
        for client, keys in _pairs(data).items():
            check(client in self.neighbours, "the keys of neighbours")
            self.public[client] = keys
        check(len({key for pair in self.public.values() for key in pair}) == 2 * len(self.public), "a key for each")
        if len(self.public) < self.circle.threshold:
            raise TooFew(f"client {self.client}: {len(self.public)} neighbours are there")
        holders = (*self.neighbours, self.client)
        secrets, threshold = (self.mask.private, self.seed), self.circle.threshold + 1
        pairs = zip(*(shamir.split(x, len(holders), threshold) for x in secrets), strict=True)
        shares = dict(zip(holders, pairs, strict=True))
        self.held[self.client] = shares[self.client]
        return _write(
            {to: seal(self._channel(self.client, to), b"".join(shares[to]), self._about) for to in self.public}
        )

    def take(self, data: bytes) -> None:
        """Take the shares that neighbours made for it. It shares masks with these and no others."""
        for client, sealed in _rows(data, SEALED).items():
            check(client in self.public, "shares of neighbours whose keys are known")
            both = unseal(self._channel(client, self.client), sealed, self._about)
            self.held[client] = both[:LENGTH], both[LENGTH:]
        if len(self._partners) < self.circle.threshold:
            raise TooFew(f"client {self.client}: {len(self._partners)} neighbours made shares")

    def commit(self, reply: bytes) -> None:
        """Say which reply it hides. Raises ``WireError`` for a second one: the difference of two would be bare."""
        digest = hashlib.sha256(reply + b"".join(map(b"%d,".__mod__, self._partners))).digest()
        check(self.hidden in (b"", digest), "one reply to hide in a round")
        self.hidden = digest

    def hide(self, name: str, numbers: Int64[Tensor, " n"], width: int) -> Int64[Tensor, " n"]:
        """The numbers of a field with all masks, modulo 2**width."""
        hidden = numbers + draw(self.seed, name, len(numbers), width)
        for other in self._partners:
            common = draw(self._common(other), name, len(numbers), width)
            hidden = hidden + common if self.client < other else hidden - common
        return hidden & ((1 << width) - 1)

    def reveal(self, data: bytes) -> bytes:
        """The shares that the server asks for when it says who has replied. Raises ``WireError`` for a second time."""
        replied = set(list_clients(data))
        check(not self.given, "one question for shares: the second would give both of a neighbour")
        check(replied <= set(self._partners), "neighbours that have replied")
        same = not self.replied or set(list_clients(self.replied)) == replied
        check(same, "the clients of the sum that was uncovered before this round was begun again")
        if len(replied) < self.circle.threshold:
            raise TooFew(f"client {self.client}: {len(replied)} neighbours have replied")
        self.given, self.replied = True, data
        return _write({client: pair[client in replied or client == self.client] for client, pair in self.held.items()})

    @property
    def _partners(self) -> list[int]:
        """The neighbours with whom it shares masks."""
        return [client for client in self.held if client != self.client]

    @property
    def _about(self) -> bytes:
        return self.circle.about

    def _channel(self, sender: int, receiver: int) -> bytes:
        """The key that seals what one neighbour sends the other."""
        other = receiver if sender == self.client else sender
        return agree(self.channel.private, self.public[other][0], b"share|%d|%d|" % (sender, receiver) + self._about)

    def _common(self, other: int) -> bytes:
        return agree(self.mask.private, self.public[other][1], b"mask|" + self._about)


class Broker:
    """The server's half of a round: it hands on what clients say, and in the end knows the sum of all masks."""

    def __init__(self, circle: Circle) -> None:
        self.circle = circle
        self.public: dict[int, tuple[bytes, bytes]] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}  # by sender and receiver
        self.replied: set[int] = set()

    def check(self, trip: str, client: int, data: bytes) -> None:
        """Raise ``WireError``, naming the client, for what is no answer to a question of this trip."""
        if trip == "keys":
            check(len(data) == 2 * LENGTH, f"client {client}: two public keys of {LENGTH} bytes")
        elif trip == "shares":
            near = self.circle.neighbours[client]
            check(_rows(data, SEALED).keys() <= set(near), f"client {client}: shares for its neighbours")
        else:
            known = {client, *(j for j, made in self.sealed.items() if client in made)}
            check(_rows(data, LENGTH).keys() <= known, f"client {client}: shares that it was given")

    def keys(self, sent: Mapping[int, bytes]) -> dict[int, bytes]:
        """What each client is sent on the keys of those that are there. Raises ``WireError``, naming the client.

        Whoever has too few neighbours left is sent nothing any more.
        """
        for client, data in sent.items():
            self.check("keys", client, data)
            self.public[client] = data[:LENGTH], data[LENGTH:]
        near = self.circle.neighbours
        return self._enough({i: {j: self.public[j] for j in near[i] if j in self.public} for i in self.public})

    def shares(self, sent: Mapping[int, bytes]) -> dict[int, bytes]:
        """What each client is sent on the shares that clients made."""
        for client, data in sent.items():
            self.check("shares", client, data)
            self.sealed[client] = _rows(data, SEALED)
        return self._enough({i: {j: (made[i],) for j, made in self.sealed.items() if i in made} for i in self.sealed})

    def _enough(self, rows: Mapping[int, Mapping[int, tuple[bytes, ...]]]) -> dict[int, bytes]:
        """The messages to those who have neighbours enough."""
        enough = {i: row for i, row in rows.items() if len(row) >= self.circle.threshold}
        return {i: _write({j: b"".join(parts) for j, parts in row.items()}) for i, row in enough.items()}

    def ask(self, replied: Iterable[int]) -> dict[int, bytes]:
        """What each client that has replied is asked: which of its neighbours have."""
        self.replied = set(replied) & set(self.sealed)
        return {i: write_clients(j for j in self._near(i) if j in self.replied) for i in self.replied}

    def is_connected(self, replied: Iterable[int]) -> bool:
        """Whether those who replied share masks in one piece: of several the server would learn a sum each."""
        left = set(replied) & set(self.sealed)
        reached = [left.pop()] if left else []
        while reached:
            near = left.intersection(self._near(reached.pop()))
            left -= near
            reached += near
        return not left

    def secrets(self, sent: Mapping[int, bytes]) -> Secrets:
        """What takes the masks off the sum of those who replied. Raises :class:`TooFew`, and ``WireError``."""
        shares_of, needed = dict[int, dict[int, bytes]](), self.circle.threshold + 1
        for client, data in sent.items():
            self.check("reveal", client, data)
            for of, share in _rows(data, LENGTH).items():
                number = (*self.circle.neighbours[of], of).index(client) + 1
                shares_of.setdefault(of, {})[number] = share
        lost = {j for i in self.replied for j in self._near(i)} - self.replied
        whole = dict[int, bytes]()
        for client in self.replied | lost:
            shares = shares_of.get(client, {})
            if len(shares) < needed:
                raise TooFew(f"{len(shares)} of {needed} shares of client {client} are there")
            whole[client] = shamir.combine(dict(list(shares.items())[:needed]))
        for client in lost:
            check(Pair.of(whole[client]).public == self.public[client][1], f"shares of the key of client {client}")
        return Secrets(self, {i: whole[i] for i in self.replied}, {j: whole[j] for j in lost})

    def _near(self, client: int) -> list[int]:
        """The neighbours with whom it shares masks."""
        return [j for j in self.circle.neighbours[client] if client in self.sealed.get(j, ()) and j in self.sealed]


@dataclass(frozen=True)
class Secrets:
    """The seeds of those who replied, and the mask keys of those who did not."""

    broker: Broker
    seeds: dict[int, bytes]
    keys: dict[int, bytes]

    def masks(self, name: str, count: int, width: int) -> Int64[Tensor, " n"]:
        """The sum of all masks in a field of the replies, modulo 2**width."""
        total = torch.zeros(count, dtype=torch.int64, device="cpu")
        for seed in self.seeds.values():
            total += draw(seed, name, count, width)
        for lost, private in self.keys.items():
            for client in set(self.broker._near(lost)) & self.seeds.keys():
                public = self.broker.public[client][1]
                common = draw(agree(private, public, b"mask|" + self.broker.circle.about), name, count, width)
                total = total + common if client < lost else total - common
        return total & ((1 << width) - 1)


def write_clients(clients: Iterable[int]) -> bytes:
    """Numbers of clients as bytes."""
    return _write(dict.fromkeys(clients, b""))


def list_clients(data: bytes) -> list[int]:
    """The numbers that :func:`write_clients` wrote. Raises ``WireError``."""
    return list(_rows(data, 0))


def _write(rows: Mapping[int, bytes]) -> bytes:
    """Clients' numbers, and as many bytes of each."""
    return dumps([torch.tensor(list(rows), dtype=torch.int32, device="cpu"), b"".join(rows.values())])


def _pairs(data: bytes) -> dict[int, tuple[bytes, bytes]]:
    """Rows of two keys each, or of two shares. Raises ``WireError``."""
    return {client: (both[:LENGTH], both[LENGTH:]) for client, both in _rows(data, 2 * LENGTH).items()}


def _rows(data: bytes, size: int) -> dict[int, bytes]:
    """What :func:`_write` wrote, ``size`` bytes of each client. Raises ``WireError``."""
    rows = loads(data)
    check(isinstance(rows, list) and len(rows) == 2, "clients, and some bytes of each")
    numbers, text = row(rows[0], torch.int32).tolist(), octets(rows[1]).numpy().tobytes()
    check(len(set(numbers)) == len(numbers) and len(text) == size * len(numbers), f"{size} bytes of each client, once")
    return {client: text[size * i : size * (i + 1)] for i, client in enumerate(numbers)}
