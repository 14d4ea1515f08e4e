"""Server optimisers, schedules, the simulated network and the ledger, by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.federated.ledger import Entry, Ledger
from thinwire.federated.network import Network, transfer
from thinwire.optimizers import SGD, Adagrad, Adam, MajorityVote, Momentum, Nesterov, Optimizer, Yogi
from thinwire.params import Params
from thinwire.schedules import Cosine, Decay, Exponential, Triangle, Warmup, at
from thinwire.wire import dumps, loads, restore

X = Params.of([("a", torch.tensor([1.0])), ("b", torch.tensor([-2.0]))])
DELTAS = [[0.5, -0.2], [0.1, 0.4], [-0.3, 0.0]]


def params(values: list[float]) -> Params:
    return Params(X.layout, torch.tensor(values))


def path(optimizer: Optimizer) -> list[list[float]]:
    """The model after each step, starting from (1, -2)."""
    x, state, seen = X, optimizer.init(X), []
    for delta in DELTAS:
        x, state = optimizer.step(x, params(delta), state)
        seen.append(x.flat.tolist())
    return seen


# numpy:
#   x, m, v = array([1., -2.]), 0, full(2, tau**2)
#   for d in ([.5, -.2], [.1, .4], [-.3, 0.]):
#       m = beta1 * m + (1 - beta1) * d
#       v = {Adam: beta2 * v + (1 - beta2) * d*d, Yogi: v - (1 - beta2) * d*d * sign(v - d*d), Adagrad: v + d*d}
#       x = x + lr * m / (sqrt(v) + tau)
PATHS = [
    (SGD(), [[1.5, -2.2], [1.6, -1.8], [1.3, -1.8]]),
    (SGD(0.5), [[1.25, -2.1], [1.3, -1.9], [1.15, -1.9]]),
    (MajorityVote(0.5), [[1.5, -2.5], [2.0, -2.0], [1.5, -2.0]]),
    (Momentum(), [[1.5, -2.2], [2.05, -1.98], [2.245, -1.782]]),  # m = .5 -.2; .55 .22; .195 .198
    (Momentum(0.1, beta=0.5), [[1.05, -2.02], [1.085, -1.99], [1.0725, -1.975]]),  # .5 -.2; .35 .3; -.125 .15
    (Momentum(beta=0.0), [[1.5, -2.2], [1.6, -1.8], [1.3, -1.8]]),
    # v = .5 -.2; .35 .3; -.125 .15; x + .1 * (.75 -.3; .275 .55; -.3625 .075)
    (Nesterov(0.1, momentum=0.5), [[1.075, -2.03], [1.1025, -1.975], [1.06625, -1.9675]]),
    (
        Adam(),
        [
            [1.0294060570362846, -2.0285378155026765],
            [1.061287580429913, -2.014091877404807],
            [1.07108024775026, -2.001026475423759],
        ],
    ),
    (
        Yogi(),
        [
            [1.02940599940012, -2.028537476591751],
            [1.061136768630889, -2.0141057388891634],
            [1.0708593430681517, -2.0011171749568346],
        ],
    ),
    (
        Adagrad(),
        [
            [1.02994005999994, -2.029850374997656],
            [1.0358120169069285, -2.003077492185703],
            [1.020624932875007, -2.003077492185703],
        ],
    ),
    (
        Adagrad(0.1, beta1=0.5, tau=0.01),
        [
            [1.0490099990002, -2.047562460986252],
            [1.0826638451540462, -2.0147630571167343],
            [1.0722764793022699, -1.9983633551819755],
        ],
    ),
]


@pytest.mark.parametrize(("optimizer", "expected"), PATHS, ids=lambda v: repr(v) if isinstance(v, Optimizer) else "")
def test_the_path_is_that_of_the_script(optimizer: Optimizer, expected: list[list[float]]) -> None:
    for got, wanted in zip(path(optimizer), expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("setting", [{}, {"lr": 0.3, "momentum": 0.5}, {"momentum": 0.0}])
def test_nesterov_makes_the_steps_of_torch(setting: dict[str, float]) -> None:
    rule = Nesterov(**setting)
    p = torch.nn.Parameter(X.flat.clone())
    torchs = torch.optim.SGD([p], lr=rule.lr, momentum=rule.momentum, nesterov=rule.momentum > 0)
    for got, delta in zip(path(rule), DELTAS, strict=True):
        p.grad = -torch.tensor(delta)
        torchs.step()
        assert got == pytest.approx(p.tolist(), rel=1e-6)


def test_the_moments_start_at_zero_and_at_tau_squared() -> None:
    for optimizer in (Adam(tau=0.5), Yogi(tau=0.5), Adagrad(tau=0.5)):
        state = optimizer.init(X)
        assert state.m.flat.tolist() == [0.0, 0.0]
        assert state.v.flat.tolist() == [0.25, 0.25]
    assert SGD().init(X) is None
    assert Momentum().init(X).flat.tolist() == [0.0, 0.0]


def test_yogi_lowers_its_second_moment_where_updates_are_small() -> None:
    # v = 4, d = 1: 4 - 0.5 * 1 * sign(3) = 3.5; v = 4, d = 3: 4 - 0.5 * 9 * sign(-5) = 8.5; d = 2: sign(0), unchanged
    optimizer = Yogi(beta2=0.5, tau=2.0)
    for delta, expected in ((1.0, 3.5), (3.0, 8.5), (2.0, 4.0), (0.0, 4.0)):
        _, state = optimizer.step(X, params([delta, delta]), optimizer.init(X))
        assert state.v.flat.tolist() == [expected, expected]


def test_adagrad_takes_no_notice_of_beta2() -> None:
    assert path(Adagrad(beta2=0.1)) == path(Adagrad(beta2=0.9))


@pytest.mark.parametrize("optimizer", [SGD(), MajorityVote(), Momentum(), Adam(), Yogi(), Adagrad()], ids=repr)
def test_an_optimizer_continues_from_bytes_and_writes_into_nothing(optimizer: Optimizer) -> None:
    x, state = optimizer.step(X, params(DELTAS[0]), optimizer.init(X))
    before = [dumps(x), dumps(state)]
    saved = restore(loads(dumps(state)), optimizer.init(X))
    straight = optimizer.step(x, params(DELTAS[1]), state)
    assert [dumps(x), dumps(state)] == before
    resumed = optimizer.step(x, params(DELTAS[1]), saved)
    assert [dumps(v) for v in straight] == [dumps(v) for v in resumed]
    assert X.flat.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("optimizer", [SGD(), MajorityVote(), Momentum(), Adam(), Yogi(), Adagrad()], ids=repr)
def test_an_update_of_zero_moves_nothing(optimizer: Optimizer) -> None:
    x, _ = optimizer.step(X, X.zeros(), optimizer.init(X))
    assert x.flat.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("make", [SGD, MajorityVote, Momentum, Adam, Yogi, Adagrad])
@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan])
def test_a_rate_must_be_positive(make: Any, lr: float) -> None:
    with pytest.raises(ValueError, match=rf"^{make.__name__}\(lr={lr}\): lr must be positive and finite$"):
        make(lr)


# -- schedules ----------------------------------------------------------------


def test_decay_by_hand() -> None:
    decay = Decay(0.5, rounds=(2, 4), factor=0.5)
    assert [decay.at(round) for round in range(1, 7)] == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert Decay(0.2, rounds=(100, 150)).at(100) == 0.2
    assert Decay(0.2, rounds=(100, 150)).at(101) == pytest.approx(0.02, rel=1e-12)
    assert Decay(0.2, rounds=(100, 150)).at(200) == pytest.approx(0.002, rel=1e-12)
    assert Decay(0.2, rounds=()).at(1_000) == 0.2


def test_exponential_by_hand() -> None:
    assert [Exponential(0.5, 0.9).at(r) for r in (1, 2, 3, 4)] == pytest.approx([0.5, 0.45, 0.405, 0.3645], rel=1e-12)


def test_cosine_by_hand() -> None:
    cosine = Cosine(0.2, rounds=5)
    expected = [0.2, 0.17071067811865476, 0.1, 0.029289321881345254, 0.0]
    assert [cosine.at(r) for r in (1, 2, 3, 4, 5)] == pytest.approx(expected, abs=1e-12)
    assert cosine.at(6) == cosine.at(500) == pytest.approx(0.0, abs=1e-12)
    assert Cosine(1.0, rounds=3, end=0.5).at(2) == pytest.approx(0.75, rel=1e-12)
    assert Cosine(1.0, rounds=3, end=0.5).at(9) == pytest.approx(0.5, rel=1e-12)


def test_triangle_by_hand() -> None:
    triangle = Triangle(1.0, top=2, rounds=5)
    assert [triangle.at(r) for r in range(1, 8)] == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert Triangle(0.4, top=5, rounds=24).at(5) == 0.4
    assert Triangle(0.4, top=5, rounds=24).at(24) == pytest.approx(0.02, rel=1e-12)


def test_a_warm_up_is_a_share_of_any_schedule() -> None:
    assert [Warmup(0.4, rounds=4).at(r) for r in (1, 2, 3, 4, 5, 90)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    stepped = Warmup(Decay(0.4, rounds=(3, 5), factor=0.5), rounds=2)
    assert [stepped.at(r) for r in range(1, 8)] == pytest.approx([0.2, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1])


def test_a_number_is_its_own_schedule() -> None:
    assert at(0.1, 7) == 0.1
    assert at(Decay(0.5, rounds=(2,), factor=0.5), 3) == 0.25


# -- network ------------------------------------------------------------------


def test_seconds_by_hand() -> None:
    # 1 Mbit/s moves 125,000 bytes a second.
    assert transfer(125_000, 1.0) == 1.0
    assert Network(1.0).seconds(0, up=125_000, down=250_000, steps=3, seed=0) == 3.0
    assert Network(1.0, down=2.0).seconds(0, up=125_000, down=250_000, steps=3, seed=0) == 2.0
    assert Network(8.0, down=80.0, latency=0.25, step=0.5).seconds(
        0, up=1_000_000, down=10_000_000, steps=4, seed=0
    ) == (1.0 + 1.0 + 0.5 + 2.0)
    assert Network().seconds(0, up=0, down=0, steps=0, seed=0) == 0.0


def test_without_spread_all_clients_are_alike() -> None:
    network = Network(2.0)
    assert {network.seconds(client, 1_000, 1_000, 1, seed=client) for client in range(20)} == {0.008}


def test_a_clients_rate_is_drawn_once() -> None:
    network = Network(1.0, spread=0.5)
    first = network.seconds(3, 125_000, 0, 0, seed=1)
    assert network.seconds(3, 125_000, 0, 0, seed=1) == first
    assert network.seconds(3, 250_000, 0, 0, seed=1) == pytest.approx(2 * first, rel=1e-12)
    assert network.seconds(3, 0, 125_000, 0, seed=1) == pytest.approx(first, rel=1e-12)  # both ways
    assert network.seconds(4, 125_000, 0, 0, seed=1) != first
    assert network.seconds(3, 125_000, 0, 0, seed=2) != first


def test_the_logarithms_of_rates_are_spread_as_said() -> None:
    network = Network(1.0, spread=0.5)
    logarithms = torch.tensor([-math.log(network.seconds(c, 125_000, 0, 0, seed=5)) for c in range(1_000)])
    assert abs(float(logarithms.mean())) < 0.08  # five standard errors
    assert 0.44 < float(logarithms.std()) < 0.56


def test_drawing_a_rate_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    Network(spread=1.0).seconds(0, 1, 1, 1, seed=0)
    assert torch.get_rng_state().equal(before)


# -- ledger -------------------------------------------------------------------

ENTRIES = [
    Entry(1, 0, "down", 100, 10),
    Entry(1, 3, "down", 100, 10),
    Entry(1, 0, "up", 40, 8, retries=5, floats=7.5),
    Entry(1, 3, "up", 60, 8, used=False),
    Entry(2, 0, "down", 1, 1),
]


def test_all_bytes_that_crossed_are_counted() -> None:
    ledger = Ledger(ENTRIES)
    assert ENTRIES[2].total == 53
    assert ledger.bytes() == 110 + 110 + 53 + 68 + 2
    assert ledger.bytes("up") == 121
    assert ledger.bytes("down") == 222
    assert ledger.bytes(round=1) == 341
    assert ledger.bytes("down", round=2) == 2
    assert ledger.bytes("up", round=2) == ledger.bytes(round=9) == 0
    assert Ledger().bytes() == 0


def test_entries_are_found_by_direction_and_round() -> None:
    ledger = Ledger(ENTRIES)
    assert list(ledger) == ENTRIES
    assert ledger.of("up") == ENTRIES[2:4]
    assert ledger.of(round=2) == ENTRIES[4:]
    assert ledger.of("down", 1) == ENTRIES[:2]
    assert ledger.of(round=3) == []


def test_the_slowest_client_has_the_most_bytes_both_ways() -> None:
    ledger = Ledger(ENTRIES)
    assert ledger.slowest(1) == 178  # client 3: 110 + 68; client 0: 110 + 53
    assert ledger.slowest(2) == 2
    assert ledger.slowest(3) == 0


def test_a_ledger_is_written_as_json_lines_and_read_back() -> None:
    ledger = Ledger(ENTRIES)
    text = ledger.lines(1)
    assert text.splitlines()[2] == (
        '{"round": 1, "client": 0, "direction": "up", "payload": 40, "framing": 8, "retries": 5, "floats": 7.5, '
        '"used": true}'
    )
    assert text.endswith("\n")
    assert json.loads(text.splitlines()[3])["used"] is False
    assert list(Ledger.parse(text + ledger.lines(2))) == ENTRIES
    assert ledger.lines(7) == ""
    assert list(Ledger.parse("")) == []


CROSSED = st.tuples(
    st.integers(1, 3), st.integers(0, 3), st.sampled_from(["up", "down"]), *[st.integers(0, 10**12)] * 3
)


@given(st.lists(CROSSED, max_size=20))
def test_nothing_is_counted_twice_or_left_out(crossed: list[Any]) -> None:
    entries = [Entry(*fields) for fields in crossed]
    ledger = Ledger(entries)
    assert ledger.bytes("up") + ledger.bytes("down") == ledger.bytes()
    assert sum(ledger.bytes(round=r) for r in (1, 2, 3)) == ledger.bytes()
    assert ledger.bytes() == sum(e.payload + e.framing + e.retries for e in entries)
    assert sorted(Ledger.parse("".join(map(ledger.lines, ledger.rounds)))) == sorted(entries)
