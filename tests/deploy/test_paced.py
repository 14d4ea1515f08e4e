"""Clients elsewhere, at their own pace: the server steps when so many answers are there, whoever they are from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from blobs import blobs, mlp, normed
from test_federation import ALL, Parties, held, method
from thinwire import Buffered, Simulation
from thinwire.deploy.server import Deployment
from thinwire.errors import CombinationError, WireError
from thinwire.federated.envelope import read_call
from tiers import tiers

LATE = [
    "FedAvg()",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)))",
    "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))",
    "FedAvg(opt=Adam(0.03), up=RandK(0.5))",
    "SCAFFOLD()",
    "SoftPull(FedAvg(up=ErrorFeedback(TopK(0.3))), lam=0.6, personal=EF21(TopK(0.3)))",
]


class Paced(Parties):
    """A server and six clients whose answers arrive in the order of their calls, and of those in the clients' order.

    Whoever is in ``slow`` arrives last.
    """

    slow: tuple[int, ...] = ()

    def serve(self) -> None:
        super().serve()
        self.away = dict[int, tuple[int, bytes]]()  # client -> the round of its call, its answer

    def round(self, there: Iterable[int] = ALL, lost: Iterable[int] = (), end: bool = True) -> Any:
        for client, call in self.server.begin(there).items():
            self.away[client] = read_call(call).round, self.node(client).answer(call)
        for client in lost:
            del self.away[client]
            self.server.lose(client)
        for client in sorted(self.away, key=lambda c: (c in self.slow, self.away[c][0], c)):
            if self.server.full:
                break
            assert self.server.accept(client, self.away.pop(client)[1])
        return self.end() if end else None


def simulated(expression: str, rounds: int, model: Any = mlp, **options: Any) -> Simulation:
    options = {"test": blobs((60,))[0], "seed": 5, "workers": 1, "plan": "each"} | options
    run = Simulation(method(expression), model, blobs(), **options)
    with run.pool:
        for _ in range(rounds):
            run.step()
    return run


@pytest.mark.parametrize("expression", tiers(LATE, fast=3))
@pytest.mark.parametrize(("replies", "sample"), [(2, 4), (6, None)])
def test_of_equally_fast_clients_it_is_the_simulation_bit_for_bit_and_byte_for_byte(
    expression: str, replies: int, sample: int | None, tmp_path: Path
) -> None:
    model, buffer = normed if expression == "FedAvg()" else mlp, Buffered(replies)
    parties = Paced(expression, tmp_path, model, sample=sample, buffer=buffer)
    for _ in range(5):
        parties.round()
    run = simulated(expression, 5, model, sample=sample, buffer=buffer)
    assert parties.held() == held(run)
    assert sorted(parties.server.ledger) == sorted(run.ledger)
    for left, right in zip(parties.server.records, run.records, strict=True):
        for name in right.keys() - {"seconds"}:
            assert left[name] == right[name], name
    assert [record["in_flight"] for record in run.records] == [(sample or 6) - replies] * 5


@pytest.mark.parametrize("expression", tiers(LATE, fast=3))
def test_a_server_killed_between_two_answers_goes_on_to_the_same_bits(expression: str, tmp_path: Path) -> None:
    whole, parts = (Paced(expression, tmp_path / name, buffer=Buffered(2), sample=4) for name in ("whole", "parts"))
    for _ in range(5):
        whole.round()
    for _ in range(2):
        parts.round()
    parts.round(end=False)  # two have answered, and the server dies before it steps
    parts.serve()
    flying = set(parts.server.flights)
    assert len(flying) == 2
    for _ in range(3):
        parts.round()
    assert parts.held() == whole.held()
    again = [entry for entry in parts.server.ledger if entry.retries]
    assert {entry.client for entry in again} == flying  # who was at work was sent the same call once more
    assert [e for e in parts.server.ledger if not e.retries] == list(whole.server.ledger)


def test_a_late_answer_counts_by_how_old_it_is_and_its_client_is_not_called_before(tmp_path: Path) -> None:
    parties = Paced("FedAvg()", tmp_path, buffer=Buffered(5, staleness=1.0))
    parties.slow = (3,)
    called = list[set[int]]()
    begin = parties.server.begin

    def note(available: Any) -> dict[int, bytes]:
        calls = begin(available)
        called.append(set(calls))
        return calls

    parties.server.begin = note  # type: ignore[method-assign]
    for _ in range(3):
        parties.round()
    parties.slow = ()
    record = parties.round()
    assert called == [set(ALL), {0, 1, 2, 4, 5}, {0, 1, 2, 4, 5}, {0, 1, 2, 4, 5}]
    assert (record["staleness"], record["in_flight"]) == ([0, 0, 0, 0, 3], 1)
    assert [r["in_flight"] for r in parties.server.records] == [1, 1, 1, 1]
    assert parties.server.setting.discount(3) == 0.25


def test_whose_answer_is_lost_or_refused_is_not_waited_for_and_is_called_again(tmp_path: Path) -> None:
    parties = Paced("FedAvg()", tmp_path, buffer=Buffered(3), sample=4)
    first = set(parties.server.begin(ALL))
    lost, bad, *rest = sorted(first)
    parties.server.lose(lost)
    with pytest.raises(WireError):
        parties.server.accept(bad, b"nonsense")
    assert not parties.server.full
    for client in rest:
        parties.server.accept(client, parties.node(client).answer(parties.server.flights[client]))
    assert parties.server.full  # two, of whom no third will come
    record = parties.end()
    assert (record["clients"], record["lost_replies"], record["refused_replies"]) == (4, 2, 1)
    assert len(parties.server.begin(ALL)) == 4


def test_what_a_buffer_does_not_go_with_is_refused(tmp_path: Path) -> None:
    def make(expression: str, **options: Any) -> Deployment:
        return Deployment(method(expression), mlp, 6, **options)

    with pytest.raises(CombinationError, match="means something else later"):
        make("LUAR(FedAvg(), recycle=1)", buffer=Buffered(2))
    with pytest.raises(ValueError, match="4 clients train at a time"):
        make("FedAvg()", buffer=Buffered(5), sample=4)
    with pytest.raises(ValueError, match="leave take out"):
        make("FedAvg()", buffer=Buffered(2), take=2)
    with pytest.raises(CombinationError, match="looks at each reply"):
        make("FedAvg(up=SecureSum(), weights='uniform')", buffer=Buffered(2))
    assert isinstance(make("FedAvg()", buffer=Buffered(2)).facts()["buffer"], str)
    assert "buffer" not in make("FedAvg()").facts()
    assert tw.Buffered is Buffered
