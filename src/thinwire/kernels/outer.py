"""A matrix from its rank-one terms, with the same bits on every machine.

A product of two matrices by a library sums in an order of its own, which depends on the processor, the number of
threads and the alignment in memory. Here every entry is the sum of its terms in their order, each product and each sum
rounded once. What both ends of a wire make of the same factors is then the same.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from . import native


def outer_sum(left: Float[Tensor, "rank m"], right: Float[Tensor, "rank n"]) -> Float[Tensor, "m n"]:
    """The sum over k, from 0 on, of ``left[k]`` times ``right[k]`` transposed. Extra memory: the result (reference:
    twice that).
    """
    lib = native.library(left, right)
    if lib is None:
        return outer_sum_reference(left, right)
    left, right = left.contiguous(), right.contiguous()
    (rank, m), n = left.shape, right.shape[1]
    out = native.empty(lib, m, n)
    lib.tw_outer_sum(left, right, rank, m, n, out, torch.get_num_threads())
    return out


def outer_sum_reference(left: Tensor, right: Tensor) -> Tensor:
    total = left.new_zeros(left.shape[1], right.shape[1])
    for a, b in zip(left, right, strict=True):
        total += a[:, None] * b  # two operators: one alone might fuse the product with the sum
    return total
