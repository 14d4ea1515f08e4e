"""Momentum at the server, at the clients, at both, and DOMO: reductions, hand values, bytes, what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import thinwire as tw
from test_algorithms import PAIR, Point, Quadratic, approx, assert_same_run, handwriting, mlp, normed, path, trained
from thinwire import (
    DOMO,
    LUAR,
    SGD,
    Decay,
    Dense,
    FedAvg,
    FedAvgLM,
    FedAvgLMZ,
    FedAvgSLM,
    FedAvgSLMZ,
    FedAvgSM,
    Half,
    LocalSGD,
    Momentum,
    Simulation,
    Sparse,
)
from thinwire.errors import CombinationError

PLAIN = LocalSGD(lr=0.1, batch=16)
LOCAL = LocalSGD(lr=0.1, batch=16, momentum=0.6)
HALF = Momentum(0.5, beta=0.9)

# -- reductions -------------------------------------------------------------------

SAME = {
    "DOMO without fusion is FedAvgSLMZ": (DOMO(0.0, LOCAL, HALF), FedAvgSLMZ(LOCAL, HALF)),
    "DOMO-S without fusion is FedAvgSLMZ": (DOMO(0.0, LOCAL, HALF, intra=True), FedAvgSLMZ(LOCAL, HALF)),
    "DOMO without any momentum is FedAvg": (DOMO(0.0, PLAIN, Momentum(1.0, beta=0.0)), FedAvg(PLAIN)),
    "DOMO-S without any momentum is FedAvg": (
        DOMO(0.0, PLAIN, Momentum(1.0, beta=0.0), intra=True, momentum="sent", weights="uniform"),
        FedAvg(PLAIN, weights="uniform"),
    ),
    "FedAvgSM is FedAvg with a server's momentum": (FedAvgSM(PLAIN), FedAvg(PLAIN, opt=Momentum(1.0, beta=0.9))),
    "FedAvgLMZ is FedAvg with local momentum": (FedAvgLMZ(LOCAL), FedAvg(LOCAL)),
    "FedAvgSLM without momentum at the server is FedAvgLM": (
        FedAvgSLM(LOCAL, Momentum(0.7, beta=0.0)),
        FedAvgLM(LOCAL, SGD(0.7)),
    ),
    "LUAR that recycles nothing is DOMO": (LUAR(DOMO(0.8, LOCAL, HALF), 0), DOMO(0.8, LOCAL, HALF)),
    "LUAR that recycles nothing is DOMO-S": (
        LUAR(DOMO(0.8, LOCAL, HALF, intra=True, momentum="sent"), 0),
        DOMO(0.8, LOCAL, HALF, intra=True, momentum="sent"),
    ),
    "LUAR that recycles nothing is FedAvgLM": (LUAR(FedAvgLM(LOCAL), 0), FedAvgLM(LOCAL)),
}


@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("name", SAME)
def test_a_method_at_its_neutral_setting_is_its_parent(name: str, model: Any) -> None:
    special, plain = SAME[name]
    assert_same_run(trained(special, model), trained(plain, model))


@pytest.mark.parametrize("intra", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"sample": 8},
        {"sample": 3, "rounds": 8},  # most clients skip rounds between those they take part in
        {"sample": 1, "rounds": 8, "dropout": 0.4},  # and in some nobody answers
    ],
    ids=["everyone", "some", "nobody at times"],
)
def test_the_inferred_momentum_is_the_one_that_is_sent(intra: bool, options: Any) -> None:
    # The learning rate changes too, and clients have 2 to 6 batches: neither is in the way of update units.
    local = LocalSGD(Decay(0.1, rounds=(2,), factor=0.3), batch=8, momentum=0.6)
    inferred = DOMO(0.8, local, Momentum(0.7, beta=0.5), intra=intra)
    sent = DOMO(0.8, local, Momentum(0.7, beta=0.5), intra=intra, momentum="sent")
    a, b = (trained(method, **{"rounds": 5} | options) for method in (inferred, sent))
    torch.testing.assert_close(a.params.flat, b.params.flat, atol=2e-5, rtol=0)
    plain = trained(FedAvgSLMZ(local, Momentum(0.7, beta=0.5)), **{"rounds": 5} | options)
    assert not torch.allclose(plain.params.flat, b.params.flat, atol=1e-3)


@pytest.mark.parametrize("method", [FedAvgLM(LOCAL), DOMO(0.8, LOCAL, HALF, intra=True)], ids=repr)
def test_clients_trained_as_one_are_those_trained_one_by_one(method: tw.Algorithm) -> None:
    each, together = (trained(method, rounds=4, sample=8, plan=plan) for plan in ("each", "together"))
    torch.testing.assert_close(each.params.flat, together.params.flat, atol=1e-5, rtol=0)


# -- by hand ------------------------------------------------------------------------

# The numbers come from:
#
#   h = np.array([1.0, 2.0]); a = np.array([[1.0, 0.0], [1.0, 1.0]]); n = np.array([1, 3])  # a: mean targets
#   def local(x, i, mu, m=0.0, add=0.0):
#       for _ in range(2): m = mu * m + h * (x - a[i]); x = x - 0.1 * m + add
#       return x, m
#   def mean(d): return (n[:, None] * np.array(d)).sum(0) / 4
#   def run(mu, mu_s, alpha, beta=0.0, intra=False, average=False):
#       x, M, m = np.array([0.5, -1.0]), np.zeros(2), np.zeros(2)
#       for _ in range(3):
#           ends = [local(x + (not intra) * beta * M, i, mu, m, intra * beta * M / 2) for i in (0, 1)]
#           d = mean([y - x - beta * M for y, _ in ends])
#           if average: m = mean([e for _, e in ends])
#           M = mu_s * M + d; x = x + alpha * M; print(x)
#   run(0, .9, .5); run(.6, 0, 1); run(.6, .9, .5); run(.6, 0, 1, average=True); run(.6, .9, .5, average=True)
#   run(.6, .9, .5, .8); run(.6, .9, .5, .8, intra=True)
BARE = "LocalSGD(0.1, batch=None, steps=2)"
HEAVY = "LocalSGD(0.1, batch=None, steps=2, momentum=0.6)"
BY_HAND = {
    f"FedAvgSM({BARE}, opt=Momentum(0.5))": [[0.5475, -0.685], [0.6332375, -0.1432], [0.74524369, 0.505196]],
    f"FedAvgLMZ({HEAVY})": [[0.625, -0.16], [0.71875, 0.2768], [0.7890625, 0.503936]],
    f"FedAvgSLMZ({HEAVY}, opt=Momentum(0.5))": [[0.5625, -0.58], [0.6734375, 0.1172], [0.81410156, 0.896552]],
    f"FedAvgLM({HEAVY})": [[0.625, -0.16], [0.78625, 0.6884], [0.9105625, 1.030784]],
    f"FedAvgSLM({HEAVY}, opt=Momentum(0.5))": [[0.5625, -0.58], [0.7071875, 0.323], [0.91366406, 1.44398]],
    f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5))": [[0.5625, -0.58], [0.6609375, -0.04408], [0.77222656, 0.42303392]],
    f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5), intra=True)": [
        [0.5625, -0.58],
        [0.6709375, 0.0836],
        [0.80532656, 0.787688],
    ],
    f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5), intra=True, momentum='sent')": [
        [0.5625, -0.58],
        [0.6709375, 0.0836],
        [0.80532656, 0.787688],
    ],
}


@pytest.mark.parametrize("expression", BY_HAND)
def test_three_rounds_are_those_worked_out_by_hand(expression: str) -> None:
    assert path(tw.parse(expression), 3) == approx(BY_HAND[expression])


@pytest.mark.parametrize(("intra", "second"), [(False, 0.82), (True, 0.81)])
def test_what_a_client_of_domo_fuses_does_not_come_back_with_its_update(intra: bool, second: float) -> None:
    # Loss w^2 / 2, one step of 0.1 a round, from 1: d = M = -0.1 and x = 0.9. Then with all of M fused:
    # DOMO goes from 0.8 to 0.72, d = -0.08; DOMO-S from 0.9 by -0.09 and -0.1 to 0.71, d = -0.09.
    task = Quadratic(torch.ones(2), torch.zeros(1, 2))
    method = DOMO(1.0, LocalSGD(0.1, batch=None, steps=1), Momentum(1.0, beta=0.0), intra=intra)
    assert path(method, 2, Point(1.0, -2.0), [task]) == approx([[0.9, -1.8], [second, -2 * second]])


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


# -- bytes ----------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("momentum", "down"),
    # 910 floats are 3,640 bytes. Inferred: one model to who was there in the round before, two to who was not; the
    # first round's model says that there is no momentum yet.
    [("inferred", {1: 3652, "there": 3652, "away": 7300}), ("sent", {1: 7300, "there": 7300, "away": 7300})],
)
def test_who_was_away_is_sent_the_momentum_too(momentum: Any, down: dict[Any, int]) -> None:
    tasks, _ = handwriting()
    method = DOMO(0.8, LOCAL, HALF, momentum=momentum)
    ledger = tw.simulate(method, mlp, tasks, 6, sample=5, seed=1, workers=1, plan="each").ledger
    last: dict[int, int] = {}
    seen = set()
    for round in range(1, 7):
        for entry in ledger.of("down", round):
            kind = 1 if round == 1 else "there" if last.get(entry.client) == round - 1 else "away"
            seen.add(kind)
            assert entry.payload == down[kind], kind
            last[entry.client] = round
    assert seen == {1, "there", "away"}


# -- fractions of an epoch --------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 49), (1, 98), (2, 196)])
def test_local_epochs_are_the_steps_that_the_thesis_counts(epochs: float, steps: int) -> None:
    # Section 4.5.2: 50,000 examples over 16 clients, batches of 32.
    assert LocalSGD(0.1, epochs=float(epochs), batch=32).num_steps(50_000 // 16) == steps


# -- what is refused --------------------------------------------------------------------

REFUSED = {
    "DOMO(1.1)": "DOMO(beta=1.1): beta must be in [0, 1]",
    "DOMO(-0.1)": "DOMO(beta=-0.1): beta must be in [0, 1]",
    "DOMO(opt=Momentum(1.0, beta=1.0))": "Momentum(beta=1.0): beta must be in [0, 1)",
    "DOMO(local=LocalSGD(momentum=1.0))": "LocalSGD(momentum=1.0): momentum must be in [0, 1)",
    "DOMO(momentum='guessed')": "DOMO(momentum='guessed'): one of 'inferred', 'sent' is expected",
    "DOMO(opt=Adam(0.1))": "DOMO(opt=Adam(0.1)): Momentum is expected",
    "DOMO(down=Half())": (
        "DOMO(down=Half()): the difference of two models that lost something on the way is not the server's momentum; "
        "take momentum='sent', or a downlink that loses nothing"
    ),
    "FedAvgLM(LocalSGD(0.1))": "FedAvgLM averages local momentum: give it some, LocalSGD(momentum=0.6)",
    "FedAvgSLM(LocalSGD(0.1))": "FedAvgSLM averages local momentum: give it some, LocalSGD(momentum=0.6)",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_a_setting_without_meaning_is_refused_in_one_line(expression: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(REFUSED[expression])}$"):
        tw.parse(expression)


def test_a_downlink_that_loses_nothing_may_carry_what_is_inferred() -> None:
    dense, sparse = (trained(DOMO(0.8, LOCAL, HALF, down=down)) for down in (Dense(), Sparse()))
    assert_same_run(dense, sparse)
    with pytest.raises(CombinationError):
        DOMO(0.8, down={"x": Half()})
