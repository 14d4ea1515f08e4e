"""The largest magnitude of a vector, wherever NaN or infinity lie in it, at every level."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from thinwire.kernels import native
from thinwire.kernels.magnitude import BRIEF, magnitude
from thinwire.params import is_finite

SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 1000, BRIEF, BRIEF + 1, 300_001)


@pytest.fixture(params=["reference", *native.LEVELS])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native._level()
    yield native.use(request.param)
    torch.set_num_threads(1)
    native.use(before)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_largest_wherever_that_lies(size: int, threads: int, level: str) -> None:
    torch.set_num_threads(threads)
    for place in {0, size // 3, size - 1}:
        for value in (3.5, -3.5, math.inf, -math.inf, 3.4e38, 1e-45 if size == 1 else -2.0):
            x = torch.linspace(-1, 1, size) if size > 1 else torch.zeros(1)
            x[place] = value
            assert magnitude(x) == abs(float(x[place]))
            assert is_finite(x) == math.isfinite(value)
        for other in (0.0, math.inf):
            x[(place + 1) % size], x[place] = other, math.nan
            assert math.isnan(magnitude(x))
            assert not is_finite(x)


def test_shapes_gaps_types_and_nothing(level: str) -> None:
    x = torch.arange(24.0).view(4, 6) - 20
    assert magnitude(x) == 20
    assert magnitude(x[1:, ::2]) == 14
    assert magnitude(x.requires_grad_()) == 20
    assert magnitude(torch.tensor(-0.0)) == 0.0
    assert magnitude(torch.zeros(0)) == 0.0
    assert is_finite(torch.tensor([2**40]))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert magnitude(torch.tensor([1.0, -7.0], dtype=dtype)) == 7.0
        assert math.isnan(magnitude(torch.tensor([math.nan, math.inf], dtype=dtype)))
