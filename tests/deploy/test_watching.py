"""How a deployment stands: the file, the command, what Prometheus reads, and lines of the log."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from thinwire.deploy import watch
from thinwire.errors import RunError

pytest.importorskip("flwr")

from flwr.app import Error, Message

from test_serve import _task, post, serve  # noqa: F401  _task: a fixture of every test
from thinwire.deploy.flower.loop import ServeSetting
from thinwire.deploy.flower.post import unpack


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A run of three rounds, in the last of which the second client failed."""
    grid = post("FedAvg()", tmp_path)
    grid.spoil = lambda node, message, reply: (
        Message(Error(1, "no memory left"), reply_to=message)
        if node == 12 and message.metadata.group_id == "3" and unpack(message.content)
        else reply
    )
    serve(grid, "FedAvg()", out=tmp_path / "run")
    return tmp_path / "run"


def test_the_status_of_a_run_says_what_each_client_does_and_has_sent(watched: Path) -> None:
    status = watch.read_status(watched)
    ledger = tw.Ledger.parse((watched / "ledger.jsonl").read_text())
    assert (status["made"], status["rounds"], status["complete"], status["left"]) == (3, 3, True, 0.0)
    assert [(c["name"], c["state"]) for c in status["clients"]] == [
        ("a", "answered"),
        ("b", "failed"),
        ("c", "answered"),
    ]
    for client in status["clients"]:
        for way in ("up", "down"):
            assert client[way] == sum(e.total for e in ledger.of(way) if e.client == client["client"])
    assert 0 < status["record"]["accuracy"] <= 1


def test_a_folder_that_is_no_deployments_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is no folder of a deployment: there is no watch.json in it"):
        watch.read_status(tmp_path)


def test_a_client_is_late_once_it_takes_twice_as_long_as_answers_do(tmp_path: Path, monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(watch.time, "time", lambda: now[0])
    board = watch.Board(tmp_path, 5)
    board.begin([0, 1, 2])
    assert [board.state(client, client != 2)[0] for client in range(4)] == ["called", "called", "absent", "here"]
    now[0] += 10.0
    board.note(0, "answered")  # after ten seconds
    board.begin([0, 1])
    now[0] += 19.0
    assert board.state(1, True)[0] == "called"
    now[0] += 2.0
    assert board.state(1, True) == ("late", 110.0)
    board.write(2, ["a", "b", "c"], {0, 1}, force=True)
    assert [c["state"] for c in json.loads((tmp_path / watch.FILE).read_text())["clients"]] == [
        "late",
        "late",
        "absent",
    ]


def test_prometheus_reads_rounds_clients_and_bytes_on_this_machine_alone(watched: Path) -> None:
    with watch.server(watched, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            text = answer.read().decode()
        server.shutdown()
    lines = text.splitlines()
    assert "thinwire_round 3" in lines
    assert 'thinwire_clients{state="answered"} 2' in lines
    assert 'thinwire_clients{state="failed"} 1' in lines
    status = watch.read_status(watched)
    assert f'thinwire_bytes_total{{client="b",direction="up"}} {status["clients"][1]["up"]}' in lines
    for line in lines:  # each sample has its help and its type before it
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            assert f"# TYPE {name} " in text
            float(line.rpartition(" ")[2])


def test_prometheus_own_parser_reads_the_same(watched: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {f.name: f for f in parser.text_string_to_metric_families(watch.metrics(watch.read_status(watched)))}
    assert families["thinwire_round"].samples[0].value == 3
    assert {sample.labels["direction"] for sample in families["thinwire_bytes"].samples} == {"up", "down"}


def test_a_line_of_the_log_has_its_run_its_round_and_its_client(watched: Path) -> None:
    lines = [json.loads(line) for line in (watched / "log.jsonl").read_text().splitlines()]
    (failed,) = (line for line in lines if line["text"] == "client 1 failed: no memory left")
    assert (failed["level"], failed["round"], failed["client"]) == ("warning", 3, 1)
    assert failed["run"] == next(line["run"] for line in lines)


def test_the_command_shows_a_table_and_a_line_of_json(watched: Path) -> None:
    from typer.testing import CliRunner

    from thinwire.cli import app

    shown = CliRunner().invoke(app, ["watch", str(watched), "--once", "--json"]).stdout.splitlines()
    assert shown[0].startswith("complete: 3 of 3 rounds, accuracy ")
    assert shown[1].split() == ["client", "state", "for", "chunks", "bytes", "up", "bytes", "down"]
    assert [line.split()[:2] for line in shown[2:5]] == [["a", "answered"], ["b", "failed"], ["c", "answered"]]
    assert json.loads(shown[5])["made"] == 3


def test_a_run_ends_at_its_target_and_is_not_gone_on_with(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 30, "out": tmp_path / "run"}
    every = serve(post("FedAvg()", tmp_path / "other"), "FedAvg()", rounds=6)
    target = every.rounds[3]["accuracy"]
    reached = next(record["round"] for record in every.rounds if record["accuracy"] >= target)
    first = serve(post("FedAvg()", tmp_path), "FedAvg()", target=target, **options)
    assert len(first.rounds) == reached
    assert first.params.flat.equal(serve(post("FedAvg()", tmp_path), "FedAvg()", target=target, **options).params.flat)
    lower = serve(
        post("FedAvg()", tmp_path / "more"), "FedAvg()", 6, target=every.rounds[1]["test_loss"], measure="test_loss"
    )
    assert len(lower.rounds) <= 2
    with pytest.raises(ValueError, match="measure='f1': it is one of accuracy, dice, mae, test_loss"):
        serve(post("FedAvg()", tmp_path), "FedAvg()", target=1.0, measure="f1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": 0.9, "test": None}, "target=0.9: the server evaluates nothing without test="),
        ({"target": float("nan")}, "target=nan: it is never reached"),
        ({"target": 90}, "target=90: accuracy is a share, at most 1: it is never reached"),
        ({"target": 0.9, "measure": "dice"}, "measure='dice': the server's test says accuracy, test_loss"),
        ({"poll": -1.0}, "poll=-1.0: seconds between two looks must not be negative"),
        ({"poll": float("inf")}, "poll=inf: seconds"),
    ],
)
def test_a_target_that_no_round_reaches_and_a_pause_that_is_none_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        serve(post("FedAvg()", tmp_path), "FedAvg()", **options)


def test_a_figure_that_is_no_number_in_a_round_ends_no_run() -> None:
    setting = ServeSetting(target=0.5, measure="test_loss")
    assert not setting.reaches({"round": 1, "test_loss": None, "accuracy": 0.1})
    assert setting.reaches({"round": 2, "test_loss": 0.4, "accuracy": 0.9})
    assert not setting.reaches({"round": 3})  # which is not evaluated


def test_a_run_that_goes_on_for_more_rounds_is_not_complete(watched: Path) -> None:
    seen: list[bool] = []
    grid = post("FedAvg()", watched.parent)
    serve(grid, "FedAvg()", 5, out=watched, on_round=lambda _: seen.append(watch.read_status(watched)["complete"]))
    assert seen == [False, False]
    assert watch.read_status(watched)["complete"]
