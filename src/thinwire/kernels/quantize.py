"""Stochastic rounding to a few levels, packed to 1, 2, 4 or 8 bits an entry.

The dither is drawn by counter (:mod:`.counter`): 24 bits for entry ``i``, from the seed and ``i`` alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import pad

from ..errors import check, require
from . import counter, native
from .signs import unpack_signs


def quantize(
    x: Float[Tensor, " n"],
    scale: float,
    levels: int,
    bits: int,
    seed: int,
    out: UInt8[Tensor, " bytes"] | None = None,
) -> UInt8[Tensor, " bytes"]:
    """``x / scale * levels``, rounded up or down at random to a whole number from -levels to levels.

    Unbiased for ``|x| <= scale``; what lies outside is cut (NaN becomes +scale), and at a scale
    of zero everything is 0. Stored with ``levels`` added, in ``bits`` bits, entry ``i`` at bit ``i * bits % 8``
    of byte ``i * bits // 8``; bits beyond the end are 0. With ``bits=1``, ``levels`` is ignored: +scale with
    probability ``(1 + x / scale) / 2``, else -scale. Into ``out`` where one is given. At most 2^32 entries.
    Extra memory: the result (reference: 5 MB more).
    """
    _require(scale, levels, bits)
    require(x.numel() <= counter.MOST, f"{x.numel()} entries: quantize takes at most {counter.MOST}, split the tensor")
    n = x.numel()
    size = (n * bits + 7) // 8
    native.check_out(out, size, torch.uint8)
    lib = native.library(x)
    if lib is None:
        codes = quantize_reference(x, scale, levels, bits, seed)
        return codes if out is None else out.copy_(codes)
    (key,), x = counter.keys(seed, 1), x.contiguous()
    packed = native.empty(lib, size, dtype=torch.uint8) if out is None else out
    threads = torch.get_num_threads()
    lift, factor = factors(scale, 1 if bits == 1 else levels)
    lib.tw_quantize(x, n, lift, factor, levels, bits, key, packed, threads)
    return packed


def quantize_reference(x: Tensor, scale: float, levels: int, bits: int, seed: int) -> Tensor:
    (key,) = counter.keys(seed, 1)
    most = 1 if bits == 1 else levels
    lift, factor = factors(scale, most)
    packed = []
    for start in range(0, x.numel(), counter.CHUNK):
        part = x[start : start + counter.CHUNK]
        drawn = counter.bits(start, start + part.numel(), key, x.device) >> 8
        dither = drawn.to(torch.float32) * 2.0**-24  # exact, in [0, 1)
        y = part * lift * factor
        y = torch.where(y < most, y, most)
        y = torch.where(y > -most, y, -most)
        if bits == 1:
            code = dither < (y + 1) * 0.5
        else:
            floor = y.floor()
            code = floor + (dither < y - floor) + levels
        rows = pad(code.to(torch.uint8), (0, -part.numel() % (8 // bits))).view(-1, 8 // bits)
        packed.append((rows << _places(bits, x.device)).sum(1, dtype=torch.uint8))
    return torch.cat(packed) if packed else torch.zeros(0, dtype=torch.uint8, device=x.device)


def dequantize(
    packed: UInt8[Tensor, " bytes"],
    n: int,
    scale: float,
    levels: int,
    bits: int,
    out: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, " n"]:
    """The values that :func:`quantize` chose, multiples of ``scale / levels``, into ``out`` where one is given.

    ``WireError`` for another length, a level beyond ``levels``, or bits beyond the end. Extra
    memory: the result (reference: 9 n bytes).
    """
    _require(scale, levels, bits)
    if bits == 1:
        return unpack_signs(packed, n, scale, out)
    size = (n * bits + 7) // 8
    check(packed.numel() == size, f"{n} levels of {bits} bits in {size} bytes")
    check(n * bits % 8 == 0 or int(packed[-1]) >> n * bits % 8 == 0, "zeros beyond the last level")
    native.check_out(out, n, torch.float32)
    lib = native.library(packed)
    if lib is None:
        return dequantize_reference(packed, n, scale, levels, bits, out)
    packed, out, threads = packed.contiguous(), native.empty(lib, n) if out is None else out, torch.get_num_threads()
    high = lib.tw_dequantize(packed, n, levels, bits, step(scale, levels), out, threads)
    check(high <= 2 * levels, f"levels from 0 to {2 * levels}")
    return out


def dequantize_reference(
    packed: Tensor, n: int, scale: float, levels: int, bits: int, out: Tensor | None = None
) -> Tensor:
    code = (packed[:, None] >> _places(bits, packed.device) & (1 << bits) - 1).view(-1)[:n]
    check(n == 0 or int(code.max()) <= 2 * levels, f"levels from 0 to {2 * levels}")
    values = (code.to(torch.float32) - levels) * step(scale, levels)
    return values if out is None else out.copy_(values)


def factors(scale: float, most: int) -> tuple[float, float]:
    """Two 32-bit numbers whose product is most / scale, the first a power of two; two zeros for a scale of zero."""
    width = float(np.float32(scale))
    lift = 2.0**100 if width < 2.0**-100 else 1.0  # most / scale alone might overflow
    return (lift, float(np.float32(most / (width * lift)))) if width > 0 else (0.0, 0.0)


def step(scale: float, levels: int) -> float:
    """Between two levels, as the 32-bit number that both ends use."""
    return float(np.float32(float(np.float32(scale)) / levels))


def _require(scale: float, levels: int, bits: int) -> None:
    require(bits in (1, 2, 4, 8), f"{bits} bits an entry: 1, 2, 4 or 8")
    require(bits == 1 or 1 <= levels < 1 << bits - 1, f"{levels} levels to each side do not fit {bits} bits")
    require(scale >= 0 and math.isfinite(scale), f"a scale of {scale}")


def _places(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
