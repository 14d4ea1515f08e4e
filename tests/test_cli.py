"""The command line, as its users meet it: output, files, one clear line for every mistake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

import thinwire as tw
from thinwire.cli import main

SMALL = ["--data", "digits", "--clients", "5", "--sample", "3", "--rounds", "3"]


@pytest.fixture
def thinwire(monkeypatch, capsys):
    """Runs a command; gives its exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return run


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A small finished comparison, for tests that only look at it."""
    out = tmp_path_factory.mktemp("compared") / "run"
    words = ["run", "FedAvg()", "FedAvg(up=LBGM(threshold=0.9))", *SMALL, "--seeds", "0,1", "--lr", "0.2", "--out"]
    done = subprocess.run([sys.executable, "-m", "thinwire.cli", *words, str(out), "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return out, json.loads(done.stdout.decode().splitlines()[-1])


def test_run_leaves_a_folder_for_every_method_and_seed(compared):
    out, _ = compared
    runs = sorted(p.parent.relative_to(out).as_posix() for p in out.rglob("rounds.jsonl"))
    assert runs == [
        "01-FedAvg/seed-0",
        "01-FedAvg/seed-1",
        "02-FedAvg-up-LBGM-threshold-0.9/seed-0",
        "02-FedAvg-up-LBGM-threshold-0.9/seed-1",
    ]
    folder = out / runs[0]
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == [
        "checkpoint",
        "ledger.jsonl",
        "model.safetensors",
        "rounds.jsonl",
        "run.json",
        "summary.json",
    ]
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 3
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["expression"].startswith("FedAvg(local=LocalSGD(lr=0.2, epochs=1.0, batch=32")
    assert summary["seed"] == 0
    assert summary["parameters"] == 4810  # 64 -> 64 -> 10
    model = safetensors.torch.load_file(folder / "model.safetensors")
    assert sum(t.numel() for t in model.values()) == 4810


def test_run_leaves_a_table_and_six_plots(compared):
    out, _ = compared
    table = (out / "table.md").read_text()
    assert "`FedAvg(up=LBGM(threshold=0.9))`" in table
    assert "thinwire" in table.splitlines()[-2]  # the command that made it
    plots = sorted(p.name for p in out.glob("*.png"))
    assert plots == [
        "accuracy_by_bytes_total.png",
        "accuracy_by_bytes_up.png",
        "accuracy_by_rounds.png",
        "accuracy_by_seconds.png",
        "loss_by_rounds.png",
        "overview.png",
    ]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in out.glob("*.png"))


def test_the_last_line_of_json_holds_both_directions_in_bytes(compared):
    out, found = compared
    dense, lbgm = found["rows"]
    assert dense["method"] == "FedAvg()"
    assert dense["seeds"] == [0, 1]
    assert dense["accuracy_deviation"] is not None
    # 3 rounds of 3 replies: 4 bytes for each of 4,810 parameters, and what surrounds them
    assert 9 * 19240 < dense["bytes_up"] < 9 * 19290
    assert 9 * 19240 < dense["bytes_down"] < 9 * 19290
    assert lbgm["bytes_up"] < dense["bytes_up"]
    assert lbgm["share_up"] == pytest.approx(lbgm["bytes_up"] / dense["bytes_up"])
    lines = (out / "01-FedAvg/seed-0/ledger.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    rounds = [json.loads(line) for line in (out / "01-FedAvg/seed-0/rounds.jsonl").read_text().splitlines()]
    up = sum(e["payload"] + e["framing"] for e in entries if e["direction"] == "up")
    assert up == sum(r["up_bytes"] for r in rounds)


def test_plot_reads_single_runs_and_whole_comparisons(compared, thinwire, tmp_path):
    out, _ = compared
    code, shown, _ = thinwire("plot", str(out / "01-FedAvg"), "--out", str(tmp_path), "--json")
    assert code == 0
    assert len(json.loads(shown.splitlines()[-1])["files"]) == 6
    assert (tmp_path / "overview.png").exists()


def test_resume_with_more_rounds_equals_a_run_that_never_stopped(compared, thinwire, tmp_path):
    out, _ = compared
    shutil.copytree(out, tmp_path / "run")
    code, _, error = thinwire("resume", str(tmp_path / "run"), "--rounds", "6")
    assert code == 0, error
    words = ["FedAvg()", "FedAvg(up=LBGM(threshold=0.9))", *SMALL[:-1], "6", "--seeds", "0,1", "--lr", "0.2"]
    code, _, error = thinwire("run", *words, "--out", str(tmp_path / "whole"))
    assert code == 0, error
    for name in ("01-FedAvg/seed-1", "02-FedAvg-up-LBGM-threshold-0.9/seed-0"):
        one, other = (
            safetensors.torch.load_file(tmp_path / folder / name / "model.safetensors") for folder in ("run", "whole")
        )
        plans = [json.loads((tmp_path / f / name / "summary.json").read_text())["plan"] for f in ("run", "whole")]
        if plans[0] == plans[1]:
            assert all(torch.equal(one[k], other[k]) for k in one)
        else:  # the plan is timed anew in a new run; it moves the last bits
            assert all(torch.allclose(one[k], other[k], atol=1e-5) for k in one)


def test_a_killed_comparison_resumes_where_it_was(thinwire, tmp_path):
    out = tmp_path / "run"
    words = ["run", "FedAvg()", "SCAFFOLD()", "--clients", "5", "--rounds", "60", "--checkpoint-every", "5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "thinwire.cli", *words, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lines = out / "02-SCAFFOLD/seed-0/rounds.jsonl"
    deadline = time.monotonic() + 120
    while not (lines.exists() and len(lines.read_text().splitlines()) >= 7):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    code, shown, error = thinwire("resume", str(out), "--json")
    assert code == 0, error
    rows = json.loads(shown.splitlines()[-1])["rows"]
    assert [row["rounds"] for row in rows] == [60, 60]
    assert all(row["complete"] for row in rows)


def test_predict_says_what_a_run_then_costs(compared, thinwire):
    out, found = compared
    code, shown, _ = thinwire("predict", "FedAvg()", "FedAvg(up=LBGM(threshold=0.9))", *SMALL, "--lr", "0.2", "--json")
    assert code == 0
    dense, lbgm = json.loads(shown.splitlines()[-1])["predictions"]
    measured = found["rows"][0]
    assert dense["bytes_up"][0] == dense["bytes_up"][1]
    assert dense["bytes_up"][0] == pytest.approx(measured["bytes_up"], rel=1e-3)
    assert dense["bytes_down"][1] == pytest.approx(measured["bytes_down"], rel=1e-3)
    low, high = lbgm["bytes_up"]  # of seed 0: how many reply for the first time depends on who is sampled
    summary = json.loads((out / "02-FedAvg-up-LBGM-threshold-0.9/seed-0/summary.json").read_text())
    assert low <= summary["bytes_up"] <= high


def test_methods_lists_every_public_method_and_link_with_its_paper(thinwire):
    code, shown, _ = thinwire("methods", "--json")
    entries = {e["name"]: e for e in json.loads(shown.splitlines()[-1])["methods"]}
    assert code == 0
    assert {"FedAvg", "SCAFFOLD", "LUAR", "LBGM", "TopK", "Adam", "Dirichlet", "Network"} <= set(entries)
    assert entries["LUAR"]["paper"] == "Kim, Kang, Lee, NeurIPS 2025, arXiv:2503.11146"
    assert entries["TopK"]["signature"] == "TopK(share=0.01, values=Dense(), sampled=False)"
    assert all(e["summary"] for e in entries.values())
    assert all(e["paper"] for e in entries.values() if e["kind"] == "algorithm")
    assert thinwire("methods")[1].count("McMahan et al., AISTATS 2017") == 1


def test_a_user_trains_a_model_and_data_of_their_own(thinwire, tmp_path, monkeypatch):
    (tmp_path / "my_module.py").write_text(
        """
import torch
from torch import nn
from thinwire.problem import Problem

def make_task(clients, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, 40, 6, generator=g)
    y = (x.sum(-1) > 0).long()
    tasks = [torch.utils.data.TensorDataset(x[k], y[k]) for k in range(clients)]
    return Problem(lambda: nn.Linear(6, 2), tasks, test=(x.flatten(0, 1), y.flatten()))

def broken(clients):
    return 3
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--clients", "4", "--rounds", "30", "--lr", "0.5"]
    code, shown, error = thinwire("run", "FedAvg()", "--task", "my_module:make_task", *words, "--json", "--out", "o")
    assert code == 0, error
    assert "my_module:make_task, 4 clients, 30 rounds" in shown
    assert json.loads(shown.splitlines()[-1])["rows"][0]["accuracy"] > 0.9
    code, _, error = thinwire("run", "FedAvg()", "--task", "my_module:broken", *words, "--out", "p")
    assert code == 2
    assert error == "error: --task my_module:broken: it returned int, not a thinwire.Problem\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["FedAvgg()"], "unknown method 'FedAvgg' (did you mean FedAvg?)"),
        (["FedAvg(upp=Dense())"], "FedAvg has no argument 'upp' (did you mean up?)"),
        (["TopK(0.1)"], "TopK(0.1) is not a method; try FedAvg(up=TopK(0.1))"),
        (["FedAvg(up=TopK(2))"], "TopK(share=2.0): share must be above 0 and at most 1"),
        (["FedAvg(up=TopK('a'))"], "TopK(share='a'): float is expected"),
        (["FedAvg("], "'FedAvg(' is not an expression such as FedAvg(up=TopK(0.01))"),
        (["LUAR(FedAvg(), recycle=9)"], "LUAR(recycle=9): at most 1, the model has 2 kernels and one must be sent"),
        (["FedAvg(down=TopK(0.1))"], "down=TopK(0.1) cannot carry a broadcast"),
        (["FedAvg()", "FedAvg()"], "a method is named twice"),
        (["FedAvg()", "--rounds", "0"], "--rounds 0: it must be at least 1"),
        (["FedAvg()", "--clients", "-3"], "--clients -3: it must be at least 1"),
        (["FedAvg()", "--sample", "9", "--clients", "5"], "--sample 9 is more than --clients 5"),
        (["FedAvg()", "--lr", "-1"], "LocalSGD(lr=-1.0): lr must be positive"),
        (["FedAvg()", "--batch", "0"], "LocalSGD(batch=0): batch must be positive or None"),
        (["FedAvg()", "--data", "digit"], "digit"),
        (["FedAvg()", "--model", "mpl"], "no model 'mpl' (did you mean mlp?)"),
        (["FedAvg()", "--split", "Dirichlet(0)"], "alpha must be positive"),
        (["FedAvg()", "--split", "Dirichlt(1)"], "unknown name 'Dirichlt' (did you mean Dirichlet?); known are Diri"),
        (["FedAvg()", "--split", "Dirichlet(0.01)", "--clients", "300"], "take a larger alpha, fewer clients"),
        (["FedAvg()", "--augment", "Flap()"], "unknown name 'Flap' (did you mean Flip?)"),
        (["FedAvg()", "--augment", "Crop(0)"], "padding must be at least one pixel"),
        (["FedAvg()", "--seeds", "0,x"], "--seeds 0,x: numbers separated by commas, such as 0,1,2"),
        (["FedAvg()", "--dropout", "1.5"], "dropout=1.5: it is a probability below 1"),
        (["FedAvg()", "--workers", "0"], "--workers 0: it must be at least 1"),
        (["FedAvg()", "--network", "Network(mbit=0)"], "a rate in Mbit/s must be positive"),
        (["FedAvg()", "--privacy", "Privacy(1, noise=1)"], "a client's share has no bound"),
        (["FedAvg()", "--task", "nowhere:make"], "there is no module nowhere"),
        (["FedAvg()", "--task", "json:make"], "json has no function make"),
        (["FedAvg()", "--device", "tpu9"], "device='tpu9': no such device here; use cpu or cuda"),
    ],
)
def test_a_mistake_is_one_line_that_names_what_to_change(thinwire, tmp_path, words, said):
    code, _, error = thinwire("run", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_methods_are_compared_under_one_privacy_and_go_on_under_it(thinwire, tmp_path):
    words = ["FedAvg(weights='uniform')", *SMALL, "--privacy", "Privacy(0.5, noise=1)", "--out", str(tmp_path / "out")]
    assert thinwire("run", *words)[0] == 0
    (about,) = (json.loads(p.read_text()) for p in (tmp_path / "out").glob("*/seed-0/run.json"))
    assert about["privacy"] == "Privacy(clip=0.5, noise=1.0)"
    rounds = str(int(SMALL[SMALL.index("--rounds") + 1]) + 1)
    assert thinwire("resume", str(tmp_path / "out"), "--rounds", rounds)[0] == 0


def test_pictures_of_a_text_cannot_be_flipped(thinwire, tmp_path, data_dir):
    words = ["FedAvg()", "--augment", "Flip()", "--data", "sst2", "--data-dir", str(data_dir)]
    code, _, error = thinwire("run", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert "changes pictures" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: "),
        (["run"], "Missing argument 'EXPR'"),
        (["run", "FedAvg()", "--roundz", "3"], "No such option"),
        (["run", "FedAvg()", "--rounds", "abc"], "Invalid value for '--rounds'"),
        (["bogus"], "No such command 'bogus'"),
        (["resume"], "Missing argument 'DIR'"),
    ],
)
def test_a_command_that_cannot_be_read_is_answered_with_its_usage(words, said):
    done = subprocess.run([sys.executable, "-m", "thinwire.cli", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_printed(thinwire):
    assert thinwire("--version")[:2] == (0, f"thinwire {tw.code_version()}\n")


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    words = ["run", "FedAvg()", *SMALL[:-1], "100000", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "thinwire.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where tests run in the background it is off
    )
    deadline = time.monotonic() + 120
    while not list(out.rglob("state.thinwire")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == f"interrupted; `thinwire resume {out}` continues from the last checkpoint"


def test_a_missing_data_file_is_named_with_where_to_put_it(thinwire, tmp_path, monkeypatch):
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("thinwire.data.files.fetch", lambda *_: (_ for _ in ()).throw(OSError("no network")))
    words = ["FedAvg()", "--data", "mnist", "--data-dir", str(tmp_path / "sets"), "--out", str(tmp_path / "o")]
    code, _, error = thinwire("run", *words)
    assert code == 2
    assert f"put it at {tmp_path}/sets/mnist/train-images-idx3-ubyte.gz" in error
    assert "no network" in error


def test_an_output_folder_that_holds_something_is_not_touched(compared, thinwire, tmp_path):
    out, _ = compared
    before = (out / "run.json").read_bytes()
    code, _, error = thinwire("run", "SCAFFOLD()", *SMALL, "--out", str(out))
    assert code == 2
    assert "holds a comparison" in error
    assert "--overwrite" in error
    assert (out / "run.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete")
    code, _, error = thinwire("run", "SCAFFOLD()", *SMALL, "--out", str(tmp_path / "mine"), "--overwrite")
    assert code == 2
    assert "is not empty and holds no comparison" in error
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "do not delete"


def test_a_folder_in_use_is_refused(compared, thinwire):
    from thinwire.run.folder import locked

    out, _ = compared
    with locked(out):
        code, _, error = thinwire("resume", str(out), "--rounds", "9")
    assert code == 2
    assert "is in use by another run" in error
    assert json.loads((out / "run.json").read_text())["rounds"] == 3


def test_resume_of_what_is_no_comparison_says_so(thinwire, tmp_path):
    code, _, error = thinwire("resume", str(tmp_path))
    assert code == 2
    assert "there is no run.json in it" in error
    (tmp_path / "run.json").write_text("{")
    assert "is damaged" in thinwire("resume", str(tmp_path))[2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"methods": ["FedAvg()"], "bogus": 1}, "holds 'bogus', which this version of thinwire does not know"),
        ({}, "methods is missing, not tuple[str, ...]"),
        ({"methods": 3}, "methods is 3, not tuple[str, ...]"),
        ({"methods": ["FedAvg()"], "rounds": "x"}, "rounds is 'x', not int"),
        ({"methods": ["FedAvgg()"]}, "unknown method 'FedAvgg' (did you mean FedAvg?)"),
    ],
)
def test_resume_of_an_odd_comparison_says_what_is_odd(thinwire, tmp_path, fields, said):
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, **fields}))
    code, _, error = thinwire("resume", str(tmp_path))
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_method_that_does_not_begin_within_the_rounds_is_noted(thinwire, tmp_path):
    code, _, error = thinwire("run", "FLSS(FedAvg(), rank=2, start=3)", *SMALL, "--out", str(tmp_path / "a"))
    assert code == 0
    assert "note: FLSS(FedAvg(), rank=2, start=3) saves nothing in its first 3 rounds, and --rounds is 3\n" in error
    _, _, error = thinwire("run", "FLSS(FedAvg(), rank=2, start=2)", *SMALL, "--out", str(tmp_path / "b"))
    assert "note" not in error


def test_help_names_every_data_set():
    from thinwire import cli, data

    assert sorted(cli.DATA.split(", ")) == data.names()


def test_a_method_that_diverges_is_reported_and_the_others_are_finished(thinwire, tmp_path):
    out = tmp_path / "run"
    words = ["FedAvg(LocalSGD(1e30))", "FedAvg(LocalSGD(0.1))", *SMALL]
    code, shown, error = thinwire("run", *words, "--out", str(out), "--json")
    assert code == 2
    assert "round 1, client" in error
    assert "lower lr" in error
    rows = json.loads(shown.splitlines()[-1])["rows"]
    assert [row["rounds"] for row in rows] == [0, 3]
    assert [row["complete"] for row in rows] == [False, True]
    code, _, error = thinwire("run", "FedAvg(LocalSGD(1e30))", *SMALL, "--out", str(tmp_path / "alone"))
    assert code == 2
    assert "round 1, client" in error


def test_the_version_of_the_code_is_in_the_summary(compared):
    out, _ = compared
    summary = json.loads((Path(out) / "01-FedAvg/seed-0/summary.json").read_text())
    assert summary["version"].startswith(tw.__version__)
