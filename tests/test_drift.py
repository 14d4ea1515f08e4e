"""Methods against the drift of clients: reductions bit for bit, hand values, bytes, states, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from test_algorithms import (
    LOCAL,
    PAIR,
    TWICE,
    Point,
    Quadratic,
    approx,
    assert_same_run,
    handwriting,
    mlp,
    normed,
    path,
    trained,
)
from thinwire import (
    FLSS,
    LUAR,
    MOON,
    SCAFFOLD,
    Adam,
    Dense,
    ErrorFeedback,
    FedACG,
    FedAvg,
    FedDC,
    FedDyn,
    FedGen,
    FedMut,
    FedNTD,
    FedProx,
    Half,
    Key,
    Local,
    LocalSGD,
    Momentum,
    Params,
    Simulation,
    Supervised,
    TopK,
)
from thinwire.algorithms.fedgen import generated
from thinwire.algorithms.fedmut import View, mutation
from thinwire.analysis.matrix import Pair, show
from thinwire.errors import CombinationError
from thinwire.train.one import Slot, train

# -- reductions -----------------------------------------------------------------

SAME = {
    "FedProx that pulls by nothing is FedAvg": (FedProx(LOCAL, mu=0.0), FedAvg(LOCAL)),
    "FedProx is FedAvg whose clients are pulled": (FedProx(LOCAL, mu=0.3), FedAvg(replace(LOCAL, prox=0.3))),
    "FedProx over links and servers is FedAvg over them": (
        FedProx(LOCAL, opt=Adam(0.03), up=ErrorFeedback(TopK(0.1)), mu=0.3),
        FedAvg(replace(LOCAL, prox=0.3), opt=Adam(0.03), up=ErrorFeedback(TopK(0.1))),
    ),
    "MOON that contrasts nothing is FedAvg": (MOON(LOCAL, mu=0.0), FedAvg(LOCAL)),
    "MOON over the output of a layer that contrasts nothing is FedAvg": (MOON(LOCAL, mu=0.0, layer="1"), FedAvg(LOCAL)),
    "FedNTD that distils nothing is FedAvg": (FedNTD(LOCAL, beta=0.0), FedAvg(LOCAL)),
    "FedMut without mutation is FedAvg": (FedMut(LOCAL, alpha=0.0), FedAvg(LOCAL)),
    "FedACG without momentum and pull is FedAvg": (FedACG(LOCAL, momentum=0.0, beta=0.0), FedAvg(LOCAL)),
    "FedACG without momentum is FedProx": (FedACG(LOCAL, momentum=0.0, beta=0.2), FedProx(LOCAL, mu=0.2)),
    "FedGen whose lessons count nothing is FedAvg": (
        FedGen(LOCAL, weight=0.0, hidden=8, noise=2, steps=2),
        FedAvg(LOCAL),
    ),
    "FLSS whose rounds are all full is FedProx": (
        FLSS(FedProx(LOCAL, mu=0.3), rank=1, start=1, every=1),
        FedProx(LOCAL, mu=0.3),
    ),
}


@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("name", SAME)
def test_a_method_at_its_neutral_setting_is_its_parent(name: str, model: Any) -> None:
    special, plain = SAME[name]
    assert_same_run(trained(special, model), trained(plain, model))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 10))


@pytest.mark.parametrize("method", [MOON(LOCAL, mu=0.0), FedNTD(LOCAL, beta=0.0)], ids=repr)
def test_a_look_at_another_model_throws_no_dice(method: tw.Algorithm) -> None:
    assert_same_run(trained(method, dropping), trained(FedAvg(LOCAL), dropping))


@pytest.mark.parametrize(
    "inner",
    [
        FedProx(LOCAL, mu=0.3),
        MOON(LOCAL, mu=0.5),
        FedNTD(LOCAL),
        FedMut(LOCAL),
        FedACG(LOCAL, momentum=0.7),
        FedDC(LOCAL),
        FedGen(LOCAL, hidden=8, noise=2, steps=2),
        SCAFFOLD(LOCAL, option="I"),
        FedAvg(LOCAL, opt=Adam(0.03)),
        FedAvg(LOCAL, opt=Momentum(1.0)),
    ],
    ids=lambda inner: repr(inner),
)
def test_recycling_nothing_is_the_inner_algorithm(inner: tw.Algorithm) -> None:
    assert_same_run(trained(LUAR(inner, recycle=0)), trained(inner))


# -- by hand ----------------------------------------------------------------------

# The numbers come from (PAIR and TWICE are two quadratics and two steps of 0.1):
#
#   h = np.array([1.0, 2.0]); a = np.array([[1.0, 0.0], [1.0, 1.0]]); n = np.array([1, 3])
#   def local(x, i, mu=0.0, offset=0.0, anchor=None):
#       y, to = x.copy(), x if anchor is None else anchor
#       for _ in range(2): y = y - 0.1 * (h * (y - a[i]) + mu * (y - to) + offset)
#       return y
#   def mean(d, w=n): return (w[:, None] * np.array(d)).sum(0) / w.sum()
#   x = np.array([0.5, -1.0]); H = G = m = c = np.zeros(2); g = ci = np.zeros((2, 2))      # before each method
#   for _ in range(3):                                        # FedProx
#       x = x + mean([local(x, i, mu=.5) - x for i in (0, 1)])
#   for _ in range(2):                                        # FedDyn; w = np.ones(2) or n
#       d = np.array([local(x, i, mu=.5, offset=-g[i]) - x for i in (0, 1)])
#       g = g - .5 * d; H = H - .5 * mean(d, w); x = x + mean(d, w) - H / .5
#   for _ in range(3):                                        # FedDC
#       d = np.array([local(x, i, mu=.5, offset=G - g[i], anchor=x - H[i]) - x for i in (0, 1)])
#       H = H + d; g = g - G - d / (2 * .1); x, G = x + mean(d + H), mean(g)
#   for _ in range(3):                                        # FedACG
#       at = x + .5 * m; m = .5 * m + mean([local(at, i, mu=.5) - at for i in (0, 1)]); x = x + m
#   for _ in range(2):                                        # SCAFFOLD, option I
#       ys = [local(x, i, offset=c - ci[i]) for i in (0, 1)]
#       new = np.array([h * (x - a[i]) for i in (0, 1)])
#       x = x + mean([y - x for y in ys]); c = c + (new - ci).sum(0) / 2; ci = new
BY_HAND = [
    (FedProx(TWICE, mu=0.5), [[0.5925, -0.3875], [0.6678875, 0.010625]]),
    (FedDyn(TWICE, alpha=0.5), [[0.685, 0.05], [0.8769375, 0.798125]]),
    (FedDyn(TWICE, alpha=0.5, weights="examples"), [[0.685, 0.225], [0.8769375, 1.0978125]]),
    (FedDC(TWICE, alpha=0.5), [[0.685, 0.225], [0.8769375, 1.0978125], [1.03837891, 1.46703516]]),
    (
        FedACG(TWICE, momentum=0.5, beta=0.5),
        [[0.5925, -0.3875], [0.70558125, 0.2096875], [0.80612933, 0.59288281]],
    ),
    (SCAFFOLD(TWICE, option="I"), [[0.595, -0.37], [0.67195, -0.0568]]),
]


@pytest.mark.parametrize(("method", "points"), BY_HAND, ids=[repr(method) for method, _ in BY_HAND])
def test_rounds_on_two_quadratics_are_those_worked_out_by_hand(method: tw.Algorithm, points: list[list[float]]) -> None:
    assert path(method, len(points)) == approx(points)


def test_what_feddyn_and_scaffold_keep_is_as_worked_out_by_hand() -> None:
    run = Simulation(FedDyn(TWICE, alpha=0.5), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        run.step()
        assert run.server.h.flat.tolist() == approx([-0.07110938, -0.31828125])
        assert run.states.get(0).own.state.flat.tolist() == approx([-0.07110938, -0.1509375])
        assert run.states.get(1).own.state.flat.tolist() == approx([-0.07110938, -0.485625])
    run = Simulation(SCAFFOLD(TWICE, option="I"), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        run.step()
        run.step()
        assert run.server.c.flat.tolist() == approx([-0.405, -1.74])
        assert run.states.get(1).own.state.flat.tolist() == approx([-0.405, -2.74])


def test_two_rounds_of_fedmut_are_one_of_two_worked_out_by_hand() -> None:
    # x = before = np.array([0.5, -1.0])                     # `local` and `mean` as above; s = 1 or -1: client 0's sign
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


class Scores(nn.Module):
    """Three scores of a pair of numbers u: w0 u0, w1 u1, w0 u1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.0]))

    def forward(self, u: Tensor) -> Tensor:
        return torch.stack([self.w[0] * u[:, 0], self.w[1] * u[:, 1], self.w[0] * u[:, 1]], 1)


SCORED = [
    Supervised(torch.tensor([[1.0, 2.0]]), torch.tensor([0])),
    Supervised(torch.tensor([[2.0, -1.0]]), torch.tensor([1])),
]


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


def test_a_client_of_moon_that_comes_late_is_contrasted_with_the_initial_model() -> None:
    # `moon` and `slope` as above; client 0 takes part in rounds 1 and 2, client 1 in round 3 for the first time.
    # x = x0 = np.array([0.5, -1.0]); last = [x0, x0]
    # for i in (0, 0, 1):
    #     w = x
    #     for _ in range(2): w = w - 0.1 * slope(lambda v: moon(v, x, last[i], us[i], ys[i]), w)
    #     last[i] = x = w; print(x)
    method, x, initial = MOON(TWICE, mu=2.0, temperature=0.5, layer="0"), [], Params.trainable(nn.Sequential(Scores()))
    start = method.init(initial, 2, Key(0))
    slot, view, states = Slot(nn.Sequential(Scores())), initial, [start.client, start.client]
    for i in (0, 0, 1):
        work = method.client(start.view._replace(x=view), states[i], SCORED[i], Key(0))
        with pytest.raises(StopIteration) as done:
            work.send(train(slot, SCORED[i], next(work), Key(0)))
        reply, states[i] = done.value.value
        view = view + reply.update
        x.append(view.flat.tolist())
    assert x == [approx(p) for p in ([0.38697163, -1.01251219], [0.28068222, -1.02700721], [0.0182897, -1.15190263])]


def test_a_round_of_fedgen_is_that_worked_out_by_hand() -> None:
    # def gen(w, u, y): return ce(w * u, y) + 0.5 * ce(w * 3.0, 1)          # `ce` and `slope` as above
    # x, ends = np.array([0.5, -1.0]), []
    # for u, y in ((1.0, 0), (2.0, 1)):
    #     w = x
    #     for _ in range(2): w = w - 0.1 * slope(lambda v: gen(v, u, y), w)
    #     ends.append(w)
    # print((ends[0] + ends[1]) / 2)
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[0.5], [-1.0]])
    tasks = [
        Supervised(torch.tensor([[1.0]]), torch.tensor([0])),
        Supervised(torch.tensor([[2.0]]), torch.tensor([1])),
    ]
    run = Simulation(FedGen(TWICE, weight=0.5, hidden=1, noise=1), model, tasks, workers=1, plan="each")
    # relu(0 * inputs + 1) * 1 + 2: the feature is 3 whatever the label, and label 1 alone was counted
    layout = run.server.generator.layout
    assert layout.names == ("layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias")
    says_three = Params(layout, torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 2.0]))
    run.server = run.server._replace(generator=says_three, labels=torch.tensor([0, 4]))
    with run.pool:
        run.step()
    assert run.server.x.flat.tolist() == approx([0.05056261, -0.55056261])
    assert run.server.labels.tolist() == [1, 1]


# -- bytes ------------------------------------------------------------------------

# 910 parameters: 3640 bytes, and 12 of structure and padding; twice as many are 7280 and 20. FedGen's generator is
# [8, 14] + [8] + [12, 8] + [12]: 228 floats down; ten labels of 8 bytes both ways.
BYTES = {
    "FedProx()": (3652, 3652),
    "MOON()": (3652, 3652),
    "FedNTD()": (3652, 3652),
    "FedACG()": (3652, 3652),
    "FedDyn()": (3652, 3652),
    "FedDC()": (7300, 7300),
    "SCAFFOLD(option='I')": (7300, 7300),
    "FedGen(hidden=8, noise=4, steps=1)": (3736, 4656),
    "FedMut()": (3652, 3652),
}


@pytest.mark.parametrize("expression", BYTES)
def test_what_every_client_sends_and_is_sent_is_so_many_bytes(expression: str) -> None:
    up, down = BYTES[expression]
    result = trained(tw.parse(expression), sample=None)
    for entry in result.ledger:
        assert entry.payload == (up if entry.direction == "up" else down)


def test_a_client_of_fedmut_that_was_away_is_sent_two_models() -> None:
    ledger, before = trained(FedMut(LOCAL), rounds=6).ledger, set[int]()
    seen = set[int]()
    for round in range(1, 7):
        for entry in ledger.of("down", round):
            assert entry.payload == (3652 if round == 1 or entry.client in before else 7300)
            seen.add(entry.payload)
        before = {entry.client for entry in ledger.of("down", round)}
    assert seen == {3652, 7300}


# -- states -------------------------------------------------------------------------


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


@pytest.mark.parametrize("method", [FedDyn(LOCAL), FedDC(LOCAL), SCAFFOLD(LOCAL, option="I"), MOON(LOCAL)], ids=repr)
def test_the_state_of_a_client_moves_when_its_reply_arrives_and_only_then(method: tw.Algorithm) -> None:
    tasks, _ = handwriting()
    run = Simulation(method, mlp, tasks, sample=5, dropout=0.4, workers=1, plan="each")
    lost = arrived = 0
    with run.pool:
        for _ in range(4):
            before = [tw.dumps(run.states.get(i).own.state) for i in range(8)]
            run.step()
            after = [tw.dumps(run.states.get(i).own.state) for i in range(8)]
            replied = {entry.client for entry in run.ledger.of("up", run.round)}
            asked = {entry.client for entry in run.ledger.of("down", run.round)}
            assert {i for i in range(8) if before[i] != after[i]} == replied
            lost, arrived = lost + len(asked - replied), arrived + len(replied)
    assert lost > 2
    assert arrived > 2


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


# -- FedMut: the mutants ----------------------------------------------------------------


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


# -- MOON, FedNTD and FedGen look into the model ----------------------------------------------


class Reader(nn.Module):
    """A recurrent model of digits, row by row, with a convolution that only its author knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 6, batch_first=True)
        self.spare = nn.Linear(2, 2)
        self.mix = nn.Conv1d(8, 4, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.mix(self.rows(x.view(-1, 8, 8))[0])
        scores: Tensor = self.head(hidden.flatten(1))
        return scores


@pytest.mark.parametrize("layer", [None, "rows", "mix", "head", ""])
def test_moon_takes_the_features_of_any_layer_of_any_module(layer: str | None) -> None:
    plain = trained(FedAvg(LOCAL), Reader, sample=None)
    moon = trained(MOON(LOCAL, layer=layer), Reader, sample=None)
    # In round 1 the last model and the global one are the initial one: mu log 2 more of loss, nothing of a gradient.
    assert moon.rounds[0]["train_loss"] == pytest.approx(plain.rounds[0]["train_loss"] + 0.693147, rel=1e-5)
    assert moon.rounds[0]["test_loss"] == plain.rounds[0]["test_loss"]
    assert moon.rounds[1]["train_loss"] > plain.rounds[1]["train_loss"] + 0.3  # mu * log 2 = 0.69 where features agree
    assert not torch.equal(moon.params.flat, plain.params.flat)


def test_a_layer_that_moon_does_not_find_is_answered_with_those_there_are() -> None:
    names = "the layers are rows, spare, mix, head"
    with pytest.raises(ValueError, match=rf"^MOON\(layer='heat'\): no layer .* \(did you mean head\?\); {names}$"):
        trained(MOON(LOCAL, layer="heat"), Reader, rounds=1)
    with pytest.raises(ValueError, match=r"the layers are 0, 1, 2, 3$"):
        trained(LUAR(MOON(LOCAL, layer="4"), recycle=1), rounds=1)
    with pytest.raises(ValueError, match="layer 'spare' takes no part in the forward pass: name another"):
        trained(MOON(LOCAL, layer="spare"), Reader, rounds=2, sample=None)
    with pytest.raises(ValueError, match=r"^MOON\(\): the model has no nn.Linear; name the layer .*: 0$"):
        tw.simulate(MOON(LOCAL), nn.Sequential(Scores()), SCORED, 1, workers=1)


def test_a_method_that_needs_labels_refuses_a_task_without_by_name() -> None:
    wanted = r"needs batches of \(inputs, targets\) with whole numbers .*this task's batch is a float32 tensor"
    with pytest.raises(ValueError, match=f"FedNTD {wanted}"):
        tw.simulate(FedNTD(TWICE), Point(0.5, -1.0), PAIR, 1, workers=1)
    squares = Supervised(torch.randn(4, 3), torch.randn(4, 2), loss_of=lambda out, y: ((out - y) ** 2).sum(1))
    for method in (FedNTD(TWICE), FedGen(TWICE)):
        with pytest.raises(ValueError, match=r"this task's batch is \(a float32 tensor, a float32 tensor\)"):
            tw.simulate(method, nn.Linear(3, 2), [squares], 1, workers=1)


def test_fedgens_head_is_a_trained_linear_layer_with_an_output_a_label() -> None:
    with pytest.raises(
        ValueError, match=r"FedGen\(head='2'\): the head is a linear layer that is trained, this is ReLU"
    ):
        trained(FedGen(LOCAL, head="2"), rounds=1)
    with pytest.raises(ValueError, match=r"FedGen\(head='fc'\): no layer is called that.* are 0, 1, 2, 3"):
        trained(FedGen(LOCAL, head="fc"), rounds=1)
    with pytest.raises(ValueError, match=r"FedGen\(\): the model has no nn.Linear to be its head"):
        tw.simulate(FedGen(LOCAL), nn.Sequential(Scores()), SCORED, 1, workers=1)
    with pytest.raises(ValueError, match="FedGen: a target of 9 for a head of 3 outputs: name the model's last layer"):
        trained(
            FedGen(LOCAL), lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 10), Second()), rounds=1
        )
    with pytest.raises(
        ValueError, match=r"the last kernel of the model, '1', is not its last linear layer: .*head='0'"
    ):
        tw.simulate(FedGen(LOCAL), nn.Sequential(nn.Linear(2, 3), nn.Embedding(2, 2)), [SCORED[0]], 1, workers=1)


class Second(nn.Module):
    """A linear layer after the last that classifies: three of its ten inputs, as scores of ten again."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.last(x)
        return x


def test_fedgens_generator_learns_features_that_the_head_takes_for_their_label() -> None:
    tasks, _ = handwriting()
    run = Simulation(FedGen(replace(LOCAL, epochs=5), hidden=32, noise=4), mlp, tasks, workers=1, plan="each")
    right = []
    with run.pool:
        for _ in range(4):
            server, x = run.server, run.server.x
            counts = torch.ones(10, dtype=torch.int64)
            drawn, features = generated(server.generator, counts, 500, torch.Generator().manual_seed(0))
            scores = nn.functional.linear(features, x["3.weight"], x["3.bias"])
            right.append(float((scores.argmax(1) == drawn).float().mean()))
            run.step()
    assert right[0] < 0.2
    assert right[-1] > 0.9
    everyone = torch.bincount(torch.cat([task.batch(torch.arange(len(task)))[1] for task in tasks]), minlength=10)
    assert torch.equal(run.server.labels, everyone)


def test_counts_that_cannot_be_leave_fedgens_generator_as_it_was() -> None:
    method = FedGen(hidden=4, noise=2, steps=2)
    start = method.init(Params.trainable(mlp()), 2, Key(0))
    for said, believed in ((-5.0, 0), (1e18, 1 << 40)):
        labels = torch.zeros(10)
        labels[3] = said
        server = method.server(start.server, start.view, start.reply._replace(labels=labels), Key(0, 1))
        assert server.labels.tolist() == [0, 0, 0, believed, 0, 0, 0, 0, 0, 0]
        assert torch.equal(server.generator.flat, start.server.generator.flat) is (believed == 0)


# -- what clients may have ----------------------------------------------------------------

ALL = [
    FedProx(LOCAL),
    FedDyn(LOCAL),
    FedDC(LOCAL),
    MOON(LOCAL),
    FedNTD(LOCAL),
    FedGen(LOCAL, hidden=8, noise=2, steps=2),
    FedMut(LOCAL),
    FedACG(LOCAL),
    SCAFFOLD(LOCAL, option="I"),
]


@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("method", ALL, ids=lambda method: type(method).__name__)
def test_a_client_with_one_label_or_a_last_batch_of_one_is_trained(method: tw.Algorithm, model: Any) -> None:
    tasks, _ = handwriting()
    data = tasks[0]
    ones = (data.targets == 1).nonzero().flatten()
    uneven = [replace(data, indices=ones[:20]), replace(data, indices=torch.arange(17))]
    theirs = replace(data, indices=torch.cat([ones[:20], torch.arange(17)]))
    result = tw.simulate(method, model, uneven, 4, workers=1, plan="each", test=theirs)
    assert result.rounds[-1]["test_loss"] < 2.2  # ln 10 = 2.303 is knowing nothing


@pytest.mark.parametrize("method", ALL, ids=lambda method: type(method).__name__)
def test_a_client_without_examples_is_refused_by_its_number(method: tw.Algorithm) -> None:
    tasks, _ = handwriting()
    with pytest.raises(ValueError, match=r"client \[1\] has no examples"):
        tw.simulate(method, mlp, [tasks[0], replace(tasks[0], indices=torch.arange(0))], 1)


@dataclass(frozen=True)
class Wrong:
    expression: str
    message: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong("FedProx(mu=-0.1)", "FedProx(mu=-0.1): mu must not be negative"),
        Wrong("FedDyn(alpha=0)", "FedDyn(alpha=0.0): alpha must be positive"),
        Wrong("FedDC(alpha=-1)", "FedDC(alpha=-1.0): alpha must not be negative"),
        Wrong("MOON(mu=-1)", "MOON(mu=-1.0): mu must not be negative"),
        Wrong("MOON(temperature=0)", "MOON(temperature=0.0): temperature must be positive"),
        Wrong("FedNTD(beta=-1)", "FedNTD(beta=-1.0): beta must not be negative"),
        Wrong("FedNTD(temperature=-1)", "FedNTD(temperature=-1.0): temperature must be positive"),
        Wrong("FedMut(alpha=-1)", "FedMut(alpha=-1.0): alpha must not be negative"),
        Wrong("FedACG(momentum=1)", "FedACG(momentum=1.0): momentum must be in [0, 1)"),
        Wrong("FedACG(beta=-1)", "FedACG(beta=-1.0): beta must not be negative"),
        Wrong("FedGen(weight=-1)", "FedGen(weight=-1.0): weight must not be negative"),
        Wrong("FedGen(steps=0)", "FedGen(steps=0): steps must be at least 1"),
        Wrong("SCAFFOLD(option='III')", "SCAFFOLD(option='III'): one of 'I', 'II' is expected"),
        Wrong("FedProx(LocalSGD(prox=0.1))", "FedProx pulls by its own mu; leave prox at 0"),
        Wrong("FedDyn(LocalSGD(prox=0.1))", "FedDyn pulls by its own alpha; leave prox at 0"),
        Wrong("FedDC(LocalSGD(momentum=0.9))", "local momentum=0.9 stretches: use momentum=0"),
        Wrong("LUAR(FedDyn(), recycle=1)", "LUAR over FedDyn: its server keeps h, the mean of the gradients that"),
        Wrong("FLSS(FedMut())", "FedMut(alpha=0.5) sends more than one update, or does more with it"),
    ],
    ids=lambda wrong: wrong.expression,
)
def test_a_bad_argument_is_answered_by_one_clear_line(wrong: Wrong) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        tw.parse(wrong.expression)
    assert wrong.message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loss_draws_from_its_clients_key_alone() -> None:
    drawn: list[Tensor] = []

    @dataclass(frozen=True)
    class Draws(tw.local.Loss):
        def __call__(self, net: tw.local.Net, task: tw.Task, batch: Any) -> Tensor:
            drawn.append(torch.rand(2, generator=net.generator))
            return task.loss(net.module, batch)

    @dataclass(frozen=True)
    class Drawing(FedAvg):
        def client(self, view: Any, state: Any, task: tw.Task, key: Key) -> Any:
            y = yield Local(view.x, self.local, loss=Draws())
            return tw.algorithms.fedavg.Reply(y.x - view.x), state

    once = LocalSGD(0.1, steps=1)
    for _ in range(2):
        trained(Drawing(once), rounds=2, sample=None)
    assert len(drawn) == 32
    assert all(torch.equal(a, b) for a, b in zip(drawn[:16], drawn[16:], strict=True))
    assert len({tuple(d.tolist()) for d in drawn}) == 16


# -- what goes with what ----------------------------------------------------------------


def test_the_matrix_says_what_the_code_says_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    # In a process of its own: here the checked annotations would speak first.
    done = subprocess.run(
        [sys.executable, "-m", "thinwire.cli", "methods", "--matrix", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = json.loads(done.stdout)["pairs"]
    cells = {(p["outer"], p["inner"], p["role"]): p["reason"] for p in pairs}
    assert len(cells) == len(pairs)
    together = ["FedProx", "MOON", "FedMut", "FedACG", "FedNTD", "FedDC", "FedGen", "SCAFFOLD", "FedAvg"]
    assert [cells["LUAR", name, "algorithm"] for name in together] == [""] * 9
    assert {name for name in together if not cells["FLSS", name, "algorithm"]} == {
        "FedAvg",
        "FedProx",
        "MOON",
        "FedNTD",
    }
    assert cells["LUAR", "LUAR", "algorithm"].startswith("LUAR over LUAR: the outer one would recycle")
    assert "has none" in cells["LUAR", "FLSS", "algorithm"]
    assert "h, the mean of the gradients" in cells["LUAR", "FedDyn", "algorithm"]
    assert cells["", "TopK", "up"] == cells["ErrorFeedback", "TopK", "up"] == cells["EF21", "TopK", "down"] == ""
    assert cells["", "TopK", "down"].startswith("down=TopK(0.01) cannot carry a broadcast")
    assert "(a contraction)" in cells["ErrorFeedback", "EF21", "up"]
    assert cells["LBGM", "ErrorFeedback", "up"] == ""
    # Nothing is refused for a reason that is not the methods' own.
    known = (
        "contraction",
        "goes around",
        "goes inside",
        "does not go around",
        "products already",
        "cannot carry",
        "receiver has",
        "memory itself",
    )
    known = (*known, "Codec such as Half() is expected", "has none")
    unknown = [r for r in cells.values() if r and not any(word in r for word in (*known, "LUAR over"))]
    assert unknown == []
    show([Pair(**pair) for pair in pairs])
    shown = capsys.readouterr().out
    for once in ("LUAR over LUAR", "cannot carry a broadcast", "ErrorFeedback needs a link", "FLSS goes around FedAvg"):
        assert shown.count(once) == 1


def test_what_goes_together_trains() -> None:
    for method in (
        LUAR(FedProx(LOCAL, mu=0.1), recycle=1),
        LUAR(MOON(LOCAL, mu=0.1), recycle=1),
        LUAR(SCAFFOLD(LOCAL, option="I"), recycle=1),
        LUAR(FedACG(LOCAL), recycle=1, select="round-robin"),
        FLSS(MOON(LOCAL, mu=0.1), rank=1, start=1, every=2),
    ):
        result = trained(method, rounds=4)
        assert result.rounds[-1]["test_loss"] < result.rounds[0]["test_loss"]


def test_a_combination_without_meaning_is_refused_when_it_is_made() -> None:
    with pytest.raises(CombinationError, match="put out of step"):
        LUAR(FedDyn(), recycle=0)
