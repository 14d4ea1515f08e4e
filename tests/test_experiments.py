"""The experiments' scripts run, at a size that says nothing about the methods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(script: str, *arguments: str) -> str:
    """What a script of the experiments prints."""
    done = subprocess.run(
        [sys.executable, f"experiments/{script}", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_of_detached_error_feedback_has_the_thesis_beside_it(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--model", "mlp", "--augment", "--workers", "4", "--steps", "6"]
    run("def/table6.py", *arguments, "--ratios", "64", "--into", str(tmp_path))
    lines = list(map(json.loads, (tmp_path / "table6_digits_mlp.jsonl").read_text().splitlines()))
    assert [line["paper"] for line in lines] == [93.76, 92.16, 91.88, 91.79, [93.75, 93.61]]
    assert [line["accuracy_x"] is None for line in lines] == [True, True, True, False, False]
    assert [line["curve"][-1][0] for line in lines] == [6] * 5
    shown = run("def/table6.py", *arguments, "--table", "--into", str(tmp_path)).splitlines()
    assert [line.partition("B a step ")[2] for line in shown] == [line["name"] for line in lines]
    assert [", of x" in line for line in shown] == [False, False, False, True, True]
    # 4,810 parameters in tensors of 4,096, 64, 640 and 10: blocks of 64, 1, 10 and 1.
    assert lines[1]["bytes"] == 6 * 4 * 76


def test_the_time_to_an_accuracy_is_the_steps_it_takes_by_the_seconds_of_a_step(tmp_path: Path) -> None:
    script = "def/time_to_accuracy.py"
    options = ["--data", "digits", "--model", "mlp", "--batch", "8", "--into", str(tmp_path)]
    methods = ["--only", "Hook(Dense())", "--only", "DEF(64)", "--lr", "0.02"]
    run(script, "curves", *methods, "--steps", "6", "--every", "2", "--seeds", "0", "1", *options)
    path = tmp_path / "time_to_accuracy_digits.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["name"], line["seed"]) for line in lines] == [
        ("Hook(Dense())", 0),
        ("Hook(Dense())", 1),
        ("DEF(64.0)", 0),
        ("DEF(64.0)", 1),
    ]
    assert [[row[0] for row in line["curve"]] for line in lines] == [[2, 4, 6]] * 4
    for line, accuracies in zip(
        lines, ((0.1, 0.6, 0.9), (0.6, 0.7, 0.8), (0.1, 0.2, 0.6), (0.1, 0.2, 0.6)), strict=True
    ):
        line["curve"] = [[t, y, y + 0.35] for t, y in zip((2, 4, 6), accuracies, strict=True)]
    slow = {"kind": "times", "model": "mlp", "batch": 8, "mbit": 100, "round_trip_ms": 10.0, "bytes_a_step": 19240}
    for name, seconds in (("Hook(Dense())", 0.5), ("DEF(64.0)", 0.05), ("DEFA(64.0)", 0.05)):
        lines.append(slow | {"name": name, "step_seconds": seconds})
    lines.append(slow | {"name": "DEF(64.0)", "step_seconds": 9.0, "mbit": 10})  # over another link
    path.write_text("".join(json.dumps(line) + "\n" for line in [lines[0], *lines]))  # one training twice
    said = [line.split() for line in run(script, "table", "--target", "0.5", *options).splitlines()[1:]]
    # Dense first at 4 and 2, 3 steps of .5 s; y at 6 and 6; x, which is .35 more, at 4 and 4.
    assert [(line[-1], line[:5]) for line in said] == [
        ("Hook(Dense())", ["2", "s", "1.000", "of", "dense"]),
        ("DEF(64.0)", ["0", "s", "0.200", "of", "dense"]),
        ("DEFA(64.0)", ["0", "s", "0.133", "of", "dense"]),
    ]
    assert "85.0 % ± 7.1, 35.0 % on average from 1 to 3" in " ".join(said[0])


def test_a_line_of_results_is_shown_by_what_it_was_when_defaults_were_others_and_is_not_made_twice(
    tmp_path: Path,
) -> None:
    script, path = "def/time_to_accuracy.py", tmp_path / "time_to_accuracy_digits.jsonl"
    options = ["--data", "digits", "--model", "mlp", "--batch", "8", "--into", str(tmp_path), "--steps", "2"]
    run(script, "curves", "--only", "DEF(64, lam=0.5)", "--every", "2", *options)
    line = json.loads(path.read_text())
    old = line | {"name": "DEF(64.0)", "expression": "DEF(ratio=64.0, scope='vector', lam=0.3)"}
    path.write_text(json.dumps(old) + "\n")
    shown = run(script, "table", "--markdown", *options)
    assert [row.split("|")[1].strip() for row in shown.splitlines()] == [
        "`DEF(64.0, lam=0.3)`, 0.02",
        "`DEFA(64.0, lam=0.3)`, 0.02",
    ]
    said = [run(script, "curves", "--only", "DEF(64)", "--every", "2", *options) for _ in range(2)]
    assert said[1] == "there already: DEF(64), seed 0\n"
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert [one["expression"] for one in found] == [old["expression"], "DEF(ratio=64.0, scope='vector', lam=None)"]
    assert 0.5 <= found[1]["lam"][0][1] <= 1


def test_lambda_by_ranks_has_both_lambdas_and_is_not_made_twice(data_dir: Path, tmp_path: Path) -> None:
    size = ["--workers", "2", "--lambdas", "0.7", "--steps", "2", "--examples", "256", "--tested", "100"]
    said = [run("def/ranks.py", *size, "--into", str(tmp_path)) for _ in range(2)]
    assert said[1] == ""
    lines = [json.loads(text) for text in (tmp_path / "ranks_fashion_mnist.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["Hook(Dense())", "DEF(64.0)", "DEF(64.0, lam=0.7)"]
    assert [len(line["lam"]) for line in lines] == [0, 2, 2]
    assert lines[2]["lam"][0][1] == 0.7
    assert run("def/ranks.py", "--table", "--into", str(tmp_path)).count("| 2 | `") == 3


def test_table_2_in_kind_has_the_bytes_of_both_directions(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--rounds", "5", "--clients", "6", "--sample", "2", "--every", "2"]
    for name in ("FedAvg (5", "EF21 down", "k = D / 5,000", "8 subspaces, D / 475"):  # one of each kind
        arguments += ["--only", name]
    run("fetchsgd/table2.py", *arguments, "--budget", "0.1", "--into", str(tmp_path))
    *lines, last = map(json.loads, (tmp_path / "table2_digits.jsonl").read_text().splitlines())
    assert [line["rounds"] for line in lines] == [5, 1, 5, 5, 5]
    assert all(line["bytes_up"] > 0 and line["bytes_down"] > 0 for line in lines)
    table = {row["row"]: row for row in last["table"]}
    assert list(table) == [line["row"] for line in lines]
    assert table["uncompressed"]["compression"] == [1.0, 1.0, 1.0]
    assert table["FedAvg (5 local steps)"]["compression"] == [5.0, 5.0, 5.0]
    assert table["uncompressed"]["within"] == [None]  # its first evaluation comes after 0.15 MB
    assert table["Intrinsic (8 subspaces, D / 475)"]["within"][0] > 0
    assert table["FetchSGD (k = D / 5,000)"]["compression"][1] > 50
    assert table["FetchSGD (k = D / 5,000)"]["paper"] == [14.8, 3.8, 100, 7.3]
