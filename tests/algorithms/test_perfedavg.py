"""Per-FedAvg: a client's own model, and the limit that is FedAvg."""

from __future__ import annotations

from typing import Any

import torch

from problems import PAIR, TWICE, Point, approx, handwriting, mlp, trained
from thinwire import FedAvg, Key, Local, LocalSGD, PerFedAvg, Simulation
from thinwire.local import Memory, Trained


# The server's models are in the table. A client's own is x - 0.2 * h * (x - t[k]), h = [1, 2], t = [[1, 0], [1, 1]].
def test_a_clients_model_is_a_step_from_the_newest_shared_one() -> None:
    run = Simulation(PerFedAvg(TWICE, alpha=0.2), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        assert run.whose(None)[0].flat.tolist() == approx([0.5768, -0.6052])
        assert run.whose(0)[0].flat.tolist() == approx([0.66144, -0.36312])
        assert run.whose(1)[0].flat.tolist() == approx([0.66144, 0.03688])


def test_without_a_step_ahead_it_is_fedavg_of_all_examples() -> None:
    whole = LocalSGD(0.3, batch=None, steps=3)  # no draws but the order of a sum
    one, other = trained(PerFedAvg(whole, alpha=0.0)), trained(FedAvg(whole))
    torch.testing.assert_close(one.params.flat, other.params.flat, atol=1e-6, rtol=0)
    assert (one.params - trained(PerFedAvg(whole, alpha=0.3)).params).norm() > 1e-3


def test_a_client_that_never_took_part_has_a_step_from_the_shared_model_too() -> None:
    tasks, _ = handwriting()
    run = Simulation(PerFedAvg(LocalSGD(0.1, batch=None), alpha=0.2), mlp, tasks, workers=1, plan="each")
    with run.pool:
        run.step(cohort=[0, 1])
        own = run.whose(5)[0]
        assert (own - run.whose(None)[0]).norm() > 1e-3
        assert torch.equal(own.flat, run.whose(5)[0].flat)


def test_the_gradients_of_the_hessians_difference_are_on_one_mini_batch_and_each_other_on_one_of_its_own() -> None:
    asked: list[str] = []

    def answer(request: Local, task: Any, key: Key) -> Trained:
        asked.append(key.where)
        assert request.trainer.batch == 8
        return Trained(request.x, 1, 0.0, Memory((request.x.zeros(),), 1))

    method = PerFedAvg(LocalSGD(0.1, batch=8, steps=2), hessian="HF")
    run = Simulation(method, mlp, handwriting()[0][:1], workers=1, train=answer)
    with run.pool:
        run.step()
    assert asked == ["", "training1", "training2", "training2", "training4", "training5", "training6", "training6"]
