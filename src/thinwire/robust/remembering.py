"""Attacks on what a link remembers: the multiplier of LBGM, and the residual of error feedback.

Differences from a paper: none describes them. Both leave the form and the length of the message as they are, and the
receiver's state too: it is the sender that lies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from ..errors import CombinationError
from ..key import Key
from ..links import LBGM, ErrorFeedback, Link
from ..links.feedback import Residual
from ..params import Params
from ..ranges import Positive, Share
from ..wire import Packet, State
from .attack import Attack, swap


@dataclass(frozen=True)
class RhoFlip(Attack):
    """Hostile clients send ``scale`` times the opposite of LBGM's multiplier: four bytes that turn an update around.

    Updates that are sent whole are honest ones, so both ends keep the same look-back gradient. Raises
    :class:`~thinwire.errors.CombinationError` where no uplink is, or has in it, an :class:`~thinwire.LBGM`.
    """

    share: Share = 0.2
    scale: Positive = 10.0

    def check(self, links: Iterable[Link]) -> None:
        _there(self, links, LBGM, "FedAvg(up=LBGM())")

    def link(self, link: Link) -> Link:
        return swap(link, LBGM, lambda own: FlippedLBGM(**_fields(own), times=self.scale))


@dataclass(frozen=True)
class ResidualFlip(Attack):
    """Hostile clients subtract ``scale`` times what error feedback owes from their update, in place of adding it.

    What they keep is the residual of an honest client, so the lie grows with what compression leaves out. Raises
    :class:`~thinwire.errors.CombinationError` where no uplink is, or has in it, an :class:`~thinwire.ErrorFeedback`.
    """

    share: Share = 0.2
    scale: Positive = 10.0

    def check(self, links: Iterable[Link]) -> None:
        _there(self, links, ErrorFeedback, "FedAvg(up=ErrorFeedback(TopK(0.01)))")

    def link(self, link: Link) -> Link:
        return swap(link, ErrorFeedback, lambda own: FlippedFeedback(**_fields(own), times=self.scale))


@dataclass(frozen=True)
class FlippedLBGM(LBGM):
    """A sender of LBGM that lies about the multiplier."""

    times: float = 1.0

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, seen, after = super().send(x, tx, key)
        if isinstance(packet, list):
            return packet, seen, after
        rho = packet * -self.times
        return rho, self._look_back(tx.gradient, x.layout) * rho, after


@dataclass(frozen=True)
class FlippedFeedback(ErrorFeedback):
    """A sender with error feedback that subtracts what it owes."""

    times: float = 1.0

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        owed = tx.residual.only(x.names)
        packet, seen, inner = self.inner.send(x - owed * self.times, tx.inner, key)
        return packet, seen, Residual(super().send(x, tx, key)[2].residual, inner)


def _fields(link: Any) -> dict[str, Any]:
    return {field.name: getattr(link, field.name) for field in fields(link)}


def _there(attack: Attack, links: Iterable[Link], kind: type[Link], example: str) -> None:
    if all(swap(link, kind, lambda own: type(own)(**_fields(own))) is link for link in links):
        raise CombinationError(f"{attack!r} is an attack on {kind.__name__}, which no uplink is: {example} has one")
