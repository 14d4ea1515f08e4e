"""FedDyn: what server and clients keep."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from problems import LOCAL, PAIR, TWICE, Point, approx, handwriting, mlp
from thinwire import Dense, ErrorFeedback, FedDyn, Half, Simulation, TopK


# H and g, as the script of tables.py has them.
def test_what_server_and_clients_keep_is_as_worked_out_by_hand() -> None:
    run = Simulation(FedDyn(TWICE, alpha=0.5), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        run.step()
        assert run.server.h.flat.tolist() == approx([-0.07110938, -0.31828125])
        assert run.states.get(0).own.state.flat.tolist() == approx([-0.07110938, -0.1509375])
        assert run.states.get(1).own.state.flat.tolist() == approx([-0.07110938, -0.485625])


@pytest.mark.parametrize("up", [Dense(), TopK(0.05), Half(), ErrorFeedback(TopK(0.1))], ids=repr)
def test_feddyns_h_is_the_mean_of_the_clients_after_every_round(up: tw.Link) -> None:
    tasks, _ = handwriting()
    run = Simulation(FedDyn(LOCAL, up=up), mlp, tasks, sample=4, dropout=0.3, workers=1, plan="each")
    with run.pool:
        for _ in range(5):
            run.step()
            held = [run.states.get(i).own.state.flat for i in range(8)]
            torch.testing.assert_close(run.server.h.flat, torch.stack(held).mean(0), atol=1e-7, rtol=1e-4)
    assert run.server.h.norm() > 0.004
