"""The largest entries of every chunk of a layer.

Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo", 2025,
arXiv:2508.15706, section 3, after Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024,
arXiv:2411.19870, whose chunks these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from ..errors import check
from ..key import Key
from ..params import Layout, Params
from ..ranges import Count
from ..wire import Packet, State
from .base import Codec, Link, finite, parts, width
from .bins import Bins
from .dense import Dense
from .sparse import pack_positions, unpack_positions

VECTORS = "*"  # all layers of one dimension, one after another


class Chunks(NamedTuple):
    """How a matrix is cut into chunks ``height`` x ``width``; those at its right and lower edges may be smaller.

    The order of entries is that of whole chunks, then of those at the right edge, the lower edge and the corner; within
    each of these four chunks go by rows, and so do the entries of a chunk.
    """

    shape: tuple[int, int]
    height: int
    width: int

    def areas(self) -> Iterator[tuple[slice, slice, int, int]]:
        """Rows, columns, and height and width of a chunk, of each of the four areas that has entries."""
        rows, columns = (n - n % side for n, side in zip(self.shape, (self.height, self.width), strict=True))
        for above, below, height in ((0, rows, self.height), (rows, self.shape[0], self.shape[0] - rows)):
            for left, right, wide in ((0, columns, self.width), (columns, self.shape[1], self.shape[1] - columns)):
                if above < below and left < right:
                    yield slice(above, below), slice(left, right), height, wide

    def cut(self, x: Float32[Tensor, "rows columns"]) -> list[Tensor]:
        """The chunks of each area, as the rows of a matrix."""
        return [
            _blocks(x[rows, columns], *sides).reshape(-1, math.prod(sides)) for rows, columns, *sides in self.areas()
        ]

    def sizes(self) -> list[tuple[int, int]]:
        """The number of chunks of each area, and the entries of one."""
        return [((r.stop - r.start) * (c.stop - c.start) // (h * w), h * w) for r, c, h, w in self.areas()]

    def join(self, flat: Float32[Tensor, " n"]) -> Float32[Tensor, "rows columns"]:
        """The matrix whose entries are given in the order of chunks."""
        x, start = flat.new_empty(self.shape), 0
        for rows, columns, h, w in self.areas():
            part = _blocks(x[rows, columns], h, w)
            part.copy_(flat[start : start + part.numel()].view(part.shape))
            start += part.numel()
        return x


def _blocks(x: Tensor, height: int, width: int) -> Tensor:
    """A view of a matrix as [blocks down, blocks across, height, width]."""
    rows, columns = x.shape
    return x.view(rows // height, height, columns // width, width).transpose(1, 2)


@dataclass(frozen=True)
class ChunkTopK(Link):
    """The ``k`` largest entries by magnitude of every chunk of ``chunk`` x ``chunk`` entries.

    A layer is the matrix [first dimension, all others]. All layers of one dimension together are one vector, whose
    chunks are runs of chunk^2 entries. With ``rows`` a chunk is ``chunk`` entries of a row, or of that vector. Of a
    smaller chunk, at an edge, the same share is sent, rounded up. Positions are coded in the order of chunks, in which
    gaps between them are short and alike. ``values`` is the codec of what is kept; the bins of
    ``values=Bins(4)`` are sent in one stream for all layers. Zeros are not sent. Of equal magnitudes those that come
    first are. Raises ``ValueError`` for ``k`` or ``chunk`` below 1 and a ``k`` above the entries of a chunk.

    Differences from the paper: positions are coded, where the paper sends 12 bits each, and so are values. Sides that
    are no multiples of ``chunk`` have smaller chunks at their ends; the authors' code takes the largest divisor of the
    side that is no larger than ``chunk``, which is 1 of a prime number, and sends layers of one dimension each by
    itself. With ``rows`` it is the code of CCLoco, of before August 2025.
    """

    paper = "Sarfi, Thérien, Lidin, Belilovsky, 2025, arXiv:2508.15706"
    example = "ChunkTopK(64)"

    k: Count = 64
    chunk: Count = 64
    values: Codec = Dense()
    rows: bool = False

    sparse = True

    def __post_init__(self) -> None:
        if self.k > self._whole:
            raise ValueError(f"{self!r}: a chunk has {self._whole} entries, and k is at most that")

    @property
    def _whole(self) -> int:
        """The entries of a whole chunk."""
        return self.chunk if self.rows else self.chunk * self.chunk

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        return self.values.contraction

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        seen, packet, bins = x.layout.zeros(), list[Packet](), list[Tensor]()
        x = Params(x.layout, finite(self, x.flat)).to(torch.float32)
        for name, members, chunks in self._matrices(x.layout):
            matrix = torch.cat([x[one].reshape(-1) for one in members]).view(chunks.shape)
            areas = chunks.cut(matrix)
            positions, flat = self._largest(areas), torch.cat([area.reshape(-1) for area in areas])
            kept = flat[positions]
            where = pack_positions(positions, flat.numel(), self._whole)
            if isinstance(self.values, Bins):
                means, numbers, decoded = self.values.bins(kept)
                packet.append([where, means])
                bins.append(numbers)
            else:
                coded, decoded = self.values.transcode(kept, key.at(name))
                packet.append([where, coded])
            _spread(seen, members, chunks, positions, decoded)
        if isinstance(self.values, Bins):
            packet.append(
                self.values.pack(torch.cat(bins) if bins else torch.zeros(0, dtype=torch.int16, device="cpu"))
            )
        return packet, seen, None

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        matrices, binned = list(self._matrices(layout)), isinstance(self.values, Bins)
        coded = parts(packet, len(matrices) + binned, "positions and values of each layer")
        seen, several = layout.zeros(), [parts(each, 2, "positions and values") for each in coded[: len(matrices)]]
        row = self._whole
        positions_of = [
            unpack_positions(where, math.prod(chunks.shape), row)
            for (where, _), (_, _, chunks) in zip(several, matrices, strict=True)
        ]
        numbers: tuple[Tensor, ...] = ()
        if isinstance(self.values, Bins):
            counts = [each.numel() for each in positions_of]
            numbers = torch.split(self.values.unpack(coded[-1], sum(counts)), counts)
        for i, (name, members, chunks) in enumerate(matrices):
            positions, (_, values) = positions_of[i], several[i]
            self._check(positions, chunks)
            if isinstance(self.values, Bins):
                decoded = self.values.values(values, numbers[i])
            else:
                decoded = self.values.decode(values, positions.shape, key.at(name))
            _spread(seen, members, chunks, positions, decoded)
        return seen, None

    def _matrices(self, layout: Layout) -> Iterator[tuple[str, list[str], Chunks]]:
        """Name, layers and chunks of each matrix: a layer of more dimensions than one, or all others together."""
        vectors = [name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) < 2]
        long = sum(layout.spans[name][1] for name in vectors)
        height = 1 if self.rows else self.chunk
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            if len(shape) > 1 and shape.numel():
                yield name, [name], Chunks((shape[0], width(shape)), height, self.chunk)
        if long:
            yield VECTORS, vectors, Chunks((1, long), 1, self._whole)

    def _quota(self, size: int) -> int:
        """The entries that are sent of a chunk."""
        return -(-self.k * size // self._whole)

    def _largest(self, areas: list[Tensor]) -> Int64[Tensor, " m"]:
        """The positions, ascending, in the order of chunks."""
        places, start = list[Tensor](), 0
        for area in areas:
            magnitude, k = area.abs(), self._quota(area.shape[1])
            least = magnitude.topk(k, sorted=False).values.amin(1, keepdim=True)
            above = magnitude > least
            equal = magnitude == least
            left = k - above.sum(1, keepdim=True)
            if bool((equal.sum(1, keepdim=True) > left).any()):
                equal &= equal.cumsum(1) <= left
            taken = (above | equal) & (magnitude > 0)
            places.append(taken.view(-1).nonzero().view(-1) + start)
            start += area.numel()
        return torch.cat(places)

    def _check(self, positions: Int64[Tensor, " m"], chunks: Chunks) -> None:
        """Raise ``WireError`` for more entries of a chunk than are sent."""
        start = 0
        for count, size in chunks.sizes():
            own = positions[(positions >= start) & (positions < start + count * size)]
            most = torch.bincount((own - start) // size, minlength=1).max()
            check(int(most) <= self._quota(size), f"at most {self._quota(size)} entries of a chunk")
            start += count * size

    def floats(self, packet: Packet) -> float:
        if isinstance(self.values, Bins):
            return sum(float(means.numel()) for _, means in packet[:-1]) + float(packet[-1].numel()) / 4
        return sum(self.values.count(values) for _, values in packet)


def _spread(seen: Params, members: list[str], chunks: Chunks, positions: Tensor, values: Tensor) -> None:
    """Write the values at their positions into the layers that a matrix is made of."""
    flat = torch.zeros(math.prod(chunks.shape), dtype=values.dtype, device="cpu").index_copy_(0, positions, values)
    whole, start = chunks.join(flat).reshape(-1), 0
    for name in members:
        layer = seen[name]
        layer.copy_(whole[start : start + layer.numel()].view(layer.shape))
        start += layer.numel()
