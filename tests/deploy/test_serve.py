"""The loop of a ServerApp and the ClientApps of its nodes, with a post between them that delivers at once, or not."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from blobs import Chosen, blobs, mlp, normed
from thinwire.errors import CombinationError, RunError, WireError

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from thinwire.deploy import flower
from thinwire.deploy.client import Node
from thinwire.deploy.flower.mail import Mail
from thinwire.deploy.flower.post import PIECE, pack, unpack
from thinwire.deploy.server import Deployment
from thinwire.federated.secure.trips import read_question

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _task() -> None:
    """Which task of Flower's this process is: it says so in messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class Post(Grid):
    """A Grid whose nodes are ClientApps in this process. ``spoil`` may put something else in the place of a reply.

    Messages that ask nothing are not answered.
    """

    def __init__(self, apps: dict[int, ClientApp], configs: dict[int, dict[str, Any]]) -> None:
        self.apps, self.replies, self.sent = apps, dict[str, Message](), 0
        self.spoil: Callable[[int, Message, Message], Message | None] = lambda node, message, reply: reply
        self.keys: dict[int, bytes] = {}  # of nodes that have one
        self.contexts = {n: Context(1, n, configs[n], RecordDict(), {}, 0) for n in apps}

    def set_run(self, run: Run) -> None:
        raise AssertionError

    @property
    def run(self) -> Run:
        raise AssertionError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError

    def get_node_ids(self) -> Iterable[int]:
        raise AssertionError

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.apps]

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise AssertionError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.sent += 1
            node, number = message.metadata.dst_node_id, f"message-{self.sent}"
            message.metadata.__dict__["_message_id"] = number
            ids.append(number)
            if not message.content:
                continue
            try:
                reply: Message | None = self.apps[node](message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(1, str(error)), reply_to=message)
            assert reply is not None
            if (reply := self.spoil(node, message, reply)) is not None:
                self.replies[number] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]


def post(expression: str, folder: Path, model: Any = mlp, names: tuple[str, ...] = ("a", "b", "c")) -> Post:
    """Nodes 11, 12 and 13, clients of these names."""

    def make(context: Context) -> Node:
        task = blobs()[context.node_id - 11]
        return Node(tw.parse(expression, {"lr": 0.2, "batch": 8}), model, task, flower.folder_of(context))

    nodes = range(11, 11 + len(names))
    configs = {n: {"name": name, "folder": str(folder / name)} for n, name in zip(nodes, names, strict=True)}
    return Post({n: flower.client_app(make) for n in nodes}, configs)


def serve(grid: Grid, expression: str, rounds: int = 3, **options: Any) -> tw.Result:
    options = {"model": mlp, "clients": 3, "seed": 5, "poll": 0.0, "test": blobs((60,))[0]} | options
    return flower.serve(grid, tw.parse(expression, {"lr": 0.2, "batch": 8}), rounds=rounds, **options)


def simulated(expression: str, rounds: int = 3, model: Any = mlp, clients: int = 3) -> tw.Result:
    method = tw.parse(expression, {"lr": 0.2, "batch": 8})
    options: dict[str, Any] = {"test": blobs((60,))[0], "seed": 5, "workers": 1, "plan": "each"}
    return tw.simulate(method, model, blobs()[:clients], rounds, **options)


@pytest.mark.slow
def test_the_loop_gives_the_model_of_a_simulation_and_leaves_its_files(tmp_path: Path) -> None:
    expression = "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6))"
    result = serve(post(expression, tmp_path, normed), expression, model=normed, out=tmp_path / "run")
    assert torch.equal(result.params.flat, simulated(expression, model=normed).params.flat)
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.json", "rounds.jsonl", "ledger.jsonl", "summary.json", "model.safetensors", "checkpoint"} <= found


def test_a_server_that_is_killed_in_the_first_round_goes_on_with_the_run_that_clients_know(tmp_path: Path) -> None:
    expression = "FedAvg(up=ErrorFeedback(TopK(0.2)))"
    grid = post(expression, tmp_path)

    def kill(node: int, message: Message, reply: Message) -> Message:
        if node == 13 and (tmp_path / "c").exists():  # it has trained
            raise KeyboardInterrupt
        return reply

    grid.spoil = kill
    with pytest.raises(KeyboardInterrupt):
        serve(grid, expression, out=tmp_path / "run")
    known = sorted(path.name for path in (tmp_path / "a").iterdir() if path.is_dir())
    grid.spoil = lambda node, message, reply: reply
    result = serve(grid, expression, out=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "a").iterdir() if path.is_dir()) == known
    assert len(known) == 1
    assert torch.equal(result.params.flat, simulated(expression).params.flat)


def test_a_server_evaluates_when_it_is_asked_to_and_after_the_last_round(tmp_path: Path) -> None:
    heard: list[int] = []
    result = serve(
        post("FedAvg()", tmp_path), "FedAvg()", evaluate_every=2, on_round=lambda r: heard.append(r["round"])
    )
    assert ["accuracy" in record for record in result.rounds] == [False, True, True]
    assert heard == [1, 2, 3]


def test_a_server_that_is_asked_for_fewer_rounds_than_there_are_says_so(tmp_path: Path) -> None:
    serve(post("FedAvg()", tmp_path), "FedAvg()", 2, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"run has 2 rounds already: rounds=1 would be fewer"):
        serve(post("FedAvg()", tmp_path), "FedAvg()", 1, out=tmp_path / "run")


def test_a_client_is_believed_as_many_examples_as_are_said_for_its_name(tmp_path: Path, caplog: Any) -> None:
    grid, names = post("FedAvg()", tmp_path), ["a", "b", "c"]
    sizes = [len(task) for task in blobs()[:3]]
    believed = dict(zip(names, sizes, strict=True)) | {"b": sizes[1] - 1}
    result = serve(grid, "FedAvg()", 1, clients=names, most_examples=believed)
    assert f"{sizes[1]} examples, of which {sizes[1] - 1} are believed" in caplog.text
    assert (result.rounds[0]["lost_replies"], result.rounds[0]["refused_replies"]) == (1, 1)
    with pytest.raises(ValueError, match=r"most_examples=.*: one number, or one for each of clients="):
        serve(grid, "FedAvg()", 1, clients=names, most_examples={"a": 3})


def test_its_files_are_plotted_beside_a_simulated_run(tmp_path: Path) -> None:
    from thinwire.studies.read import arms

    serve(post("FedAvg()", tmp_path), "FedAvg()", out=tmp_path / "runs" / "deployed")
    method = tw.parse("SCAFFOLD()", {"lr": 0.2, "batch": 8})
    tw.simulate(method, mlp, blobs()[:3], 3, out=tmp_path / "runs" / "simulated", workers=1, plan="each")
    found = arms([tmp_path / "runs"])
    assert [arm.label for arm in found] == ["FedAvg()", "SCAFFOLD()"]


def test_a_client_that_fails_is_left_out_of_the_round(tmp_path: Path, caplog: Any) -> None:
    grid = post("FedAvg()", tmp_path)
    grid.spoil = lambda node, message, reply: (
        Message(Error(1, "no memory left"), reply_to=message)
        if node == 12 and message.metadata.group_id == "2" and unpack(message.content)
        else reply
    )
    result = serve(grid, "FedAvg()")
    assert [r["lost_replies"] for r in result.rounds] == [0, 1, 0]
    assert "client 1 failed: no memory left" in caplog.text


def test_a_client_that_does_not_answer_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    grid = post("FedAvg()", tmp_path)
    grid.spoil = lambda node, message, reply: (
        None if node == 12 and message.metadata.group_id == "2" and unpack(message.content) else reply
    )
    result = serve(grid, "FedAvg()", deadline=2.0, poll=0.05)
    assert [r["lost_replies"] for r in result.rounds] == [0, 1, 0]


class Slow(Post):
    """What node 12 sends in round 2 is announced, and the rest of it does not come."""

    def __init__(self, other: Post) -> None:
        self.__dict__ |= other.__dict__
        self.held, self.pulls, self.most, self.over = set[str](), 0, 0, threading.Event()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for number, message in zip(ids, messages, strict=True):
            if (message.metadata.dst_node_id, message.metadata.group_id) == (12, "2"):
                self.held.add(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        self.pulls += 1
        self.most = max(self.most, self.pulls)
        self.over.wait(600 if self.held & set(ids) else 0.01)
        self.pulls -= 1
        return super().pull_messages(ids)


def test_a_client_that_never_ends_its_reply_holds_up_no_other_and_no_deadline(tmp_path: Path) -> None:
    grid = Slow(post("FedAvg()", tmp_path))
    try:
        result = serve(grid, "FedAvg()", 2, deadline=2.0, poll=0.05)  # ends, though its last pull has not
    finally:
        grid.over.set()
    assert [(r["clients"], r["lost_replies"]) for r in result.rounds] == [(3, 0), (3, 1)]
    assert sorted(e.client for e in result.ledger.of("up", 2)) == [0, 2]


def test_however_many_are_waited_for_only_so_many_are_asked_for_at_once() -> None:
    grid = Slow(Post({}, {}))
    mail = Mail(grid, 0.05)
    for number in range(100):
        mail.expect(f"message-{number}")
    grid.replies["message-99"] = Message(Error(1, "no memory left"), reply_to=Message(RecordDict(), 11, "train"))
    assert "message-99" in mail.wait(10.0)  # in its turn
    assert 1 < grid.most <= 32
    grid.over.set()


def test_a_reply_is_looked_for_after_each_pause_and_handed_in_as_soon_as_it_is_there() -> None:
    class Late(Post):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            looks.append(time.monotonic())
            return super().pull_messages(message_ids) if len(looks) == 3 else []

    looks, grid, began = list[float](), Late({}, {}), time.monotonic()
    grid.replies["message-1"] = reply = Message(RecordDict(), reply_to=Message(RecordDict(), 11, "train"))
    mail = Mail(grid, 0.2)
    mail.expect("message-1")
    assert mail.wait(0.0) == {}
    assert looks == []  # no reply is so soon
    assert mail.wait(0.3) == {}
    ((sent, found),) = mail.wait(600.0).items()
    assert (sent, found.message) == ("message-1", reply)
    assert [earlier < later for earlier, later in pairwise([began + 0.2, *looks])] == [True] * 3
    assert [later - earlier >= 0.2 for earlier, later in pairwise(looks)] == [True] * 2
    assert looks[1] < found.seen <= looks[2]


def test_an_error_of_the_connection_is_raised_where_replies_are_awaited() -> None:
    class Gone(Post):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            raise ConnectionError("the SuperLink is gone")

    mail = Mail(Gone({}, {}))
    mail.expect("message-1")
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        mail.wait(1.0)


def test_a_client_without_its_state_is_opened_anew_in_the_same_round(tmp_path: Path) -> None:
    expression = "FedAvg(up=ErrorFeedback(TopK(0.2)))"
    grid = post(expression, tmp_path)

    def forget(node: int, message: Message, reply: Message) -> Message:
        if node == 13 and message.metadata.group_id == "1":
            for path in (tmp_path / "c").rglob("*.thinwire"):
                path.unlink()
        return reply

    grid.spoil = forget
    result = serve(grid, expression)
    assert [r["lost_replies"] for r in result.rounds] == [0, 0, 0]
    assert [e.used for e in result.ledger.of("up", 2) if e.client == 2] == [False, True]


def test_hostile_messages_are_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    grid, kinds = post("FedAvg()", tmp_path), iter(hostile())
    grid.spoil = lambda node, message, reply: (
        Message(next(kinds), reply_to=message) if node == 12 and unpack(message.content) else reply
    )
    rounds = len(list(hostile()))
    result = serve(grid, "FedAvg()", rounds)
    assert [(r["lost_replies"], r["refused_replies"]) for r in result.rounds] == [(1, 1)] * rounds


def hostile() -> Iterable[RecordDict]:
    piece = ConfigRecord({"thinwire": b"\1"})
    yield RecordDict()
    yield RecordDict({"0": MetricRecord({"a": 1.0})})
    yield RecordDict({"0": ArrayRecord({"thinwire": Array("uint8", (1,), "thinwire", b"\1")})})
    yield RecordDict({"0": ConfigRecord({"other": b"\1"})})
    yield RecordDict({"0": ConfigRecord({"thinwire": "text"})})
    yield RecordDict({"0": ConfigRecord({"thinwire": [b"\1"]})})
    yield RecordDict({"0": ConfigRecord({"thinwire": b"\1", "more": 1})})
    yield RecordDict({"0": piece, "more": piece})
    yield RecordDict({"1": piece})
    yield RecordDict({"0": piece, "1": MetricRecord({"a": 1.0})})
    yield RecordDict({"0": ConfigRecord({"thinwire": bytes(1 << 20)})})
    yield pack(b"")
    yield pack(bytes(100))


def test_a_name_belongs_to_the_node_that_said_it_first(tmp_path: Path, caplog: Any) -> None:
    grid = post("FedAvg()", tmp_path, names=("a", "b", "b", "c"))
    result = serve(grid, "FedAvg()", 1)
    assert "node 13 says that it is 'b', which another node is" in caplog.text
    assert result.rounds[0]["clients"] == 3


def test_where_clients_are_named_nobody_else_takes_part(tmp_path: Path, caplog: Any) -> None:
    grid = post("FedAvg()", tmp_path, names=("a", "mallory", "c"))
    result = serve(grid, "FedAvg()", 1, clients=["c", "a"])
    assert "node 12 says that it is 'mallory', which this run does not know" in caplog.text
    assert sorted(e.client for e in result.ledger.of("up")) == [0, 1]
    with pytest.raises(ValueError, match="the same name is there twice"):
        serve(grid, "FedAvg()", 1, clients=["a", "a"])


# Made with ssh-keygen -t ecdsa -b 384; the second is the same as a SuperNode gives it to Flower:
# ssh-keygen -e -m PKCS8 -f key.pub
PUB = """ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBIL1su0k8/imwyhnbOjABVv/gU2fUhfxW9+Oj8\
BHNHg5XHtsk8seOrcy7xaGPgMiQZKsUoNC7685y77gMHbeJKuG6s0F7D4I5hQptuNso7x3sg+4x2aXFts10wbgtWxolg== clinic-1"""
PEM = b"""-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEgvWy7STz+KbDKGds6MAFW/+BTZ9SF/Fb
346PwEc0eDlce2yTyx46tzLvFoY+AyJBkqxSg0LvrznLvuAwdt4kq4bqzQXsPgjm
FCm242yjvHeyD7jHZpcW2zXTBuC1bGiW
-----END PUBLIC KEY-----
"""


def moved(grid: Post, node: int, to: int, key: bytes) -> None:
    """A node is gone, and another, with this key, says its name."""
    grid.apps[to], grid.contexts[to] = grid.apps.pop(node), grid.contexts.pop(node)
    grid.keys[to] = key


def test_the_name_of_a_client_that_is_away_is_not_for_another_key(tmp_path: Path, caplog: Any) -> None:
    grid = post("FedAvg(up=LBGM())", tmp_path)
    grid.keys = {11: b"one", 12: b"two", 13: b"three"}
    serve(grid, "FedAvg(up=LBGM())", 1, out=tmp_path / "run")
    moved(grid, 12, 14, b"four")
    options: dict[str, Any] = {"out": tmp_path / "run", "deadline": 2.0}
    result = serve(grid, "FedAvg(up=LBGM())", 2, **options)  # started again: who has which name is in its folder
    assert "node 14 says that it is 'b', which is the name of a node with another key" in caplog.text
    assert sorted(e.client for e in result.ledger.of("up", 2)) == [0, 2]
    moved(grid, 14, 15, b"two")  # its own key, as another node
    result = serve(grid, "FedAvg(up=LBGM())", 3, **options)
    assert sorted(e.client for e in result.ledger.of("up", 3)) == [0, 1, 2]


def test_of_nodes_without_keys_the_number_says_whose_a_name_is(tmp_path: Path, caplog: Any) -> None:
    grid = post("FedAvg()", tmp_path)
    serve(grid, "FedAvg()", 1, out=tmp_path / "run")
    moved(grid, 12, 14, b"")
    result = serve(grid, "FedAvg()", 2, out=tmp_path / "run", deadline=2.0)
    assert "node 14 says that it is 'b', which is the name of a node with another key" in caplog.text
    assert sorted(e.client for e in result.ledger.of("up", 2)) == [0, 2]
    anyone = {"a": None, "b": None, "c": None}
    result = serve(grid, "FedAvg()", 3, out=tmp_path / "run", deadline=2.0, clients=anyone)
    assert sorted(e.client for e in result.ledger.of("up", 3)) == [0, 1, 2]


def test_a_name_may_be_given_to_a_key_beforehand(tmp_path: Path, caplog: Any) -> None:
    grid = post("FedAvg()", tmp_path, names=("a", "b", "b", "c"))
    grid.keys = {12: b"mallory", 13: PEM}
    result = serve(grid, "FedAvg()", 1, clients={"a": None, "b": PUB, "c": None})
    assert "node 12 says that it is 'b', which is the name of a node with another key" in caplog.text
    assert result.rounds[0]["clients"] == 3
    with pytest.raises(
        ValueError, match=r"clients=\{...: 'secret'\} is no public key: give the text of the node's .pub"
    ):
        serve(grid, "FedAvg()", 1, clients={"a": "secret", "b": PUB, "c": None})


def test_mods_that_need_arrays_of_floats_are_refused_with_the_reason() -> None:
    from flwr.client.mod.secure_aggregation import secaggplus_mod
    from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod

    def make(context: Context) -> Node:
        raise AssertionError

    for mod in (secaggplus_mod, fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)):
        with pytest.raises(
            CombinationError, match="works on a client's arrays of floats, and a packet here is an opaque"
        ):
            flower.client_app(make, [mod])
    assert isinstance(flower.client_app(make, [message_size_mod]), ClientApp)


def test_a_node_without_a_name_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="a client needs a name: flower-supernode --node-config"):
        flower.name_of(Context(1, 2, {}, RecordDict(), {}, 0))
    assert flower.name_of(Context(1, 2, {"partition-id": 7}, RecordDict(), {}, 0)) == "7"


def test_a_blob_is_cut_into_pieces_that_slow_links_deliver() -> None:
    data = torch.arange(100_000, dtype=torch.int32).numpy().tobytes()
    content = pack(data)
    sizes = [len(record["thinwire"]) for record in content.config_records.values()]  # type: ignore[arg-type]
    assert (sizes[:-1], sum(sizes)) == ([PIECE] * 12, 400_000)
    assert unpack(content, 400_000) == data
    with pytest.raises(WireError, match="a blob of at most 399999 bytes"):
        unpack(content, 399_999)


@pytest.mark.parametrize(
    ("mbit", "size"), [(0.0, PIECE), (0.1, PIECE), (0.24, 75_000), (1.0, 312_500), (50.0, 1 << 20)]
)
def test_on_a_faster_link_pieces_are_larger(mbit: float, size: int) -> None:
    data = bytes(3 << 20)
    content = pack(data, mbit)
    assert len(content["0"]["thinwire"]) == size  # type: ignore[arg-type,index]
    assert unpack(content) == data


@pytest.mark.parametrize(("mbit", "first"), [(None, (25, 25)), (2.0, (4, 2))])  # of 208,333 bytes, and of 625,000
def test_calls_and_answers_are_cut_for_the_uplink_that_was_measured_or_is_known(
    mbit: float | None, first: tuple[int, int], tmp_path: Path
) -> None:
    wide = lambda: nn.Sequential(nn.Linear(6, 20_000), nn.Linear(20_000, 3))  # noqa: E731  200,003 parameters
    grid, pieces = post("FedAvg()", tmp_path, wide), list[tuple[int, int]]()

    def look(node: int, message: Message, reply: Message) -> Message:
        if node == 12 and len(unpack(reply.content)) > 1000:
            pieces.append((len(message.content), len(reply.content)))
            if len(pieces) == 3:
                return Message(Error(1, "it took too long"), reply_to=message)
        return reply

    grid.spoil = look
    result = serve(grid, "FedAvg()", 5, model=wide, mbit=mbit)
    assert [r["lost_replies"] for r in result.rounds] == [0, 0, 1, 0, 0]
    # Of 800 kB. Nothing is between server and clients: the rate is what the processor does. After a loss it is not
    # to be relied on.
    assert (pieces[0], pieces[3]) == (first, (25, 25))
    assert all(n < 5 for i in (1, 2) for n in pieces[i])
    assert pieces[4][0] == 25  # what is lost once on its way down may be so again, whatever comes up
    assert pieces[4][1] < 5


def test_how_long_an_answer_was_on_its_way_is_what_its_senders_clock_says_and_five_seconds(
    tmp_path: Path, monkeypatch: Any
) -> None:
    grid, found = post("FedAvg()", tmp_path), dict[tuple[int, int], float | None]()
    behind = {11: 100.0, 12: -4.0, 13: -60.0}  # seconds

    def turn(node: int, message: Message, reply: Message) -> Message:
        if node != 13 or unpack(message.content) == b"":  # a clock that has been put right is not believed either
            reply.metadata.__dict__["_created_at"] -= behind[node]
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    accept = Deployment.accept

    def look(self: Deployment, client: int, data: bytes, seconds: float, sending: float | None) -> bool:
        found[client, self.round] = sending
        return accept(self, client, data, seconds, sending)

    grid.spoil = turn
    monkeypatch.setattr(Deployment, "accept", look)
    serve(grid, "FedAvg()", 2)
    assert len(found) == 6
    for (client, _), sending in found.items():
        if client == 2:
            assert sending is None
        else:
            assert sending is not None
            assert 5.0 <= sending - behind[11 + client] < 30.0  # the rest is the machine's


def test_without_flower_one_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("thinwire.deploy.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr.clientapp", None)
    with pytest.raises(ImportError, match=r'a Flower deployment needs flwr .*: pip install "thinwire\[flower\]"'):
        __import__("thinwire.deploy.flower")


SECRET = "FedAvg(up=SecureSum(clip=0.5, most=8), weights='uniform')"


def trip(message: Message) -> str:
    """Which question of a secure sum a message is; "" for a call or a question for a name."""
    question = read_question(unpack(message.content))
    return "" if question is None else question.trip


def test_the_loop_adds_replies_in_secret_and_a_client_lost_after_its_keys_is_not_in_the_sum(tmp_path: Path) -> None:
    grid, trips = post(SECRET, tmp_path), list[str]()

    def lose(node: int, message: Message, reply: Message) -> Message:
        trips.append(trip(message))
        called = not trips[-1] and unpack(message.content) != b""
        if node == 13 and called and grid.sent > 20:  # in the second round
            return Message(Error(1, "killed between shares and answer"), reply_to=message)
        return reply

    grid.spoil = lose
    result = serve(grid, SECRET, 2, out=tmp_path / "run", deadline=30)
    assert [record["lost_replies"] for record in result.rounds] == [0, 1]
    assert [trips.count(name) for name in ("keys", "shares", "reveal")] == [6, 6, 5]
    cohorts: Any = [([0, 1, 2], set()), ([0, 1, 2], {2})]
    plain = Chosen(tw.parse(SECRET, {"lr": 0.2, "batch": 8}), mlp, blobs()[:3], cohorts=cohorts, seed=5)
    plain.secured = None  # the sum of whole numbers without any mask
    with plain.pool:
        plain.step()
        plain.step()
        assert torch.equal(result.params.flat, plain.result().params.flat)


def test_a_question_that_is_not_answered_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    grid = post(SECRET, tmp_path)
    grid.spoil = lambda node, message, reply: None if (node, trip(message)) == (12, "shares") else reply
    result = serve(grid, SECRET, 1, deadline=1.0)
    assert result.rounds[0]["lost_replies"] == 1
    assert result.rounds[0]["seconds"] > 1.0


@pytest.mark.parametrize("what", ["the call", "the answer"])
def test_a_message_that_is_lost_without_a_word_is_sent_again(what: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("thinwire.deploy.flower.nodes.PROBE", 0.1)
    monkeypatch.setattr("thinwire.deploy.flower.nodes.OVERTAKE", 0.0)
    expression, calls = "FedAvg(up=EF21(TopK(0.5)))", list[bytes]()
    grid = Silent(post(expression, tmp_path), what, calls)
    result = serve(grid, expression, poll=0.05, deadline=60.0)
    assert [record["lost_replies"] for record in result.rounds] == [0, 0, 0]
    assert torch.equal(result.params.flat, simulated(expression).params.flat)
    assert len(calls) == 2
    assert calls[0] == calls[1]
    assert [e.retries for e in result.ledger.of("down", 2) if e.client == 1] == [len(calls[0])]
    assert sum(e.retries for e in result.ledger) == len(calls[0])


@pytest.mark.parametrize(("overtake", "calls"), [(60.0, 1), (0.0, 2)])
def test_an_answer_that_a_later_reply_has_overtaken_counts_once(
    overtake: float, calls: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("thinwire.deploy.flower.nodes.PROBE", 0.1)
    monkeypatch.setattr("thinwire.deploy.flower.nodes.OVERTAKE", overtake)
    grid = Overtaken(post("FLSS(FedAvg(), rank=1, start=1, every=1)", tmp_path), calls)
    result = serve(grid, "FLSS(FedAvg(), rank=1, start=1, every=1)", poll=0.05, deadline=60.0)
    assert len(grid.calls) == calls
    for what in ("lost", "refused", "dropped"):
        assert [record[f"{what}_replies"] for record in result.rounds] == [0, 0, 0]
    assert torch.equal(result.params.flat, simulated("FLSS(FedAvg(), rank=1, start=1, every=1)").params.flat)


def blob_of(message: Message) -> bytes:
    """What a message carries; nothing where it asks nothing."""
    return unpack(message.content) if message.content else b""


class Overtaken(Post):
    """Of round 2 the answers of node 12 come when it has said its name since, and has been called so many times."""

    def __init__(self, other: Post, times: int) -> None:
        self.__dict__ |= other.__dict__
        self.times, self.calls, self.named = times, list[str](), 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages, ids = list(messages), list(super().push_messages(messages))
        for number, message in zip(ids, messages, strict=True):
            if (message.metadata.dst_node_id, message.metadata.group_id) == (12, "2"):
                self.calls += [number] if blob_of(message) else []
                self.named += bool(self.calls) and bool(message.content) and not blob_of(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        late = len(self.calls) < self.times or self.named < 2
        return super().pull_messages([m for m in message_ids if not late or m not in self.calls])


class Silent(Post):
    """Of round 2 the first call to node 12 does not come, or its answer does not, and nobody says so."""

    def __init__(self, other: Post, what: str, calls: list[bytes]) -> None:
        self.__dict__ |= other.__dict__
        self.what, self.calls = what, calls

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list[str]()
        for message in messages:
            data, to = blob_of(message), (message.metadata.dst_node_id, message.metadata.group_id)
            lost = bool(data) and to == (12, "2") and not self.calls
            self.calls += [data] if data and to == (12, "2") else []
            if lost and self.what == "the call":
                self.sent += 1
                ids.append(f"message-{self.sent}")
                continue
            ids += super().push_messages([message])
            if lost:
                del self.replies[ids[-1]]
        return ids


def test_a_server_that_is_upgraded_in_mid_run_goes_on_and_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    expression, grid = "FedAvg(up=EF21(TopK(0.5)))", post("FedAvg(up=EF21(TopK(0.5)))", tmp_path)
    for version, rounds in (("0.1.0+gold", 2), ("0.2.0+gnew", 4)):
        monkeypatch.setattr("thinwire.run.identity.code_version", lambda version=version: version)
        result = serve(grid, expression, rounds, out=tmp_path / "run")
    assert torch.equal(result.params.flat, simulated(expression, 4).params.flat)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [version.split(",")[0] for version in about["versions"]] == ["thinwire 0.1.0+gold", "thinwire 0.2.0+gnew"]


@pytest.mark.slow
def test_of_thirty_two_nodes_of_which_some_fail_the_model_is_that_of_the_replies_that_came(
    tmp_path: Path,
) -> None:
    expression, names, draw = "FedAvg(up=EF21(TopK(0.5)))", [f"site-{i}" for i in range(32)], random.Random(4)
    tasks = blobs((12,) * 32)

    def make(context: Context) -> Node:
        task = tasks[context.node_id - 11]
        return Node(tw.parse(expression, {"lr": 0.2, "batch": 8}), mlp, task, flower.folder_of(context))

    configs = {11 + i: {"name": name, "folder": str(tmp_path / name)} for i, name in enumerate(names)}
    grid = Post({node: flower.client_app(make) for node in configs}, configs)
    grid.spoil = lambda node, message, reply: (
        Message(Error(1, "cut"), reply_to=message) if unpack(message.content) and draw.random() < 0.2 else reply
    )
    result = serve(grid, expression, 4, clients=32, sample=24, out=tmp_path / "run")
    came = [[e.client for e in result.ledger.of("up", t) if e.used] for t in (1, 2, 3, 4)]
    assert all(12 <= len(set(clients)) < 24 for clients in came)
    method, options = tw.parse(expression, {"lr": 0.2, "batch": 8}), {"seed": 5, "workers": 1, "plan": "each"}
    expected = tw.simulate(method, mlp, tasks, 4, cohort=came, **options)  # type: ignore[arg-type]
    assert torch.equal(result.params.flat, expected.params.flat)


def test_with_a_buffer_the_loop_steps_by_as_many_answers_as_that_holds(tmp_path: Path) -> None:
    result = serve(post("FedAvg()", tmp_path), "FedAvg()", 4, buffer=tw.Buffered(2), out=tmp_path / "run")
    assert [(r["clients"], r["lost_replies"], r["in_flight"]) for r in result.rounds] == [(2, 0, 1)] * 4
    called, answered = (len([e for e in result.ledger.of(way) if e.payload]) for way in ("down", "up"))
    assert (called, answered) == (3 + 2 * 3, 2 * 4)  # nobody is called while at work


def test_with_a_buffer_a_client_that_fails_or_is_silent_is_called_again(tmp_path: Path) -> None:
    grid = post("FedAvg()", tmp_path)

    def spoil(node: int, message: Message, reply: Message) -> Message | None:
        if unpack(message.content) == b"":
            return reply
        return {11: reply, 12: Message(Error(1, "full"), reply_to=message), 13: None}[node]

    grid.spoil = spoil
    result = serve(grid, "FedAvg()", 2, buffer=tw.Buffered(2), deadline=1.0)
    assert [(r["clients"], r["lost_replies"], r["in_flight"]) for r in result.rounds] == [(3, 2, 0)] * 2


def test_a_server_that_goes_on_waits_for_the_clients_that_are_at_work(tmp_path: Path) -> None:
    options: dict[str, Any] = {"buffer": tw.Buffered(2), "out": tmp_path / "run"}
    serve(post("FedAvg()", tmp_path), "FedAvg()", 2, **options)
    grid, looks = post("FedAvg()", tmp_path), list[int]()

    def late() -> Iterable[NodeInfo]:
        looks.append(len(looks))
        return [NodeInfo(node_id=n) for n in grid.apps if n != 13 or len(looks) > 3]

    grid.get_nodes = late  # type: ignore[method-assign]
    result = serve(grid, "FedAvg()", 3, **options)
    (record,) = result.rounds[2:]
    assert (record["clients"], record["lost_replies"], record["in_flight"]) == (2, 0, 1)
    assert len([e for e in result.ledger.of("down", 3) if e.retries]) == 1
