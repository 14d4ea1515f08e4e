"""A link for each speed: clients on thin uplinks send less."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import check, require
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State
from .base import LBGMTest, Link, Wrapper
from .wrappers import apart


@dataclass(frozen=True)
class ByBandwidth(Wrapper):
    """The link of the highest rate that a client's uplink reaches: ``ByBandwidth({"1": Half(), "*": TopK(0.01)})``.

    Rates are in Mbit/s, written as texts; ``"*"`` stands for any rate, as ``"0"`` does. Both ends know the measured
    rate. In a deployment the server says it in each call, and in a simulation it is the rate of ``network``. An
    uplink below all rates takes the lowest. One that was not measured yet takes the highest, unless
    ``serve(mbit=...)`` says what it carries at least. Every link keeps its own states, so what error feedback owes
    stays with the link that owes it. Raises ``ValueError`` for an empty table, a rate that is no number, or the same
    rate twice; and ``CombinationError`` where no rate is ever known: as a downlink, when a run begins, and between
    ranks.
    """

    links: dict[str, Link]

    linear = False  # clients differ in what they send

    def __post_init__(self) -> None:
        require(bool(self.links), 'ByBandwidth needs a link for each rate, such as {"1": Half(), "*": TopK(0.01)}')
        for rate in self.links:
            require(
                rate == "*" or (rate.replace(".", "", 1).isdecimal() and rate.isascii()),
                f'ByBandwidth({{{rate!r}: ...}}): a rate in Mbit/s is written such as "1" or "0.5", any rate as "*"',
            )
        require(len(set(self.rates)) == len(self.links), f"{self!r}: the same rate is there twice")

    @property
    def held(self) -> Iterable[Link]:
        return self.links.values()

    @property
    def rates(self) -> list[float]:
        """The rates in Mbit/s, in the order of ``links``."""
        return [_mbit(rate) for rate in self.links]

    def rate_for(self, mbit: float | None) -> str:
        """The key of the link in ``links`` for an uplink of ``mbit`` Mbit/s (None: not measured yet)."""
        rates = dict(zip(self.rates, self.links, strict=True))
        reached = [rate for rate in rates if mbit is None or rate <= mbit]
        return rates[max(reached) if reached else min(rates)]

    def open(self, like: Params) -> tuple[State, State]:
        return apart(self, {rate: link.open(like) for rate, link in self.links.items()})

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        rate = self.rate_for(key.mbit)
        packet, seen, own = self.links[rate].send(x, tx[rate], key)
        return [_mbit(rate), packet], seen, {**tx, rate: own}

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        rate = self.rate_for(key.mbit)
        return self.links[rate].look(x, tx[rate], key)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        rate = self.rate_for(key.mbit)
        pair = isinstance(packet, list) and len(packet) == 2 and type(packet[0]) is float
        check(pair and packet[0] == _mbit(rate), f"a packet of the link for {rate} Mbit/s")
        seen, own = self.links[rate].recv(packet[1], layout, rx[rate] if rx else None, key)
        return seen, {**rx, rate: own} if rx else None

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return dict(zip(self.rates, self.links.values(), strict=True))[packet[0]].by_layer(packet[1], layout)

    def floats(self, packet: Packet) -> float:
        return dict(zip(self.rates, self.links.values(), strict=True))[packet[0]].floats(packet[1])


def goes_by_rate(link: Link) -> bool:
    """Whether a link is a :class:`ByBandwidth`, or holds one: then a key needs a client's rate."""
    return isinstance(link, ByBandwidth) or any(map(goes_by_rate, link.held if isinstance(link, Wrapper) else ()))


def _mbit(rate: str) -> float:
    return 0.0 if rate == "*" else float(rate)
