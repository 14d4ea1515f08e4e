"""Clients' own tests: what is tested, what is made of it, and how it comes back from clients that are elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from blobs import blobs, mlp, normed
from thinwire import Params, Simulation
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.errors import WireError
from thinwire.federated import own_tests  # its function `tested` would be taken for a test here
from thinwire.federated.envelope import read_answer
from thinwire.federated.own_tests import Model, over_clients, pack_metrics, unpack_metrics
from thinwire.run.folder import Folder
from tiers import tiers

METHODS = [
    "FedAvg()",
    "FedAvg(buffers='local')",
    "Ditto(lam=0.5)",
    "APFL(adaptive=True)",
    "pFedMe(lam=2.0, eta=0.25)",
    "LUAR(FedPer(), recycle=1, layers='tensors')",
    "FedBN(stay=('1.*',), up=LBGM(threshold=0.5))",
    "FT(FedAvg(opt=Adam(0.03)), epochs=2.0)",
    "FT(Ditto())",
    "PerFedAvg(alpha=0.3)",
    "FLSS(FedAvg(), rank=1, start=1, every=2)",
    "Intrinsic(40, subspaces=2, varying=True, epoch=2)",
    "FedSM(lam=0.6)",
    "FedSMExtra(lam=0.6, start=2)",
    "SoftPull(FedAvg(), lam=0.6)",
]
SIZES = (40, 56, 72)


def method(expression: str) -> tw.Algorithm:
    return tw.parse(expression, {"lr": 0.2, "batch": 8})  # type: ignore[no-any-return]


def dealt() -> tuple[list[tw.Supervised], list[tw.Supervised]]:
    """Three clients' examples, each with the last third kept for its test."""
    tasks = blobs(SIZES)
    cuts = [len(task) * 2 // 3 for task in tasks]
    own = [task.indices if task.indices is not None else torch.arange(len(task)) for task in tasks]
    train = [tw.Supervised(t.inputs, t.targets, i[:n]) for t, i, n in zip(tasks, own, cuts, strict=True)]
    return train, [tw.Supervised(t.inputs, t.targets, i[n:]) for t, i, n in zip(tasks, own, cuts, strict=True)]


class Parties:
    """A server and three clients, each with a test of its own."""

    def __init__(self, expression: str, folder: Path, model: Any = normed, **options: Any) -> None:
        self.method, self.model, self.folder, self.options = method(expression), model, folder, options
        self.tasks, self.tests = dealt()
        self.server = Deployment(self.method, model, 3, seed=5, test=blobs((30,))[0])
        self.server.open(Folder(folder / "server"), resume=True)

    def node(self, client: int, **options: Any) -> Node:
        options = {"test": self.tests[client]} | self.options | options
        return Node(self.method, self.model, self.tasks[client], self.folder / f"client-{client}", **options)

    def round(self) -> dict[str, Any]:
        for client, call in self.server.begin(range(3)).items():
            assert self.server.accept(client, self.node(client).answer(call))
        return self.server.end()


def own(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name.startswith("client_")}


# -- on a deployment --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("expression", tiers(METHODS, slow=5))
def test_a_round_begins_with_the_models_that_a_simulation_evaluates_after_the_round_before(
    expression: str, tmp_path: Path
) -> None:
    parties = Parties(expression, tmp_path)
    records = [parties.round() for _ in range(4)]
    train, tests = dealt()
    run = Simulation(
        method(expression), normed, train, client_tests=tests, test=blobs((30,))[0], seed=5, workers=1, plan="each"
    )
    with run.pool:
        expected = [run.step() for _ in range(3)]
    assert own(records[0]) == {}
    assert "client_loss" in expected[0]
    for found, wanted in zip(records[1:], expected, strict=True):
        if expression.startswith("SoftPull"):  # the mean of all models, which a simulation tests, no client knows
            wanted = {name: value for name, value in wanted.items() if not name.endswith("_shared")}
        assert own(found) == pytest.approx(own(wanted), rel=1e-6)
        assert found["evaluated_clients"] == 3
        assert found["accuracy"] is not None
    # What is tested moves nothing: the server's states are those of a run without tests.
    assert [record["train_loss"] for record in records[:3]] == [record["train_loss"] for record in expected]


def test_the_means_come_back_in_the_answers_header_and_are_billed(tmp_path: Path) -> None:
    with_test, without = Parties("FedAvg()", tmp_path / "a", mlp), Parties("FedAvg()", tmp_path / "b", mlp, test=None)
    for parties in (with_test, without):
        parties.round()
        parties.round()
    bills = [list(p.server.ledger.of("up", 2)) for p in (with_test, without)]
    # a version, 2 of a dict, names of 8 and 4 letters with 2 bytes each, two numbers of 9: 37, and 3 of a tensor
    assert [a.framing - b.framing for a, b in zip(*bills, strict=True)] == [40, 40, 40]
    assert [a.payload for a in bills[0]] == [b.payload for b in bills[1]]
    assert [p.server.ledger.of("up", 1)[0].framing for p in (with_test, without)] == [93, 93]
    assert "evaluated_clients" not in without.server.records[1]


def test_a_client_evaluates_in_the_rounds_that_it_is_told(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path, mlp, evaluate_every=2)
    assert ["client_loss" in parties.round() for _ in range(5)] == [False, False, True, False, True]
    with pytest.raises(ValueError, match=r"^evaluate_every=0: it must be at least 1$"):
        parties.node(0, evaluate_every=0)


def test_of_clients_without_a_test_there_is_nothing_in_the_lines(tmp_path: Path) -> None:
    parties = Parties("Ditto()", tmp_path)
    parties.round()
    found = {}
    for client, call in parties.server.begin(range(3)).items():
        answer = parties.node(client, **({} if client == 1 else {"test": None})).answer(call)
        found[client] = unpack_metrics(read_answer(answer, 1 << 20).metrics)
        assert parties.server.accept(client, answer)
    record = parties.server.end()
    assert record["client_loss"] == record["client_loss_worst"] == found[1]["loss"]
    assert (record["evaluated_clients"], record["client_loss_spread"]) == (1, 0.0)
    assert parties.server.by_client["accuracy"] == [None, found[1]["accuracy"], None]
    assert parties.server.by_client["loss_shared"] == [None, found[1]["loss_shared"], None]
    assert json.dumps(parties.server.by_client)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"accuracy_worst": 1.0}, "the name of a metric"),
        ({"Accuracy": 1.0}, "the name of a metric"),
        ({"a" * 33: 1.0}, "the name of a metric"),
        ({3: 1.0}, "the name of a metric"),
        ({"accuracy": 1}, "as metrics"),
        ({"accuracy": 1e30}, "as metrics"),
        ({"accuracy": torch.ones(2)}, "as metrics"),
        ({f"m{i}": 1.0 for i in range(25)}, "more values than are accepted"),
        ([1.0], "at most 24 metrics"),
        ({"accuracy": [1.0]}, "nested deeper than 1"),
        ({"accuracy": float("nan")}, "NaN or infinity"),
    ],
)
def test_metrics_that_lie_about_their_form_are_refused_with_their_answer(
    metrics: Any, said: str, tmp_path: Path
) -> None:
    parties = Parties("FedAvg()", tmp_path, mlp)
    parties.round()
    call = parties.server.begin(range(3))[0]
    answer = read_answer(parties.node(0).answer(call), 1 << 20)._replace(metrics=tw.dumps(metrics))
    with pytest.raises(WireError, match=said):
        parties.server.accept(0, answer.write())
    assert parties.server.refused == 1


def test_a_test_without_examples_and_one_that_does_not_fit_are_refused(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path, mlp)
    empty = tw.Supervised(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="this client's test has no examples"):
        parties.node(0, test=empty)
    call = parties.server.begin(range(3))[0]
    with pytest.raises(ValueError, match="its test: the model does not take inputs of"):
        parties.node(0, test=(torch.zeros(4, 7), torch.zeros(4, dtype=torch.int64))).answer(call)


# -- what is made of it -----------------------------------------------------------------


def test_over_clients_each_is_as_good_as_another() -> None:
    found = {0: {"accuracy": 0.5, "loss": 2.0, "loss_shared": 4.0}, 2: {"accuracy": 1.0, "loss": 1.0}}
    values, by_client = over_clients(found, 4)
    assert values == pytest.approx(
        {
            "client_accuracy": 0.75,
            "client_accuracy_spread": 0.25,
            "client_accuracy_p10": 0.55,
            "client_accuracy_worst": 0.5,
            "client_loss": 1.5,
            "client_loss_spread": 0.5,
            "client_loss_p10": 1.1,
            "client_loss_worst": 2.0,
            "client_loss_shared": 4.0,
        }
    )
    assert by_client["loss_shared"] == [4.0, None, None, None]
    assert by_client["accuracy"] == [0.5, None, 1.0, None]


def test_what_is_one_object_is_tested_once() -> None:
    x, y, z = (Params.of([("a", torch.full((1,), value))]) for value in (1.0, 2.0, 3.0))
    asked: list[float] = []

    def evaluate(x: Params, statistics: Params | None) -> dict[str, float]:
        asked.append(float(x.flat[0]))
        return {"loss": asked[-1]}

    assert own_tests.evaluate_models(evaluate, Model(x, None), Model(x, None), Model(x, None)) == {"loss": 1.0}
    assert asked == [1.0]
    found = own_tests.evaluate_models(evaluate, Model(x, None), Model(y, None), Model(y, None))
    assert (found, asked) == ({"loss": 1.0, "loss_before": 2.0, "loss_shared": 2.0}, [1.0, 1.0, 2.0])
    found = own_tests.evaluate_models(evaluate, Model(x, None), Model(x, None), Model(z, None))
    assert found == {"loss": 1.0, "loss_shared": 3.0}
    assert own_tests.evaluate_models(evaluate, Model(x, y), Model(x, None), Model(x, y)) == {
        "loss": 1.0,
        "loss_before": 1.0,
    }


def test_a_loss_that_is_no_number_stays_with_its_client() -> None:
    assert unpack_metrics(pack_metrics({"loss": float("inf"), "accuracy": 0.5})) == {"accuracy": 0.5}
    assert unpack_metrics(pack_metrics({"loss": float("nan")})) == {}
    assert unpack_metrics(b"") == {}


def test_a_line_says_what_clients_reach_before_and_after_fine_tuning_and_with_the_shared_model() -> None:
    train, tests = dealt()
    lines = {}
    for expression in ("FedAvg()", "FT(FedAvg(), epochs=3.0)"):
        result = tw.simulate(method(expression), mlp, train, 2, client_tests=tests, seed=5, workers=1)
        lines[expression] = result.rounds[-1]
        assert result.summary()["client_accuracy_p10"] == result.rounds[-1]["client_accuracy_p10"]
    plain, tuned = lines.values()
    assert "client_loss_before" not in plain
    assert tuned["client_loss_before"] == tuned["client_loss_shared"] == plain["client_loss"]
    assert tuned["client_loss"] != plain["client_loss"]
