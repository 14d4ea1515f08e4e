"""pFedMe: a client's own model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, mlp, normed, path
from thinwire import Key, Local, LocalSGD, Simulation, pFedMe
from thinwire.local import Trained


# for _ in range(2):
#     for k in (0, 1):
#         w = x
#         for _ in range(2): theta = sgd(k, w, lam=2, to=w); w = w - 0.5 * (w - theta)
#     x = the plain mean of both w
# where sgd does theta -= 0.1 * (h * (theta - t[k]) + lam * (theta - to)) two times, h = [1, 2], t = [[1, 0], [1, 1]]
def test_a_clients_model_is_the_last_solution_of_its_subproblem() -> None:
    run = Simulation(pFedMe(TWICE, lam=2.0, eta=0.25, steps=2), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        assert run.whose(0)[0].flat.tolist() == approx([0.620275, -0.5712])
        assert run.whose(1)[0].flat.tolist() == approx([0.620275, -0.1424])
        run.step()
        assert run.whose(0)[0].flat.tolist() == approx([0.68208474, -0.31895808])


# As lam grows, the solution of a subproblem is w - grad(w) / lam to within 1 / lam^2, and w moves by eta times the
# gradient: FedAvg with eta as the learning rate. FedAvg(TWICE) ends its first two rounds on these quadratics at
# (0.595, -0.37) and (0.67195, 0.0332), as in the table of hand values. How far pFedMe is from there, in numpy:
# for k in (0, 1):
#     w = x
#     for _ in range(2):
#         theta = w
#         for _ in range(20): theta = theta - 0.5 / lam * (h * (theta - t[k]) + lam * (theta - w))
#         w = w - 0.1 * lam * (w - theta)
# x = (1 * w[0] + 3 * w[1]) / 4, twice
@pytest.mark.parametrize(
    ("lam", "distances"),
    [(10.0, [0.095632, 0.127853]), (100.0, [0.011044, 0.014233]), (1000.0, [0.0011222, 0.0014399])],
)
def test_the_larger_lam_the_closer_is_fedavg_at_the_rate_eta(lam: float, distances: list[float]) -> None:
    method = pFedMe(LocalSGD(0.5 / lam, batch=None, steps=2), lam=lam, eta=0.1, steps=20, weights="examples")
    fedavg = torch.tensor([[0.595, -0.37], [0.67195, 0.0332]])
    assert (torch.tensor(path(method, 2)) - fedavg).norm(dim=1).tolist() == pytest.approx(distances, rel=0.02)


def test_the_steps_of_one_subproblem_are_on_one_mini_batch() -> None:
    asked: list[Key] = []

    def answer(request: Local, task: Any, key: Key) -> Trained:
        asked.append(key)
        return Trained(request.x, 1, 0.0)

    tasks = handwriting()[0][1:2]  # 20 examples: two mini-batches of 16
    run = Simulation(pFedMe(LOCAL, steps=3), mlp, tasks, workers=1, train=answer)
    with run.pool:
        run.step()
    assert asked == [Key(0, 1, 0)] * 3 + [Key(0, 1, 0).at("training3")] * 3


def test_norm_statistics_stay_with_a_client_and_their_mean_is_the_shared_models() -> None:
    run = Simulation(pFedMe(LOCAL), normed, handwriting()[0][:2], workers=1, plan="each")
    with run.pool:
        run.step()
        one, other = (run.whose(client).statistics for client in (0, 1))
        assert (one - other).norm() > 1e-3
        torch.testing.assert_close(run.whose(None).statistics.flat, ((one + other) / 2).flat)
