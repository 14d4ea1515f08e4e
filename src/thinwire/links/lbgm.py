"""LBGM, the look-back gradient multiplier.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are
Gradient Subspaces Low-Rank?", ICLR 2022, Algorithms 1 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..errors import CombinationError, check, require
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State
from .base import Link
from .dense import Dense, number
from .sparse import Sparse


class LookBack(NamedTuple):
    """l, and the inner sender's state."""

    gradient: Params  # l
    inner: State


@dataclass(frozen=True)
class LBGM(Link):
    """Send one scalar while the update keeps its direction.

    Both ends keep the last update that was sent whole, l. If the squared sine of the angle
    between the new one, g, and l is at most ``threshold`` (the paper's delta), the scalar
    rho = <g, l> / |l|^2 is sent and rho * l is seen; else g is sent and becomes l.

    ``inner`` sends what is sent whole, and l is what it would deliver:
    ``LBGM(ErrorFeedback(TopK(0.1)), threshold=0.4)``. A recycled round keeps the inner
    link's new residual. The whole vector is tested at once; ``Layerwise(LBGM(...))`` tests
    layer by layer, as the authors' code does.

    Differences from the paper: g is the change of the model over the round, which equals
    the sum of gradients times the learning rate for plain SGD and stays right with
    momentum and decay. Sampled clients are weighted over those that took part (Algorithm 3
    as printed shrinks the step by the share of clients sampled).
    """

    paper = "Azam et al., ICLR 2022"

    inner: Link = Dense()
    threshold: float = 0.2

    memory = True

    def __post_init__(self) -> None:
        require(isinstance(self.inner, Link), f"LBGM holds a link such as TopK(0.01), not {self.inner!r}")
        require(0 <= self.threshold <= 1, f"LBGM(threshold={self.threshold}): threshold is a squared sine, 0 to 1")
        if self.inner.memory:
            raise CombinationError(f"LBGM needs an inner link whose receiver has no memory; {self.inner!r} has one")

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        return isinstance(self.inner, Dense | Sparse) and self.threshold < 1  # what both leave out may add up to more

    def open(self, like: Params) -> tuple[State, State]:
        return LookBack(like.zeros(), self.inner.open(like)[0]), like.zeros()

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, g, inner = self.inner.send(x, tx.inner, key)
        l = tx.gradient.only(x.names)  # noqa: E741  the paper's letter
        rho = _multiplier(g, l, self.threshold)
        if rho is not None:
            return rho, l * rho, LookBack(tx.gradient, inner)
        return [packet], g, LookBack(tx.gradient.replace(g), inner)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if not isinstance(packet, list):
            return rx.only(layout.names) * number(packet), rx
        check(len(packet) == 1, "a whole update or one number")
        g, _ = self.inner.recv(packet[0], layout, None, key)
        return g, rx.replace(g)

    def floats(self, packet: Packet) -> float:
        return self.inner.floats(packet[0]) if isinstance(packet, list) else 1.0


def _multiplier(g: Params, l: Params, threshold: float) -> torch.Tensor | None:  # noqa: E741
    """rho as a 32-bit number if g may be recycled, else None (Algorithm 1, lines 6 and 7)."""
    gg, ll, gl = g @ g, l @ l, g @ l
    if ll == 0 or not math.isfinite(gg):
        return None  # nothing to look back on, or nothing to compare
    if gg == 0:
        return torch.zeros(())
    sine = min(1.0, max(0.0, 1 - gl * gl / (gg * ll)))  # squared
    rho = torch.tensor(gl / ll)
    return rho if sine <= threshold and bool(rho.isfinite()) else None
