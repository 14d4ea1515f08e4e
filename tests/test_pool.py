"""The workers of a run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thinwire.run.folder import locked

CHILD = """
import sys, time, torch, thinwire as tw
from torch import nn
data = [(torch.randn(8, 6), torch.arange(8) % 3) for _ in range(4)]
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
tw.simulate(tw.FedAvg(), model, data, 10_000, out=sys.argv[1], workers=2, on_round=lambda r: time.sleep(0.05))
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="workers are forked")
def test_a_killed_run_with_forked_workers_leaves_its_folder_free(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(run)])
    deadline = time.monotonic() + 60
    while not (run / "rounds.jsonl").exists() or not (run / "rounds.jsonl").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with locked(run):
        pass
