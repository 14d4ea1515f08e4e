"""What it saves to keep freed memory for the next step: rounds and steps with and without, as ratios.

J1 and J3 are the jobs of ``simulate.py``, two workers each. "steps" are ten plain PyTorch steps of ResNet-20 with
batches of 64, one thread. Each measurement is a process of its own. Processes with and without take turns and are
compared in pairs; the ratio is the median over pairs. Peaks are the most memory that a process took.

    python benchmarks/allocator.py [--passes 5] [--only J3] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import simulate as simulating

WORK = ("steps", "J1", "J3")


def steps(tiny: bool) -> Callable[[], None]:
    """A function that takes ten steps of ResNet-20."""
    import torch

    from thinwire import models

    torch.set_num_threads(1)
    batch = 4 if tiny else 64
    model = models.resnet20().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,))

    def work() -> None:
        for _ in range(1 if tiny else 10):
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()

    return work


def rounds(name: str, tiny: bool) -> Callable[[], None]:
    """A function that simulates a round of a job."""
    run = simulating.simulation(*simulating.job(name, tiny))
    return lambda: run.step(evaluate=False) and None


def measure(name: str, keep: bool, tiny: bool) -> dict[str, float]:
    """In this process: the median of three turns after two that are not timed, in seconds, and the peak in MB."""
    from thinwire.train.allocator import keep_freed_memory

    if keep and not keep_freed_memory():
        raise SystemExit("The C library of this machine is not glibc, which alone can be told to keep memory.")
    work, seconds = steps(tiny) if name == "steps" else rounds(name, tiny), []
    for _ in range(5):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds[2:]), "peak_mb": simulating.peak()}


def process(name: str, keep: bool, tiny: bool) -> dict[str, float]:
    """:func:`measure` in a process of its own."""
    asked = [sys.executable, __file__, "--one", name, *(["--keep"] if keep else []), *(["--tiny"] if tiny else [])]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(name: str, passes: int, tiny: bool) -> dict[str, float]:
    """Both in turn."""
    pairs = [(process(name, False, tiny), process(name, True, tiny)) for _ in range(passes)]
    without, kept = ([pair[i] for pair in pairs] for i in (0, 1))
    return {
        "ratio": round(statistics.median(b["seconds"] / a["seconds"] for a, b in pairs), 3),
        "seconds": round(statistics.median(each["seconds"] for each in without), 4),
        "kept_seconds": round(statistics.median(each["seconds"] for each in kept), 4),
        "peak_mb": round(max(each["peak_mb"] for each in without)),
        "kept_peak_mb": round(max(each["peak_mb"] for each in kept)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5, help="pairs of processes of each kind of work")
    parser.add_argument("--only", choices=WORK, action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--one", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.keep, chosen.tiny)))
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    found = {}
    for name in chosen.only or WORK:
        key = {"benchmark": "allocator", "job": name, "passes": chosen.passes}
        key |= {"tiny": True} if chosen.tiny else {}
        found[name] = record.measured(
            chosen.into, key, lambda name=name: compared(name, chosen.passes, chosen.tiny), "numpy"
        )
        print(name, found[name], file=sys.stderr)
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
