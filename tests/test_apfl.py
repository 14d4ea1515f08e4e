"""APFL: the mixture, and alpha where it is learnt."""

from __future__ import annotations

import pytest
import torch

from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, mlp
from thinwire import APFL, Ditto, Simulation

# x, v, al = x0, [x0, x0], [0.5, 0.5]
# for _ in range(2):
#     w = [sgd(k, x) for k in (0, 1)]                                    # two steps of w -= 0.1 * grad(k, w)
#     for k in (0, 1):
#         if adaptive: al[k] -= 0.1 * grad(k, al[k] * v[k] + (1 - al[k]) * x) @ (v[k] - x)
#         for at in (x, (x + w[k]) / 2):
#             v[k] = v[k] - 0.1 * al[k] * grad(k, al[k] * v[k] + (1 - al[k]) * at)
#     x = (1 * w[0] + 3 * w[1]) / 4
# grad(k, w) is h * (w - t[k]), h = [1, 2], t = [[1, 0], [1, 1]]
FIRST = [[0.5481875, -0.814], [0.5481875, -0.628]]


@pytest.mark.parametrize(
    ("adaptive", "second", "alphas"),
    [
        (False, [[0.58953074, -0.70189], [0.58953074, -0.348025]], [0.5, 0.5]),
        (True, [[0.58479771, -0.71813804], [0.58266272, -0.39564672]], [0.44542492, 0.42064612]),
    ],
)
def test_two_rounds_are_those_worked_out_by_hand(
    adaptive: bool, second: list[list[float]], alphas: list[float]
) -> None:
    run = Simulation(APFL(TWICE, alpha=0.5, adaptive=adaptive), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        for expected in (FIRST, second):
            run.step()
            for client in (0, 1):
                assert run.states.get(client).own.state.v.flat.tolist() == approx(expected[client])
    assert [run.states.get(client).own.state.alpha for client in (0, 1)] == approx(alphas)


@pytest.mark.parametrize("client", [0, 1])
def test_the_model_that_is_evaluated_is_the_mixture_with_the_newest_shared_one(client: int) -> None:
    run = Simulation(APFL(TWICE, alpha=0.5), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()  # half of (0.595, -0.37), and half of v
        assert run.whose(client)[0].flat.tolist() == approx([0.57159375, -0.592 if client == 0 else -0.499])


def test_alpha_one_trains_alone() -> None:
    tasks, _ = handwriting()
    models = []
    for method in (APFL(LOCAL, alpha=1.0), Ditto(LOCAL, lam=0.0)):  # the same mini-batches
        run = Simulation(method, mlp, tasks, workers=1, plan="each")
        with run.pool:
            run.step()
            run.step()
            models.append(run.whose(3)[0].flat)
    torch.testing.assert_close(*models, atol=1e-6, rtol=0)


def test_alpha_zero_evaluates_the_shared_model() -> None:
    run = Simulation(APFL(LOCAL, alpha=0.0), mlp, handwriting()[0], workers=1, plan="each")
    with run.pool:
        run.step()
        assert torch.equal(run.whose(3)[0].flat, run.whose(None)[0].flat)
