"""Models of clients' own: where they lie, evaluated there, found in the result, kept over a resume."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import thinwire as tw
from blobs import blobs, mlp, normed, simulate
from thinwire import LUAR, FedAvg, FedPara, Key, Local, LocalSGD, Params, Start, Supervised, Task
from thinwire.algorithms.fedavg import Reply
from tiers import tiers

WHOLE = LocalSGD(0.2, batch=None, steps=3)


class Kept(NamedTuple):
    y: Params


@dataclass(frozen=True)
class Aside(FedAvg):
    """FedAvg whose clients train a model of their own besides, from round to round, which nobody is sent."""

    personal_models = True

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return super().init(x, num_clients, key)._replace(client=Kept(x))

    def client(self, view: Any, state: Any, task: Task, key: Key) -> Any:
        shared = yield Local(view.x, self.local)
        own = yield Local(state.y, self.local)
        return Reply(shared.x - view.x), Kept(own.x)

    def model(self, server: Any, client: int | None = None, own: Any = None) -> Params:
        x: Params = server.x if client is None else own.y
        return x


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_a_model_that_lies_with_its_client_is_the_one_that_the_client_trains_alone() -> None:
    module, tasks = mlp(), blobs()[:3]
    together = simulate(Aside(WHOLE), module, 4, tasks=tasks, sample=3)
    assert torch.equal(together.params.flat, simulate(FedAvg(WHOLE), module, 4, tasks=tasks, sample=3).params.flat)
    for client, task in enumerate(tasks):
        alone = simulate(FedAvg(WHOLE), module, 4, tasks=[task], sample=1)
        torch.testing.assert_close(flat(together.personal(client)), alone.params.flat, atol=1e-6, rtol=0)
        assert (alone.params - together.params).norm() > 0.1


@pytest.mark.parametrize(
    "method", [Aside(WHOLE), LUAR(Aside(WHOLE), recycle=1), FedPara(Aside(WHOLE), ratio=1.0, rank=2)]
)
def test_every_client_is_evaluated_with_its_own_model(method: tw.Algorithm, tmp_path: Path) -> None:
    tasks = blobs()
    result = simulate(method, mlp, 3, tasks=tasks, client_tests=tasks, out=tmp_path)
    last = json.loads((tmp_path / "clients.jsonl").read_text().splitlines()[-1])
    for client, task in enumerate(tasks):
        inputs, targets = task.batch(torch.arange(len(task)))
        right = (result.predict(inputs, client).argmax(1) == targets).double().mean()
        assert last["accuracy"][client] == pytest.approx(float(right))
    models = [flat(result.personal(client)) for client in range(6)]
    assert not any(torch.equal(model, flat(result.module)) for model in models)
    assert not torch.equal(models[0], models[1])


def test_a_client_that_never_took_part_has_the_model_that_it_began_with() -> None:
    module = mlp()
    result = simulate(Aside(WHOLE), module, 1, sample=2)
    there = {entry.client for entry in result.ledger}
    assert len(there) == 2
    for client in range(6):
        assert torch.equal(flat(result.personal(client)), flat(module)) is (client not in there)


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_models_of_clients_go_on_where_a_run_stopped(states: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"client_tests": blobs(), "dropout": 0.3}
    straight = simulate(Aside(WHOLE), normed, 5, **options)
    simulate(Aside(WHOLE), normed, 2, out=tmp_path, states=states, **options)
    resumed = simulate(Aside(WHOLE), normed, 5, out=tmp_path, states=states, resume=True, **options)
    for client in range(6):
        assert torch.equal(flat(resumed.personal(client)), flat(straight.personal(client)))
    assert [r["client_loss"] for r in resumed.rounds] == [r["client_loss"] for r in straight.rounds]


def test_local_norm_statistics_make_a_model_of_a_clients_own(tmp_path: Path) -> None:
    tasks = blobs()
    result = simulate("FedAvg(buffers='local')", normed, 4, sample=6, client_tests=tasks, out=tmp_path)
    last = json.loads((tmp_path / "clients.jsonl").read_text().splitlines()[-1])
    for client, task in enumerate(tasks):
        inputs, targets = task.batch(torch.arange(len(task)))
        module = result.personal(client)
        assert torch.equal(flat(module), result.params.flat)
        loss = torch.nn.functional.cross_entropy(module(inputs), targets)
        assert last["loss"][client] == pytest.approx(float(loss.detach()), rel=1e-5)
    statistics = [result.personal(client).state_dict()["1.running_mean"] for client in (0, 1)]
    assert not torch.equal(*statistics)
    assert result.module.state_dict()["1.running_mean"].tolist() == [0.0] * 8  # those it started with


def test_what_is_asked_of_a_client_without_a_model_of_its_own_is_refused_in_one_line() -> None:
    shared = simulate("FedAvg()", rounds=1)
    with pytest.raises(ValueError, match=r"no client has a model of its own here; result.module is the one that all"):
        shared.personal(0)
    own = simulate(Aside(WHOLE), rounds=1)
    with pytest.raises(ValueError, match=r"^client 6: the run has clients 0 to 5$"):
        own.predict(torch.zeros(1, 6), client=6)
    inputs = torch.ones(2, 6)
    assert torch.equal(shared.predict(inputs), shared.module(inputs).detach())
    assert not shared.predict(inputs).requires_grad


def turned() -> tuple[list[Supervised], list[Supervised]]:
    """Six clients of three classes that have other names at each of them; examples to train on, and to test."""
    generator = torch.Generator().manual_seed(3)
    classes = torch.randn(6, 3, generator=generator)
    train, test = [], []
    for client in range(6):
        inputs = torch.randn(80, 6, generator=generator)
        targets = ((inputs @ classes).argmax(1) + client) % 3
        train.append(Supervised(inputs[:40], targets[:40]))
        test.append(Supervised(inputs[40:], targets[40:]))
    return train, test


# Chance is a third, and the shared model is right for .34 to .39.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "least"),
    tiers(
        [
            ("FedPer(LocalSGD(0.3, epochs=3))", 0.9),
            ("FedRep(LocalSGD(0.3, epochs=3), head_epochs=3)", 0.9),
            ("Ditto(LocalSGD(0.3, epochs=3))", 0.8),
            ("APFL(LocalSGD(0.3, epochs=3), alpha=0.9)", 0.8),
            ("APFL(LocalSGD(0.3, epochs=3), adaptive=True)", 0.8),
            ("PerFedAvg(LocalSGD(0.3, epochs=3), alpha=0.5)", 0.5),
            ("PerFedAvg(LocalSGD(0.3, epochs=3), alpha=0.5, hessian='HF')", 0.5),
            ("pFedMe(LocalSGD(0.3, epochs=3), lam=2.0, eta=0.1)", 0.65),
            ("FT(FedAvg(LocalSGD(0.3, epochs=3)), epochs=10)", 0.8),
        ],
        slow=4,
    ),
)
def test_a_clients_own_model_is_better_than_the_shared_one_where_classes_differ(expression: str, least: float) -> None:
    train, test = turned()
    method = tw.parse(expression, {"batch": 8})
    result = simulate(method, mlp, 6, tasks=train, client_tests=test, sample=6, evaluate_every=6)
    shared = [(result.predict(t.inputs).argmax(1) == t.targets).double().mean() for t in test]
    assert sum(shared) / 6 < 0.45
    assert result.rounds[-1]["client_accuracy"] > least


@pytest.mark.slow
def test_norms_at_home_are_better_than_shared_ones_where_inputs_differ() -> None:
    generator, train, test = torch.Generator().manual_seed(3), [], []
    classes = torch.randn(6, 3, generator=generator)
    for client in range(6):  # each sees the same points on a scale and from a place of its own
        points = torch.randn(80, 6, generator=generator)
        inputs, targets = points * (1 + client), (points @ classes).argmax(1)
        inputs = inputs + 4 * client * torch.randn(6, generator=generator)
        train.append(Supervised(inputs[:40], targets[:40]))
        test.append(Supervised(inputs[40:], targets[40:]))

    def model() -> torch.nn.Module:
        nn = torch.nn
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    reached = {}
    for expression in ("FedBN(LocalSGD(0.3, epochs=3), stay=('0.*',))", "FedAvg(LocalSGD(0.3, epochs=3))"):
        method = tw.parse(expression, {"batch": 8})
        result = simulate(method, model, 10, tasks=train, client_tests=test, sample=6, evaluate_every=10)
        reached[expression[:5]] = result.rounds[-1]["client_accuracy"]
    assert reached["FedBN"] > 0.8
    assert reached["FedAv"] < 0.5


# -- what a run leaves ----------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["FT(FedAvg())", "PerFedAvg(alpha=0.3)", "FT(FedPer())"])
def test_a_model_that_is_made_when_it_is_asked_for_predicts_and_is_saved(expression: str, tmp_path: Path) -> None:
    tasks = blobs()[:3]
    method = tw.parse(expression, {"lr": 0.2, "batch": 8})
    result = simulate(method, mlp, 2, tasks=tasks, sample=2, client_tests=tasks, out=tmp_path)
    x = tasks[2].batch(torch.arange(5))[0]
    with torch.no_grad():
        own = result.personal(2)(x)
    assert torch.equal(result.predict(x, 2), own)
    assert not torch.equal(result.predict(x), own)
    loaded = tw.load(tmp_path, mlp())
    assert torch.equal(loaded.predict(x, 2), own)


def test_models_made_of_examples_are_not_saved_without_tests_of_the_clients_own(tmp_path: Path) -> None:
    simulate(tw.FT(FedAvg(WHOLE)), mlp, 1, tasks=blobs()[:3], out=tmp_path)
    with pytest.raises(ValueError, match="makes a client's model of the client's examples, which are not here"):
        tw.load(tmp_path, mlp()).personal(0)


@pytest.mark.parametrize(
    "method", [FedAvg(WHOLE, buffers="local"), tw.FedPer(local=WHOLE), tw.APFL(local=WHOLE), tw.SoftPull(FedAvg(WHOLE))]
)
def test_a_loaded_client_that_never_took_part_is_the_one_of_the_result(method: tw.Algorithm, tmp_path: Path) -> None:
    tasks = blobs()[:4]
    result = simulate(method, normed, 3, tasks=tasks, sample=None, cohort=[[0, 1]] * 3, out=tmp_path)
    loaded = tw.load(tmp_path, normed())
    for client in range(4):
        expected = result.personal(client).state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in loaded.personal(client).state_dict().items())
    there, away = (torch.cat([v.flatten() for v in result.personal(k).state_dict().values()]) for k in (0, 3))
    assert not torch.equal(there, away)


def test_a_result_does_not_give_the_models_of_later_rounds() -> None:
    with tw.Simulation(Aside(WHOLE), mlp, blobs()[:3], workers=1) as run:
        early = run.until(2, run.step)
        before = flat(early.personal(0))
        late = run.until(3, run.step)
        assert not torch.equal(flat(late.personal(0)), before)
        with pytest.raises(ValueError, match="this result is of round 2, and the run has made 3"):
            early.personal(0)


@pytest.mark.parametrize("expression", ["PerFedAvg()", "pFedMe()", "FedRep()"])
def test_an_order_of_mini_batches_is_for_one_training_a_round(expression: str) -> None:
    tasks = [Supervised(t.inputs, t.targets, t.indices, order=[[[0, 1], [2, 3]]]) for t in blobs()[:2]]
    with pytest.raises(ValueError, match="has an order of mini-batches for the one training of a round"):
        simulate(tw.parse(expression, {"lr": 0.1, "batch": 8}), mlp, 1, tasks=tasks, sample=2)


def test_a_model_is_adapted_on_mini_batches_of_its_own_and_apfl_trains_twice_on_the_order() -> None:
    order: list[Any] = [[[0, 1], [2, 3]], []]
    ordered = [Supervised(t.inputs, t.targets, t.indices, order=order) for t in blobs()[:2]]
    tuned = [simulate(tw.FT(FedAvg(LocalSGD(0.1, batch=8)), epochs=e), mlp, 1, tasks=ordered, sample=2) for e in (1, 5)]
    assert torch.equal(tuned[0].params.flat, tuned[1].params.flat)
    assert not torch.equal(flat(tuned[0].personal(0)), flat(tuned[1].personal(0)))
    # APFL's v sees the batches of the order alone: examples that are in none change nothing.
    kept = []
    for task in ordered:
        inputs = task.inputs.clone()
        rows = torch.arange(len(inputs)) if task.indices is None else task.indices
        inputs[rows[4:]] = 0.0
        kept.append(Supervised(inputs, task.targets, task.indices, order=order))
    method = tw.APFL(local=LocalSGD(0.1, batch=2), adaptive=True)
    whole, part = (simulate(method, mlp, 1, tasks=tasks, sample=2) for tasks in (ordered, kept))
    assert torch.equal(flat(whole.personal(0)), flat(part.personal(0)))


def test_what_is_recorded_of_a_training_in_two_parts_is_of_both() -> None:
    method = tw.FedRep(local=LocalSGD(0.2, batch=8, epochs=2.0), head_epochs=1.0)
    result = simulate(method, mlp, 1, tasks=blobs()[:2], sample=2, record="layers")
    (layers,) = [record["layers"] for record in result.rounds]
    assert min(change for change, _ in layers.values()) > 0, layers
