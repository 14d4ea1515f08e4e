"""Runs in TensorBoard, Weights & Biases and MLflow: each real library is told the rounds, and asked what it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click import Context
from typer.main import get_command
from typer.testing import CliRunner

from places import ROOT
from thinwire.cli import app
from thinwire.report.loggers import TOOLS, Log

RECORDS = [
    {"round": 1, "accuracy": 0.25, "train_loss": None, "up_bytes": 100, "looks": [{"client": 1}]},
    {"round": 2, "accuracy": 0.5, "train_loss": 1.5, "up_bytes": 100},
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A study with two runs that are about to be trained."""
    for name in ("01-a/seed-0", "02-b/seed-0"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        about = {"method": "FedAvg()", "seed": 0, "clients": 4}
        (tmp_path / "mine" / name / "run.json").write_text(json.dumps(about))
    return tmp_path / "mine"


def named(group: Any, above: str = "") -> dict[str, Any]:
    """Every command of the command line by what is typed: ``pipeline run``."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        found |= named(command, f"{above}{name} ") if hasattr(command, "commands") else {f"{above}{name}": command}
    return found


def test_the_page_of_the_report_names_every_command_that_takes_log() -> None:
    commands = named(get_command(app))
    takes = [
        name
        for name, command in commands.items()
        if any("--log" in option.opts for option in command.get_params(Context(command)))
    ]
    page = (ROOT / "docs/report.md").read_text()
    said = page.partition("`--log` hands each round")[2].partition("\n\n")[0]
    assert sorted(takes) == sorted(name for name in commands if f"`{name}`" in said)


def test_lines_are_handed_on_as_numbers_one_run_after_another(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[Any]()

    class Fake:
        def __init__(self, folder: Path) -> None:
            told.append(folder)

        def begin(self, name: str, about: dict[str, Any], first: int) -> int:
            told.append(("begin", name, about["method"], first))
            return 0

        def line(self, at: int, values: dict[str, float]) -> None:
            told.append((at, values))

        def end(self, outcome: str) -> None:
            told.append(outcome)

    monkeypatch.setitem(TOOLS, "tensorboard", Fake)  # type: ignore[arg-type]
    with Log(["tensorboard", "tensorboard"], out) as log:
        for record in RECORDS:
            log("01-a/seed-0", record)
        log("02-b/seed-0", {"step": 7, "accuracy": 1.0, "test_loss": float("inf")})
    assert told == [
        out,
        ("begin", "01-a/seed-0", "FedAvg()", 1),
        (1, {"accuracy": 0.25, "up_bytes": 100.0}),
        (2, {"accuracy": 0.5, "train_loss": 1.5, "up_bytes": 100.0}),
        "finished",
        ("begin", "02-b/seed-0", "FedAvg()", 7),
        (7, {"accuracy": 1.0}),
        "finished",
    ]


def test_a_tool_that_is_unknown_or_missing_is_said_before_anything_is_written(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=r"--log tensorbord \(did you mean tensorboard\?\): it is one of"):
        Log(["tensorbord"], out)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "thinwire\[tensorboard\]"'):
        Log(["tensorboard"], out)
    new = out / "new"
    done = CliRunner().invoke(app, ["run", "FedAvg()", "--log", "tensorboard", "--out", str(new), "--clients", "4"])
    assert isinstance(done.exception, ImportError)
    assert not new.exists()


def test_tensorboard_shows_the_rounds_of_a_study(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("sklearn")
    words = "--clients 4 --rounds 2 --lr 0.2 --workers 1 --log tensorboard --out"
    done = CliRunner().invoke(app, ["run", "FedAvg()", *words.split(), str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (tmp_path / "mine").glob("*/seed-0")
    found = EventAccumulator(str(tmp_path / "mine/tensorboard" / run.relative_to(tmp_path / "mine")))
    found.Reload()
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for name in ("accuracy", "up_bytes"):
        shown = [(event.step, event.value) for event in found.Scalars(name)]
        assert shown == [(line["round"], pytest.approx(line[name], rel=1e-6)) for line in lines]
    assert [event.step for event in found.Tensors("method/text_summary")] == [1]


def test_tensorboard_forgets_rounds_after_the_checkpoint_that_a_run_goes_on_from(out: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for accuracy, rounds in ((0.1, (1, 2, 3)), (0.9, (2, 3))):
        with Log(["tensorboard"], out) as log:
            for number in rounds:
                log("01-a/seed-0", {"round": number, "accuracy": accuracy})
    found = EventAccumulator(str(out / "tensorboard/01-a/seed-0"))
    found.Reload()
    shown = [(event.step, event.value) for event in found.Scalars("accuracy")]
    assert shown == [(1, pytest.approx(0.1)), (2, pytest.approx(0.9)), (3, pytest.approx(0.9))]


def test_a_run_that_fails_after_its_checkpoint_keeps_its_rounds_and_without_tools_nothing_is_read(out: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Log(["tensorboard"], out) as log:
        for record in RECORDS:
            log("01-a/seed-0", record)
    (out / "01-a/seed-0/rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    with Log(["tensorboard"], out) as log:
        log.fail("01-a/seed-0")  # in round 3
    found = events.EventAccumulator(str(out / "tensorboard/01-a/seed-0")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("accuracy")] == [(1, 0.25), (2, 0.5)]
    with Log([], out) as log:
        log.fail("03-c/seed-0")  # which has no folder yet


def left(out: Path, tool: str, runs: Sequence[str], error: type[BaseException]) -> None:
    """Two rounds of each run, and then an error."""
    with Log([tool], out) as log:
        for name in runs:
            for record in RECORDS:
                log(name, record)
        raise error


@pytest.fixture
def mlflow(out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, Any]]]:
    """What MLflow has of the study's runs, by name: a list a name, the newest first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of what it imports
        tracking = pytest.importorskip("mlflow.tracking")
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

        def found() -> dict[str, Any]:
            client, runs = tracking.MlflowClient((out / "mlruns").as_uri()), dict[str, Any]()
            for run in client.search_runs([client.get_experiment_by_name("mine").experiment_id]):
                history = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "accuracy")]
                runs.setdefault(run.info.run_name, []).append((history, run.info.status, run.data.params))
            return runs

        yield found


@pytest.mark.slow
def test_mlflow_has_each_round_once_in_the_run_that_goes_on(out: Path, mlflow: Callable[[], dict[str, Any]]) -> None:
    for accuracy, rounds in ((0.25, (1, 2, 3)), (0.75, (2, 3, 4))):  # each in a process of its own, as it were
        with Log(["mlflow"], out) as log:
            for number in rounds:
                log("01-a/seed-0", {"round": number, "accuracy": accuracy, "looks": [{"client": 1}]})
    ((history, status, params),) = mlflow()["01-a/seed-0"]
    assert history == [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75)]
    assert (status, params["method"]) == ("FINISHED", "FedAvg()")


def test_a_study_that_replaces_another_in_its_folder_has_runs_of_its_own(
    out: Path, mlflow: Callable[[], dict[str, Any]]
) -> None:
    about = out / "01-a/seed-0/run.json"
    for said in ({"method": "FedAvg()"}, {"method": "DOMO()"}, {"method": "DOMO()", "versions": ["a"]}):
        about.write_text(json.dumps(said))
        with Log(["mlflow"], out) as log:
            log("01-a/seed-0", RECORDS[0])
    about.write_text(json.dumps({"method": "DOMO()", "versions": ["a", "b"]}))  # goes on with other code
    with Log(["mlflow"], out) as log:
        log("01-a/seed-0", RECORDS[1])
    histories = [history for history, *_ in mlflow()["01-a/seed-0"]]
    assert sorted(histories) == [[(1, 0.25)], [(1, 0.25)], [(1, 0.25), (2, 0.5)]]


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_mlflow_says_how_a_run_was_ended(
    out: Path, mlflow: Callable[[], dict[str, Any]], error: type[BaseException], status: str
) -> None:
    with pytest.raises(error):
        left(out, "mlflow", ["01-a/seed-0", "02-b/seed-0"], error)
    assert {name: runs[0][1] for name, runs in mlflow().items()} == {"01-a/seed-0": "FINISHED", "02-b/seed-0": status}
    with Log(["mlflow"], out) as log:
        log("02-b/seed-0", RECORDS[1])
        assert mlflow()["02-b/seed-0"][0][1] == "RUNNING"
    assert mlflow()["02-b/seed-0"][0][1] == "FINISHED"


def test_a_run_that_diverges_has_failed_and_those_after_it_have_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    ended = dict[str, str]()

    class Fake:
        def __init__(self, folder: Path) -> None: ...

        def begin(self, name: str, about: dict[str, Any], first: int) -> int:
            self.name = name
            return 0

        def line(self, at: int, values: dict[str, float]) -> None: ...

        def end(self, outcome: str) -> None:
            ended[self.name.partition("-")[0]] = outcome

    monkeypatch.setitem(TOOLS, "tensorboard", Fake)  # type: ignore[arg-type]
    methods = ["FedAvg(LocalSGD(0.1), opt=SGD(1e20))", "FedAvg(LocalSGD(0.1))"]
    words = "--clients 2 --rounds 4 --workers 1 --log tensorboard --out"
    done = CliRunner().invoke(app, ["run", *methods, *words.split(), str(tmp_path / "mine")])
    assert "became" in str(done.exception)
    assert ended == {"01": "failed", "02": "finished"}


def test_a_run_that_is_complete_is_finished_whatever_ends_the_study_and_one_without_a_line_may_fail(
    out: Path, mlflow: Callable[[], dict[str, Any]]
) -> None:
    def ended(*, rounds: int) -> dict[str, str]:
        (out / "01-a/seed-0/summary.json").write_text(json.dumps({"rounds": rounds}))
        with pytest.raises(KeyboardInterrupt):
            left(out, "mlflow", ["01-a/seed-0"], KeyboardInterrupt)
        return {name: runs[0][1] for name, runs in mlflow().items()}

    assert ended(rounds=2) == {"01-a/seed-0": "FINISHED"}  # Ctrl-C before the first line of the next run
    assert ended(rounds=1) == {"01-a/seed-0": "KILLED"}  # of a run that was to become longer
    with Log(["mlflow"], out) as log:
        log.fail("02-b/seed-0")
    assert mlflow()["02-b/seed-0"][0][:2] == ([], "FAILED")


@pytest.mark.slow
def test_wandb_writes_offline_runs_into_the_study_that_have_each_round_once(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wandb = pytest.importorskip("wandb")
        told, codes = list[int](), list[int]()
        log_of, finish = wandb.Run.log, wandb.Run.finish
        monkeypatch.setattr(wandb.Run, "log", lambda run, data, step: told.append(step) or log_of(run, data, step=step))
        monkeypatch.setattr(
            wandb.Run, "finish", lambda run, exit_code=None: codes.append(exit_code) or finish(run, exit_code)
        )
        with pytest.raises(KeyboardInterrupt):
            left(out, "wandb", ["01-a/seed-0"], KeyboardInterrupt)
        with Log(["wandb"], out) as log:
            for number in (2, 3):
                log("01-a/seed-0", {**RECORDS[1], "round": number})
        wandb.teardown()
    assert (told, codes) == ([1, 2, 3], [1, 0])
    first, second = (path.read_bytes() for path in sorted(out.glob("wandb/offline-run-*/*.wandb")))
    assert all(b"FedAvg()" in data and b"up_bytes" in data for data in (first, second))
    names = [path.name.rpartition("-")[2] for path in out.glob("wandb/offline-run-*")]
    assert names[0] == names[1]  # one run, whose files `wandb sync` uploads one after another


@pytest.mark.soak
def test_wandb_loses_no_round_of_a_process_that_was_killed(out: Path) -> None:
    pytest.importorskip("wandb")
    script = (
        "import os, signal, sys; from pathlib import Path; from thinwire.report.loggers import Log\n"
        "log = Log(['wandb'], Path(sys.argv[1]))\n"
        "for n in map(int, sys.argv[2:]): log('01-a/seed-0', {'round': n, 'accuracy': n / 8})\n"
        "os.kill(os.getpid(), signal.SIGKILL) if '3' in sys.argv[2:] and '4' not in sys.argv else log.end()"
    )
    env = {**os.environ, "WANDB_SILENT": "true", "WANDB_MODE": "offline"}
    for rounds in ("1 2 3", "1 2 3 4"):
        subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(out), *rounds.split()], env=env, check=False)
    *_, last = sorted(out.glob("wandb/offline-run-*/*.wandb"))
    assert all(b"%g" % n in last.read_bytes() for n in (0.125, 0.25, 0.375, 0.5))
