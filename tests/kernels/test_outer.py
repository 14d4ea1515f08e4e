"""Sums of rank-one terms: the same bits at every level, in a fixed order."""

from __future__ import annotations

import torch

from thinwire.kernels import native
from thinwire.kernels.outer import outer_sum, outer_sum_reference


def test_a_sum_of_terms_has_one_order_at_every_level() -> None:
    g, before = torch.Generator().manual_seed(0), native._level()
    try:
        for rank, m, n in ((0, 3, 5), (1, 1, 1), (3, 0, 4), (7, 33, 130), (20, 64, 64), (40, 50, 1_100)):
            left, right = torch.randn(rank, m, generator=g), torch.randn(rank, n, generator=g)
            expected = outer_sum_reference(left, right)
            for level in ("reference", *native.LEVELS):
                native.use(level)
                for threads in (1, 4):
                    torch.set_num_threads(threads)
                    assert outer_sum(left, right).equal(expected), (rank, m, n, level, threads)
    finally:
        torch.set_num_threads(1)
        native.use(before)


def test_literal_values() -> None:
    assert outer_sum(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -4.0]])).tolist() == [[3.0, -4.0], [6.0, -8.0]]
