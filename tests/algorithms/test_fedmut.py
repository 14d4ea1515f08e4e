"""FedMut: hand values, the mutants, what a client that was away is sent."""

from __future__ import annotations

import pytest
import torch

from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, mlp, trained
from thinwire import LUAR, FedMut, Key, Params, Simulation
from thinwire.algorithms.fedmut import View, mutation


def test_two_rounds_of_fedmut_are_one_of_two_worked_out_by_hand() -> None:
    # x = before = np.array([0.5, -1.0])                     # `local` and `mean`: tables.py; s: client 0's sign
    # for _ in range(2):
    #     step = x - before; ys = [local(x + .5 * s * step, 0), local(x - .5 * s * step, 1)]
    #     before, x = x, x + mean([y - x for y in ys])
    found = set()
    for seed in range(8):
        run = Simulation(FedMut(TWICE, alpha=0.5), Point(0.5, -1.0), PAIR, seed=seed, workers=1, plan="each")
        with run.pool:
            run.step()
            assert run.server.x.flat.tolist() == approx([0.595, -0.37])
            run.step()
            found.add(tuple(round(value, 5) for value in run.server.x.flat.tolist()))
    assert found == {(0.65271, -0.0676), (0.69119, 0.134)}


def test_a_client_of_fedmut_that_was_away_is_sent_two_models() -> None:
    ledger, before = trained(FedMut(LOCAL), rounds=6).ledger, set[int]()
    seen = set[int]()
    for round in range(1, 7):
        for entry in ledger.of("down", round):
            assert entry.payload == (3652 if round == 1 or entry.client in before else 7300)
            seen.add(entry.payload)
        before = {entry.client for entry in ledger.of("down", round)}
    assert seen == {3652, 7300}


@pytest.mark.parametrize(("clients", "still"), [(6, []), (7, [6]), (1, [0])])
def test_the_mutations_of_all_clients_add_up_to_nothing_layer_by_layer(clients: int, still: list[int]) -> None:
    step = Params.of([("a", torch.ones(3)), ("b", torch.full((2, 2), 5.0))])
    view = View(step, step, heard=True, num_clients=clients)
    drawn, apart = set(), 0
    for round in range(20):
        mutants = [mutation(view, Key(3, round, client)) for client in range(clients)]
        assert torch.stack([m.flat for m in mutants]).sum(0).abs().max() == 0
        assert [i for i, m in enumerate(mutants) if m.norm() == 0] == still
        for mutant in mutants:
            assert set(mutant["a"].abs().tolist()) <= {0.0, 1.0}
            assert set(mutant["b"].abs().flatten().tolist()) <= {0.0, 5.0}
            signs = (int(mutant["a"][0].sign()), int(mutant["b"][0, 0].sign()))
            drawn.add(signs)
            apart += signs[0] != signs[1]
    if clients > 1:
        assert {(1, 1), (1, -1), (-1, 1), (-1, -1)} <= drawn  # a sign for each layer
        assert apart > 20


def test_the_last_step_is_the_difference_of_the_last_two_models_that_were_broadcast() -> None:
    tasks, _ = handwriting()
    run = Simulation(LUAR(FedMut(LOCAL), recycle=1), mlp, tasks, sample=4, workers=1, plan="each")
    with run.pool:
        run.step()
        assert run.stream.view.state.inner.step.norm() == 0
        for _ in range(3):
            before, after = run.stream.view.state.inner.x, run.server.inner.x  # what LUAR recycled is in the step
            run.step()
            assert torch.equal(run.stream.view.state.inner.step.flat, (after - before).flat)
