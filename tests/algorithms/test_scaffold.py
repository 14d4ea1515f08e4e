"""SCAFFOLD: its first rounds, hand values, controls that stay the mean of the clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from problems import LOCAL, PAIR, TWICE, Point, approx, assert_same_run, handwriting, mlp, trained
from thinwire import EF21, LBGM, SCAFFOLD, Dense, ErrorFeedback, FedAvg, Half, RandK, Simulation, TopK

COMPRESSED = ErrorFeedback(TopK(0.1))


def test_the_first_round_of_scaffold_is_that_of_fedavg() -> None:
    for weights in ("examples", "uniform"):
        a, b = trained(SCAFFOLD(LOCAL, weights=weights), rounds=1), trained(FedAvg(LOCAL, weights=weights), rounds=1)  # type: ignore[arg-type]
        assert_same_run(a, b)


def test_the_second_round_of_scaffold_is_not_that_of_fedavg() -> None:
    a, b = trained(SCAFFOLD(LOCAL), rounds=2), trained(FedAvg(LOCAL), rounds=2)
    assert not torch.allclose(a.params.flat, b.params.flat, atol=1e-3)


@pytest.mark.parametrize(
    ("weights", "x", "c", "c_0", "c_1"),
    [
        (
            "uniform",
            [[0.595, -0.46], [0.67195, -0.1144]],
            [[-0.475, -2.7], [-0.38475, -1.728]],
            [[-0.475, -1.8], [-0.38475, -0.738]],
            [[-0.475, -3.6], [-0.38475, -2.718]],
        ),
        (
            "examples",
            [[0.595, -0.37], [0.67195, -0.0478]],
            [[-0.475, -2.7], [-0.38475, -1.566]],
            [[-0.475, -1.8], [-0.38475, -0.576]],
            [[-0.475, -3.6], [-0.38475, -2.556]],
        ),
    ],
)
def test_two_rounds_of_scaffold_are_those_worked_out_by_hand(
    weights: Any, x: list[Any], c: list[Any], c_0: list[Any], c_1: list[Any]
) -> None:
    # x = np.array([0.5, -1.0]); c = np.zeros(2); ci = np.zeros((2, 2))
    # for _ in range(2):                                    # w = np.ones(2) or n; `local`, `mean`: tables.py
    #     ys = [local(x, i, offset=c - ci[i]) for i in (0, 1)]
    #     new = np.array([ci[i] - c + (x - ys[i]) / (2 * 0.1) for i in (0, 1)])
    #     x = x + mean([y - x for y in ys], w); c = c + (new - ci).sum(0) / 2; ci = new; print(x, c, ci)
    run = Simulation(SCAFFOLD(TWICE, weights=weights), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        for t in (0, 1):
            run.step()
            assert run.server.x.flat.tolist() == approx(x[t])
            assert run.server.c.flat.tolist() == approx(c[t])
            assert run.states.get(0).own.state.flat.tolist() == approx(c_0[t])
            assert run.states.get(1).own.state.flat.tolist() == approx(c_1[t])


@pytest.mark.slow
@pytest.mark.parametrize(
    "up",
    [Dense(), TopK(0.05), COMPRESSED, Half(), RandK(0.2), LBGM(threshold=0.7), EF21(TopK(0.1))],
    ids=repr,
)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_the_servers_control_is_the_mean_of_the_clients_after_every_round(up: tw.Link, weights: Any) -> None:
    tasks, _ = handwriting()
    method = SCAFFOLD(LOCAL, up=up, weights=weights)
    run = Simulation(method, mlp, tasks, sample=4, dropout=0.3, workers=1, plan="each")
    with run.pool:
        for _ in range(6):
            run.step()
            held = [run.states.get(i).own.state.flat for i in range(8)]
            torch.testing.assert_close(run.server.c.flat, torch.stack(held).mean(0), atol=2e-6, rtol=1e-4)
    assert run.server.c.norm() > 0.01


def test_option_one_keeps_the_servers_control_the_mean_of_the_clients() -> None:
    tasks, _ = handwriting()
    method = SCAFFOLD(LOCAL, option="I", up={"control": Half()})
    run = Simulation(method, mlp, tasks, sample=4, dropout=0.3, workers=1, plan="each")
    with run.pool:
        for _ in range(5):
            run.step()
            held = [run.states.get(i).own.state.flat for i in range(8)]
            torch.testing.assert_close(run.server.c.flat, torch.stack(held).mean(0), atol=2e-6, rtol=1e-4)
    assert run.server.c.norm() > 0.01


def test_the_control_of_option_one_is_the_gradient_of_all_the_clients_data_at_the_servers_model() -> None:
    tasks, _ = handwriting()
    run = Simulation(SCAFFOLD(LOCAL, option="I"), mlp, tasks, workers=1, plan="each")
    module = run.slot.module
    x, y = tasks[4].batch(torch.arange(44))
    loss = nn.functional.cross_entropy(module(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    with run.pool:
        run.step()
    torch.testing.assert_close(run.states.get(4).own.state.flat, expected, atol=1e-8, rtol=1e-6)


# c and ci, as the script of tables.py has them.
def test_what_option_one_keeps_is_as_worked_out_by_hand() -> None:
    run = Simulation(SCAFFOLD(TWICE, option="I"), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        run.step()
        assert run.server.c.flat.tolist() == approx([-0.405, -1.74])
        assert run.states.get(1).own.state.flat.tolist() == approx([-0.405, -2.74])
