"""Random subspaces: a D×d matrix A that both ends draw from a seed and never store.

``expand`` is A s, ``project`` is Aᵀx. All are scaled so that E[A Aᵀ] = I: what is projected
and expanded again is right on average, and AᵀA is near (D/d) I.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .config import Config
from .kernels.hadamard import hadamard_
from .key import Key

CHUNK = 1 << 16  # entries drawn at a time, the same for everyone: it is part of the matrix
KEPT = 1 << 20  # largest n whose draws are kept between uses (9 bytes an entry, of 8 matrices: 75 MB)


class Basis(Config, ABC):
    """How the matrix is made. The key says which one of its kind it is."""

    @abstractmethod
    def expand(self, s: Float[Tensor, " d"], size: int, key: Key) -> Float[Tensor, " size"]:
        """A s, for a matrix of ``size`` rows."""

    @abstractmethod
    def project(self, x: Float[Tensor, " size"], dim: int, key: Key) -> Float[Tensor, " dim"]:
        """Aᵀ x, for a matrix of ``dim`` columns."""


@dataclass(frozen=True)
class Fastfood(Basis):
    """A = (n d)^(-1/2) U_D B H Π G H P_d, in O(D log D) time and little more than one vector of memory.

    H is the unnormalised Hadamard matrix of n rows, n the power of two from D on; P_d pads d
    to n, U_D keeps D of n; B are random signs, G Gaussian, Π a permutation. Le, Sarlós, Smola,
    "Fastfood", ICML 2013, as used by Melas-Kyriazi and Wang, 2021.

    Differences from the papers: the constant (public code has unit columns, which is the
    same path at a learning rate D/d times as large); Π is a Feistel network, so it takes no
    memory, and Π G is drawn as G Π, which has the same distribution. Of the inner H only the
    first d columns matter, and they repeat: it is a transform of d entries, not of n.
    """

    paper = "Le, Sarlós, Smola, ICML 2013"

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        n, m, dim = _power(size), _power(s.numel()), s.numel()
        inner = torch.zeros(m)
        inner[:dim] = s
        hadamard_(inner)
        work = torch.empty(max(n, m))
        for start, draw in _draws(max(n, m), m, key):
            work[start : start + len(draw.gauss)] = draw.gauss * inner[draw.place]
        hadamard_(work)
        for start, draw in _draws(max(n, m), m, key):
            work[start : start + len(draw.sign)] *= draw.sign
        return work[:size].mul_(1 / math.sqrt(max(n, m) * dim))

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        size, m = x.numel(), _power(dim)
        n = max(_power(size), m)
        work = torch.zeros(n)
        work[:size] = x
        for start, draw in _draws(n, m, key):
            work[start : start + len(draw.sign)] *= draw.sign
        hadamard_(work)
        inner = torch.zeros(m)
        for start, draw in _draws(n, m, key):
            inner.index_add_(0, draw.place, draw.gauss.mul(work[start : start + len(draw.gauss)]))
        return hadamard_(inner)[:dim].mul_(1 / math.sqrt(n * dim)).clone()


@dataclass(frozen=True)
class Gaussian(Basis):
    """A dense matrix of independent entries, N(0, 1/d): O(D d) time, for small models."""

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        return torch.cat([rows @ s for rows in self._rows(size, s.numel(), key)])

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        total, start = torch.zeros(dim), 0
        for rows in self._rows(x.numel(), dim, key):
            total += x[start : start + len(rows)] @ rows
            start += len(rows)
        return total

    def _rows(self, size: int, dim: int, key: Key) -> Iterator[Tensor]:
        generator = key.everyone().generator("gaussian")
        step = max(1, CHUNK // dim)
        for start in range(0, size, step):
            yield torch.randn(min(step, size - start), dim, generator=generator).mul_(1 / math.sqrt(dim))


class Draw(NamedTuple):
    """A chunk of what Fastfood draws."""

    sign: Tensor  # B: +1 or -1, int8
    gauss: Tensor  # the diagonal of G, after the permutation
    place: Tensor  # where each entry reads: Π, modulo the m entries that repeat


def _draws(n: int, m: int, key: Key) -> Iterator[tuple[int, Draw]]:
    """(start, chunk) of every chunk of the draws, in order."""
    seed = key.everyone().number("fastfood")
    if n > KEPT:
        yield from _drawn(n, m, seed)
        return
    for start in range(0, n, CHUNK):
        whole = _kept(n, m, seed)
        yield start, Draw(*(part[start : start + CHUNK] for part in whole))


@lru_cache(maxsize=8)
def _kept(n: int, m: int, seed: int) -> Draw:
    chunks = [draw for _, draw in _drawn(n, m, seed)]
    return Draw(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _drawn(n: int, m: int, seed: int) -> Iterator[tuple[int, Draw]]:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(1 << 62, (ROUNDS,), generator=generator).tolist()
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        sign = torch.randint(2, (size,), generator=generator, dtype=torch.int8).mul_(2).sub_(1)
        gauss = torch.randn(size, generator=generator)
        place = _permuted(torch.arange(start, start + size), n.bit_length() - 1, keys) & (m - 1)
        yield start, Draw(sign, gauss, place.to(torch.int32))


ROUNDS = 4


def _permuted(index: Tensor, bits: int, keys: list[int]) -> Tensor:
    """A Feistel network: a permutation of the integers below 2^bits, entry by entry."""
    low = bits // 2
    for key in keys:  # (left, right) -> (right, left + F(right)); the halves change places and sizes
        right = index & ((1 << low) - 1)
        left = index >> low
        mixed = (right + 1) * (key | 1)
        mixed = (mixed ^ (mixed >> 29)) * 0x1CE4E5B9BF58476D
        high = bits - low
        left = (left + (mixed >> 31)) & ((1 << high) - 1)
        index = right << high | left
        low = high
    return index


def _power(n: int) -> int:
    """The power of two from ``n`` on."""
    return 1 << max(0, n - 1).bit_length()
