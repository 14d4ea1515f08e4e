"""What a machine with a GPU is to show, in one go: the tests that need one, then the benchmarks, into files of results.

Each step is a process with a limit of its own. A step that fails or takes too long is said, and the next one begins.
The order is that of what is missed most if the time ends: tests first. With the limits below all of it takes at most
thirteen minutes. Every line that a benchmark writes has the processor's and the GPU's name.

    python benchmarks/gpu.py --into FOLDER [--list]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]


class Step(NamedTuple):
    """A command of Python, and the seconds after which it is ended."""

    words: list[str]
    seconds: int


def steps(into: Path) -> list[Step]:
    """All of them, in order; ``into`` is the folder of results."""
    tests = ["tests/federated/test_simulate.py", "tests/kernels/test_kernels.py"]
    chosen = ["-k", "cuda or gpu", "-p", "no:cacheprovider", "-q"]
    simulate = ["benchmarks/simulate.py", "--device", "cuda", "--into", str(into / "simulate.jsonl")]
    peers = ["benchmarks/peers.py", "--device", "cuda", "--passes", "1", "--into", str(into / "peers.jsonl")]
    return [
        Step(["-m", "pytest", *tests, *chosen], 200),
        Step([*simulate, "--rounds", "3", "--only", "J2"], 100),
        Step([*peers, "--rounds", "3", "--only", "J2"], 120),
        Step([*simulate, "--rounds", "3", "--only", "J1"], 80),
        Step([*simulate, "--rounds", "3", "--only", "J3"], 80),
        Step([*simulate, "--rounds", "3", "--only", "J4"], 60),
        Step([*peers, "--rounds", "3", "--only", "J1"], 120),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="a folder for files of results")
    parser.add_argument("--list", action="store_true", help="print the commands, with their limits, and run none")
    chosen = parser.parse_args()
    if not chosen.list and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here; --list prints what would be run")
    chosen.into.mkdir(parents=True, exist_ok=True)
    failed, environment = 0, {**os.environ, "OMP_NUM_THREADS": "1"}
    for step in steps(chosen.into.resolve()):
        said = shlex.join(["python", *step.words])
        if chosen.list:
            print(f"{step.seconds} s: {said}")
            continue
        began = time.perf_counter()
        try:
            code = subprocess.call([sys.executable, *step.words], cwd=ROOT, timeout=step.seconds, env=environment)
        except subprocess.TimeoutExpired:
            code = -1
        failed += code != 0
        how = "done" if code == 0 else "ended by its limit" if code == -1 else f"failed with {code}"
        print(f"{time.perf_counter() - began:.0f} s, {how}: {said}", flush=True)
    if failed:
        sys.exit(f"{failed} of these steps failed")


if __name__ == "__main__":
    main()
