"""Ditto: the models that clients keep."""

from __future__ import annotations

import torch

from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, mlp, normed
from thinwire import Ditto, Key, Local, Simulation
from thinwire.train.one import train


# v = [sgd(k, v[k], lam=0.5, to=x) for k in (0, 1)], then x = (1 * sgd(0, x) + 3 * sgd(1, x)) / 4, twice, where
# sgd(k, w, lam=0, to=0) does w -= 0.1 * (h * (w - t[k]) + lam * (w - to)) two times, h = [1, 2], t = [[1, 0], [1, 1]]
def test_clients_models_on_two_quadratics_are_those_worked_out_by_hand() -> None:
    run = Simulation(Ditto(TWICE, lam=0.5), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    expected = [
        ([0.595, -0.37], [0.5925, -0.65], [0.5925, -0.3]),
        ([0.67195, 0.0332], [0.66811875, -0.398], [0.66811875, 0.148875]),
    ]
    with run.pool:
        for points in expected:
            run.step()
            for client, point in zip((None, 0, 1), points, strict=True):
                assert run.whose(client)[0].flat.tolist() == approx(point)


def test_a_strong_pull_keeps_a_clients_model_at_the_shared_one() -> None:
    tasks, _ = handwriting()
    distances = []
    for lam in (0.0, 9.0):  # lr is 0.1: with 9 a step goes nine tenths of the way back
        run = Simulation(Ditto(LOCAL, lam=lam), mlp, tasks, workers=1, plan="each")
        with run.pool:
            before = run.server.x
            run.step()
            distances.append((run.whose(4)[0] - before).norm())
    assert distances[1] < 0.7 * distances[0]


def test_without_a_pull_model_and_norm_statistics_are_those_of_training_alone() -> None:
    tasks = handwriting()[0][:2]
    run = Simulation(Ditto(LOCAL, lam=0.0), normed, tasks, workers=1, plan="each")
    alone = run.slot.twin()
    v, statistics = alone.params(), alone.buffers()
    with run.pool:
        for number in (1, 2):
            run.step()
            alone.load_buffers(statistics)
            v = train(alone, tasks[1], Local(v, LOCAL), Key(0, number, 1).at("training1")).x
            statistics = alone.buffers()
            own = run.whose(1)
            assert torch.equal(own.x.flat, v.flat)
            assert torch.equal(own.statistics.flat, statistics.flat)
    assert (statistics - run.whose(None).statistics).norm() > 1e-3


def test_shared_norm_statistics_are_those_of_the_shared_models_training() -> None:
    tasks, _ = handwriting()
    statistics = []
    for lam in (0.0, 3.0):
        run = Simulation(Ditto(LOCAL, lam=lam), normed, tasks, workers=1, plan="each")
        with run.pool:
            run.step()
            statistics.append(run.buffers.flat)
    assert torch.equal(*statistics)
