"""Studies of every kind: one folder, one way to go on, one table and one set of plots."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import thinwire as tw
from thinwire import cli
from thinwire.cli import finish
from thinwire.errors import RunError
from thinwire.report import html, plots, table
from thinwire.run.folder import lock_folder
from thinwire.studies import KINDS, DataParallel, Federated, Pipelined, Study, load
from thinwire.studies.loading import study_of
from thinwire.studies.read import EVERY_LINE, arms, unit_of

pytest.importorskip("sklearn")


class Row(NamedTuple):
    """A small study as it is typed: its two methods have folders of these names."""

    words: list[str]
    folders: tuple[str, str]
    stopped: int  # the record at which it is interrupted: in its second run, after the first checkpoint of that
    plots: list[str]


FEDERATED = "run FedAvg() FedAvg(up=ErrorFeedback(TopK(0.1))) --clients 4 --rounds 4 --checkpoint-every 2 --lr 0.2"
DATA_PARALLEL = (
    "ddp-sim DEF(16) Hook(ErrorFeedback(TopK(0.1))) --workers 2 --steps 10 --evaluate-every 3 --checkpoint-every 3"
)
PIPELINED = (
    "pipeline run BPK() DSP((1,0),(2,0),activations=Int8()) --parts 2 --batch 16 --steps 10 --evaluate-every 3 "
    "--checkpoint-every 3"
)
STUDIES = {
    "federated": Row(
        [*FEDERATED.split(), "--workers", "1"],
        ("01-FedAvg", "02-FedAvg-up-ErrorFeedback-TopK-0.1"),
        7,
        ["bytes_total", "bytes_up", "floats_up", "rounds", "seconds"],
    ),
    "data-parallel": Row(
        DATA_PARALLEL.split(),
        ("01-DEF-16.0", "02-Hook-ErrorFeedback-TopK-0.1"),
        6,
        ["bytes_total", "bytes_up", "steps", "wall_seconds"],
    ),
    "pipelined": Row(
        [*PIPELINED.split(), "--cut", "2", "--forward", "0.01,0.02", "--backward", "0.01,0.02"],
        ("01-BPK", "02-DSP-1-0-m-2-0-activations-Int8"),
        6,
        ["bytes_total", "seconds", "steps", "wall_seconds"],
    ),
}
each_kind = pytest.mark.parametrize("kind", STUDIES)
Command = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def thinwire(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives its exit code, the lines of standard output, and standard error."""

    def run(*words: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out.splitlines(), out.err

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A study of each kind that was never stopped."""
    folders = {}
    for kind, row in STUDIES.items():
        folders[kind] = tmp_path_factory.mktemp(kind) / "whole"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["thinwire", *row.words, "--out", str(folders[kind])])
            with pytest.raises(SystemExit) as stop:
                cli.main()
        assert not stop.value.code
    return folders


@pytest.fixture
def copied(finished: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A finished study to write into."""
    return lambda kind: Path(shutil.copytree(finished[kind], tmp_path / "out"))


def lines(folder: Path) -> list[dict[str, Any]]:
    """Those of ``rounds.jsonl``, but for the time they took."""
    found = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def test_every_kind_says_what_its_lines_have_and_each_small_study_is_of_one() -> None:
    assert set(KINDS) == set(EVERY_LINE)
    assert {"federated", "data-parallel", "pipelined"} <= set(STUDIES) <= set(KINDS)


@pytest.mark.slow
@each_kind
def test_a_study_that_is_interrupted_goes_on_to_the_bits_of_one_that_is_not(
    kind: str, thinwire: Command, finished: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, out, calls = STUDIES[kind], tmp_path / "out", list[int]()

    def stop(*_: object) -> None:
        calls.append(1)
        if len(calls) == row.stopped:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finish, "_log", stop)
        code, _, error = thinwire(*row.words, "--out", str(out))
    assert (code, error.splitlines()[-1]) == (
        130,
        f"interrupted; `thinwire resume {out}` continues from the last checkpoint",
    )
    assert (out / row.folders[0] / "seed-0/summary.json").exists()
    assert not (out / row.folders[1] / "seed-0/summary.json").exists()
    again = list[tuple[str, int]]()
    monkeypatch.setattr(finish, "_log", lambda name, record: again.append((name, record[unit_of(kind)])))
    code, shown, error = thinwire("resume", str(out), "--json")
    assert code == 0, error
    # What was complete is not trained again, and the other goes on from its checkpoint.
    assert again == [(f"{row.folders[1]}/seed-0", step) for step in ((3, 4) if kind == "federated" else (9, 10))]
    for name in row.folders:
        one, other = out / name / "seed-0", finished[kind] / name / "seed-0"
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        assert lines(one) == lines(other)
    rows = json.loads(shown[-1])["rows"]
    assert [one[f"{unit_of(kind)}s"] for one in rows] == [load(out).length] * 2


@pytest.mark.slow
@pytest.mark.drawn
@each_kind
def test_a_study_of_every_kind_has_the_plots_of_its_kind(
    kind: str, finished: dict[str, Path], thinwire: Command, tmp_path: Path
) -> None:
    code, shown, error = thinwire("plot", str(finished[kind]), "--out", str(tmp_path))
    assert code == 0, error
    found = sorted(Path(line).name for line in shown)
    expected = [f"{value}_by_{name}.png" for name in STUDIES[kind].plots for value in ("accuracy", "loss")]
    assert found == sorted([*expected, "overview.png", f"sent_by_{unit_of(kind)}s.png"])
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in found)


@each_kind
def test_a_seed_that_has_only_begun_leaves_table_and_report_as_they_were(
    kind: str, thinwire: Command, copied: Callable[[str], Path]
) -> None:
    out = copied(kind)
    before = table.rows(arms([out]))
    first = min(out.rglob("seed-*"))
    begun = Path(shutil.copytree(first, first.parent / "seed-9"))
    (begun / "run.json").write_text(json.dumps({**json.loads((first / "run.json").read_text()), "seed": 9}))
    (begun / "rounds.jsonl").write_text("")
    (begun / "summary.json").unlink()
    after = table.rows(arms([out]))
    assert [row.pop("seeds_left_out") for row in (*before, *after)] == [[], [], [9], []]
    assert after == before
    assert thinwire("table", str(out))[0] == thinwire("report", str(out))[0] == 0
    said = html.gather([out])["warnings"]
    assert any("seed 9, has 0" in words for words in said)
    assert not any("differ" in words for words in said if "seeds" not in words)


def replanned(out: Path, **changed: Any) -> None:
    """A study that plans otherwise than it was trained."""
    values = json.loads((out / "study.json").read_text())
    (out / "study.json").write_text(json.dumps(values | changed))


@each_kind
def test_methods_and_seeds_that_have_not_begun_are_said(kind: str, copied: Callable[[str], Path]) -> None:
    out, (begun, ahead) = copied(kind), STUDIES[kind].folders
    first, second = arms([out])
    replanned(out, seeds=[0, 1, 2])
    shutil.rmtree(out / ahead)
    shutil.copytree(out / begun / "seed-0", out / begun / "seed-1")
    (out / begun / "seed-1/run.json").write_text(json.dumps({**first.runs[0].about, "seed": 1}))
    found = html.gather([out])
    assert f"{first.label} has not begun with seed 2." in found["warnings"]
    assert f"{second.label} has not begun with seeds 0, 1 and 2." in found["warnings"]
    assert dict(found["setting"])["Seeds"] == "0, 1; not begun: 2"
    assert [row[0] for row in found["table"]["rows"]] == [f"{first.label} (2 of 3 seeds)"]
    (out / begun / "seed-1/summary.json").unlink()
    (row,) = table.rows(arms([out]))
    assert (row["seeds"], row["seeds_left_out"]) == ([0], [1, 2])
    assert f"{first.label} has not begun with seed 2." in html.gather([out / begun / "seed-0"])["warnings"]
    said = html.gather([out / begun])["warnings"]  # of one method nothing is said of the other
    assert f"{first.label} has not begun with seed 2." in said
    assert not any(second.label in words for words in said)


@each_kind
def test_a_seed_has_not_begun_where_no_study_has_it(kind: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    out, (begun, ahead) = copied(kind), STUDIES[kind].folders
    other = tmp_path / "other"
    shutil.copytree(out, other)
    replanned(out, seeds=[0, 1, 2])
    replanned(other, seeds=[2, 3])
    shutil.rmtree(other / ahead)
    about = json.loads((other / begun / "seed-0/run.json").read_text())
    (other / begun / "seed-0").rename(other / begun / "seed-2")
    (other / begun / "seed-2/run.json").write_text(json.dumps({**about, "seed": 2}))
    first = arms([out, other])[0]
    assert f"{first.label} has not begun with seeds 1 and 3." in html.gather([out, other])["warnings"]


@each_kind
def test_a_run_with_less_than_is_planned_says_how_much_that_is(kind: str, copied: Callable[[str], Path]) -> None:
    out, unit = copied(kind), unit_of(kind)
    first, second = arms([out])
    made = first.runs[0].length
    if kind == "federated":  # whose rounds may become more
        replanned(out, rounds=1234)
        found = html.gather([out])
        assert found["table"]["rows"][0][0] == f"{first.label} (after round 4 of 1,234)"
        assert f"{first.label}, seed 0, has 4 of 1,234 rounds: its figures" in " ".join(found["warnings"])
        replanned(out, rounds=4)
    path = second.runs[0].path
    (path / "summary.json").unlink()
    (path / "rounds.jsonl").write_text((path / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    one = lines(path)[0][unit]
    found = html.gather([out])
    assert found["table"]["rows"][1][0] == f"{second.label} (after {unit} {one} of {made})"
    assert f"has {one} of {made} {unit}s so far and is not finished" in " ".join(found["warnings"])
    (out / "study.json").unlink()
    rest = f" of {made}" if kind != "federated" else ""  # a federated run by itself does not say
    assert html.gather([out])["table"]["rows"][1][0] == f"{second.label} (after {unit} {one}{rest})"


@each_kind
def test_the_lines_of_all_kinds_have_the_same_keys_for_what_they_share(kind: str, finished: dict[str, Path]) -> None:
    shared = {"up_bytes", "down_bytes", "train_loss", "test_loss", "accuracy", "seconds"}
    for arm in arms([finished[kind]]):
        (run,) = arm.runs
        assert run.summary is not None
        assert all(shared | {unit_of(kind)} <= line.keys() for line in run.rounds)
        for way in ("up", "down"):
            assert sum(line[f"{way}_bytes"] for line in run.rounds) == run.summary[f"bytes_{way}"] > 0


def test_bytes_of_a_worker_are_what_it_gives_to_collectives_and_what_it_gets_back(finished: dict[str, Path]) -> None:
    first, second = (arm.runs[0].rounds for arm in arms([finished["data-parallel"]]))
    # 4,810 parameters, a block of 300 of them and the sum of its squares, by all-reduce: three steps, and one.
    assert [r["up_bytes"] for r in first] == [3 * 1204, 3 * 1204, 3 * 1204, 1204]
    assert [r["down_bytes"] for r in first] == [3 * 1204, 3 * 1204, 3 * 1204, 1204]
    assert [r["reduced_bytes"] for r in first] == [3 * 1204, 3 * 1204, 3 * 1204, 1204]
    # By all-gather between two workers each gets the packet of the other.
    assert [r["gathered_bytes"] for r in second] == [r["up_bytes"] for r in second] == [r["down_bytes"] for r in second]


HEADS = {
    "federated": "MB up,MB down,up / FedAvg,total / FedAvg,s at 1 Mbit/s,s at 10,s at 100,s here,M floats up",
    "data-parallel": "of x,kB a step,MB up,MB down,up / Dense,s here",
    "pipelined": "loss,test loss,staleness,MB 0-1,MB ahead,MB back,total / BPK,s a batch,s by the law,x BPK,s here",
}


@each_kind
def test_the_table_of_a_kind_has_its_columns(kind: str, finished: dict[str, Path]) -> None:
    text = (finished[kind] / "table.md").read_text()
    head, _, *rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|"))
    assert head == ["method", "accuracy", "best", *HEADS[kind].split(",")]
    assert [row[0] for row in rows] == [f"`{arm.label}`" for arm in arms([finished[kind]])]
    assert text.splitlines()[-2].startswith(f"thinwire {STUDIES[kind].words[0]} ")


TASK = """
from thinwire.data import IID
from thinwire.problem import Problem, standard


def make(clients, seed):
    return standard("digits", "mlp", clients, IID(), seed)


def several(seed):
    return make(3, seed)


def untested(clients, seed):
    return make(clients, seed).model, make(clients, seed).tasks
"""


@pytest.mark.slow
@each_kind
def test_a_task_of_ones_own_is_trained_as_a_data_set_of_thinwires_is(
    kind: str, thinwire: Command, finished: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_task.py").write_text(TASK)
    monkeypatch.delitem(sys.modules, "own_task", raising=False)
    words, folder = STUDIES[kind].words, STUDIES[kind].folders[0]
    assert thinwire(*words, "--task", "own_task:make", "--out", "out")[0] == 0
    assert lines(tmp_path / "out" / folder / "seed-0") == lines(finished[kind] / folder / "seed-0")
    assert thinwire("table", "out", "--json")[0] == 0
    if kind != "federated":
        for name, why in (
            ("several", "made 3 data sets: let its function take `clients`, which is 1 here"),
            ("untested", "made no test set: let its function return (model, tasks, test)"),
        ):
            code, _, error = thinwire(*words, "--task", f"own_task:{name}", "--out", "other")
            assert (code, error) == (2, f"error: --task own_task:{name} {why}\n")
    assert not (tmp_path / "other").exists()


@each_kind
def test_a_study_is_what_it_was_when_it_is_read_again(kind: str, finished: dict[str, Path], tmp_path: Path) -> None:
    study = load(finished[kind])
    assert type(study) is KINDS[kind]
    study.save(tmp_path)
    assert (tmp_path / "study.json").read_bytes() == (finished[kind] / "study.json").read_bytes()
    assert load(tmp_path) == study
    study.agree(finished[kind])


@each_kind
def test_a_damaged_study_is_named(kind: str, thinwire: Command, copied: Callable[[str], Path]) -> None:
    out = copied(kind)
    (out / "study.json").write_text((out / "study.json").read_text()[:100])
    code, _, error = thinwire("resume", str(out))
    assert code == 2
    assert error.startswith(f"error: {out / 'study.json'} is damaged: ")
    assert error.count("\n") == 1


@each_kind
def test_a_study_in_use_is_named(kind: str, thinwire: Command, copied: Callable[[str], Path]) -> None:
    out = copied(kind)
    with lock_folder(out):
        code, _, error = thinwire("resume", str(out))
        assert (code, error) == (
            2,
            f"error: {out} is in use by another run: choose another folder or wait for it to end\n",
        )
        assert thinwire(*STUDIES[kind].words, "--out", str(out), "--overwrite")[2] == error
    assert (out / STUDIES[kind].folders[0] / "seed-0/summary.json").exists()


@each_kind
def test_the_folder_of_another_run_is_named(kind: str, thinwire: Command, copied: Callable[[str], Path]) -> None:
    out = copied(kind)
    one, other = (out / name / "seed-0" for name in STUDIES[kind].folders)
    (other / "summary.json").unlink()
    shutil.copy(one / "run.json", other / "run.json")
    code, _, error = thinwire("resume", str(out))
    assert code == 2
    assert error.splitlines()[-1].startswith(f"error: {other} is another run: its ")


@each_kind
def test_a_study_takes_the_folder_of_another_only_if_it_may(
    kind: str, thinwire: Command, finished: dict[str, Path], copied: Callable[[str], Path]
) -> None:
    out, row = copied(kind), STUDIES[kind]
    (out / "left.png").write_text("of before")
    code, _, error = thinwire(*row.words, "--out", str(out))
    assert (code, error) == (
        2,
        f"error: {out} holds a study: `thinwire resume {out}`, another --out, or --overwrite\n",
    )
    study = load(finished[kind])
    other = replace(study, methods=study.methods[:1], folders=())
    other.claim(out, overwrite=True)
    assert {path.name for path in out.iterdir()} == {".lock", "study.json"}
    assert load(out) == other
    assert other.folders == row.folders[:1]


def test_a_data_parallel_study_goes_on_with_resume_if_it_is_the_same(
    thinwire: Command, finished: dict[str, Path], copied: Callable[[str], Path], tmp_path: Path
) -> None:
    words, out = STUDIES["data-parallel"].words, copied("data-parallel")
    code, _, error = thinwire(*words, "--checkpoint-every", "9", "--out", str(out), "--resume")
    assert (code, error) == (0, "")
    code, _, error = thinwire(*words, "--momentum", "0.5", "--out", str(out), "--resume")
    assert (code, error) == (2, f"error: {out} is another study: momentum is 0.9, not 0.5\n")
    federated = finished["federated"]
    code, _, error = thinwire(*words, "--out", str(federated), "--resume")
    assert (code, error) == (2, f"error: {federated} is another study: kind is federated, not data-parallel\n")
    code, _, error = thinwire(*words, "--out", str(tmp_path / "new"), "--resume")
    assert (code, error) == (2, f"error: {tmp_path / 'new'} does not exist\n")
    code, _, error = thinwire("resume", str(out), "--rounds", "20")
    assert (code, error) == (2, "error: --rounds: a data-parallel study cannot go on with another; leave it out\n")


def test_a_federated_study_only_grows(thinwire: Command, finished: dict[str, Path]) -> None:
    code, _, error = thinwire("resume", str(finished["federated"]), "--rounds", "3")
    assert (code, error) == (2, "error: --rounds 3: this study has 4 already; it can only grow\n")


@pytest.mark.parametrize(("name", "text"), [("run.json", '{"format": 2, "methods": ["FedAvg()"]}'), ("ddp.json", "{}")])
def test_a_study_of_before_there_was_one_format_is_refused(
    thinwire: Command, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    code, _, error = thinwire("resume", str(tmp_path))
    said = "a study of a version before study.json: go on with that version, or begin it anew in another folder"
    assert (code, error) == (2, f"error: {tmp_path} holds {said}\n")


def test_a_run_that_merely_lies_below_a_study_is_no_part_of_it(tmp_path: Path) -> None:
    """Its model and data are not the study's."""
    study = Federated(Federated.resolve(["FedAvg()"]), clients=2, rounds=1)
    study.save(tmp_path)
    assert study.folders == ("01-FedAvg",)
    assert study_of(tmp_path / "01-FedAvg/seed-0") == study
    assert study_of(tmp_path / "mine/seed-0") is None


@pytest.mark.parametrize("other", ["federated", "pipelined"])
def test_runs_of_different_kinds_are_shown_apart(thinwire: Command, finished: dict[str, Path], other: str) -> None:
    for command in ("plot", "table"):
        code, _, error = thinwire(command, str(finished["data-parallel"]), str(finished[other]))
        assert code == 2
        assert f"is data-parallel, {finished[other]}/01-" in error
        assert error.endswith(f"is {other}: these share no table and no axis, so name folders of one kind\n")
        assert error.count("\n") == 1


FAILING = """
from dataclasses import dataclass
from thinwire.errors import NonFinite
from thinwire.links.base import Codec

@dataclass(frozen=True)
class Failing(Codec):
    "A link over which training diverges."

    def encode(self, x, key):
        raise NonFinite(f"round {key.round}: it diverged")

    def decode(self, packet, shape, key):
        return packet.view(shape)
"""


@each_kind
def test_a_method_that_fails_does_not_take_the_others(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    studies: dict[str, Study] = {
        "federated": Federated(
            Federated.resolve(["FedAvg(up=Failing())", "FedAvg()"], ["failing"]), use=("failing",), clients=3, rounds=2
        ),
        "data-parallel": DataParallel(
            DataParallel.resolve(["Hook(Failing())", "Hook(Dense())"], ["failing"]),
            use=("failing",),
            workers=2,
            steps=2,
        ),
        "pipelined": Pipelined(
            Pipelined.resolve(["BPK(activations=Failing())", "BPK()"], ["failing"]),
            use=("failing",),
            parts=2,
            steps=2,
        ),
    }
    study, out = studies[kind], tmp_path / "out"
    study.claim(out)
    (failure,) = study.run(out)
    assert failure.startswith(f"{study.parse_methods()[0]!r}, seed 0: round ")
    assert failure.endswith("it diverged")
    assert [path.parents[1].name for path in out.rglob("summary.json")] == [study.folders[1]]
    found = arms([out])
    assert [arm.runs[0].length for arm in found] == [0, 2]
    assert study.run(out) == [failure]  # again, and the other not


@each_kind
def test_one_run_of_a_study_that_was_deleted_is_trained_again(
    kind: str, finished: dict[str, Path], copied: Callable[[str], Path]
) -> None:
    out, name = copied(kind), STUDIES[kind].folders[1]
    shutil.rmtree(out / name)
    assert load(out).run(out) == []
    assert lines(out / name / "seed-0") == lines(finished[kind] / name / "seed-0")


def test_a_study_of_a_kind_that_there_is_not_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"kind": "split", "format": 3}')
    with pytest.raises(RunError, match=r"study\.json: kind is 'split'; known are federated, data-parallel, pipelined$"):
        load(tmp_path)


def test_the_methods_of_all_kinds_are_listed(thinwire: Command) -> None:
    code, shown, _ = thinwire("methods", "--json")
    kinds = {(entry["name"], entry["kind"]) for entry in json.loads(shown[-1])["methods"]}
    assert code == 0
    assert {("FedAvg", "algorithm"), ("DEF", "data-parallel"), ("Hook", "data-parallel"), ("TopK", "link")} <= kinds
    assert {name for name, kind in kinds if kind == "data-parallel"} == {*tw.ddp.methods.METHODS}
    assert {name for name, kind in kinds if kind == "pipeline schedule"} == {*tw.pipeline.schedule.SCHEDULES}
    assert ("AQSGD", "pipeline link") in kinds


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.3, 400, [1, 10, 100]),
        (1e-9, 1e4, [1e-8, 1e-6, 1e-4, 1e-2, 1, 100, 1e4]),
        (2.1, 60, [5, 10, 20, 50]),
        (2.1, 19, [5, 10, 15]),
        (2.05, 2.28, [2.05, 2.1, 2.15, 2.2, 2.25]),
        (1.55, 1.95, [1.6, 1.7, 1.8, 1.9]),
        (0.51, 0.575, [0.52, 0.54, 0.56]),
        (6.1, 7.9, [6.5, 7, 7.5]),
        (1.6, 2.3, [1.6, 1.8, 2, 2.2]),
        (12345, 12346, [12345, 12345.5, 12346]),
    ],
)
def test_a_logarithmic_axis_has_at_least_three_ticks(low: float, high: float, expected: list[float]) -> None:
    assert plots.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("high", [1.02, 1.3, 3.0, 9.0, 90.0, 4e3, 1e7])
def test_numbers_of_a_logarithmic_axis_are_plain_and_leave_each_other_room(high: float) -> None:
    figure, places = plots.plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for place in places:
        place.plot([0.0075, 0.0075 * high], [0, 1])
        plots.logarithmic(place)
    figure.canvas.draw()
    for place in places:
        low, most = place.get_xlim()
        shown = [tick.label1 for tick in place.xaxis.get_major_ticks() if low <= tick.get_loc() <= most]
        assert len(shown) >= 3
        assert [float(one.get_text().replace(",", "")) for one in shown] == pytest.approx(
            [tick for tick in place.get_xticks() if low <= tick <= most]
        )
        boxes = [one.get_window_extent() for one in shown]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    plots.plt.close(figure)
