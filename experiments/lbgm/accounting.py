"""LBGM over top-k as the authors' code counts it: trained on dense messages, billed as if they were sparse.

Both links deliver dense updates. Their floats are the authors' bill: 1 of a recycled message, of every other what top-k
would keep, whichever is less, and nothing for the places of what it keeps. That is no number of bytes: what has to be
sent is dense, and the bytes of these links are those. They differ in the residual that is added to the next update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import thinwire as tw
from thinwire.key import Key
from thinwire.links.base import Wrapper
from thinwire.links.lbgm import multiplier
from thinwire.links.sparse import count_of
from thinwire.params import Layout, Params
from thinwire.wire import Packet, State


class LookBack(NamedTuple):
    """What the sender of :class:`BilledTopK` keeps."""

    gradient: Params  # l
    residual: Params  # e, of top-k


@dataclass(frozen=True)
class BilledTopK(tw.Link):
    """The residual is top-k's: u = g + e is tested and delivered; e <- u - TopK(u), though nobody sees TopK(u)."""

    top_k: tw.TopK = tw.TopK(0.1)
    threshold: float = 0.2

    memory = True

    def open(self, like: Params) -> tuple[State, State]:
        return LookBack(like.zeros(), like.zeros()), like.zeros()

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        l, u = tx.gradient.only(x.names), x + tx.residual.only(x.names)  # noqa: E741  the paper's letter
        residual = tx.residual.replace(u - self.top_k.send(u, None, key)[1])
        if (rho := multiplier(u, l, self.threshold)) is not None:
            return rho, l * rho, LookBack(tx.gradient, residual)
        packet, seen, _ = tw.Dense().send(u, None, key)
        return [packet], seen, LookBack(tx.gradient.replace(u), residual)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if not isinstance(packet, list):
            return rx.only(layout.names) * packet, rx
        seen, _ = tw.Dense().recv(packet[0], layout, None, key)
        return seen, rx.replace(seen)

    def floats(self, packet: Packet) -> float:
        return billed(packet, self.top_k.share)


@dataclass(frozen=True)
class BilledLBGM(Wrapper):
    """The residual is what LBGM leaves out, by ``ErrorFeedback(BilledLBGM())``."""

    inner: tw.LBGM = tw.LBGM(tw.Dense(), 0.2)
    share: float = 0.1

    def floats(self, packet: Packet) -> float:
        return billed(packet, self.share)


def billed(packet: Packet, share: float) -> float:
    """The authors' count of a message, which is a number, or a list of the one dense message."""
    return float(count_of(share, int(tw.Dense().floats(packet[0])))) if isinstance(packet, list) else 1.0
