"""The cohort shared by two processes, and states on disk: the same bits as one process with all in memory.

Parts of this module are run in processes of their own: see ``two`` and ``to_be_killed``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import thinwire as tw
from blobs import Chosen, assert_same_run, blobs, mlp, normed, rounds_of, simulate
from processes import Process, torchrun, typed
from thinwire import Simulation
from thinwire.errors import RunError
from thinwire.federated.storage import Disk
from thinwire.run.ranks import barrier, join, rank

TASKS = blobs((3, 5, 4, 5, 2, 5, 5, 4, 4, 5))

CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "each in memory": ("FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.7))", normed, {"plan": "each"}),
    "each on disk": ("SCAFFOLD(up=ErrorFeedback(TopK(0.3)))", mlp, {"plan": "each", "states": "disk", "dropout": 0.2}),
    "together in memory": ("FLSS(FedAvg(up=ErrorFeedback(TopK(0.3))), rank=2, start=2, every=2)", mlp, {}),
    "together on disk": ("FedAvg(up=EF21(TopK(0.3)), down=EF21(TopK(0.3)))", mlp, {"states": "disk"}),
}


def part(name: str, folder: Path, rounds: int, **more: Any) -> tw.Result:
    """A run of a case, from wherever it is."""
    expression, model, options = CASES[name]
    method = tw.parse(expression, {"lr": 0.2, "batch": 2})
    settings = {"sample": 7, "plan": "together", "checkpoint_every": 2, "tasks": TASKS} | options | more
    return simulate(method, model, rounds, out=folder / name, resume=True, **settings)


def everything(result: tw.Result) -> dict[str, Any]:
    """What has to be the same, as text."""
    return {
        "params": tw.dumps(result.params).hex(),
        "module": [tw.dumps(t).hex() for t in result.module.state_dict().values() if t.is_floating_point()],
        "ledger": [list(entry) for entry in result.ledger],
        "rounds": [{k: v for k, v in r.items() if k != "seconds"} for r in result.rounds],
    }


def in_two(folder: str) -> None:
    """Whole runs; runs in two parts; the first part of runs; the second part of runs that one process began."""
    join()
    where, found = Path(folder), {}
    for name in CASES:
        found[name] = everything(part(name, where / "whole", 5))
        part(name, where / "parts", 3)
        found[f"{name}, in parts"] = everything(part(name, where / "parts", 5))
        part(name, where / "begun by two", 3)
        found[f"{name}, begun by one"] = everything(part(name, where / "begun by one", 5))
    try:
        part("each on disk", where / "whole", 4)
    except RunError as error:
        found["refused"] = {"text": str(error)}
    (where / f"rank{rank()}.json").write_text(json.dumps(found))
    barrier()


def two(function: Callable[..., object], *arguments: Any) -> str:
    """Call a function in two processes under torchrun; what they wrote to standard output."""
    done = torchrun(function, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("two")
    for name in CASES:
        part(name, where / "begun by one", 3)
    two(in_two, str(where))
    return where


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_make_the_run_of_one_bit_for_bit(name: str, folder: Path, tmp_path: Path) -> None:
    one = json.loads(json.dumps(everything(part(name, tmp_path, 5))))
    for process in (0, 1):
        found = json.loads((folder / f"rank{process}.json").read_text())
        for way in ("", ", in parts", ", begun by one"):
            assert found[name + way] == one, way
    for kind in ("whole", "parts", "begun by one"):
        assert rounds_of(folder / kind / name) == rounds_of(tmp_path / name)
        assert (folder / kind / name / "ledger.jsonl").read_text() == (tmp_path / name / "ledger.jsonl").read_text()
        saved, expected = (load_file(f / name / "model.safetensors") for f in (folder / kind, tmp_path))
        assert all(torch.equal(saved[key], expected[key]) for key in expected)
        states = [sorted(p.name for p in (f / name).glob("states/*/*")) for f in (folder / kind, tmp_path)]
        assert states[0] == states[1]
        assert bool(states[0]) is ("disk" in name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_process_goes_on_with_what_two_began(name: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "begun by two", tmp_path / "begun")
    assert_same_run(part(name, tmp_path / "begun", 5), part(name, tmp_path / "straight", 5))


@pytest.mark.slow
def test_both_processes_say_why_a_folder_cannot_be_used(folder: Path) -> None:
    for process in (0, 1):
        found = json.loads((folder / f"rank{process}.json").read_text())
        assert found["refused"]["text"].endswith("each on disk has 5 rounds already: rounds=4 would be fewer")


@pytest.mark.slow
def test_the_command_line_in_two_processes_writes_one_table(tmp_path: Path) -> None:
    words = ["run", "FedAvg()", "--clients", "6", "--sample", "4", "--rounds", "3", "--lr", "0.2", "--states", "disk"]
    said = two(typed, (*words, "--json", "--out", str(tmp_path / "two")))
    (table,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]  # of one process
    assert [row["rounds"] for row in table["rows"]] == [3]
    names = sorted(str(p.relative_to(tmp_path / "two")) for p in (tmp_path / "two").rglob("*") if p.is_file())
    assert names.count("overview.png") == 1
    (run,) = (tmp_path / "two").glob("*/seed-0")
    assert len(rounds_of(run)) == 3
    assert table["rows"][0]["bytes_up"] == sum(r["up_bytes"] for r in rounds_of(run))
    entries = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert len(list((run / "states").glob("*/*"))) == len({e["client"] for e in entries})


# -- states on disk ---------------------------------------------------------------

KEPT = {
    "lbgm": ("FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.7))", mlp),
    "lbgm, kept as it came": ("FedAvg(up=LBGM(TopK(0.3), threshold=0.7, store='packet'))", mlp),
    "scaffold": ("LUAR(SCAFFOLD(up=ErrorFeedback(TopK(0.3)), down=EF21(TopK(0.3))), recycle=1)", normed),
    "own statistics": ("FedAvg(buffers='local')", normed),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("workers", [2])
def test_states_on_disk_change_no_bit(name: str, workers: int, tmp_path: Path) -> None:
    expression, model = KEPT[name]
    options: dict[str, Any] = {"dropout": 0.2, "client_tests": blobs(seed=3)}
    plain = simulate(expression, model, 6, **options)
    disk = simulate(expression, model, 6, states="disk", out=tmp_path / "whole", workers=workers, **options)
    assert_same_run(disk, plain)
    simulate(expression, model, 3, states="disk", out=tmp_path / "half", **options)
    assert_same_run(
        simulate(expression, model, 6, states="disk", out=tmp_path / "half", resume=True, workers=workers, **options),
        plain,
    )


def test_a_file_is_kept_of_every_client_that_replied_and_nothing_in_memory(tmp_path: Path) -> None:
    tasks = blobs((2,) * 300)
    method = tw.parse("FedAvg(LocalSGD(steps=1), up=LBGM())", {"lr": 0.1})
    # Client 7 never answers; the others reply once in rounds 1 to 10, thirty a round.
    order = [c for c in torch.randperm(300, generator=torch.Generator().manual_seed(1)).tolist() if c != 7]
    cohorts = [([*sorted(order[30 * t : 30 * t + 30]), 7], {7}) for t in range(10)]
    run = Chosen(method, mlp, tasks, cohorts=cohorts, states="disk", out=tmp_path)
    with run.pool:
        for _ in cohorts:
            run.step()
    run.states.settle()
    assert isinstance(run.states, Disk)
    assert run.states.ends == {}
    found = sorted(int(p.name.partition("-")[0]) for p in (tmp_path / "states").glob("*/*"))
    assert found == [c for c in range(300) if c != 7]
    assert all(p.suffix == ".thinwire" for p in (tmp_path / "states").glob("*/*"))


def test_files_that_are_superseded_are_removed_at_the_next_checkpoint(tmp_path: Path) -> None:
    counts = []

    def look(record: dict[str, Any]) -> None:
        counts.append(len(list((tmp_path / "run/states").glob("*/*"))))

    simulate(
        "FedAvg(up=LBGM())", rounds=8, sample=6, out=tmp_path / "run", states="disk", checkpoint_every=3, on_round=look
    )
    # Six clients a round: each adds a file; every third round, and the last, leaves one a client.
    assert counts == [6, 12, 6, 12, 18, 6, 12, 6]


def to_be_killed(folder: str) -> None:
    def linger(record: dict[str, Any]) -> None:
        if record["round"] == 8:
            print("eight")
            time.sleep(600)

    simulate(
        "FedAvg(up=LBGM(threshold=0.7))",
        rounds=12,
        out=Path(folder),
        states="disk",
        checkpoint_every=5,
        on_round=linger,
    )


@pytest.mark.slow
def test_after_a_kill_nothing_that_the_checkpoint_refers_to_is_missing_and_the_rest_is_dropped(tmp_path: Path) -> None:
    with Process(to_be_killed, str(tmp_path / "run")) as process:
        process.until(lambda: process.stdout == "eight\n")
    states = tmp_path / "run/states"
    newer = [p for p in states.glob("*/*") if int(p.stem.partition("-")[2]) > 5]
    assert newer
    newer[0].write_bytes(newer[0].read_bytes()[:20])  # as a kill in the middle of writing leaves it
    method = tw.parse("FedAvg(up=LBGM(threshold=0.7))", {"lr": 0.2, "batch": 8})
    test = blobs((60,), seed=0)[0]
    run = Simulation(method, mlp, blobs(), sample=3, seed=5, states="disk", out=tmp_path / "run", test=test)
    run.open(tw.run.folder.Folder(tmp_path / "run"), resume=True)
    run.pool.close()
    assert run.round == 5
    left = {p.name for p in states.glob("*/*")}
    assert left == {
        f"{client}-{run.states.version(client)}.thinwire" for client in range(6) if run.states.version(client)
    }
    assert len(left) >= 5
    resumed = simulate("FedAvg(up=LBGM(threshold=0.7))", rounds=12, out=tmp_path / "run", states="disk", resume=True)
    assert_same_run(resumed, simulate("FedAvg(up=LBGM(threshold=0.7))", rounds=12))


@pytest.mark.parametrize("damage", ["cut", "empty", "another version", "missing"])
def test_a_damaged_or_missing_file_is_named(damage: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sample": 6, "out": tmp_path / "run", "states": "disk"}
    simulate("FedAvg(up=LBGM())", rounds=2, **options)
    path = tmp_path / "run/states/004/4-2.thinwire"
    good = path.read_bytes()
    bad = {"cut": good[:-5], "empty": b"", "another version": b"\x07" + good[1:]}
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(bad[damage])
    with pytest.raises(RunError, match=r"^the state of client 4 cannot be read from .*run/states/004/4-2\.thinwire: "):
        simulate("FedAvg(up=LBGM())", rounds=3, resume=True, **options)
    path.write_bytes(good)
    assert len(simulate("FedAvg(up=LBGM())", rounds=3, resume=True, **options).rounds) == 3


def test_states_on_disk_need_a_folder_and_a_known_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^states='disk' needs a folder for the run: out=\.\.\.$"):
        simulate("FedAvg()", states="disk")
