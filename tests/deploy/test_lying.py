"""Nodes that lie, under a rule in place of the mean: the deployment is the attacked simulation, killed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from blobs import blobs, mlp
from thinwire import CenteredClip, Krum, Median, MultiKrum
from thinwire.deploy.client import Node
from thinwire.federated.client import ClientState, Manner, Reply, Turn, one_round
from thinwire.federated.hostile import Hostile
from thinwire.federated.messages import Form
from thinwire.federated.stream import View
from thinwire.key import Key
from thinwire.train.slot import Slot

pytest.importorskip("flwr")

from flwr.app import Context, Message

from test_serve import Post, _task  # noqa: F401  _task: a fixture of every test
from thinwire.deploy import flower
from thinwire.deploy.flower.post import unpack

pytestmark = pytest.mark.timeout(600)

CLIENTS, ROUNDS, SEED = 6, 5, 5

LIES: list[tuple[str, Any, Any]] = [
    ("FedAvg()", Median(), tw.SignFlip(0.2, scale=10)),
    ("FedAvg()", Krum(1), tw.GaussianNoise(0.2, scale=10)),
    ("FedAvg(up=LBGM(threshold=0.9))", MultiKrum(1), tw.RhoFlip(0.2, scale=10)),
    ("FedAvg(up=ErrorFeedback(TopK(0.2)))", CenteredClip(), tw.ResidualFlip(0.2, scale=10)),
]


class Lying(Node):
    """A client that does what the attack says, where the attack has drawn it."""

    attack: Any

    def round(self, slot: Slot, form: Form, view: View, own: ClientState, key: Key) -> Reply:
        hostile = Hostile.of(self.attack, form, CLIENTS, SEED)
        return one_round(self.algorithm, form, slot, Turn(self.task, view, own, key), Manner(hostile=hostile))


def method(expression: str) -> tw.Algorithm:
    return tw.parse(expression, {"lr": 0.2, "batch": 8})


def grid(expression: str, attack: Any, folder: Path) -> Post:
    def make(context: Context) -> Node:
        client = context.node_id - 11
        node = Lying(method(expression), mlp, blobs()[client], flower.folder_of(context))
        node.attack = attack
        return node

    configs = {11 + n: {"partition-id": n, "folder": str(folder / str(n))} for n in range(CLIENTS)}
    return Post(dict.fromkeys(configs, flower.client_app(make)), configs)


def about(result: tw.Result) -> list[list[Any]]:
    """Who was far off, who again and again, who is left out, and how good the model was, round by round."""
    return [[record.get(name) for name in ("far", "again", "expelled", "accuracy")] for record in result.rounds]


@pytest.mark.parametrize(("expression", "rule", "attack"), LIES, ids=[f"{rule}-{lie}" for _, rule, lie in LIES])
def test_a_node_that_lies_is_named_and_left_out_as_in_a_simulation_whatever_kills_the_server(
    expression: str, rule: Any, attack: Any, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"aggregate": rule, "expel": 3, "seed": SEED, "test": blobs((60,))[0]}
    more: dict[str, Any] = {"attack": attack, "workers": 1, "plan": "each"}
    expected = tw.simulate(method(expression), mlp, blobs(), ROUNDS, **asked, **more)
    post, killed = grid(expression, attack, tmp_path), set[str]()

    def kill(node: int, message: Message, reply: Message) -> Message:
        number = message.metadata.group_id
        if node == 13 and number in ("2", "4") and number not in killed and unpack(message.content):
            killed.add(number)
            raise KeyboardInterrupt
        return reply

    post.spoil = kill
    deploy: dict[str, Any] = {"poll": 0.0, "out": tmp_path / "run"}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            flower.serve(post, method(expression), mlp, CLIENTS, ROUNDS, **asked, **deploy)
    result = flower.serve(post, method(expression), mlp, CLIENTS, ROUNDS, **asked, **deploy)
    assert killed == {"2", "4"}
    assert torch.equal(result.params.flat, expected.params.flat)
    assert about(result) == about(expected)
    if type(attack) in (tw.SignFlip, tw.GaussianNoise):  # a lie about what is remembered is as good as its memory
        (liar,) = attack.hostile(CLIENTS, SEED)
        assert [record.get("expelled") for record in result.rounds] == [None, None, [liar], [liar], [liar]]
        assert result.rounds[2]["again"] == [[liar, 3]]
        assert liar not in [entry.client for entry in result.ledger.of("down", 4)]
    honest = tw.simulate(method(expression), mlp, blobs(), ROUNDS, seed=SEED, workers=1, plan="each", aggregate=rule)
    assert not torch.equal(result.params.flat, honest.params.flat)  # it did lie
