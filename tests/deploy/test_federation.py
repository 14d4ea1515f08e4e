"""A server and clients that share nothing but bytes, with everything that gets lost between them."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import random
import re
import resource
import shutil
import tracemalloc
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import zstandard
from torch import Tensor, nn

import thinwire as tw
from blobs import Chosen, blobs, mlp, normed, random_layers
from problems import LAYOUT
from tables import LINKS
from tables import METHODS as FEDERATED
from thinwire import FedAvg, Key, Simulation
from thinwire.algorithms import fedavg
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.errors import CombinationError, ExpressionError, NonFinite, OutOfSync, RunError, WireError
from thinwire.federated.envelope import Answer, Call, Piece, mark, read_answer, read_call
from thinwire.kernels import rans
from thinwire.links import Link
from thinwire.run.folder import Folder
from thinwire.wire import Several
from tiers import tiers

ALL = range(6)
METHODS = [
    "FedAvg()",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)))",
    "LUAR(FedAvg(opt=Adam(0.03)), recycle=1, layers='tensors')",
    "FLSS(FedAvg(up=ErrorFeedback(ScaledSign())), rank=1, start=1, every=2)",
    "Intrinsic(40, subspaces=2, varying=True, epoch=2)",
    "SCAFFOLD()",
    "FedAvg(LocalAdamW(0.02, clip=1.0, warmup=9, keep=True))",
    "SoftPull(FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6)), lam=0.6, personal=EF21(TopK(0.3)))",
    "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))",
    "Detached(FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3))), lam=0.7)",
]


def method(expression: str) -> tw.Algorithm:
    return tw.parse(expression, {"lr": 0.2, "batch": 8})  # type: ignore[no-any-return]


class Failing(Node):
    """A client that dies once its reply is encoded, and its next state written."""

    def answer(self, data: bytes) -> bytes:
        super().answer(data)
        raise MemoryError


class Parties:
    """A server and six clients. What is between them may lose what it likes; both may be started again."""

    def __init__(self, expression: str, folder: Path, model: Any = mlp, **options: Any) -> None:
        self.method, self.model, self.path, self.options = method(expression), model, folder, options
        self.serve()

    def serve(self) -> None:
        """Start the server, with nothing but what is on its disk."""
        folder = Folder(self.path / "server")
        options: dict[str, Any] = {"seed": 5, "test": blobs((60,))[0], "states": folder.path / "states"} | self.options
        self.server, self.folder = Deployment(self.method, self.model, 6, **options), folder
        self.server.open(folder, resume=True)

    def node(self, client: int, kind: type[Node] = Node) -> Node:
        """Start a client, likewise."""
        return kind(self.method, self.model, blobs()[client], self.path / f"client-{client}")

    def end(self) -> dict[str, Any]:
        record = self.server.end()
        self.folder.append(record, self.server.ledger.lines(self.server.round))
        self.server.save(self.folder)
        return record

    def round(self, there: Iterable[int] = ALL, unheard: Collection[int] = (), lost: Collection[int] = ()) -> Any:
        """One round: calls to ``unheard`` and answers of ``lost`` do not arrive. Returns the record."""
        for client, call in self.server.begin(there).items():
            if client not in unheard:
                answer = self.node(client).answer(call)
                if client not in lost:
                    assert self.server.accept(client, answer)
        return self.end()

    def held(self) -> list[bytes]:
        """What the server holds, to the last bit."""
        return held(self.server)


def held(run: Simulation | Deployment) -> list[bytes]:
    ends = [[kept.version, kept.rx, kept.tx, kept.down] for kept in map(run.states.get, ALL)]
    return [tw.dumps(state) for state in (run.server, run.buffers, run.stream.state(), ends)]


def without(expression: str, client: int, rounds: Collection[int], of: int, model: Any = mlp) -> list[bytes]:
    """What a simulated server holds after a run in which a client did not take part in these rounds."""
    cohorts: Any = [([c for c in ALL if c != client or t not in rounds], set()) for t in range(1, of + 1)]
    run = Chosen(method(expression), model, blobs(), cohorts=cohorts, seed=5, test=blobs((60,))[0])
    with run.pool:
        for _ in cohorts:
            run.step()
    return held(run)


# -- the same as a simulation ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "model"),
    [
        *((m, normed) for m in METHODS),
        (METHODS[1], random_layers),
        ("FedSM(form='epoch', personal=Half())", normed),
        ("FedSMExtra(start=2, down=EF21(TopK(0.5)), personal=EF21(TopK(0.3)))", normed),
    ],
)
def test_a_deployment_is_a_simulation_bit_for_bit_and_byte_for_byte(
    expression: str, model: Any, tmp_path: Path
) -> None:
    parties = Parties(expression, tmp_path, model, sample=3)
    for _ in range(4):
        parties.round()
    run = Simulation(method(expression), model, blobs(), sample=3, test=blobs((60,))[0], seed=5, workers=1, plan="each")
    with run.pool:
        for _ in range(4):
            run.step()
    assert parties.held() == held(run)
    assert sorted(parties.server.ledger) == sorted(run.ledger)  # payload and framing, of every client and round
    for left, right in zip(parties.server.records, run.records, strict=True):
        for name in right.keys() - {"seconds"}:
            assert left[name] == right[name], name


def test_a_record_counts_the_called_and_the_lost_as_a_simulation_does(tmp_path: Path) -> None:
    calls: Any = [([0, 1, 2], set()), ([1, 2, 4], {2}), ([0, 3], {0, 3})]
    parties = Parties("FedAvg()", tmp_path)
    run = Chosen(method("FedAvg()"), mlp, blobs(), cohorts=calls, seed=5, test=blobs((60,))[0])
    with run.pool:
        for there, silent in calls:
            right, left = run.step(), parties.round(there, lost=silent)
            counts = (len(there), len(silent))
            assert (left["clients"], left["lost_replies"]) == (right["clients"], right["lost_replies"]) == counts


@pytest.mark.parametrize(
    ("expression", "here"),
    [
        ("SoftPull()", True),
        ("FedSM()", True),
        ("SoftPull(FedAvg(buffers='local'))", False),
        ("FedSM(buffers='local')", False),
        ("FT(FedSM())", False),
    ],
)
def test_a_client_s_own_model_is_that_of_the_simulation_or_is_not_there(
    expression: str, here: bool, tmp_path: Path
) -> None:
    """Norm statistics that are the client's alone are not at the server, nor its examples: so neither is the model."""
    parties = Parties(expression, tmp_path, normed)
    simulated = Simulation(method(expression), normed, blobs(), seed=5, test=blobs((60,))[0], workers=1, plan="each")
    with simulated.pool:
        for _ in range(2):
            record, alike = simulated.step(), parties.round()
    owned, away = simulated.result(), parties.server.result()
    predictions = {name for name in record if name.startswith("predicted")}
    assert {name for name in alike if name.startswith("predicted")} == (predictions if here else set())
    assert bool(parties.server.owners_here()) == here
    if here:
        assert all(record[name] == alike[name] for name in predictions)
        pairs = zip(owned.personal(1).state_dict().values(), away.personal(1).state_dict().values(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    else:
        with pytest.raises(ValueError, match=r"no client has a model of its own here|client's examples, which are not"):
            away.personal(1)


def test_a_header_takes_so_many_bytes(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path)
    parties.round()
    down, up = (parties.server.ledger.of(direction)[0] for direction in ("down", "up"))  # type: ignore[arg-type]
    assert (down.payload, down.framing) == (344, 63)
    assert (up.payload, up.framing) == (344, 93)


# -- what gets lost -------------------------------------------------------------------


def reply_is_lost(p: Parties) -> None:
    p.round()
    p.round(lost=[2])
    p.round()


def client_dies_after_encoding(p: Parties) -> None:
    p.round()
    for client, call in p.server.begin().items():
        if client == 2:
            with pytest.raises(MemoryError):
                p.node(2, Failing).answer(call)
        else:
            p.server.accept(client, p.node(client).answer(call))
    p.end()
    p.round()


def acknowledgement_is_lost(p: Parties) -> None:
    p.round()
    p.round(unheard=[2])  # the call said that the first answer was taken
    p.round()


def away_for_five_rounds(p: Parties) -> None:
    p.round()
    for _ in range(5):
        p.round([c for c in ALL if c != 2])
    p.round()


def lost_and_then_not_heard_and_lost_again(p: Parties) -> None:
    p.round()
    p.round(lost=[2])
    p.round(unheard=[2])
    p.round(lost=[2])
    p.round()


FAULTS: dict[Callable[[Parties], None], tuple[list[int], int]] = {
    reply_is_lost: ([2], 3),
    client_dies_after_encoding: ([2], 3),
    acknowledgement_is_lost: ([2], 3),
    away_for_five_rounds: ([2, 3, 4, 5, 6], 7),
    lost_and_then_not_heard_and_lost_again: ([2, 3, 4], 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("expression", tiers(METHODS, slow=4))
def test_after_a_fault_it_is_as_if_the_client_had_not_taken_part(expression: str, fault: Any, tmp_path: Path) -> None:
    parties = Parties(expression, tmp_path)
    fault(parties)
    rounds, of = FAULTS[fault]
    assert parties.held() == without(expression, 2, rounds, of)


@pytest.mark.slow
@pytest.mark.parametrize("expression", tiers(METHODS, slow=5))
def test_a_server_killed_mid_round_goes_on_as_if_nothing_had_happened(expression: str, tmp_path: Path) -> None:
    parties = Parties(expression, tmp_path, normed)
    incarnation = parties.server.incarnation
    parties.round()
    for client, call in parties.server.begin().items():
        answer = parties.node(client).answer(call)
        if client % 2:  # of the others the answers are still out
            parties.server.accept(client, answer)
    parties.serve()
    assert parties.server.round == 1
    assert parties.server.incarnation == incarnation
    parties.round()
    # Killed once the round had ended, its lines written, and before the checkpoint.
    for client, call in parties.server.begin().items():
        parties.server.accept(client, parties.node(client).answer(call))
    parties.folder.append(parties.server.end(), parties.server.ledger.lines(3))
    parties.serve()
    parties.round()
    parties.round()
    assert parties.held() == without(expression, 2, [], 4, normed)
    assert [r["round"] for r in parties.server.records] == [1, 2, 3, 4]


def test_answers_to_a_call_before_the_server_was_killed_are_answers_to_the_same_call_after(tmp_path: Path) -> None:
    parties = Parties("FedAvg(up=ErrorFeedback(TopK(0.2)))", tmp_path)
    parties.round()
    before = parties.server.begin()
    answers = {client: parties.node(client).answer(call) for client, call in before.items()}
    parties.serve()
    assert parties.server.begin() == before
    for client, answer in answers.items():
        assert parties.server.accept(client, answer)
    parties.end()
    assert parties.held() == without("FedAvg(up=ErrorFeedback(TopK(0.2)))", 2, [], 2)


def test_a_second_answer_of_a_client_changes_nothing(tmp_path: Path) -> None:
    parties = Parties("FedAvg(up=LBGM(threshold=0.6))", tmp_path)
    parties.round()
    calls = parties.server.begin()
    for client, call in calls.items():
        assert parties.server.accept(client, parties.node(client).answer(call))
    again = parties.node(2).answer(calls[2])
    assert not parties.server.accept(2, again)
    assert not parties.server.accept(2, again)
    assert parties.end()["dropped_replies"] == 2
    assert parties.held() == without("FedAvg(up=LBGM(threshold=0.6))", 2, [], 2)
    unused = [e for e in parties.server.ledger.of("up", 2) if not e.used]
    assert [(e.client, e.total) for e in unused] == [(2, len(again))] * 2


# -- which state is meant -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression", ["FedAvg(up=ErrorFeedback(TopK(0.2)))", "FedAvg(up=LBGM(threshold=0.6))", METHODS[5]]
)
def test_of_two_answers_to_one_call_a_client_goes_on_from_the_one_that_was_taken(
    expression: str, tmp_path: Path
) -> None:
    parties = Parties(expression, tmp_path)
    parties.round()
    for client, call in parties.server.begin().items():
        answer = parties.node(client).answer(call)
        if client == 2:  # the call comes again, and training gives something else
            again = Node(parties.method, mlp, blobs(seed=1)[2], tmp_path / "client-2").answer(call)
            assert read_answer(again, 10_000).blob != read_answer(answer, 10_000).blob
        assert parties.server.accept(client, answer)
    parties.end()
    parties.round()
    assert parties.held() == without(expression, 2, [], 3)


def test_an_answer_to_what_another_copy_of_the_server_asked_is_refused(tmp_path: Path) -> None:
    parties = Parties("LUAR(FedAvg(), recycle=1, layers='tensors')", tmp_path)
    parties.round()
    shutil.copytree(tmp_path / "server", tmp_path / "copy")
    parties.round([0, 1])
    late = parties.node(2).answer(parties.server.begin()[2])
    shutil.rmtree(tmp_path / "server")
    shutil.copytree(tmp_path / "copy", tmp_path / "server")
    parties.serve()
    parties.round([3, 4])  # and so another model than the one that client 2 was sent
    call = parties.server.begin()[2]
    with pytest.raises(WireError, match="round 3, client 2: a packet of another shape: an answer to the newest call"):
        parties.server.accept(2, late)
    assert parties.server.accept(2, parties.node(2).answer(call))


class Busy(Node):
    """A client that is called by a second process while it trains."""

    def round(self, *arguments: Any) -> Any:
        with pytest.raises(RunError, match=r"client-2 is in use by another process that answers for this client"):
            Node(self.algorithm, self.model, self.task, self.folder).answer(self.call)
        return super().round(*arguments)


def test_one_process_at_a_time_answers_for_a_client(tmp_path: Path) -> None:
    parties = Parties("FedAvg(up=LBGM(threshold=0.6))", tmp_path)
    for client, call in parties.server.begin().items():
        node: Any = parties.node(client, Busy if client == 2 else Node)
        node.call = call
        assert parties.server.accept(client, node.answer(call))
    parties.end()
    parties.round()
    assert parties.held() == without("FedAvg(up=LBGM(threshold=0.6))", 2, [], 2)


def test_a_client_keeps_no_more_states_than_may_be_named(tmp_path: Path) -> None:
    parties = Parties("FedAvg(up=ErrorFeedback(TopK(0.2)))", tmp_path)

    def rounds() -> list[int]:
        """Whose answers' states client 2 has."""
        return sorted(int(path.name.partition("-")[0]) for path in (tmp_path / "client-2").rglob("*.thinwire"))

    parties.round()
    parties.round(lost=[2])
    assert rounds() == [1, 2]
    parties.round(lost=[2])
    assert rounds() == [1, 3]  # the answer of the second round was lost for good
    parties.round()
    assert rounds() == [1, 4]
    call = parties.server.begin()[2]
    for seed in range(6):
        Node(parties.method, mlp, blobs(seed=seed)[2], tmp_path / "client-2").answer(call)
    assert rounds() == [4, 5, 5, 5, 5]


# -- out of step ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_whose_disk_is_lost_is_opened_anew_with_one_full_message(tmp_path: Path) -> None:
    expression = "FedAvg(up=LBGM(threshold=1.0), down=EF21(TopK(0.1)))"
    parties = Parties(expression, tmp_path)
    parties.round()
    parties.round()
    shutil.rmtree(tmp_path / "client-2")
    for client, call in parties.server.begin().items():
        answer = parties.node(client).answer(call)
        if client != 2:
            parties.server.accept(client, answer)
            continue
        assert not read_answer(answer, 10_000).held
        before = parties.held()
        with pytest.raises(OutOfSync, match="client 2 does not hold what it held after round 2"):
            parties.server.accept(2, answer)
        assert parties.held() == before
        full = parties.server.reopen(2)
        opened = read_call(full)
        assert (opened.base, opened.snapshot, len(opened.pieces)) == (0, True, 1)
        assert parties.server.accept(2, parties.node(2).answer(full))
    entries = [(e.payload > 300, e.used) for e in parties.server.ledger.of(round=3) if e.client == 2]
    assert entries == [(False, True), (False, False), (True, True), (True, True)]  # called, "?", whole, a whole reply
    assert parties.end()["lost_replies"] == 0
    parties.round()
    assert parties.server.records[-1]["clients"] == 6


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "a bit": flip_a_bit,
    "its end": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "all of it": Path.unlink,
    "its owner": lambda path: shutil.copy(next(path.parents[1].glob("003/*.thinwire")), path),
}
WITH_ENDS = [  # which keep of each client: nothing, an end of `up`, of `down`, of `personal`
    "FedAvg()",
    "FedAvg(up=LBGM(threshold=1.0), down=EF21(TopK(0.1)))",
    "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))",
    "SoftPull(FedAvg(), lam=0.6, personal=EF21(TopK(0.3)))",
]


WHEN = ["before its call", "before its answer", "before the round ends"]


def lost(whose: str, damage: str, when: str, expression: str, folder: Path) -> list[bytes]:
    """What the server holds after four rounds. In the third what it, or client 2, keeps of the two of them is lost."""
    parties = Parties(expression, folder)
    late = when == WHEN[2]

    def come(now: str) -> None:
        if whose == "server" and now == when:
            (path,) = parties.path.glob("server/states/002/2-*.thinwire")
            DAMAGED[damage](path)
        elif whose == "client" and now == ("after it" if late else WHEN[0]):
            shutil.rmtree(parties.path / "client-2")

    def accept(client: int, answer: bytes) -> None:
        try:
            assert parties.server.accept(client, answer)
        except OutOfSync:
            assert client == 2
            assert parties.server.accept(2, parties.node(2).answer(parties.server.reopen(2)))

    parties.round()
    parties.round()
    come(WHEN[0])
    answers = {client: parties.node(client).answer(call) for client, call in parties.server.begin().items()}
    come(WHEN[1])
    for client, answer in answers.items():
        if not (whose == "client" and late and client == 2):  # then it is lost on its way
            accept(client, answer)
    come(WHEN[2])
    record = parties.end()
    assert (record["refused_replies"], record["lost_replies"]) == (0, int(late))
    come("after it")
    parties.serve()  # again, with what is on its disk
    for client, call in parties.server.begin().items():
        accept(client, parties.node(client).answer(call))
    assert parties.end()["lost_replies"] == 0
    return parties.held()


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("damage", "expression"),
    tiers([*(("a bit", each) for each in WITH_ENDS), *((damage, WITH_ENDS[1]) for damage in DAMAGED)], slow=3),
)
def test_a_damaged_state_of_the_servers_opens_the_client_anew_as_if_the_clients_disk_were_lost(
    damage: str, expression: str, when: str, tmp_path: Path, caplog: Any
) -> None:
    found = lost("server", damage, when, expression, tmp_path / "a")
    (said,) = (line.getMessage() for line in caplog.records if line.levelno == logging.ERROR)
    assert "round 3: the server lost what it kept of client 2, which is not the client's fault" in said
    assert found == lost("client", damage, when, expression, tmp_path / "b")


@pytest.mark.slow
def test_a_late_answer_of_a_client_that_the_server_lost_is_dropped_and_the_next_one_counts(tmp_path: Path) -> None:
    parties = Parties("FedAvg(up=LBGM(threshold=1.0))", tmp_path)
    parties.round()
    calls = parties.server.begin()
    answers = {client: parties.node(client).answer(call) for client, call in calls.items()}
    for client in set(ALL) - {2}:
        assert parties.server.accept(client, answers[client])
    parties.end()
    parties.server.begin(set(ALL) - {2})
    flip_a_bit(next(parties.path.glob("server/states/002/2-*.thinwire")))
    assert not parties.server.accept(2, answers[2])
    record = parties.end()
    assert (record["late_replies"], record["dropped_replies"], record["refused_replies"]) == (0, 1, 0)
    assert parties.round()["lost_replies"] == 0


@pytest.mark.slow
def test_of_a_method_without_memory_nothing_is_lost_with_a_clients_disk(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path)
    parties.round()
    shutil.rmtree(tmp_path / "client-2")
    for client, call in parties.server.begin().items():
        try:
            parties.server.accept(client, parties.node(client).answer(call))
        except OutOfSync:
            parties.server.accept(client, parties.node(client).answer(parties.server.reopen(client)))
    parties.end()
    assert parties.held()[:3] == without("FedAvg()", 2, [], 2)[:3]


def test_a_damaged_state_is_as_good_as_none(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path)
    parties.round()
    (path,) = (tmp_path / "client-2").rglob("*.thinwire")
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    answer = parties.node(2).answer(parties.server.begin()[2])
    with pytest.raises(OutOfSync):
        parties.server.accept(2, answer)


@pytest.mark.slow
def test_two_runs_of_one_method_do_not_meet_in_a_clients_folder(tmp_path: Path) -> None:
    first, second = (Parties("FedAvg(up=ErrorFeedback(TopK(0.2)))", tmp_path / name) for name in "ab")
    for parties in (first, second):
        for _ in range(2):
            for client, call in parties.server.begin().items():
                node = Node(parties.method, mlp, blobs()[client], tmp_path / f"shared-{client}")
                assert parties.server.accept(client, node.answer(call))
            parties.end()
    assert first.held() == second.held()


@pytest.mark.slow
def test_a_client_keeps_the_states_of_the_runs_that_it_answered_last(tmp_path: Path) -> None:
    parties = Parties("FedAvg(up=ErrorFeedback(TopK(0.2)))", tmp_path)
    node = Node(parties.method, mlp, blobs()[0], tmp_path / "kept")
    (tmp_path / "kept" / "mine").mkdir(parents=True)
    first = parties.server.begin()[0]
    for incarnation in range(17):
        call = read_call(first)._replace(incarnation=incarnation)
        node.answer(call.write())
        if incarnation == 8:
            node.answer(read_call(first)._replace(incarnation=0).write())  # the oldest is used again
    found = {path.name for path in (tmp_path / "kept").iterdir()}
    run = parties.server.digest
    assert found == {".lock", "mine", *(f"{run}-{n:016x}" for n in range(17) if n != 1)}
    again = read_call(first)._replace(incarnation=1, base=1, round=2)
    assert not read_answer(node.answer(again.write()), 10_000).held  # it says so, and is opened anew


@pytest.mark.slow
def test_a_client_of_another_method_or_model_says_so(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path)
    call = parties.server.begin()[0]
    for node in (Node(method("SCAFFOLD()"), mlp, blobs()[0], tmp_path), Node(FedAvg(), mlp, blobs()[0], tmp_path)):
        with pytest.raises(RunError, match="the server runs another method or another model"):
            node.answer(call)


# -- who is waited for ----------------------------------------------------------------


def test_of_the_sampled_the_first_answers_are_taken(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path, sample=4, take=2)
    calls = parties.server.begin()
    assert len(calls) == 4
    for n, (client, call) in enumerate(calls.items()):
        assert parties.server.full == (n >= 2)
        if not parties.server.full:
            parties.server.accept(client, parties.node(client).answer(call))
    assert parties.server.end()["lost_replies"] == 2


def test_only_clients_that_are_there_are_called(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path, sample=3)
    assert sorted(parties.server.begin([1, 4])) == [1, 4]


class Still(nn.Module):
    """One number, w; a step of 1 on the loss w*x moves it by the mean of -x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def pulls(*values: float) -> list[tw.Supervised]:
    return [
        tw.Supervised(torch.tensor([[-v]]), torch.zeros(1), loss_of=lambda y, _: y.flatten(), metrics_of={})
        for v in values
    ]


@pytest.mark.parametrize("up", ["Dense()", "TopK(1.0)"])
def test_a_late_answer_counts_in_the_next_round_while_its_client_was_not_called_again(up: str, tmp_path: Path) -> None:
    algorithm = tw.parse(f"FedAvg(LocalSGD(1.0), up={up}, opt=SGD(1.0))")
    tasks, server = pulls(1.0, 2.0, 6.0), Deployment(algorithm, Still, 3)
    nodes = [Node(algorithm, Still, task, tmp_path / str(i)) for i, task in enumerate(tasks)]
    calls = server.begin()
    late = nodes[2].answer(calls[2])
    for client in (0, 1):
        server.accept(client, nodes[client].answer(calls[client]))
    server.end()
    assert server.server.x.flat.tolist() == [1.5]  # (1 + 2) / 2
    calls = server.begin([0, 1])
    assert server.accept(2, late)
    assert not server.full
    assert server.accept(0, nodes[0].answer(calls[0]))
    record = server.end()
    assert server.server.x.flat.tolist() == [5.0]  # + (6 + 1) / 2
    assert (record["clients"], record["late_replies"], record["lost_replies"]) == (2, 1, 1)
    # Its client knows it: the next call is based on the round that it answered.
    assert read_call(server.begin()[2]).base == 1


def test_a_late_answer_of_a_client_that_was_called_again_is_dropped_and_counted(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path)
    calls = parties.server.begin()
    late = parties.node(2).answer(calls[2])
    parties.end()
    parties.server.begin()
    assert not parties.server.accept(2, late)
    assert parties.end()["dropped_replies"] == 1


def test_a_late_answer_of_a_method_whose_replies_mean_something_else_each_round_is_dropped(tmp_path: Path) -> None:
    parties = Parties("LUAR(FedAvg(), recycle=1, layers='tensors')", tmp_path)
    late = parties.node(2).answer(parties.server.begin()[2])
    parties.end()
    parties.server.begin([0, 1])
    assert not parties.server.accept(2, late)
    assert parties.end()["dropped_replies"] == 1


@pytest.mark.slow
def test_a_client_that_is_late_to_say_that_it_is_out_of_step_is_not_called_out_of_turn(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path)
    parties.round()
    call = parties.server.begin()[2]
    shutil.rmtree(tmp_path / "client-2")
    answer = parties.node(2).answer(call)
    parties.end()
    parties.server.begin([0, 1])
    assert not parties.server.accept(2, answer)
    assert parties.end()["dropped_replies"] == 1


@pytest.mark.slow
def test_the_measured_uplink_chooses_the_codec_and_both_ends_know(tmp_path: Path) -> None:
    wide = lambda: nn.Sequential(nn.Linear(6, 3000), nn.Linear(3000, 3))  # noqa: E731  30,003 parameters
    up = 'ByBandwidth({"1": Dense(), "0.1": Half(), "0": TopK(0.01)})'
    parties = Parties(f"FedAvg(up={up})", tmp_path, wide)
    expected = {0: (None, 120_000), 1: (10.0, 120_000), 2: (0.5, 60_000), 3: (0.01, 1_400)}
    for client, call in parties.server.begin([0, 1, 2, 3]).items():
        answer = parties.node(client).answer(call)
        mbit = expected[client][0]
        waited = None if mbit is None else len(answer) * 8e-6 / mbit + read_answer(answer, 1 << 20).seconds
        assert parties.server.accept(client, answer, waited)
    parties.end()
    parties.serve()  # what was measured is in the checkpoint
    parties.round([0, 1, 2, 3])
    sizes = {e.client: e.payload for e in parties.server.ledger.of("up", 2)}
    for client, (_, about) in expected.items():
        assert about <= sizes[client] <= 1.2 * about + 100


@pytest.mark.parametrize(
    ("seconds", "sending", "mbit", "found"),  # 120,000 bytes and their header are .96 Mbit
    [(16.0, None, None, 0.06), (16.0, 4.0, None, 0.24), (16.0, 99.0, None, 0.06), (16.0, None, 0.1, 0.1)],
)
def test_of_two_bounds_of_the_time_an_answer_took_the_shorter_counts_and_what_the_uplink_carries_at_least(
    seconds: float, sending: float | None, mbit: float | None, found: float, tmp_path: Path
) -> None:
    wide = lambda: nn.Sequential(nn.Linear(6, 3000), nn.Linear(3000, 3))  # noqa: E731  30,003 parameters
    parties = Parties("FedAvg()", tmp_path, wide, mbit=mbit)
    for client, call in parties.server.begin([0]).items():
        answer = parties.node(client).answer(call)
        assert parties.server.accept(client, answer, seconds + read_answer(answer, 1 << 20).seconds, sending)
    assert parties.server.rate(0) == pytest.approx(found, rel=0.01)
    assert parties.server.rate(1) == (mbit or 0.0)


@pytest.mark.parametrize(("mbit", "dense"), [(None, True), (2.0, True), (0.5, False)])
def test_an_uplink_is_at_least_what_it_is_said_to_be(mbit: float | None, dense: bool, tmp_path: Path) -> None:
    up = 'ByBandwidth({"1": Dense(), "0": TopK(0.01)})'
    parties = Parties(f"FedAvg(up={up})", tmp_path, mbit=mbit)
    size = 4 * sum(p.numel() for p in mlp().parameters())
    for client, call in parties.server.begin([0, 1]).items():
        answer = read_answer(parties.node(client).answer(call), 1 << 20)
        assert answer.mbit == (mbit or 0.0)
        assert (len(answer.blob) > size) == dense


def test_a_rate_is_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mbit=0: a rate in Mbit/s is positive"):
        Parties("FedAvg()", tmp_path, mbit=0)


def test_small_answers_show_no_rate_that_they_are_not_at_least_sent_with() -> None:
    from thinwire.federated.network import measure_rate

    assert measure_rate(None, 100, 3.0) is None
    assert measure_rate(2.0, 100, 3.0) == 2.0
    assert measure_rate(0.001, 1_000, 1.0) == 0.008
    assert measure_rate(2.0, 125_000, 4.0) == 0.25


@pytest.mark.slow
def test_in_a_simulation_the_networks_rates_choose() -> None:
    link = tw.ByBandwidth({"1": tw.Dense(), "*": tw.TopK(0.1)})
    network = tw.Network(mbit=(0.5, 1.0, 20.0, 0.1, 2.0, 0.9))
    result = tw.simulate(FedAvg(up=link), mlp, blobs(), 1, network=network, workers=1, plan="each")
    sizes = {e.client: e.payload for e in result.ledger.of("up")}
    assert [sizes[c] > 300 for c in ALL] == [False, True, True, False, True, False]


# -- hostile replies ------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_hostile_answers_are_refused_and_change_nothing(tmp_path: Path, caplog: Any) -> None:
    expression = "FedAvg(up=LBGM(TopK(0.5), threshold=0.6))"
    parties = Parties(expression, tmp_path)
    first = {client: parties.node(client).answer(call) for client, call in parties.server.begin().items()}
    for client, answer in first.items():
        assert parties.server.accept(client, answer)
    parties.end()
    calls = parties.server.begin()
    honest = {client: parties.node(client).answer(call) for client, call in calls.items()}
    good = read_answer(honest[2], 10_000)
    deep: Any = torch.ones(3)
    for _ in range(90):
        deep = [deep]
    nan = [None, [[[torch.zeros(0, dtype=torch.uint8), torch.full((48,), float("nan"))]]]]
    kinds: dict[str, Callable[[random.Random], bytes]] = {
        "noise": lambda r: r.randbytes(r.randrange(400)),
        "cut": lambda r: honest[2][: r.randrange(len(honest[2]) - 1)],
        "flipped": lambda r: flipped(honest[2], r),
        "oversized": lambda r: good._replace(blob=bytes(parties.server.most + r.randrange(100))).write(),
        "deep": lambda r: good._replace(blob=tw.dumps([[None, deep]])).write(),
        "shape": lambda r: good._replace(
            blob=tw.dumps([[None, [[torch.zeros(r.randrange(1, 9)) for _ in "abcd"]]]])
        ).write(),
        "nan": lambda r: good._replace(blob=tw.dumps([nan])).write(),
        "huge": lambda r: good._replace(blob=tw.dumps([[None, torch.tensor(1e33)]])).write(),
        "another client's": lambda r: honest[r.choice([0, 1, 3, 4, 5])],
        "another base": lambda r: good._replace(base=good.base + r.choice([-1, 1, 7])).write(),
        "another round": lambda r: good._replace(round=good.round + r.randrange(1, 9)).write(),
        "a replay": lambda _: first[2],
        "another run": lambda r: good._replace(incarnation=good.incarnation ^ 1 << r.randrange(60)).write(),
        "another codec": lambda r: good._replace(mbit=float(r.randrange(1, 9))).write(),
        "too many examples": lambda r: good._replace(examples=(1 << 32) + r.randrange(1, 9)).write(),
        "no examples": lambda r: good._replace(examples=-r.randrange(9)).write(),
        "no loss": lambda r: good._replace(loss=r.choice([float("nan"), float("inf"), 1e30])).write(),
        "long header": lambda r: good._replace(run="x" * r.randrange(2_000, 9_000)).write(),
        "wrong types": lambda r: tw.dumps([r.choice([None, 1, "x", 0.5, [], {}]) for _ in good]),
    }
    before, draw = parties.held(), random.Random(1)
    caplog.set_level(logging.ERROR)
    tracemalloc.start()
    for n in range(1_000):
        kind = list(kinds)[n % len(kinds)]
        assert not taken(parties.server, 2, kinds[kind](draw)), kind
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()
    assert parties.held() == before
    for client, answer in honest.items():
        if client != 2:
            assert parties.server.accept(client, answer)
    record = parties.end()
    assert record["refused_replies"] + record["dropped_replies"] == 1_000
    assert (record["dropped_replies"] >= 50, record["lost_replies"]) == (True, 1)
    assert parties.held() == without(expression, 2, [2], 2)


def taken(server: Deployment, client: int, data: bytes) -> bool:
    try:
        return server.accept(client, data)
    except WireError:
        return False


def flipped(data: bytes, draw: random.Random) -> bytes:
    """One of the first bytes, the header's, is another: whatever it says now, it is not what was asked."""
    place = draw.randrange(30)
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def test_what_a_link_overlooks_does_not_take_the_server_with_it(tmp_path: Path, monkeypatch: Any) -> None:
    parties = Parties("FedAvg(up=TopK(0.5))", tmp_path)
    answer = parties.node(2).answer(parties.server.begin()[2])

    def careless(*_: Any) -> Any:
        raise RuntimeError("shape '[4]' is invalid for input of size 3")

    with monkeypatch.context() as patched:
        patched.setattr(tw.TopK, "recv", careless)
        with pytest.raises(WireError, match=r"round 1, client 2: shape '\[4\]' is invalid"):
            parties.server.accept(2, answer)
    assert parties.server.accept(2, answer)


def test_the_log_names_the_client_that_was_refused(tmp_path: Path, caplog: Any) -> None:
    parties = Parties("FedAvg()", tmp_path)
    parties.server.begin()
    with pytest.raises(WireError):
        parties.server.accept(4, b"\x01\x00")
    assert "round 1: an answer of client 4 was refused" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("up", ["Dense()", "TopK(1.0)"])
def test_a_reply_that_is_longer_than_the_clip_counts_as_if_it_were_that_long(
    up: str, tmp_path: Path, caplog: Any
) -> None:
    algorithm = tw.parse(f"FedAvg(LocalSGD(1.0), up={up}, opt=SGD(1.0))")
    server = Deployment(algorithm, Still, 2, clip=2.0)
    for client, call in server.begin().items():
        server.accept(client, Node(algorithm, Still, pulls(1.0, -50.0)[client], tmp_path / str(client)).answer(call))
    server.end()
    assert server.server.x.flat.tolist() == [-0.5]  # (1 - 2) / 2
    assert "client 1 sent a norm of 50; it counts as 2" in caplog.text


@pytest.mark.slow
def test_a_round_that_the_server_cannot_use_leaves_it_as_it_was(tmp_path: Path, caplog: Any) -> None:
    parties = Parties("FedAvg(opt=Adam(0.03))", tmp_path)
    parties.round()
    before = parties.held()
    call = parties.server.begin([2])[2]
    parties.server.accept(2, forged(parties.node(2).answer(call), huge(1e20)))
    record = parties.end()
    assert record["lost_replies"] == 1
    assert "the answer of client 2 was refused, the server cannot use it: round 2: the server's state" in caplog.text
    after = parties.held()
    assert (after[0], after[3]) == (before[0], before[3])
    parties.round()


# -- layers that are there or not ---------------------------------------------------------


LEAVING = [  # of which each round some layers or fields stay away, as the server knows
    "LUAR(FedAvg(), recycle=2, layers='tensors')",
    "LUAR(SCAFFOLD(), recycle=1)",
    "LUAR(FedProx(), recycle=1, layers='tensors', both=True)",
    "PruneFL(FedAvg(), every=2)",
    "LUAR(PruneFL(FedAvg(), every=2), recycle=1)",
    "FLSS(FedAvg(), rank=2, start=2, every=2)",
    "Averaged(FLSS(FedAvg(), rank=2, start=2, every=2))",
    "Intrinsic(20, subspaces=3)",
    "ClusteredLBGM(2, threshold=0.9)",
    "FedSMExtra(start=2)",
    "Ensemble(start=1)",
]
FITTING = {"FedPara": "FedPara(FedAvg(), rank=1)", "FedBN": "FedBN(stay=('1.*',))", "Intrinsic": "Intrinsic(20)"}
WHOLE = [text for row in FEDERATED if (text := FITTING.get(row.name, row.trained[0])) not in LEAVING]  # this model
HERE = ("PerClient", "SecureSum")  # no link upwards, and one of simulations alone
UPWARDS = [row for row in LINKS if row.name not in ("EF21", "PerClient", "SecureSum")]
THROUGH = [f"FedAvg(up={next(iter(row.laws))})" for row in UPWARDS]


def other_masks(server: Deployment, client: int, answer: bytes) -> Iterator[tuple[str, bytes]]:
    """Answers with a layer less or more than the one that is given, each encoded as its link encodes such a message."""
    found = read_answer(answer, 1 << 24)
    rx, key = server.states.get(client).rx, server.at(client, found)
    form = server.up
    values = form.recv(tw.loads(found.blob), rx, key)[0]
    for i, leaf in enumerate(form.leaves):
        if leaf.link is None:
            continue
        names = values[i].names
        for some in {names[1:], names[:-1], (), *((*names, name) for name in leaf.blank.names if name not in names)}:
            if set(some) != set(names):
                other = leaf.blank.replace(values[i]).only(some)
                forged_ = [*values[:i], other, *values[i + 1 :]]
                body = form.send(forged_, form.open()[0], key)[0]
                yield f"{leaf.name}: {', '.join(some)}", found._replace(blob=tw.dumps(body)).write()


@pytest.mark.slow
@pytest.mark.parametrize("expression", [*tiers(LEAVING, slow=9), *tiers(WHOLE, slow=9), *tiers(THROUGH, slow=9)])
def test_a_reply_with_other_layers_than_its_clients_send_in_a_round_is_refused_when_it_arrives(
    expression: str, tmp_path: Path
) -> None:
    parties, tried = Parties(expression, tmp_path, normed), 0
    for number in (1, 2, 3, 4) if expression in LEAVING else (1,):
        for client, call in parties.server.begin([1, 2, 4]).items():
            answer = parties.node(client).answer(call)
            before = parties.held()
            for what, other in other_masks(parties.server, client, answer):
                if client == 2:
                    tried += 1
                    with pytest.raises(WireError) as caught:
                        parties.server.accept(2, other)
                    ours = r"its \S+ (lacks|has) layer '\S+', which .*in this round|an update, or what .*expected"
                    said = rf"round {number}, client 2: (a packet of another shape: )?({ours})"
                    assert re.fullmatch(said, str(caught.value)), (what, str(caught.value))
            assert parties.held() == before
            assert parties.server.accept(client, answer)
        record = parties.end()
        assert record["lost_replies"] == 0
    assert tried >= 2


@pytest.mark.slow
def test_layers_that_a_reply_left_out_do_not_count_as_zeros(tmp_path: Path) -> None:
    # Six clients at x = 0, five of which pull by 1 and one of which leaves its second layer out.
    parties = Parties("FedAvg()", tmp_path)
    calls = parties.server.begin()
    for client, call in calls.items():
        answer = parties.node(client).answer(call)
        if client == 2:
            whole = tw.loads(read_answer(answer, 1 << 24).blob)[0][1]
            mask = torch.tensor([True, False, True, True])
            blob = tw.dumps([[mask, torch.cat([whole[:48], whole[54:]])]])
            with pytest.raises(WireError, match=r"round 1, client 2: its update lacks layer '0.bias', which no client"):
                parties.server.accept(2, read_answer(answer, 1 << 24)._replace(blob=blob).write())
        else:
            assert parties.server.accept(client, answer)
    parties.end()
    assert parties.held() == without("FedAvg()", 2, [1], 1)


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """A method of one's own, whose clients leave out their first layer."""

    def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
        reply, state = yield from super().client(view, state, task, key)
        return reply._replace(update=reply.update.drop(reply.update.names[:1])), state


@dataclass(frozen=True)
class Candid(Forgetful):
    """The same, which says so."""

    def outlines(self, view: Any, blank: Any, key: Key) -> Any:
        return [blank._replace(update=blank.update.drop(blank.update.names[:1]))]

    def server(self, server: Any, view: Any, mean: Any, key: Key) -> Any:
        whole = server.x.zeros().replace(mean.update)
        return super().server(server, view, mean._replace(update=whole), key)


def test_a_method_of_ones_own_says_which_layers_its_clients_leave_out() -> None:
    said = r"round 1, client 0: its update lacks layer '0.weight', .* says which in Forgetful\.outlines"
    with pytest.raises(CombinationError, match=said):
        tw.simulate(Forgetful(), mlp, blobs(), 1)
    assert tw.simulate(Candid(), mlp, blobs(), 2).rounds[-1]["up_bytes"] > 0


# -- numbers that are none ------------------------------------------------------------------


def with_nan_in(link: str, answer: bytes, value: float) -> bytes:
    """The answer of a client of `FedAvg`, whose update has one such number in its second layer, of six entries."""
    found = read_answer(answer, 1 << 24)
    body = tw.loads(found.blob)
    packet = body[0][1]
    if link == "Dense()":
        packet = packet.clone()
        packet[50] = value
    else:  # one packet a layer
        packet = [packet[0], value_in(packet[1], value), *packet[2:]]
    return found._replace(blob=tw.dumps([[None, packet]])).write()


def value_in(packet: Any, value: float) -> Any:
    """A layer's packet whose first floating-point number is another."""
    if isinstance(packet, Tensor) and packet.is_floating_point():
        packet = packet.clone()
        packet.view(-1)[0] = value
        return packet
    if isinstance(packet, list):
        for i, part in enumerate(packet):
            other = value_in(part, value)
            if other is not part:
                return [*packet[:i], other, *packet[i + 1 :]]
    return packet


@pytest.mark.parametrize("link", ["Dense()", "Half()", "TopK(0.5)", "Int8()", "QSGD(16)", "ErrorFeedback(STC(0.5))"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_refused_with_its_client_round_field_and_layer(
    link: str, value: float, tmp_path: Path
) -> None:
    parties = Parties(f"FedAvg(up={link})", tmp_path)
    answer = parties.node(2).answer(parties.server.begin()[2])
    said = r"^round 1, client 2: NaN or infinity in a message: in update, layer '0.bias'$"
    with pytest.raises(WireError, match=said):
        parties.server.accept(2, with_nan_in(link, answer, value))
    assert parties.server.accept(2, answer)


class Warm(NamedTuple):
    """A broadcast or a reply with a number beside the model."""

    x: tw.Params
    heat: float


class Warmth(NamedTuple):
    """A reply with a number beside the update."""

    update: tw.Params
    heat: float


@dataclass(frozen=True)
class Warming(FedAvg):
    """FedAvg that sends a number in either direction."""

    down_heat: float = 0.0
    up_heat: float = 0.0

    def init(self, x: tw.Params, num_clients: int, key: Key) -> tw.Start:
        begun = super().init(x, num_clients, key)
        return begun._replace(view=Warm(x.zeros(), 0.0), reply=Warmth(x.zeros(), 0.0))

    def broadcast(self, server: Any, view: Any) -> Any:
        return Warm(server.x, self.down_heat)

    def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
        reply, state = yield from super().client(view, state, task, key)
        return Warmth(reply.update, self.up_heat if key.client == 3 else 1.0), state


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_beside_the_model_that_is_none_is_named_in_either_direction(value: float) -> None:
    with pytest.raises(WireError, match=r"^round 1, broadcast: NaN or infinity in a message: in heat$"):
        tw.simulate(Warming(down_heat=value), mlp, blobs(), 1)
    with pytest.raises(NonFinite, match=r"^round 1, client 3: heat has NaN or infinity in it; lower lr$"):
        tw.simulate(Warming(up_heat=value), mlp, blobs(), 1)


@pytest.mark.parametrize("down", ["Dense()", "EF21(TopK(0.5))", "Half()"])
def test_a_broadcast_with_numbers_that_are_none_names_field_and_layer(down: str) -> None:
    @dataclass(frozen=True)
    class Broken(FedAvg):
        def broadcast(self, server: Any, view: Any) -> Any:
            x = server.x.clone()
            x["2.weight"][0, 0] = float("nan")
            return fedavg.Broadcast(x)

    with pytest.raises((WireError, NonFinite), match=r"^round 1.*\bx, layer '2\.weight'"):
        tw.simulate(Broken(down=tw.parse(down)), mlp, blobs(), 1)


def test_an_update_with_numbers_that_are_none_names_its_first_layer() -> None:
    @dataclass(frozen=True)
    class Broken(FedAvg):
        def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
            reply, state = yield from super().client(view, state, task, key)
            reply.update["2.bias"][0] = float("nan")
            return reply, state

    said = r"^round 1, client 0: update has NaN or infinity in it; lower lr \(the first in layer '2\.bias'\)$"
    with pytest.raises(NonFinite, match=said):
        tw.simulate(Broken(), mlp, blobs(), 1)


# -- one hostile client among honest ones -----------------------------------------------


def forged(answer: bytes, forge: Callable[[Any], Any]) -> bytes:
    """The answer with another body."""
    found = read_answer(answer, 1 << 24)
    return found._replace(blob=tw.dumps(forge(tw.loads(found.blob)))).write()


def with_one_more_bit(body: Any) -> Any:
    which, ((mask, values), *others) = body[0]
    mask = mask.clone()
    mask[mask.logical_not().nonzero()[0]] = True
    return [[which, [[mask, values], *others]]]


def without_layers_but_a_bomb(body: Any) -> Any:
    return [[torch.zeros(4, dtype=torch.bool), bomb(1 << 20)]]


def bomb(size: int) -> Any:
    """A packet of Entropy that is so many bytes long once it is decompressed."""
    data = tw.dumps([torch.zeros(size // 4)])
    return [1, torch.frombuffer(bytearray(zstandard.ZstdCompressor().compress(data)), dtype=torch.uint8)]


LIES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("FedAvg(up=DropoutAvg(0.5))", with_one_more_bit, "a value for every entry sent"),
    ("FedAvg(up=Flat(DropoutAvg(0.5)))", lambda b: [[None, [~b[0][1][0], b[0][1][1][1:]]]], r"float32\[42\] expected"),
    ("FedAvg(up=Entropy(QSGD()))", without_layers_but_a_bomb, "nothing for no layers of update"),
    ("FedAvg(up=Entropy(QSGD()))", lambda b: [[None, bomb(1 << 20)]], "a packet of no more bytes than accepted"),
    ("FedAvg()", lambda b: [[torch.zeros(4, dtype=torch.bool), b[0][1]]], "nothing for no layers of update"),
    ("ClusteredLBGM(2)", lambda b: [b[0], b[1], -48], "8 examples, as the header says,"),
    ("ClusteredLBGM(2)", lambda b: [b[0], [[0, torch.ones(())]], 8], "an update, or what stands for it,"),
    ("ClusteredLBGM(2)", lambda b: [b[0], [[0, torch.ones(())]] * 9, 8], "an update, or what stands for it,"),
    ("ClusteredLBGM(2)", lambda b: [[torch.zeros(4, dtype=torch.bool), None], [[2, torch.ones(())]], 8], "one of 2"),
    ("FedDyn()", lambda b: [b[0], 1_000_000], "one reply"),
    ("FedDyn()", lambda b: [b[0], -1], "one reply"),
    ("FedGen()", lambda b: [b[0], torch.tensor([8, 8, 8])], "labels of 8 examples"),
    ("FedGen()", lambda b: [b[0], torch.tensor([-8, 8, 8])], "labels of 8 examples"),
]


@pytest.mark.parametrize(("expression", "lie", "said"), LIES)
def test_a_reply_that_lies_is_refused_by_name_and_the_others_round_stands(
    expression: str, lie: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    parties = Parties(expression, tmp_path)
    for client, call in parties.server.begin().items():
        answer = parties.node(client).answer(call)
        if client == 2:
            answer = forged(read_answer(answer, 1 << 24)._replace(examples=8).write(), lie)
            with pytest.raises(WireError, match=f"round 1, client 2: .*{said}"):
                parties.server.accept(2, answer)
        else:
            assert parties.server.accept(client, answer)
    parties.end()
    assert parties.held() == without(expression, 2, [1], 1)


def huge(size: float) -> Callable[[Any], Any]:
    return lambda body: [[None, torch.full_like(body[0][1], size)]]


@pytest.mark.parametrize("opt", ["Adam(0.03)", "Yogi(0.03)", "Adagrad(0.03)"])
def test_a_reply_that_makes_the_servers_state_infinite_is_left_out_by_name(
    opt: str, tmp_path: Path, caplog: Any
) -> None:
    expression = f"FedAvg(opt={opt})"
    parties = Parties(expression, tmp_path)
    for client, call in parties.server.begin().items():
        answer = parties.node(client).answer(call)
        assert parties.server.accept(client, forged(answer, huge(1e20)) if client == 2 else answer)
    record = parties.end()
    assert "round 1: the answer of client 2 was refused, the server cannot use it: round 1: the server's" in caplog.text
    assert (record["clients"], record["lost_replies"], record["refused_replies"]) == (6, 1, 1)
    assert parties.held() == without(expression, 2, [1], 1)


def test_what_a_links_check_overlooks_costs_the_others_nothing(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    expression = "FedAvg(up=DropoutAvg(0.5))"
    parties = Parties(expression, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(tw.DropoutAvg, "check", lambda self, packet, layout, rx, key: (layout.zeros(), rx))
        for client, call in parties.server.begin().items():
            answer = parties.node(client).answer(call)
            assert parties.server.accept(client, forged(answer, with_one_more_bit) if client in (2, 3) else answer)
    record = parties.end()
    assert record["refused_replies"] == 2
    assert [f"the answer of client {c} was refused" in caplog.text for c in ALL] == [False] * 2 + [True] * 2 + [
        False
    ] * 2
    cohort: Any = [([0, 1, 4, 5], set())]
    run = Chosen(method(expression), mlp, blobs(), cohorts=cohort, seed=5, test=blobs((60,))[0])
    with run.pool:
        run.step()
    assert parties.held() == held(run)


def three(algorithm: tw.Algorithm, path: Path, forge: Callable[[Any], Any], **options: Any) -> Deployment:
    """A server after a round of three clients whose updates are 1, the last of which says something else."""
    server, tasks = Deployment(algorithm, Still, 3, **options), pulls(1.0, 1.0, 1.0)
    for client, call in server.begin().items():
        answer = Node(algorithm, Still, tasks[client], path / str(client)).answer(call)
        if client == 2:
            answer = forge(read_answer(answer, 1 << 20)).write()
        with contextlib.suppress(WireError):
            server.accept(client, answer)
    server.end()
    return server


PULLED = FedAvg(tw.LocalSGD(1.0), opt=tw.SGD(1.0))


@pytest.mark.parametrize(
    ("most", "x"),  # the mean of 1, 1, and 50 or what it counts as, which has so many examples
    [
        (None, (1 + 1 + 2 * 1000) / 1002),
        (1000, (1 + 1 + 2 * 1000) / 1002),
        (999, 1.0),
        ([1, 1, 999], 1.0),
        ([1, 1, 1000], (1 + 1 + 2 * 1000) / 1002),
    ],
)
def test_a_client_weighs_no_more_examples_than_are_believed(most: Any, x: float, tmp_path: Path, caplog: Any) -> None:
    body = tw.dumps([[None, torch.tensor([50.0])]])
    server = three(PULLED, tmp_path, lambda a: a._replace(examples=1000, blob=body), clip=2.0, most_examples=most)
    assert server.server.x.flat.tolist() == [pytest.approx(x)]
    assert ("round 1, client 2" in caplog.text) is False
    assert ("1000 examples, of which 999 are believed" in caplog.text) == (x == 1.0)
    warned = "round 1: client 2 says that it has 1000 of all 1002 examples: its reply has more than half" in caplog.text
    assert warned == (most is None)


def test_of_two_replies_one_always_has_half_of_the_weight_and_equal_weights_need_no_bound(
    tmp_path: Path, caplog: Any
) -> None:
    server, tasks = Deployment(PULLED, Still, 2), pulls(1.0, 1.0)
    for client, call in server.begin().items():
        answer = read_answer(Node(PULLED, Still, tasks[client], tmp_path / f"two-{client}").answer(call), 1 << 20)
        server.accept(client, answer._replace(examples=1 + 98 * client).write())
    server.end()
    uniform = tw.parse("FedAvg(LocalSGD(1.0), weights='uniform')")
    three(uniform, tmp_path, lambda a: a._replace(examples=1000))
    assert caplog.text == ""


@pytest.mark.parametrize("most", [0, [1, 1], [1, 1, -1]])
def test_how_many_examples_are_believed_is_one_number_or_one_for_each_client(most: Any) -> None:
    with pytest.raises(ValueError, match=r"most_examples=.*: a positive number, or one for each of the 3 clients"):
        Deployment(FedAvg(), Still, 3, most_examples=most)


@pytest.mark.parametrize("most", ["123", [1.5, 2, 3], ["1", 2, 3], [True, 2, 3], 2.5, {0: 1, 1: 2, 2: 3}])
def test_how_many_examples_are_believed_are_whole_numbers(most: Any) -> None:
    with pytest.raises(ExpressionError, match=r"most_examples=.*int or Sequence\[int\] or None is expected"):
        Deployment(FedAvg(), Still, 3, most_examples=most)


def test_a_client_that_there_is_not_is_refused_before_the_round_begins() -> None:
    server = Deployment(FedAvg(), Still, 3)
    for there in [[1, 2, 3], [-1], [0, 0]]:
        with pytest.raises(ValueError, match=r"available=.* one or more of the 3 clients"):
            server.begin(there)
    assert list(server.begin(client for client in [1])) == [1]
    before = server.state()
    for take in [server.call, server.reopen, *(partial(f, data=b"") for f in (server.accept, server.hear_loss))]:
        for client in (3, -1):
            with pytest.raises(ValueError, match=f"client={client}: the clients are 0 to 2"):
                take(client)
    assert server.state() == before
    assert (server.refused, len(list(server.ledger))) == (0, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"evaluate_every": True}, "evaluate_every=True: a whole number"),
        ({"device": "gpu"}, "device='gpu': no such device"),
        ({"privacy": 1.0}, "privacy=1.0: Privacy such as"),
    ],
)
def test_a_client_refuses_what_it_would_not_heed(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        Node(FedAvg(), Still, pulls(1.0)[0], tmp_path, **given)


def test_what_stands_for_an_update_is_clipped_as_the_update_is(tmp_path: Path, caplog: Any) -> None:
    algorithm = tw.parse("ClusteredLBGM(1, threshold=1.0, local=LocalSGD(1.0), opt=SGD(1.0))")
    server, tasks = Deployment(algorithm, Still, 2, clip=2.0), pulls(1.0, 1.0)
    nodes = [Node(algorithm, Still, task, tmp_path / str(i)) for i, task in enumerate(tasks)]
    for client, call in server.begin().items():
        server.accept(client, nodes[client].answer(call))
    server.end()
    assert server.server.x.flat.tolist() == [1.0]
    for client, call in server.begin().items():
        answer = nodes[client].answer(call)
        longer = lambda b: [b[0], [[0, torch.tensor(-50.0)]], b[2]]  # noqa: E731
        assert server.accept(client, forged(answer, longer) if client == 1 else answer)
    server.end()
    assert server.server.x.flat.tolist() == [0.5]  # 1 + (1 - 2) / 2
    assert "round 2: client 1 sent recycled; it counts as 2" in caplog.text


class Steps(NamedTuple):
    update: tw.Params
    steps: float


class PerStep(FedAvg):
    """A method whose reply has a number that it does not look at."""

    def init(self, x: Any, num_clients: int, key: Key) -> Any:
        return super().init(x, num_clients, key)._replace(reply=Steps(x.zeros(), 0.0))


def test_clip_is_refused_where_it_would_not_bound_what_a_reply_does() -> None:
    with pytest.raises(CombinationError, match="PerStep's replies have steps: give PerStep a method `admit`"):
        Deployment(PerStep(), Still, 2, clip=1.0)
    for expression in ("FedDyn()", "SCAFFOLD()", "ClusteredLBGM(2)", "LUAR(FedGen(), recycle=1, layers='tensors')"):
        assert Deployment(method(expression), mlp, 2, clip=1.0).clip == 1.0


def test_in_a_simulation_the_client_whose_reply_was_too_large_is_named() -> None:
    algorithm = tw.parse("FedAvg(LocalSGD(1.0), opt=Adam(0.03))")
    said = r"the server's state became NaN, infinite or larger than 8e\+28 .* 1e\+20, in update of client 1\); lower"
    with pytest.raises(NonFinite, match=said):
        tw.simulate(algorithm, Still, pulls(1.0, 1e20, 1.0), 2, workers=1)


# -- bombs ------------------------------------------------------------------------------


class Laid(nn.Module):
    """A model of the table of links' layout."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in zip(LAYOUT.names, LAYOUT.shapes, strict=True):
            *path, last = name.split(".")
            if path and not hasattr(self, path[0]):
                setattr(self, path[0], nn.Module())
            (getattr(self, path[0]) if path else self).register_parameter(last, nn.Parameter(torch.zeros(shape)))


def answered(call: bytes, body: Any) -> bytes:
    """An answer to a call, of a client that has not trained."""
    asked = read_call(call)
    said: dict[str, Any] = {
        "held": True,
        "examples": 1,
        "loss": 0.0,
        "steps": 0,
        "seconds": 0.1,
        "blob": tw.dumps(body),
    }
    said |= {name: getattr(asked, name) for name in Answer._fields if hasattr(asked, name)}
    said |= {"call": mark(call), "state": 1 << 61}
    return Answer(**said).write()


def bombs(most: int) -> list[Any]:
    """Packets of at most so many bytes that are meant to become many more."""
    ones, late = torch.full((most,), 255, dtype=torch.uint8), torch.zeros(most, dtype=torch.uint8)
    late[-1] = 1
    of_empty = zstandard.ZstdCompressor().compress(b"\x01\x06\xa0\x8d\x06" + b"\x48\x01\x00" * 100_000)
    return [
        bomb(1 << 27),
        [2, 1 << 27, *rans.encode(torch.zeros(1 << 16, dtype=torch.uint8))],
        [1, torch.frombuffer(bytearray(of_empty), dtype=torch.uint8)],
        [torch.zeros(0)] * (most // 3),
        [[]] * most,
        [0] * (most // 2),
        [0, ones, torch.zeros(0, dtype=torch.uint8)],
        [0, late, torch.zeros(0, dtype=torch.uint8)],
        torch.ones(8 * most, dtype=torch.bool),
    ]


def planted(packet: Any, parts: list[Any]) -> Iterator[Any]:
    """Bodies with a bomb beside no layers, and in place of any part of an honest packet."""
    for part in parts:
        yield [[torch.zeros(len(LAYOUT.names), dtype=torch.bool), part]]
        for place in places(packet):
            yield [[None, replaced_at(packet, place, part)]]


def places(packet: Any) -> Iterator[tuple[int, ...]]:
    yield ()
    for i, part in enumerate(packet) if isinstance(packet, list) else ():
        for place in places(part):
            yield (i, *place)


def replaced_at(packet: Any, place: tuple[int, ...], part: Any) -> Any:
    if not place:
        return part
    return [replaced_at(one, place[1:], part) if i == place[0] else one for i, one in enumerate(packet)]


def memory_after_bombs(links: list[Link], every: int, parts: list[Any], found: Any) -> None:
    """How far this process's highest memory has grown, in kB, after the bombs of each link."""
    torch.set_num_threads(1)
    logging.getLogger("thinwire").setLevel(logging.CRITICAL)
    begun = None
    for i, link in enumerate(links):
        server = Deployment(tw.FedAvg(up=link), Laid(), 1)
        call, form = server.begin()[0], server.up
        body = form.send([leaf.blank for leaf in form.leaves], form.open()[0], Key(0, 1, 0))[0]
        begun = begun or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for n, bad in enumerate(planted(body[0][1], parts)):
            if (n + i) % every == 0:
                with contextlib.suppress(WireError):
                    server.accept(0, answered(call, bad))
                    call = server.reopen(0)
        found.send((link, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun, server.most))
    found.send(None)


def watched(links: list[Link], every: int, most: int) -> Iterator[tuple[Link, int, int]]:
    """In a process of its own, since the highest memory never goes down."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=memory_after_bombs, args=(links, every, bombs(most), theirs))
    child.start()
    theirs.close()
    while (found := ours.recv()) is not None:
        yield found
    child.join()


@pytest.mark.slow
@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.soak)])
def test_no_message_makes_the_server_hold_many_times_its_bytes(every: int) -> None:
    # A model takes 1,408 bytes and a message 5,000; the rest is what a server takes that is made anew.
    before = 0
    links = [tw.parse(text) for row in LINKS if row.name not in HERE for text in row.laws]
    for link, grown, most in watched(links, every, 4_000):
        assert most < 12_000
        assert grown - before < 8_000, link
        before = grown


def test_an_answer_has_as_many_values_as_its_form_may_have(tmp_path: Path) -> None:
    # 131,000 tensors without entries take 393 kB, and 145 MB once they are there.
    wide = lambda: nn.Sequential(nn.Linear(6, 10_000), nn.Linear(10_000, 3))  # noqa: E731  100,003 parameters
    many = b"\x06\xb8\xff\x07" + b"\x48\x01\x00" * 131_000
    packed = zstandard.ZstdCompressor().compress(b"\x01" + many)
    coded = [1, torch.frombuffer(bytearray(packed), dtype=torch.uint8)]
    for expression, blob in (
        ("FedAvg()", b"\x01\x06\x01\x06\x02\x00" + many),
        ("FedAvg(up=Entropy(Dense()))", tw.dumps([[None, coded]])),
    ):
        server = Deployment(method(expression), wide, 1)
        answer = read_answer(answered(server.begin()[0], None), 1 << 20)._replace(blob=blob)
        with pytest.raises(WireError, match="more values than are accepted"):
            server.accept(0, answer.write())


def test_what_a_call_says_is_checked() -> None:
    call = Call("run", 1, 5, 6, 2, 1, 0, 0.0, False, Several([Piece(1, b"\x01\x00")], Piece(0, b"")))
    assert read_call(call.write()) == call
    for bad in (
        call._replace(client=6),
        call._replace(client=-1),
        call._replace(base=1),
        call._replace(pieces=Several([], None), snapshot=True),
    ):
        with pytest.raises(WireError):
            read_call(bad.write())
    assert read_answer(Answer("run", 1, 2, 1, 0, 0.0, True, 8, 0.5, 1, 0.1, b"\x01").write(), 100).blob == b"\x01"


def test_a_server_without_a_test_set_knows_which_buffers_of_a_model_move() -> None:
    buffers = Deployment(FedAvg(), normed, 2).buffers
    assert buffers is not None
    assert buffers.names == ("1.running_mean", "1.running_var")


def test_keys_of_clients_with_different_uplinks_draw_alike() -> None:
    assert Key(1, 2, 3, "up", 0.5).number("mask") == Key(1, 2, 3, "up").number("mask")
