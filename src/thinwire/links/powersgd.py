"""PowerSGD: one step of power iteration a round, from where the last one ended.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS
2019, arXiv:1905.13727, Algorithms 1 and 2.

Differences from the paper: workers there agree on one pair of factors by two all-reduces, of M Q and of M^T P. A link
is one message in one direction. So each sender here iterates on its own matrix and sends its own pair, P and M^T P,
and pairs are not averaged: the link is not linear. With one sender both are the same. The update of a round takes the
place of the gradient. The columns of Q are scaled to unit length before they are used, which keeps their span and
keeps small numbers from vanishing. A column of zeros is drawn anew.

Measured here: with a warm start each message is nearly as good as the decomposition, and with a cold start it loses
half as much again. With error feedback a cold start can owe less in the end where updates repeat themselves, because
it finds at once what has piled up outside the last directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..key import Key
from ..params import Layout, Params
from ..ranges import Count
from ..wire import Packet, State
from .base import Link, finite
from .lowrank import LowRank, factors, sides, thin


class Sender(NamedTuple):
    """What is still owed, and Q^T of every layer that is sent in factors."""

    residual: Params
    start: dict[str, Tensor]  # [rank, n]


@dataclass(frozen=True)
class PowerSGD(Link):
    """Two factors of rank ``rank`` of each layer's matrix, near the best, for two thin products; error feedback inside.

    The sender keeps what it left out (error feedback) and the Q of its iteration (the warm start). With
    ``warm=False`` the iteration begins from random numbers in each round. The receiver keeps nothing. Matrices,
    layers sent whole, and bytes are those of ``LowRank``. Raises ``ValueError`` for a rank below 1.
    """

    paper = "Vogels, Karimireddy, Jaggi, NeurIPS 2019, arXiv:1905.13727"

    rank: Count = 2
    warm: bool = True

    feedback = True

    def open(self, like: Params) -> tuple[State, State]:
        shapes = zip(like.layout.names, like.layout.shapes, strict=True)
        start = {
            name: torch.zeros(self.rank, sides(s)[1], dtype=torch.float32, device="cpu")
            for name, s in shapes
            if thin(s, self.rank)
        }
        return Sender(like.zeros(), start), None

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        owed = x + tx.residual.only(x.names)
        packet, start = [], dict(tx.start)
        for name, layer in owed.to(torch.float32).items():
            if name not in start:
                packet.append(layer.reshape(-1))
                continue
            left, right = iterate(layer.reshape(len(layer), -1), start[name], key.at(name))
            packet.append(factors(left, right))
            start[name] = right if self.warm else start[name]
        seen, _ = self.recv(packet, x.layout, None, key)
        left = owed - seen
        finite(self, left.flat)
        return packet, seen, Sender(tx.residual.replace(left, copy=False), start)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return LowRank(self.rank).recv(packet, layout, rx, key)

    def residual(self, tx: State) -> Params | None:
        residual: Params = tx.residual
        return residual

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return dict(zip(layout.names, packet, strict=True))

    def floats(self, packet: Packet) -> float:
        return LowRank(self.rank).floats(packet)


def iterate(
    x: Float[Tensor, "m n"], start: Float[Tensor, "rank n"], key: Key
) -> tuple[Float[Tensor, "m rank"], Float[Tensor, "rank n"]]:
    """Algorithm 1: P = orthonormal(M Q) and P^T M, for M = ``x`` and Q^T = ``start``."""
    left = torch.linalg.qr(x @ unit(start, key).T).Q
    return left, left.T @ x


def unit(start: Float[Tensor, "rank n"], key: Key) -> Float[Tensor, "rank n"]:
    """Rows of length one; random numbers for those that are zero."""
    length = torch.linalg.vector_norm(start, dim=1, keepdim=True, dtype=torch.float64)
    drawn = torch.randn(start.shape, generator=key.generator("start"), dtype=torch.float32, device="cpu")
    return torch.where(length > 0, (start / length).float(), drawn)
