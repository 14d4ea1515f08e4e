"""A run's settings: one object, the same fields in Python, on the command line and in recorded runs."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from blobs import blobs, mlp
from thinwire.cli import main
from thinwire.errors import RunError
from thinwire.federated import Network, Privacy, Setting
from thinwire.studies import Federated, load
from thinwire.studies.read import arms

# An option of `thinwire run` that is a field of Setting: the field, a value, how it is typed, what is refused and why.
OPTIONS: list[tuple[str, Any, str, str, str]] = [
    ("sample", 3, "3", "0", "--sample 0: it must be at least 1"),
    ("seed", 7, "7", "-1", "--seed -1: it must not be negative, and fit 63 bits"),
    ("dropout", 0.25, "0.25", "1.5", "--dropout 1.5: it is a probability below 1"),
    ("network", Network(3.0), "Network(3)", "10", "--network 10: it is written like Network(mbit=10)"),
    (
        "privacy",
        Privacy(1.0, 2.0),
        "Privacy(1, noise=2)",
        "1",
        "--privacy 1: it is written like Privacy(clip=1, noise=1)",
    ),
    ("clip", "auto", "auto", "0", "--clip 0.0: a norm is positive, or 'auto'"),
    ("evaluate_every", 2, "2", "0", "--evaluate-every 0: it must be at least 1"),
    ("checkpoint_every", 4, "4", "0", "--checkpoint-every 0: it must be at least 1"),
    ("workers", 1, "1", "0", "--workers 0: it must be at least 1"),
    ("device", "cpu:0", "cpu:0", "tpu9", "--device tpu9: no such device here; use cpu or cuda"),
    ("plan", "each", "each", "fast", "--plan fast: one of 'each', 'together', 'compiled', 'measured' is expected"),
    ("states", "disk", "disk", "tape", "--states tape: one of 'memory', 'disk' is expected"),
    (
        "record",
        "looks",
        "looks",
        "loud",
        "--record loud: one of 'looks', 'bytes', 'layers', 'gradients', 'models', 'all' is expected",
    ),
    ("start", "known", "known", "drawn", "--start drawn: one of 'sent', 'known' is expected"),
    ("aggregate", tw.Median(), "Median()", "1", "--aggregate 1: it is written like Median()"),
    ("expel", 5, "5", "0", "--expel 0: it must be at least 1"),
    (
        "attack",
        tw.SignFlip(0.5, 2.0),
        "SignFlip(0.5, scale=2)",
        "1",
        "--attack 1: it is written like SignFlip(0.2, scale=10)",
    ),
    ("buffer", tw.Buffered(2), "Buffered(2)", "2", "--buffer 2: it is written like Buffered(5)"),
    ("sampler", tw.PowerOfChoice(4), "PowerOfChoice(4)", "4", "--sampler 4: it is written like PowerOfChoice(20)"),
]


def test_the_table_has_a_row_for_every_field() -> None:
    assert [name for name, *_ in OPTIONS] == [field.name for field in fields(Setting)]
    assert set(Setting.may_change) <= {field.name for field in fields(Setting)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, value, *_ in OPTIONS if name != "seed"])
def test_runs_with_another_value_of_a_field_that_changes_results_are_no_seeds_of_one(
    name: str, value: Any, tmp_path: Path
) -> None:
    for seed, changed in enumerate(({}, {name: value})):
        given = {**({"aggregate": tw.Median()} if name == "expel" else {}), **changed}
        about = {"method": "FedAvg()", **Setting(seed=seed).but(given).fixed_fields()}
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "run.json").write_text(json.dumps(about))
        (tmp_path / str(seed) / "rounds.jsonl").write_text("")
    assert len(arms([tmp_path])) == (1 if name in Setting.may_change else 2)


def ran(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["thinwire", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


# What is refused beside `privacy`, whose bound is its own and whose noise is that of a mean, and beside `sampler`.
APART = [("clip", "aggregate", "expel", "sampler"), ("privacy", "sampler"), ("privacy", "buffer")]


@pytest.mark.parametrize("out", APART, ids=str)
def test_every_option_is_recorded_and_read_again(
    out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = [
        word for name, _, typed, *_ in OPTIONS for word in (f"--{name.replace('_', '-')}", typed) if name not in out
    ]
    words = ["FedAvg(weights='uniform')", "--clients", "4", "--rounds", "1", *options, "--out", str(tmp_path / "out")]
    assert ran(monkeypatch, "run", *words) == 0
    expected = Setting(**{name: value for name, value, *_ in OPTIONS if name not in out})
    assert json.loads((tmp_path / "out/study.json").read_text())["setting"] == tw.complete(expected)
    study = load(tmp_path / "out")
    assert isinstance(study, Federated)
    assert study.setting == expected
    assert study.seeds == (7,)
    about = json.loads((tmp_path / "out/01-FedAvg-weights-uniform/seed-7/run.json").read_text())
    assert {name: about[name] for name in expected.fixed_fields()} == expected.fixed_fields()


@pytest.mark.parametrize(("name", "refused", "said"), [(name, refused, said) for name, _, _, refused, said in OPTIONS])
def test_what_is_refused_is_said_of_the_option(
    name: str, refused: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, "run", "FedAvg()", f"--{name.replace('_', '-')}", refused) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_the_help_of_run_has_every_field(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert ran(monkeypatch, "run", "--help") == 0
    shown = capsys.readouterr().out
    for field in fields(Setting):
        assert shown.count(f"--{field.name.replace('_', '-')} ") >= 1
        assert field.metadata["help"].split()[0] in shown


def test_keywords_replace_fields_of_the_setting() -> None:
    setting = Setting(sample=3, seed=1, workers=1)
    one = tw.simulate(tw.FedAvg(), mlp, blobs(), 2, setting, seed=5)
    other = tw.simulate(tw.FedAvg(), mlp, blobs(), 2, sample=3, seed=5, workers=1)
    assert one.params.flat.equal(other.params.flat)
    assert one.setting == other.setting
    run = tw.Simulation(tw.FedAvg(), mlp, blobs(), setting, dropout=0.5)
    run.pool.close()
    assert run.setting == replace(setting, dropout=0.5)


@pytest.mark.parametrize(
    "call", [tw.Simulation, lambda *a, **k: tw.simulate(*a, 1, **k)], ids=["Simulation", "simulate"]
)
def test_a_keyword_that_is_no_field_names_the_nearest(call: Any) -> None:
    with pytest.raises(
        TypeError, match=r"a run has no setting 'smaple' \(did you mean sample\?\); the fields of Setting"
    ):
        call(tw.FedAvg(), mlp, blobs(), smaple=3)


def test_a_setting_can_be_typed_back() -> None:
    for out in APART:
        setting = Setting(**{name: value for name, value, *_ in OPTIONS if name not in out})
        assert tw.parse(tw.complete(setting)) == tw.parse(repr(setting)) == setting
    assert repr(Setting()) == "Setting(seed=0)"


def test_what_may_change_on_resume_may_and_what_may_not_is_named(tmp_path: Path) -> None:
    setting = Setting(sample=3, network=Network(3.0), workers=1, checkpoint_every=1)
    tw.simulate(tw.FedAvg(), mlp, blobs(), 1, setting, out=tmp_path)
    with pytest.raises(RunError, match=r"its network.mbit is 3\.0, not 4\.0"):
        tw.simulate(tw.FedAvg(), mlp, blobs(), 2, setting, network=Network(4.0), out=tmp_path, resume=True)
    method = tw.FedAvg(weights="uniform")
    tw.simulate(method, mlp, blobs(), 1, setting, out=tmp_path / "uniform")
    with pytest.raises(RunError, match=r"its privacy is None, not Privacy\(clip=1\.0, noise=1\.0\)"):
        tw.simulate(method, mlp, blobs(), 2, setting, privacy=Privacy(1.0, 1.0), out=tmp_path / "uniform", resume=True)
    changed = replace(setting, workers=2, checkpoint_every=5, evaluate_every=3)
    assert len(tw.simulate(tw.FedAvg(), mlp, blobs(), 2, changed, out=tmp_path, resume=True).rounds) == 2
