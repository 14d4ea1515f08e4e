"""APFL: the mixture, and alpha where it is learnt."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, mlp, normed
from thinwire import APFL, Key, Local, Simulation
from thinwire.local import Memory, Trained
from thinwire.train.one import train

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


@pytest.mark.parametrize("model", [mlp, normed])
def test_alpha_one_trains_alone_bit_for_bit(model: Any) -> None:
    tasks = handwriting()[0][:2]
    run = Simulation(APFL(LOCAL, alpha=1.0), model, tasks, workers=1, plan="each")
    alone = run.slot.twin()
    v, statistics = alone.params(), alone.buffers()
    with run.pool:
        for number in (1, 2):
            run.step()
            alone.load_buffers(statistics)
            v, statistics = train(alone, tasks[1], Local(v, LOCAL), Key(0, number, 1)).x, alone.buffers()
            own = run.whose(1)
            assert torch.equal(own.x.flat, v.flat)
            assert (own.statistics is None) == (statistics is None)
            assert statistics is None or torch.equal(own.statistics.flat, statistics.flat)
    assert (v - run.whose(None).x).norm() > 0.01


@pytest.mark.parametrize("model", [mlp, normed])
def test_alpha_zero_evaluates_the_shared_model(model: Any) -> None:
    run = Simulation(APFL(LOCAL, alpha=0.0), model, handwriting()[0][:3], workers=1, plan="each")
    with run.pool:
        run.step()
        (own, theirs), (x, statistics) = run.whose(2), run.whose(None)
        assert torch.equal(own.flat, x.flat)
        assert theirs is statistics


def test_norm_statistics_are_those_of_the_mixtures_training() -> None:
    run = Simulation(APFL(LOCAL, alpha=0.5), normed, handwriting()[0][:3], workers=1, plan="each")
    first = run.initial_buffers
    with run.pool:
        run.step()
        own, shared = run.whose(2).statistics, run.whose(None).statistics
        assert (own - first).norm() > 1e-3
        assert (own - shared).norm() > 1e-3


def test_the_mixture_and_the_slope_in_alpha_are_of_the_shared_models_mini_batches() -> None:
    asked: list[Key] = []

    def answer(request: Local, task: Any, key: Key) -> Trained:
        asked.append(key)
        return Trained(request.x, 1, 0.0, Memory((request.x.zeros(),), 1))

    for adaptive, number in ((False, 2), (True, 3)):
        asked.clear()
        run = Simulation(APFL(LOCAL, adaptive=adaptive), mlp, handwriting()[0][:1], workers=1, train=answer)
        with run.pool:
            run.step()
        assert asked == [Key(0, 1, 0)] * number
