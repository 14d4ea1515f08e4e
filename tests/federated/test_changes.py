"""What a run records of its clients' changes: by hand, on disk, and the same after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thinwire as tw
from problems import Supervised
from thinwire.errors import RunError
from thinwire.federated.changes import keep, load_rows
from thinwire.federated.client import ClientState, Reply
from thinwire.federated.rank_pool import _pack, _unpack
from thinwire.key import Key
from thinwire.local import Local, Trained
from thinwire.look.recycling import steps
from thinwire.params import Params
from thinwire.studies.read import arms
from thinwire.task import Task
from thinwire.wire import dumps, loads


def tasks(*sizes: int) -> list[Supervised]:
    draw = torch.Generator().manual_seed(4)
    return [Supervised(torch.randn(n, 4, generator=draw), torch.randint(0, 3, (n,), generator=draw)) for n in sizes]


def model() -> nn.Module:
    module = nn.Linear(4, 3)
    nn.init.constant_(module.weight, 0.5)  # 12 of them: their norm is sqrt 3
    nn.init.constant_(module.bias, 0.0)
    return module


def ones(request: Local, task: Task, key: Key) -> Trained:
    """Client 0 adds 1 to every weight, client 1 takes 3; biases stay."""
    change = request.x.zeros().replace(Params.of([("weight", torch.full((3, 4), (1.0, -3.0)[key.client or 0]))]))
    return Trained(request.x + change, 2, 0.0, None, 0.25)


def ran(method: tw.Algorithm, out: Path, rounds: int = 1, **more: Any) -> list[dict]:
    run = tw.simulate(method, model(), tasks(30, 10), rounds, out=out, workers=1, **more)
    assert [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()] == run.rounds
    return run.rounds


def test_a_round_has_the_mean_change_of_its_clients_by_layer(tmp_path: Path) -> None:
    (line,) = ran(tw.FedAvg(), tmp_path, record="layers", train=ones)
    # (30 * 1 - 10 * 3) / 40 is 0 of weights; with equal weights it is -1.
    assert line["layers"] == {"weight": [0.0, pytest.approx(3**0.5)], "bias": [0.0, 0.0]}
    (line,) = ran(tw.FedAvg(weights="uniform"), tmp_path / "uniform", record="layers", train=ones)
    assert line["layers"]["weight"][0] == pytest.approx(12**0.5)
    # The clients' squared norms are 12 and 108.
    change = {"norm": 12**0.5, "square": 60, "steps": 2.0, "rates": 0.25, "moved": 12**0.5}
    assert line["change"] == pytest.approx(change)
    assert line["unsent"] == []
    assert not (tmp_path / "gradients.f32").exists()


def test_gradients_are_rows_of_32_bit_floats_with_the_layers_beside_them(tmp_path: Path) -> None:
    ran(tw.FedAvg(weights="uniform"), tmp_path, 2, record="gradients", train=ones)
    rows = np.fromfile(tmp_path / "gradients.f32", "<f4").reshape(2, 15)
    assert rows.tolist() == [[-1.0] * 12 + [0.0] * 3] * 2
    layout, found = load_rows(tmp_path, [2])
    assert (layout.names, layout.shapes) == (("weight", "bias"), ((3, 4), (3,)))
    assert found[0].tolist() == rows[1].tolist()


def test_a_run_that_goes_on_has_the_same_rows(tmp_path: Path) -> None:
    method = tw.FedAvg(tw.LocalSGD(0.1, batch=5), up=tw.LBGM(threshold=0.5))
    whole = ran(method, tmp_path / "whole", 3, record="all", plan="each")
    ran(method, tmp_path / "parts", 2, record="all", plan="each")
    parts = ran(method, tmp_path / "parts", 3, record="all", plan="each", resume=True)
    assert [{**line, "seconds": 0} for line in parts] == [{**line, "seconds": 0} for line in whole]
    rows = [(tmp_path / name / "gradients.f32").read_bytes() for name in ("whole", "parts")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3 * 15 * 4
    assert {"norm", "steps", "rates", "sin2"} <= whole[0]["looks"][0].keys()


def test_recording_changes_no_result(tmp_path: Path) -> None:
    runs = [
        tw.simulate(tw.FedAvg(), model(), tasks(30, 10), 2, out=tmp_path / str(record), record=record, workers=1)
        for record in (None, "all")
    ]
    assert torch.equal(runs[0].params.flat, runs[1].params.flat)
    assert runs[0].bytes_up == runs[1].bytes_up


def test_clients_that_are_trained_as_one_record_the_same_changes(tmp_path: Path) -> None:
    each, together = (
        ran(tw.FedAvg(tw.LocalSGD(0.1, batch=5)), tmp_path / plan, record="layers", plan=plan)[0]
        for plan in ("each", "together")
    )
    assert together["change"] == pytest.approx(each["change"], rel=1e-5)


def test_layers_that_were_recycled_are_recorded_as_not_sent(tmp_path: Path) -> None:
    method = tw.LUAR(tw.FedAvg(weights="uniform"), recycle=1, layers="tensors", select="round-robin")
    lines = ran(method, tmp_path, 3, record="layers", train=ones)
    assert [line["unsent"] for line in lines] == [[], ["bias"], ["weight"]]
    # What nobody sent was trained all the same.
    assert lines[2]["layers"]["weight"][0] == pytest.approx(12**0.5)


def test_a_projected_round_leaves_out_the_whole_field_and_recycles_nothing(tmp_path: Path) -> None:
    method = tw.FLSS(tw.FedAvg(tw.LocalSGD(0.1, batch=5)), rank=1, start=1, every=None)
    assert [line["unsent"] for line in ran(method, tmp_path, 2, record="layers")] == [[], []]


@pytest.mark.parametrize(
    "method",
    [
        tw.DeComFL(2, directions=3, local=tw.LocalSGD(0.1, batch=5)),
        tw.PerFedAvg(local=tw.LocalSGD(0.1, batch=5), alpha=0.1),
        tw.pFedMe(local=tw.LocalSGD(0.1, batch=5), lam=2.0, eta=0.2),
        tw.pFedMe(local=tw.LocalSGD(0.1, batch=5, steps=1), lam=2.0, eta=0.2),
    ],
    ids=repr,
)
def test_where_clients_move_the_model_by_no_training_the_change_is_the_servers(
    tmp_path: Path, method: tw.Algorithm
) -> None:
    _, line = ran(method, tmp_path, 2, record="all")
    (_, models), (_, rows) = load_rows(tmp_path, [1, 2], "models"), load_rows(tmp_path, [1, 2])
    moved = models[1] - models[0]
    assert float(moved.norm()) > 1e-3
    assert torch.allclose(rows[1], moved)
    assert line["change"] == {"of": "server", **dict.fromkeys(("norm", "moved"), pytest.approx(float(moved.norm())))}
    weight = [float(flat[:12].norm()) for flat in (moved, models[0])]
    bias = [float(flat[12:].norm()) for flat in (moved, models[0])]
    assert line["layers"] == {"weight": pytest.approx(weight), "bias": pytest.approx(bias)}
    (arm,) = arms([tmp_path])
    assert steps([1, 2], torch.eye(2), arm.runs[0].rounds) == []  # Equation 45 needs the clients' own rates


def test_what_training_did_comes_through_between_ranks() -> None:
    found = {"change": torch.tensor([1.0, -2.0]), "weights": [0.5], "steps": 3, "rates": 0.3, "unsent": ["b"]}
    reply = Reply(b"blob", 4, 0.5, 3, 1.0, 0.1, [], found, ClientState(None, [None], None))
    again = _unpack(loads(dumps(_pack(reply)), max_values=None, finite=False), reply.next)
    assert torch.equal(again.noted.pop("change"), found.pop("change"))
    assert (again.noted, again.blob, again.next) == (found, b"blob", reply.next)


def test_gradients_without_a_folder_are_refused() -> None:
    with pytest.raises(ValueError, match="record='gradients' needs a folder for the run: out="):
        tw.simulate(tw.FedAvg(), model(), tasks(5), 1, record="gradients")


def test_a_folder_without_rows_or_with_too_few_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no recorded gradients: train it with --record gradients"):
        load_rows(tmp_path, [1])
    ran(tw.FedAvg(), tmp_path, record="gradients", train=ones)
    with pytest.raises(RunError, match="is shorter than its 2 rounds"):
        load_rows(tmp_path, [1, 2])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "Expecting value"),
        (b'{"names": ["weight"', "Expecting ','"),
        (b"\xff", "can't decode"),
        (b"[]", "it holds no names and shapes of layers"),
        (b'{"names": ["weight"]}', "it holds no names and shapes of layers"),
    ],
)
def test_names_of_layers_that_cannot_be_read_are_an_error_that_names_their_file(
    tmp_path: Path, said: bytes, why: str
) -> None:
    ran(tw.FedAvg(), tmp_path, record="gradients", train=ones)
    (tmp_path / "gradients.json").write_bytes(said)
    with pytest.raises(RunError, match=rf"gradients\.json is damaged \(.*{why}.*\): put it back as it was, or train"):
        load_rows(tmp_path, [1])


def test_names_of_layers_are_whole_or_not_there_when_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*paths: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("thinwire.run.folder.os.replace", killed)  # the last thing before they are there
    row = Params.of([("weight", torch.zeros(2))])
    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path, 1, row)
    assert not (tmp_path / "gradients.json").exists()
    monkeypatch.undo()
    keep(tmp_path, 1, row)
    assert load_rows(tmp_path, [1])[0].names == ("weight",)
