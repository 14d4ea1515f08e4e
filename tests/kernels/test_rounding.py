"""Rows rounded to whole numbers: the same bits at every level, and those that a formula gives."""

from __future__ import annotations

import pytest
import torch

from thinwire.kernels import native
from thinwire.kernels.rounding import round_rows


def test_every_level_rounds_as_the_formula_says() -> None:
    g, before = torch.Generator().manual_seed(0), native._level()
    try:
        for rows, n in ((0, 3), (1, 1), (3, 0), (5, 16), (7, 133)):
            x = torch.randn(rows, n, generator=g) * 10.0 ** torch.randint(-3, 7, (rows, n), generator=g)
            scales = torch.rand(rows, generator=g) * 3
            values = (x * scales[:, None]).double()  # each product is rounded once, to 32 bits
            expected = values.round().clamp(-(1 << 20), 1 << 20) * (values.abs() >= torch.tensor(0.6).double())
            for level in ("reference", *native.LEVELS):
                native.use(level)
                floats, whole = round_rows(x, scales, 0.6, 1 << 20)
                assert whole.dtype == torch.int32
                assert whole.equal(expected.to(torch.int32)), (rows, n, level)
                assert floats.equal(whole.float())
                columns, _ = round_rows(x.T.contiguous().T, scales, 0.6, 1 << 20)  # whatever lies where
                assert columns.equal(floats)
    finally:
        native.use(before)


@pytest.mark.usefixtures("kernels")
def test_halves_go_to_the_even_number_and_small_ones_to_zero() -> None:
    x = torch.tensor([[0.29, 0.3, 0.75, 1.25, -1.75, 1e9]])
    floats, whole = round_rows(x, torch.tensor([2.0]), 0.6, 1000)
    assert whole.tolist() == [[0, 1, 2, 2, -4, 1000]]
    assert floats.tolist() == [[0.0, 1.0, 2.0, 2.0, -4.0, 1000.0]]
