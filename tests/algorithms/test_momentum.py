"""Momentum at the clients: the buffer that is averaged, bytes, fractions of an epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thinwire as tw
from problems import PAIR, Point, approx
from thinwire import FedAvgLM, LocalSGD, Momentum, Simulation

LOCAL = LocalSGD(lr=0.1, batch=16, momentum=0.6)


HALF = Momentum(0.5, beta=0.9)


@pytest.mark.parametrize("plan", ["each", "together"])
def test_a_buffer_ends_with_its_clients_last_step_and_begins_where_it_is_told(plan: Any) -> None:
    # Three clients of 1, 2 and 3 batches of one example. Weights are zero and inputs all ones, so with x = 0 the
    # gradient of a bias is p - [y = class] = (.5, -.5), and with a step of (nearly) nothing it stays: from a buffer of
    # (1, 1) it ends at .5 (1, 1) + g, .25 (1, 1) + 1.5 g, .125 (1, 1) + 1.75 g. Their mean is
    # (.875, .875) / 3 + 4.25 / 3 (.5, -.5).
    inputs, targets = torch.zeros(6, 1), torch.ones(6, dtype=torch.int64)
    tasks = [tw.Supervised(inputs, targets, torch.arange(6)[part]) for part in (slice(1), slice(1, 3), slice(3, 6))]
    module = torch.nn.Linear(1, 2)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    method = FedAvgLM(LocalSGD(1e-9, batch=1, momentum=0.5), weights="uniform")
    run = Simulation(method, module, tasks, workers=1, plan=plan)
    with run.pool:
        run.server = run.server._replace(momentum=run.server.momentum.map(torch.ones_like))
        run.step()
    assert run.server.momentum["bias"].tolist() == approx([3.0 / 3, -1.25 / 3])


# Version 1, list of fields 2, a field: list 2, no mask 1, tensor of two 3; then padding to fours, and 8 of data. The
# number of rounds done takes 2 more, of the padding.
BYTES = {
    "FedAvg()": (20, 20),
    "FedAvgSM()": (20, 20),
    "FedAvgLMZ()": (20, 20),
    "FedAvgSLMZ()": (20, 20),
    "FedAvgLM()": (32, 32),
    "FedAvgSLM()": (32, 32),
    "DOMO()": (20, 20),
    "DOMO(intra=True)": (20, 20),
    "DOMO(momentum='sent')": (20, 36),
}


@pytest.mark.parametrize("expression", BYTES)
def test_every_round_costs_so_many_bytes_each_way(expression: str) -> None:
    ledger = tw.simulate(tw.parse(expression), Point(0.5, -1.0), PAIR, 3, workers=1, plan="each").ledger
    up, down = BYTES[expression]
    for round in (1, 2, 3):
        assert [e.payload for e in ledger.of("up", round)] == [up, up]
        assert [e.payload for e in ledger.of("down", round)] == [down, down]


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 49), (1, 98), (2, 196)])
def test_local_epochs_are_the_steps_that_the_thesis_counts(epochs: float, steps: int) -> None:
    # Section 4.5.2: 50,000 examples over 16 clients, batches of 32.
    assert LocalSGD(0.1, epochs=float(epochs), batch=32).num_steps(50_000 // 16) == steps
