"""Clients that come and go: when they are there, who is drawn, whose work is lost, and what the clock says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from blobs import assert_same_model, blobs, mlp, normed, rounds_of, simulate
from thinwire import Network, Recorded, Sessions
from thinwire.errors import CombinationError, DataError

METHODS = [
    "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)))",
    "SCAFFOLD()",
    "FedBN(stay=('1.*',))",
    "SoftPull(FedAvg(), lam=0.8)",
    "LUAR(FedAvg(), recycle=2, layers='tensors')",
]
COMING = Network(mbit=0.01, step=0.05, sessions=Sessions(2, 6))


def cohorts(result: tw.Result) -> list[list[int]]:
    return [sorted({e.client for e in result.ledger.of("down", t)}) for t in range(1, len(result.rounds) + 1)]


@st.composite
def patterns(draw: st.DrawFn) -> Recorded:
    """Sessions of one client in whole seconds, so that a grid of half seconds meets every kind of time."""
    times = draw(st.lists(st.integers(0, 12), min_size=2, max_size=8, unique=True).map(sorted))
    pairs = zip(times[: len(times) // 2 * 2 : 2], times[1::2], strict=True)
    return Recorded((tuple((float(a), float(b)) for a, b in pairs),), length=12.0)


@given(patterns(), st.integers(0, 80))
def test_when_a_client_is_there_equals_a_walk_through_its_time(law: Recorded, half: int) -> None:
    def there(time: float) -> bool:
        return any(begin <= time % 12 < end for begin, end in law.sessions[0])

    now, walk = half / 2, [half / 2 + step / 2 for step in range(60)]
    gone = next((time for time in walk if not there(time)), math.inf)
    assert law.departure(0, now, seed=0) == gone
    assert law.next_arrival(0, now, seed=0) == next(time for time in walk if there(time))


@pytest.mark.parametrize(
    "law", [Sessions(600, 1800), Sessions(0.7, 90.3, swing=0.5), Recorded((((0.0, 0.1), (0.3, 33.3)),), 33.3)]
)
def test_whoever_comes_is_there_and_whoever_leaves_is_gone(law: Any) -> None:
    time, client = 0.1, 0
    for _ in range(2000):  # thousands of periods of the last, where sums of seconds are rounded
        time = law.next_arrival(client, time, seed=1)
        assert law.next_arrival(client, time, seed=1) == time
        left = law.departure(client, time, seed=1)
        assert left > time
        assert law.departure(client, left, seed=1) == left
        time = left + 1e5 if time > 1e6 else left


@pytest.mark.parametrize("expression", METHODS)
def test_clients_that_are_always_there_change_nothing(expression: str) -> None:
    plain = simulate(expression, normed, network=Network(1.0, step=0.05))
    always = simulate(expression, normed, network=Network(1.0, step=0.05, sessions=Sessions(on=1, off=0)))
    assert_same_model(plain, always)
    assert [r["clock"] for r in plain.rounds] == [r["clock"] for r in always.rounds]
    assert cohorts(plain) == cohorts(always)
    assert [r["there"] for r in always.rounds] == [6] * 4


@pytest.mark.parametrize("expression", METHODS)
def test_whose_session_ends_is_lost_as_whose_deadline_has_passed(expression: str) -> None:
    asked: dict[str, Any] = {"rounds": 1, "sample": 6}
    rates = (1.0, 0.001, 1.0, 0.001, 1.0, 1.0)
    late = simulate(expression, normed, network=Network(rates, deadline=2.0), **asked)
    left = Recorded((((0.0, 2.0),),) * 6, length=1000.0)
    gone = simulate(expression, normed, network=Network(rates, sessions=left), **asked)
    assert_same_model(late, gone)
    (a,), (b,) = late.rounds, gone.rounds
    assert a["lost_replies"] == b["lost_replies"] == 2
    assert a["clock"] == b["clock"] == 2.0
    assert a["up_bytes"] == b["up_bytes"]


@pytest.mark.parametrize("expression", METHODS)
def test_a_run_whose_clients_come_and_go_is_resumed_to_the_bit(expression: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"network": COMING, "checkpoint_every": 1}
    whole = simulate(expression, normed, 9, out=tmp_path / "whole", **asked)
    simulate(expression, normed, 4, out=tmp_path / "parts", **asked)
    parts = simulate(expression, normed, 9, out=tmp_path / "parts", resume=True, **asked)
    assert_same_model(whole, parts)
    assert rounds_of(tmp_path / "whole") == rounds_of(tmp_path / "parts")
    lost = sum(r["lost_replies"] for r in whole.rounds)
    assert 0 < lost < sum(r["clients"] for r in whole.rounds)  # some of both


def test_a_round_draws_from_those_that_are_there_and_waits_for_the_first() -> None:
    law = Recorded((((50.0, 90.0),), ((50.0, 60.0),), (), ((10.0, 20.0), (70.0, 80.0))), length=100.0)
    tasks = blobs((8, 12, 16, 20))
    with tw.Simulation(tw.FedAvg(tw.LocalSGD(0.1)), mlp, tasks, sample=2, network=Network(sessions=law, step=4)) as run:
        rounds = [run.step() for _ in range(6)]
        drawn = cohorts(run.result())
    steps = {0: 1, 1: 1, 3: 1}  # batches of 32 examples
    assert set(steps) == {client for cohort in drawn for client in cohort}
    assert [r["there"] for r in rounds[:3]] == [1, 1, 1]
    assert drawn[:3] == [[3], [3], [3]]
    clocks = [r["clock"] for r in rounds]
    assert clocks[0] == pytest.approx(14.0, abs=0.01)  # it began when the first came
    assert clocks[1] == pytest.approx(18.0, abs=0.01)
    assert (clocks[2], rounds[2]["lost_replies"]) == (20.0, 1)  # until the client left
    assert rounds[3]["there"] == 2  # the others, of whom none came before 50 seconds
    assert clocks[3] == pytest.approx(54.0, abs=0.01)


def test_a_sampler_is_given_those_that_are_there() -> None:
    seen = list[Sequence[int]]()

    @dataclass(frozen=True)
    class Last(tw.Sampler):
        def draw(self, about: tw.Draw) -> Sequence[int]:
            seen.append(list(about.clients))
            return about.clients[-about.most :]

    result = simulate("FedAvg()", network=COMING, sampler=Last(), rounds=8)
    assert [len(clients) for clients in seen] == [r["there"] for r in result.rounds]
    assert len({tuple(clients) for clients in seen}) > 2
    asked = simulate("FedAvg()", network=COMING, sampler=tw.PowerOfChoice(5), rounds=8)
    assert [r["asked"] for r in asked.rounds] == [min(r["there"], 5) for r in asked.rounds]


@pytest.mark.parametrize(("swing", "most", "least"), [(0.0, 0.27, 0.23), (0.9, 0.36, 0.05)])
def test_the_share_that_is_there_is_that_of_the_law(swing: float, most: float, least: float) -> None:
    law, clients = Sessions(600, 1800, swing=swing), range(1500)
    shares = [sum(law.departure(k, time, 3) > time for k in clients) / len(clients) for time in (86_400.0, 129_600.0)]
    assert shares[0] > least + 0.3 * swing
    assert max(shares) < most + 0.1 * swing
    assert (shares[1] > least) if not swing else (shares[1] < least)  # at night
    stays = [end - begin for k in clients for begin, end in law.pattern(k, 3).sessions[1:-1]]
    assert sum(stays) / len(stays) == pytest.approx(600, rel=0.02)
    assert law.pattern(5, 3).sessions != law.pattern(5, 4).sessions


def test_a_secret_sum_which_needs_its_cohort_is_refused() -> None:
    with pytest.raises(CombinationError, match="leave sessions out, or SecureSum"):
        simulate("FedAvg(up=SecureSum(clip=0.5), weights='uniform')", rounds=2, network=COMING)


def test_a_cohort_that_is_given_to_a_step_is_refused_and_nothing_is_lost() -> None:
    with tw.Simulation(tw.FedAvg(tw.LocalSGD(0.1)), mlp, blobs(), sample=2, network=COMING) as run:
        with pytest.raises(ValueError, match="says who is there"):
            run.step(cohort=[0, 1])
        run.step()
        untouched = tw.Simulation(tw.FedAvg(tw.LocalSGD(0.1)), mlp, blobs(), sample=2, network=COMING)
        with untouched:
            untouched.step()
        assert_same_model(run.result(), untouched.result())
        assert cohorts(run.result()) == cohorts(untouched.result())


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"buffer": tw.Buffered(2)}, CombinationError, "leave in between"),
    ({"privacy": tw.Privacy(clip=1.0, noise=1.0)}, CombinationError, "drawn uniformly of all clients"),
    ({"cohort": [[0, 1], [1, 2]], "sample": None}, ValueError, "the cohort is given"),
    (
        {"network": Network(sessions=Recorded((((0.0, 1.0),),)))},
        ValueError,
        "the sessions of 1 clients, and there are 6",
    ),
    ({"network": Network(step=(1.0, 2.0))}, ValueError, "one for each of the 6 clients"),
]


@pytest.mark.parametrize(("asked", "error", "says"), REFUSED, ids=[says for *_, says in REFUSED])
def test_what_does_not_go_with_it_is_refused(asked: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        simulate("FedAvg()", rounds=2, **({"network": COMING} | asked))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Recorded(((),)), "no client is ever there"),
        (lambda: Recorded((((1.0, 1.0),),)), "sessions of client 0"),
        (lambda: Recorded((((1.0, 2.0), (2.0, 3.0)),)), "none touching the next"),
        (lambda: Recorded((((1.0, 9.0),),), length=8), "from 0 to 8 seconds"),
        (lambda: Recorded((((0.0, 1.0),),), length=(1.0, 2.0)), "one a client"),
        (lambda: Recorded((((0.0, 1.0),),), length=math.inf), "positive seconds"),
        (lambda: Sessions(on=0), "on must be positive"),
        (lambda: Sessions(off=-1), "off must not be negative"),
        (lambda: Sessions(swing=1), "swing"),
        (lambda: Network(step=(1.0, -1.0)), "seconds must be from 0 to 1e+09"),
        (lambda: Network(step=()), "seconds must be from 0 to 1e+09"),
        (lambda: Network(step=(0.0, math.nan)), "seconds must be from 0 to 1e+09"),
        (lambda: Network(latency=math.inf), "seconds must be from 0 to 1e+09"),
        (lambda: Network(latency=1e308), "seconds must be from 0 to 1e+09"),
        (lambda: Network(mbit=1e-320), "a rate in Mbit/s must be finite, and at least 1e-06"),
        (lambda: Network(mbit=(1.0, math.nan)), "a rate in Mbit/s must be finite, and at least 1e-06"),
        (lambda: Network(down=(math.inf, 1.0)), "a rate in Mbit/s must be finite, and at least 1e-06"),
        (lambda: Network(spread=math.inf), "spread must be from 0 to 10"),  # clocks would stand still
        (lambda: Network(spread=1_000.0), "spread must be from 0 to 10"),
    ],
)
def test_sessions_that_are_none_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        make()


def test_sessions_can_be_typed_back() -> None:
    for network in (COMING, Network(step=(0.5, 1.0), sessions=Recorded((((0.0, 1.0),), ((2.0, 3.5),)), (8.0, 9.0)))):
        assert tw.parse(repr(network)) == tw.parse(tw.complete(network)) == network


DEVICES = [
    {"computation": 20, "communication": 2500, "active": [0, 50], "inactive": [10, 60], "finish_time": 100},
    {"computation": 5.0, "communication": 40_000.0},
]


def test_measured_devices_become_a_network(tmp_path: Path) -> None:
    (tmp_path / "devices.json").write_text(json.dumps(DEVICES))
    network = Network.read(tmp_path / "devices.json", clients=3, batch=10, latency=0.5)
    assert network == Network(
        mbit=(2.5, 40.0, 2.5),
        latency=0.5,
        step=(0.6, 0.15, 0.6),
        sessions=Recorded(
            (((0.0, 10.0), (50.0, 60.0)), ((0.0, 1.0),), ((0.0, 10.0), (50.0, 60.0))), (100.0, 1.0, 100.0)
        ),
    )
    assert network.sessions is not None
    assert network.sessions.departure(1, 7.25, seed=0) == math.inf  # of whom nothing is known
    (tmp_path / "fast.json").write_text(json.dumps(DEVICES[1:]))
    assert Network.read(tmp_path / "fast.json", 2, 1) == Network(mbit=(40.0, 40.0), step=(0.015, 0.015))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a readable JSON file"),
        ("[]", "with one or more"),
        ('{"computation": 1}', "a list of devices"),
        ('[{"computation": 1}]', "device 0 has not computation, communication"),
        ('[{"computation": "fast", "communication": 1}]', "device 0 has not computation"),
        ('[{"computation": 1, "communication": 0}]', "not measured"),
        ('[{"computation": 1, "communication": 1, "active": [0]}]', "all three or none"),
        ('[{"computation": 1, "communication": 1, "active": [0], "inactive": [], "finish_time": 9}]', "device 0"),
        ('[{"computation": 1, "communication": 1, "active": [5], "inactive": [4], "finish_time": 9}]', "that rise"),
        ('[{"computation": 1, "communication": 1, "active": [5], "inactive": [12], "finish_time": 9}]', "finish_time"),
        ('[{"computation": 1, "communication": 1, "active": [1, NaN], "inactive": [2, 3], "finish_time": 9}]', "rise"),
    ],
)
def test_a_file_of_devices_that_is_none_says_which(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "devices.json").write_text(text)
    with pytest.raises(DataError, match=says):
        Network.read(tmp_path / "devices.json", clients=3, batch=10)
    with pytest.raises(DataError, match="not a readable JSON file"):
        Network.read(tmp_path / "none.json", clients=3, batch=10)
