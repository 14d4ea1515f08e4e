"""Who takes part: samplers of one's own, and power-of-choice, in a simulation and in a deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thinwire as tw
from blobs import assert_same_model, blobs, mlp, normed
from test_federation import method
from thinwire import Draw, FedAvg, PowerOfChoice, Sampler
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.errors import CombinationError, WireError
from thinwire.federated.question import LOSS
from thinwire.federated.sampler import check_cohort, check_cohorts
from thinwire.run.folder import Folder

pytest.importorskip("flwr")

from test_serve import Post, _task, blob_of, post, serve, simulated  # noqa: F401  _task: a fixture of every test
from thinwire.deploy.flower.post import unpack

SIZES = (30, 12, 24, 12, 18, 12, 12, 20)
METHODS = [  # which remember something of a client, or write to one alone
    "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)))",
    "SCAFFOLD()",
    "FedBN(stay=('1.*',))",
    "Ditto(lam=0.1)",
    "LUAR(FedAvg(), recycle=2, layers='tensors')",
]


@dataclass(frozen=True)
class Cyclic(Sampler):
    """The next clients in turn."""

    step: int = 1

    def draw(self, about: Draw) -> Sequence[int]:
        first = self.step * (about.round - 1)
        return [about.clients[(first + i) % len(about.clients)] for i in range(about.most)]


@dataclass(frozen=True)
class Wrong(Sampler):
    """Gives what none may give."""

    clients: Any = ()

    def draw(self, about: Draw) -> Sequence[int]:
        return self.clients


def train(expression: str, rounds: int = 4, **asked: Any) -> tw.Result:
    *tasks, test = blobs((*SIZES, 60))
    asked = {"seed": 5, "test": test, "workers": 1, "plan": "each"} | asked
    return tw.simulate(method(expression), asked.pop("model", mlp), tasks, rounds, **asked)


def cohorts(result: tw.Result) -> list[list[int]]:
    """Who trained in each round."""
    return [sorted(e.client for e in result.ledger.of("up", t) if e.payload) for t in range(1, len(result.rounds) + 1)]


def losses(module: nn.Module) -> list[float]:
    """The mean cross entropy on every client's examples, by torch alone."""
    module.eval()
    *tasks, _ = blobs((*SIZES, 60))
    with torch.no_grad():
        batches = [task.batch(torch.arange(len(task))) for task in tasks]
        return [float(nn.functional.cross_entropy(module(inputs), targets)) for inputs, targets in batches]


def test_those_with_the_largest_loss_of_all_take_part() -> None:
    *tasks, _ = blobs((*SIZES, 60))
    run = tw.Simulation(method("FedAvg()"), mlp, tasks, sample=3, sampler=PowerOfChoice(8), seed=5, workers=1)
    with run:
        for _ in range(4):
            expected = losses(run.module())
            record = run.step()
            largest = sorted(range(8), key=lambda client: -expected[client])[:3]
            assert cohorts(run.result())[-1] == sorted(largest)
            assert (record["asked"], record["clients"]) == (8, 3)


@pytest.mark.parametrize("expression", METHODS)
def test_whoever_is_asked_and_not_chosen_is_as_if_it_had_not_been_called(expression: str) -> None:
    asked = train(expression, sample=3, sampler=PowerOfChoice(5), model=normed)
    given = train(expression, cohort=cohorts(asked), model=normed)
    assert [len(cohort) for cohort in cohorts(asked)] == [3, 3, 3, 3]
    assert_same_model(asked, given)


def test_of_equal_losses_the_first_clients_are_chosen() -> None:
    said = {7: 0.5, 2: 0.75, 4: 0.75, 1: 0.25}
    assert list(PowerOfChoice(4).choose(said, 2)) == [2, 4]
    assert list(PowerOfChoice(4).choose(said, 3)) == [2, 4, 7]


def test_candidates_are_drawn_by_how_many_examples_they_have() -> None:
    draws, counts = 4000, [0, 0, 0]
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        about = Draw(1, [0, 1, 3], 1, [10, 30, 1000, 60], generator)
        (client,) = PowerOfChoice(1).draw(about)
        counts[about.clients.index(client)] += 1
    for count, share in zip(counts, (0.1, 0.3, 0.6), strict=True):
        assert count / draws == pytest.approx(share, abs=4 * (share * (1 - share) / draws) ** 0.5)


def test_a_sampler_of_ones_own_says_who_takes_part() -> None:
    result = train("FedAvg()", 3, sample=3, sampler=Cyclic(2))
    assert cohorts(result) == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert "asked" not in result.rounds[0]


@pytest.mark.parametrize(
    "asked",
    [
        {"sample": 6, "network": tw.Network(mbit=0.01, sessions=tw.Sessions(on=5, off=5))},
        {"aggregate": tw.Median(), "attack": tw.SignFlip(0.2, scale=10), "expel": 1},
    ],
)
def test_a_sampler_is_asked_for_no_more_clients_than_are_there(asked: dict[str, Any]) -> None:
    result = train("FedAvg()", 6, sampler=Cyclic(), **asked)
    assert min(record["clients"] for record in result.rounds) < asked.get("sample", len(SIZES))


def test_a_run_with_a_sampler_goes_on_bit_for_bit(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"sample": 2, "sampler": PowerOfChoice(4), "checkpoint_every": 1}
    expression = "FedAvg(up=ErrorFeedback(TopK(0.2)))"
    train(expression, 2, out=tmp_path / "run", **asked)
    whole, parts = train(expression, **asked), train(expression, out=tmp_path / "run", resume=True, **asked)
    assert_same_model(whole, parts)
    assert list(whole.ledger) == list(parts.ledger)


def test_the_seconds_of_a_round_have_those_of_its_questions() -> None:
    network = tw.Network(1.0, latency=2.0)
    plain, asked = (train("FedAvg()", 1, network=network, **more) for more in ({}, {"sampler": PowerOfChoice(8)}))
    assert plain.rounds[0]["clock"] > 4.0
    assert asked.rounds[0]["clock"] > 8.0  # there and back, twice


class Weighed(Post):
    """Counts the bytes of blobs. Messages that ask for a name, or for nothing, are left out."""

    def __init__(self, other: Post) -> None:
        self.__dict__ |= other.__dict__
        self.crossed = {"up": 0, "down": 0}

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for number, message in zip(ids, messages, strict=True):
            if data := blob_of(message):
                self.crossed["down"] += len(data)
                if self.replies[number].has_content():
                    self.crossed["up"] += len(unpack(self.replies[number].content))
        return ids


@pytest.mark.parametrize("expression", ["FedAvg()", "FedAvg(up=EF21(TopK(0.2)), down=PerClient(TopK(0.3)))"])
def test_a_deployment_asks_as_a_simulation_does_and_bills_every_byte(expression: str, tmp_path: Path) -> None:
    grid = Weighed(post(expression, tmp_path))
    # All three are candidates: a deployment learns their sizes from their answers.
    result = serve(grid, expression, sample=2, sampler=PowerOfChoice(3))
    options: dict[str, Any] = {"test": blobs((60,))[0], "seed": 5, "workers": 1, "plan": "each"}
    options |= {"sample": 2, "sampler": PowerOfChoice(3)}
    algorithm = tw.parse(expression, {"lr": 0.2, "batch": 8})
    expected = tw.simulate(algorithm, mlp, blobs()[:3], 3, **options)
    assert torch.equal(result.params.flat, expected.params.flat)
    assert [e[:5] for e in sorted(result.ledger)] == [e[:5] for e in sorted(expected.ledger)]
    for way in ("up", "down"):
        assert result.ledger.bytes(way) == grid.crossed[way]
    assert [record["asked"] for record in result.rounds] == [3, 3, 3]


@pytest.mark.parametrize("word", ["question", "go"])
def test_a_server_that_is_killed_between_questions_and_answers_goes_on(word: str, tmp_path: Path) -> None:
    grid = post("FedAvg(up=EF21(TopK(0.2)))", tmp_path)

    def kill(node: int, message: Any, reply: Any) -> Any:
        begins = {"question": b"\0loss?", "go": b"\0go:"}[word]
        if message.metadata.group_id == "2" and unpack(message.content).startswith(begins):
            raise KeyboardInterrupt
        return reply

    options: dict[str, Any] = {"sample": 2, "sampler": PowerOfChoice(3)}
    grid.spoil = kill
    with pytest.raises(KeyboardInterrupt):
        serve(grid, "FedAvg(up=EF21(TopK(0.2)))", out=tmp_path / "run", **options)
    grid.spoil = lambda node, message, reply: reply
    result = serve(grid, "FedAvg(up=EF21(TopK(0.2)))", out=tmp_path / "run", **options)
    whole = serve(post("FedAvg(up=EF21(TopK(0.2)))", tmp_path / "other"), "FedAvg(up=EF21(TopK(0.2)))", **options)
    assert torch.equal(result.params.flat, whole.params.flat)


def test_an_answer_that_comes_while_clients_say_their_losses_takes_nobodys_place(tmp_path: Path) -> None:
    def deployment() -> Deployment:
        run = Deployment(FedAvg(), mlp, 3, sample=1, sampler=PowerOfChoice(3), states=tmp_path / "run/states")
        run.open(Folder(tmp_path / "run"), resume=True)
        run.save(Folder(tmp_path / "run"))
        return run

    nodes = [Node(FedAvg(), mlp, task, tmp_path / str(number)) for number, task in enumerate(blobs()[:3])]
    server = deployment()
    for client, question in server.begin([0, 1]).items():
        server.hear_loss(client, nodes[client].answer(question))
    ((first, word),) = server.proceed().items()
    early = nodes[first].answer(word)
    assert server.accept(first, early)

    server = deployment()  # it was killed before the round's end, and the client sends its answer again
    questions = server.begin()
    assert not server.accept(first, early)
    losses = {client: nodes[client].answer(question) for client, question in questions.items()}
    for client, said in losses.items():
        server.hear_loss(client, said)
    assert server.full
    calls = server.proceed()
    for client, said in losses.items():
        server.hear_loss(client, said)  # again: it is too late to be of use, and no fault of the client's
    for client, word in calls.items():
        assert server.accept(client, nodes[client].answer(word))
    record = server.end()
    assert (record["clients"], record["lost_replies"], record["dropped_replies"]) == (1, 0, 1)
    assert record["refused_replies"] == 0
    assert server.states.get(first).version == int(first in calls)


def test_a_loss_of_a_round_before_is_dropped_and_one_where_nobody_asks_refused(tmp_path: Path) -> None:
    nodes = [Node(FedAvg(), mlp, task, tmp_path / str(number)) for number, task in enumerate(blobs()[:3])]
    server = Deployment(FedAvg(), mlp, 3, sample=1, sampler=PowerOfChoice(3))
    said = {client: nodes[client].answer(question) for client, question in server.begin().items()}
    server.hear_loss(0, said[0])
    for client, word in server.proceed().items():
        server.accept(client, nodes[client].answer(word))
    server.end()
    server.begin()
    server.hear_loss(1, said[1])  # it was slow
    assert server.end()["refused_replies"] == 0

    plain = Deployment(FedAvg(), mlp, 3)
    for client, call in plain.begin().items():
        with pytest.raises(WireError, match=f"client {client}: "):
            plain.hear_loss(client, LOSS + nodes[client].answer(call))
    assert plain.end()["refused_replies"] == 3


def test_who_does_not_say_its_loss_does_not_take_part(tmp_path: Path, caplog: Any) -> None:
    grid, lies = post("FedAvg()", tmp_path), [b"\0loss=", b"\0loss=nonsense", b"no loss at all"]

    def spoil(node: int, message: Any, reply: Any) -> Any:
        from flwr.app import Message

        from thinwire.deploy.flower.post import pack

        if node == 12 and unpack(message.content).startswith(b"\0loss?"):
            return Message(pack(lies[int(message.metadata.group_id) - 1]), reply_to=message)
        return reply

    grid.spoil = spoil
    result = serve(grid, "FedAvg()", sample=2, sampler=PowerOfChoice(3))
    assert cohorts(result) == [[0, 2], [0, 2], [0, 2]]
    assert [record["refused_replies"] for record in result.rounds] == [1, 1, 1]


REFUSED: list[tuple[Mapping[str, Any], str]] = [
    ({"sampler": PowerOfChoice(2), "sample": 3}, "fewer than the sample=3 that take part"),
    ({"sampler": PowerOfChoice(3)}, "fewer than the sample=8 that take part"),
    ({"sampler": PowerOfChoice(9), "sample": 3}, "there are 8 clients"),
    ({"sampler": PowerOfChoice(4), "sample": 3, "buffer": tw.Buffered(2)}, "clients begin at any time"),
    ({"sampler": PowerOfChoice(4), "sample": 3, "privacy": tw.Privacy(1.0, 1.0)}, "drawn uniformly"),
    ({"sampler": PowerOfChoice(4), "sample": 3, "network": tw.Network(1.0, deadline=9.0)}, "questions have none"),
    ({"sampler": Wrong((0, 0)), "sample": 3}, "gave [0, 0]: 1 to 3 clients of those it was given, each once"),
    ({"sampler": Wrong(None), "sample": 3}, "gave None: 1 to 3 clients of those it was given, each once"),
    ({"sampler": Wrong((0, 1, 2, 3)), "sample": 3}, "1 to 3 clients"),
    ({"sampler": Wrong((9,)), "sample": 3}, "1 to 3 clients"),
    ({"sampler": Wrong(), "sample": 3}, "1 to 3 clients"),
    ({"sampler": PowerOfChoice(4), "cohort": [[0]]}, "the cohort is given"),
]


@pytest.mark.parametrize(("asked", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_has_no_meaning_is_refused(asked: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        train("FedAvg(weights='uniform')", 1, **asked)


def test_clients_that_add_in_secret_are_not_asked_and_auto_draws_uniformly() -> None:
    with pytest.raises(CombinationError, match="would tell their losses"):
        train("FedAvg(up=SecureSum(), weights='uniform')", 1, sample=3, sampler=PowerOfChoice(4))
    with pytest.raises(CombinationError, match="writes to single clients"):
        train("SoftPull(FedAvg())", 1, sample=3, sampler=PowerOfChoice(4))
    *tasks, _ = blobs((*SIZES, 60))
    with pytest.raises(ValueError, match="reckons with cohorts that are drawn uniformly"):
        tw.simulate(tw.Auto(0.5), mlp, tasks, 1, sample=3, sampler=PowerOfChoice(4))


@pytest.mark.parametrize("cohort", [[0.0, 1.7], [True, False], ["0"], [None]])
def test_clients_of_a_cohort_are_whole_numbers(cohort: Any) -> None:
    with pytest.raises(ValueError, match="it must name one or more of the 6 clients, each once"):
        check_cohort(cohort, 6)
    assert check_cohort([np.int64(5), torch.tensor(0)], 6) == [0, 5]
    with pytest.raises(ValueError, match="cohort=3: it is a list of the clients of each round"):
        check_cohorts(3, 6)
    with pytest.raises(ValueError, match="cohort=3: it must name one or more"):
        check_cohorts([[0], 3], 6)


GIVEN: list[tuple[dict[str, Any], str, str]] = [
    ({"sample": 4, "buffer": tw.Buffered(1)}, "FedAvg()", "Buffered(1) calls those who do not train"),
    ({"aggregate": tw.Krum(2)}, "FedAvg()", "aggregate=Krum(2) needs 7 replies a round"),
    ({"network": tw.Network(sessions=tw.Sessions())}, "FedAvg()", "says who is there"),
    ({}, "FedAvg(up=SecureSum(threshold=5), weights='uniform')", "no more answers than a client has neighbours"),
    ({"sample": 3}, "FedAvg(up=SecureSum(most=3), weights='uniform')", "give most=4"),
]


@pytest.mark.parametrize(("asked", "expression", "says"), GIVEN, ids=[says for *_, says in GIVEN])
def test_a_cohort_that_is_given_is_one_that_a_step_can_be_made_of(
    asked: dict[str, Any], expression: str, says: str
) -> None:
    """In a step, and before the first round where all are given."""
    *tasks, _ = blobs((*SIZES, 60))
    with (
        tw.Simulation(method(expression), mlp, tasks, workers=1, **asked) as run,
        pytest.raises(ValueError, match=re.escape(says)),
    ):
        run.step(cohort=[0, 2, 3, 5])
    assert not run.round
    if not asked.keys() & {"sample", "network"}:
        with pytest.raises(ValueError, match=re.escape(says)):
            tw.Simulation(method(expression), mlp, tasks, workers=1, cohort=[range(8), [0, 2, 3, 5]], **asked)
