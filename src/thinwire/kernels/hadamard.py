"""The fast Walsh–Hadamard transform: additions and subtractions only.

Entries 1 apart first, then 2, 4, 8, ... apart: every result is the same tree of sums however the
work is blocked, so the bits do not depend on the machine, its threads or a library, and two ends
that expand the same coefficients agree.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from . import native

IN_CACHE = 1 << 17  # floats transformed at a time: half a megabyte
INNER = 1 << 7  # the shortest run of neighbours that is worth a vector operation


def hadamard_(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """H x in place, unnormalised (H H = n), for n a power of two. Extra memory: at most a megabyte a thread."""
    n = x.numel()
    if n & (n - 1) or n == 0:
        raise ValueError(f"a Hadamard transform of {n} entries: it takes a power of two")
    lib = native.library(x)
    if lib is None or not x.is_contiguous():
        return hadamard_reference_(x)
    native.check(lib.tw_hadamard(x, n, torch.get_num_threads()))
    return x


def hadamard_reference_(x: Tensor) -> Tensor:
    n = x.numel()
    small = min(n, IN_CACHE)
    for part in x.view(-1, small):
        _in_cache(part)
    half = small
    while half < n:
        for pair in x.view(-1, 2, half):
            for start in range(0, half, IN_CACHE):
                _butterfly(pair[0, start : start + IN_CACHE], pair[1, start : start + IN_CACHE])
        half *= 2
    return x


def _in_cache(x: Tensor) -> None:
    """One part: the short distances run over neighbours after a transposition, those from INNER up as they are."""
    n = x.numel()
    inner = min(n, INNER)
    turned = x.view(n // inner, inner).t().contiguous()
    _levels(turned)
    x.view(n // inner, inner).copy_(turned.t())
    _levels(x.view(n // inner, inner))


def _levels(x: Tensor) -> None:
    """The transform along the first dimension."""
    rows, columns = x.shape
    half = 1
    while half < rows:
        pairs = x.view(rows // (2 * half), 2, half * columns)
        _butterfly(pairs[:, 0], pairs[:, 1])
        half *= 2


def _butterfly(a: Tensor, b: Tensor) -> None:
    difference = a - b
    a.add_(b)
    b.copy_(difference)
