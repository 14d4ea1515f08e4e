"""What R directions leave out, FLSS's basis followed through inner products, and the search for a dimension."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thinwire as tw
from problems import Supervised
from thinwire.look.dimension import smallest
from thinwire.look.subspace import Subspace, flss, left_out, residual_share, streaming
from thinwire.studies.read import arms


def test_rho_is_the_share_of_the_squares_that_come_after() -> None:
    # 16, 9, 4 and 1 of 30.
    found = left_out(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    assert found.tolist() == pytest.approx([14 / 30, 5 / 30, 1 / 30, 0.0])
    assert left_out(torch.zeros(3)).tolist() == [0, 0, 0]


def test_a_gradient_in_the_space_of_the_first_has_cosine_one_and_one_outside_has_zero() -> None:
    e = torch.eye(4, dtype=torch.float64)
    g = torch.stack([e[0], e[1], e[0] + e[1], e[2], e[2] + e[0]])
    found, sigma = streaming(g @ g.T, rank=2, start=2, every=None)
    assert [each.round for each in found] == [1, 2, 3, 4, 5]
    assert [each.full for each in found] == [True, True, False, False, False]
    assert [each.cosine for each in found] == pytest.approx([0, 0, 1, 0, 0.5**0.5])
    assert sigma.tolist() == pytest.approx([1, 1])


def test_without_enough_gradients_there_is_no_basis() -> None:
    found, sigma = streaming(torch.eye(3, dtype=torch.float64), rank=2, start=4)
    assert [each.cosine for each in found] == [0, 0, 0]
    assert len(sigma) == 0
    with pytest.raises(ValueError, match="rank=5, start=4: rank is at least 1, and start at least rank"):
        streaming(torch.eye(3, dtype=torch.float64), rank=5, start=4)


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_the_basis_that_is_followed_is_the_one_that_flss_had(tmp_path: Path, decay: float) -> None:
    draw = torch.Generator().manual_seed(5)
    tasks = [Supervised(torch.randn(20, 6, generator=draw), torch.randint(0, 3, (20,), generator=draw)) for _ in "ab"]
    local = tw.LocalSGD(0.3, batch=5)
    method = tw.FLSS(tw.FedAvg(local), rank=3, start=4, every=2, decay=decay)
    tw.simulate(method, torch.nn.Linear(6, 3), tasks, 9, out=tmp_path / "run", record="gradients", workers=1)
    (arm,) = arms([tmp_path / "run"])
    run = arm.runs[0]
    assert flss(run) == method
    own, found = residual_share(run), Subspace().read(run)
    assert own is not None
    assert found.kept is not None
    from thinwire.look.gradients import space_of

    _, sigma = streaming(space_of(run).whole(), 3, 4, 2, decay)
    assert sigma.tolist() == pytest.approx(own.tolist(), rel=1e-4)
    assert (len(found.sigma), found.rank, len(found.followed)) == (9, 3, 9)
    assert [each.cosine for each in found.followed[:4]] == [0, 0, 0, 0]
    assert all(0 < each.cosine <= 1 for each in found.followed[4:])


def test_the_smallest_dimension_is_found_by_doubling_and_halving() -> None:
    found, tried = smallest(lambda dim: dim / 100, 0.7, 10, 1000)
    assert [each.dim for each in tried] == [10, 20, 40, 80, 60, 70, 65]
    assert found == 70
    assert [each.enough for each in tried] == [False, False, False, True, False, True, False]


def test_a_first_dimension_that_is_enough_is_the_answer_and_a_last_that_is_not_is_none() -> None:
    assert smallest(lambda dim: 1.0, 0.5, 10, 1000)[0] == 10
    found, tried = smallest(lambda dim: 0.0, 0.5, 10, 25)
    assert found is None
    assert [each.dim for each in tried] == [10, 20, 25]
    with pytest.raises(ValueError, match="dimensions 5 to 4"):
        smallest(lambda dim: 0.0, 0.5, 5, 4)
