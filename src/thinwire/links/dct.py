"""A layer's cosine transform, sent in place of the layer.

Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024, arXiv:2411.19870, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from ..kernels.outer import outer_sum
from ..key import Key
from ..params import Layout, Params
from ..ranges import Count
from ..wire import Packet, State
from .base import Link, Wrapper, finite, in_place, width


@dataclass(frozen=True)
class DCT(Wrapper):
    """The coefficients of every ``chunk`` x ``chunk`` entries of a layer over another link.

    The transform is the orthonormal DCT-II, along both sides of a chunk. A layer is the matrix [first dimension, all
    others]; one of one dimension is cut into runs of ``chunk`` entries. Chunks at an edge may be smaller, and have the
    transform of their own size. ``DCT(ChunkTopK(32))`` sends the 32 largest coefficients of every chunk. Sums are in
    a fixed order, so that both ends see the same bits. The transform keeps lengths, so what the inner link promises
    holds. Raises ``ValueError`` for ``chunk`` below 1.

    Differences from the paper: its code takes, of each side, the largest divisor that is no larger than ``chunk``; here
    the last chunk is smaller. That code refuses layers of more than two dimensions, and cuts none into a matrix.
    """

    paper = "Peng, Quesnelle, Kingma, 2024, arXiv:2411.19870"
    example = "DCT(ChunkTopK(32))"

    inner: Link
    chunk: Count = 64

    sparse = in_place

    def open(self, like: Params) -> tuple[State, State]:
        return self.inner.open(self._each(like, forward=True))

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, seen, tx = self.inner.send(self._each(Params(x.layout, finite(self, x.flat)), True), tx, key)
        return packet, self._back(seen, x.layout), tx

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        seen, rx = self.inner.recv(packet, _single(layout), rx, key)
        return self._back(seen, layout), rx

    def residual(self, tx: State) -> Params | None:
        owed = self.inner.residual(tx)
        return None if owed is None else self._back(owed, owed.layout)

    def mean_of_senders(self, packets: Sequence[Packet], layout: Layout, key: Key) -> Params:
        """As of the inner link: of each coefficient the mean over those who sent it."""
        return self._back(self.inner.mean_of_senders(packets, _single(layout), key), layout)

    def _back(self, seen: Params, layout: Layout) -> Params:
        x = self._each(seen, forward=False)
        return Params(layout, finite(self, x.flat).to(layout.dtype))

    def _each(self, x: Params, forward: bool) -> Params:
        """Every layer's coefficients, or the layers that have them, in 32 bits."""
        coefficients = _single(x.layout).zeros()
        for name, layer in x.items():
            if layer.numel():
                matrix = layer.to(torch.float32).reshape(-1, width(layer.shape) or layer.numel())
                coefficients[name].copy_(self._along(self._along(matrix, forward).T, forward).T.reshape(layer.shape))
        return coefficients

    def _along(self, x: Float32[Tensor, "n m"], forward: bool) -> Float32[Tensor, "n m"]:
        """The transform along the first dimension, chunk by chunk, or back."""
        n, m = x.shape
        whole, out = n - n % self.chunk, torch.empty_like(x)
        for part, into, size in ((x[:whole], out[:whole], self.chunk), (x[whole:], out[whole:], n - whole)):
            if part.numel():
                columns = part.view(len(part) // size, size, m).transpose(0, 1)  # [size, chunks, m]
                left = basis(size).T if forward else basis(size)
                product = outer_sum(left, columns.reshape(size, -1)).view(columns.shape)
                into.view(-1, size, m).copy_(product.transpose(0, 1))
        return out


def basis(n: int) -> Float32[Tensor, "n n"]:
    """The orthonormal DCT-II of ``n`` numbers: row k has sqrt(2 / n) cos(pi k (2 i + 1) / 2 n), row 0 sqrt(1 / n)."""
    i = torch.arange(n, dtype=torch.float64, device="cpu")
    rows = torch.cos(math.pi / (2 * n) * i[:, None] * (2 * i + 1)) * math.sqrt(2 / n)
    rows[0] = math.sqrt(1 / n)
    return rows.float()


def _single(layout: Layout) -> Layout:
    """The same layers in 32 bits."""
    return Layout(layout.names, layout.shapes)
