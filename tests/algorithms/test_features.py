"""Methods that look into the model: hand values, no dice thrown, tasks without labels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire as tw
from problems import LOCAL, PAIR, SCORED, TWICE, Point, Scores, approx, assert_same_run, path, trained
from thinwire import MOON, FedAvg, FedGen, FedNTD, Supervised


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 10))


@pytest.mark.parametrize("method", [MOON(LOCAL, mu=0.0), FedNTD(LOCAL, beta=0.0)], ids=repr)
def test_a_look_at_another_model_throws_no_dice(method: tw.Algorithm) -> None:
    assert_same_run(trained(method, dropping), trained(FedAvg(LOCAL), dropping))


@pytest.mark.parametrize(
    ("method", "points"),
    [
        (
            MOON(TWICE, mu=2.0, temperature=0.5, layer="0"),
            [[0.3695113, -1.05920012], [0.26459505, -1.11190343], [0.16849068, -1.16297359]],
        ),
        (
            FedNTD(TWICE, beta=0.5, temperature=2.0),
            [[0.37428944, -1.05997862], [0.26730261, -1.11517861], [0.17546451, -1.16662875]],
        ),
    ],
    ids=["moon", "ntd"],
)
def test_rounds_of_two_classifiers_are_those_worked_out_by_hand(
    method: tw.Algorithm, points: list[list[float]]
) -> None:
    # us, ys = np.array([[1.0, 2.0], [2.0, -1.0]]), [0, 1]
    # def scores(w, u): return np.array([w[0] * u[0], w[1] * u[1], w[0] * u[1]])
    # def ce(s, y): return np.log(np.exp(s).sum()) - s[y]
    # def cos(p, q): return p @ q / np.linalg.norm(p) / np.linalg.norm(q)
    # def soft(s): return np.exp(s) / np.exp(s).sum()
    # def slope(f, w): return np.array([(f(w + e) - f(w - e)) / 2e-6 for e in 1e-6 * np.eye(2)])
    # def moon(w, x, last, u, y):
    #     if last is None: return ce(scores(w, u), y)
    #     near, far = (np.exp(cos(scores(w, u), scores(v, u)) / 0.5) for v in (x, last))
    #     return ce(scores(w, u), y) - 2.0 * np.log(near / (near + far))
    # def ntd(w, x, last, u, y):
    #     p, q = (soft(np.delete(scores(v, u), y) / 2.0) for v in (x, w))
    #     return ce(scores(w, u), y) + 0.5 * 2.0**2 * (p * np.log(p / q)).sum()
    # x, last = np.array([0.5, -1.0]), [None, None]
    # for _ in range(3):
    #     for i in (0, 1):
    #         w = x
    #         for _ in range(2): w = w - 0.1 * slope(lambda v: f(v, x, last[i], us[i], ys[i]), w)
    #         last[i] = w
    #     x = (last[0] + last[1]) / 2; print(x)
    assert path(method, 3, nn.Sequential(Scores()), SCORED) == approx(points)


def test_a_method_that_needs_labels_refuses_a_task_without_by_name() -> None:
    wanted = r"needs batches of \(inputs, targets\) with whole numbers .*this task's batch is a float32 tensor"
    with pytest.raises(ValueError, match=f"FedNTD {wanted}"):
        tw.simulate(FedNTD(TWICE), Point(0.5, -1.0), PAIR, 1, workers=1)
    squares = Supervised(torch.randn(4, 3), torch.randn(4, 2), loss_of=lambda out, y: ((out - y) ** 2).sum(1))
    for method in (FedNTD(TWICE), FedGen(TWICE)):
        with pytest.raises(ValueError, match=r"this task's batch is \(a float32 tensor, a float32 tensor\)"):
            tw.simulate(method, nn.Linear(3, 2), [squares], 1, workers=1)
