"""A starting model that is known from the seed is sent to nobody, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.errors import RunError
from thinwire.run.envelope import read_answer, read_call
from thinwire.run.storage import Ends
from thinwire.wire import loads

LOCAL = "LocalSGD(0.1, batch=None, steps=2)"
METHODS = [
    f"FedAvg({LOCAL})",
    f"FedAvg({LOCAL}, down=EF21(TopK(0.2)))",
    f"SCAFFOLD({LOCAL})",
    f"Intrinsic(5, local={LOCAL})",
]
G = torch.Generator().manual_seed(0)
TASKS = [(torch.randn(12, 40, generator=G), torch.randint(0, 3, (12,), generator=G)) for _ in range(3)]
AWAY = [[0], [0, 1], [0], [0, 1, 2]]  # the second joins in round 2, the third in round 4


def model() -> nn.Module:
    return nn.Linear(40, 3)


@pytest.mark.parametrize("text", METHODS)
def test_the_model_is_the_same_and_first_contacts_cost_what_came_after_the_start(text: str) -> None:
    sent, known = (
        tw.simulate(tw.parse(text), model, TASKS, 4, start=start, cohort=AWAY, workers=1) for start in ("sent", "known")
    )
    assert known.params.flat.equal(sent.params.flat)
    assert [r["train_loss"] for r in known.rounds] == [r["train_loss"] for r in sent.rounds]
    assert known.rounds[0]["down_payload"] == 0
    assert sent.rounds[0]["down_payload"] > 480
    if "EF21" in text:  # of three more messages of a fifth, not the model
        assert known.rounds[1]["down_payload"] < sent.rounds[1]["down_payload"] - 300
    assert all(a["down_payload"] <= b["down_payload"] for a, b in zip(known.rounds, sent.rounds, strict=True))


@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("start", ["sent", "known"])
def test_clients_elsewhere_make_the_start_themselves(text: str, start: str, tmp_path: Path) -> None:
    expected = tw.simulate(tw.parse(text), model, TASKS, 4, start=start, cohort=AWAY, workers=1)
    run = Deployment(tw.parse(text), model, 3, seed=0, start=start)
    nodes = [Node(tw.parse(text), model, task, tmp_path / str(i)) for i, task in enumerate(TASKS)]
    for number, cohort in enumerate(AWAY):
        key = run.publish()
        for client in cohort:
            call, parcel = run.call_to(client)
            answer = read_answer(nodes[client].answer(call.write()), 1 << 20)
            assert answer.held
            assert parcel.size == read_call(call.write()).payload
            rx = run.add(answer, loads(answer.blob), run.states.get(client).rx)
            run.states.put(client, Ends(run.stream.version, rx, run.states.get(client).own))
            run.marks[client] = answer.state
        run.serve(key)
        run.finish(0.0, len(cohort), 0, False)
        assert run.round == number + 1
    assert run.algorithm.model(run.server).flat.equal(expected.params.flat)


def test_a_client_whose_start_is_another_refuses(tmp_path: Path) -> None:
    method = tw.parse(METHODS[0])
    run = Deployment(method, model, 3, seed=0, start="known")
    run.publish()
    other = nn.Linear(40, 3)
    with pytest.raises(RunError, match="another method or another model"):
        Node(method, other, TASKS[0], tmp_path).answer(run.call_to(0)[0].write())
