"""The best lambda by hand, and what a data-parallel run records of its residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from problems import Supervised
from thinwire.ddp import DEF, EF21
from thinwire.ddp.methods import Method
from thinwire.ddp.simulation import Result, lengths, simulate
from thinwire.look.feedback import best, residuals


def test_the_best_lambda_is_one_for_equal_residuals_and_one_in_k_for_orthogonal_ones() -> None:
    assert best(*lengths(list(torch.ones(4, 9)))) == 1.0
    assert best(*lengths(list(torch.eye(4)))) == 0.25
    assert best(*lengths(list(torch.zeros(4, 9)))) is None


def test_the_lengths_of_residuals_are_the_root_of_their_mean_square_and_that_of_their_mean() -> None:
    assert lengths(list(torch.ones(4, 9))) == (3.0, 3.0)
    # Squares 25, 0 and 2, a mean of 9; the mean is (4, 5) / 3.
    residual, distance = lengths(list(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0]])))
    assert (residual, distance) == (3.0, pytest.approx(41**0.5 / 3))
    assert best(residual, distance) == pytest.approx(41 / 81)


def ran(method: Method, workers: int, **more: Any) -> Result:
    draw = torch.Generator().manual_seed(2)
    task = Supervised(torch.randn(40, 6, generator=draw), torch.randint(0, 3, (40,), generator=draw))

    def sgd(parameters):  # type: ignore[no-untyped-def]
        return torch.optim.SGD(parameters, lr=0.1)

    how = {"workers": workers, "steps": 4, "batch": 4, "evaluate_every": 2, **more}
    return simulate(method, nn.Linear(6, 3), task, optimizer=sgd, **how)


def test_one_worker_owes_itself_its_whole_residual() -> None:
    found = residuals(ran(DEF(4.0, lam=1.0), 1).records)
    assert [e.step for e in found] == [2, 4]
    assert all(e.residual > 0 and e.distance == pytest.approx(e.residual) for e in found)
    assert [e.best for e in found] == [pytest.approx(1.0)] * 2
    assert [e.lam for e in found] == [1.0, 1.0]


def test_the_mean_of_residuals_is_shorter_than_they_are() -> None:
    found = residuals(ran(DEF(4.0), 3).records)
    assert all(0 < e.distance < e.residual for e in found)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_record_is_of_the_residuals_that_the_workers_keep(workers: int) -> None:
    kept = list[np.ndarray]()  # [workers, parameters] at each evaluation

    def keep(state: Any) -> None:
        kept.append(np.array([worker["kept"]["e"].tolist() for worker in state["workers"]]))

    found = residuals(ran(DEF(4.0), workers, on_state=keep).records)
    assert [e.shape for e in kept] == [(workers, 21)] * 2
    squares, means = [(e**2).sum(1).mean() for e in kept], [(e.mean(0) ** 2).sum() for e in kept]
    assert [e.residual for e in found] == pytest.approx([square**0.5 for square in squares])
    assert [e.distance for e in found] == pytest.approx([mean**0.5 for mean in means])
    assert [e.best for e in found] == pytest.approx([m / s for m, s in zip(means, squares, strict=True)])


def test_where_everything_is_sent_nothing_is_owed() -> None:
    assert [(e.residual, e.distance, e.best) for e in residuals(ran(DEF(1.0, lam=1.0), 2).records)] == [
        (0.0, 0.0, None)
    ] * 2


def test_a_method_that_keeps_an_estimate_records_no_residual() -> None:
    assert residuals(ran(EF21(2.0), 2).records) == []
