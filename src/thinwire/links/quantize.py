"""A few bits an entry: rounded at random, so that it is right on average, or to the nearest.

Levels of a fixed width are sent only where :mod:`thinwire.kernels.levels` does not take fewer bytes. A receiver knows
which it is by the number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import UInt8
from torch import Size, Tensor
from torch.nn.functional import pad

from ..errors import check
from ..kernels import levels as coder
from ..kernels.quantize import dequantize, quantize
from ..kernels.trits import pack_trits, unpack_trits
from ..key import Key
from ..ranges import Count, Range
from ..wire import Packet
from .base import Codec, finite, number, octets, parts, vector, width

HIGHEST = torch.finfo(torch.float32).max / 2  # of a norm: a multiple of a part of it must not be infinite


@dataclass(frozen=True)
class QSGD(Codec):
    """Every entry rounded at random to one of ``levels`` parts of the norm on either side of zero.

    For the norm s of a layer, x / s * levels is rounded up or down to a whole number at random, so that it is right on
    average. The draw is fresh in every round and for every client. ``bucket`` entries share a norm, by default the
    whole layer. ``norm`` is "l2", as in the paper, or "max", with smaller errors and fewer zeros. An entry takes at
    most 2 bits for 1 level, 4 bits for up to 7 and 8 bits for up to 127, and a norm 4 bytes. Where the adaptive coder
    takes fewer, as where most levels are zero, levels are sent by it. The link is no contraction: an entry that is
    rounded up may be off by more than it was. Raises ``ValueError`` for levels outside 1 to 127 and a bucket below 1.
    Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017, arXiv:1610.02132, section 3.

    FedPAQ (Reisizadeh et al., AISTATS 2020, arXiv:1909.13014) is this link around local training by sampled clients:
    ``FedAvg(up=QSGD(16))``.

    Differences from the paper: levels are coded by an adaptive range coder, or have a fixed width, in place of
    Elias codes. Without ``bucket`` each layer has
    one norm; ``Flat(QSGD(16))`` takes that of the whole vector. A norm beyond half of the largest 32-bit float is cut
    to that.
    """

    paper = "Alistarh et al., NeurIPS 2017, arXiv:1610.02132"

    levels: Annotated[int, Range(lambda x: 1 <= x <= 127, "must be from 1 to 127")] = 16
    bucket: Count | None = None
    norm: Literal["l2", "max"] = "l2"

    packed = True

    @property
    def bits(self) -> int:
        """An entry's: the fewest of 2, 4 and 8 that hold ``2 * levels + 1`` values."""
        return next(bits for bits in (2, 4, 8) if 2 * self.levels < 1 << bits)

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat, seed = x.reshape(-1), key.number("dither")
        if self.bucket is None:
            norms = self._norms(flat.view(1, -1))
            return [norms, self._pack(flat, float(norms), seed, width(x.shape))]
        rows = pad(flat, (0, -flat.numel() % self.bucket)).view(-1, self.bucket)
        norms = self._norms(rows)
        shares = rows / torch.where(norms > 0, norms, 1.0)[:, None]
        return [norms, self._pack(shares.view(-1)[: flat.numel()], 1.0, seed, width(x.shape))]

    def _pack(self, flat: Tensor, scale: float, seed: int, row: int) -> Tensor:
        """Levels in the fewest bytes."""
        levels = quantize(flat, scale, self.levels, 8, seed)
        coded = _code(levels, self.levels, (levels.numel() * self.bits + 7) // 8, row)
        if coded is not None:
            return coded
        return levels if self.bits == 8 else quantize(flat, scale, self.levels, self.bits, seed)

    def _norms(self, rows: Tensor) -> Tensor:
        if rows.numel() == 0:
            return torch.zeros(len(rows), dtype=torch.float32, device="cpu")
        norms = rows.abs().amax(1) if self.norm == "max" else torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return finite(self, norms).clamp_max(HIGHEST).float()

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n, bucket = shape.numel(), self.bucket
        scales, packed = parts(packet, 2, "norms and levels")
        norms = vector(scales, 1 if bucket is None else (n + bucket - 1) // bucket, torch.float32)
        levels, bits = octets(packed), self.bits
        if levels.numel() < (n * bits + 7) // 8:
            levels, bits = _decode(levels, self.levels, n, width(shape)), 8
        check((norms >= 0).all(), "norms that are not negative")
        if bucket is None:
            return dequantize(levels, n, float(norms), self.levels, bits).view(shape)
        shares = dequantize(levels, n, 1.0, self.levels, bits)
        rows = pad(shares, (0, -n % bucket)).view(-1, bucket) * norms[:, None]
        return rows.view(-1)[:n].view(shape)


@dataclass(frozen=True)
class Ternary(Codec):
    """-s, 0 or +s at random, right on average; s is the layer's largest magnitude. At most 1.6 bits an entry.

    The receiver sees what ``QSGD(1, norm="max")`` delivers, but five entries share a byte where the
    adaptive coder does not take fewer. s takes 4 bytes a layer.
    No contraction. Wen et al., "TernGrad", NeurIPS 2017, arXiv:1705.07878, equation 1.

    Differences from the paper: gradients are not clipped, so the result stays right on average.
    """

    paper = "Wen et al., NeurIPS 2017, arXiv:1705.07878"

    packed = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        scale = finite(self, _largest(flat)).clamp_max(HIGHEST)
        levels = quantize(flat, float(scale), 1, 8, key.number("dither"))
        coded = _code(levels, 1, (len(levels) + 4) // 5, width(x.shape))
        return [scale, pack_trits(levels) if coded is None else coded]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        scale, digits = parts(packet, 2, "a scale and digits")
        check(number(scale) >= 0, "a scale that is not negative")
        digits = octets(digits)
        coded = digits.numel() < (n + 4) // 5
        levels = _decode(digits, 1, n, width(shape)) if coded else unpack_trits(digits, n)
        return dequantize(levels, n, float(scale), 1, 8).view(shape)


@dataclass(frozen=True)
class Int8(Codec):
    """Every entry as the nearest of 255 multiples of a 127th of the layer's largest magnitude.

    One byte an entry and 4 bytes a layer for the scale. The largest entry is exact and no entry is off by more than
    its own magnitude, so the link is a contraction: ``EF21(Int8())`` is a broadcast of a byte an entry.
    """

    contraction = True
    packed = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        scale = finite(self, _largest(flat))
        steps = (flat / scale * 127).round() if scale > 0 else torch.zeros_like(flat)
        return [scale, steps.to(torch.int8)]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        scale, multiples = parts(packet, 2, "a scale and a byte an entry")
        steps = vector(multiples, shape.numel(), torch.int8)
        check(number(scale) >= 0 and (steps.numel() == 0 or steps.min() >= -127), "multiples from -127 to 127")
        return (steps.float() / 127 * number(scale)).view(shape)  # in this order nothing becomes infinite


def _code(levels: UInt8[Tensor, " n"], most: int, plain: int, row: int) -> UInt8[Tensor, " bytes"] | None:
    """Levels, ``most`` added, by the adaptive coder, which takes fewer than ``plain`` bytes; None where it does not."""
    if levels.numel() >= coder.MOST:
        return None
    return coder.pack((levels - most).view(torch.int8), plain - 1, row, most=most)


def _decode(coded: UInt8[Tensor, " bytes"], most: int, n: int, row: int) -> UInt8[Tensor, " n"]:
    """What :func:`_code` was given."""
    return coder.unpack(coded, n, row, most=most).view(torch.uint8) + most


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax() if x.numel() else torch.zeros((), dtype=torch.float32, device="cpu")
