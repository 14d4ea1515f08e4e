"""FedDC: corrections that settle, and the drift."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from problems import PAIR, Point, Quadratic, approx
from thinwire import SCAFFOLD, FedDC, LocalSGD, Simulation


@pytest.mark.parametrize(
    ("method", "states"),
    [
        (FedDC(LocalSGD(0.1, batch=None, steps=5), alpha=0.0), [-0.81902, -0.967246, -0.994072, -0.998927]),
        (FedDC(LocalSGD(0.1, batch=None, steps=5), alpha=0.1), [-0.802898, -0.928919, -0.948698, -0.951803]),
        (SCAFFOLD(LocalSGD(0.1, batch=None, steps=5)), [-0.81902, -0.967246, -0.994072, -0.998927]),
    ],
    ids=["FedDC", "FedDC that pulls", "SCAFFOLD"],
)
def test_corrections_of_two_clients_that_pull_apart_settle_and_do_not_alternate(
    method: tw.Algorithm, states: list[float]
) -> None:
    # Losses (x - 1)^2 / 2 and (x + 1)^2 / 2: at their common minimum the gradients are -1 and 1.
    #   x, G, g, h = 0.0, 0.0, [0.0, 0.0], [0.0, 0.0]
    #   for _ in range(4):
    #       d = []
    #       for i, a in enumerate((1.0, -1.0)):
    #           y = x
    #           for _ in range(5): y = y - 0.1 * (y - a + alpha * (h[i] + y - x) + G - g[i])
    #           d.append(y - x)
    #       h, g = [h[i] + d[i] for i in (0, 1)], [g[i] - G - d[i] / (5 * 0.1) for i in (0, 1)]
    #       x, G = x + sum(d[i] + h[i] for i in (0, 1)) / 2, sum(g) / 2
    #       print(g[0])
    pair = [Quadratic(torch.ones(2), torch.full((1, 2), a)) for a in (1.0, -1.0)]
    run = Simulation(method, Point(0.0, 0.0), pair, workers=1, plan="each")
    found = []
    with run.pool:
        for _ in range(4):
            run.step()
            own = run.states.get(0).own.state
            found.append((own.g if isinstance(method, FedDC) else own).flat.tolist())
    assert found == [approx([state, state]) for state in states]


def test_a_clients_drift_is_the_sum_of_the_updates_that_it_made() -> None:
    # One step of 0.1 from x, h = (1, 2): the gradient is h (x - a), nothing pulls in the first round.
    run = Simulation(FedDC(LocalSGD(0.1, batch=None, steps=1)), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
    own = run.states.get(0).own.state
    assert own.h.flat.tolist() == approx([0.05, 0.2])  # -0.1 * (-0.5, -2.0)
    assert own.g.flat.tolist() == approx([-0.5, -2.0])
