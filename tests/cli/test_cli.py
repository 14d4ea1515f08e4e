"""The command line, as its users meet it: output, files, one clear line for every mistake."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import processes
import thinwire as tw
from thinwire.cli import main
from thinwire.data import DataSet
from thinwire.data.sets import LOADERS
from thinwire.studies import Federated

SMALL = ["--data", "digits", "--clients", "5", "--sample", "3", "--rounds", "3"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A small finished comparison, for tests that only look at it."""
    out = tmp_path_factory.mktemp("compared") / "run"
    words = ["run", "FedAvg()", "FedAvg(up=LBGM(threshold=0.9))", *SMALL, "--seeds", "0,1", "--lr", "0.2", "--out"]
    command = [sys.executable, "-m", "thinwire.cli", *words, str(out), "--json"]  # the one that begins as a user's does
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
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


def test_run_leaves_a_table_and_twelve_plots(compared):
    out, _ = compared
    table = (out / "table.md").read_text()
    assert "`FedAvg(up=LBGM(threshold=0.9))`" in table
    assert "thinwire" in table.splitlines()[-2]  # the command that made it
    plots = sorted(p.name for p in out.glob("*.png"))
    assert plots == [
        "accuracy_by_bytes_total.png",
        "accuracy_by_bytes_up.png",
        "accuracy_by_floats_up.png",
        "accuracy_by_rounds.png",
        "accuracy_by_seconds.png",
        "loss_by_bytes_total.png",
        "loss_by_bytes_up.png",
        "loss_by_floats_up.png",
        "loss_by_rounds.png",
        "loss_by_seconds.png",
        "overview.png",
        "sent_by_rounds.png",
    ]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in out.glob("*.png"))


def test_the_last_line_of_json_holds_both_directions_in_bytes(compared):
    out, found = compared
    dense, lbgm = found["rows"]
    assert dense["method"] == "FedAvg()"
    assert dense["seeds"] == [0, 1]
    assert dense["accuracy_deviation"] is not None
    # 3 rounds of 3 replies: 4 bytes for each of 4,810 parameters, and what surrounds them
    assert 9 * 19240 < dense["bytes_up"] < 9 * 19360
    assert 9 * 19240 < dense["bytes_down"] < 9 * 19360
    assert lbgm["bytes_up"] < dense["bytes_up"]
    assert lbgm["share_up"] == pytest.approx(lbgm["bytes_up"] / dense["bytes_up"])
    lines = (out / "01-FedAvg/seed-0/ledger.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    rounds = [json.loads(line) for line in (out / "01-FedAvg/seed-0/rounds.jsonl").read_text().splitlines()]
    up = sum(e["payload"] + e["framing"] for e in entries if e["direction"] == "up")
    assert up == sum(r["up_bytes"] for r in rounds)


@pytest.mark.slow
@pytest.mark.drawn
def test_plot_reads_single_runs_and_whole_comparisons(compared, thinwire, tmp_path):
    out, _ = compared
    code, shown, _ = thinwire("plot", str(out / "01-FedAvg"), "--out", str(tmp_path), "--json")
    assert code == 0
    assert len(json.loads(shown.splitlines()[-1])["files"]) == 12
    assert (tmp_path / "overview.png").exists()


@pytest.mark.slow
@pytest.mark.drawn
def test_the_best_until_then_is_drawn_into_files_of_its_own(compared, thinwire, tmp_path):
    out, _ = compared
    code, shown, error = thinwire("plot", str(out), "--out", str(tmp_path), "--best")
    assert code == 0, error
    assert sorted(Path(line).name for line in shown.splitlines()) == [
        "best_accuracy_by_bytes_total.png",
        "best_accuracy_by_bytes_up.png",
        "best_accuracy_by_floats_up.png",
        "best_accuracy_by_rounds.png",
        "best_accuracy_by_seconds.png",
        "best_loss_by_bytes_total.png",
        "best_loss_by_bytes_up.png",
        "best_loss_by_floats_up.png",
        "best_loss_by_rounds.png",
        "best_loss_by_seconds.png",
        "best_overview.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())


@pytest.mark.slow
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
        assert all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.slow
def test_a_killed_comparison_resumes_where_it_was(thinwire, tmp_path):
    out = tmp_path / "run"
    words = ["run", "FedAvg()", "SCAFFOLD()", "--clients", "5", "--rounds", "60", "--checkpoint-every", "5"]
    lines = out / "02-SCAFFOLD/seed-0/rounds.jsonl"
    with processes.Process(processes.typed, (*words, "--out", str(out))) as process:
        process.until(lambda: lines.exists() and len(lines.read_text().splitlines()) >= 7)
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
    assert "figures are about those of the run" in " ".join(shown.split())
    measured = found["rows"][0]
    assert dense["bytes_up"][0] == dense["bytes_up"][1]
    assert dense["bytes_up"][0] == pytest.approx(measured["bytes_up"], rel=1e-3)
    assert dense["bytes_down"][1] == pytest.approx(measured["bytes_down"], rel=1e-3)
    low, high = lbgm["bytes_up"]  # of seed 0: how many reply for the first time depends on who is sampled
    summary = json.loads((out / "02-FedAvg-up-LBGM-threshold-0.9/seed-0/summary.json").read_text())
    assert low <= summary["bytes_up"] <= high


@pytest.mark.soak
def test_ddp_predict_says_what_ranks_then_send(thinwire, tmp_path):
    exact = ["Hook(Dense())", "LocalSGD(4)", "DiLoCo(8, delay=2)", "DEF(16)", "DEF(LowRank(2), steps=2)"]
    methods = [*exact, "SparseLoCo(4)", "DetachedLoCo(4)", "DeMo(8)"]
    size = ["--data", "digits", "--model", "mlp", "--workers", "3"]
    code, shown, error = thinwire("ddp-predict", *methods, *size, "--json")
    assert code == 0, error
    exchanges = json.loads(shown.splitlines()[-1])["exchanges"]
    steps = ["--batch", "8", "--steps", "48", "--evaluate-every", "48", "--lr", "0.01", "--out", str(tmp_path)]
    code, shown, error = thinwire("ddp-sim", *methods, *size, *steps)
    assert code == 0, error
    for method, one, folder in zip(methods, exchanges, sorted(tmp_path.glob("*/seed-0")), strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        near = {"rel": 1e-9 if method in exact else 0.05}
        assert one["step_up"] == pytest.approx(summary["bytes_up"] / 48, **near), method
        assert one["step_down"] == pytest.approx(summary["bytes_down"] / 48, **near), method
        assert one["dense"] == 4 * summary["parameters"]


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


@pytest.mark.slow
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
    monkeypatch.delitem(sys.modules, "my_module", raising=False)  # of another test
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
        (["FedAvgg()"], "unknown name 'FedAvgg' (did you mean FedAvg?)"),
        (["FedAvg(upp=Dense())"], "FedAvg has no argument 'upp' (did you mean up?)"),
        (["TopK(0.1)"], "TopK(0.1) is not a method; try FedAvg(up=TopK(0.1))"),
        (["FedAvg(up=TopK(2))"], "TopK(share=2.0): share must be above 0 and at most 1"),
        (["FedAvg(up=TopK('a'))"], "TopK(share='a'): float is expected"),
        (["FedAvg("], "'FedAvg(' is not an expression such as FedAvg(up=TopK(0.01))"),
        (["LUAR(FedAvg(), recycle=9)"], "LUAR(recycle=9): at most 1, the model has 2 kernels and one must be sent"),
        (["FedAvg(down=TopK(0.1))"], "down=TopK(0.1) cannot carry a broadcast"),
        (["FedAvg()", "FedAvg()"], "a method is named twice: leave one of the two out"),
        (["DEF(64)"], "DEF is a data-parallel method, for `thinwire ddp-sim`"),
        (["FR()"], "FR is a schedule of pipelined training, for `thinwire pipeline run`"),
        (["FedAvg()", "--rounds", "0"], "--rounds 0: it must be at least 1"),
        (["FedAvg()", "--clients", "-3"], "--clients -3: it must be at least 1"),
        (["FedAvg()", "--sample", "9", "--clients", "5"], "--sample 9: it must be between 1 and the 5 clients"),
        (["FedAvg()", "--lr", "-1"], "LocalSGD(lr=-1.0): lr must be positive"),
        (["FedAvg()", "--batch", "0"], "LocalSGD(batch=0): batch must be positive or None"),
        (["FedAvg()", "--data", "digit"], "digit"),
        (["FedAvg()", "--model", "mpl"], "no model 'mpl' (did you mean mlp?)"),
        (["FedAvg()", "--split", "Dirichlet(0)"], "alpha must be positive"),
        (["FedAvg()", "--split", "Dirichlt(1)"], "unknown name 'Dirichlt' (did you mean Dirichlet?); known are Diri"),
        (["FedAvg()", "--split", "Dirichlet(0.01)", "--clients", "300"], "take a larger alpha, fewer clients"),
        (["FedAvg()", "--augment", "Flap()"], "unknown name 'Flap' (did you mean Flip?)"),
        (["FedAvg()", "--augment", "Crop(0)"], "padding must be at least one pixel"),
        (["FedAvg()", "--seed", "-1"], "--seed -1: it must not be negative, and fit 63 bits"),
        (["FedAvg()", "--states", "tape"], "--states tape: one of 'memory', 'disk' is expected"),
        (["FedAvg()", "--seeds", "0,x"], "--seeds 0,x: numbers separated by commas, such as 0,1,2"),
        (["FedAvg()", "--dropout", "1.5"], "--dropout 1.5: it is a probability below 1"),
        (["FedAvg()", "--workers", "0"], "--workers 0: it must be at least 1"),
        (["FedAvg()", "--network", "Network(mbit=0)"], "a rate in Mbit/s must be finite, and at least 1e-06"),
        (["FedAvg()", "--privacy", "Privacy(1, noise=1)"], "a client's share has no bound"),
        (["FedAvg()", "--task", "nowhere:make"], "there is no module nowhere"),
        (["FedAvg()", "--task", "json:make"], "json has no function make"),
        (
            ["FedAvg()", "--task", "bisect:insort_left"],
            "it needs a, x, and is called with clients and seed alone: name its arguments clients and seed, or",
        ),
        (["FedAvg()", "--device", "tpu9"], "--device tpu9: no such device here; use cpu or cuda"),
        (["FedAvg()", "--network", "10"], "--network 10: it is written like Network(mbit=10)"),
        (["FedAvg()", "--split", "0.1"], "--split 0.1: it is written like Dirichlet(0.1)"),
        (["FedAvg()", "--split", "Dirichlet(-1)"], "Dirichlet(alpha=-1): alpha must be positive"),
        (["FedAvg()", "--privacy", "1"], "--privacy 1: it is written like Privacy(clip=1, noise=1)"),
        (["FedAvg()", "--holdout", "1"], "--holdout 1.0: it is a share below 1"),
        (["FedAvg()", "--evaluate-every", "0"], "--evaluate-every 0: it must be at least 1"),
        (["FedAvg()", "--checkpoint-every", "0"], "--checkpoint-every 0: it must be at least 1"),
        (["FedAvg()", "--buffer", "Buffered(30)"], "--buffer Buffered(30): "),
        (["FedAvg()", "--plan", "fast"], "--plan fast: one of 'each', 'together', 'compiled', 'measured' is expected"),
        (["FedAvg()", "--seed", "1", "--seeds", "2,3"], "--seed 1 is not used with --seeds 2,3, which has all of them"),
        (["FedAvg(LocalSGD(0.1))", "--lr", "5"], "--lr 5.0: no method here leaves it open; leave it out"),
        (["FedAvg(LocalSGD(epochs=1))", "--lr", "5", "--epochs", "2"], "--epochs 2.0: no method here leaves it open"),
        (
            ["FedAvg()", "--sample", "3", "--sampler", "PowerOfChoice(2)"],
            "--sampler PowerOfChoice(2): fewer than the sample=3 that take part",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_what_to_change(thinwire, tmp_path, words, said):
    code, _, error = thinwire("run", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_methods_are_compared_under_one_privacy_and_go_on_under_it(thinwire, tmp_path):
    words = ["FedAvg(weights='uniform')", *SMALL, "--privacy", "Privacy(0.5, noise=1)", "--out", str(tmp_path / "out")]
    assert thinwire("run", *words)[0] == 0
    (about,) = (json.loads(p.read_text()) for p in (tmp_path / "out").glob("*/seed-0/run.json"))
    assert about["privacy"] == "Privacy(clip=0.5, noise=1.0)"
    rounds = str(int(SMALL[SMALL.index("--rounds") + 1]) + 1)
    assert thinwire("resume", str(tmp_path / "out"), "--rounds", rounds)[0] == 0


def test_a_plan_of_methods_that_say_how_they_train_refuses_an_option_that_says_it_too(thinwire):
    code, _, error = thinwire("plan", "FedAvg(LocalSGD(0.2))", "--lr", "0.1")
    assert code == 2
    assert "--lr 0.1: no method here leaves it open; leave it out" in error


@pytest.mark.slow
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
def test_a_command_that_cannot_be_read_is_answered_with_its_usage(thinwire, words, said):
    code, shown, error = thinwire(*words)
    assert code == 2
    assert said in shown + error
    assert "Traceback" not in error


def test_version_is_printed(thinwire):
    assert thinwire("--version")[:2] == (0, f"thinwire {tw.code_version()}\n")


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    words = ["run", "FedAvg()", *SMALL[:-1], "100000", "--out", str(out)]
    with processes.Process(processes.typed, tuple(words)) as process:
        process.until(lambda: list(out.rglob("state.thinwire")))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        said = process.stderr.splitlines()
    assert said[-1] == f"interrupted; `thinwire resume {out}` continues from the last checkpoint"


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
    before = (out / "study.json").read_bytes()
    code, _, error = thinwire("run", "SCAFFOLD()", *SMALL, "--out", str(out))
    assert code == 2
    assert "holds a study" in error
    assert "--overwrite" in error
    assert (out / "study.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete")
    code, _, error = thinwire("run", "SCAFFOLD()", *SMALL, "--out", str(tmp_path / "mine"), "--overwrite")
    assert code == 2
    assert "is not empty and holds no study" in error
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "do not delete"
    for within in ("thesis.txt", "thesis.txt/study"):
        code, _, error = thinwire("run", "SCAFFOLD()", *SMALL, "--out", str(tmp_path / "mine" / within))
        assert (code, f"{tmp_path}/mine/thesis.txt is a file; name a folder" in error) == (2, True)


def test_a_folder_in_use_is_refused(compared, thinwire):
    from thinwire.run.folder import lock_folder

    out, _ = compared
    with lock_folder(out):
        code, _, error = thinwire("resume", str(out), "--rounds", "9")
    assert code == 2
    assert "is in use by another run" in error
    assert json.loads((out / "study.json").read_text())["rounds"] == 3


def test_resume_of_what_is_no_study_says_so(thinwire, tmp_path):
    code, _, error = thinwire("resume", str(tmp_path))
    assert code == 2
    assert error == f"error: {tmp_path} holds no study: there is no study.json in it\n"
    (tmp_path / "study.json").write_text("{")
    assert "is damaged" in thinwire("resume", str(tmp_path))[2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"methods": ["FedAvg()"], "bogus": 1}, "holds 'bogus', which this version of thinwire does not know"),
        ({}, "methods is missing, not tuple[str, ...]"),
        ({"methods": 3}, "its methods is 3, and a list, each item a text is expected"),
        ({"methods": ["FedAvg()"], "rounds": "x"}, "its rounds is 'x', and a whole number that is not negative is"),
        ({"methods": ["FedAvg()"], "setting": 3}, "setting is 3, not Setting such as Setting(sample=10)"),
        ({"methods": ["FedAvg()"], "setting": "Setting(smaple=3)"}, "no argument 'smaple' (did you mean sample?)"),
        ({"methods": ["FedAvg()"], "setting": "Dense()"}, "setting is Dense(), not Setting such as"),
        ({"methods": ["FedAvgg()"]}, "unknown name 'FedAvgg' (did you mean FedAvg?)"),
        ({"kind": "split"}, "study.json: kind is 'split'; known are federated, data-parallel, pipelined"),
        ({"kind": "pipelined", "methods": ["FR()"], "mbit": "x"}, "its mbit is 'x', and a finite number or null is"),
        ({"kind": "pipelined", "methods": ["FedAvg()"]}, "FedAvg is a federated method, for `thinwire run`"),
        (
            {"kind": "data-parallel", "methods": ["DEF()"], "steps": 1.5},
            "its steps is 1.5, and a whole number that is not",
        ),
        ({"kind": "data-parallel", "methods": ["FedAvg()"]}, "FedAvg is a federated method, for `thinwire run`"),
        ({"format": 2}, "is of another version of thinwire (its format is 2, and this one reads 3): go on with that"),
    ],
)
def test_resume_of_an_odd_study_says_what_is_odd(thinwire, tmp_path, fields, said):
    (tmp_path / "study.json").write_text(json.dumps({"kind": "federated", "format": 3, **fields}))
    code, _, error = thinwire("resume", str(tmp_path))
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_method_that_does_not_begin_within_the_rounds_is_noted(thinwire, tmp_path):
    code, _, error = thinwire("run", "FLSS(FedAvg(), rank=2, start=3)", *SMALL, "--out", str(tmp_path / "a"))
    assert code == 0
    assert "note: FLSS(FedAvg(), rank=2, start=3) saves nothing in its first 3 rounds, and --rounds is 3\n" in error
    _, _, error = thinwire("run", "FLSS(FedAvg(), rank=2, start=2)", *SMALL, "--out", str(tmp_path / "b"))
    assert "note" not in error
    _, _, error = thinwire("run", "FedSMExtra()", *SMALL, "--out", str(tmp_path / "c"))
    assert " trains no selector, without which it predicts by any of its models, in its first 100 rounds, and " in error


@pytest.mark.parametrize("command", ["run", "predict", "ddp-sim", "pipeline run", "pipeline plan"])
def test_help_names_every_data_set_and_every_model(thinwire, monkeypatch, command):
    from thinwire import data, models

    monkeypatch.setenv("COLUMNS", "500")
    code, shown, _ = thinwire(*command.split(), "--help")
    assert code == 0
    assert f" {', '.join(data.names())}." in shown
    assert f" {', '.join(models.names())}; by default one that suits the data." in shown


@pytest.mark.slow
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


def test_the_package_is_the_command_line_too():
    done = subprocess.run([sys.executable, "-m", "thinwire", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"thinwire {tw.code_version()}\n"), done.stderr


@pytest.mark.slow
def test_help_and_version_do_not_wait_for_torch():
    code = """
import sys
sys.argv = ["thinwire", sys.argv[1]]
from thinwire.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    for word in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "thinwire" in done.stdout


@pytest.mark.slow
def test_every_public_name_is_found_at_its_first_use():
    code = "import thinwire as tw; print(tw.wire.__name__, tw.FedAvg(), 'LUAR' in dir(tw)); tw.FedAvgg"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "thinwire.wire FedAvg() True\n"
    assert done.stderr.splitlines()[-1].startswith("AttributeError: module 'thinwire' has no attribute 'FedAvgg'")


@pytest.mark.parametrize("option", ["--data", "--model", "--split", "--holdout", "--augment", "--data-dir"])
def test_what_a_task_of_ones_own_does_not_use_is_refused(thinwire, tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    value = {"--data": "digits", "--model": "mlp", "--split": "IID()", "--holdout": "0.2", "--augment": "Flip()"}
    commands = ["run FedAvg()"]
    commands += ["predict FedAvg()"] if option not in ("--holdout", "--augment") else []
    commands += ["ddp-sim DEF(4)", "pipeline run BPK()"] if option not in ("--holdout", "--split") else []
    for command in commands:
        code, _, error = thinwire(*command.split(), "--task", "unused:make", option, value.get(option, "."))
        assert code == 2
        why = "which makes model and data itself"
        assert error == f"error: {option} is not used with --task unused:make, {why}: leave {option} out\n"


OWN = """
from abc import abstractmethod
from dataclasses import dataclass
from thinwire import Codec, FedAvg


class Base(Codec):  # of Good alone
    @abstractmethod
    def encode(self, x, key): ...


@dataclass(frozen=True)
class Good(Base):
    def encode(self, x, key):
        return x

    def decode(self, packet, shape, key):
        return packet
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("written", "why"),
    [
        (
            "class Plain(Good.__bases__[0].__bases__[0]):\n    encode = decode = None",
            "Plain is no dataclass: put @data",
        ),
        ("@dataclass(frozen=True)\nclass Half(Codec):\n    encode = None", "Half has no decode: write it, or begin"),
        ("@dataclass(frozen=True)\nclass Half(FedAvg):\n    share: float = 0.5", "thinwire has a Half already: give "),
    ],
)
def test_a_class_of_ones_own_that_cannot_be_typed_says_why(thinwire, tmp_path, monkeypatch, written, why):
    monkeypatch.chdir(tmp_path)
    for name, more in (("mine", ""), ("broken", written)):
        (tmp_path / f"{name}.py").write_text(f"{OWN}\n\n{more}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    code, _, error = thinwire("run", "FedAvg(up=Good())", "--use", "broken")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith(f"error: --use broken: {why}")
    assert thinwire("predict", "FedAvg(up=Good())", "--use", "mine")[0] == 0


def test_a_module_is_named_without_py_and_each_method_in_quotes_of_its_own(thinwire, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, why in (
        (["FedAvg()", "--use", "mine.py"], "--use mine.py: write the module without .py, as mine"),
        (["FedAvg()", "--task", "mine.py:make"], "--task mine.py:make: write the module without .py, as mine"),
        (["FedAvg(), SCAFFOLD()"], "FedAvg(), SCAFFOLD() is several methods: put each into quotes of its own"),
    ):
        assert thinwire("run", *words) == (2, "", f"error: {why}\n")


def test_a_task_of_ones_own_that_makes_other_clients_than_asked_for_is_refused(thinwire, tmp_path, monkeypatch):
    (tmp_path / "three.py").write_text(
        "import torch\ndef make():\n    pair = (torch.randn(4, 2), torch.zeros(4).long())\n"
        "    return torch.nn.Linear(2, 2), [pair] * 3\n"
    )
    monkeypatch.chdir(tmp_path)
    for command in ("run", "predict"):
        code, _, error = thinwire(command, "FedAvg()", "--task", "three:make", "--rounds", "1", "--clients", "4")
        assert code == 2
        assert error.startswith("error: --clients 4: --task three:make made 3 of them; leave --clients out")
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "runs").exists()
    assert thinwire("predict", "FedAvg()", "--task", "three:make", "--rounds", "1")[0] == 0


THEIRS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        {forward}
        return self.layer(x)

def make(clients):
    {make}
    x, y = torch.randn(clients, 6, 5), torch.zeros(clients, 6).long()
    return {model}, list(zip(x, y)), (x[0, :, :{width}], y[0])
"""


@pytest.mark.parametrize(
    ("number", "parts", "last", "frame"),
    [
        (0, {"make": "raise ValueError('my own')"}, "ValueError: my own", "make"),
        (1, {"make": "import nowhere_at_all"}, "ModuleNotFoundError: No module named 'nowhere_at_all'", "make"),
        (2, {"make": "dict()['key']"}, "KeyError: 'key'", "make"),
        (3, {"forward": "raise RuntimeError('deep')"}, "RuntimeError: deep", "forward"),
        (4, {"make": "import thinwire; thinwire.models.build('m', (1,), 2)"}, "ValueError: no model 'm'", "make"),
    ],
)
def test_an_exception_in_a_users_module_is_shown_as_theirs_alone(
    thinwire, tmp_path, monkeypatch, number, parts, last, frame
):
    filled = {"forward": "pass", "make": "pass", "model": "Net", "width": 5} | parts
    path = tmp_path / f"theirs{number}.py"
    path.write_text(THEIRS.format(**filled))
    monkeypatch.chdir(tmp_path)
    code, _, error = thinwire("run", "FedAvg()", "--task", f"{path.stem}:make", "--rounds", "1", "--out", "out")
    assert code == 1
    lines = error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{path}"' in lines[1]
    assert f"in {frame}" in error
    assert any(line.startswith(last) for line in lines)
    assert str(Path(tw.__file__).parent) not in error
    assert not (tmp_path / "out").exists()


def test_a_module_of_the_users_that_is_no_python_is_shown_with_its_line(thinwire, tmp_path, monkeypatch):
    (tmp_path / "unwritten.py").write_text("def make(:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    code, _, error = thinwire("run", "FedAvg()", "--task", "unwritten:make")
    assert code == 1
    assert 'unwritten.py", line 1' in error
    assert "SyntaxError" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("line", "kind"), [("{}['bug']", KeyError), ("json.loads('{')", ValueError)])
def test_what_thinwire_did_not_mean_to_say_is_a_bug_with_its_whole_traceback(monkeypatch, line, kind):
    from thinwire.studies import catalogue

    made: dict = {"json": json}
    exec(compile(f"def fails(*_):\n    {line}", catalogue.__file__, "exec"), made)  # a line of ours
    monkeypatch.setattr("thinwire.studies.catalogue.catalogue", made["fails"])
    monkeypatch.setattr(sys, "argv", ["thinwire", "methods"])
    with pytest.raises(kind):
        main()


@pytest.mark.parametrize(
    ("number", "parts", "said"),
    [
        (
            0,
            {"model": "nn.Sequential(nn.Linear(7, 2))"},
            "client 0: the model does not take inputs of [2, 5] (float32): mat1 and mat2 shapes",
        ),
        (
            1,
            {"model": "nn.Sequential(nn.Linear(5, 2))", "width": 4},
            "test: the model does not take inputs of [2, 4] (float32): mat1 and mat2 shapes",
        ),
        (
            2,
            {"model": "nn.Linear"},
            "model=Linear: it cannot be called without arguments (missing a required argument: ",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(thinwire, tmp_path, monkeypatch, number, parts, said):
    filled = {"forward": "pass", "make": "pass", "model": "Net", "width": 5} | parts
    path = tmp_path / f"unfit{number}.py"
    path.write_text(THEIRS.format(**filled))
    monkeypatch.chdir(tmp_path)
    code, _, error = thinwire("run", "FedAvg()", "--task", f"{path.stem}:make", "--rounds", "1", "--out", "out")
    assert code == 2
    assert error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "mpl"],
        ["--split", "Dirichlt()"],
        ["--network", "10"],
        ["--privacy", "Privacy(-1)"],
        ["--device", "tpu9"],
        ["--augment", "Crop(0)"],
        ["--holdout", "2"],
        ["--seeds", "0,0"],
    ],
)
def test_what_is_wrong_is_said_before_data_are_loaded(thinwire, monkeypatch, words):
    def never(*_: object) -> None:
        raise AssertionError("data were loaded")

    monkeypatch.setattr("thinwire.data.load", never)
    for command in ("run", "predict") if words[0] in ("--model", "--split") else ("run",):
        code, _, error = thinwire(command, "FedAvg()", *words)
        assert code == 2
        assert len(error.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.drawn
def test_what_clients_reach_on_their_own_tests_is_in_table_plots_json_and_folder(thinwire, tmp_path):
    out = tmp_path / "out"
    words = ["FedAvg()", *SMALL, "--lr", "0.2", "--holdout", "0.2", "--evaluate-every", "2", "--out", str(out)]
    code, shown, error = thinwire("run", *words, "--json")
    assert code == 0, error
    folder = out / "01-FedAvg/seed-0"
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 3]  # the second, and the last
    own = lines[-1]["accuracy"]
    assert len(own) == len(lines[-1]["loss"]) == 5
    row = json.loads(shown.splitlines()[-1])["rows"][0]
    assert row["client_accuracy"] == pytest.approx(sum(own) / 5)
    assert row["client_accuracy_spread"] == pytest.approx((sum((a - sum(own) / 5) ** 2 for a in own) / 5) ** 0.5)
    assert row["client_accuracy_worst"] == min(own)
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["client_loss_worst"] == max(lines[-1]["loss"])
    summary = json.loads((folder / "summary.json").read_text())
    assert all(summary[name] == row[name] for name in row if name.startswith("client_"))
    cell = f"{100 * sum(own) / 5:.1f} % ± {100 * row['client_accuracy_spread']:.1f}"
    for text in (shown, (out / "table.md").read_text()):
        assert "own tests" in text
        assert "worst client" in text
        assert cell in text
    assert (out / "clients_by_rounds.png").read_bytes().startswith(b"\x89PNG")
    assert thinwire("resume", str(out), "--rounds", "4")[0] == 0  # no line twice, none lost
    again = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert [line["round"] for line in again] == [2, 3, 4]
    assert again[:2] == lines


def hospitals(data_dir=None, download=True):
    """Two sites of three training and two test pictures, whose bright pixels are the object."""
    x = torch.randint(256, (10, 1, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    y, site = (x[:, 0] > 127).to(torch.uint8), torch.tensor([0, 0, 0, 1, 1, 1])
    return DataSet("retina", x[:6], y[:6], x[6:], y[6:], 2, site, (0.5,), (0.3,), None, torch.tensor([0, 1, 0, 1]))


@pytest.mark.slow
def test_hospitals_have_their_dice_in_table_progress_json_and_folder(thinwire, tmp_path, monkeypatch):
    monkeypatch.setitem(LOADERS, "retina", hospitals)
    out, words = tmp_path / "out", ["--data", "retina", "--rounds", "2", "--batch", "2", "--json"]
    code, shown, error = thinwire("run", "FedAvg()", *words, "--out", str(out))
    assert code == 0, error
    assert "round 1 dice 0." in error
    row = json.loads(shown.splitlines()[-1])["rows"][0]
    last = json.loads((out / "01-FedAvg/seed-0/rounds.jsonl").read_text().splitlines()[-1])
    each = json.loads((out / "01-FedAvg/seed-0/clients.jsonl").read_text().splitlines()[-1])["dice"]
    assert (row["measure"], row["dice"], row["client_dice_worst"]) == ("dice", last["dice"], min(each))
    assert row["by_client"] == each
    page = (out / "table.md").read_text()
    assert page.startswith("| method | dice | best | own tests | ")
    assert " | client 0 | client 1 | MB up |" in page
    assert f" | {last['dice']:.4f} | " in page
    assert f" | {each[0]:.4f} | {each[1]:.4f} | " in page
    assert "what each one's own model reaches on its own test" in page
    summary = json.loads((out / "01-FedAvg/seed-0/summary.json").read_text())
    assert (summary["dice"], summary["client_dice"]) == (last["dice"], row["client_dice"])
    problem = Federated(Federated.resolve(["FedAvg()"]), data="retina", unseen=1).problem(0)
    assert [task.indices.tolist() for task in problem.tasks] == [[0, 1, 2]]
    assert problem.test.indices.tolist() == [1, 3]
    code, _, error = thinwire("run", "FedAvg()", *words, "--unseen", "2", "--out", str(tmp_path / "none"))
    assert (code, error) == (2, "error: unseen=2: retina has the sites 0 to 1\n")


def test_without_tests_of_their_own_nothing_is_said_of_clients(compared):
    out, found = compared
    assert found["rows"][0]["client_accuracy"] is None
    assert "own tests" not in (out / "table.md").read_text()
    assert not list(out.rglob("clients*"))


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "call"), [("append", 1), ("append", 4), ("save", 3)])
def test_a_full_disk_is_named_and_nothing_before_the_checkpoint_is_lost(thinwire, tmp_path, monkeypatch, broken, call):
    from thinwire.run.folder import Folder

    words = ["FedAvg()", *SMALL[:-1], "5", "--checkpoint-every", "1", "--lr", "0.2"]
    out, whole, left, work = tmp_path / "out", tmp_path / "whole", [call], getattr(Folder, broken)

    def full(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            with open(self.path / "rounds.jsonl", "a") as file:
                file.write('{"round": 1, "tra')  # what still fitted
            raise OSError(28, "No space left on device")
        return work(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, broken, full)
        code, _, error = thinwire("run", *words, "--out", str(out))
    assert code == 2
    advice = f"make room, then `thinwire resume {out}` goes on from the last checkpoint: nothing before it is lost"
    assert error.splitlines()[-1] == f"error: no space is left on the disk of {out}: {advice}"
    assert thinwire("resume", str(out))[0] == 0
    assert thinwire("run", *words, "--out", str(whole))[0] == 0
    name = "01-FedAvg/seed-0"
    assert (out / name / "ledger.jsonl").read_bytes() == (whole / name / "ledger.jsonl").read_bytes()
    one, other = (safetensors.torch.load_file(folder / name / "model.safetensors") for folder in (out, whole))
    assert all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "kept"), [(["--plan", "each"], "each"), ([], "together")])
def test_the_plan_is_the_one_asked_for_or_the_rules_and_kept_when_a_run_goes_on(thinwire, tmp_path, asked, kept):
    out = tmp_path / "out"
    assert thinwire("run", "FedAvg()", *SMALL, "--sample", "5", *asked, "--out", str(out))[0] == 0
    assert thinwire("resume", str(out), "--rounds", "4")[0] == 0
    assert json.loads((out / "01-FedAvg/seed-0/summary.json").read_text())["plan"] == kept


@pytest.mark.drawn
def test_plot_writes_the_file_that_is_named_in_its_format(compared, thinwire, tmp_path):
    out, _ = compared
    code, shown, error = thinwire("plot", str(out), "--out", str(tmp_path / "new/plots.svg"), "--title", "Two methods")
    assert code == 0, error
    assert shown == f"{tmp_path / 'new/plots.svg'}\n"
    text = (tmp_path / "new/plots.svg").read_text()
    assert text.startswith("<?xml")
    assert "<!-- Two methods -->" in text
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["plots.svg"]


@pytest.mark.soak
@pytest.mark.drawn
def test_plot_takes_a_format_for_all_files_and_a_size_in_inches(compared, thinwire, tmp_path):
    out, _ = compared
    code, _, error = thinwire("plot", str(out), "--out", str(tmp_path / "pdfs"), "--format", "pdf", "--json")
    assert code == 0, error
    assert {p.suffix for p in (tmp_path / "pdfs").iterdir()} == {".pdf"}
    assert thinwire("plot", str(out), "--out", str(tmp_path / "one.png"), "--size", "5x4")[0] == 0
    header = (tmp_path / "one.png").read_bytes()[16:24]
    assert header == (600).to_bytes(4, "big") + (480).to_bytes(4, "big")  # at 120 dots an inch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "pgn"], "--format pgn (did you mean png?): it is one of "),
        (["--format", "pdf", "--out", "x.svg"], "--format pdf and --out x.svg are two formats: leave one out"),
        (["--out", __file__], f"--out {__file__}: that is a file; name a folder, or a file with a suffix such as .svg"),
        (["--size", "big"], "--size big: width x height in inches, such as 8x5"),
        (["--size", "0x5"], "--size 0x5: width x height in inches, such as 8x5"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_one_line(compared, thinwire, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, _, error = thinwire("plot", str(compared[0]), *words)
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1


def test_arguments_of_simulate_that_are_wrong_say_what_to_give():
    # In a process without pytest, whose checks of annotations come before our own.
    code = """
import torch, thinwire as tw
from torch import nn
pair = (torch.randn(4, 2), torch.zeros(4).long())
one, model, fed = torch.utils.data.TensorDataset(*pair), nn.Linear(2, 2), tw.FedAvg()
for arguments, more in [
    ((fed, model, [pair], 1.5), {}),
    ((fed, model, [pair], 1), {"network": 10}),
    ((fed, model, [pair], 1), {"privacy": 1}),
    ((fed, model, {"a": pair}, 1), {}),
    ((fed, model, one, 1), {}),
    ((fed, model, pair, 1), {}),
    ((fed, nn.Linear, [pair], 1), {}),
    ((fed, lambda: 3, [pair], 1), {}),
    ((tw.FedAvg, model, [pair], 1), {}),
    ((fed, model, [pair], 1), {"evaluate_every": 2.0}),
    ((fed, model, [pair], 1), {"device": "cuda:99"}),
]:
    try:
        tw.simulate(*arguments, **more)
        print("nothing")
    except ValueError as error:
        print(error)
"""
    done = processes.program(code)
    device = "this machine has no CUDA device that torch can use; use cpu"
    if torch.cuda.is_available():
        device = f"this machine has {torch.cuda.device_count()} CUDA devices, counted from cuda:0"
    assert done.stdout.splitlines() == [
        "rounds=1.5: a whole number is expected",
        "Setting(network=10): Network such as Network(mbit=10) or None is expected",
        "Setting(privacy=1): Privacy such as Privacy(clip=1, noise=1) or None is expected",
        "tasks is a dict: give a list with one task a client, list(tasks.values())",
        "tasks is one TensorDataset: give a list with one task a client; Supervised(inputs, targets, part) for each "
        "part of a split, or torch.utils.data.Subset(dataset, part), deals one data set to many",
        "tasks is one pair of inputs and targets: give a list with one task a client, [(inputs, targets), ...]",
        "model=Linear: it cannot be called without arguments (missing a required argument: 'in_features'); give a "
        "module, Linear(...), or a function that makes one, lambda: Linear(...)",
        "model=<lambda>: it made 3, which is no module",
        "FedAvg is a class: make a method of it, such as FedAvg()",
        "Setting(evaluate_every=2.0): int is expected",
        f"device='cuda:99': {device}",
    ], done.stderr
