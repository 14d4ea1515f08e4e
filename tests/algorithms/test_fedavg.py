"""FedAvg: descent, seeds, and hand values of what its links make of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire as tw
from problems import LOCAL, PAIR, TWICE, Point, Quadratic, approx, assert_same_run, handwriting, mlp, path, trained
from thinwire import EF21, LBGM, ErrorFeedback, FedAvg, Half, LocalSGD, TopK


def test_another_seed_is_another_run_from_the_same_model() -> None:
    module = mlp()
    assert_same_run(trained(FedAvg(LOCAL), module), trained(FedAvg(LOCAL), module))
    assert not torch.equal(
        trained(FedAvg(LOCAL), module).params.flat, trained(FedAvg(LOCAL), module, seed=8).params.flat
    )


def test_one_client_with_one_step_a_round_is_gradient_descent() -> None:
    tasks, _ = handwriting()
    torch.manual_seed(0)
    module = mlp()
    found = tw.simulate(
        FedAvg(LocalSGD(lr=0.5, batch=None, steps=1)), module, [tasks[4]], 6, workers=1, plan="each"
    ).params
    x, y = tasks[4].batch(torch.arange(44))
    weights = list(module.parameters())
    for _ in range(6):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), weights)
        with torch.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                w -= 0.5 * g
    torch.testing.assert_close(found.flat, torch.cat([w.detach().flatten() for w in weights]), atol=2e-6, rtol=0)


def test_a_downlink_of_differences_that_loses_nothing_is_dense() -> None:
    differences = trained(FedAvg(LOCAL, down=EF21(TopK(1.0)))).params
    torch.testing.assert_close(differences.flat, trained(FedAvg(LOCAL)).params.flat, atol=1e-6, rtol=1e-5)


def test_four_rounds_of_lbgm_are_those_worked_out_by_hand() -> None:
    # x = np.array([0.5, -1.0]); l = [None, None]           # `local`, `mean` and n as in tables.py
    # for _ in range(4):
    #     seen = []
    #     for i in (0, 1):
    #         g = x - local(x, i)
    #         cos = 0 if l[i] is None else g @ l[i] / np.linalg.norm(g) / np.linalg.norm(l[i])
    #         if 1 - cos**2 <= 0.1: seen.append(g @ l[i] / (l[i] @ l[i]) * l[i])   # one scalar
    #         else: l[i] = g; seen.append(g)                                       # two floats
    #     x = x - mean(seen, n); print(x)                   # sent: full full, one one, full one, full one
    expected = [[0.595, -0.37], [0.65342648, 0.03693313], [0.70445598, 0.29559255], [0.74388008, 0.46138656]]
    method = FedAvg(TWICE, up=LBGM(threshold=0.1))
    assert path(method, 4) == approx(expected)
    ledger = tw.simulate(method, Point(0.5, -1.0), PAIR, 4, workers=1, plan="each").ledger
    assert [[e.floats for e in ledger.of("up", r)] for r in (1, 2, 3, 4)] == [[2, 2], [1, 1], [2, 1], [2, 1]]


def test_a_round_that_looks_back_keeps_the_residual_of_the_link_it_holds() -> None:
    # One step of 0.1, h = (1, 2), target (1, 0): the update is ((1 - x) / 10, -x / 5). Top-k keeps one entry of two.
    # 1: p = (.05, .2),   (0, .2) whole,           e = (.05, 0)
    # 2: p = (.1, .16),   .8 of (0, .2), looked back, e = (.1, 0)
    # 3: p = (.15, .128), (.15, 0) whole,          e = (0, .128)
    # 4: p = (.035, .256), (0, .256) whole
    method = FedAvg(LocalSGD(lr=0.1, batch=None, steps=1), up=LBGM(ErrorFeedback(TopK(0.5)), threshold=0.5))
    assert path(method, 4, tasks=PAIR[:1]) == approx([[0.5, -0.8], [0.5, -0.64], [0.65, -0.64], [0.65, -0.384]])


def test_clients_train_from_the_halves_they_were_sent() -> None:
    # Half precision holds 0.1 as 0.0999755859375 and 1000.3 as 1000.5. One step of 0.5 from there, h = 1, target 0:
    # the update is -0.04998779296875 and -500.25; the server adds it to its own 0.1 and 1000.3.
    task = Quadratic(torch.ones(2), torch.zeros(1, 2))
    method = FedAvg(LocalSGD(lr=0.5, batch=None, steps=1), down=Half())
    found = path(method, 1, Point(0.1, 1000.3), [task])[0]
    assert found[0] == pytest.approx(0.05001220703125, abs=1e-8)
    assert found[1] == pytest.approx(500.05, abs=1e-4)
