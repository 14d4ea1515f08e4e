"""A starting model that is known from the seed is sent to nobody, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from elsewhere import LOCAL, TASKS, Start, assert_the_same_elsewhere, deployed, model, node, simulated
from thinwire.errors import OutOfSync, RunError, WireError
from thinwire.federated.envelope import read_call
from thinwire.problem import Problem
from thinwire.studies.predict import Rehearsal
from thinwire.wire import Several
from tiers import tiers

METHODS = [
    f"FedAvg({LOCAL})",
    f"FedAvg({LOCAL}, down=EF21(TopK(0.2)))",
    f"SCAFFOLD({LOCAL})",
    f"Intrinsic(5, subspaces=2, varying=True, epoch=2, local={LOCAL})",
    f"FetchSGD(60, 5, known=True, local={LOCAL})",
    f"FLSS(FedAvg({LOCAL}), rank=1, start=1)",
    f"LUAR(FedAvg({LOCAL}), recycle=1, layers='tensors')",
    f"SoftPull(FedAvg({LOCAL}), personal=EF21(TopK(0.2)))",
    f"SoftPull(FedAvg({LOCAL}))",
    f"FedSM(local={LOCAL}, selector='mlp')",
    f"LUAR(FedAvg({LOCAL}), recycle=1, layers='tensors', both=True)",
]


@pytest.mark.parametrize("text", METHODS)
def test_the_model_is_the_same_and_nobody_is_sent_the_start(text: str) -> None:
    sent, known = simulated(text, "sent"), simulated(text, "known")
    assert known.params.flat.equal(sent.params.flat)
    assert [r["train_loss"] for r in known.rounds] == [r["train_loss"] for r in sent.rounds]
    assert known.rounds[0]["down_payload"] == 0
    assert known.rounds[0]["down_floats"] == 0
    assert sent.rounds[0]["down_payload"] > (500 if "known" not in text else 0)
    assert all(a["down_payload"] <= b["down_payload"] for a, b in zip(known.rounds, sent.rounds, strict=True))
    if "EF21" in text:  # the second client is sent differences, a fifth of the entries, and not the model
        assert known.rounds[1]["down_payload"] < sent.rounds[1]["down_payload"] - 300


@pytest.mark.slow
@pytest.mark.parametrize("start", ["sent", "known"])
@pytest.mark.parametrize("text", tiers(METHODS, slow=4))
def test_clients_elsewhere_make_the_start_themselves(text: str, start: Start, tmp_path: Path) -> None:
    assert_the_same_elsewhere(text, start, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("text", [METHODS[1], METHODS[7]])
def test_a_client_that_lost_what_it_held_begins_anew_with_the_model_of_a_start_that_is_sent(
    text: str, tmp_path: Path
) -> None:
    models = []
    for start in ("sent", "known"):
        server = deployed(text, start, tmp_path / start)  # type: ignore[arg-type]
        for number in range(3):
            for client, call in server.begin(range(3)).items():
                disk = f"{start}{number}" if client == 1 else start  # client 1 has a new one each time
                found = node(text, client, tmp_path / disk)
                try:
                    assert server.accept(client, found.answer(call))
                except OutOfSync:
                    call = server.reopen(client)
                    assert read_call(call).base == 0
                    assert server.accept(client, found.answer(call))
            server.end()
        models.append(server.algorithm.model(server.server).flat)
    assert models[0].equal(models[1])


def test_a_client_that_begins_elsewhere_refuses(tmp_path: Path) -> None:
    call = deployed(METHODS[0], "known", tmp_path).begin([0])[0]
    other = model()  # the same layers, and one entry of one of them is the next float
    with torch.no_grad():
        first = next(other.parameters()).view(-1)
        first[0] = torch.nextafter(first[0], torch.tensor(1e9))
    for begins in (nn.Linear(40, 3), other):
        with pytest.raises(RunError, match="another method or another model"):
            node(METHODS[0], 0, tmp_path / type(begins).__name__, begins).answer(call)


def test_a_call_that_leaves_out_what_a_client_needs_is_refused(tmp_path: Path) -> None:
    for text, start in ((METHODS[0], "sent"), (METHODS[8], "sent"), (METHODS[8], "known")):
        call = read_call(deployed(text, start, tmp_path / text[:3] / start).begin([0])[0])  # type: ignore[arg-type]
        bare = call._replace(pieces=Several([], call.pieces.like))
        with pytest.raises(WireError, match="what a client misses expected"):
            node(text, 0, tmp_path).answer(bare.write())
        with pytest.raises(WireError, match="what a client misses expected"):
            read_call(bare._replace(snapshot=True).write())


def test_a_run_goes_on_with_the_start_that_it_began_with(tmp_path: Path) -> None:
    deployed(METHODS[0], "known", tmp_path)
    with pytest.raises(RunError, match="start"):
        deployed(METHODS[0], "sent", tmp_path)


def test_a_prediction_leaves_the_start_out() -> None:
    problem = Problem(model, [tw.Supervised(*task) for task in TASKS], None)
    sent, known = (
        Rehearsal(problem, 2, None, start=start).predict(tw.parse(METHODS[0])) for start in ("sent", "known")
    )
    # three clients are sent 516 bytes of parameters, 24 of statistics and their structure once each
    assert 3 * 540 < sent.bytes_down[0] - known.bytes_down[0] < 3 * 600
