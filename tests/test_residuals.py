"""The best lambda by hand, and what a data-parallel run records of its residuals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from problems import Supervised
from thinwire.analysis.residuals import best, owed
from thinwire.ddp import DEF, EF21
from thinwire.ddp.methods import Method
from thinwire.ddp.simulate import Result, simulate


def test_the_best_lambda_is_one_for_equal_residuals_and_one_in_k_for_orthogonal_ones() -> None:
    assert best(torch.ones(4, 9)) == 1.0
    assert best(torch.eye(4)) == 0.25
    assert best(torch.zeros(4, 9)) is None
    # Mean (2, 0); mean of squares (16 + 0) / 2.
    assert best(torch.tensor([[4.0, 0.0], [0.0, 0.0]])) == 0.5


def ran(method: Method, workers: int) -> Result:
    draw = torch.Generator().manual_seed(2)
    task = Supervised(torch.randn(40, 6, generator=draw), torch.randint(0, 3, (40,), generator=draw))

    def sgd(parameters):  # type: ignore[no-untyped-def]
        return torch.optim.SGD(parameters, lr=0.1)

    return simulate(method, nn.Linear(6, 3), task, workers=workers, steps=4, batch=4, optimizer=sgd, evaluate_every=2)


def test_one_worker_owes_itself_its_whole_residual() -> None:
    found = owed(ran(DEF(4.0, lam=1.0), 1).records)
    assert [e.step for e in found] == [2, 4]
    assert all(e.residual > 0 and e.distance == pytest.approx(e.residual) for e in found)
    assert [e.best for e in found] == [pytest.approx(1.0)] * 2
    assert [e.lam for e in found] == [1.0, 1.0]


def test_the_mean_of_residuals_is_shorter_than_they_are() -> None:
    found = owed(ran(DEF(4.0), 3).records)
    assert all(0 < e.distance < e.residual for e in found)
    assert [e.best for e in found] == [pytest.approx((e.distance / e.residual) ** 2) for e in found]


def test_where_everything_is_sent_nothing_is_owed() -> None:
    assert [(e.residual, e.distance, e.best) for e in owed(ran(DEF(1.0, lam=1.0), 2).records)] == [(0.0, 0.0, None)] * 2


def test_a_method_that_keeps_an_estimate_records_no_residual() -> None:
    assert owed(ran(EF21(2.0), 2).records) == []
