"""Asynchronous rounds: what arrives when, what a late reply counts, and the identity with rounds that wait."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from blobs import assert_same_model, blobs, mlp, normed, random_layers
from test_federation import Still, method, pulls
from thinwire import Buffered, Network, Simulation
from thinwire.errors import CombinationError, RunError
from tiers import tiers

TEN = (12,) * 10
LATE = [
    "FedAvg()",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)))",
    "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))",
    "FedAvg(opt=Adam(0.03), up=RandK(0.5))",
    "SCAFFOLD()",
    "Ditto(lam=0.1)",
    "SoftPull(FedAvg(up=ErrorFeedback(TopK(0.3))), lam=0.6, personal=EF21(TopK(0.3)))",
    "Averaged(FedAvg(LocalSGD(0.1, momentum=0.9, keep=True)))",
]


def train(expression: str, rounds: int, model: Any = mlp, **asked: Any) -> tw.Result:
    *tasks, test = blobs((*TEN, 60))
    asked = {"seed": 5, "test": test, "workers": 1, "plan": "each"} | asked
    return tw.simulate(method(expression), model, tasks, rounds, **asked)


@pytest.mark.parametrize("expression", tiers(LATE, fast=4))
@pytest.mark.parametrize("network", [None, Network(1.0, step=0.1)], ids=["no clock", "equal links"])
def test_of_equally_fast_clients_and_a_buffer_for_all_it_is_the_run_that_waits(expression: str, network: Any) -> None:
    model = normed if expression == "FedAvg()" else mlp
    waits = train(expression, 3, model, sample=6, network=network)
    buffered = train(expression, 3, model, sample=6, network=network, buffer=Buffered(6))
    assert_same_model(waits, buffered)
    for left, right in zip(waits.rounds, buffered.rounds, strict=True):
        assert right["staleness"] == [0] * 6
        assert {name: right[name] for name in left if name != "seconds"} == {
            name: left[name] for name in left if name != "seconds"
        }
    assert list(waits.ledger) == list(buffered.ledger)


class Watched(Simulation):
    """Keeps which answers were taken, in which round."""

    taken: list[tuple[int, int, int]]

    def add(self, answer: Any, body: Any, rx: Any, late: bool = False) -> Any:
        self.taken = [*getattr(self, "taken", []), (self.round + 1, answer.client, answer.round)]
        return super().add(answer, body, rx, late)


def pulled(rounds: int, buffer: Buffered, rates: tuple[float, ...], **asked: Any) -> Watched:
    """Clients whose updates are 1, 10, 100: three numbers of which every sum says who is in it."""
    network = Network(mbit=rates, step=0.0)
    algorithm = tw.parse("FedAvg(LocalSGD(1.0), weights='uniform')")
    run = Watched(algorithm, Still, pulls(1.0, 10.0, 100.0), workers=1, network=network, buffer=buffer, **asked)
    with run.pool:
        for _ in range(rounds):
            run.step(evaluate=False)
    return run


def test_a_slow_client_counts_when_its_reply_arrives_by_how_old_it_is() -> None:
    """Client 2 is 3.5 times as slow: its reply to round 1 comes between the fourth and the fifth pair of the others."""
    run = pulled(4, Buffered(2, staleness=0.5), (1.0, 1.0, 1 / 3.5))
    assert run.taken == [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 2), (3, 0, 3), (3, 1, 3), (4, 0, 4), (4, 2, 1)]
    assert [record["staleness"] for record in run.records] == [[0, 0], [0, 0], [0, 0], [0, 3]]
    assert [record["in_flight"] for record in run.records] == [1, 1, 1, 1]
    moved = 3 * (1 + 10) / 2 + (1 + 100 * (1 + 3) ** -0.5) / 2
    assert run.server.x.flat.tolist() == [pytest.approx(moved)]
    plain = pulled(4, Buffered(2, staleness=0.0), (1.0, 1.0, 1 / 3.5))
    assert plain.server.x.flat.tolist() == [pytest.approx(3 * (1 + 10) / 2 + (1 + 100) / 2)]


def test_a_buffer_of_one_steps_by_each_reply_and_the_clock_is_that_of_its_arrival() -> None:
    run = pulled(6, Buffered(1, staleness=1.0), (1.0, 1.0, 1.0))
    assert [client for _, client, _ in run.taken] == [0, 1, 2, 0, 1, 2]
    assert [record["staleness"] for record in run.records] == [[0], [1], [2], [2], [2], [2]]
    steps = [1, 10 / 2, 100 / 3, 1 / 3, 10 / 3, 100 / 3]
    assert run.server.x.flat.tolist() == [pytest.approx(sum(steps))]
    assert run.records[0]["clock"] == run.records[2]["clock"]  # all three came at one time
    up, down = (run.ledger.of(way, 1)[0].total for way in ("up", "down"))
    assert run.records[0]["clock"] == pytest.approx((up + down) * 8 / 1e6)


def test_the_bytes_of_a_reply_are_entered_when_it_arrives_and_of_a_call_when_it_is_made() -> None:
    run = pulled(3, Buffered(1), (1.0, 0.3, 0.1))
    assert [len(run.ledger.of("down", round)) for round in (1, 2, 3)] == [3, 1, 1]
    assert [len(run.ledger.of("up", round)) for round in (1, 2, 3)] == [1, 1, 1]


def test_as_many_train_at_any_time_as_are_sampled_and_nobody_twice() -> None:
    result = train("FedAvg()", 12, sample=4, buffer=Buffered(2), network=Network(1.0, spread=1.0, step=0.05))
    called = dict[int, int]()
    for number in range(1, 13):
        for entry in result.ledger.of("down", number):
            assert entry.client not in called
            called[entry.client] = number
        assert len(called) == 4
        for entry in result.ledger.of("up", number):
            del called[entry.client]
    assert [record["in_flight"] for record in result.rounds] == [2] * 12
    clocks = [record["clock"] for record in result.rounds]
    assert clocks == sorted(clocks)


def test_replies_that_never_come_are_not_waited_for() -> None:
    result = train("FedAvg()", 6, buffer=Buffered(10), dropout=0.4)
    assert all(record["clients"] == 10 for record in result.rounds)
    assert any(record["lost_replies"] for record in result.rounds)


@pytest.mark.parametrize("expression", tiers(LATE, fast=4))
@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_run_that_is_resumed_has_what_was_on_its_way(expression: str, states: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"buffer": Buffered(3), "network": Network(1.0, spread=1.5, step=0.05), "states": states}
    whole = train(expression, 6, out=tmp_path / "whole", **asked)
    train(expression, 3, out=tmp_path / "parts", **asked)
    parts = train(expression, 6, out=tmp_path / "parts", resume=True, **asked)
    assert_same_model(whole, parts)
    assert max(max(record["staleness"]) for record in whole.rounds) > 1
    for left, right in zip(whole.rounds, parts.rounds, strict=True):
        assert {n: left[n] for n in left if n != "seconds"} == {n: right[n] for n in right if n != "seconds"}
    for other in (None, Buffered(2)):
        with pytest.raises(RunError, match="is another run: its buffer"):
            train(expression, 7, out=tmp_path / "parts", resume=True, **{**asked, "buffer": other})


def test_threads_processes_rules_attacks_and_records_go_with_it() -> None:
    asked: dict[str, Any] = {"buffer": Buffered(5), "network": Network(1.0, step=0.05), "aggregate": tw.Median()}
    asked |= {"attack": tw.SignFlip(0.2, 10.0), "expel": 3, "clip": "auto", "record": "layers"}
    one, two = (train("FedAvg()", 8, random_layers, workers=n, **asked) for n in (1, 2))
    assert_same_model(one, two)
    far = set().union(*(record["far"] for record in one.rounds))  # of replies that were clipped before
    assert far & tw.SignFlip(0.2).hostile(10, 5)
    assert all("change" in record for record in one.rounds)


def test_statistics_and_sums_count_whole_however_late() -> None:
    def last(staleness: float, expression: str, model: Any) -> Simulation:
        buffer, network = Buffered(2, staleness=staleness), Network(1.0, spread=1.5, step=0.05)
        asked: dict[str, Any] = {"seed": 5, "workers": 1, "plan": "each", "buffer": buffer, "network": network}
        run = Simulation(method(expression), model, blobs(TEN), **asked)
        with run.pool:
            for _ in range(2):
                run.step(evaluate=False)
        assert max(run.records[1]["staleness"]) == 1
        return run

    whole, none = (last(staleness, "FedAvg(weights='uniform')", normed) for staleness in (0.0, 50.0))
    assert none.buffers is not None
    torch.testing.assert_close(none.buffers.flat, whole.buffers.flat, rtol=1e-6, atol=1e-7)
    assert not torch.equal(none.server.x.flat, whole.server.x.flat)
    whole, none = (last(staleness, "SCAFFOLD(weights='uniform')", mlp) for staleness in (0.0, 50.0))
    torch.testing.assert_close(none.server.c.flat, whole.server.c.flat, rtol=1e-6, atol=1e-7)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("LUAR(FedAvg(), recycle=1)", {}, "to an earlier broadcast means something else later; leave buffer out"),
    ("Intrinsic(20)", {}, "to an earlier broadcast means something else later"),
    ("FedAvg()", {"sample": 2}, "buffer=Buffered(3): 2 clients train at a time, so there are never more replies"),
    ("FedAvg()", {"network": Network(1.0, deadline=3.0)}, "its server waits for nobody, so leave out the deadline"),
    ("FedAvg()", {"cohort": [[0, 1]]}, "buffer=Buffered(3): the cohort is given"),
    (
        "FedAvg()",
        {"aggregate": tw.Krum(1)},
        "Krum(1) needs 5 replies a round, and 3 of the clients take part",
    ),
    ("Auto(0.7)", {}, "chooses for rounds that wait for their cohorts; give the method that it would choose"),
]


@pytest.mark.parametrize(("expression", "asked", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_has_no_meaning_is_refused_with_the_reason(expression: str, asked: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, CombinationError), match=re.escape(said)):
        train(expression, 1, buffer=Buffered(3), **asked)


@pytest.mark.parametrize(
    ("expression", "said"),
    [("Buffered(0)", "replies must be at least 1"), ("Buffered(2, staleness=-1)", "staleness must not be negative")],
)
def test_a_value_out_of_its_range_is_named(expression: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tw.parse(expression)
