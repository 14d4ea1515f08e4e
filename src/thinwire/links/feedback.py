"""Links that remember: what was not sent (ErrorFeedback), what was last seen (EF21)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..errors import CombinationError
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State
from .base import LBGMTest, Link, Wrapper, finite
from .sparse import TopK


class Residual(NamedTuple):
    """e, and the inner sender's state."""

    residual: Params
    inner: State


@dataclass(frozen=True)
class ErrorFeedback(Wrapper):
    """What a compressor leaves out is added to the next update.

    p = x + e; send C(p); e <- p - C(p). The message is that of the inner link. The sender keeps e, one vector. Raises
    ``CombinationError`` if the inner link is no contraction. Seide et al., Interspeech 2014; Karimireddy et al., ICML
    2019, arXiv:1901.09847, Algorithm 2.

    Differences from the paper: x is the whole update of a round, so the learning rate is in it. Layers that a round
    leaves out keep their residual.
    """

    paper = "Karimireddy et al., ICML 2019, arXiv:1901.09847"

    inner: Link = TopK(0.01)

    contraction = False
    absolute = False
    feedback = True

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)

    def open(self, like: Params) -> tuple[State, State]:
        tx, rx = self.inner.open(like)
        return Residual(like.zeros(), tx), rx

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        p = x + tx.residual.only(x.names)
        packet, seen, inner = self.inner.send(p, tx.inner, key)
        left = p - seen
        finite(self, left.flat)
        return packet, seen, Residual(tx.residual.replace(left, copy=False), inner)

    def residual(self, tx: State) -> Params | None:
        residual: Params = tx.residual
        return residual

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        return self.inner.look(x + tx.residual.only(x.names), tx.inner, key)


class Estimate(NamedTuple):
    """g, and the inner sender's state."""

    seen: Params
    inner: State


@dataclass(frozen=True)
class EF21(Wrapper):
    """Both ends keep an estimate; what is sent is a compressed step towards the truth.

    g <- g + C(x - g). The message is that of the inner link, and each end keeps g, one vector. It may carry
    broadcasts, because the estimate comes ever closer to an absolute value that settles. Raises ``CombinationError``
    if the inner link is no contraction, or if its receiver keeps a memory. Richtárik, Sokolov, Fatkhullin, NeurIPS
    2021, arXiv:2106.05203, Algorithm 2.

    Differences from the paper: none.
    """

    paper = "Richtárik, Sokolov, Fatkhullin, NeurIPS 2021, arXiv:2106.05203"

    inner: Link = TopK(0.1)

    linear = False
    contraction = False
    memory = True
    absolute = True

    def __post_init__(self) -> None:
        check_compressor(self, self.inner)
        check_memoryless(self, self.inner)

    def open(self, like: Params) -> tuple[State, State]:
        return Estimate(like.clone(), self.inner.open(like.zeros())[0]), like.clone()

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        before = tx.seen.only(x.names)
        packet, step, inner = self.inner.send(x - before, tx.inner, key)
        seen = before + step
        finite(self, seen.flat)
        return packet, seen, Estimate(tx.seen.replace(seen), inner)

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return self.inner.by_layer(packet, layout)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        step, _ = self.inner.recv(packet, layout, None, key)
        seen = rx.only(layout.names) + step
        return seen, rx.replace(seen)


def check_compressor(outer: Link, inner: Link, otherwise: str = "the residual would grow without bound") -> None:
    """Raise :class:`CombinationError` unless ``inner`` is a contraction; ``otherwise`` says what would happen."""
    if not inner.contraction:
        raise CombinationError(
            f"{type(outer).__name__} needs a link that always keeps a part of what it is given (a contraction); "
            f"{inner!r} does not say so (contraction = True in its class), and {otherwise}"
        )


def check_memoryless(outer: Link, inner: Link) -> None:
    """Raise :class:`CombinationError` where the receiver of ``inner`` keeps a memory."""
    if inner.memory:
        name = type(outer).__name__
        raise CombinationError(f"{name} keeps the receiver's memory itself: {inner!r} has one of its own")
