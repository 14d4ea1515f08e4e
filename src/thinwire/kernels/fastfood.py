"""Fastfood's matrix times a vector, and its transpose, with what is random in it drawn as it is used.

A = (n d)^(-1/2) U_D B H G Π H P_d: see :class:`thinwire.Fastfood`. Row i of B, G and Π comes from a counter
(:mod:`.counter`): nothing is stored. Of the inner H only the first d columns matter, and they repeat
every m, the power of two from d on: it is a transform of m entries, and Π is used modulo m.

Of 32 bits for row i the highest 12 pick a magnitude of G from a table, the next is its sign, the
one after that B's sign. The table holds the quantiles of |N(0, 1)| in the middle of 4,096 equal shares,
scaled so that their mean square is 1: 8,192 values up to 3.84, a fourth moment of 2.995. Π is three rounds of
multiplying, adding and folding the high half onto the low one, each a permutation of the integers below n.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from . import counter, native
from .hadamard import hadamard_reference_

ROUNDS = 3
SEGMENTS = 16  # the transpose sums so many parts apart, in order, whatever the number of threads
SHORTEST = 1 << 16  # ... of at least so many rows


class Draw(NamedTuple):
    """Some rows of what Fastfood draws."""

    sign: Tensor  # B: +1 or -1
    gauss: Tensor  # the diagonal of G, after the permutation
    place: Tensor  # where each row reads: Π, modulo the m entries that repeat


def fastfood(s: Float[Tensor, " d"], size: int, seed: int) -> Float[Tensor, " size"]:
    """A s for a matrix of ``size`` rows. Memory: the padded result and the padded s."""
    require(rows_for(size, s.numel()) <= counter.MOST, f"a Fastfood matrix of {size} rows: at most {counter.MOST}")
    lib = native.library(s)
    if lib is None:
        return fastfood_reference(s, size, seed)
    dim, n, threads = s.numel(), rows_for(size, s.numel()), torch.get_num_threads()
    inner, work = torch.zeros(power(dim), dtype=torch.float32, device="cpu"), native.empty(lib, n)
    inner[:dim] = s
    about = inner, inner.numel(), work, n, size
    native.check(lib.tw_fastfood(*about, *_sources(seed), 1 / math.sqrt(n * dim), threads))
    return work[:size]


def fastfood_reference(s: Tensor, size: int, seed: int) -> Tensor:
    dim, n = s.numel(), rows_for(size, s.numel())
    inner = torch.zeros(power(dim), device=s.device, dtype=torch.float32)
    inner[:dim] = s
    hadamard_reference_(inner)
    work = torch.empty(n, device=s.device, dtype=torch.float32)
    for start in range(0, n, counter.CHUNK):
        draw = draws(start, min(n, start + counter.CHUNK), n, inner.numel(), seed, s.device)
        work[start : start + counter.CHUNK] = draw.gauss * inner[draw.place]
    hadamard_reference_(work)
    for start in range(0, size, counter.CHUNK):
        part = work[start : min(size, start + counter.CHUNK)]
        part *= draws(start, start + part.numel(), n, inner.numel(), seed, s.device).sign
    return work[:size].mul_(1 / math.sqrt(n * dim))


def fastfood_transpose(x: Float[Tensor, " size"], dim: int, seed: int) -> Float[Tensor, " dim"]:
    """Aᵀ x for a matrix of ``dim`` columns. Memory: the padded x and up to 16 padded results, at most as long as x."""
    require(rows_for(x.numel(), dim) <= counter.MOST, f"a Fastfood matrix of {x.numel()} rows: at most {counter.MOST}")
    lib = native.library(x)
    if lib is None:
        return fastfood_transpose_reference(x, dim, seed)
    x, size, n, m, threads = x.contiguous(), x.numel(), rows_for(x.numel(), dim), power(dim), torch.get_num_threads()
    segment = segment_rows(n, m)
    work, sums = native.empty(lib, n), torch.zeros(n // segment, m, dtype=torch.float32, device="cpu")
    about = x, size, work, n, sums, m, segment
    native.check(lib.tw_fastfood_transpose(*about, *_sources(seed), threads))
    return sums[0, :dim].mul(1 / math.sqrt(n * dim))


def fastfood_transpose_reference(x: Tensor, dim: int, seed: int) -> Tensor:
    size, n, m = x.numel(), rows_for(x.numel(), dim), power(dim)
    work = torch.zeros(n, device=x.device, dtype=torch.float32)
    for start in range(0, size, counter.CHUNK):
        part = x[start : start + counter.CHUNK]
        work[start : start + part.numel()] = draws(start, start + part.numel(), n, m, seed, x.device).sign * part
    hadamard_reference_(work)
    segment = segment_rows(n, m)
    sums = torch.zeros(n // segment, m, device=x.device, dtype=torch.float32)
    for start in range(0, n, min(segment, counter.CHUNK)):
        draw = draws(start, min(n, start + min(segment, counter.CHUNK)), n, m, seed, x.device)
        sums[start // segment].index_add_(0, draw.place, draw.gauss * work[start : start + len(draw.gauss)])
    for other in sums[1:]:
        sums[0] += other
    return hadamard_reference_(sums[0])[:dim].mul_(1 / math.sqrt(n * dim)).clone()


def draws(start: int, stop: int, n: int, m: int, seed: int, device: torch.device | str = "cpu") -> Draw:
    """Rows ``start`` to ``stop`` of the ``n`` that are drawn, reading from ``m`` places."""
    key, *rounds = counter.keys(seed, 1 + ROUNDS)
    drawn = counter.bits(start, stop, key, device)
    magnitude = torch.from_numpy(quantiles()).to(device)[drawn >> 20]
    gauss = magnitude * (1 - 2 * (drawn >> 19 & 1))
    sign = (1 - 2 * (drawn >> 18 & 1)).to(torch.float32)
    return Draw(sign, gauss, permute(torch.arange(start, stop, device=device), n, rounds) & (m - 1))


def permute(index: Tensor, n: int, rounds: list[int]) -> Tensor:
    """A permutation of the integers below ``n``, a power of two, entry by entry."""
    half = max(1, (n.bit_length() - 1) // 2)
    for key in rounds:
        index = (index * (key & counter.LOW32 | 1) + (key >> 32)) & (n - 1)
        index = index ^ index >> half
    return index


@lru_cache(maxsize=1)
def quantiles() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The table of magnitudes, ascending.

    By Newton's method in additions, multiplications, divisions and square roots alone, each of which IEEE 754
    rounds in one way: a mathematical library's exp or log would differ between machines.
    """
    share = (np.arange(4096) + 0.5) / 4096  # 2 Phi(x) - 1
    root = math.sqrt(2 / 3.141592653589793)
    x = np.zeros(4096)
    for _ in range(24):  # x = 0 lies on the side that Newton's method comes from: the density falls
        density, sum_, term = _exp(x * x / 2), x.copy(), x.copy()
        for odd in range(3, 161, 2):
            term = term * x * x / odd
            sum_ = sum_ + term
        density = root / density
        x = x + (share - density * sum_) / density  # share(x) = density(x) (x + x^3/3 + x^5/15 + ...)
    scale = math.sqrt(math.fsum((x * x).tolist()) / 4096)
    return (x / scale).astype(np.float32)


def _exp(y: np.ndarray) -> np.ndarray:
    """e^y for 0 <= y < 16, as (e^(y/64))^64."""
    y = y / 64
    total, term = np.ones_like(y), np.ones_like(y)
    for k in range(1, 20):
        term = term * y / k
        total = total + term
    for _ in range(6):
        total = total * total
    return total


def _sources(seed: int) -> tuple[object, np.ndarray]:
    """What C draws from: keys and the table."""
    return native.keys(counter.keys(seed, 1 + ROUNDS)), quantiles()


def power(n: int) -> int:
    """The power of two from ``n`` on."""
    return 1 << max(0, n - 1).bit_length()


def rows_for(size: int, dim: int) -> int:
    """Rows that are drawn for a matrix of ``size`` rows and ``dim`` columns."""
    return max(power(size), power(dim))


def segment_rows(n: int, m: int) -> int:
    """Rows whose products the transpose sums in one go."""
    return min(n, max(n // SEGMENTS, m, SHORTEST))
