"""A few entries and where they are.

Positions are really sent: as gaps in a Rice code, as one bit an entry, or by the adaptive coder, which learns where in
a layer they lie (:mod:`thinwire.kernels.levels`), whichever is smallest. Only ``RandK`` sends none, because both ends
draw them from the same seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Bool, Int
from torch import Size, Tensor

from ..errors import check
from ..kernels import gaps, levels
from ..kernels.select import above, largest, sample_threshold, top_k
from ..key import Key
from ..params import Layout, Params
from ..ranges import Share
from ..wire import Packet, State
from .base import Codec, Drawn, floats, join, octets, parts, vector, width
from .dense import Dense

SPARSEST = 1 << 14  # entries a position, beyond which those between cost more time than bytes are saved


def pack_positions(positions: Int[Tensor, " k"], n: int, row: int = 0) -> Packet:
    """Ascending positions below ``n``: None (all), one bit each, ``[b, quotients, rests]`` of a Rice code, or the bytes
    of the adaptive coder, which are fewer than one bit each.

    Bits lie in bytes, the lowest first; :mod:`thinwire.kernels.gaps` has the Rice code. ``row`` is the length of a row
    of the layer, 0 for a vector.
    """
    if positions.numel() == n:
        return None
    b, length = gaps.best(positions, n)
    if n <= min(positions.numel() * SPARSEST, levels.MOST - 1):
        chosen = torch.zeros(n, dtype=torch.int8, device="cpu").index_fill_(0, positions, 1)
        coded = levels.pack(chosen, min((length + 7) // 8, (n + 7) // 8) - 1, row, negative=False, most=1)
        if coded is not None:
            return coded
    if length >= n:
        return gaps.encode_bits(positions, n)
    return [b, *gaps.encode(positions, n, b)]


def unpack_positions(packet: Packet, n: int, row: int = 0) -> Int[Tensor, " k"]:
    """What :func:`pack_positions` packed; anything else is a ``WireError``."""
    if packet is None:
        return torch.arange(n, device="cpu")
    if isinstance(packet, Tensor):
        if packet.numel() < (n + 7) // 8:
            return levels.unpack(octets(packet), n, row, negative=False, most=1).nonzero().view(-1)
        return gaps.decode_bits(octets(packet), n)
    b, quotients, rests = parts(packet, 3, "positions")
    check(type(b) is int, "positions")
    return gaps.decode(octets(quotients), octets(rests), n, b)


def place(values: Tensor, positions: Int[Tensor, " k"], shape: Size) -> Tensor:
    """The values at their positions; the rest is zero."""
    return torch.zeros(shape.numel(), dtype=values.dtype, device="cpu").index_copy_(0, positions, values).view(shape)


def set_bits(x: Tensor) -> Bool[Tensor, " d"]:
    """Which entries have a bit set: all but those that are +0."""
    return x.reshape(-1).contiguous().view(torch.int64 if x.dtype == torch.float64 else torch.int32) != 0


@dataclass(frozen=True)
class Sparse(Codec):
    """Lossless: the entries that are not zero, and their positions. A negative zero is sent too.

    An entry takes 4 bytes, or 8 of a model in 64 bits.
    """

    contraction = True
    absolute = True
    sparse = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        positions = set_bits(x).nonzero().view(-1)
        where = pack_positions(positions, x.numel(), width(x.shape))
        return [where, x.reshape(-1).index_select(0, positions)]

    def decode(self, packet: Packet, shape: Size, key: Key, dtype: torch.dtype = torch.float32) -> Tensor:
        check(isinstance(packet, list) and len(packet) == 2, "positions and values")
        positions = unpack_positions(packet[0], shape.numel(), width(shape))
        return place(vector(packet[1], len(positions), dtype), positions, shape)

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        return [self.encode(layer, key) for _, layer in x.items()], x, None  # nothing to find out by decoding

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        check(isinstance(packet, list) and len(packet) == len(layout.names), "one packet a layer")
        named = zip(packet, layout.shapes, strict=True)
        return join(layout, (self.decode(p, shape, key, layout.dtype) for p, shape in named)), None

    def count(self, packet: Packet) -> float:
        return floats(packet[1])


@dataclass(frozen=True)
class TopK(Codec):
    """The largest entries by magnitude: of a layer's n entries k = share * n, rounded up.

    ``values`` is the codec of what is kept, e.g. ``TopK(0.01, values=Half())``. Positions are sent as gaps in a Rice
    code, as one bit an entry or by the adaptive coder, whichever is smallest. With ``sampled`` the threshold comes from
    a sample of a large layer: that is several times faster, and keeps about ``share`` of the layer. Raises
    ``ValueError`` unless 0 < share <= 1. Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv:1809.07599.

    Differences from the paper: k is taken of each layer; ``Flat(TopK(...))`` takes it of the whole vector. Zeros are
    not sent, so fewer than k entries may be sent. All entries that equal the k-th largest magnitude are sent,
    compared in 12 bits so that rounding does not choose among them. So more than k may be sent, up to 2 k. If the
    ties are more than that, as in a layer of one magnitude, k entries are sent, those at the lowest positions first.
    A message therefore stays near the size that was asked for.
    """

    paper = "Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv:1809.07599"

    share: Share = 0.01
    values: Codec = Dense()
    sampled: bool = False

    sparse = True

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        return self.values.contraction

    @property
    def grows(self) -> bool:  # type: ignore[override]
        return self.values.grows

    def encode(self, x: Tensor, key: Key) -> Packet:
        return self.transcode(x, key)[0]

    def transcode(self, x: Tensor, key: Key) -> tuple[Packet, Tensor]:
        flat, k = x.reshape(-1), count_of(self.share, x.numel())
        if self.sampled:
            positions = above(flat, sample_threshold(flat, k, key.generator("sample")))
        else:
            positions = largest(flat, k)
        positions = positions if len(positions) <= 2 * k else top_k(flat, k)
        where = pack_positions(positions, x.numel(), width(x.shape))
        values, decoded = self.values.transcode(flat.index_select(0, positions), key)
        return [where, values], place(decoded, positions, x.shape)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        where, values = parts(packet, 2, "positions and values")
        positions = unpack_positions(where, shape.numel(), width(shape))
        return place(self.values.decode(values, positions.shape, key), positions, shape)

    def count(self, packet: Packet) -> float:
        return self.values.count(packet[1])


@dataclass(frozen=True)
class RandK(Drawn):
    """``share`` of each layer at positions drawn from the shared seed: no positions are sent.

    All clients of a round send the same positions, 4 bytes an entry, so packets can be averaged before they are
    decoded. With ``unbiased`` the receiver divides the values by the share that was kept, and the link is no
    contraction. Raises ``ValueError`` unless 0 < share <= 1. Wangni et al., NeurIPS 2018, arXiv:1710.09854, uniform
    probabilities.

    Differences from the paper: the number of entries is the same each time, where the paper tosses a coin for each
    entry. The positions are the same for all clients, so that they need not be sent. All positions are equally
    likely, where the paper's best probabilities grow with the magnitude, which no seed could tell the receiver.
    Without ``unbiased``, the default, nothing is rescaled.
    """

    paper = "Wangni et al., NeurIPS 2018, arXiv:1710.09854"

    share: Share = 0.01
    unbiased: bool = False

    def _positions(self, n: int, key: Key) -> Tensor:
        return torch.randperm(n, generator=key.everyone().generator("positions"), device="cpu")[
            : count_of(self.share, n)
        ]

    def encode(self, x: Tensor, key: Key) -> Packet:
        return x.reshape(-1)[self._positions(x.numel(), key)]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        values = vector(packet, count_of(self.share, n), torch.float32)
        flat = torch.zeros(n, dtype=torch.float32, device="cpu")
        flat[self._positions(n, key)] = values * (n / len(values)) if self.unbiased and n else values
        return flat.view(shape)


def count_of(share: float | Fraction, n: int) -> int:
    """How many of ``n`` entries a share is, rounded up: at least one if there is one.

    The share is taken as it is written in decimals. So 0.07 of 100 is 7, although the floating-point product is above
    7.
    """
    return math.ceil(Fraction(str(share)) * n)
