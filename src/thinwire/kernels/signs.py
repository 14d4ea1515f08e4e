"""One bit an entry, and the mean magnitude that goes with it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from ..errors import check
from . import native

LANES = 64  # entries summed side by side
BLOCK = LANES * 64  # entries to a partial sum


def pack_signs(x: Float[Tensor, " n"], out: UInt8[Tensor, " bytes"] | None = None) -> UInt8[Tensor, " bytes"]:
    """Bit ``i % 8`` of byte ``i // 8`` is ``x[i] >= 0``; the sign of both zeros is +1, of NaN -1.

    Bits beyond the end are 0. The bytes go into ``out`` where one is given. Extra memory: the
    result (reference: 10 n bytes).
    """
    size = (x.numel() + 7) // 8
    native.check_out(out, size, torch.uint8)
    lib = native.library(x)
    if lib is None:
        bits = pack_bits_reference(x >= 0)
        return bits if out is None else out.copy_(bits)
    x, packed = x.contiguous(), native.empty(lib, size, dtype=torch.uint8) if out is None else out
    lib.tw_pack_signs(x, x.numel(), packed, torch.get_num_threads())
    return packed


def unpack_signs(
    bits: UInt8[Tensor, " bytes"], n: int, scale: float, out: Float[Tensor, " n"] | None = None
) -> Float[Tensor, " n"]:
    """``scale`` where a bit is set and ``-scale`` elsewhere, into ``out`` where one is given.

    ``WireError`` for another length than :func:`pack_signs` makes of ``n`` entries, or bits beyond the end.
    Extra memory: the result (reference: 9 n bytes).
    """
    check_bits(bits, n)
    native.check_out(out, n, torch.float32)
    lib = native.library(bits)
    if lib is not None:
        bits, out = bits.contiguous(), native.empty(lib, n) if out is None else out
        lib.tw_unpack_signs(bits, n, scale, out, torch.get_num_threads())
        return out
    positive = unpack_bits_reference(bits, n)
    value = torch.tensor(scale, dtype=torch.float32, device=bits.device)
    signs = torch.where(positive, value, -value)
    return signs if out is None else out.copy_(signs)


def mean_magnitude(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The mean of ``|x|`` as a 32-bit number, at most the largest finite one; 0 of nothing.

    Summed in double precision in a fixed order: its bits do not depend on threads or machine.
    Extra memory: 8 bytes for 4,096 entries (reference: 1 MB more).
    """
    if x.numel() == 0:
        return torch.zeros((), device=x.device, dtype=torch.float32)
    mean = math.fsum(partial_sums(x).tolist()) / x.numel()
    return torch.tensor(mean, dtype=torch.float32, device=x.device).clamp_max(torch.finfo(torch.float32).max)


def partial_sums(x: Float[Tensor, " n"]) -> Float64[Tensor, " m"]:
    """Sums of ``|x|`` over 4,096 entries each: 64 lanes of 64 in order, then the lanes in halves."""
    lib = native.library(x)
    if lib is None:
        return partial_sums_reference(x)
    x, sums = x.contiguous(), torch.empty((x.numel() + BLOCK - 1) // BLOCK, dtype=torch.float64, device="cpu")
    lib.tw_partial_sums(x, x.numel(), sums, torch.get_num_threads())
    return sums


def partial_sums_reference(x: Tensor) -> Tensor:
    sums = []
    for start in range(0, x.numel(), BLOCK * 64):
        part = x[start : start + BLOCK * 64]
        rows = pad(part, (0, -part.numel() % BLOCK)).abs().view(-1, BLOCK // LANES, LANES)
        lanes = rows[:, 0].double()
        for row in range(1, BLOCK // LANES):
            lanes = lanes + rows[:, row]
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
        sums.append(lanes[:, 0])
    return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.float64, device=x.device)


def pack_bits_reference(bits: Tensor) -> Tensor:
    """Truth values, eight to a byte, the lowest bit first."""
    rows = pad(bits, (0, -bits.numel() % 8)).view(-1, 8)
    return (rows.to(torch.uint8) << _places(bits)).sum(1, dtype=torch.uint8)


def unpack_bits_reference(packed: Tensor, n: int) -> Tensor:
    """The first ``n`` bits as truth values."""
    return (packed[:, None] >> _places(packed) & 1).view(-1)[:n].bool()


def check_bits(packed: Tensor, n: int) -> None:
    """``WireError`` unless ``packed`` holds ``n`` bits and zeros to the next whole byte."""
    check(packed.numel() == (n + 7) // 8, f"{n} bits in {(n + 7) // 8} bytes")
    check(n % 8 == 0 or int(packed[-1]) >> n % 8 == 0, "zeros beyond the last bit")


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
