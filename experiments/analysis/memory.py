"""How much memory it takes to look at the gradients of 100 epochs of a ResNet-20, and how long.

The gradients are drawn, since their values make no difference to either: a run of one client, whose training is
answered with random changes, records them. Then ``thinwire look gradients`` looks at it in this process.

    python experiments/analysis/memory.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from record import about, replace

import thinwire as tw
from thinwire.cli import app
from thinwire.key import Key
from thinwire.local import Local, Trained
from thinwire.models import resnet20
from thinwire.params import Params
from thinwire.task import Task

INTO = Path(__file__).resolve().parent / "results"


def drawn(request: Local, task: Task, key: Key) -> Trained:
    change = torch.randn(request.x.layout.size, generator=key.generator("change")) * 1e-3
    return Trained(request.x + Params(request.x.layout, change), 1, 0.0, None, 0.1)


def peak() -> float:
    """Megabytes (10^6) of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--into", type=Path, default=INTO)
    o = parser.parse_args()
    task = tw.Supervised(torch.zeros(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64))
    method, began = tw.FedAvg(), time.time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = tw.simulate(
            method, resnet20, [task], o.epochs, out=folder, record="gradients", train=drawn, checkpoint_every=o.epochs
        )
        row = (Path(folder) / "gradients.f32").stat().st_size
        before, start = peak(), time.time()
        app(["look", "gradients", folder, "--json"], standalone_mode=False)
    key = {"job": "memory", "model": "resnet20", "epochs": o.epochs, "tiny": o.epochs < 100}
    found = {
        "parameters": run.params.layout.size,
        "bytes_on_disk": row,
        "peak_mb_before": round(before),
        "peak_mb": round(peak()),
        "look_seconds": round(time.time() - start, 1),
    }
    line = {**key, **found, **about(repr(method), began)}
    replace(o.into / "memory.jsonl", line, key)
    print(f"{line['peak_mb']} MB, of which {line['peak_mb_before']} MB before the look; {line['look_seconds']} s")


if __name__ == "__main__":
    main()
