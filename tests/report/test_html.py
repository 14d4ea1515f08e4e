"""The report: one file that loads nothing, with the numbers of the runs in it; served, it follows a run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from places import ROOT
from thinwire.cli import app
from thinwire.errors import RunError
from thinwire.report import heat, html, numbers, plots, table
from thinwire.report.curves import count, curve
from thinwire.report.serve import server
from thinwire.studies.read import arms, setting
from tiers import tiers

DENSE, TOPK = "FedAvg()", "FedAvg(up=ErrorFeedback(TopK(0.1)))"


def line(number: int, accuracy: float | None = None, **more: Any) -> dict[str, Any]:
    """A round in which clients sent 100 bytes, 90 of them payload, and received 200, 180 of them payload."""
    found = {
        "round": number,
        "train_loss": 1 / number,
        "clients": 2,
        "lost_replies": 0,
        "up_bytes": 100,
        "down_bytes": 200,
        "up_payload": 90,
        "up_framing": 10,
        "down_payload": 180,
        "down_framing": 20,
        "up_floats": 22.0,
        "down_floats": 45.0,
        "slowest_bytes": 150,
        "clock": 0.0,
        "seconds": 0.5,
    }
    return found | ({} if accuracy is None else {"accuracy": accuracy, "test_loss": 2.0}) | more


def made(folder: Path, method: str, seed: int, lines: list[dict[str, Any]], done: bool = True, **about: Any) -> Path:
    """A run of 4 clients as it lies on disk."""
    folder.mkdir(parents=True)
    said = {"method": method, "clients": 4, "sample": 2, "seed": seed, "parameters": 10, **about}
    (folder / "run.json").write_text(json.dumps(said))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    if done:
        (folder / "summary.json").write_text("{}")
    return folder


def two_methods(out: Path) -> Path:
    """Two methods of two seeds, three rounds each."""
    for seed, best in ((0, 0.8), (1, 0.6)):
        made(out / f"01-a/seed-{seed}", DENSE, seed, [line(1, 0.1), line(2, best / 2), line(3, best)])
        made(out / f"02-b/seed-{seed}", TOPK, seed, [line(n, best / 2 * n / 3, up_bytes=10) for n in (1, 2, 3)])
    return out


# -- what is in it ----------------------------------------------------------------


def test_curves_have_the_mean_over_seeds_and_a_band_against_every_axis(tmp_path: Path) -> None:
    found = html.gather([two_methods(tmp_path)])["curves"][0]["accuracy"]
    assert found["y"] == [10.0, 35.0, 70.0]
    assert (found["low"], found["high"], found["seeds"]) == ([10.0, 30.0, 60.0], [10.0, 40.0, 80.0], 2)
    assert found["x"]["rounds"] == [1.0, 2.0, 3.0]
    assert found["x"]["bytes_up"] == [0.0001, 0.0002, 0.0003]  # MB
    assert found["x"]["bytes_total"] == [0.0003, 0.0006, 0.0009]
    assert found["x"]["floats_up"] == [2.2e-5, 4.4e-5, 6.6e-5]  # millions
    assert found["x"]["seconds"] == [0.00012, 0.00024, 0.00036]  # 1,200 bits a round at 10 Mbit/s


def test_what_was_sent_adds_up_by_round_in_rounds_that_were_not_evaluated_too(tmp_path: Path) -> None:
    for seed, size in ((0, 100), (1, 300)):
        made(tmp_path / f"{seed}", DENSE, seed, [line(1, up_bytes=size), line(2, 0.5, up_bytes=size)])
    found = html.gather([tmp_path])
    assert found["counted"] == {
        "bytes_up": "MB sent by clients",
        "bytes_total": "MB sent, both directions",
        "floats_up": "millions of floats sent by clients",
    }
    (sent,) = found["sent"]
    assert sent["bytes_up"] == {"x": [1, 2], "y": [0.0002, 0.0004], "low": [0.0001, 0.0002], "high": [0.0003, 0.0006]}
    assert sent["bytes_total"]["y"] == [0.0004, 0.0008]
    assert sent["floats_up"]["y"] == [2.2e-5, 4.4e-5]


def test_the_best_until_then_is_each_seeds_own_and_of_losses_the_lowest(tmp_path: Path) -> None:
    made(tmp_path / "0", DENSE, 0, [line(1, 0.4), line(2, 0.2), line(3, None), line(4, 0.6, test_loss=3.0)])
    made(tmp_path / "1", DENSE, 1, [line(1, 0.2), line(2, 0.4), line(3, 0.9), line(4, 0.2, test_loss=1.0)])
    (arm,) = arms([tmp_path])
    found = curve(arm, count, "accuracy", best=True)
    assert found is not None
    assert (found.x.tolist(), found.middle.tolist()) == ([1, 2, 4], [30, 40, 75])  # 90 in round 3 stays
    found = curve(arm, count, "test_loss", best=True)
    assert found is not None
    assert found.middle.tolist() == [2.0, 2.0, 1.5]  # seed 0 keeps its 2
    made(tmp_path / "text", DENSE, 0, [line(1, perplexity=30.0), line(2, perplexity=40.0)])
    found = curve(arms([tmp_path / "text"])[0], count, "perplexity", best=True)
    assert found is not None
    assert found.middle.tolist() == [30.0, 30.0]


def test_a_seed_that_is_not_finished_changes_no_figure_of_a_method_that_has_one(tmp_path: Path) -> None:
    two_methods(tmp_path)
    before = html.gather([tmp_path])
    for method in ("01-a", "02-b"):
        name = DENSE if method == "01-a" else TOPK
        made(tmp_path / method / "seed-2", name, 2, [line(1, 0.0)] if method == "01-a" else [], done=False)
    after = html.gather([tmp_path])
    assert [row[1:] for row in after["table"]["rows"]] == [row[1:] for row in before["table"]["rows"]]
    assert after["table"]["rows"][0][0] == "FedAvg() (2 of 3 seeds)"
    for part in ("curves", "targets", "bytes"):
        assert after[part] == before[part]
    assert (
        "FedAvg(), seed 2, has 1 rounds so far and is not finished: the method's figures are those of its other "
        in (after["warnings"][0])
    )


def test_figures_of_seeds_that_are_all_unfinished_are_of_the_rounds_that_all_have(tmp_path: Path) -> None:
    made(tmp_path / "0", DENSE, 0, [line(1, 0.1), line(2, 0.2), line(3, 0.9)], done=False)
    made(tmp_path / "1", DENSE, 1, [line(1, 0.3), line(2, 0.4)], done=False)
    made(tmp_path / "2", DENSE, 2, [], done=False)
    (row,) = table.rows(arms([tmp_path]))
    assert (row["rounds"], row["seeds"], row["seeds_left_out"]) == (2, [0, 1], [2])
    assert (row["accuracy"], row["bytes_up"]) == (pytest.approx(0.3), 200)


def test_a_last_evaluation_that_is_no_finite_number_is_not_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    """A seed that diverged counts: the mean of the other is none of both."""
    made(tmp_path / "0", DENSE, 0, [line(1, 0.5), line(2, 0.6, test_loss=None) | {"accuracy": None}, line(3)])
    made(tmp_path / "1", DENSE, 1, [line(1, 0.5), line(2, 0.7), line(3)])
    (row,) = table.rows(arms([tmp_path]))
    assert (row["accuracy"], row["accuracy_deviation"], row["test_loss"]) == (None, None, None)
    assert row["best_accuracy"] == pytest.approx(0.6)
    (row,) = table.rows(arms([tmp_path / "1"]))
    assert (row["accuracy"], row["test_loss"]) == (0.7, 2.0)


def test_shares_are_of_a_dense_run_of_as_many_rounds(tmp_path: Path) -> None:
    made(tmp_path / "a", DENSE, 0, [line(1, 0.1)], done=False)
    made(tmp_path / "b", TOPK, 0, [line(1, 0.1, up_bytes=10), line(2, 0.1, up_bytes=10)])
    assert [row["share_up"] for row in table.rows(arms([tmp_path]))] == [1.0, None]


def test_shares_are_of_a_dense_run_in_the_same_setting(tmp_path: Path) -> None:
    for data, size in (("digits", 100), ("mnist", 1000)):
        made(tmp_path / data / "01-a/seed-0", DENSE, 0, [line(1, 0.1, up_bytes=size)])
        made(tmp_path / data / "02-b/seed-0", TOPK, 0, [line(1, 0.1, up_bytes=10)])
        (tmp_path / data / "study.json").write_text(json.dumps({"data": data, "folders": ["01-a", "02-b"]}))
    shares = {row["method"]: row["share_up"] for row in table.rows(arms([tmp_path]))}
    assert [share for name, share in shares.items() if "TopK" in name] == [0.1, 0.01]
    assert [share for name, share in shares.items() if "TopK" not in name] == [1.0, 1.0]


def test_shares_are_of_a_dense_run_with_the_same_start_or_else_with_another(tmp_path: Path) -> None:
    """Auto alone begins from a model that clients know, and its share is what a reader looks for."""
    for number, (method, start, size) in enumerate([(DENSE, None, 100), (DENSE, "known", 50), (TOPK, "known", 10)], 1):
        folder = tmp_path / f"{number:02d}-x/seed-0"
        made(folder, method, 0, [line(1, 0.1, up_bytes=size)])
        about = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**about, **({} if start is None else {"start": start})}))
    first, second, third = (arms([tmp_path / f"{number:02d}-x"]) for number in (1, 2, 3))
    assert [row["share_up"] for row in table.rows([*first, *third])] == [1.0, 0.1]
    assert [row["share_up"] for row in table.rows([*first, *second, *third])] == [1.0, 1.0, 0.2]
    assert [row["share_up"] for row in table.rows(third)] == [None]


def test_seeds_that_were_evaluated_in_different_rounds_meet_in_those_that_both_have(tmp_path: Path) -> None:
    made(tmp_path / "0", DENSE, 0, [line(n, n / 10) for n in (1, 2, 3, 4)])
    made(tmp_path / "1", DENSE, 1, [line(n, n / 10 if n in (2, 4) else None) for n in (1, 2, 3, 4)])
    found = html.gather([tmp_path])["curves"][0]["accuracy"]
    assert (found["x"]["rounds"], found["y"], found["low"]) == ([2.0, 4.0], [20.0, 40.0], [20.0, 40.0])


def test_runs_of_one_method_in_other_settings_are_no_seeds_of_it(tmp_path: Path) -> None:
    for name, data, split in (("x", "digits", None), ("y", "digits", "Dirichlet(0.1)"), ("z", "digits", None)):
        made(tmp_path / name / "01-a/seed-0", DENSE, 0, [line(1, 0.5)])
        (tmp_path / name / "study.json").write_text(json.dumps({"data": data, "split": split, "folders": ["01-a"]}))
    assert [arm.label for arm in arms([tmp_path / "x"])] == ["FedAvg()"]
    two = arms([tmp_path / "x", tmp_path / "y", tmp_path / "x"])
    assert [arm.label for arm in two] == ["FedAvg() (split default)", "FedAvg() (split Dirichlet(0.1))"]
    assert "Runs differ in split: Dirichlet(0.1) and None." in html.gather([tmp_path / "x", tmp_path / "y"])["warnings"]
    twice = arms([tmp_path / "x", tmp_path / "z"])  # the same seed once more: not two seeds either
    assert [(arm.label, len(arm.runs)) for arm in twice] == [("FedAvg() (in x)", 1), ("FedAvg() (in z)", 1)]


@pytest.mark.parametrize("place", ["x", "x/01-a", "x/01-a/seed-0"])
def test_runs_are_read_from_within_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    made(tmp_path / "x/01-a/seed-0", DENSE, 0, [line(1, 0.5)])
    (tmp_path / "x/study.json").write_text(json.dumps({"data": "digits", "folders": ["01-a"]}))
    monkeypatch.chdir(tmp_path / place)
    (arm,) = arms([Path(".")])
    assert setting(arm.runs[0]) == {"data": "digits", "sample": 2, "clients": 4}
    monkeypatch.chdir(tmp_path / place / "..")
    assert len(arms([Path(place).relative_to(Path(place).parent)])) == 1


def test_a_task_with_a_loss_alone_has_it_in_its_table(tmp_path: Path) -> None:
    made(tmp_path / "a", DENSE, 0, [line(1) | {"test_loss": 3.0}, line(2) | {"test_loss": 2.5}])
    rows = table.rows(arms([tmp_path]))
    assert "test loss" in table.markdown(rows).splitlines()[0]
    assert "| 2.500 |" in table.markdown(rows)
    made(tmp_path / "b", TOPK, 0, [line(1, 0.5)])
    assert "test loss" not in table.markdown(table.rows(arms([tmp_path])))


def test_a_task_with_perplexity_has_it_in_its_table_and_curves(tmp_path: Path) -> None:
    made(tmp_path / "a/seed-0", DENSE, 0, [line(1, 0.1, perplexity=40.0), line(2, 0.2, perplexity=30.0)])
    made(tmp_path / "a/seed-1", DENSE, 1, [line(1, 0.1, perplexity=40.0), line(2, 0.2, perplexity=31.0)])
    methods = arms([tmp_path])
    head, _, row = table.markdown(table.rows(methods)).splitlines()[:3]
    assert dict(zip(head.split("|"), row.split("|"), strict=True))[" perplexity "] == " 30.500 "
    (drawn,) = (numbers.curves(arm)["perplexity"] for arm in methods)
    assert (drawn["y"], drawn["low"], drawn["high"]) == ([40.0, 30.5], [40.0, 30.0], [40.0, 31.0])
    made(tmp_path / "b", TOPK, 0, [line(1, 0.5)])
    assert "| - |" in table.markdown(table.rows(arms([tmp_path])))


@pytest.mark.parametrize("name", ["round", "down_bytes", "slowest_bytes"])
def test_a_line_without_what_every_line_has_is_named(tmp_path: Path, name: str) -> None:
    lines = [line(1), {key: value for key, value in line(2).items() if key != name}]
    made(tmp_path / "a", DENSE, 0, lines)
    with pytest.raises(RunError, match=f"rounds.jsonl is damaged: line 2 has no {name}"):
        arms([tmp_path])


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    (made(tmp_path / "a", DENSE, 0, []) / "rounds.jsonl").write_text(f"{json.dumps(line(1))}\n3\n")
    with pytest.raises(RunError, match=r"rounds.jsonl is damaged: line 2 holds no object"):
        arms([tmp_path])


def test_a_study_of_segmentation_has_costs_of_a_target_and_its_clients(tmp_path: Path) -> None:
    lines = [{**line(n), "dice": n / 10, "client_dice": n / 10} for n in (1, 2)]
    run = made(tmp_path / "a", DENSE, 0, lines)
    (run / "clients.jsonl").write_text(json.dumps({"round": 2, "dice": [0.3, 0.1]}))
    found = html.gather([tmp_path])
    assert found["measure"] == "Dice coefficient"
    assert found["targets"][0][0]["accuracy"] == [10.0, 20.0]
    assert found["clients"][0]["y"] == [10.0, 30.0]


def test_bytes_are_split_by_direction_into_payload_and_headers(tmp_path: Path) -> None:
    found = html.gather([two_methods(tmp_path)])["bytes"]
    assert [(part["name"], part["values"][0]) for part in found] == [
        ("up, payload", 270),
        ("up, headers", 30),
        ("down, payload", 540),
        ("down, headers", 60),
    ]


def test_a_target_costs_what_was_sent_until_the_accuracy_was_first_better_than_before(tmp_path: Path) -> None:
    made(tmp_path / "a", DENSE, 7, [line(1, 0.3), line(2, 0.2), line(3, None), line(4, 0.5)])
    (seed,) = html.gather([tmp_path])["targets"][0]
    assert (seed["seed"], seed["accuracy"], seed["rounds"]) == (7, [30.0, 50.0], [1.0, 4.0])
    assert seed["bytes_up"] == [0.0001, 0.0004]


def test_who_took_part_is_read_from_the_ledger(tmp_path: Path) -> None:
    run = made(tmp_path / "a", DENSE, 0, [line(1), line(2)])
    calls = [(1, 0, "down"), (1, 2, "down"), (1, 0, "up"), (2, 1, "down"), (2, 3, "down"), (2, 3, "up")]
    entries = [
        {"round": r, "client": c, "direction": way, "payload": 1, "framing": 1, "used": (r, c, way) != (2, 3, "up")}
        for r, c, way in calls
    ]
    (run / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"round": 3, "cli')
    (found,) = html.gather([tmp_path])["taking_part"]
    # Client 0 answered in round 1, 1 and 2 were called and never heard of, and 3 came too late.
    assert found["cells"] == ["10", "02", "20", "03"]
    assert (found["answered"], found["lost"], found["late"], found["by"]) == (1, 2, 1, [1, 1])


def test_every_seed_has_its_heat_map_and_many_runs_have_fewer_columns(tmp_path: Path) -> None:
    call = {"client": 0, "direction": "down", "payload": 1, "framing": 1}
    for method in ("a", "b"):
        for seed in (0, 1, 2, 5):
            run = made(tmp_path / f"{method}/{seed}", DENSE if method == "a" else TOPK, seed, [line(1)])
            (run / "ledger.jsonl").write_text("".join(json.dumps({"round": r, **call}) + "\n" for r in range(1, 401)))
    found = html.gather([tmp_path])["taking_part"]
    assert [(each["method"], each["seed"]) for each in found] == [(m, s) for m in (0, 1) for s in (0, 1, 2, 5)]
    # Eight runs share what four have: 200 columns each, so two of 400 rounds to a cell.
    assert [(each["by"], len(each["cells"][0])) for each in found] == [([1, 2], 200)] * 8


@pytest.mark.parametrize(
    ("runs", "rows", "columns"),
    [(1, 240, 400), (4, 240, 400), (8, 240, 200), (40, 240, 40), (120, 80, 40), (5000, 1, 40)],
)
def test_heat_maps_of_very_many_runs_have_fewer_rows_too(runs: int, rows: int, columns: int) -> None:
    assert heat.most(runs) == (rows, columns)


def test_layers_that_share_a_row_of_a_heat_map_are_said(tmp_path: Path) -> None:
    names = [f"layer {k}" for k in range(481)]
    made(tmp_path / "a", DENSE, 0, [line(1, unsent=names), line(2, unsent=names[:1])])
    (found,) = html.gather([tmp_path])["unsent"]
    assert (found["by"], len(found["rows"]), len(found["cells"])) == ([3, 1], 161, 161)
    assert (found["rows"][0], found["rows"][-1]) == ("layer 0 +2", "layer 480")
    assert (found["cells"][0], found["cells"][1]) == ("YY", "Y0")


def test_of_many_layers_the_largest_have_bytes_of_their_own(tmp_path: Path) -> None:
    up = {f"layer {k}": k for k in range(43)}
    made(tmp_path / "a", DENSE, 0, [line(1, layer_bytes={"up": up, "down": {}, "unsent": []})])
    (found,) = html.gather([tmp_path])["layers"]
    assert list(found["bytes"]) == [f"layer {k}" for k in range(3, 43)]
    assert found["rest"] == [3, 0 + 1 + 2]


def test_neighbours_share_a_cell_of_a_large_heat_map_which_shows_the_highest(tmp_path: Path) -> None:
    grid = np.zeros((241, 801))
    grid[240, 800], grid[1, 3] = 3, 2
    cells, by = heat.coarse(grid)
    assert (by, cells.shape) == ([2, 3], (121, 267))
    assert (cells[120, 266], cells[0, 1], cells.sum()) == (3, 2, 5)


def test_clients_own_accuracies_are_sorted_and_averaged_over_seeds(tmp_path: Path) -> None:
    for seed, lowest in ((0, 0.0), (1, 0.4)):
        run = made(tmp_path / f"{seed}", DENSE, seed, [line(1), line(2)])
        values = [lowest + k / 20 for k in range(11)]  # of seed 0 from 0 to 50 %, of seed 1 from 40 to 90 %
        lines = [{"round": 1, "accuracy": [0.9] * 11}, {"round": 2, "accuracy": [*values[::-1], None]}]
        (run / "clients.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"round": 3, "accu')
    (found,) = html.gather([tmp_path])["clients"]
    assert (found["mean"], found["median"]) == (pytest.approx(45), pytest.approx(45))
    assert (found["lowest_tenth"], found["worst"]) == (pytest.approx(25), pytest.approx(20))  # of 5 and 45, 0 and 40
    assert found["clients"] == "11"
    assert found["x"][:2] == pytest.approx([50 / 11, 150 / 11], rel=1e-4)
    assert (found["y"][:2], found["low"][:2], found["high"][:2]) == ([20.0, 25.0], [0.0, 5.0], [40.0, 45.0])


def test_a_client_whose_own_test_is_no_number_counts_as_the_worst_and_leaves_no_mean_of_the_others(
    tmp_path: Path,
) -> None:
    last = line(1, client_accuracy=None, client_accuracy_worst=None)
    run = made(tmp_path / "a", DENSE, 0, [last])
    (run / "clients.jsonl").write_text('{"round": 1, "accuracy": [0.5, null, 0.25, 1.0]}\n')
    (found,) = html.gather([tmp_path])["clients"]
    assert [found[name] for name in ("mean", "median", "lowest_tenth", "worst")] == [None] * 4
    assert (found["clients"], found["y"]) == ("4", [None, 25.0, 50.0, 100.0])


def test_seeds_of_different_numbers_of_clients_meet_at_equal_shares_of_them(tmp_path: Path) -> None:
    for seed, values in ((0, [0.1, 0.3]), (1, [0.5, 0.6, 0.7, 0.8])):
        run = made(tmp_path / f"{seed}", DENSE, seed, [line(1)])
        (run / "clients.jsonl").write_text(json.dumps({"round": 1, "accuracy": values}) + "\n")
    (found,) = html.gather([tmp_path])["clients"]
    assert (found["clients"], found["x"]) == ("2 to 4", [25.0, 75.0])
    assert (found["low"], found["high"]) == ([10.0, 30.0], [55.0, 75.0])  # a quarter lies between its first two


@pytest.mark.slow
def test_a_word_for_clients_means_the_same_in_the_whole_report(trained: dict[str, Path]) -> None:
    found = html.gather([trained["federated"]])
    rows = table.rows(arms([trained["federated"]]))
    for row, own in zip(rows, found["clients"], strict=True):
        for name, part in (("mean", ""), ("lowest_tenth", "_p10"), ("worst", "_worst")):
            assert own[name] == pytest.approx(100 * row[f"client_accuracy{part}"]), name
    assert "10th percentile and the lowest, in the mean over seeds" in found["table"]["note"]


def test_layers_that_no_reply_carried_and_recycled_clients_become_heat_maps(tmp_path: Path) -> None:
    up = {"update/0.weight": 40, "update/2.weight": 8, "*": 2}
    look = {"field": "update", "sin2": 0.1, "rho": 1.0}
    lines = [
        line(1, layer_bytes={"up": up, "down": {"x/0.weight": 50}, "unsent": []}, looks=[]),
        line(
            2,
            layer_bytes={"up": {"update/0.weight": 40, "*": 2}, "down": {}, "unsent": ["update/2.weight"]},
            looks=[{"client": 3, "layer": "0", "recycled": True, **look}, {"client": 3, "recycled": False, **look}],
        ),
    ]
    made(tmp_path / "a", DENSE, 0, lines)
    found = html.gather([tmp_path])
    assert found["layers"] == [
        {"method": 0, "way": "up", "bytes": {"update/0.weight": 80, "update/2.weight": 8, "*": 4}, "rest": [0, 0]},
        {"method": 0, "way": "down", "bytes": {"x/0.weight": 50}, "rest": [0, 0]},
    ]
    assert (found["unsent"][0]["rows"], found["unsent"][0]["cells"]) == (["update/2.weight"], ["0Y"])
    assert found["recycled"][0]["cells"] == ["..", "..", "..", ".u"]  # a half are 30 sixtieths
    assert (heat.LEVELS.index("u"), heat.LEVELS.index("Y"), heat.WHOLE) == (30, 60, 60)
    assert not any("--record" in why for why in found["missing"])


def test_layers_that_were_not_sent_are_read_of_a_run_that_recorded_layers(tmp_path: Path) -> None:
    norms = {"layers": {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0]}}
    lines = [line(1, **norms, unsent=["c"]), line(2), line(3, **norms, unsent=["a", "c"]), line(4, **norms, unsent=[])]
    made(tmp_path / "a", "LUAR(FedAvg(), recycle=1)", 0, lines)
    found = html.gather([tmp_path])
    (seen,) = found["unsent"]
    assert (seen["rows"], seen["cells"]) == (["a", "c"], ["0.Y0", "Y.Y0"])  # none replied in round 2
    assert not any("LUAR" in why for why in found["missing"])
    made(tmp_path / "other/a", "LUAR(FedAvg(), recycle=1)", 0, [line(1)])
    said = html.gather([tmp_path / "other"])["missing"]
    assert "Layers that LUAR did not send: `--record layers` or `--record bytes` records them." in said


def test_what_was_not_recorded_is_left_out_with_the_option_that_records_it(tmp_path: Path) -> None:
    made(tmp_path / "a", "FedAvg(up=LBGM())", 0, [line(1)])
    found = html.gather([tmp_path])
    assert not {"layers", "clients", "taking_part", "unsent", "recycled"} & found.keys()
    said = " ".join(found["missing"])
    assert all(word in said for word in ("--record bytes", "--holdout", "ledger.jsonl", "--record looks"))


def test_one_seed_unfinished_runs_and_different_settings_are_warned_of(tmp_path: Path) -> None:
    made(tmp_path / "a", DENSE, 0, [line(1), line(2)], dropout=0.0)
    made(tmp_path / "b", TOPK, 1, [line(1)], done=False, dropout=0.5)
    said = html.gather([tmp_path])["warnings"]
    assert said[0].startswith("Every method was trained with one seed: a difference may be chance.")
    assert "seed 1, has 1 rounds so far and is not finished" in said[1]
    assert said[2].startswith("Methods have different seeds")
    assert said[3] == "Runs differ in dropout: 0.0 and 0.5."


def test_a_finished_study_of_three_seeds_is_warned_of_nothing(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        made(tmp_path / f"{seed}", DENSE, seed, [line(1, 0.5)])
    assert html.gather([tmp_path])["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds", "points"), tiers([(10, 1, 400), (40, 3, 50)], slow=1))
def test_a_page_of_long_runs_stays_below_five_megabytes(methods: int, seeds: int, points: int, tmp_path: Path) -> None:
    text = "".join(json.dumps(line(n, n / 2000)) + "\n" for n in range(1, 2001))
    for number in range(methods):
        for seed in range(seeds):
            folder = tmp_path / f"{number}-{seed}"
            made(folder, f"FedAvg(up=TopK(0.{number + 1:02d}))", seed, [])
            (folder / "rounds.jsonl").write_text(text)
    found = html.gather([tmp_path])
    assert len(found["methods"]) == methods
    x = found["curves"][0]["accuracy"]["x"]["rounds"]
    assert (len(x), x[0], x[-1]) == (points, 1.0, 2000.0)
    assert len(html.page(found)) < 5e6


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds", "rounds"), tiers([(3, 2, 400), (40, 3, 40), (40, 1, 100)], slow=1))
def test_a_page_of_runs_that_recorded_everything_stays_below_five_megabytes(
    methods: int, seeds: int, rounds: int, tmp_path: Path
) -> None:
    names = [f"blocks.{k}.attention.out_projection.weight" for k in range(60)]
    call = {"payload": 1, "framing": 1}
    lines, calls = [], []
    for n in range(1, rounds + 1):
        clients = [(7 * n + k) % 240 for k in range(24)]
        sizes = {f"update/{name}": 1234567 * k + n for k, name in enumerate(names)}
        looks = [{"client": c, "field": "update", "recycled": c % 3 == n % 2, "sin2": 0.1, "rho": 1.0} for c in clients]
        own = {"client_accuracy": n / 1234, "client_accuracy_p10": 0.1, "client_accuracy_worst": 0.0}
        bytes = {"up": sizes, "down": sizes, "unsent": list(sizes)[n % 2 :: 2]}
        lines.append(line(n, n / 1234, layer_bytes=bytes, looks=looks, clock=n / 7, client_accuracy_spread=0.1, **own))
        calls += [{"round": n, "client": c, "direction": way, **call} for c in clients for way in ("down", "up")]
    files = {
        "rounds": lines,
        "ledger": calls,
        "clients": [{"round": rounds, "accuracy": [k / 240 for k in range(240)]}],
    }
    texts = {name: "".join(json.dumps(one) + "\n" for one in each) for name, each in files.items()}
    for number in range(methods):
        for seed in range(seeds):
            folder = tmp_path / f"{number}-{seed}"
            made(folder, f"LUAR(FedAvg(up=LBGM(threshold=0.{number + 100})), recycle=1)", seed, [], clients=240)
            for name, text in texts.items():
                (folder / f"{name}.jsonl").write_text(text)
    found = html.gather([tmp_path])
    assert found["missing"] == []
    assert all(len(found[name]) == methods * seeds for name in ("taking_part", "unsent", "recycled"))
    assert len(html.page(found)) < 5e6


def test_a_folder_without_runs_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no runs in"):
        html.gather([tmp_path])


# -- the file ---------------------------------------------------------------------


class Loaded(HTMLParser):
    """What a page would fetch, and how many scripts it has."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.places += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def test_a_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    text = html.write([two_methods(tmp_path / "s")], tmp_path / "out/report.html").read_text()
    page = Loaded()
    page.feed(text)
    assert (page.places, page.scripts) == (["data:,"], 3)
    assert "default-src 'none'" in text
    assert "<!--" not in text.partition("<body>")[0]  # every placeholder was filled


def test_text_of_a_study_cannot_end_the_script_that_it_lies_in(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    found = html.gather([two_methods(tmp_path)]) | {"title": evil}
    page = Loaded()
    page.feed(html.page(found))
    assert page.scripts == 3


def test_the_drawing_library_is_the_published_one() -> None:
    """``npm pack plotly.js-cartesian-dist-min@4.1.1``, then sha256sum of plotly-cartesian.min.js in it."""
    packed = (resources.files("thinwire.report") / "page" / html.PLOTLY).read_bytes()
    assert len(packed) < 1_000_000
    digest = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == digest


# -- the commands -------------------------------------------------------------------


def called(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small study of each kind, with all that can be recorded of the federated one."""
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("trained")
    words = "--clients 4 --rounds 3 --seeds 0,1 --lr 0.2 --workers 1 --holdout 0.2 --record bytes --dropout 0.3"
    done = called("run", DENSE, "LUAR(FedAvg(), recycle=1)", *words.split(), "--out", out / "federated")
    assert done.exit_code == 0, done.output
    words = "--workers 2 --steps 6 --evaluate-every 2"
    done = called("ddp-sim", "Hook(Dense())", "DEF(16)", *words.split(), "--out", out / "data-parallel")
    assert done.exit_code == 0, done.output
    words = "--parts 2 --batch 16 --steps 4 --evaluate-every 2 --seeds 0,1 --rates 0.5,1 --clip 9"
    done = called("pipeline", "run", "BPK()", "DSP((1,0),(2,0))", *words.split(), "--out", out / "pipelined")
    assert done.exit_code == 0, done.output
    return {kind: out / kind for kind in ("federated", "data-parallel", "pipelined")}


def test_report_writes_a_page_of_a_study_of_every_kind(trained: dict[str, Path]) -> None:
    for kind, folder in trained.items():
        done = called("report", folder, "--json")
        assert done.exit_code == 0, done.output
        path, said = done.output.splitlines()
        assert (path, json.loads(said)) == (str(folder / "report.html"), {"file": str(folder / "report.html")})
        found = html.gather([folder])
        assert found["setting"][0][0] == "Data", kind
    federated, parallel, pipelined = (html.gather([folder]) for folder in trained.values())
    assert federated["title"] == "digits, 4 clients, 3 rounds"
    assert dict(federated["setting"])["Own tests"] == "20 % of each client's examples, which it does not train on"
    assert {"layers", "clients", "taking_part", "unsent"} <= federated.keys()
    assert parallel["title"] == "digits, 2 workers, 6 steps"
    assert (list(parallel["axes"]), parallel["missing"]) == (["steps", "bytes_up", "bytes_total", "wall_seconds"], [])
    assert [part["name"] for part in parallel["bytes"]] == ["up, in all-reduces", "up, in all-gathers", "down"]
    assert pipelined["title"] == "digits, 2 parts, batches of 16, 4 steps"
    assert (list(pipelined["axes"]), pipelined["missing"]) == (["steps", "bytes_total", "seconds", "wall_seconds"], [])
    assert [part["name"] for part in pipelined["bytes"]] == ["activations, ahead", "error gradients, back"]
    said = dict(pipelined["setting"])
    assert said["Parts"] == "2; from the second on they begin at module 2"
    assert (said["Rates"], said["Links"]) == ("0.5 and 1 times that, by part", "100 Mbit/s each way, 0.01 s one way")
    assert said["Optimiser"] == "SGD, learning rate 0.1, momentum 0.9"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study of ``make demo``, a few rounds of it."""
    pytest.importorskip("sklearn")
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    out = tmp_path_factory.mktemp("demo") / "study"
    small = ["DEMO_ROUNDS=4", "DEMO_CLIENTS=6", "DEMO_SAMPLE=4", f"DEMO_OUT={out}"]
    said = subprocess.run(["make", "-n", "demo", *small], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    command = said.replace("\\\n", " ").partition("/thinwire run")[2].partition("\n")[0]
    done = called("run", *shlex.split(command), "--workers", "1")
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.slow
def test_the_report_of_the_demo_has_every_part(demo: Path) -> None:
    found = html.gather([demo])
    assert found["missing"] == []
    assert {"layers", "clients", "taking_part", "unsent", "recycled"} <= found.keys()
    assert [by["accuracy"]["seeds"] for by in found["curves"]] == [2] * 7
    assert all("low" in by["accuracy"] for by in found["curves"])
    recycling = {found["methods"][entry["method"]]["label"] for entry in found["recycled"]}
    assert recycling == {"FedAvg(up=LBGM(threshold=0.4))"}
    assert {found["methods"][e["method"]]["label"] for e in found["unsent"]} == {"LUAR(FedAvg(), recycle=1)"}


def test_report_refuses_a_port_where_nothing_is_served(tmp_path: Path) -> None:
    done = called("report", two_methods(tmp_path), "--port", "8000")
    assert "--port 8000 is that of --serve, which was not given" in str(done.exception)


@pytest.mark.parametrize(("words", "said"), [(["--out", "x.html"], "--out x.html"), (["--json"], "--json")])
def test_report_refuses_what_is_not_used_with_a_page_that_is_served(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire.report.serve.server", lambda *_: pytest.fail("it serves"))
    done = called("report", two_methods(tmp_path), "--serve", *words)
    assert isinstance(done.exception, ValueError)
    assert f"{said} is not used with --serve" in str(done.exception)


@pytest.mark.parametrize(
    ("out", "file"), [("new", "new/report.html"), ("new/", "new/report.html"), ("a.html", "a.html")]
)
def test_a_page_is_written_into_a_folder_or_as_a_file_that_ends_with_html(out: str, file: str, tmp_path: Path) -> None:
    for _ in range(2):  # into a folder that is there already, too
        done = called("report", two_methods(tmp_path / "runs"), "--out", f"{tmp_path}/{out}", "--json")
        assert json.loads(done.output.splitlines()[-1]) == {"file": str(tmp_path / file)}
        assert (tmp_path / file).read_text().startswith("<!doctype html>")
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize("out", ["file", "file/page.html", "file/new"])
def test_a_page_is_not_written_where_a_file_is_in_the_way(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = called("report", two_methods(tmp_path / "runs"), "--out", f"{tmp_path}/{out}")
    assert f"{tmp_path / 'file'} is a file; name a folder" in str(done.exception)


@pytest.mark.parametrize(
    ("file", "name", "odd", "kind"),
    [
        ("rounds.jsonl", "accuracy", "x", "a number or null"),
        ("rounds.jsonl", "up_bytes", None, "a finite number"),
        ("rounds.jsonl", "round", 1.5, "a whole number that is not negative"),
        ("rounds.jsonl", "change", [1], "an object"),
        ("rounds.jsonl", "norms", {"update": 1}, "an object of lists of numbers"),
        ("rounds.jsonl", "layer_bytes", {"up": {}}, "an object of up and down"),
        ("clients.jsonl", "accuracy", 0.5, "a list, each item a number or null"),
        ("clients.jsonl", "accuracy", ["x"], "a list, each item a number or null"),
        ("ledger.jsonl", "payload", "1", "a whole number that is not negative"),
        ("run.json", "method", 3, "a text"),
        ("run.json", "kind", [], "a text"),
        ("run.json", "clients", "4", "a whole number that is not negative"),
        ("run.json", "parameters", True, "a whole number that is not negative"),
        ("summary.json", "rounds", None, "a whole number that is not negative"),
        ("run.json", "clip", [1], "a number, a text or null"),
        ("study.json", "data", 1, "a text or null"),
        ("study.json", "folders", "01-a", "a list, each item a text"),
        ("study.json", "seeds", [None], "a list, each item a whole number that is not negative"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_file(
    file: str, name: str, odd: Any, kind: str, tmp_path: Path
) -> None:
    run = made(tmp_path / "01-a/seed-0", DENSE, 0, [line(1, 0.5)])
    texts = {
        "study.json": {"folders": ["01-a"], "seeds": [0], "rounds": 1},
        "clients.jsonl": {"round": 1, "accuracy": [0.5]},
        "ledger.jsonl": {"round": 1, "client": 0, "direction": "up", "payload": 1, "framing": 1},
    }
    for named, text in texts.items():
        ((tmp_path if named == "study.json" else run) / named).write_text(json.dumps(text) + "\n")
    assert html.gather([tmp_path])
    path = (tmp_path if file == "study.json" else run) / file
    path.write_text(json.dumps({**json.loads(path.read_text()), name: odd}) + "\n")
    with pytest.raises(RunError, match=rf"{file} is damaged: .*its {name} is .*, and {kind} is expected"):
        html.gather([tmp_path])


def test_damaged_files_of_clients_are_named(tmp_path: Path) -> None:
    run = made(tmp_path / "a", DENSE, 0, [line(1, 0.5)])
    (run / "clients.jsonl").write_text('{"round": 1, "accuracy": [0.5]}\n{}\n')
    with pytest.raises(RunError, match=r"clients.jsonl is damaged: line 2 has no round"):
        html.gather([tmp_path])
    (run / "clients.jsonl").unlink()
    (run / "ledger.jsonl").write_text('{"round": 1, "client": 4, "direction": "up", "payload": 1, "framing": 1}\n')
    with pytest.raises(RunError, match=r"ledger.jsonl is damaged: it has client 4, and the run has 4"):
        html.gather([tmp_path])


def test_the_title_of_a_run_that_belongs_to_no_study_names_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "mine", DENSE, 0, [line(1, 0.5), line(2, 0.5)])
    monkeypatch.chdir(tmp_path)
    assert html.gather([Path("mine")])["title"] == "4 clients, 2 rounds"
    assert "4 clients, 2 rounds" in called("table", "mine").output
    assert html.gather([tmp_path / "mine"])["title"] == "4 clients, 2 rounds"


@pytest.mark.parametrize(
    ("data", "model", "said"),
    [
        ("digits", None, "mlp, which suits the data, 10 parameters"),
        ("digits", "linear", "linear, 10 parameters"),
        ("of another version", None, "one that suits the data, 10 parameters"),
    ],
)
def test_the_model_that_suits_the_data_is_named(data: str, model: str | None, said: str, tmp_path: Path) -> None:
    made(tmp_path / "01-a/seed-0", DENSE, 0, [line(1, 0.5)])
    (tmp_path / "study.json").write_text(json.dumps({"data": data, "model": model, "folders": ["01-a"]}))
    assert dict(html.gather([tmp_path])["setting"])["Model"] == said


def test_table_prints_latex_markdown_and_exact_values(tmp_path: Path) -> None:
    two_methods(tmp_path)
    latex = called("table", tmp_path, "--latex").output.splitlines()
    assert latex[:2] == [r"\begin{tabular}{lrrrrrrrrrrr}", r"\toprule"]
    assert latex[4].startswith(r"\texttt{FedAvg()} & 70.0 \% $\pm$ 14.1 & 70.0 \% & 0.000300 & 0.000600 & 100.0 \%")
    assert latex[-2:] == [r"\bottomrule", r"\end{tabular}"]
    head, first, second = (row.split(",") for row in called("table", tmp_path, "--csv").output.splitlines())
    assert (first[head.index("bytes_up") - len(head)], second[head.index("bytes_up") - len(head)]) == ("300.0", "30.0")
    markdown = called("table", tmp_path, "--markdown").output.splitlines()[0]
    assert markdown.startswith("| method | accuracy | best |")
    assert "| s at 1 Mbit/s | s at 10 | s at 100 |" in markdown
    assert "70.0 % ± 14.1" in called("table", tmp_path).output
    both = called("table", tmp_path, "--csv", "--latex")
    assert str(both.exception) == "--latex and --csv are two formats: leave one out"


# -- served -----------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A folder in which a run goes on, and the port of its report."""
    run = made(tmp_path / "a", DENSE, 0, [line(1, 0.1)], done=False)
    with server([tmp_path]) as made_server:
        thread = threading.Thread(target=made_server.serve_forever, args=(0.02,))
        thread.start()
        assert made_server.server_address[0] == "127.0.0.1"
        yield run, made_server.server_port
        made_server.shutdown()
        thread.join()


def asked(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_a_served_report_has_new_contents_when_a_round_was_added_and_not_before(served: tuple[Path, int]) -> None:
    run, port = served
    assert asked(port, "/")[1].startswith(b"<!doctype html>")
    first = json.loads(asked(port, "/contents.json")[1])
    assert first["curves"][0]["accuracy"]["y"] == [10.0]
    assert asked(port, f"/contents.json?known={first['changed']}") == (204, b"")
    with open(run / "rounds.jsonl", "a") as file:
        file.write(json.dumps(line(2, 0.4)) + "\n" + '{"round": 3, "acc')  # the third is being written
    code, body = asked(port, f"/contents.json?known={first['changed']}")
    assert code == 200
    assert json.loads(body)["curves"][0]["accuracy"]["y"] == [10.0, 40.0]
    assert asked(port, "/run.json")[0] == 404


def test_a_served_report_answers_to_this_machine_by_name_alone(served: tuple[Path, int]) -> None:
    _, port = served
    assert asked(port, "/", host=f"localhost:{port}")[0] == 200
    assert asked(port, "/", host=f"report.example:{port}")[0] == 403


def test_a_report_that_is_served_before_the_first_round_says_what_is_missing(tmp_path: Path) -> None:
    with server([tmp_path]) as empty:
        thread = threading.Thread(target=empty.serve_forever, args=(0.02,))
        thread.start()
        code, said = asked(empty.server_port, "/")
        empty.shutdown()
        thread.join()
    assert (code, said.startswith(b"no runs in")) == (503, True)
    with pytest.raises(RunError, match="does not exist"):
        server([tmp_path / "nowhere"])


# -- in a browser ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a screen."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("there is no chromium with its chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tmp_path_factory.mktemp("chromium")
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    found.set_script_timeout(60)
    yield found
    found.quit()


def opened(browser: Any, place: str, width: int = 1280) -> None:
    """A page, drawn. Fails with what the browser's console says."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")  # a page that was served may still ask for news of a server that is gone
    browser.get_log("browser")
    browser.get(place)
    wait(browser, "return document.documentElement.dataset.drawn", "yes")
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def wait(browser: Any, script: str, expected: Any) -> None:
    began, found = time.monotonic(), None
    while time.monotonic() - began < PATIENCE:
        found = browser.execute_script(script)
        if found == expected:
            return
        time.sleep(0.05)
    raise AssertionError(f"{script} gave {found!r}, not {expected!r}: {browser.get_log('browser')}")


PATIENCE = 120  # seconds: a browser on a busy machine is slow
LINES = "return document.querySelector('[data-chart=curve-accuracy]').data.filter(t => t.name).map(t => t.visible)"
DARK = {"name": "prefers-color-scheme", "value": "dark"}
FIRST = "document.querySelector('#table tbody tr .code').textContent"


@pytest.mark.deployment
def test_a_page_opens_and_its_legend_slider_and_table_work(browser: Any, trained: dict[str, Path]) -> None:
    for folder in trained.values():
        html.write([folder], folder / "report.html")
        opened(browser, (folder / "report.html").as_uri())
    opened(browser, (trained["federated"] / "report.html").as_uri())
    wait(browser, LINES, [True, True])
    browser.execute_script("document.querySelector('.chip').click()")
    wait(browser, LINES, [False, True])
    time.sleep(0.6)  # else it is a double click
    browser.execute_script("document.querySelector('.chip').click()")
    wait(browser, LINES, [True, True])

    for shown in ([True, False], [True, True]):  # a double click: this one alone, and all again
        time.sleep(0.6)
        browser.execute_script("for (const _ of [1, 2]) document.querySelector('.chip').click()")
        wait(browser, LINES, shown)

    slide = "const s = document.getElementById('target'); s.value = {}; s.dispatchEvent(new Event('input'))"
    reached = "return document.querySelectorAll('#targets tbody .soft').length"
    browser.execute_script(slide.format("s.min"))
    wait(browser, reached, 0)  # every method reaches the lowest
    browser.execute_script(slide.format("s.max"))
    best = [
        max(x for seed in seeds for x in seed["accuracy"]) for seeds in html.gather([trained["federated"]])["targets"]
    ]
    wait(browser, reached, sum(one < int(10 * max(best)) / 10 for one in best))  # the best reaches the highest

    assert browser.execute_script(f"return {FIRST}") == "FedAvg()"
    browser.execute_script(
        "document.querySelectorAll('#table th button')[3].click()"
    )  # MB up or own tests, lowest first
    sort = "return document.querySelector('#table th[aria-sort=ascending] button').textContent"
    assert browser.execute_script(sort) == "own tests"
    browser.execute_script("document.querySelectorAll('#table th button')[5].click()")
    assert browser.execute_script(f"return {FIRST}") == "LUAR(FedAvg(), recycle=1)"
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.deployment
def test_the_last_cell_of_a_heat_map_names_no_client_or_round_that_is_not_there(browser: Any, tmp_path: Path) -> None:
    run = made(tmp_path / "a", DENSE, 0, [line(r, 0.5) for r in range(1, 442)], clients=481)
    call = {"direction": "down", "payload": 1, "framing": 1}
    calls = [{"round": r, "client": c, **call} for r, c in ((1, 0), (441, 480))]
    (run / "ledger.jsonl").write_text("".join(json.dumps(each) + "\n" for each in calls))
    opened(browser, html.write([tmp_path], tmp_path / "report.html").as_uri())
    texts = "document.querySelector('#taking-part [data-chart]').data[0].text"
    wait(browser, f"return {texts}[0][0].slice(0, 32)", "rounds 1 to 2<br>clients 0 to 2<")
    assert browser.execute_script(f"return {texts}.at(-1).at(-1)").startswith(
        "rounds 441 to 441<br>clients 480 to 480<"
    )


@pytest.mark.deployment
def test_a_heat_map_shows_the_seed_that_is_chosen_and_keeps_it_for_another_method(browser: Any, tmp_path: Path) -> None:
    call = {"round": 1, "direction": "down", "payload": 1, "framing": 1}
    for name, method, seeds in (("a", DENSE, (0, 7)), ("b", TOPK, (0, 7)), ("c", "FedAvg(up=SignSGD())", (0,))):
        for seed in seeds:
            run = made(tmp_path / f"{name}/{seed}", method, seed, [line(1, 0.5)])
            (run / "ledger.jsonl").write_text(json.dumps({**call, "client": 3 if seed else 0}) + "\n")
    opened(browser, html.write([tmp_path], tmp_path / "report.html").as_uri())
    lists = "const [method, seed] = document.querySelectorAll('#taking-part select');"
    change = f"{lists} %s.selectedIndex = %d; %s.dispatchEvent(new Event('change'))"
    z = "return document.querySelector('#taking-part [data-chart]').data[0].z.map((row) => row[0]).join('')"
    wait(browser, z, "2000")
    for which, index, expected, shown in (
        ("seed", 1, "0002", "FedAvg(), seed 7"),
        ("method", 1, "0002", "TopK"),  # the same seed
        ("method", 2, "2000", "seed 0"),  # which has no seed 7
    ):
        browser.execute_script(change % (which, index, which))
        wait(browser, z, expected)
        assert shown in browser.execute_script("return document.querySelector('#taking-part').textContent")
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def texts(browser: Any, selector: str) -> list[str]:
    """What elements of a page say."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )
    return found


@pytest.mark.deployment
def test_every_part_follows_the_legend(browser: Any, tmp_path: Path) -> None:
    look = {"client": 1, "field": "update", "layer": "*", "sin2": 0.1, "rho": 1.0, "recycled": True}
    sent = {"layer_bytes": {"up": {"a": 9}, "down": {"a": 9}, "unsent": ["a"]}, "looks": [look]}
    call = {"round": 1, "client": 0, "direction": "down", "payload": 1, "framing": 1}
    for number, method in enumerate((DENSE, TOPK)):
        for seed in (0, 1):
            run = made(tmp_path / f"{number}/{seed}", method, seed, [line(1, 0.5, up_bytes=1000 // 9**number, **sent)])
            (run / "ledger.jsonl").write_text(json.dumps(call) + "\n")
            (run / "clients.jsonl").write_text(json.dumps({"round": 1, "accuracy": [0.1, 0.2]}) + "\n")
    opened(browser, html.write([tmp_path], tmp_path / "report.html").as_uri())
    names = [one["label"] for one in html.gather([tmp_path])["methods"]]
    heat_maps = ("taking-part", "unsent", "recycled")
    browser.execute_script(  # of the second method what is not its first: seed 1, and down
        "for (const list of document.querySelectorAll('#taking-part select, #unsent select, #recycled select'))"
        "{ list.selectedIndex = 1; list.dispatchEvent(new Event('change')); }"
        "const list = document.querySelector('#layers select');"
        "list.selectedIndex = 3; list.dispatchEvent(new Event('change'))"
    )

    def shown(chosen: list[str], rest: str) -> None:
        wait(browser, "return document.querySelectorAll('#table tr.off').length", 2 - len(chosen))
        assert [name for name in names if any(name == text for text in texts(browser, "#bytes .code"))] == chosen
        assert texts(browser, "#expressions .code") == [method_of[name] for name in chosen]
        assert texts(browser, "#layers option") == [f"{name}, {way}" for name in chosen for way in ("up", "down")]
        for part in ("#table", "#targets", "#clients"):
            assert len(texts(browser, f"{part} tbody tr")) == 2  # rows stay, dimmed
            assert len(texts(browser, f"{part} tr.off")) == 2 - len(chosen)
        assert len(texts(browser, "#targets .track")) == len(chosen)
        for part in heat_maps:
            assert texts(browser, f"#{part} label:first-child option") == chosen
            assert texts(browser, f"#{part} h3") == ([f"{chosen[-1]}, seed {rest}"] if chosen else [])
        for chart in ("curve-accuracy", "sent-bytes_up", "clients"):
            drawn = f"document.querySelector('[data-chart={chart}]').data.filter((one) => one.name)"
            wait(browser, f"return {drawn}.map((one) => one.visible)", [name in chosen for name in names])

    method_of = {one["label"]: one["expression"] for one in html.gather([tmp_path])["expressions"]}
    chip = "document.querySelectorAll('.chip')[%d].click()"
    shown(names, "1")
    browser.execute_script(chip % 1)
    shown(names[:1], "0")
    assert browser.execute_script("return document.querySelector('#bytes .track').clientWidth") > 0
    browser.execute_script(chip % 0)
    wait(browser, "return document.querySelectorAll('#table tr.off').length", 2)
    for part in ("bytes", "layers", *heat_maps):
        assert texts(browser, f"#{part} p") == ["The legend hides every method that this part shows."]
    browser.execute_script(chip % 1)
    shown(names[1:], "1")  # what was chosen before
    assert browser.execute_script("return document.querySelector('#layers select').value") == f"{names[1]}, down"
    assert [entry["message"] for entry in browser.get_log("browser")] == []


FOCUSED = "const one = document.activeElement; return one.tagName + ' ' + (one.value || one.textContent)"


@pytest.mark.deployment
def test_what_has_the_focus_keeps_it_when_the_page_is_made_anew(browser: Any, served: tuple[Path, int]) -> None:
    run, port = served
    call = {"round": 1, "client": 0, "direction": "down", "payload": 1, "framing": 1}
    (run / "ledger.jsonl").write_text(json.dumps(call) + "\n")
    opened(browser, f"http://127.0.0.1:{port}/")
    for number, (which, focused) in enumerate(
        [
            ("document.querySelector('.chip')", "BUTTON FedAvg()"),
            ("document.querySelectorAll('input[name=axis]')[1]", "INPUT bytes_up"),
            ("document.getElementById('log-y')", "INPUT on"),
            ("document.querySelectorAll('#table th button')[2]", "BUTTON best"),
        ],
        2,
    ):
        browser.execute_script(f"const one = {which}; one.focus(); one.click()")
        assert browser.execute_script(FOCUSED) == focused
        with open(run / "rounds.jsonl", "a") as file:
            file.write(json.dumps(line(number, 0.4)) + "\n")
        wait(browser, "return data.curves[0].accuracy.y.length", number)
        assert browser.execute_script(FOCUSED) == focused
    browser.execute_script("document.querySelector('.chip').click()")  # it is shown again
    browser.execute_script("document.querySelectorAll('#taking-part select')[1].focus()")
    with open(run / "rounds.jsonl", "a") as file:
        file.write(json.dumps(line(6, 0.4)) + "\n")
    wait(browser, "return data.curves[0].accuracy.y.length", 6)
    assert browser.execute_script(FOCUSED) == "SELECT 0"
    browser.find_element("css selector", "#taking-part select").click()  # a list that is open stays so
    with open(run / "rounds.jsonl", "a") as file:
        file.write(json.dumps(line(7, 0.4)) + "\n")
    time.sleep(2.5)
    is_open = "return document.querySelector('select:open') !== null"
    assert (browser.execute_script(is_open), browser.execute_script("return data.curves[0].accuracy.y.length")) == (
        True,
        6,
    )
    browser.find_element("css selector", "h1").click()
    wait(browser, "return data.curves[0].accuracy.y.length", 7)


@pytest.mark.deployment
def test_the_report_of_the_demo_opens_and_has_its_heat_maps(browser: Any, demo: Path) -> None:
    place = html.write([demo], demo / "report.html").as_uri()
    found = html.gather([demo])
    for width in (390, 1280):
        opened(browser, place, width)
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) == 0
    assert browser.execute_script("return document.querySelectorAll('.chip').length") == 7
    there = browser.execute_script("return [...document.querySelectorAll('section')].map((one) => one.id)")
    wanted = ["setting", "table", "curves", "sent", "targets", "bytes", "layers", "clients", "taking-part", "unsent"]
    assert [*wanted, "recycled", "expressions"] == [name for name in there if name != "warnings"]

    def shares(entry: dict[str, Any]) -> list[list[float | None]]:
        return [[None if x == "." else heat.LEVELS.index(x) / heat.WHOLE for x in row] for row in entry["cells"]]

    for name, chart in (("unsent", "LUAR"), ("recycled", "LBGM")):
        cells = f"return document.querySelector('#{name} [data-chart]').data[0].z"
        wait(browser, cells, shares(found[name][0]))
        assert chart in browser.execute_script(f"return document.querySelector('#{name} h3').textContent")
        change = "const seed = document.querySelectorAll('#%s select')[1]; seed.selectedIndex = 1; "
        browser.execute_script(change % name + "seed.dispatchEvent(new Event('change'))")
        wait(browser, cells, shares(found[name][1]))
    curves = "document.querySelector('[data-chart=sent-bytes_up]').data.filter((one) => one.name)"
    wait(browser, f"return {curves}.map((one) => one.y)", [by["bytes_up"]["y"] for by in found["sent"]])
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.deployment
def test_axes_are_logarithmic_where_that_is_ticked(browser: Any, trained: dict[str, Path]) -> None:
    folder = trained["federated"]
    opened(browser, html.write([folder], folder / "report.html").as_uri())
    kind = "return document.querySelector('[data-chart=%s]').layout.%saxis.type"
    click = "document.getElementById('%s').click()"
    for chart, axis, box, before in (
        ("curve-accuracy", "x", "log-x", "log"),  # by bytes, which methods are decades apart in
        ("curve-test_loss", "y", "log-y", "linear"),
        ("sent-bytes_up", "y", "log-sent", "linear"),
    ):
        after = {"log": "linear", "linear": "log"}[before]
        for shown in (before, after, before):
            wait(browser, kind % (chart, axis), shown)
            browser.execute_script(click % box)
        wait(browser, kind % (chart, axis), after)
    assert browser.execute_script(kind % ("curve-accuracy", "y")) == "linear"  # shares have no logarithmic axis
    browser.execute_script("document.querySelector('input[name=axis][value=rounds]').click()")
    wait(browser, kind % ("curve-accuracy", "x"), "linear")  # rounds begin with a linear axis
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.deployment
def test_a_logarithmic_axis_that_spans_little_has_ticks_and_all_their_digits(browser: Any, tmp_path: Path) -> None:
    made(tmp_path / "a", DENSE, 0, [line(n, 0.5, test_loss=loss) for n, loss in ((1, 2.28), (2, 2.14), (3, 2.05))])
    opened(browser, html.write([tmp_path], tmp_path / "report.html").as_uri())
    for low, high in ((2.05, 2.28), (1.55, 1.95), (0.51, 0.575), (2.1, 19), (2.1, 60), (0.3, 400), (3e-9, 2e4)):
        assert browser.execute_script(f"return ticks({low}, {high})") == pytest.approx(plots.ticks(low, high))
    browser.execute_script("document.getElementById('log-y').click()")
    text = "return document.querySelector('[data-chart=%s]').layout.%s.ticktext"
    wait(browser, text % ("curve-test_loss", "yaxis"), ["2.1", "2.2", "2.3"])
    chart = "document.querySelector('[data-chart=curve-accuracy]')"
    zoom = f"Plotly.relayout({chart}, 'xaxis.range', [%s, %s].map(Math.log10))"
    for low, high, shown in (
        (0.00051, 0.000575, ["5.2e-4", "5.4e-4", "5.6e-4"]),
        (12340.5, 12343.5, ["12.341k", "12.342k", "12.343k"]),
    ):
        browser.execute_script(zoom % (low, high))
        wait(browser, text % ("curve-accuracy", "xaxis"), shown)
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.deployment
def test_a_point_under_the_mouse_has_its_values(browser: Any, tmp_path: Path) -> None:
    for seed, best in ((0, 0.8), (1, 0.6)):
        made(tmp_path / f"{seed}", DENSE, seed, [line(1, 0.1), line(2, best / 2), line(3, best)])
    opened(browser, html.write([tmp_path], tmp_path / "report.html").as_uri())
    browser.execute_script("document.querySelector('input[name=axis][value=rounds]').click()")
    where = """
        const div = document.querySelector('[data-chart=curve-accuracy]');
        div.scrollIntoView({ block: 'center' });
        const { left, top } = div.getBoundingClientRect(), { xaxis, yaxis } = div._fullLayout;
        return [left + xaxis._offset + xaxis.d2p(2), top + yaxis._offset + yaxis.d2p(35)];"""
    shown = "return document.querySelector('[data-chart=curve-accuracy] .hoverlayer').textContent"
    began = time.monotonic()
    while "FedAvg()" not in (said := browser.execute_script(shown)) and time.monotonic() - began < PATIENCE:
        x, y = browser.execute_script(where)
        for step in (4, 0):  # it comes from beside
            mouse = {"type": "mouseMoved", "x": x + step, "y": y}
            browser.execute_cdp_cmd("Input.dispatchMouseEvent", mouse)
            time.sleep(0.2)
    assert all(part in said for part in ("FedAvg()", "test accuracy % 35 (30 to 40)", "round 2")), said
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.deployment
def test_an_expression_is_copied(browser: Any, tmp_path: Path) -> None:
    """Where a page may write to the clipboard, and where it may not: then the browser copies what is selected."""
    made(tmp_path / "run", DENSE, 0, [line(1, 0.5)])
    place = html.write([tmp_path], tmp_path / "report.html").as_uri()
    (expression,) = [one["expression"] for one in html.gather([tmp_path])["expressions"]]
    for writes in ("async (text) => { window.copied = text; }", "() => Promise.reject(new Error('not allowed'))"):
        opened(browser, place)
        browser.execute_script(
            f"Object.defineProperty(navigator, 'clipboard', {{ value: {{ writeText: {writes} }} }});"
            "addEventListener('copy', (event) => { window.copied = event.target.value || String(getSelection()); });"
        )
        button = browser.find_element("css selector", ".expression button")
        browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", button)
        watch = "new MutationObserver(() => window.said.push(arguments[0].textContent))"
        browser.execute_script(f"window.said = []; {watch}.observe(arguments[0], {{ childList: true }})", button)
        button.click()  # as a user does: scripts alone may not copy
        wait(browser, "return window.copied", expression)
        wait(browser, "return window.said", ["Copied", "Copy"])
        assert browser.execute_script("return document.querySelectorAll('textarea').length") == 0
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.deployment
def test_a_page_does_not_scroll_sideways_and_its_ticks_are_few(browser: Any, trained: dict[str, Path]) -> None:
    place = html.write([trained["federated"]], trained["federated"] / "report.html").as_uri()
    for width in (390, 900, 1600):
        opened(browser, place, width)
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) == 0
        ticks = browser.execute_script(
            "return document.querySelector('[data-chart=curve-accuracy]').layout.xaxis.ticktext"
        )
        assert 1 <= len(ticks) <= 9
        assert all(len(text) <= 6 for text in ticks), ticks


@pytest.mark.deployment
def test_a_page_prints_light_within_the_paper_and_without_controls(browser: Any, trained: dict[str, Path]) -> None:
    """To PDF, and as the picture that the paper gets, by a browser that is set to dark."""
    place = html.write([trained["federated"]], trained["federated"] / "report.html").as_uri()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [DARK]})
    opened(browser, place)
    paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True, "printBackground": True}
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", paper)["data"])
    assert printed.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 12
    wait(browser, "return document.documentElement.classList.contains('printed')", False)  # as it was before
    size = "document.querySelector('[data-chart=curve-accuracy]').clientWidth"
    drawn = "document.querySelector('[data-chart=curve-accuracy] .main-svg').getBoundingClientRect().width"
    wait(browser, f"return Math.abs({size} - {drawn}) < 2", True)

    browser.execute_script("document.querySelectorAll('.chip')[1].click(); dispatchEvent(new Event('beforeprint'))")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [DARK]})
    across = round(186 / 25.4 * 96)  # pixels of A4 within its margins
    size = {"width": across, "height": 1000, "deviceScaleFactor": 1, "mobile": True}  # without a bar to scroll by
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    shown = "[...document.querySelectorAll('%s')].filter((e) => e.getClientRects().length).length"
    for control in ("input", ".plain", ".modebar", ".screen", ".chip[aria-pressed=false]", "tr.off"):
        assert browser.execute_script(f"return {shown % control}") == 0, control
    charts = "[...document.querySelectorAll('.main-svg, table, .wide')]"
    edges = browser.execute_script(f"return {charts}.map((e) => e.getBoundingClientRect().right).filter((x) => x > 0)")
    assert len(edges) > 4
    assert max(edges) <= across + 1
    narrow = f"{charts}.filter((e) => e.matches('.main-svg')).map((e) => e.getBoundingClientRect().width)"
    assert browser.execute_script(f"return Math.max(...{narrow})") > 500
    picture = base64.b64decode(
        browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
    )
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("L"))
    assert pixels.shape[0] > 1500  # all of it
    assert (pixels > 230).mean() > 0.75  # white paper
    assert (pixels < 90).mean() > 0.002  # and dark ink
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.deployment
def test_a_served_page_draws_a_round_that_is_added(browser: Any, served: tuple[Path, int]) -> None:
    run, port = served
    opened(browser, f"http://127.0.0.1:{port}/")
    points = "return document.querySelector('[data-chart=curve-accuracy]').data.filter(t => t.name)[0].y.length"
    wait(browser, points, 1)
    with open(run / "rounds.jsonl", "a") as file:
        file.write(json.dumps(line(2, 0.4)) + "\n")
    wait(browser, points, 2)
