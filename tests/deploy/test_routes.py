"""What a run is asked for, on every route to its clients: the bits of the simulation, or the simulation's refusal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thinwire as tw
from blobs import blobs, mlp
from thinwire import Buffered, Krum, Median, Privacy
from thinwire.deploy.client import ClientFiles, Node

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from test_serve import Post, _task  # noqa: F401  _task: a fixture of every test
from thinwire.deploy import flower

pytestmark = pytest.mark.timeout(600)

CLIENTS, ROUNDS, SEED = 5, 2, 5
SECRET = "FedAvg(up=SecureSum(clip=0.5, most=64), weights='uniform')"
UNIFORM = "FedAvg(weights='uniform')"

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("FedAvg()", {}),
    ("FedAvg()", {"clip": 0.1}),
    ("FedAvg()", {"clip": "auto"}),
    (UNIFORM, {"privacy": Privacy(0.1, 1.0)}),
    ("FedAvg()", {"aggregate": Median()}),
    ("FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6))", {"aggregate": Krum(1), "expel": 1}),
    ("FedAvg(up=ErrorFeedback(TopK(0.2)))", {"buffer": Buffered(CLIENTS)}),
    (SECRET, {}),
    (SECRET, {"privacy": Privacy(0.5, 1.0)}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    (SECRET, {"aggregate": Median()}),
    (SECRET, {"clip": 1.0}),
    (SECRET, {"clip": "auto"}),
    (SECRET, {"buffer": Buffered(2)}),
    ("FedAvg(up=SecureSum())", {}),
    ("SoftPull(FedAvg(), lam=0.6)", {"aggregate": Median()}),
    ("FedAvg()", {"privacy": Privacy(1.0, 1.0)}),
    (UNIFORM, {"privacy": Privacy(1.0, 1.0), "aggregate": Median()}),
    (UNIFORM, {"privacy": Privacy(1.0, 1.0), "clip": 1.0}),
    ("LUAR(FedAvg(), recycle=1)", {"buffer": Buffered(2)}),
]


def method(expression: str) -> tw.Algorithm:
    return tw.parse(expression, {"lr": 0.2, "batch": 8})


def give(request: tw.Local, task: tw.Task, key: tw.Key) -> tw.Trained:
    """In place of training, in thinwire."""
    return tw.Trained(request.x.map(lambda flat: moved(flat, key.client)), steps=1, loss=0.0)


def moved(values: Tensor, client: int | None) -> Tensor:
    assert client is not None
    return values * 0.9 + 0.01 * (client + 1)


def theirs(message: Message, context: Context) -> Message:
    """In place of training, as a train function of somebody's own."""
    client = context.node_id - 11
    state = message.content.array_records["arrays"].to_torch_state_dict()
    arrays = ArrayRecord({name: moved(value, client) for name, value in state.items()})  # type: ignore[arg-type]
    metrics = MetricRecord({"num-examples": len(blobs()[client]), "num-steps": 1, "train_loss": 0.0})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def own(expression: str, asked: dict[str, Any]) -> Privacy | None:
    """What clients see to themselves."""
    return asked.get("privacy") if "SecureSum" in expression else None


def nodes(app: ClientApp, folder: Path) -> Post:
    configs = {11 + n: {"partition-id": n, "folder": str(folder / str(n))} for n in range(CLIENTS)}
    return Post(dict.fromkeys(configs, app), configs)


def grid(expression: str, asked: dict[str, Any], folder: Path) -> Post:
    def make(context: Context) -> Node:
        task = blobs()[context.node_id - 11]
        return Node(method(expression), mlp, task, flower.folder_of(context), privacy=own(expression, asked))

    return nodes(flower.client_app(make), folder)


def simulated(expression: str, asked: dict[str, Any], train: Any = None) -> Tensor:
    options: dict[str, Any] = {"seed": SEED, "workers": 1, "plan": "each", "train": train}
    return tw.simulate(method(expression), mlp, blobs()[:CLIENTS], ROUNDS, **options, **asked).params.flat


def served(expression: str, asked: dict[str, Any], folder: Path) -> Tensor:
    post = grid(expression, asked, folder)
    return flower.serve(post, method(expression), mlp, CLIENTS, ROUNDS, seed=SEED, poll=0.0, **asked).params.flat


def as_a_strategy(expression: str, asked: dict[str, Any], folder: Path) -> Tensor:
    strategy = flower.Strategy(method(expression), mlp, CLIENTS, seed=SEED, poll=0.0, **asked)
    arrays = strategy.start(grid(expression, asked, folder), num_rounds=ROUNDS).arrays.to_torch_state_dict()
    return torch.cat([value.reshape(-1) for value in arrays.values()])


def with_the_mod(expression: str, asked: dict[str, Any], folder: Path) -> Tensor:
    app = ClientApp(mods=[flower.mod(method(expression), mlp, privacy=own(expression, asked))])
    app.train()(theirs)
    post = nodes(app, folder)
    return flower.serve(post, method(expression), mlp, CLIENTS, ROUNDS, seed=SEED, poll=0.0, **asked).params.flat


def by_hand(expression: str, asked: dict[str, Any], folder: Path) -> Tensor:
    algorithm, tasks = method(expression), blobs()[:CLIENTS]
    server, client = tw.start(algorithm, mlp, tasks, SEED)
    states = [client] * CLIENTS
    for _ in range(ROUNDS):
        replies = []
        if "SecureSum" in expression:
            server = tw.exchange_keys(algorithm, server, range(CLIENTS))
        for n, task in enumerate(tasks):
            reply, states[n] = tw.client_round(algorithm, server.view, states[n], task, n)
            replies.append(reply)
        server = tw.server_round(algorithm, server, replies, **asked)
    return algorithm.model(server.state).flat


Route = Callable[[str, dict[str, Any], Path], Tensor]
ROUTES: dict[str, tuple[Route, Any]] = {
    "serve": (served, None),
    "Strategy": (as_a_strategy, None),
    "mod": (with_the_mod, give),
    "hand": (by_hand, None),
}


def rows(table: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Each row on each route; rounds by hand are asked for a rule alone."""
    return [
        pytest.param(name, *row, id=f"{name}-{row[0]}-{row[1]}")
        for row in table
        for name in ROUTES
        if name != "hand" or row[1].keys() <= {"aggregate"}
    ]


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of a deployment are drawn when it begins: here they are those of a simulation."""
    monkeypatch.setattr("thinwire.deploy.server.secrets.token_hex", lambda count: str(SEED))
    monkeypatch.setattr("thinwire.deploy.server.secrets.randbits", lambda count: 0)

    def secret(files: ClientFiles) -> bytes:
        return hashlib.sha256(b"%d|%d" % (SEED, int(files.folder.parent.name))).digest()

    monkeypatch.setattr(ClientFiles, "noise", secret)


@pytest.mark.parametrize(("route", "expression", "asked"), rows(ASKED))
def test_what_a_simulation_does_every_route_does_to_the_bit(
    route: str, expression: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    take, train = ROUTES[route]
    found = take(expression, asked, tmp_path)
    assert torch.equal(found, simulated(expression, asked, train))
    plain = simulated(UNIFORM if expression == SECRET else expression, {}, train)
    moves = expression == SECRET or bool(asked.keys() & {"aggregate", "privacy"}) or asked.get("clip") == 0.1
    assert torch.equal(found, plain) != moves  # what was asked for was done


FEW = ("FedAvg()", {"aggregate": Krum(2)})  # by hand it is not known beforehand how many will reply


@pytest.mark.parametrize(("route", "expression", "asked"), [*rows(REFUSED), *rows([FEW])[:-1]])
def test_what_a_simulation_refuses_every_route_refuses_with_the_same_reason(
    route: str, expression: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"\w+") as refusal:
        simulated(expression, asked)
    with pytest.raises(type(refusal.value)) as found:
        ROUTES[route][0](expression, asked, tmp_path)
    assert str(found.value) == str(refusal.value)
    assert not list(tmp_path.iterdir())  # at once: no client was called


def test_by_hand_too_few_replies_for_a_rule_make_no_step(tmp_path: Path) -> None:
    algorithm = method(FEW[0])
    server, _ = tw.start(algorithm, mlp, blobs()[:CLIENTS], SEED)
    assert torch.equal(by_hand(*FEW, tmp_path), algorithm.model(server.state).flat)


def test_attacks_are_for_simulations_alone(tmp_path: Path) -> None:
    for route in (served, as_a_strategy, with_the_mod):
        with pytest.raises(TypeError, match="a run has no setting 'attack'"):
            route("FedAvg()", {"attack": tw.SignFlip(0.2)}, tmp_path)


def test_a_client_that_sees_to_nothing_itself_adds_nothing_to_a_sum_with_noise(tmp_path: Path, caplog: Any) -> None:
    app = ClientApp(mods=[flower.mod(method(SECRET), mlp)])
    app.train()(theirs)
    options: dict[str, Any] = {"seed": SEED, "poll": 0.0, "privacy": Privacy(0.5, 1.0)}
    result = flower.serve(nodes(app, tmp_path), method(SECRET), mlp, CLIENTS, 1, **options)
    assert result.rounds[0]["lost_replies"] == CLIENTS
    assert "the server runs with privacy=Privacy(clip=0.5, noise=1.0), and this client would see to None" in caplog.text


@pytest.mark.parametrize("wrap", ["{}", "Layerwise({})", "Partition({{'*': {}}})"])
def test_ranks_exchange_no_keys_so_they_have_no_secret_sum(wrap: str) -> None:
    with pytest.raises(tw.errors.CombinationError, match="ranks exchange no keys"):
        tw.ddp.Hook(tw.parse(wrap.format("SecureSum()")))
    with pytest.raises(tw.errors.CombinationError, match="needs a link that always keeps a part"):
        tw.ddp.DiLoCo(10, link=tw.parse(wrap.format("SecureSum()")))
