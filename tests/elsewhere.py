"""Three clients, of which two join later: in a simulation, and in a deployment with both ends in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import thinwire as tw
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.run.folder import Folder

Start = Literal["sent", "known"]
LOCAL = "LocalSGD(0.1, batch=None, steps=2)"
G = torch.Generator().manual_seed(0)
TASKS = [(torch.randn(12, 40, generator=G), torch.randint(0, 3, (12,), generator=G)) for _ in range(3)]
AWAY = [[0], [0, 1], [0], [0, 1, 2], [2]]  # the second joins in round 2, the third in round 4


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 3), nn.BatchNorm1d(3))  # 123 parameters and 6 more, 516 bytes; statistics of 24


def simulated(text: str, start: Start = "sent", module: Any = model, **more: Any) -> tw.Result:
    about: dict[str, Any] = {"start": start, "cohort": AWAY, "workers": 1, "plan": "each", **more}
    return tw.simulate(tw.parse(text), module, TASKS, len(AWAY), **about)


def deployed(text: str, start: Start, folder: Path) -> Deployment:
    server = Deployment(tw.parse(text), model, 3, seed=0, start=start, test=TASKS[0], states=folder / "s/states")
    server.open(Folder(folder / "s"), resume=True)
    return server


def node(text: str, client: int, folder: Path, module: nn.Module | None = None) -> Node:
    return Node(tw.parse(text), module or model, TASKS[client], folder / str(client))


def assert_the_same_elsewhere(text: str, start: Start, folder: Path) -> None:
    """A deployment sends as many bytes as a simulation, and comes to the same model bit for bit."""
    expected = simulated(text, start)
    for number, cohort in enumerate(AWAY, 1):  # the server is started anew in each round
        server = deployed(text, start, folder)
        for client, call in server.begin(cohort).items():
            assert server.accept(client, node(text, client, folder).answer(call))
        record = server.end()
        assert (record["up_bytes"], record["down_bytes"], record["down_payload"]) == tuple(
            expected.rounds[number - 1][name] for name in ("up_bytes", "down_bytes", "down_payload")
        )
        assert server.folder is not None
        server.folder.append(record, server.ledger.lines(number))
        server.save(server.folder)
    assert server.algorithm.model(server.server).flat.equal(expected.params.flat)
