"""``thinwire look``, as its users meet it: tables, figures, one JSON object, one line for every mistake."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import thinwire as tw
from thinwire.cli import main
from thinwire.expression import parse
from thinwire.look import gradients, pictures
from thinwire.look.final import final, losses
from thinwire.look.leakage import Leak, draw_leaks
from thinwire.look.path import models_of
from thinwire.params import Params
from thinwire.report.curves import NAMES
from thinwire.studies.read import EVERY_LINE, arms

Look = Callable[..., tuple[int, str, str]]
METHODS = ("FedAvg(up=LBGM(threshold=0.9))", "LUAR(FedAvg(), recycle=1)")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, everything recorded."""
    out = tmp_path_factory.mktemp("look") / "study"
    words = ["--clients", "3", "--rounds", "4", "--record", "all", "--workers", "1", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["thinwire", "run", *METHODS, *words])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    return out


def found(out: str) -> dict:
    answer: dict = json.loads(out.splitlines()[-1])
    assert all(Path(path).read_bytes()[:4] == b"\x89PNG" for path in answer["files"])
    return answer


@pytest.mark.slow
def test_gradients_and_look_back_tests_of_a_run_are_drawn(thinwire: Look, study: Path, tmp_path: Path) -> None:
    run = next(study.glob("01-*/seed-0"))
    code, out, _ = thinwire("look", "gradients", str(run), "--out", str(tmp_path), "--json")
    assert code == 0
    answer = found(out)
    (seen,) = answer["runs"].values()
    assert [layer["layer"] for layer in seen["layers"]] == ["*", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert seen["progression"][-1][0] == 4
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == ["bounds.png", "components.png", "cosines.png", "look_back.png", "overlap.png"]
    # Every number that the figures show is here too.
    names = ["*", "1.weight", "1.bias", "3.weight", "3.bias"]
    maps = seen["heat_maps"]
    assert maps["rounds"] == [1, 2, 3, 4]
    assert list(maps["overlap"]) == list(maps["cosines"]) == list(seen["progressions"]) == names
    assert all(row[i] == 1 for values in maps["cosines"].values() for i, row in enumerate(values))
    assert [len(values[0]) for values in maps["overlap"].values()] == [4] * 5
    assert seen["progressions"]["*"] == seen["progression"]
    assert all(by_layer[-1][0] == 4 for by_layer in seen["progressions"].values())
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert seen["reached"] == {
        "value": "accuracy",
        "rounds": [1, 2, 3, 4],
        "values": pytest.approx([100 * line["accuracy"] for line in lines]),
    }
    assert [(e["round"], e["client"]) for e in seen["looks"]] == [(r, c) for r in (1, 2, 3, 4) for c in (0, 1, 2)]
    assert {"field", "layer", "sin2", "rho", "recycled"} <= seen["looks"][0].keys()
    by_client = seen["by_client"]
    assert (by_client["clients"], by_client["rounds"]) == ([0, 1, 2], [1, 2, 3, 4])
    for value in ("sin2", "rho"):
        assert by_client[value][1] == [e[value] for e in seen["looks"] if e["client"] == 1]  # of one layer each
    by_layer = seen["by_layer"]
    assert (by_layer["layers"], by_layer["rounds"], by_layer["sin2"][0][0]) == (["*"], [1, 2, 3, 4], None)
    assert by_layer["rho"][0][3] == pytest.approx(sum(e["rho"] for e in seen["looks"] if e["round"] == 4) / 3)
    assert "look-back tests:" in out
    assert "Equation 45, with a smoothness of" in out


@pytest.mark.soak
def test_what_models_are_judged_by_is_drawn_below_the_components(
    thinwire: Look, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(next(study.glob("01-*/seed-0")), tmp_path / "run")
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines, 1):
        line["dice"] = number / 10
        del line["accuracy"]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen: list[Any] = []
    drawn = gradients.draw_components
    monkeypatch.setattr(gradients, "draw_components", lambda *given: seen.append(given[3:]) or drawn(*given))
    assert thinwire("look", "gradients", str(run))[0] == 0
    ((reached, value),) = seen
    assert (reached.middle.tolist(), NAMES[value]) == ([10, 20, 30, 40], "Dice coefficient, %")


@pytest.mark.slow
def test_layers_of_a_study_are_drawn_into_the_folders_of_its_runs(thinwire: Look, study: Path) -> None:
    code, out, _ = thinwire("look", "layers", str(study), "--json")
    assert code == 0
    answer = found(out)
    runs = sorted(study.glob("*/seed-0"))
    assert answer["files"] == [str(run / "look/layers.png") for run in runs]
    kappas = [answer["runs"][str(run.relative_to(study))]["kappa"] for run in runs]
    assert [[len(line["unsent"]) for line in kappa] for kappa in kappas] == [[0, 0, 0, 0], [0, 1, 1, 1]]
    assert "kappa: mean" in out


def test_subspaces_take_a_rank(thinwire: Look, study: Path, tmp_path: Path) -> None:
    run = next(study.glob("01-*/seed-0"))
    code, out, _ = thinwire(
        "look", "subspace", str(run), "--rank", "1", "--start", "2", "--out", str(tmp_path), "--json"
    )
    assert code == 0
    answer = found(out)["runs"]["."]
    assert len(answer["sigma"]) == 4
    assert answer["server_sigma"] is None
    assert [line["cosine"] > 0 for line in answer["followed"]] == [False, False, True, True]
    assert "cosine to 1 directions: mean" in out


def test_the_loss_around_a_model_and_along_the_way_to_it_is_drawn(thinwire: Look, study: Path, tmp_path: Path) -> None:
    run = next(study.glob("01-*/seed-0"))
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    words = ["--points", "3", "--out", str(tmp_path), "--json"]
    code, out, _ = thinwire("look", "surface", str(run), *words)
    assert code == 0
    around = found(out)["runs"]["."]
    assert around["across"] == around["up"] == [-1, 0, 1]
    assert around["loss"][1][1] == pytest.approx(last["test_loss"], rel=1e-5)  # the middle is the model
    code, out, _ = thinwire("look", "path", str(run), *words)
    assert code == 0
    along = found(out)["runs"]["."]
    assert along["rounds"] == [1, 2, 3, 4]
    assert along["places"][-1] == [0, 0]
    assert len(along["shares"]) == 3
    assert sum(along["shares"]) == pytest.approx(1)
    assert along["shares"] == sorted(along["shares"], reverse=True)
    assert "the first 3 have 100.00 %" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["path.png", "shares.png", "surface.png"]


def test_the_examples_of_clients_are_embedded(thinwire: Look, study: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn.manifold")
    run = next(study.glob("02-*/seed-0"))
    words = ["--each", "4", "--clients", "2", "--out", str(tmp_path), "--json"]
    code, out, _ = thinwire("look", "embedding", str(run), *words)
    assert code == 0
    answer = found(out)["runs"]["."]
    assert answer["clients"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(answer["places"]) == 8
    assert "8 examples of 2 clients, 64 features each" in out


def test_examples_are_embedded_by_their_labels_after_some_rounds(thinwire: Look, study: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn.manifold")
    run = next(study.glob("01-*/seed-0"))
    words = ["--by", "label", "--rounds", "1,4", "--each", "3", "--clients", "2", "--out", str(tmp_path), "--json"]
    code, out, _ = thinwire("look", "embedding", str(run), *words)
    assert code == 0
    answer = found(out)["runs"]["."]
    assert answer["rounds"] == [1, 4]
    assert [len(places) for places in answer["places"]] == [6, 6]
    assert answer["places"][0] != answer["places"][1]
    assert set(answer["labels"]) <= set(range(10))
    code, _, error = thinwire("look", "embedding", str(run), "--rounds", "9")
    assert (code, "has no model of round 9; it has 1, 2, 3, 4" in error) == (2, True)
    code, _, error = thinwire("look", "embedding", str(run), "--model", "selector")
    assert (code, "no model called selector was trained beside the shared one; there is none" in error) == (2, True)


def test_the_losses_near_the_models_of_all_methods_are_one_figure(thinwire: Look, study: Path, tmp_path: Path) -> None:
    words = ["--points", "3", "--client", "1", "--out", str(tmp_path), "--json"]
    code, out, _ = thinwire("look", "line", str(study), *words)
    assert code == 0
    answer = found(out)
    assert answer["along"] == [-1, 0, 1]
    assert len(answer["curves"]) == 2
    assert all(loss[1] < loss[0] and loss[1] < loss[2] for loss in (curve["loss"] for curve in answer["curves"]))
    assert [Path(path).name for path in answer["files"]] == ["line.png"]
    code, _, error = thinwire("look", "line", str(study), "--client", "1", "--own")
    assert (code, "its clients have no models of their own; leave --own out" in error) == (2, True)
    code, _, error = thinwire("look", "pictures", str(study))
    assert (code, "client 0's test has no masks: look at a run such as --data retina" in error) == (2, True)


EYES = """
import torch
from torch import nn
import thinwire as tw
from thinwire.problem import Problem

def make(clients, seed):  # bright pixels are the disc, very bright ones the cup, and nobody labelled the first row
    x = torch.randint(256, (4 * clients, 1, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    y = torch.stack([x[:, 0] > 100, x[:, 0] > 200], dim=1).to(torch.uint8)
    y[:, :, 0] = 255
    tasks = [tw.Supervised(x, y, torch.arange(4 * k, 4 * k + 4)) for k in range(clients)]
    return Problem(lambda: nn.Conv2d(1, 2, 1), tasks, tw.Supervised(x, y), tasks)
"""


def test_what_models_find_in_pictures_of_two_masks_is_drawn_beside_them(
    thinwire: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eyes_of_a_test.py").write_text(EYES)
    monkeypatch.chdir(tmp_path)
    words = ["--task", "eyes_of_a_test:make", "--clients", "2", "--rounds", "3", "--lr", "1.0"]
    assert thinwire("run", "FedAvg()", "FedAvg(up=TopK(0.5))", *words, "--out", "run")[0] == 0
    code, out, _ = thinwire("look", "pictures", "run", "--example", "1", "--json")
    assert code == 0
    answer = found(out)
    assert answer["methods"] == ["FedAvg()", "FedAvg(up=TopK(0.5))"]
    assert answer["clients"] == [0, 1]
    assert all(0 <= dice <= 1 for row in answer["dice"] for dice in row)
    assert [Path(path).name for path in answer["files"]] == ["pictures.png"]


def test_masks_in_colours_say_what_was_right_missed_wrong_and_not_labelled() -> None:
    white, red, blue, grey, black = (255, 255, 255), (230, 40, 40), (60, 110, 255), (90, 90, 90), (0, 0, 0)
    truth = torch.tensor([[[1, 1, 0, 255]], [[0, 1, 0, 255]]], dtype=torch.uint8)  # two masks of one line
    made = torch.tensor([[[True, False, True, True]], [[False, True, True, False]]])
    (line,) = pictures.compare(made, truth).tolist()
    assert [*map(tuple, line)] == [white, red, blue, grey, (190, 190, 190), black, white, blue, grey]


@pytest.mark.slow
def test_methods_with_models_of_clients_own_share_a_figure_with_those_without(thinwire: Look, tmp_path: Path) -> None:
    words = ["--clients", "2", "--rounds", "2", "--lr", "0.1", "--out", str(tmp_path / "run")]
    assert thinwire("run", "FedAvg()", "SoftPull(FedAvg())", *words)[0] == 0
    looked = ["look", "line", str(tmp_path / "run"), "--points", "3", "--client", "1"]
    shared, own = (found(thinwire(*looked, *more, "--json")[1])["curves"] for more in ([], ["--own"]))
    assert [curve["method"] for curve in own] == ["FedAvg()", "SoftPull(lam=0.7), client 1's own"]
    assert own[0]["loss"] == shared[0]["loss"]
    assert own[1]["loss"] != shared[1]["loss"]


def test_the_model_near_which_losses_are_drawn_is_the_one_that_was_evaluated(thinwire: Look, tmp_path: Path) -> None:
    """Of FedPara too, which trains factors and saves their products."""
    words = ["--clients", "2", "--rounds", "2", "--lr", "0.1", "--out", str(tmp_path / "run")]
    assert thinwire("run", "FedPara(FedAvg(), ratio=0.5)", *words)[0] == 0
    code, out, _ = thinwire("look", "line", str(tmp_path / "run"), "--points", "3", "--json")
    assert code == 0
    last = json.loads(next((tmp_path / "run").glob("*/seed-0/rounds.jsonl")).read_text().splitlines()[-1])
    assert found(out)["curves"][0]["loss"][1] == pytest.approx(last["test_loss"], rel=1e-5)


@pytest.mark.parametrize("method", ["FedAvg()", "FedSM()", "FedPara(FedAvg(), ratio=0.3)"])
def test_a_recorded_model_is_looked_at_with_the_final_norm_statistics(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of FedSM too, in whose module the model stands beside a selector, so that its layers have other names."""
    (tmp_path / "normed.py").write_text(NORMED)
    monkeypatch.syspath_prepend(tmp_path)
    problem = importlib.import_module("normed").make_task(2)
    settings: dict[str, Any] = {"rounds": 3, "test": problem.test, "record": "models", "out": tmp_path / "run"}
    result = tw.simulate(parse(method), problem.model, problem.tasks, **settings)
    (run,) = arms([tmp_path / "run"])[0].runs
    end, (layout, rows, _) = final(run, "normed:make_task"), models_of(run)
    _, loss = losses(end.assemble(), end.test(), 100)
    assert loss(Params(layout, rows[-1].clone())) == pytest.approx(result.rounds[-1]["test_loss"], rel=1e-5)


NORMED = """
import torch
from torch import nn
from thinwire.problem import Problem

def make_task(clients):
    torch.manual_seed(0)
    x = 3 * torch.randn(60, 12) + 1
    sets = [(part, (part[:, 0] > 1).long()) for part in x.chunk(3)]
    model = lambda: nn.Sequential(nn.Linear(12, 40), nn.BatchNorm1d(40), nn.Linear(40, 40), nn.Linear(40, 2))
    return Problem(model, sets[:clients], sets[2])
"""


@pytest.mark.slow
def test_the_staleness_of_parts_is_drawn(thinwire: Look, tmp_path: Path) -> None:
    times = ["--forward", "0.01,0.01", "--backward", "0.02,0.02", "--cut", "2", "--parts", "2"]
    words = ["--steps", "6", "--evaluate-every", "3", "--batch", "8", "--record", "staleness", *times]
    out_dir = tmp_path / "pipe"
    assert thinwire("pipeline", "run", "BPK()", "DSP((1, 0), (2, 0))", *words, "--out", str(out_dir))[0] == 0
    code, out, _ = thinwire("look", "staleness", str(out_dir), "--json")
    assert code == 0
    plain, stale = found(out)["runs"].values()
    assert [(e["step"], e["part"], e["moved"]) for e in plain["parts"]] == [(3, 0, 0), (3, 1, 0), (6, 0, 0), (6, 1, 0)]
    assert [e["moved"] > 0 for e in stale["parts"]] == [False, False, True, False]  # before step 3 none was made
    assert [e["difference"] > 1e-3 for e in stale["parts"]] == [True, False, True, False]
    assert all(e["difference"] < 1e-6 for e in plain["parts"])
    summary = json.loads(next(out_dir.glob("*/seed-0/summary.json")).read_text())
    assert [sum(e["parameters"] for e in one["parts"]) for one in (plain, stale)] == [2 * summary["parameters"]] * 2


@pytest.mark.slow
def test_what_methods_reached_is_drawn_by_a_setting_and_by_bytes(thinwire: Look, tmp_path: Path) -> None:
    methods = [f"FedAvg(up=TopK({share}))" for share in (0.1, 0.5)] + ["FedAvg()"]
    out_dir = tmp_path / "ways"
    assert thinwire("run", *methods, "--clients", "2", "--rounds", "2", "--out", str(out_dir))[0] == 0
    code, out, _ = thinwire("look", "sweep", str(out_dir), "--json")
    assert code == 0
    answer = found(out)
    assert answer["across"] == "up.share"
    (line,) = answer["lines"]
    assert [point["at"] for point in line["points"]] == [0.1, 0.5]
    code, out, _ = thinwire("look", "sweep", str(out_dir), "--across", "bytes", "--json")
    names = {line["name"]: len(line["points"]) for line in found(out)["lines"]}
    assert (code, names) == (0, {"FedAvg, TopK": 2, "FedAvg()": 1})
    code, out, _ = thinwire("look", "sweep", str(out_dir), "--across", "bytes_up", "--of", "perplexity", "--json")
    answer = found(out)
    assert (code, answer["across"], answer["value"]) == (0, "MB sent by clients", "perplexity")
    code, _, error = thinwire("look", "sweep", str(out_dir), "--across", "up.shar")
    assert (code, "no setting 'up.shar' (did you mean up.share?)" in error) == (2, True)


def test_a_leak_has_its_bytes_and_its_picture(thinwire: Look, tmp_path: Path) -> None:
    words = ["--model", "mlp", "--iterations", "3", "--tries", "1", "--out", str(tmp_path), "--json"]
    code, out, error = thinwire("look", "leakage", "FedAvg()", "FedAvg(up=TopK(0.1))", *words)
    assert code == 0
    assert "note: this model has ReLU, whose second derivatives are zero nearly everywhere" in error
    dense, sparse = found(out)["leaks"]
    assert dense["method"] == "FedAvg()"
    assert dense["bytes"] > 4 * sparse["bytes"] > 0


def test_long_names_of_methods_lie_within_the_picture(tmp_path: Path) -> None:
    name, picture = "FedAvg(LocalSGD(0.1), weights='uniform')", torch.zeros(1, 8, 8)
    found = [Leak(name, 0, 0, 1, "whole", 1.0, 0.0, 1.0, 1.0, picture, picture)] * 3
    with Image.open(draw_leaks(found, tmp_path / "leakage.png")) as drawn:
        assert np.asarray(drawn.convert("L"))[0].min() == 255  # no letter is cut off at the top


def test_a_dimension_is_measured(thinwire: Look, tmp_path: Path) -> None:
    words = ["--clients", "2", "--rounds", "1", "--target", "0.05", "--low", "8", "--high", "16"]
    code, out, error = thinwire("look", "dimension", *words, "--out", str(tmp_path), "--json")
    assert code == 0
    assert error.startswith("Intrinsic(8): at best")
    assert found(out)["dimension"] in (8, 16)


HELP = Path(__file__).with_name("look_help.txt").read_text().strip().split("\n\n")


@pytest.mark.parametrize("asked", HELP, ids=lambda text: text.splitlines()[0].split("[")[0].strip().split()[-1])
def test_the_help_of_a_look_is_what_it_was_when_each_had_a_function_of_its_own(
    thinwire: Look, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts were written by the commands of before they were made from the looks' fields."""
    monkeypatch.setenv("COLUMNS", "200")
    name = asked.splitlines()[0].removeprefix("Usage: thinwire look ").split("[")[0] or asked.split()[3]
    words = [] if asked.startswith("Usage: thinwire look [OPTIONS] COMMAND") else [name.strip()]
    code, out, _ = thinwire("look", *words, "--help")
    lines = [" ".join(line.translate(dict.fromkeys(map(ord, "│╭╮╰╯─"), " ")).split()) for line in out.splitlines()]
    wanted = asked.splitlines()  # and new looks beside those of the list
    assert (code, [line for line in lines if line and (words or line in wanted)]) == (0, wanted)


def test_the_looks_are_listed_without_importing_torch() -> None:
    code = """
import sys
sys.argv = ["thinwire", "look", "--help"]
from thinwire.cli import main
try:
    main()
finally:
    assert not {"torch", "numpy", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "leakage" in done.stdout) == (0, True), done.stderr


A_LOOK = '''"""The bytes of a federated run, round by round."""

from dataclasses import dataclass
from typing import Annotated, Literal

from thinwire.look.base import Look, Table, Words, option
from thinwire.look.drawing import plain, plt, save
from thinwire.ranges import Count
from thinwire.studies.read import lacks


@dataclass(frozen=True)
class Traffic(Look):
    """Needs a federated run."""

    every: Count = option(1, "Rounds that are one row.")
    unit: Literal["B", "MB"] = option("B", "The unit of bytes.")
    way: Annotated[str, Words(("up",))] | None = option(None, "The direction.")

    def read(self, run):
        if run.kind != "federated":
            raise lacks(run, "rounds", "federated", "")
        sums = [0]
        for line in run.rounds:
            sums.append(sums[-1] + line["up_bytes"])
        return [(i, sums[i] - sums[i - self.every]) for i in range(self.every, len(sums), self.every)]

    def rows(self, reading):
        yield Table("bytes up", ("round", "bytes"), reading)
        yield f"{sum(sent for _, sent in reading)} bytes in all"

    def draw(self, reading, folder):
        figure, place = plt.subplots()
        place.plot(*zip(*reading))
        plain(place, "round", "bytes up")
        return [save(figure, folder / "traffic.png")]

    def values(self, reading):
        return {"bytes": [sent for _, sent in reading]}
'''
A_ROW = """
import sys
import thinwire.look as looks
looks.__path__.append({folder!r})  # the file lies beside the others
looks.LOOKS["traffic:Traffic"] = "What clients sent, by round."
from thinwire.cli import main
sys.argv = ["thinwire", "look", *{words!r}]
main()
"""


@pytest.mark.slow
def test_a_look_is_a_file_and_a_row(study: Path, tmp_path: Path) -> None:
    (tmp_path / "traffic.py").write_text(A_LOOK)

    def look(*words: str) -> tuple[int, str, str]:
        code = A_ROW.format(folder=str(tmp_path), words=list(words))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    run = next(study.glob("01-*/seed-0"))
    sent = [json.loads(line)["up_bytes"] for line in (run / "rounds.jsonl").read_text().splitlines()]
    code, out, error = look("traffic", str(run), "--every", "2", "--out", str(tmp_path / "out"), "--json")
    assert code == 0, error
    answer = found(out)
    assert answer["runs"] == {".": {"bytes": [sent[0] + sent[1], sent[2] + sent[3]]}}
    assert answer["files"] == [str(tmp_path / "out" / "traffic.png")]
    assert f"{sum(sent)} bytes in all" in out
    code, out, _ = look("traffic", "--help")
    assert code == 0
    for text in ("What clients sent, by round.", "Needs a federated run.", "Rounds that are one row.", "[default: 1]"):
        assert text in out
    assert "What clients sent, by round." in look("--help")[1]
    for more, why in {
        ("--every", "0"): "--every 0: it must be at least 1",
        ("--unit", "KB"): "--unit KB: B or MB is expected",
        ("--way", "b"): "--way b: up is expected",
    }.items():
        code, _, error = look("traffic", str(run), *more)
        assert (code, error) == (2, f"error: {why}\n")
    for was, becomes, why in (
        ('("round", "bytes")', '("round",)', "table 'bytes up': a row has 2 cells, and its head 1: ['1', '"),
        (
            'option(1, "Rounds that are one row.")',
            "field(default=1)",
            "Traffic.every is no option: write `every: ... = option(default, help)`\n",
        ),
        ("class Traffic", "class Traffics", "LOOKS['traffic:Traffic']: thinwire.look.traffic has no class Traffic\n"),
    ):
        broken = A_LOOK.replace(was, becomes).replace("import dataclass", "import dataclass, field")
        (tmp_path / "traffic.py").write_text(broken)
        code, _, error = look("traffic", str(run))
        assert (code, error[: len(why) + 7]) == (2, f"error: {why}")
    (tmp_path / "traffic.py").unlink()
    code, _, error = look("traffic", str(run))
    assert (code, error) == (2, "error: LOOKS['traffic:Traffic']: there is no module thinwire.look.traffic\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gradients", "nowhere"], "nowhere does not exist"),
        (["leakage", "TopK(0.1)"], "TopK(0.1) is not a method; try FedAvg(up=TopK(0.1))"),
        (["leakage", "FedAvg()", "--attack", "luck"], "--attack luck: idlg, dlg or label is expected"),
        (["leakage", "FedAvg()", "--tries", "0"], "--tries 0: it must be at least 1"),
        (["leakage", "FedAvg()", "--picture", "99999"], "picture 99999: the data have examples 0 to 1437"),
        (["surface", "nowhere", "--points", "4"], "--points 4: an odd number of at least 3 is expected"),
        (["embedding", "nowhere", "--each", "0"], "--each 0: it must be at least 1"),
        (["embedding", "nowhere", "--by", "luck"], "--by luck: client or label is expected"),
        (["embedding", "nowhere", "--rounds", "a"], "--rounds a: rounds separated by commas, such as 10,50,200"),
        (["line", "nowhere", "--own"], "--own is the model of a client: name it with --client"),
        (["pictures", "nowhere", "--clients", "0"], "--clients 0: it must be at least 1"),
        (["dimension", "--target", "90"], "--target 90.0: it must be above 0, and 1 at most"),
        (["dimension", "--low", "0"], "--low 0: it must be at least 1"),
        (["dimension", "--low", "50", "--high", "10"], "--high 10: it must be at least --low 50"),
        (["dimension", "FedAvg()"], "has no dimension: name a method with a field `dim`"),
        (["subspace", "nowhere", "--rank", "0"], "--rank 0: it must be at least 1"),
        (["subspace", "nowhere", "--rank", "5", "--start", "2"], "--rank 5: at most --start 2, the rounds whose"),
        (["subspace", "nowhere", "--decay", "0"], "--decay 0.0: it must be above 0, and 1 at most"),
        (["layers", "nowhere", "--out", __file__], f"--out {__file__}: {__file__} is a file; name a folder"),
        (["sweep", "nowhere", "--out", f"{__file__}/x"], f"--out {__file__}/x: {__file__} is a file; name a folder"),
        (["leakage", "FedAvg()", "--out", __file__], f"--out {__file__}: {__file__} is a file; name a folder"),
        (["dimension", "--out", __file__], f"--out {__file__}: {__file__} is a file; name a folder"),
    ],
)
def test_a_mistake_is_one_line(thinwire: Look, words: list[str], said: str) -> None:
    code, _, error = thinwire("look", *words)
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1


def lying(folder: Path, kind: str, method: str = "FedAvg()", **more: Any) -> Path:
    """A run of one line as it lies on disk."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"kind": kind, "method": method, "seed": 0}))
    line = {name: [1] if name in ("forward_bytes", "backward_bytes") else 1 for name in EVERY_LINE[kind]}
    (folder / "rounds.jsonl").write_text(json.dumps(line | more) + "\n")
    return folder


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("federated", ["feedback"], "DIR has no residuals: it is federated, and runs that are data-parallel have them"),
        ("federated", ["layers"], "DIR has no recorded layers: train it with --record layers"),
        ("federated", ["surface"], "DIR has no complete run: let it end first"),
        ("data-parallel", ["gradients"], "DIR has no recorded gradients: it is data-parallel, and runs that are"),
        ("data-parallel", ["surface"], "DIR is data-parallel: final models are looked at of federated runs alone"),
        ("data-parallel", ["staleness"], "DIR has no records of staleness: it is data-parallel, and runs that are"),
    ],
)
def test_what_is_wrong_with_all_runs_of_a_study_is_said_once(
    thinwire: Look, tmp_path: Path, kind: str, words: list[str], said: str
) -> None:
    for name in ("01-a", "02-b", "03-c"):
        lying(tmp_path / name / "seed-0", kind, f"Some{name[-1].upper()}()")
    code, out, error = thinwire("look", *words, str(tmp_path))
    assert (code, out, len(error.splitlines())) == (2, "", 1)
    assert error.startswith(f"error: {said}".replace("DIR", str(tmp_path)))


def test_where_runs_are_passed_over_for_different_reasons_each_has_its_own(thinwire: Look, tmp_path: Path) -> None:
    lying(tmp_path / "a", "data-parallel")
    (lying(tmp_path / "b", "data-parallel") / "rounds.jsonl").write_text("")
    code, out, error = thinwire("look", "feedback", str(tmp_path))
    assert (code, out) == (2, "")
    assert error.splitlines() == [
        f"a is passed over: {tmp_path}/a has no residuals: its method keeps none; look at one such as DEF(64)",
        f"b is passed over: {tmp_path}/b has no residuals yet: its first step is not made",
        f"error: {tmp_path}: each of its runs is passed over, for the reason above",
    ]


def test_a_run_without_anything_to_look_at_is_passed_over_beside_one_that_has_it(
    thinwire: Look, tmp_path: Path
) -> None:
    lying(tmp_path / "a", "data-parallel", "Hook(Dense())")
    lying(tmp_path / "b", "data-parallel", "DEF(16.0)", residual=2.0, distance=1.0, lam=0.5)
    code, out, error = thinwire("look", "feedback", str(tmp_path), "--json")
    assert (code, list(found(out)["runs"]), len(error.splitlines())) == (0, ["b"], 1)
    assert error.startswith("a is passed over: ")
    assert out.startswith("b: ")  # nothing of the other one


def test_shares_from_a_hundred_percent_on_are_whole_numbers(thinwire: Look, tmp_path: Path) -> None:
    parts = {"moved": [0.5, 30.0], "weights": [6.0, 2.0], "difference": [1.0, 1.5], "gradient": [10.1, 1.25]}
    code, out, _ = thinwire("look", "staleness", str(lying(tmp_path / "a", "pipelined", **parts)))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert (code, rows) == (0, [["0", "0.5", "8.3 %", "1", "9.9 %"], ["1", "30", "1,500 %", "1.5", "120 %"]])


TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from thinwire.problem import Problem

def make(clients, seed):
    x = torch.randn(clients + 1, 8, 6, generator=torch.Generator().manual_seed(seed))
    y = (x.sum(-1) > 0).long()
    return Problem(lambda: nn.Linear(6, 2), [TensorDataset(x[k], y[k]) for k in range(clients)], test=(x[-1], y[-1]))

def other(clients, seed):
    return make(clients, seed + 1)
"""


@pytest.mark.slow
def test_a_run_of_no_study_is_looked_at_with_the_task_that_it_was_trained_with(
    thinwire: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task_of_a_test.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = importlib.import_module("task_of_a_test").make(2, 0)
    out = tmp_path / "mine"
    run = tw.simulate(tw.FedAvg(), problem.model, problem.tasks, 3, test=problem.test, out=out, record="models")
    for command in ("surface", "line", "path"):
        words = ["look", command, str(out), "--points", "3", "--task"]
        code, answer, _ = thinwire(*words, "task_of_a_test:make", "--json")
        assert (code, len(found(answer)["files"])) == (0, 2 if command == "path" else 1)
    code, answer, _ = thinwire("look", "surface", str(out), "--points", "3", "--task", "task_of_a_test:make", "--json")
    assert found(answer)["runs"]["."]["loss"][1][1] == pytest.approx(run.rounds[-1]["test_loss"], rel=1e-5)
    for given, said in (
        ([], f"{out} is in no study that says its model and data: name them, --task my_module:make_task"),
        (["--task", "task_of_a_test:other"], f"{out} was trained on other data than --task task_of_a_test:other makes"),
    ):
        code, _, error = thinwire("look", "surface", str(out), *given)
        assert (code, error.startswith(f"error: {said}"), len(error.splitlines())) == (2, True, 1)


def test_a_task_is_refused_where_the_study_says_what_it_was(thinwire: Look, study: Path) -> None:
    code, _, error = thinwire("look", "surface", str(study), "--task", "task_of_a_test:make")
    assert (code, error) == (2, f"error: {study} is in a study, which says its model and data: leave --task out\n")


def test_a_run_that_recorded_nothing_is_named_with_the_option_it_lacks(thinwire: Look, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"method": "FedAvg()", "seed": 0}')
    (tmp_path / "rounds.jsonl").write_text(json.dumps(dict.fromkeys(EVERY_LINE["federated"], 1)) + "\n")
    for command, option in (
        ("gradients", "train it with --record gradients (LBGM's looks: looks) or all"),
        ("layers", "train it with --record layers"),
        ("subspace", "train it with --record gradients"),
        ("path", "train it with --record models"),
        ("surface", "has no complete run"),
        ("staleness", "has no records of staleness: it is federated, and runs that are pipelined have them"),
        ("feedback", "has no residuals: it is federated, and runs that are data-parallel have them"),
    ):
        code, _, error = thinwire("look", command, str(tmp_path))
        assert (code, option in error) == (2, True)
    (tmp_path / "rounds.jsonl").write_text("")
    code, _, error = thinwire("look", "layers", str(tmp_path))
    assert (code, "has no recorded layers yet: its first round is not made" in error) == (2, True)
