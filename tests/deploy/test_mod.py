"""A train function of Flower's own, with the mod that sends its updates as a method's packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from blobs import blobs, mlp
from thinwire.errors import CombinationError

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from test_serve import Post, _task  # noqa: F401  _task: a fixture of every test
from thinwire.deploy import flower

pytestmark = pytest.mark.timeout(600)


def theirs(message: Message, context: Context) -> Message:
    """Three steps of plain gradient descent, as somebody has written them for Flower."""
    model = mlp()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    task = blobs()[context.node_id - 11]
    optimiser = torch.optim.SGD(model.parameters(), lr=float(message.content.config_records["config"]["lr"]))  # type: ignore[arg-type]
    for _ in range(3):
        optimiser.zero_grad()
        loss = task.loss(model, task.batch(torch.arange(len(task)))).mean()
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(task), "train_loss": float(loss.detach())})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def modded(expression: str, folder: Path) -> Post:
    app = ClientApp(mods=[flower.mod(tw.parse(expression, {"lr": 0.2}), mlp)])
    app.train()(theirs)
    nodes = (11, 12, 13)
    return Post(dict.fromkeys(nodes, app), {n: {"partition-id": n - 11, "folder": str(folder / str(n))} for n in nodes})


@pytest.mark.parametrize("wrap", ["FedAvg({})", "FedAvg({}, up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6))"])
def test_with_the_mod_a_train_function_of_flowers_does_what_plain_descent_does(wrap: str, tmp_path: Path) -> None:
    expression = wrap.format("LocalSGD(batch=None, epochs=3.0)")
    method = tw.parse(expression, {"lr": 0.2})
    expected = tw.simulate(method, mlp, blobs()[:3], 3, seed=5, workers=1, plan="each")
    result = flower.serve(modded(expression, tmp_path), method, mlp, 3, 3, seed=5, poll=0.0)
    torch.testing.assert_close(result.params.flat, expected.params.flat, rtol=1e-4, atol=1e-5)
    assert result.rounds[-1]["up_payload"] == pytest.approx(expected.rounds[-1]["up_payload"], abs=40)


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("FedProx(mu=0.1)", "prox"),
        ("FedAvg(LocalSGD(clip=1.0, warmup=3))", "warmup, clip"),
        ("FedAvg(LocalAdam(keep=True))", "memory, keep, LocalAdam"),
    ],
)
def test_the_mod_refuses_a_method_that_bends_local_steps(
    expression: str, what: str, tmp_path: Path, caplog: Any
) -> None:
    method = tw.parse(expression, {"lr": 0.2})
    flower.serve(modded(expression, tmp_path), method, mlp, 3, 1, seed=5, poll=0.0)
    assert f"asks for more than plain training ({what})" in caplog.text


def test_the_mod_leaves_other_messages_alone(tmp_path: Path) -> None:
    app = ClientApp(mods=[flower.mod(tw.FedAvg(), mlp)])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"seen": 1})}), reply_to=message)

    message = Message(RecordDict(), 11, "evaluate")
    message.metadata.__dict__["_message_id"] = "1"
    reply = app(message, Context(1, 11, {"name": "a"}, RecordDict(), {}, 0))
    assert reply.content.metric_records["m"]["seen"] == 1


def test_a_task_that_only_their_function_has_cannot_be_looked_at() -> None:
    from thinwire.deploy.flower.around import Unseen

    with pytest.raises(CombinationError, match="which only the train function has"):
        Unseen().batch(torch.arange(1))
    with pytest.raises(CombinationError, match="which only the train function has"):
        Unseen().loss(nn.Linear(1, 1), None)
