"""A new kind of study costs a file, a row in ``KINDS`` and a row in ``EVERY_LINE``: here one is made (``toy_kind``)."""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import pytest

from thinwire import cli
from thinwire.cli import train
from thinwire.errors import ExpressionError
from thinwire.report import html
from thinwire.report.loggers import TOOLS, Log, Tool
from thinwire.report.plots import plot
from thinwire.studies import KINDS, DataParallel, Federated, Pipelined, Place, load
from thinwire.studies.catalogue import catalogue
from thinwire.studies.read import EVERY_LINE, arms
from toy_kind import LINE

pytest.importorskip("sklearn")

ROOM = Path(html.__file__).parent


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two rows beside its file."""
    monkeypatch.setitem(KINDS.places, "toy", Place("toy_kind", "Toy", "toy", "Train toys."))
    monkeypatch.setitem(EVERY_LINE, "toy", LINE)


def thinwire(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["thinwire", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


class Heard(Tool):
    """A tool that notes what it is told."""

    lines: ClassVar[list[tuple[int, set[str]]]] = []

    def __init__(self, out: Path) -> None:
        self.lines.clear()

    def begin(self, name: str, about: dict[str, object], first: int) -> int:
        return 0

    def line(self, at: int, values: dict[str, float]) -> None:
        self.lines.append((at, set(values)))

    def end(self, outcome: str) -> None:
        self.lines.append((-1, {outcome}))


@pytest.mark.usefixtures("toy")
def test_a_new_kind_is_trained_shown_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "toys"
    study = KINDS["toy"](KINDS["toy"].resolve(["Share(1.0)", "Share(0.1)"]), epochs=2)
    assert study.folders == ("01-Share-1.0", "02-Share-0.1")
    study.check()
    study.claim(out)
    monkeypatch.setitem(TOOLS, "heard", Heard)
    with Log(["heard"], out) as log:
        assert study.run(out, log, on_failure=log.fail) == []
    numbers = {"up_bytes", "down_bytes", "kept", "train_loss", "accuracy", "seconds"}
    assert Heard.lines == [(1, numbers), (2, numbers), (-1, {"finished"})] * 2

    # The model of digits has 4,810 numbers, in layers of 64 x 64, 64, 64 x 10 and 10.
    assert thinwire(monkeypatch, "table", str(out), "--markdown", "--json") == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert shown[0] == "| method | accuracy | best | numbers | up / all |"
    assert [line.split(" | ")[3:] for line in shown[2:4]] == [["9,620", "100.0 % |"], ["960", "10.0 % |"]]
    assert shown[5] == "Numbers: those of updates that were sent."
    assert [row["epochs"] for row in json.loads(last)["rows"]] == [2, 2]
    assert thinwire(monkeypatch, "table", str(out)) == 0
    assert "digits, 2 toy epochs" in capsys.readouterr().out

    assert thinwire(monkeypatch, "plot", str(out), "--out", str(tmp_path / "plots")) == 0
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        *("accuracy_by_epochs.png", "accuracy_by_bytes_up.png", "loss_by_epochs.png", "loss_by_bytes_up.png"),
        *("sent_by_epochs.png", "overview.png"),
    }
    capsys.readouterr()

    page = html.gather([out])
    assert (page["title"], page["unit"]) == ("digits, 2 toy epochs", "epoch")
    assert ["Rate", "0.1"] in page["setting"]
    assert not any(name == "Decay" for name, _ in page["setting"])
    assert page["axes"] == {"epochs": "epoch", "bytes_up": "MB of shares"}
    assert page["counted"] == {"bytes_up": "MB of shares"}
    assert page["bytes"] == [{"name": "values and positions", "values": [9620 * 8, 960 * 8]}]
    assert (page["bytes_said"], page["missing"]) == ("All bytes of a toy.", [])
    assert page["curves"][0]["accuracy"]["x"] == {"epochs": [1, 2], "bytes_up": [0.03848, 0.07696]}

    # One that stopped goes on, and one that has not begun is called by its name.
    (out / study.folders[1] / "seed-0/summary.json").unlink()
    assert type(load(out)).__name__ == "Toy"
    assert thinwire(monkeypatch, "resume", str(out)) == 0
    said = capsys.readouterr()
    assert "digits, 2 epochs of a toy" in said.out
    assert said.err.splitlines() == [
        f"02-Share-0.1/seed-0 epoch {n} accuracy {arms([out])[1].runs[0].rounds[n - 1]['accuracy']:.3f} up 3840 B"
        for n in (1, 2)
    ]
    for path in (out / study.folders[1] / "seed-0").iterdir():
        path.unlink()
    assert "Share(0.1) has not begun with seed 0." in html.gather([out])["warnings"]


@pytest.mark.usefixtures("toy")
def test_runs_of_one_seed_are_equal_and_one_that_stopped_ends_like_them(tmp_path: Path) -> None:
    study = KINDS["toy"](KINDS["toy"].resolve(["Share(0.5)"]), epochs=2, seeds=(1, 2))

    def trained(out: Path) -> list[list[dict[str, float]]]:
        assert load(out).run(out) == []
        return [[{**line, "seconds": 0.0} for line in run.rounds] for run in arms([out])[0].runs]

    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        study.claim(out)
    ones, others = trained(first), trained(second)
    assert ones == others
    assert ones[0] != ones[1]  # the seeds
    stopped = first / study.folders[0] / "seed-2"
    (stopped / "summary.json").unlink()
    (stopped / "rounds.jsonl").write_text((stopped / "rounds.jsonl").read_text().splitlines(True)[0])
    assert trained(first) == ones


@pytest.mark.usefixtures("toy")
def test_the_pictures_of_a_new_kind_are_changed_as_they_are_by_others() -> None:
    words = {"data": "digits", "model": "mlp"}
    task = KINDS["toy"](("Share(part=0.5)",), augment=("Rotate90()",), **words).problem(0).tasks[0]
    assert [repr(change) for change in task.augment] == ["Rotate90()"]


@pytest.mark.usefixtures("toy")
def test_a_new_kind_has_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.app, "registered_commands", [*cli.app.registered_commands])
    train.add("toy")
    assert thinwire(monkeypatch, "--help") == 0
    assert "Train toys." in capsys.readouterr().out
    out = tmp_path / "toys"
    words = ["toy", "Share(0.5)", "Share(0.25)", "--epochs", "1", "--seeds", "1,2", "--rates", "0.1,0.2"]
    assert thinwire(monkeypatch, *words, "--out", str(out), "--json") == 0
    said = capsys.readouterr()
    assert [row["method"] for row in json.loads(said.out.splitlines()[-1])["rows"]] == ["Share(0.5)", "Share(0.25)"]
    assert (load(out).seeds, load(out).rates) == ((1, 2), (0.1, 0.2))
    assert "note: toys are small" in said.err
    for more, why in {
        ("--rates", "a"): "--rates a: a rate an epoch separated by commas, such as 0.1,0.2",
        (
            "--out",
            str(out),
        ): f"{out} holds a study: `thinwire resume {out}`, another --out, or --overwrite",
    }.items():
        assert thinwire(monkeypatch, "toy", "Share(0.5)", *more) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"error: {why}"


def test_a_new_kind_may_begin_a_family_of_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.app, "registered_groups", [*cli.app.registered_groups])
    monkeypatch.setitem(KINDS.places, "toy", Place("toy_kind", "Toy", "toys train", "Train toys."))
    monkeypatch.setitem(EVERY_LINE, "toy", LINE)
    train.add("toy")
    assert thinwire(monkeypatch, "toys", "train", "--help") == 0
    assert "Shares." in capsys.readouterr().out
    assert [command.name for command in cli.app.registered_commands].count("train") == 0


def test_a_row_that_is_missing_or_wrong_is_named_when_its_kind_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("toy_kind", "Toy", "toy", "Train toys.")
    monkeypatch.setattr(cli.app, "registered_commands", [*cli.app.registered_commands])
    for kind, row, why in (
        ("toy", place, "EVERY_LINE of studies/read.py has no row 'toy': write the keys of every line of its rounds"),
        ("toys", place, "KINDS['toys']: Toy has kind = 'toy'; make the two one word"),
        ("toy", place._replace(name="Toys"), "KINDS['toy']: toy_kind has no class Toys"),
        ("toy", place._replace(module=".toys"), "KINDS['toy']: there is no module thinwire.studies.toys"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(KINDS.places, kind, row)
            with pytest.raises(ValueError, match=f"^{re.escape(why)}"):
                KINDS[kind]
    for command in ("report", "pipeline plan"):
        monkeypatch.setitem(KINDS.places, "toy", place._replace(command=command))
        why = f"KINDS['toy']: `thinwire {command}` is there already; choose another command"
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            train.add("toy")


@pytest.mark.usefixtures("toy")
def test_a_field_with_which_a_study_cannot_go_on_is_named_with_the_article_of_the_kind() -> None:
    study = KINDS["toy"](("Share(part=0.5)",))
    with pytest.raises(ValueError, match=r"^--epochs: a toy study cannot go on with another; leave it out$"):
        study.but(epochs=4)
    other = type("Alone", (type(study),), {"kind": "alone"})
    with pytest.raises(ValueError, match=r"^--epochs: an alone study cannot go on with another; leave it out$"):
        other(study.methods).but(epochs=4)


def test_curves_are_not_drawn_against_bytes_that_nobody_sent(tmp_path: Path) -> None:
    for folder, sent in (("silent", 0), ("heard", 8)):
        (run := tmp_path / folder / "seed-0").mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"kind": "data-parallel", "method": "Hook(Dense())", "seed": 0}))
        line = dict.fromkeys(EVERY_LINE["data-parallel"], 0) | {"seconds": 1.0, "accuracy": 0.5, "train_loss": 1.0}
        lines = [{**line, "step": step, "up_bytes": sent} for step in (1, 2)]
        (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = {
            name: {path.name for path in plot(arms([tmp_path / name]), tmp_path / "plots" / name)}
            for name in ("silent", "heard")
        }
    names = {f"{value}_by_bytes_{way}.png" for value in ("accuracy", "loss") for way in ("up", "total")}
    assert files["heard"] - files["silent"] == names
    assert "overview.png" in files["silent"]


def test_no_command_is_of_no_kind() -> None:
    assert {"run", "ddp-sim", "pipeline run"} <= {place.command for place in KINDS.places.values()}
    for place in KINDS.places.values():
        *family, name = place.command.split()
        within = (
            cli.app if not family else next(x.typer_instance for x in cli.app.registered_groups if x.name in family)
        )
        assert name in [command.name for command in within.registered_commands]


@pytest.mark.usefixtures("toy")
def test_a_method_of_a_new_kind_is_refused_by_the_others_and_listed() -> None:
    for cls in (Federated, DataParallel, Pipelined):
        with pytest.raises(ExpressionError, match=r"^Share is a share of a toy, for `thinwire toy`$"):
            cls.method("Share(0.5)")
    toy = KINDS["toy"]
    for text, what in {
        "FedAvg()": "FedAvg is a federated method, for `thinwire run`",
        "DEF(64)": "DEF is a data-parallel method, for `thinwire ddp-sim`",
        "BPK()": "BPK is a schedule of pipelined training, for `thinwire pipeline run`",
    }.items():
        with pytest.raises(ExpressionError) as error:
            toy.method(text)
        assert str(error.value) == what
    assert [(entry.kind, entry.signature) for entry in catalogue() if entry.name == "Share"] == [
        ("toy", "Share(part=0.5)")
    ]


def test_the_report_has_no_name_of_a_kind_in_it() -> None:
    files = {"federated", "data_parallel", "pipelined"}
    named = []
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in KINDS:
                named.append(f"{path.name}:{node.lineno} names {node.value}")
            if isinstance(node, ast.ImportFrom):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                beside = {*files, "ddp", "pipeline", "algorithms", *(place.name for place in KINDS.places.values())}
                named += [f"{path.name}:{node.lineno} imports {part}" for part in parts if part in beside]
    assert named == []
