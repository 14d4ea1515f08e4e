"""Which entries are large: the k largest, those and all that equal the least of them, and those above a threshold."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..errors import require
from . import native
from .counter import MOST

INFINITY = 0x7F800000  # its bits
LARGEST = 0x7FFFFFFF  # the bits of the largest NaN: no magnitude has more
ALIKE = 2.0**-12  # of a magnitude: what a difference of larger numbers is often off by, and few others are as near
SAMPLE = 1 << 16  # entries that a threshold is guessed from
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def top_k(x: Float[Tensor, " n"], k: int) -> Int64[Tensor, " k"]:
    """The positions, ascending, of the ``k`` entries of largest magnitude.

    Of equal magnitudes those at the lowest positions are taken; NaN counts as larger than
    infinity. Extra memory: the positions and 0.5 MB a thread (reference: about 6 x).
    """
    require(0 <= k <= x.numel(), f"the {k} largest of {x.numel()} entries")
    lib = native.library(x)
    if lib is None or x.numel() > MOST:
        return top_k_reference(x, k)
    x, positions = x.contiguous(), native.empty(lib, k, dtype=torch.int64)
    native.check(lib.tw_top_k(x, x.numel(), k, positions, torch.get_num_threads()))
    return positions


def top_k_reference(x: Tensor, k: int) -> Tensor:
    if k == 0:
        return torch.zeros(0, dtype=torch.int64, device=x.device)
    magnitude = _magnitude(x)
    least = magnitude.topk(k, sorted=False).values.min()
    larger = (magnitude > least).nonzero().view(-1)
    equal = (magnitude == least).nonzero().view(-1)
    return torch.cat([larger, equal[: k - len(larger)]]).sort().values


def largest(x: Float[Tensor, " n"], k: int) -> Int64[Tensor, " m"]:
    """The positions, ascending, of the ``k`` entries of largest magnitude and of all that equal the least of them.

    Equal are magnitudes less than ``ALIKE`` of it below it, or half of that (of 16-bit floats: the same ones): what
    sums of the same terms differ by is rounding, not the same on every machine, and must not choose among them. No
    zero is taken, so there may be fewer than ``k``; NaN counts as larger than infinity. Extra memory: as ``top_k``.
    """
    require(0 <= k <= x.numel(), f"the {k} largest of {x.numel()} entries")
    lib = native.library(x)
    if k == 0 or lib is None or x.numel() > MOST:
        return largest_reference(x, k)
    x, threads = x.contiguous(), torch.get_num_threads()
    low, counts = ctypes.c_uint32(), torch.empty(native.MOST_THREADS, dtype=torch.int64, device="cpu")
    about = x, x.numel(), k, _rounding(x)
    total = lib.tw_count_largest(*about, ctypes.byref(low), counts, threads)
    native.check(total < 0)
    return _fill(lib, x, low.value, LARGEST, counts, total, threads)


def largest_reference(x: Tensor, k: int) -> Tensor:
    if k == 0:
        return torch.zeros(0, dtype=torch.int64, device=x.device)
    magnitude = _magnitude(x)
    kth = int(magnitude.topk(k, sorted=False).values.min())
    return (magnitude >= max(1, kth - _rounding(x))).nonzero().view(-1)


def _rounding(x: Tensor) -> int:
    """``ALIKE`` in steps between neighbouring floats, at most."""
    return int(ALIKE / torch.finfo(x.dtype).eps)


def _between(lib: ctypes.CDLL, x: Tensor, low: int, high: int) -> Tensor:
    """The positions, ascending, of the magnitudes whose bits are from ``low`` to ``high``."""
    n, threads = x.numel(), torch.get_num_threads()
    counts = torch.empty(native.MOST_THREADS, dtype=torch.int64, device="cpu")
    total = lib.tw_count(x, n, low, high - low, counts, threads)
    return _fill(lib, x, low, high, counts, total, threads)


def _fill(lib: ctypes.CDLL, x: Tensor, low: int, high: int, counts: Tensor, total: int, threads: int) -> Tensor:
    """Positions as :func:`_between`, once they are counted for as many threads."""
    positions = native.empty(lib, total, dtype=torch.int64)
    about = x, x.numel(), low, high - low
    lib.tw_fill(*about, counts, positions, threads)
    return positions


def above(x: Float[Tensor, " n"], t: float) -> Int64[Tensor, " k"]:
    """The positions, ascending, where ``|x| >= t`` and x is neither zero nor NaN; ``t`` is taken to 32 bits.

    Extra memory: the positions (reference: about x).
    """
    lib = native.library(x)
    with np.errstate(over="ignore"):
        least = np.float32(t)
    if lib is None or np.isnan(least):
        return above_reference(x, t)
    low = max(1, int(least.view(np.int32)))  # of a negative number below zero
    if low > INFINITY:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    return _between(lib, x.contiguous(), low, INFINITY)


def above_reference(x: Tensor, t: float) -> Tensor:
    with np.errstate(over="ignore"):
        least = torch.tensor(np.float32(t), dtype=torch.float32, device=x.device)
    return ((x.abs() >= least) & (x != 0)).nonzero().view(-1)


def sample_threshold(x: Float[Tensor, " n"], k: int, generator: torch.Generator) -> float:
    """A threshold that about ``k`` entries reach: the one that fits a sample of 65,536 entries.

    The sample is one entry of each of so many equal parts. Exact for at most so many entries. The generator is one
    of the CPU. Where 1,000 sampled entries reach the threshold, the count is right within 10 % or so.
    """
    n = x.numel()
    require(0 <= k <= n, f"a threshold for {k} of {n} entries")
    if k == 0:
        return float("inf")
    if n > SAMPLE:
        places = (
            torch.arange(SAMPLE, device="cpu") * n + torch.randint(n, (SAMPLE,), generator=generator, device="cpu")
        ) // SAMPLE
        x = x[places.to(x.device)]
        k = max(1, round(k * SAMPLE / n))
    return float(x.abs().topk(k, sorted=False).values.min())


def _magnitude(x: Tensor) -> Tensor:
    """Whole numbers in the order of the magnitudes: the bits without the sign."""
    whole = WHOLE[x.dtype.itemsize]
    return x.contiguous().view(whole) & torch.iinfo(whole).max
