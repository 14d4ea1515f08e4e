"""FT: fine-tuning of the model that was trained together."""

from __future__ import annotations

import torch

from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, normed
from thinwire import FT, FedAvg, LocalSGD, Simulation


# The shared model is FedAvg's, (0.595, -0.37) after a round. Three epochs of all examples are three steps of
# w -= 0.1 * h * (w - t[k]), h = [1, 2], t = [[1, 0], [1, 1]]: 1 - 0.405 * 0.9**3 in the first number of both clients,
# -0.37 * 0.8**3 and 1 - 1.37 * 0.8**3 in the second.
def test_a_clients_model_is_trained_from_the_newest_shared_one() -> None:
    run = Simulation(FT(FedAvg(TWICE), epochs=3), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        assert run.whose(None)[0].flat.tolist() == approx([0.595, -0.37])
        assert run.whose(0)[0].flat.tolist() == approx([0.704755, -0.18944])
        assert run.whose(1)[0].flat.tolist() == approx([0.704755, 0.29856])


def test_statistics_move_with_the_model_and_the_run_is_left_as_it_was() -> None:
    run = Simulation(FT(FedAvg(LOCAL), epochs=2), normed, handwriting()[0], workers=1, plan="each")
    with run.pool:
        run.step()
        shared = run.buffers.flat.clone()
        own = run.whose(2)[1]
        assert own is not None
        assert (own.flat - shared).norm() > 1e-3
        assert torch.equal(run.buffers.flat, shared)
        assert torch.equal(run.whose(2)[1].flat, own.flat)


def test_without_a_pull_and_with_the_inner_methods_trainer() -> None:
    first, second = (
        Simulation(FT(FedAvg(LocalSGD(0.1, batch=None, prox=prox))), Point(0.5, -1.0), PAIR, workers=1, plan="each")
        for prox in (0.0, 5.0)  # one step from x: a pull to x moves nothing
    )
    for run in (first, second):
        with run.pool:
            run.step()
    assert torch.equal(first.whose(0)[0].flat, second.whose(0)[0].flat)
