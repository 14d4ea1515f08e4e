"""Where the time of a training step in C goes, beside the same step in plain PyTorch; one thread.

The model, the pictures and the batches are those of a client of ``simulate.py``'s J1 and J3. The client is trained in C
and in PyTorch (channels last) in turn. Figures are microseconds a step: medians over the turns.

    python benchmarks/steps.py [--turns 15] [--only J1] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import simulate as simulating
import torch

JOBS = ("J1", "J3")


def measure(name: str, turns: int, tiny: bool) -> dict[str, object]:
    """Of each part of a step, of whole steps in C and of bare ones."""
    import thinwire as tw
    from thinwire.local import Local
    from thinwire.train import one_in_c
    from thinwire.train.compiled import PARTS
    from thinwire.train.slot import Slot

    torch.set_num_threads(1)
    job, make = simulating.job(name, tiny)
    task = tw.Supervised(job.inputs, job.targets, torch.arange(job.each), mean=(0.3,), std=(0.3,))
    slot, key = Slot(make()), tw.Key(0, 1, 0)
    slot.probe([task])
    request = Local(slot.params(), tw.LocalSGD(simulating.LR, batch=job.batch))
    if one_in_c.chain_for(slot, task, request) is None:
        raise SystemExit("The kernels are not compiled here: python -m thinwire.kernels.native.build")
    bare, steps = simulating.Bare(job, make), -(-job.each // job.batch)
    parts, whole, theirs = [], [], []
    for turn in range(turns + 1):
        spent = torch.zeros(len(PARTS), dtype=torch.float64)
        began = time.perf_counter()
        one_in_c.train(slot, task, request, key, spent)
        middle = time.perf_counter()
        bare.work(0, [0], [[]])
        if turn:  # the first is not timed
            theirs.append((time.perf_counter() - middle) / steps)
            whole.append((middle - began) / steps)
            parts.append((spent / steps).tolist())

    def microseconds(seconds: list[float]) -> int:
        return round(1e6 * statistics.median(seconds))

    found = {part: microseconds([each[i] for each in parts]) for i, part in enumerate(PARTS)}
    return {"found": found, "step": microseconds(whole), "bare_step": microseconds(theirs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="times that the client is trained each way")
    parser.add_argument("--only", choices=JOBS, action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    chosen = parser.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    lines = {}
    for name in chosen.only or JOBS:
        key = {"benchmark": "steps", "job": name, "turns": chosen.turns} | ({"tiny": True} if chosen.tiny else {})
        lines[name] = record.measured(chosen.into, key, lambda name=name: measure(name, chosen.turns, chosen.tiny))
        print(name, lines[name], file=sys.stderr)
    if chosen.json:
        print(json.dumps(lines))


if __name__ == "__main__":
    main()
