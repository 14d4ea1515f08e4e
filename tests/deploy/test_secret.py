"""A secure sum whose clients are elsewhere: keys stay with them, and only the sum of those who answered is learned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from blobs import Chosen, blobs, mlp
from test_federation import ALL, Parties, held, method
from thinwire import Simulation
from thinwire.deploy.server import Deployment
from thinwire.errors import WireError
from thinwire.federated.secure.exchange import Kept, TooFew
from thinwire.federated.secure.trips import read_question
from thinwire.run.folder import read_state
from thinwire.template import restore

SECRET = "FedAvg(up=SecureSum(clip=0.5, most=8), weights='uniform')"


class Confidants(Parties):
    """A server and six clients. ``lose`` says in which trip whose message is lost: it has been answered before."""

    def round(self, there: Iterable[int] = ALL, lose: Collection[tuple[str, int]] = (), end: bool = True) -> Any:
        self.trips = dict[str, set[int]]()
        messages = self.server.begin(there)
        while messages:
            trip = self.trip
            self.trips[trip] = set(messages)
            for client, data in messages.items():
                try:
                    answer = self.node(client).answer(data)
                except TooFew:
                    continue
                if (trip, client) in lose:
                    continue
                if self.server.asking:
                    self.server.hear(client, answer)
                else:
                    assert self.server.accept(client, answer)
            messages = self.server.proceed()
        return self.end() if end else None

    @property
    def trip(self) -> str:
        return self.server.gathering.trip if self.server.gathering else ""

    def kept(self, client: int) -> Kept:
        (path,) = (self.path / f"client-{client}").glob("*/secrets.thinwire")
        assert path.stat().st_mode & 0o077 == 0
        return restore(read_state(path), Kept())  # type: ignore[no-any-return]


def simulated(cohorts: list[tuple[list[int], set[int]]], secret: bool = True) -> Chosen:
    run = Chosen(method(SECRET), mlp, blobs(), cohorts=cohorts, seed=5, test=blobs((60,))[0])
    if not secret:
        run.secured = None
    with run.pool:
        for _ in cohorts:
            run.step()
    return run


def test_a_deployment_is_a_simulation_bit_for_bit_and_byte_for_byte(tmp_path: Path) -> None:
    parties = Confidants(SECRET, tmp_path, sample=4)
    options: dict[str, Any] = {"sample": 4, "test": blobs((60,))[0], "seed": 5, "workers": 1, "plan": "each"}
    run = Simulation(method(SECRET), mlp, blobs(), **options)
    with run.pool:
        for _ in range(3):
            parties.round()
            run.step()
    assert parties.held() == held(run)
    assert sorted(parties.server.ledger) == sorted(run.ledger)  # every byte of keys, shares and secrets
    for left, right in zip(parties.server.records, run.records, strict=True):
        for name in right.keys() - {"seconds"}:
            assert left[name] == right[name], name


LOSSES = {
    "after keys": [("shares", 1), ("shares", 4)],
    "between shares and answer": [("call", 1), ("call", 4)],
    "after the answer": [("reveal", 1), ("reveal", 4)],
}


@pytest.mark.parametrize("when", LOSSES)
def test_the_model_is_that_of_the_plain_sum_over_those_who_answered(when: str, tmp_path: Path) -> None:
    parties = Confidants(SECRET, tmp_path)
    parties.round()
    record = parties.round(lose=LOSSES[when])
    gone = set() if when == "after the answer" else {1, 4}
    assert record["lost_replies"] == len(gone)
    assert parties.trips["reveal"] == set(ALL) - gone
    assert parties.trips["call"] == set(ALL) - (gone if when == "after keys" else set())
    # Of whole numbers without any mask, and of those clients alone.
    plain = simulated([(list(ALL), set()), (list(ALL), gone)], secret=False)
    assert torch.equal(model(parties.server), model(plain))


def model(run: Any) -> torch.Tensor:
    return run.algorithm.model(run.server).flat  # type: ignore[no-any-return]


@pytest.mark.parametrize("lost", [("keys", range(3)), ("shares", range(3)), ("call", range(3)), ("reveal", range(3))])
def test_where_too_few_are_left_a_round_changes_nothing_and_the_run_goes_on(
    lost: tuple[str, range], tmp_path: Path
) -> None:
    parties = Confidants(SECRET, tmp_path)
    parties.round()
    before = model(parties.server).clone()
    record = parties.round(lose=[(lost[0], client) for client in lost[1]])  # 2 of 5 neighbours are left, of 3
    assert record["lost_replies"] == 6
    assert torch.equal(model(parties.server), before)
    assert parties.round()["lost_replies"] == 0  # clients go on from what they held


def test_of_three_clients_one_may_be_lost_and_of_two_none(tmp_path: Path) -> None:
    parties = Confidants(SECRET, tmp_path)
    assert parties.round([0, 1, 2], lose=[("call", 2)])["lost_replies"] == 1
    assert parties.round([0, 1], lose=[("call", 1)])["lost_replies"] == 2
    assert parties.round([0, 1])["lost_replies"] == 0
    record = parties.round([3])  # there is nobody to hide among
    assert (record["clients"], record["lost_replies"], parties.trips) == (1, 1, {})


def test_no_fewer_answers_may_count_than_uncover_a_sum() -> None:
    """Of six clients each has five neighbours, three of which have to answer beside it."""
    with pytest.raises(ValueError, match=r"of 6 clients 4 have to answer .*, and 3 answers count"):
        Deployment(method(SECRET), mlp, 6, take=3)
    Deployment(method(SECRET), mlp, 6, take=4)


def test_a_server_killed_in_any_trip_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = simulated([(list(ALL), set())] * 3)
    parties = Confidants(SECRET, tmp_path)
    parties.round()
    for trips in range(4):  # it is killed when so many trips are made
        messages = parties.server.begin(ALL)
        for _ in range(trips):
            take = parties.server.hear if parties.server.asking else parties.server.accept
            for client, data in messages.items():
                take(client, parties.node(client).answer(data))
            messages = parties.server.proceed()
        parties.serve()
    parties.round()
    parties.round()
    assert torch.equal(model(parties.server), model(whole))


def test_a_round_that_is_begun_again_is_uncovered_for_the_same_clients_alone(tmp_path: Path) -> None:
    parties = Confidants(SECRET, tmp_path)
    parties.round()
    parties.round(end=False)  # the server learns the sum of all six, and is killed
    first = parties.kept(0)
    parties.serve()
    with pytest.raises(WireError, match="before this round was begun again"):
        parties.round(lose=[("call", 5)])  # with the sum of five it would know the sixth reply
    assert parties.kept(0).private != first.private


def test_keys_are_on_the_clients_disk_alone_and_are_gone_when_shares_are_given(tmp_path: Path) -> None:
    parties, said = Confidants(SECRET, tmp_path), list[bytes]()
    messages = parties.server.begin(ALL)
    secrets = list[bytes]()
    while messages:
        take = parties.server.hear if parties.server.asking else parties.server.accept
        for client, data in messages.items():
            answer = parties.node(client).answer(data)
            said += [data, answer]
            private = parties.kept(client).private
            secrets += [private[at : at + 32] for at in range(0, len(private), 32)]
            take(client, answer)
        messages = parties.server.proceed()
    assert {parties.kept(client).private for client in ALL} == {b""}
    assert len(set(secrets)) == 6 * 3
    assert not any(secret in data for secret in secrets for data in said)


def test_a_client_hides_one_reply_and_nothing_without_the_shares_of_others(tmp_path: Path) -> None:
    parties = Confidants(SECRET, tmp_path)
    messages = parties.server.begin(ALL)
    for client, data in messages.items():
        parties.server.hear(client, parties.node(client).answer(data))
    for client, data in parties.server.proceed().items():
        parties.server.hear(client, parties.node(client).answer(data))
    calls = parties.server.proceed()
    node = parties.node(0)
    first = node.answer(calls[0])
    assert tw.loads(first)[11].numel() == tw.loads(node.answer(calls[0]))[11].numel()  # the same again
    node.task = blobs()[1]
    with pytest.raises(WireError, match="one reply to hide"):
        node.answer(calls[0])
    parties.server.shares = {}
    with pytest.raises(WireError):
        parties.node(1).answer(parties.server.call(1))


def test_answers_that_are_none_are_refused_by_name_and_the_others_go_on(tmp_path: Path, caplog: Any) -> None:
    parties = Confidants(SECRET, tmp_path)
    spoil: dict[str, Callable[[bytes], bytes]] = {"keys": lambda data: data[:-1], "shares": lambda data: data[:50]}
    messages = parties.server.begin(ALL)
    for client, data in messages.items():
        question = read_question(data)
        assert question is not None
        answer = parties.node(client).answer(data)
        if client == 2:
            with pytest.raises(WireError, match="round 1, client 2"):
                parties.server.hear(client, spoil[question.trip](answer))
        else:
            parties.server.hear(client, answer)
    while messages := parties.server.proceed():
        take = parties.server.hear if parties.server.asking else parties.server.accept
        for client, data in messages.items():
            take(client, parties.node(client).answer(data))
    record = parties.end()
    assert (record["refused_replies"], record["lost_replies"]) == (1, 1)
    assert "an answer of client 2 was refused" in caplog.text
    assert isinstance(parties.server, Deployment)


def test_a_question_of_another_method_is_refused(tmp_path: Path) -> None:
    parties = Confidants(SECRET, tmp_path)
    question = parties.server.begin(ALL)[0]
    node = Parties("FedAvg(weights='uniform')", tmp_path / "other").node(0)
    with pytest.raises(tw.errors.RunError, match="another method"):
        node.answer(question)
