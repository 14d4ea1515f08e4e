"""The experiments' scripts and the benchmarks run, at a size that says nothing about methods or speed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import itertools
import json
import os
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import thinwire as tw
from places import ROOT
from thinwire import models
from thinwire.key import Key
from thinwire.params import Params
from thinwire.wire import dumps, loads


@contextlib.contextmanager
def alone(argv: list[str]) -> Iterator[None]:
    """What a script changes of this process is as before afterwards."""
    before = sys.argv, sys.path[:], dict(os.environ), torch.get_num_threads(), set(sys.modules)
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # of the processes it starts
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before[:2]
        os.environ.clear()
        os.environ.update(before[2])
        torch.set_num_threads(before[3])
        folders = tuple(str(ROOT / name) for name in ("experiments", "benchmarks", "examples"))
        for name in set(sys.modules) - before[4]:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folders):
                del sys.modules[name]


def run(script: str, *arguments: object, folder: str = "experiments") -> str:
    """What a script prints, run in this process."""
    path, out = str(ROOT / folder / script), io.StringIO()
    with alone([path, *map(str, arguments)]), contextlib.redirect_stdout(out):
        runpy.run_path(path, run_name="__main__")
    return out.getvalue()


def written(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
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


@pytest.mark.slow
def test_lambda_by_ranks_has_both_lambdas_and_is_not_made_twice(data_dir: Path, tmp_path: Path) -> None:
    size = ["--workers", "2", "--lambdas", "0.7", "--steps", "2", "--examples", "256", "--tested", "100"]
    said = [run("def/ranks.py", *size, "--into", str(tmp_path)) for _ in range(2)]
    assert said[1] == ""
    lines = [json.loads(text) for text in (tmp_path / "ranks_fashion_mnist.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["Hook(Dense())", "DEF(64.0)", "DEF(64.0, lam=0.7)"]
    assert [len(line["lam"]) for line in lines] == [0, 2, 2]
    assert lines[2]["lam"][0][1] == 0.7
    assert run("def/ranks.py", "--table", "--into", str(tmp_path)).count("| 2 | `") == 3


@pytest.mark.slow
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
    assert table["FedAvg (5 local steps)"]["compression"] == pytest.approx([5.0, 5.0, 5.0], rel=1e-3)  # headers apart
    assert table["uncompressed"]["within"] == [None]  # its first evaluation comes after 0.15 MB
    assert table["Intrinsic (8 subspaces, D / 475)"]["within"][0] > 0
    assert table["FetchSGD (k = D / 5,000)"]["compression"][1] > 50
    assert table["FetchSGD (k = D / 5,000)"]["paper"] == [14.8, 3.8, 100, 7.3]


@pytest.mark.slow
def test_an_experiment_that_was_stopped_trains_what_is_missing_and_what_no_commit_made(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--model", "mlp", "--clients", 6, "--sample", 2, "--rounds", 2, "--into", tmp_path]
    run("fashion/table.py", *arguments, "--only", "SCAFFOLD")
    path = tmp_path / "table_digits.jsonl"
    (first,) = written(path)
    path.write_text(json.dumps(first | {"dirty": False, "version": "0.1.0+g12345678", "seconds": 77.0}) + "\n")
    shown = run("fashion/table.py", *arguments, "--only", "SCAFFOLD", "--only", "Adam").splitlines()
    assert ["there already" in line for line in shown] == [False, True]
    found = {line["row"]: line for line in written(path)}
    assert list(found) == ["SCAFFOLD()", "FedAvg(opt=Adam(0.01))"]
    assert found["SCAFFOLD()"]["seconds"] == 77.0
    path.write_text("".join(json.dumps(line | {"dirty": True}) + "\n" for line in found.values()))
    shown = run("fashion/table.py", *arguments, "--only", "SCAFFOLD").splitlines()
    assert ["there already" in line for line in shown] == [False]
    assert [line["row"] for line in written(path)] == ["FedAvg(opt=Adam(0.01))", "SCAFFOLD()"]
    # Two rounds: what crossed until the end of the second is what crossed in all.
    for line in written(path):
        assert [point[:1] + point[4:] for point in line["curve"]][-1] == [2, line["bytes_up"], line["bytes_down"]]


@pytest.mark.soak
def test_the_hospitals_table_has_every_site_and_what_a_site_never_seen_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, site = np.random.default_rng(0), np.repeat(np.arange(2, dtype=np.uint8), 4)
    vessel = np.repeat(np.repeat(g.integers(0, 2, (8, 16, 16), np.uint8), 16, 1), 16, 2)
    arrays = {"image": np.stack([255 * vessel] * 3, -1), "vessel": vessel, "fov": np.ones_like(vessel), "site": site}
    (tmp_path / "retina_vessels").mkdir()
    np.savez(tmp_path / "retina_vessels/retina_256.npz", **arrays, test=np.tile([0, 0, 0, 1], 2).astype(np.uint8))
    monkeypatch.setenv("THINWIRE_DATA", str(tmp_path))
    script, into = "personal/retina.py", tmp_path / "table.jsonl"
    options = ["--size", 16, "--rounds", 1, "--tune-rounds", 1, "--workers", 1, "--into", into]
    said = run(
        script, *options, "--lr", "0.003", "--only", "centralised", "--only", "FedAvg", "--out", tmp_path / "runs"
    )
    said += run(script, *options, "--lr", "0.003", "--only", "FedSM", "--out", tmp_path / "runs")
    said += run(script, *options, "--only", "Per-FedAvg")
    tried = [line["lr"] for line in written(into) if line["experiment"] == "tune"]
    assert tried[:3] == [0.1, 0.3, 1.0]
    lines = {line["row"]: line for line in written(into) if line["experiment"] == "table"}
    assert list(lines) == ["centralised", "FedAvg", "FedSM", "Per-FedAvg"]
    assert all(line["measure"] == "dice" and len(line["own"]) == len(line["any"]) == 2 for line in lines.values())
    assert lines["FedAvg"]["own"] == lines["FedAvg"]["any"]
    assert lines["FedAvg"]["bytes_up"] > 2 * 4 * 486_553 > lines["centralised"]["bytes_up"]
    assert said.count("own 0.") == 4 + len(tried)
    run(script, *options, "--lr", "0.003", "--only", "FedAvg", "--unseen", "1")
    unseen = [line for line in written(into) if "unseen" in line]
    assert [line["row"] for line in unseen] == ["FedAvg"]
    assert all((line["unseen"], len(line["own"]), line["tuned_on"]) == (1, 1, 2) for line in unseen)
    assert all(0 <= line["tuned"] <= 1 for line in unseen)
    apart = ["--size", 16, "--rounds", 1, "--workers", 1, "--lr", "0.003", "--only", "FedAvg"]
    apart += ["--into", tmp_path / "apart.jsonl"]
    run(script, *apart)
    run(script, *apart, "--unseen", "1")
    run(script, *apart)  # in no place of that without a site
    assert sorted(line.get("unseen", -1) for line in written(tmp_path / "apart.jsonl")) == [-1, 1]
    three = ["--size", 16, "--workers", 1, "--lr", "0.003", "--only", "FedAvg", "--into", tmp_path / "last.jsonl"]
    run(script, *three, "--rounds", 2, "--last", 1)
    run(script, *three, "--rounds", 3, "--last", 1)
    two, end = written(tmp_path / "last.jsonl")
    run(script, *three, "--rounds", 3, "--last", 2)
    assert written(tmp_path / "last.jsonl")[0] == two
    (mean,) = written(tmp_path / "last.jsonl")[1:]  # in the place of the line with one evaluation
    assert [(x["round"], x["own"], x["test"]) for x in mean["evaluated"]] == [
        (rounds, line["own"], line["test"]) for rounds, line in ((2, two), (3, end))
    ]
    assert mean["own"] == pytest.approx([(a + b) / 2 for a, b in zip(two["own"], end["own"], strict=True)], rel=1e-12)
    assert two["own"] != end["own"]
    shown = run(script, *options, "--table").splitlines()
    assert shown[0].startswith("| row | lr | seeds | evaluations | mean | worst | lowest tenth |")
    assert [line.split(" | ")[0] for line in shown[2:6]] == ["| centralised", "| FedAvg", "| FedSM", "| Per-FedAvg"]
    assert shown[6:8] == ["", "| row | DRIVE | CHASE |"]
    assert shown[10] == f"| FedAvg | {lines['FedAvg']['own'][0]:.4f} | {lines['FedAvg']['own'][1]:.4f} |"
    drawn = run("personal/pictures.py", *options, "--out", tmp_path / "runs", "--to", tmp_path / "drawn")
    assert "left out" not in drawn
    for name in ("segmentations", "selector"):
        assert (tmp_path / f"drawn/{name}.png").read_bytes().startswith(b"\x89PNG")
    best = lines["Per-FedAvg"]["lr"]
    failed = [
        line | {"diverged": "nan"} if line["row"] == "Per-FedAvg" and "any" in line else line for line in written(into)
    ]
    into.write_text("".join(f"{json.dumps(line)}\n" for line in failed))
    run(script, *options, "--only", "Per-FedAvg")
    scores = {line["lr"]: sum(line["own"]) for line in written(into) if line["experiment"] == "tune"}
    second = sorted(scores, key=lambda lr: -scores[lr])[1]
    shown = run(script, *options, "--table").splitlines()
    assert shown[5].startswith(f"| Per-FedAvg | {second:g} |")
    assert second != best


@pytest.mark.slow
def test_what_a_look_shows_has_its_commands_and_what_made_it(tmp_path: Path) -> None:
    run("analysis/look.py", "--tiny", "--jobs", "look_back,feedback", "--into", tmp_path, "--figures", tmp_path / "png")
    back, owed = written(tmp_path / "look_digits.jsonl")
    assert [len(line["shown"]) for line in (back, owed)] == [2, 2]
    assert len(back["recycling"]) == 3
    assert [line["step"] for line in owed["steps"]] == [10, 20]
    assert sorted(path.name for path in (tmp_path / "png").iterdir()) == ["feedback.png", "look_back.png"]


@pytest.mark.deployment
def test_the_memory_of_a_look_is_measured(tmp_path: Path) -> None:
    run("analysis/memory.py", "--epochs", "2", "--into", tmp_path)
    (line,) = written(tmp_path / "memory.jsonl")
    assert (line["parameters"], line["bytes_on_disk"], line["tiny"]) == (272_762, 8 * 272_762, True)
    assert line["peak_mb"] >= line["peak_mb_before"] > 0


def test_every_method_and_link_is_a_row(tmp_path: Path) -> None:
    run("everything/digits.py", "--rounds", 1, "--only", "FedGen", "--only", "Budget", "--into", tmp_path)
    assert [line["row"] for line in written(tmp_path / "digits.jsonl")] == ["FedGen()", "FedAvg(up=Budget(2000))"]


@pytest.mark.slow
def test_intrinsic_compression_has_the_bytes_of_both_directions_by_round(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--clients", 6, "--sample", 2, "--rounds", 1, "--dim", 50, "--rate", 0.3]
    shown = run("intrinsic/equal_bytes.py", *arguments, "--into", tmp_path)
    assert len(written(tmp_path / "equal_bytes_digits.jsonl")) == 9  # 50 alone, three more of it, top-k twice, FedAvg
    assert "accuracy when so many MB have crossed" in shown


@pytest.mark.parametrize("residual", ["top-k", "LBGM"])
def test_the_authors_accounting_of_look_back_counts_what_is_not_sent(residual: str) -> None:
    with alone([str(ROOT / "experiments/lbgm/claims.py")]):
        accounting = importlib.import_module("accounting")
        link = accounting.BilledTopK() if residual == "top-k" else tw.ErrorFeedback(accounting.BilledLBGM())
        g = Params.of([("w", torch.randn(50, 10, generator=torch.Generator().manual_seed(0)))])
        tx, rx = link.open(g)
        packet, seen, tx = link.send(g, tx, Key(0, 0, 0))
        assert link.floats(packet) == 50  # of 500
        assert len(dumps(packet)) > 4 * 500  # bytes: all of them
        received, rx = link.recv(loads(dumps(packet)), g.layout, rx, Key(0, 0, 0))
        assert torch.equal(received.flat, g.flat)
        assert torch.equal(seen.flat, g.flat)
        # What top-k left out is added to an update that was delivered whole: 2 g but for the 50 largest entries, which
        # is what is tested then. LBGM left out nothing: the same update again is recycled exactly.
        packet, seen, _ = link.send(g, tx, Key(0, 1, 0))
        received, _ = link.recv(loads(dumps(packet)), g.layout, rx, Key(0, 1, 0))
        assert torch.equal(received.flat, seen.flat)
        if residual == "LBGM":
            assert link.floats(packet) == 1
            torch.testing.assert_close(seen.flat, g.flat)
            return
        largest = g.flat.abs().argsort(descending=True)[:50]
        twice = 2 * g.flat
        twice[largest] = g.flat[largest]
        cosine = torch.nn.functional.cosine_similarity(twice, g.flat, dim=0)
        assert 1 - float(cosine) ** 2 <= 0.2  # so it is recycled, as so many times the first
        assert link.floats(packet) == 1
        torch.testing.assert_close(seen.flat, g.flat * float(twice @ g.flat) / float(g.flat @ g.flat))


@pytest.mark.deployment
def test_simulating_is_measured_beside_a_bare_loop(tmp_path: Path) -> None:
    into = tmp_path / "simulate.jsonl"
    jobs = ["--only", "J2", "--only", "J4"]
    shown = run("simulate.py", "--tiny", "--rounds", 1, *jobs, "--json", "--into", into, folder="benchmarks")
    found = json.loads(shown.splitlines()[-1])
    assert list(found) == ["J2", "J4"]
    for line in written(into):
        assert line == found[line["job"]]
        assert line["ratio"] > 0
        assert min(line["first_round_seconds"], line["torch_seconds"]) > 0
        assert (line["cores"], line["versions"]["torch"]) == (os.cpu_count(), torch.__version__)
        assert line["processor"]
        assert line["dirty"] == line["version"].endswith("-dirty")


@pytest.mark.deployment
def test_the_parts_of_a_step_in_c_are_measured_beside_a_bare_one(tmp_path: Path) -> None:
    into = tmp_path / "steps.jsonl"
    arguments = ["--tiny", "--turns", 1, "--json", "--into", into]
    found = json.loads(run("steps.py", *arguments, folder="benchmarks").splitlines()[-1])
    assert written(into) == list(found.values())
    assert list(found) == ["J1", "J3"]
    for line in found.values():
        parts = line["found"]
        assert min(parts["convolutions"], parts["back through convolutions"], line["bare_step"]) > 0
        assert sum(parts.values()) < 1.01 * line["step"] + 6


@pytest.mark.deployment
def test_steps_that_keep_freed_memory_are_measured_beside_others(tmp_path: Path) -> None:
    into = tmp_path / "allocator.jsonl"
    arguments = ["--tiny", "--passes", 1, "--only", "steps", "--json", "--into", into]
    found = json.loads(run("allocator.py", *arguments, folder="benchmarks").splitlines()[-1])
    assert written(into) == [found["steps"]]
    assert min(found["steps"][name] for name in ("ratio", "seconds", "kept_seconds", "peak_mb", "kept_peak_mb")) > 0


@pytest.mark.deployment
def test_thinwires_own_row_among_its_peers_is_measured(tmp_path: Path) -> None:
    arguments = ["--tiny", "--passes", 1, "--rounds", 1, "--only", "J2", "--peer", "thinwire", "--json"]
    found = json.loads(run("peers.py", *arguments, folder="benchmarks").splitlines()[-1])
    assert list(found["J2"]["found"]) == ["thinwire"]
    assert found["J2"]["found"]["thinwire"]["first_round_seconds"] > found["J2"]["found"]["thinwire"]["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "modules"),
    [("pfl", ["pfl"]), pytest.param("flower", ["flwr", "ray"], marks=pytest.mark.soak)],  # Ray takes long to start
)
def test_a_peer_is_measured_where_it_is_installed(peer: str, modules: list[str]) -> None:
    if not all(map(importlib.util.find_spec, modules)):
        pytest.skip(f'{peer} is not installed: pip install -c constraints.txt "thinwire[peers]"')
    arguments = ["--tiny", "--passes", 1, "--rounds", 1, "--only", "J2", "--peer", peer, "--json"]
    found = json.loads(run("peers.py", *arguments, folder="benchmarks").splitlines()[-1])
    assert found["J2"]["found"][peer]["ratio"] > 0


def test_what_is_prepared_for_a_gpu_is_listed_takes_thirteen_minutes_and_names_what_there_is(tmp_path: Path) -> None:
    lines = run("gpu.py", "--into", tmp_path, "--list", folder="benchmarks").splitlines()
    assert sum(int(line.partition(" s: ")[0]) for line in lines) <= 13 * 60
    words = [word for line in lines for word in line.split() if word.startswith(("tests/", "benchmarks/"))]
    assert words
    assert all((ROOT / word).exists() for word in words)
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="no CUDA device"):
            run("gpu.py", "--into", tmp_path, folder="benchmarks")


@pytest.mark.deployment
def test_the_kernels_and_every_link_are_measured() -> None:
    found = json.loads(run("kernels.py", "--tiny", "--rounds", 1, "--json", folder="benchmarks").splitlines()[-1])
    assert found["topk"] > 0
    assert found["links"]["Half()"]["bytes"] == 2 * 44_986 + 442
    assert len(found["links"]) > 30


@pytest.mark.deployment
def test_the_other_benchmarks_run() -> None:
    methods = json.loads(run("methods.py", "--tiny", "--rounds", 1, "--json", folder="benchmarks").splitlines()[-1])
    assert methods["found"]["FedAvg"]["ratio"] == 1.0
    entropy = json.loads(run("entropy.py", "--clients", 4, "--json", folder="benchmarks").splitlines()[-1])
    assert entropy["found"]["Dense()"]["plain"] > 4 * 4810
    scale = run("scale.py", "--clients", 20, "--rounds", 2, "--json", folder="benchmarks")
    assert json.loads(scale.splitlines()[-1])["20"]["clients"] == 20
    method = "FedAvg(LocalSGD(batch=4))"
    about = json.loads(
        run("memory.py", method, "--data", "digits", "--model", "mlp", "--json", folder="benchmarks").splitlines()[-1]
    )[method]
    assert about["peak_mb"]["tests"] >= about["peak_mb"]["set-up"] / 2 > 0
    assert list(about["kept_mb"]) == ["training, batch 4"]
    assert {"set-up", "training, batch 4", "tests"} == set(about["peak_mb"])


@pytest.mark.deployment
def test_data_parallel_steps_are_measured_over_loopback() -> None:
    found = json.loads(run("ddp.py", "--quick", "--tiny", "--json", folder="benchmarks").splitlines()[-1])
    assert found["loopback"]["def64_over_dense_pairs"] == 2
    assert found["slow"] is None


@pytest.mark.deployment
def test_a_pipeline_is_measured_beside_torchs_own_over_loopback() -> None:
    arguments = ["--tiny", "--quick", "--only", "links", "--models", "waits", "--json"]
    found = json.loads(run("pipeline.py", *arguments, folder="benchmarks").splitlines()[-1])["links"]["waits 0"]
    assert found["arms"]["DSP"]["schedule"].startswith("DSP((1, 0), m=(")
    assert found["arms"]["DSP"]["held"][1] == [1, 1]
    assert found["over_torch 1F1B"] > 0


@pytest.mark.slow
def test_a_stale_training_is_a_line_and_is_not_trained_again(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--model", "resnet20", "--parts", 3, "--seeds", 0, "--only", "(4, 2, 0)"]
    arguments += ["--examples", 32, "--tested", 16, "--epochs", 2, "--batch", 16, "--lr", 0.02]
    arguments += ["--into", tmp_path / "dsp.jsonl", "--mbit", 1e6]  # else where so little is sent that frames count
    shown = [run("dsp/train.py", *arguments, "--work", tmp_path / "work") for _ in range(2)]
    everything = written(tmp_path / "dsp.jsonl")
    (costs,), lines = ([x for x in everything if (x.get("part") == "costs") is costs] for costs in (True, False))
    assert (len(costs["forward"]), len(costs["cut"])) == (3, 2)
    assert [line["row"].partition(", a")[2] for line in lines] == [
        "",
        "ctivations=Half(), gradients=Half())",
        "ctivations=Int8(), gradients=Int8())",
    ]
    assert [line["held"] for line in lines] == [[4, 3, 1]] * 3  # of 4 batches
    assert all([point[0] for point in line["curve"]] == [1, 2, 3, 4] for line in lines)
    if not lines[0]["dirty"]:  # with code that is in no commit each row is cut and trained anew, perhaps elsewhere
        assert lines[0]["bytes_up"] > 1.9 * lines[1]["bytes_up"] > 3.5 * lines[2]["bytes_up"]
        assert shown[1].count("there already") == 3


@pytest.mark.soak
def test_speeds_of_parts_are_those_of_the_law_and_curves_a_picture_of_lines(data_dir: Path, tmp_path: Path) -> None:
    """BPK over 1 Gbit/s and 1 ms: the parts' .09 s, and two times two messages."""
    costs, lines = tmp_path / "costs.jsonl", []
    for parts, cut, seconds in ((1, [], [0.09]), (3, [4, 7], [0.03] * 3), (4, [4, 6, 9], [0.02, 0.02, 0.02, 0.03])):
        line = {"experiment": "dsp", "part": "costs", "data": "cifar10", "model": "resnet20", "dirty": False}
        line |= {"parts": parts, "batch": 64, "autocast": "bfloat16", "cut": cut}
        lines.append({**line, "forward": [0.0] * parts, "backward": seconds})
    costs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("dsp/speeds.py", "--costs", costs, "--into", tmp_path / "speeds.jsonl")
    found = {(line["parts"], line["row"], line["mbit"]): line for line in written(tmp_path / "speeds.jsonl")}
    plain, dsp = (found[3, row, 1000.0] for row in ("BPK()", "DSP"))
    # 64 pictures of 16 x 32 x 32 and of 32 x 16 x 16 numbers, two bytes each, there and back.
    assert plain["bytes"] == pytest.approx(2 * 2 * 64 * (16 * 32 * 32 + 32 * 16 * 16), rel=1e-3)
    assert plain["tick"] == pytest.approx(0.09 + 4 * 0.001 + plain["bytes"] * 8 / 1e9)
    assert dsp["tick"] == 0.03
    assert dsp["faster"] == pytest.approx(3.0)
    assert found[3, "DSP, Int8", 100.0]["bytes"] == pytest.approx(plain["bytes"] / 2, rel=0.01)
    curve = [[156, 1.0, 0.5, 1.0, 1.0], [312, 2.0, 0.75, 1.0, 1.0]]
    rows = [(1, "BP"), (3, "DSP((1, 1, 0), (4, 2, 0))")]
    run_of = {"part": "curve", "examples": 10_000, "batch": 64, "curve": curve}
    (tmp_path / "lines.jsonl").write_text(
        "".join(json.dumps({**run_of, "parts": parts, "row": row}) + "\n" for parts, row in rows)
    )
    out = tmp_path / "curves.svg"
    words = ["--lines", tmp_path / "lines.jsonl", "--speeds", tmp_path / "speeds.jsonl", "--out", out]
    said = run("dsp/curves.py", *words)
    assert said == f"{out}: {len(out.read_bytes()):,} bytes\n"
    assert all(f">{text}<" in out.read_text() for text in ("BP", "DSP((1, 1, 0), (4, 2, 0))", "epochs", "3 parts"))
    with alone([str(ROOT / "experiments/dsp/curves.py")]):
        import curves

        points = curves.curves(written(tmp_path / "lines.jsonl"), written(tmp_path / "speeds.jsonl"))
        assert points[3]["BP"] == [(1.0, pytest.approx(156 * 0.09), 50.0, 0.0), (2.0, pytest.approx(28.08), 75.0, 0.0)]
        assert points[3]["DSP((1, 1, 0), (4, 2, 0))"][1][1] == pytest.approx(312 * found[3, rows[1][1], 1000.0]["tick"])
        picture = ROOT / "docs/pipeline-learning.svg"
        if picture.exists():
            paths = [curves.train.RESULTS / f"{name}.jsonl" for name in ("cifar10", "speeds")]
            shown = curves.curves(*map(curves.record.read, paths))
            assert curves.digest(shown) in picture.read_text(), "draw the curves of docs/measured/pipeline.md again"


@pytest.mark.soak
def test_a_schedule_has_its_own_best_rate_with_a_worse_one_on_each_side(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--model", "resnet20", "--parts", 4, "--seeds", 0, "--only", "FR"]
    arguments += ["--examples", 96, "--tested", 400, "--epochs", 8, "--batch", 16, "--into", tmp_path / "dsp.jsonl"]
    run("dsp/train.py", *arguments, "--work", tmp_path / "work")
    lines = [line for line in written(tmp_path / "dsp.jsonl") if line["part"] != "costs"]
    assert [line["row"] for line in lines] == ["FR()"] * len(lines)
    *rates, line = lines
    assert {each["parts"] for each in lines} == {4}
    assert [each["part"] for each in lines] == ["rate"] * len(rates) + ["curve"]
    tried = {each["lr"]: each["accuracy"] for each in rates}
    assert list(tried)[:3] == [0.02, 0.005, 0.08]
    assert tried[line["lr"]] == max(tried.values())
    assert min(tried) < line["lr"] < max(tried)
    assert len(line["curve"]) == 12  # 48 steps, every fourth


@pytest.mark.slow
def test_bounds_are_multiples_of_the_norm_of_the_run_without_attack_and_bound(tmp_path: Path) -> None:
    run("clip/attack.py", "--rounds", 2, "--seeds", 1, "--into", tmp_path / "attack.jsonl")
    lines = written(tmp_path / "attack.jsonl")
    assert len(lines) == 2 * 2 * 6
    for split in ("iid", "Dirichlet(0.3)"):
        norm = next(x["norm"] for x in lines if (x["split"], x["row"], x["attacked"]) == (split, "none", False))
        found = {(x["attacked"], x["row"]): x["clip"] for x in lines if x["split"] == split}
        bounds = {"none": None, "auto": "auto", **{f"{n}": pytest.approx(n * norm) for n in (1, 2, 3, 10)}}
        assert found == {(attacked, row): clip for attacked in (False, True) for row, clip in bounds.items()}
    ruined, bound = (next(x for x in lines if x["attacked"] and x["row"] == row) for row in ("none", "auto"))
    assert (ruined["shortened"], bound["shortened"]) == (0.0, 0.1)  # one reply of ten, in each round


def pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text()
    return dict(line.split("==") for line in text.splitlines() if line and not line.startswith("#"))


def test_every_extra_can_be_installed_under_the_constraints() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    found = {name.lower().replace("_", "-"): version for name, version in pins().items()}
    for one in map(Requirement, asked):
        assert one.name == "thinwire" or one.specifier.contains(found[one.name]), one
    # pfl 0.6.0 asks for dp-accounting<0.6, and dp-accounting 0.5.1 for attrs<24,>=22 and numpy<3.0,>=1.21.
    assert (found["pfl"], found["dp-accounting"]) == ("0.6.0", "0.5.1")
    assert SpecifierSet("<24,>=22").contains(found["attrs"])
    assert SpecifierSet("<3.0,>=1.21").contains(found["numpy"])
    # flwr 1.42.0 asks for certifi>=2026.10.19 and uv<0.14,>=0.13.5.
    assert found["flwr"] == "1.42.0"
    assert SpecifierSet(">=2026.10.19").contains(found["certifi"])
    assert SpecifierSet("<0.14,>=0.13.5").contains(found["uv"])


@pytest.mark.slow
def test_a_site_that_is_left_out_comes_with_a_tenth_of_its_examples(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--split", "Dirichlet(0.5)", "--clients", "3", "--rounds", "1", "--alone", "1"]
    methods = ["--method", "FedAvg()", "--method", "FT(Ditto(), epochs=2.0)", "--site", "0", "--site", "2"]
    said = run("personal/unseen.py", *arguments, *methods, "--into", str(tmp_path))
    lines = written(tmp_path / "unseen_digits.jsonl")
    assert [(line["row"][:2], line["site"]) for line in lines] == [("Fe", 0), ("Fe", 2), ("FT", 0), ("FT", 2)]
    assert lines[0]["found"].keys() == {"loss", "accuracy"}
    assert lines[2]["found"].keys() == {
        f"{name}{part}" for name in ("loss", "accuracy") for part in ("", "_before", "_shared")
    }
    # Ditto's shared model is FedAvg's, and the site was not there.
    assert lines[2]["found"]["loss_shared"] == pytest.approx(lines[0]["found"]["loss"])
    assert lines[2]["found"]["loss_before"] != lines[2]["found"]["loss"]
    assert said.count("mean ") == 2
    again = run("personal/unseen.py", *arguments, *methods, "--into", str(tmp_path))
    assert again.count("site 0") == 2


CLAIMS = ("luar", "flss", "def", "optimisers", "lbgm", "intrinsic")


@pytest.mark.parametrize("group", CLAIMS)
def test_a_group_of_claims_takes_sixteen_core_hours_and_the_first_two_try_its_main_claim(
    group: str, tmp_path: Path
) -> None:
    *units, last = run(f"{group}/claims.py", "--list", "--into", tmp_path / "claims.jsonl").splitlines()
    assert all(line.startswith("missing") for line in units)
    missing, whole = [float(word) for word in last.replace(" are", "").split() if word[0].isdigit()]
    assert missing == whole <= 16.0
    assert not list(tmp_path.iterdir())
    with alone([str(ROOT / "experiments/tables.py")]):
        from pages.claims import CLAIMS

    main = next(claim for claim in CLAIMS if claim.group == group and isinstance(claim.other[0], str))
    done = {}
    for line in units:
        _, _, _, hours, _, name = line.split(maxsplit=5)
        done |= {row: float(hours) for row in (main.row, main.other) if name.startswith(": ".join(row) + ", ")}
    assert len(done) == 2
    assert max(done.values()) <= 2.1


def test_the_search_for_one_percent_lists_its_trainings(tmp_path: Path) -> None:
    *units, last = run("onepercent/search.py", "--list", "--into", tmp_path / "search.jsonl").splitlines()
    assert all(line.startswith("missing") for line in units)
    for row in ("FedPara", "LUAR, 2 of 4, both", "no error feedback", "server momentum .9", "1 : 8", "2 : 1"):
        assert any(row in line for line in units), row
    assert float(last.split()[0]) <= 3
    with alone([str(ROOT / "experiments/onepercent/search.py")]):
        import search

        import thinwire as tw

        for one in search.arms():
            made = one.method(0.05, one.rounds).inner
            if isinstance(made, tw.FedAvg) and isinstance(made.down, tw.PerClient):
                up = getattr(made.up, "inner", made.up).bytes  # of an uplink that may have another around it
                visit = (up + made.down.inner.bytes) * one.rounds * one.sample / 500
                assert visit == pytest.approx(46_560, rel=1e-3), one.row  # a run's bytes are those of 500 such visits


def trained(script: str, rows: Sequence[str], into: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The lines of some rows of a group at the smallest size, whether or not this checkout has changes."""
    path = ROOT / "experiments" / script
    with alone([str(path)]):
        group = importlib.import_module(path.stem)
        monkeypatch.setattr(group.units.record, "dirty", lambda line: False)
        arms = [arm for arm in group.arms() if f"{arm.setting['name']}: {arm.row}" in rows]
        assert group.units.make([arm.tiny() for arm in arms], into)
    return written(into)


@pytest.mark.soak
def test_the_search_for_one_percent_trains_each_kind_of_row(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "both ways: FedAvg", "both ways: FedPara, a half"
    found = trained("onepercent/search.py", rows, tmp_path / "search.jsonl", monkeypatch)
    assert {line["row"] for line in found if line["kind"] == "run"} == {"FedAvg", "FedPara, a half"}
    assert all(line["tiny"] and line["served"] for line in found)


@pytest.mark.slow
def test_a_setting_is_chosen_by_a_seed_of_its_own_and_the_best_of_those_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone([str(ROOT / "experiments/units.py")]):
        import arms
        import record
        import units

        import thinwire as tw
        from thinwire.problem import standard

    monkeypatch.setattr(record, "dirty", lambda line: False)  # this checkout may have changes
    monkeypatch.setattr(sys, "argv", [str(ROOT / "experiments/units.py")])
    into = tmp_path / "lines.jsonl"

    def problem(seed: int):
        return standard("digits", "linear", 3, seed=seed)

    def arm(row: str, server: float, **fields) -> arms.Arm:
        def method(rate: float, rounds: int) -> tw.Algorithm:
            return tw.FedAvg(tw.LocalSGD(rate), opt=tw.SGD(server))

        given = {"setting": {"name": "s"}, "row": row, "rounds": 4, "minutes": 1.0, "tuning": 0.5, "seeds": ()}
        return arms.Federated(**(given | {"method": method, "problem": problem} | fields))

    slow = arm("slow", 0.1, rates=(1e-9, 0.1), further=0)
    fast = arm("fast", 1.0, follows=slow)
    good = arm("good, the best", 1.0, best_of=[slow, fast], seeds=(0,))
    bad = arm("bad", 1e-9, follows=slow)
    both = arm("the best of all", 1.0, best_of=[bad, good], by=0, seeds=(1, 2))
    known, whole = units.units(both, [])
    assert {one.name for one in known} == {one.name for one in units.trials(slow, [])}
    assert not whole
    again = [(one.row, tuple(one.seeds)) for one in units.thrice([good, slow, both])]
    assert again == [(good.row, (0,)), (slow.row, ()), (both.row, (1, 2)), (good.row, (1, 2)), (both.row, (0,))]
    assert units.make([good, both], into)
    assert [(line["row"], line["seed"]) for line in written(into)] == [
        ("slow", 100),
        ("slow", 100),
        ("fast", 100),
        ("fast", 0),
        ("bad", 0),
        ("fast", 1),
        ("fast", 2),
    ]


@pytest.mark.slow
def test_a_claim_is_trained_at_the_best_of_its_rates_once_and_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone([str(ROOT / "experiments/units.py")]):
        import arms
        import record
        import units

        import thinwire as tw
        from thinwire.problem import standard

    monkeypatch.setattr(record, "dirty", lambda line: False)  # this checkout may have changes
    monkeypatch.setattr(sys, "argv", [str(ROOT / "experiments/units.py")])
    into, asked = tmp_path / "claims.jsonl", []

    def problem(seed: int):
        asked.append(seed)
        return standard("digits", "linear", 3, seed=seed)

    def method(rate: float, rounds: int) -> tw.Algorithm:
        return tw.FedAvg(tw.LocalSGD(rate))

    given = {"setting": {"name": "s"}, "method": method, "problem": problem, "rounds": 4, "minutes": 1.0, "tuning": 0.5}
    first = arms.Federated(row="first", rates=(1e-9, 0.1), further=0, seeds=(0, 1), **given)
    second = arms.Federated(row="second", follows=first, seeds=(5,), **given)
    assert not units.make([second], into)  # its rate is not chosen yet
    trial = units.unit(first, 1e-9, 100)
    digest = units.digest(trial.key)
    with units.held(tmp_path / ".running" / digest) as free:
        assert free
        assert not units.make([first, second], into)  # another process holds a trial
    assert asked == [100]
    assert units.make([first, second], into)
    lines = written(into)
    assert [(x["row"], x["kind"], x["rate"], x["seed"], x["rounds"]) for x in lines] == [
        ("first", "rate", 0.1, 100, 2),
        ("first", "rate", 1e-9, 100, 2),
        ("first", "run", 0.1, 0, 4),
        ("first", "run", 0.1, 1, 4),
        ("second", "run", 0.1, 5, 4),
    ]
    assert [line["kind"] for line in lines if "round_bytes" in line] == ["run"] * 3
    for line in lines[2:]:
        for way, sent in line["round_bytes"].items():
            assert sum(size * rounds for size, rounds in sent) == line[f"bytes_{way}"]
            assert sum(rounds for _, rounds in sent) == line["rounds"]
    assert units.make([first, second], into)
    assert len(asked) == 5


def test_rates_are_tried_beyond_the_best_one_while_it_is_at_an_end() -> None:
    with alone([str(ROOT / "experiments/units.py")]):
        import arms
        import units

        import thinwire as tw

    given = {"setting": {"name": "s"}, "row": "r", "rounds": 4, "minutes": 1.0, "problem": None}
    arm = arms.Federated(method=lambda rate, rounds: tw.FedAvg(tw.LocalSGD(rate)), rates=(1.0, 3.0), **given)
    lines: list[dict[str, Any]] = []

    def after(accuracy: float | None) -> list[float]:
        """The rates that are known once the last of them has reached so much; None: it diverged."""
        reached = {"diverged": "round 3"} if accuracy is None else {"accuracy_mean_of_last_5": accuracy}
        *_, last = units.trials(arm, lines)
        lines.append({**last.key, **reached})
        return [one.rate for one in units.trials(arm, lines)]

    lines.append({**units.trials(arm, lines)[0].key, "accuracy_mean_of_last_5": 0.3})
    assert after(0.5) == [1.0, 3.0, 9.0]
    assert units.chosen(arm, lines) is None
    assert after(0.6) == [1.0, 3.0, 9.0, 27.0]
    assert after(None) == [1.0, 3.0, 9.0, 27.0]
    assert units.chosen(arm, lines) == 9.0
    ended = {"accuracy_mean_of_last_5": 0.8}
    runs = [{**units.unit(arm, 9.0, 0).key, **ended}, {**units.unit(arm, 9.0, 2).key, "diverged": "round 2"}]
    assert units.chosen(arm, [*lines, *runs]) == 3.0, "a seed diverged at 9"
    below = {**units.unit(arm, 3.0, 1).key, "diverged": "round 2"}
    assert units.chosen(arm, [*lines, below]) == 1.0, "9 is larger than 3, at which a seed diverged"
    assert [one.rate for one in units.units(arm, [*lines, *runs])[0][-3:]] == [3.0, 3.0, 3.0]
    lines[-3]["accuracy_mean_of_last_5"] = lines[-2]["accuracy_mean_of_last_5"] = 0.2
    assert [one.rate for one in units.trials(arm, lines)] == [1.0, 3.0, 0.33]  # the least is best now
    assert after(0.4) == [1.0, 3.0, 0.33, 0.11]
    assert after(0.41) == [1.0, 3.0, 0.33, 0.11, 0.037]
    assert after(0.42) == [1.0, 3.0, 0.33, 0.11, 0.037], "three more at most"
    assert units.chosen(arm, lines) == 0.037


def test_code_that_is_in_no_commit_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with alone([str(ROOT / "experiments/units.py")]):
        import arms
        import record
        import units

        import thinwire as tw
        from thinwire.problem import standard

    given = {"setting": {"name": "s"}, "row": "r", "rounds": 1, "minutes": 1.0, "rates": (0.1,), "seeds": (0,)}
    given |= {"method": lambda rate, rounds: tw.FedAvg(tw.LocalSGD(rate))}
    arm = arms.Federated(problem=lambda seed: standard("digits", "linear", 3, seed=seed), **given)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "experiments/units.py")])
    monkeypatch.setattr(record, "dirty", lambda line: True)
    with pytest.raises(SystemExit, match="commit them first"):
        units.main([arm], tmp_path / "claims.jsonl", "")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(record, "dirty", lambda line: False)
    units.main([arm], tmp_path / "claims.jsonl", "")
    assert [line["row"] for line in written(tmp_path / "claims.jsonl")] == ["r"]


def test_rows_at_one_percent_are_shown_beside_fedavg_and_those_that_diverged_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with alone([str(ROOT / "experiments/tables.py")]):
        from pages import Results, onepercent

    def line(name: str, row: str, seed: int, l5: float | None, served: float = 0.0, sent: float = 0.0) -> dict:
        about = {"setting": {"name": name}, "row": row, "seed": seed, "kind": "run", "rate": 0.1}
        if l5 is None:
            return about | {"diverged": "round 3"}
        reached = {"accuracy_mean_of_last_5": l5, "served": [[2, 0.1], [4, served]]}
        return about | reached | {"bytes_up": 2 * sent, "bytes_down": 3 * sent}

    found = [
        line("both ways", "FedAvg", 0, 0.70, 0.80, 1e8),
        line("both ways", "FedAvg", 1, 0.74, 0.82, 1e8),
        line("splits", "1 : 2", 0, 0.69, 0.81, 1e6),
        line("splits", "1 : 2", 1, 0.71, 0.79, 1e6),
        line("splits", "1 : 2", 2, None),
        line("splits", "1 : 8", 0, None),
    ]
    monkeypatch.setattr(onepercent, "read", lambda path, command: Results(found, command))
    dense, split, lost = onepercent.one_percent_search()[2:]
    assert dense == "| both ways | FedAvg | 2 | 72.0 ± 2.8 % | | 81.0 ± 1.4 % | | 200.00 | 300.00 | 100.00 % |"
    # 1 and 3 points behind FedAvg of the same seeds; 1 ahead and 3 behind. 5 MB of 500.
    assert split == (
        "| splits | 1 : 2 (diverged with seed 2) | 2 | 70.0 ± 1.4 % | -2.0 ± 1.4 | 80.0 ± 1.4 % | -1.0 ± 2.8 | 2.00 "
        "| 3.00 | 1.00 % |"
    )
    assert lost == "| splits | 1 : 8 (diverged with seed 0) | 0 | | | | | | | |"

    def run(name: str, seed: int, time: float | None) -> dict:
        hosts = [{"sent": 9e9, "received": 9e9}, {"sent": 1e6, "received": 2e6}, {"sent": 1e6, "received": 2e6}]
        about = {"run": name, "method": f"{name}()", "seed": seed, "goal": 0.7, "hosts": hosts}
        return about | {"time": time, "rounds": None if time is None else 5, "bytes_up": 1e6, "bytes_down": 3e6}

    found[:] = [run("auto", 0, 100.0), run("auto", 1, None), run("fedavg", 0, 4000.0)]
    auto, never, fedavg = onepercent.one_percent_slow_link()[2:]
    assert auto == "| `auto()` | 0 | 5 | 100 s | 0.025 | 1.00 | 3.00 | 2.00 | 4.00 |"
    assert never == "| `auto()` | 1 | | not reached | | 1.00 | 3.00 | 2.00 | 4.00 |"
    assert fedavg == "| `fedavg()` | 0 | 5 | 4,000 s | 1.000 | 1.00 | 3.00 | 2.00 | 4.00 |"


def normalised() -> torch.nn.Module:
    conv, norm = torch.nn.Conv2d(1, 16, 3), torch.nn.BatchNorm2d(16)
    return torch.nn.Sequential(conv, norm, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 26 * 26, 10))


def factored() -> torch.nn.Module:
    return tw.FedPara(tw.FedAvg(), ratio=0.25).prepare(models.lbgm_cnn())


@pytest.mark.parametrize("build", [models.lbgm_cnn, normalised, factored])
def test_layers_computed_in_32_bits_and_rounded_are_those_of_bfloat16(
    build: Callable[[], torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients are those of autocast but for a rounding here and there; without rounding they are not."""
    with alone([str(ROOT / "experiments/tables.py")]):
        import arms

    inputs, targets = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(8)
    found: dict[str, torch.Tensor] = {}
    for what, capability in (("whole", "AVX512"), ("autocast", "AVX512"), ("rounded", "AVX2")):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        torch.manual_seed(0)
        module = build() if what == "whole" else arms.Narrow(build())
        outputs = module(inputs)
        assert outputs.dtype == (torch.float32 if what == "whole" else torch.bfloat16)
        torch.nn.functional.cross_entropy(outputs.float(), targets).backward()
        found[what] = torch.cat([p.grad.flatten() for p in module.parameters()])
    off = {what: (found[what] - found["autocast"]).norm() / found["autocast"].norm() for what in ("whole", "rounded")}
    assert off["rounded"] < off["whole"] / 10 < 0.05


def test_every_claim_compares_rows_that_its_script_trains() -> None:
    with alone([str(ROOT / "experiments/tables.py")]):
        from pages.claims import CLAIMS, PAPERS
        from pages.papers.fedsm import SITES
        from pages.verdict import PRETRAINED
    scripts = {"personal": "retina", "dsp": "train"}
    path = str(ROOT / "experiments/hf/adapters.py")
    with alone([path]):
        tuned = [arm for arm in runpy.run_path(path, run_name="group")["arms"]() if "trained" in arm.setting]
    for group in PAPERS:
        path = str(ROOT / f"experiments/{group}/{scripts.get(group, 'claims')}.py")
        with alone([path]):
            script = runpy.run_path(path, run_name="group")
        if group == "personal":
            rows = {**script["ROWS"], **script["SWEEP"]}
            trained = {(file, row) for file in SITES for row in rows}
        elif group == "dsp":
            each = {(f"{parts} parts", row) for parts in (3, 4) for row, _ in script["rows"](parts, False)}
            each.add(("1 part", "BP"))
            trained = {(before + parts, row) for before in ("", "one rate, ") for parts, row in each}
        else:
            trained = {(arm.setting["name"], arm.row) for arm in script["arms"]()}
            whole = [arm for arm in tuned if arm.setting["data"] == PRETRAINED.get(group)]
            trained |= {(f"{arm.setting['name']}, MiniLM", arm.row) for arm in whole}
        compared = set()
        for claim in CLAIMS:
            if claim.group == group:
                compared |= {claim.row, *([claim.other] if isinstance(claim.other[0], str) else claim.other)}
        assert sorted(compared - trained) == []


def test_a_verdict_follows_from_the_difference_its_standard_error_and_the_bytes() -> None:
    with alone([str(ROOT / "experiments/tables.py")]):
        from pages.verdict import Claim, verdict

    def said(gap: float | None, found: list[float], saved: float = 0.0, sent: float | None = None) -> str:
        return verdict(Claim("luar", "", ("s", "a"), ("s", "b"), gap, "", "", saved), found, sent)

    assert said(2.0, []) == "not tried yet fairly"
    assert said(2.0, [1.5, 1.6, 1.7]) == "appears"  # half of 2, and above .5
    assert said(6.0, [1.5, 1.6, 1.7]) == "in kind"
    assert said(6.0, [0.6, 0.7, 0.8]) == "in kind"
    assert said(6.0, [0.4, 0.5, 0.6]) == "does not appear"  # less than a tenth of 6
    assert said(0.1, [0.2, 0.2, 0.2]) == "appears"  # half a point would be more than the paper says
    assert said(2.0, [3.0, -0.6, 1.5]) == "in kind"  # 1.3, with a standard error of 1.05
    assert said(2.0, [2.5, -1.5, 1.5]) == "does not appear"  # 0.83, with one of 1.20
    assert said(None, [0.3, 0.3, 0.3]) == "in kind"
    assert said(None, [0.1, 0.1, 0.1]) == "does not appear"  # less than .2
    assert said(None, [0.9, 0.9]) == "appears (2 seeds)"
    assert said(2.0, [-0.1]) == "does not appear (one seed)"
    assert said(-1.1, [-1.5, -1.5, -1.5], 0.5, 0.5) == "appears"  # within 1.1 + .5
    assert said(-1.1, [-1.5, -1.5, -1.5], 0.5, 0.6) == "appears"  # four fifths of half are saved
    assert said(-1.1, [-1.5, -1.5, -1.5], 0.5, 0.62) == "in kind"
    assert said(-1.1, [0.5, 0.5, 0.5], 0.5, 0.75) == "in kind"  # half of it
    assert said(-1.1, [0.5, 0.5, 0.5], 0.5, 0.76) == "does not appear"
    assert said(-1.1, [-2.5, -2.5, -2.5], 0.5, 0.5) == "in kind"  # within 1.65 + 1
    assert said(-1.1, [-2.7, -2.7, -2.7], 0.5, 0.5) == "does not appear"
    assert said(-0.01, [-3.0, 1.0, 1.2]) == "appears"  # .27 behind, with a standard error of 1.37


def test_a_loss_is_a_share_of_what_the_dense_row_reaches_and_an_x_is_beside_the_only_model_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with alone([str(ROOT / "experiments/tables.py")]):
        from pages import claims, verdict

    def line(row: str, seed: int, **fields) -> dict[str, Any]:
        return {
            "setting": {"name": "s"},
            "row": row,
            "seed": seed,
            "rate": 0.1,
            "bytes_up": 1,
            "bytes_down": 1,
            **fields,
        }

    def reached(row: str, *accuracies: float, **fields) -> list[dict[str, Any]]:
        return [line(row, n, accuracy=x, accuracy_mean_of_last_5=x, **fields) for n, x in enumerate(accuracies)]

    found = [
        *reached("dense", 0.40, 0.40, 0.40, accuracy_x_mean_of_last_5=None),
        *reached("far", 0.33, 0.33, 0.33),
        *reached("two models", 0.20, 0.20, 0.20, accuracy_x_mean_of_last_5=0.41),
        *reached("lost", 0.10, 0.19),
        line("lost", 2, diverged="round 3"),
        *reached("half lost", 0.10, 0.39, 0.40),
    ]
    for module in (claims, verdict):
        monkeypatch.setattr(module, "lines", lambda group: tuple(found))

    def claim(row: str, other: str, gap: float | None, **fields) -> Any:
        return verdict.Claim("lbgm", "", ("s", row), ("s", other), gap, "", "", **fields)

    # 7 points of the 30 above guessing: 14 of 60 in the paper are as much.
    assert verdict.verdict(claim("far", "dense", -14.0)) == "appears"
    assert verdict.allowed(claim("far", "dense", -14.0, from_to=(70.0, 10.0))) == pytest.approx(-7.0)
    assert verdict.verdict(claim("far", "dense", -14.0, from_to=(70.0, 10.0))) == "appears"
    assert verdict.verdict(claim("far", "dense", -4.0, from_to=(70.0, 10.0))) == "does not appear"
    ahead = claim("two models", "dense", -0.15, of="accuracy_x_mean_of_last_5")
    assert verdict.points(ahead) == {seed: pytest.approx(1.0) for seed in range(3)}
    assert verdict.verdict(claim("dense", "lost", None, fails=True)) == "appears"
    half = claim("dense", "half lost", None, fails=True)
    assert (verdict.number(half), verdict.verdict(half)) == ("1 of 3 seeds", "in kind")
    assert verdict.verdict(claim("dense", "far", None, fails=True)) == "does not appear"
    assert verdict.number(claim("lost", "dense", None)) == "diverged with 1 of 3 seeds"
    assert verdict.number(claim("dense", "lost", None)) == "the other diverged with 1 of 3 seeds"
    assert verdict.number(claim("far", "dense", -14.0)) == "-7.0 ± 0.0 points"
    found += [dict(row, row="thin", bytes_up=1) for row in reached("dense", 0.4)]
    found += [dict(row, row="wide", bytes_up=244) for row in reached("dense", 0.4)]
    assert verdict.number(claim("thin", "wide", 0.0)) == "+0.0 points; 0.41 % of its bytes up, 100 % down"
    assert verdict.number(claim("thin", "wide", 0.0, equal=True)) == "+0.0 points"  # whose bytes are cut to be equal
    del found[-2:]
    # At equal bytes: the longer row ends where the other has sent 30 bytes both ways, at its third look.
    long = [[n, 0.1 * n, 5, 5, 5 * n, 5 * n] for n in range(1, 7)]
    short = [[n, 0.15 * n, 1, 4, 3 * n, 7 * n] for n in range(1, 4)]
    found += [line("long", 0, accuracy=0.6, curve=long), line("short", 0, accuracy=0.45, curve=short)]
    # means of .1, .2, .3 and of .15, .3, .45
    assert verdict.points(claim("long", "short", None, equal=True)) == {0: pytest.approx(-10.0)}
    del found[-2:]
    rows = "\n".join(claims.rows_of("lbgm")())
    assert "14.5 ± 6.4 %, 1 of 3 diverged" in rows


@pytest.mark.slow
def test_the_curve_of_bytes_both_ways_lists_its_trainings_and_is_drawn_from_its_lines(tmp_path: Path) -> None:
    into, out = tmp_path / "curve.jsonl", tmp_path / "curve.svg"
    *listed, last = run("onepercent/curve.py", "--list", "--into", into).splitlines()
    assert last.endswith("core-hours of " + last.split()[-3] + " are missing")
    assert float(last.split()[0]) < 15
    names = "Fashion-MNIST", "CIFAR-10", "EMNIST letters", "Shakespeare"
    rivals = "FetchSGD", "Intrinsic", "STC both ways", "STC, per client", "LUAR, coded", "LBGM, coded"
    for hours, rows in (  # of one core, by which they are there
        (0.8, ["FedAvg", "Auto, 0.01"]),
        (6.3, [*(f"{row}, the best" for row in rivals), "the best of the rivals"]),
    ):
        soon = [line for line in listed if line.startswith("missing") and float(line.split()[3]) <= hours]
        for name, row in itertools.product(names, rows):
            assert any(f"{name}: {row}" in line for line in soon), (name, row)
    for method in ("LUAR, 0.5", "LUAR, both", "LBGM, 0.2", "FLSS", "FedPM", "DeComFL", "Auto, 0.002, 2 times"):
        assert any(f"Fashion-MNIST: {method}" in line for line in listed), method
    trained = [line.rpartition("  ")[2] for line in listed if not line.endswith(", then")]
    assert len(set(trained)) == len(trained)
    lines = []
    for seed in range(2):
        for row, bytes_each, accuracy in (
            ("FedAvg", 10**9, 0.7),
            ("Auto, 0.01", 10**7, 0.68),
            ("Auto, 0.1", 10**8, 0.7),
        ):
            line = {
                "setting": {"name": "Fashion-MNIST"},
                "row": row,
                "kind": "run",
                "seed": seed,
                "bytes_up": bytes_each,
            }
            line |= {"bytes_down": bytes_each, "accuracy_mean_of_last_5": accuracy + 0.02 * seed}
            lines.append(line | {"served": [[2, 0.5], [4, accuracy + 0.05]]})
    into.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = run("onepercent/curve.py", "--picture", out, "--into", into)
    drawn = out.read_text()
    assert said == f"{out}: {len(drawn.encode()):,} bytes\n"
    assert len(drawn) < 1_000_000
    assert [name for name in ("FedAvg", "Auto", "LBGM") if f">{name}<" in drawn] == ["FedAvg", "Auto"]
    with alone([str(ROOT / "experiments/onepercent/curve.py")]):
        import curve
        import groups
        import methods
        import picture

        shown = picture.digest(picture.drawable(curve.record.read(curve.INTO), ["Fashion-MNIST"]))
        assert shown in (ROOT / "docs/methods/one-percent.svg").read_text(), "draw the picture of the README again"
        assert picture.points(lines, "Fashion-MNIST")["Auto"] == [
            (20.0, [pytest.approx(68), pytest.approx(70)], [pytest.approx(73), pytest.approx(73)]),
            (200.0, [pytest.approx(70), pytest.approx(72)], [pytest.approx(75), pytest.approx(75)]),
        ]
        other = [line | {"rate": 0.1, "accuracy_mean_of_last_5": 0.8} for line in lines if line["row"] == "Auto, 0.1"]
        assert picture.points([*lines, *other], "Fashion-MNIST")["Auto"][1][1] == [80, 80]  # the better rate is the one

        def settings(arm) -> list:
            return [arm, *(each for one in arm.best_of for each in settings(one))]

        assert all(one.key(0.05, 0)["expression"] for arm in curve.arms() for one in settings(arm))
        assert {group.name: groups.kernels(group) for group in groups.GROUPS} == {
            "Fashion-MNIST": 4,
            "CIFAR-10": 4,
            "EMNIST letters": 4,
            "Shakespeare": 11,
        }
        for group in groups.GROUPS:
            best = [curve.best(group, row, (0,)) for row in methods.RIVALS]
            assert [len(one.best_of) for one in best] == [3] * 6


@pytest.mark.slow
def test_a_rival_at_one_percent_chooses_its_setting_on_the_way(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["Fashion-MNIST: FetchSGD, the best"]
    found = trained("onepercent/curve.py", rows, tmp_path / "curve.jsonl", monkeypatch)
    tried = [(line["row"], line["rate"]) for line in found if line["kind"] == "rate"]
    first, *others = dict.fromkeys(row for row, _ in tried)
    assert [rate for row, rate in tried if row == first] == [0.005, 0.015, 0.05]
    assert len(others) == 2
    (seed_0,) = [line for line in found if line["kind"] == "run"]
    assert seed_0["row"] in (first, *others)
    assert seed_0["start"] == "known"


def test_a_line_has_the_command_that_makes_it_again_and_no_place_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with alone([str(ROOT / "experiments/tables.py")]):
        import record
    script, inside = str(ROOT / "experiments/def/ranks.py"), str(ROOT / "docs")
    words = ["--seeds", "0", "1", "--into", "/elsewhere/x.jsonl", f"--out={inside}", "--work=/elsewhere", "--lr", "0.1"]
    monkeypatch.setattr(record.sys, "argv", [script, *words, "--slowlink", "/bin/slow"])
    said = "python experiments/def/ranks.py --seeds 0 1 --out=docs --lr 0.1 --slowlink PROGRAM"
    assert record.command() == said
    place = re.compile(r"[ =](/[a-z]\S*)")
    for path in [*ROOT.glob("experiments/*/results/*.jsonl"), *ROOT.glob("benchmarks/results/*.jsonl")]:
        for line in path.read_text().splitlines():
            assert place.search(json.loads(line).get("command", "")) is None, path
