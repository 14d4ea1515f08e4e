"""PowerSGD: iterations by hand, warm and cold starts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from problems import gaussian, lost, matrix, seen_of
from thinwire.key import Key
from thinwire.links import ErrorFeedback, Link, LowRank, PowerSGD
from thinwire.params import Params
from thinwire.wire import clone


def test_two_rounds_of_power_iteration_are_those_worked_out_by_hand() -> None:
    """Numpy::

    m = np.array([[3, 1, 0], [1, 2, 0], [0, 0, 1.0]]); e = np.zeros((3, 3)); q = np.array([1, 0, 0.0])
    for x in (m, 0 * m):
        p = (x + e) @ q; p /= np.linalg.norm(p); q = (x + e).T @ p
        seen = np.outer(p, q); e = x + e - seen; print(seen, e, q)
    """
    x = matrix(torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    link = PowerSGD(1)
    tx = link.open(x.zeros())[0]._replace(start={"a": torch.tensor([[1.0, 0.0, 0.0]])})
    _, seen, tx = link.send(x, tx, Key(1))
    assert seen.flat.tolist() == pytest.approx([3, 1.5, 0, 1, 0.5, 0, 0, 0, 0], abs=1e-6)
    assert tx.residual.flat.tolist() == pytest.approx([0, -0.5, 0, 0, 1.5, 0, 0, 0, 1], abs=1e-6)
    assert tx.start["a"].abs().flatten().tolist() == pytest.approx([3.1622777, 1.5811388, 0], abs=1e-6)
    _, seen, tx = link.send(x.zeros(), tx, Key(1, 1))
    assert seen.flat.tolist() == pytest.approx([0, -0.5, 0, 0, 1.5, 0, 0, 0, 0], abs=1e-6)
    assert tx.residual.flat.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0, 0, 1], abs=1e-6)


def rotating(rounds: int, fresh: float = 0.0) -> list[Tensor]:
    """A 24 x 40 matrix whose directions turn a little every round, and new noise each time."""
    turn = torch.matrix_exp(0.02 * (gaussian(24, 24) - gaussian(24, 24).T))
    x, found = torch.diag(0.8 ** torch.arange(24.0)) @ torch.linalg.qr(gaussian(40, 24, seed=2)).Q.T, []
    for t in range(rounds):
        x = turn @ x
        found.append(x + fresh * gaussian(24, 40, seed=t))
    return found


def missed(link: PowerSGD, xs: list[Tensor]) -> list[float]:
    """What each message leaves out of its matrix, which is given to it alone."""
    tx, found = link.open(matrix(xs[0]).zeros())[0], []
    for t, x in enumerate(xs):
        tx = tx._replace(residual=tx.residual.zeros())
        _, seen, tx = link.send(matrix(x), tx, Key(1, t))
        found.append(lost(x, seen["a"]))
    return found


def owed(link: Link, xs: list[Tensor]) -> list[float]:
    """How long what is still owed is after each round."""
    tx, found = link.open(matrix(xs[0]).zeros())[0], []
    for t, x in enumerate(xs):
        _, _, tx = link.send(matrix(x), tx, Key(1, t))
        found.append(tx.residual.norm())
    return found


def test_a_warm_start_beats_a_cold_one_on_a_rotating_matrix() -> None:
    xs = rotating(20)
    warm, cold = missed(PowerSGD(2), xs), missed(PowerSGD(2, warm=False), xs)
    best = [lost(x, seen_of(LowRank(2), x)) for x in xs]
    assert warm[0] == cold[0]  # the first start is drawn either way
    # Once it is warm it is nearly as good as the decomposition; a cold start leaves half as much again.
    assert all(w <= 1.02 * b for w, b in zip(warm[4:], best[4:], strict=True))
    assert sum(cold[4:]) > 1.4 * sum(best[4:])


def test_a_warm_start_owes_less_than_a_cold_one_where_updates_are_noisy() -> None:
    xs = rotating(40, fresh=0.1)
    warm, cold = owed(PowerSGD(2), xs), owed(PowerSGD(2, warm=False), xs)
    assert sum(owed(ErrorFeedback(LowRank(2)), xs)) < sum(warm) < 0.97 * sum(cold)


def test_what_power_iteration_delivers_and_still_owes_is_what_it_was_given() -> None:
    xs, link = rotating(25), PowerSGD(1)
    tx, given_, delivered = link.open(matrix(xs[0]).zeros())[0], torch.zeros(960), torch.zeros(960)
    for t, x in enumerate(xs):
        _, seen, tx = link.send(matrix(x), tx, Key(1, t))
        given_ += x.flatten()
        delivered += seen.flat
    torch.testing.assert_close(delivered + tx.residual.flat, given_, atol=1e-4, rtol=0)
    assert tx.residual.norm() > 0.1


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_iteration_goes_on_after_rounds_of_nothing_and_at_any_scale(scale: float) -> None:
    x, link = matrix(scale * gaussian(20, 1) @ gaussian(1, 30, seed=1)), PowerSGD(1)
    tx = link.open(x.zeros())[0]
    for t, update in enumerate([x.zeros(), x.zeros(), x, x * 2.0, x.zeros(), x]):
        _, seen, tx = link.send(update, tx, Key(1, t))
        assert (seen - update).norm() <= 1e-5 * x.norm()


def test_layers_that_a_round_leaves_out_keep_their_factors() -> None:
    x = Params.of([("a", gaussian(5, 9)), ("b", gaussian(6, 7)), ("c", gaussian(3))])
    link = PowerSGD(1)
    _, _, tx = link.send(x, link.open(x.zeros())[0], Key(1))
    _, _, after = link.send(x.only(["b", "c"]), tx, Key(1, 1))
    assert list(after.start) == ["a", "b"]
    assert after.start["a"].equal(tx.start["a"])
    assert not after.start["b"].equal(tx.start["b"])
    assert after.residual["a"].equal(tx.residual["a"])


def test_a_cold_start_keeps_no_factors() -> None:
    x = matrix(gaussian(5, 9))
    link = PowerSGD(1, warm=False)
    _, first, tx = link.send(x, link.open(x.zeros())[0], Key(1))
    assert tx.start["a"].abs().max() == 0
    _, second, _ = link.send(x, clone(link.open(x.zeros())[0]), Key(1, 1))
    assert not second.flat.equal(first.flat)
