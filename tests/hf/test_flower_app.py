"""examples/flower/adapters: an adapter trained by three nodes is the one that a simulation trains."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from places import ROOT
from tiny import small_news

pytest.importorskip("flwr")
pytest.importorskip("peft")

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from test_serve import Post
from thinwire.deploy import flower

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
APP = ROOT / "examples/flower/adapters"
CODED = "TransformCoding(200)"
METHOD = f"FedAvg(LocalAdamW(0.01, batch=8, steps=10), up=ErrorFeedback({CODED}), down=PerClient({CODED}))"


def config(**more: Any) -> dict[str, Any]:
    """The app's own configuration, and what ``--run-config`` changes."""
    return tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | more


@pytest.mark.slow
def test_three_nodes_train_the_adapter_that_a_simulation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    monkeypatch.syspath_prepend(APP)
    from finetune import node, server, task

    about = {"model": "minilm", "data": "ag_news", "clients": 3, "rounds": 3, "rank": 4, "poll": 0.0}
    chosen = config(method=METHOD, out=str(tmp_path / "run"), **about)
    contexts = {
        11 + n: Context(1, 11 + n, {"partition-id": n, "folder": str(tmp_path / str(n))}, RecordDict(), chosen, 0)
        for n in range(3)
    }
    with small_news(tmp_path):
        nodes = {number: node.client(context) for number, context in contexts.items()}
        grid = Post({number: flower.client_app(lambda c: nodes[c.node_id]) for number in nodes}, {n: {} for n in nodes})
        grid.contexts = contexts
        server.main(grid, Context(1, 0, {}, RecordDict(), chosen, 0))
        parts = task.problem(chosen)
        how = {"sample": 2, "start": "known", "workers": 1, "plan": "each", "test": parts.test}
        same = tw.simulate(task.method(chosen), parts.model, parts.tasks, 3, **how)
    told = capsys.readouterr().out
    assert told.count("round ") == 3
    run = tw.load(tmp_path / "run", same.module)
    assert tw.Params.trainable(run.module).flat.equal(same.params.flat)
    sent, dense = (
        int(n.replace(",", "")) for n in re.search(r"([\d,]+) bytes; as 32-bit floats ([\d,]+)", told).groups()
    )
    # 3 rounds of 2 clients, both ways, 4 bytes of 2 x 4 x (64 + 64) of adapters and a head of 4 x 64 + 4
    assert dense == 3 * 2 * 2 * 4 * (2 * 4 * 128 + 260)
    assert 3 * 2 * 200 < sent < dense / 2
    assert (tmp_path / "run/adapter/adapter_model.safetensors").exists()


def test_the_apps_configuration_is_the_recipe_at_a_hundredth() -> None:
    found = config()
    assert {name: found[name] for name in ("rank", "clients", "sample", "rounds")} == {
        "rank": 32,
        "clients": 20,
        "sample": 2,
        "rounds": 200,
    }
    method = tw.parse(found["method"])
    assert (method.up.inner.bytes, method.down.inner.bytes) == (73_728, 73_728)  # of 4 x 1,843,200
