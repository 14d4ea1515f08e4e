"""The largest rates for which DSP is proved to converge, by those of backpropagation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from thinwire.pipeline.rates import largest_error, momentum_rate, sgd_rate

CASES = [(1, 1, 1.0), (2, 1, 0.3), (3, 4, 1.0), (3, 10, 0.1), (4, 6, 2.5)]  # K, Delta t, M


def positive_root(*coefficients: float) -> float:
    (root,) = [r.real for r in np.roots(coefficients) if r.real > 0]
    return float(root)


@pytest.mark.parametrize(("k", "t", "m"), CASES)
def test_the_rate_of_sgd_is_where_the_theorems_condition_is_met_with_equality(k: int, t: int, m: float) -> None:
    """c_1 is the root of c^2 + 2 (t^2 + 2) c - 2 c_0 t^2; the largest rate is c_1 / (c_0 t^2) by L, SGD's 1/2."""
    c0 = m**2 * k * (k + 1) ** 2
    c1 = positive_root(1, 2 * (t**2 + 2), -2 * c0 * t**2)
    assert sgd_rate(k, t, m) == pytest.approx(2 * c1 / (c0 * t**2), rel=1e-9)
    assert sgd_rate(k, t, m) < 2 / (t**2 + 2)  # which M near 0 comes to


@pytest.mark.parametrize("s", [0.0, 1.0])
@pytest.mark.parametrize(("k", "t", "m"), CASES)
def test_the_rate_with_momentum_is_where_its_condition_is_met_with_equality(k: int, t: int, m: float, s: float) -> None:
    """The root in a = alpha L of (1 - beta) c_3 a^2 + c_4 a - (1 - beta), by that of t = 0."""
    beta = 0.9
    c2 = ((1 - beta) * s - 1) ** 2 / (1 - beta) ** 2
    c3 = m**2 * k * (k + 1) ** 2 * t**2 * (c2 + s**2)
    c4 = 3 + beta**2 * c2 + 2 * (1 - beta) ** 2 * t**2 * (c2 + s**2)
    largest, plain = positive_root((1 - beta) * c3, c4, beta - 1), (1 - beta) / (3 + beta**2 * c2)
    assert momentum_rate(k, t, m, beta, s) == pytest.approx(largest / plain, rel=1e-9)


def test_rates_worked_out_by_hand() -> None:
    # K = 1, Delta t = 1, M = 1: c_0 = 4, c_1 = -3 + sqrt(17), and 2 c_1 / c_0
    assert sgd_rate(1, 1, 1.0) == pytest.approx((math.sqrt(17) - 3) / 2)
    # and beta = 1/2, s = 0: c_2 = 4, c_3 = 16, c_4 = 4 + 2; (-6 + sqrt(52)) / 16 by 1/2 / 4
    assert momentum_rate(1, 1, 1.0, beta=0.5) == pytest.approx((math.sqrt(52) - 6) / 2)
    assert (sgd_rate(4, 0, 1.0), momentum_rate(4, 0, 1.0)) == (1.0, 1.0)


def test_the_largest_error_is_that_of_backpropagation_through_the_whole_model() -> None:
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(3, 5), nn.Tanh()), nn.Linear(5, 4), nn.Linear(4, 3)]
    x, y = torch.randn(6, 3), torch.randint(3, (6,))
    values = [parts[0](x).detach().requires_grad_()]
    values.append(parts[1](values[0]))
    values.append(parts[2](values[1]))
    norms = [float(g.norm()) for g in torch.autograd.grad(F.cross_entropy(values[-1], y), values)]
    assert largest_error(parts, x, y) == pytest.approx(max(norms), rel=1e-6)
    assert all(p.grad is None for part in parts for p in part.parameters())
