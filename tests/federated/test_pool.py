"""The workers of a run."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from blobs import random_layers, simulate
from processes import Process, called
from thinwire.run.folder import lock_folder


def trains(folder: str) -> None:
    data = [(torch.randn(8, 6), torch.arange(8) % 3) for _ in range(4)]
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    tw.simulate(tw.FedAvg(), model, data, 10_000, out=folder, workers=2, on_round=lambda r: time.sleep(0.05))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="workers are forked")
def test_a_killed_run_with_forked_workers_leaves_its_folder_free(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Process(trains, str(run)) as process:
        process.until(lambda: (run / "rounds.jsonl").exists() and (run / "rounds.jsonl").read_text())
    with lock_folder(run):
        pass


def within_a_pool(folder: str) -> None:
    """Models with random layers, trained in a process of ``multiprocessing.Pool``, and here."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = [pool.apply(dropped_out, (workers,)) for workers in (1, 2)]
    (Path(folder) / "same").write_text(f"{found == [dropped_out(2)] * 2}")


def dropped_out(workers: int) -> bytes:
    result = simulate("FedAvg()", random_layers, 2, workers=workers)
    return bytes(result.params.flat.numpy().tobytes())


def test_a_run_within_a_daemonic_process_has_the_bits_of_one_outside(tmp_path: Path) -> None:
    done = called(within_a_pool, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "same").read_text() == "True"
