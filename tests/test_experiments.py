"""The experiments' scripts run, at a size that says nothing about the methods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_of_detached_error_feedback_has_the_thesis_beside_it(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--model", "mlp", "--augment", "--workers", "4", "--steps", "6"]
    done = subprocess.run(
        [sys.executable, "experiments/def/table6.py", *arguments, "--ratios", "64", "--into", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = list(map(json.loads, (tmp_path / "table6_digits_mlp.jsonl").read_text().splitlines()))
    assert [line["paper"] for line in lines] == [93.76, 92.16, 91.88, 91.79, [93.75, 93.61]]
    assert [line["accuracy_x"] is None for line in lines] == [True, True, True, False, False]
    assert [line["curve"][-1][0] for line in lines] == [6] * 5
    # 4,810 parameters in tensors of 4,096, 64, 640 and 10: blocks of 64, 1, 10 and 1.
    assert lines[1]["bytes"] == 6 * 4 * 76


def test_table_2_in_kind_has_the_bytes_of_both_directions(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--rounds", "5", "--clients", "6", "--sample", "2", "--every", "2"]
    for name in ("FedAvg (5", "EF21 down", "k = D / 5,000", "8 subspaces, D / 475"):  # one of each kind
        arguments += ["--only", name]
    done = subprocess.run(
        [sys.executable, "experiments/fetchsgd/table2.py", *arguments, "--budget", "0.1", "--into", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
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
