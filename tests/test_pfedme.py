"""pFedMe: a client's own model."""

from __future__ import annotations

from problems import PAIR, TWICE, Point, approx
from thinwire import Simulation, pFedMe


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
