"""How much sooner local steps reach a loss than dense training, by two processes over slow links.

The setting is that of ``shakespeare.py`` with two ranks and a schedule of 600 steps. The loss is the one that dense
training has after 150 steps, and a row's is x's. A simulation, which trains the same bits, says after how many steps a
row has it: of rounds, after how many whole ones. Then two processes, each on a host of its own, make so many steps over
links of 10 and 100 Mbit/s with a round trip of 10 ms, and the seconds of these steps are taken: from the first to the
last, with all exchanges, and without tests. ``alone`` are the seconds of as many steps that send nothing. Bytes of each
host are those that the program between them counted, of the whole process.

    python experiments/local_steps/time_to_loss.py --slowlink PROGRAM

PROGRAM makes the links (``--hosts 2 --rate MBIT --delay MS -- COMMAND`` runs a command on two hosts and prints JSON);
THINWIRE_SLOWLINK names it otherwise. It needs root, and an idle machine. A line each; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
import shakespeare
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire import ddp, models
from thinwire.config import complete
from thinwire.ddp.simulation import simulate
from thinwire.ddp.worker import batches
from thinwire.train.slot import make_module

INTO = Path(__file__).parent / "results" / "time_to_loss.jsonl"
RATES, DELAY = (10, 100), 2.5  # Mbit/s, and ms from a host to the hub: a fourth of a round trip
STEPS, GOAL, MOST, BATCH, LR = 600, 150, 300, 8, 0.004  # of the schedule; of dense; that are tried
ROWS: dict[str, ddp.Method] = {
    "dense": ddp.Hook(tw.Dense()),
    "LocalSGD(20)": ddp.LocalSGD(20),
    "SparseLoCo(20)": ddp.SparseLoCo(20),
    "DetachedLoCo(20)": ddp.DetachedLoCo(20),
    "DetachedLoCo(10)": ddp.DetachedLoCo(10),
    "DetachedLoCo(5)": ddp.DetachedLoCo(5),
}


def network() -> nn.Module:
    return models.char_transformer(context=shakespeare.CONTEXT, width=128, depth=2)


problem = cache(shakespeare.problem)


def curve(row: str, seed: int, steps: int) -> list[tuple[int, float]]:
    """The loss of x after steps, as a simulation says it."""
    method = ROWS[row]
    every = steps if row == "dense" else method.steps  # type: ignore[attr-defined]  # all others have rounds
    made = {"optimizer": shakespeare.optimizer(row, LR), "rate": shakespeare.schedule(STEPS)}
    asked = {"workers": 2, "steps": steps, "batch": BATCH, "seed": seed, "evaluate_every": every}
    result = simulate(method, network, *problem(), **asked, **made)
    return [(r["step"], r.get("test_loss_x", r["test_loss"])) for r in result.records]


def rank_main(row: str, seed: int, steps: int, alone: bool, into: Path) -> None:
    """One of two processes: so many steps, and the seconds that they took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, (train, _) = dist.get_rank(), problem()
    model = DistributedDataParallel(make_module(network, seed))
    optimizer = shakespeare.optimizer(row, LR)(model.parameters())
    compressed = None if alone else ddp.compress(model, optimizer, ROWS[row], seed=seed)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, shakespeare.schedule(STEPS))
    drawn = batches(len(train), 2, BATCH, seed)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        with model.no_sync() if alone else torch.enable_grad():
            optimizer.zero_grad()
            x, y = train.batch(next(drawn)[rank])
            torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        rate.step()
    dist.barrier()
    if rank == 0:
        given = 0 if compressed is None else compressed.ledger.bytes
        into.write_text(json.dumps({"time": time.perf_counter() - began, "bytes": given}))
    dist.destroy_process_group()


def over(program: str, mbit: float, row: str, seed: int, steps: int, alone: bool = False) -> dict[str, Any]:
    """The same on two hosts behind slow links: seconds, bytes that a rank gives, and bytes that hosts sent."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "said.json"
        words = [sys.executable, program, "--hosts", "2", "--rate", str(mbit), "--delay", str(DELAY), "--"]
        words += [sys.executable, __file__, "--rank", row, "--seed", str(seed), "--steps", str(steps)]
        words += ["--into", str(into), *(["--alone"] if alone else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        hosts = json.loads(done.stdout.splitlines()[-1])["hosts"]
        return {**json.loads(into.read_text()), "hosts": [host["sent_bytes"] for host in hosts]}


def measure(o: argparse.Namespace, row: str, mbit: float, steps: int) -> dict[str, Any]:
    line = over(o.slowlink, mbit, row, o.seed, steps)
    return line | {"alone": over(o.slowlink, mbit, row, o.seed, steps, alone=True)["time"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slowlink", default=os.environ.get("THINWIRE_SLOWLINK"), metavar="PROGRAM")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a few steps over a fast link: that it runs, no more")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.rank:
        rank_main(o.rank, o.seed, o.steps, o.alone, o.into)
        return
    if not o.slowlink:
        sys.exit("say --slowlink PROGRAM, or set THINWIRE_SLOWLINK: a program that makes slow links")
    goal, most = (2, 20) if o.tiny else (GOAL, MOST)
    key = {"experiment": "local_steps", "seed": o.seed, "goal": goal} | ({"tiny": True} if o.tiny else {})
    target, dense = 0.0, dict[float, float]()
    for row, method in list(ROWS.items())[: 4 if o.tiny else None]:
        said = {**key, "row": row, "expression": complete(method)}
        one = record.measured(
            o.into, {**said, "part": "steps"}, partial(reach, row, o.seed, goal, most, target), "numpy"
        )
        target = one["loss"] if row == "dense" else target
        for mbit in (1000,) if o.tiny else RATES:
            if one["steps"] is None:
                print(f"{row}: it is not there after {most} steps", flush=True)
                continue
            work = partial(measure, o, row, mbit, one["steps"])
            line = record.measured(o.into, {**said, "part": "time", "mbit": mbit, "steps": one["steps"]}, work, "numpy")
            dense.setdefault(mbit, line["time"])
            about = f"{line['time']:.1f} s, {line['alone']:.1f} s of it alone, {line['bytes']:,} bytes of a rank"
            print(
                f"{row}, {mbit} Mbit/s: {line['time'] / dense[mbit]:.3f} of dense: {one['steps']} steps, {about}",
                flush=True,
            )


def reach(row: str, seed: int, goal: int, most: int, target: float) -> dict[str, Any]:
    """After how many steps a row has the loss of dense training after ``goal``; None: not after ``most``."""
    points = curve(row, seed, goal if row == "dense" else most)
    there = points[-1:] if row == "dense" else [point for point in points if point[1] <= target]
    return {"steps": there[0][0] if there else None, "loss": there[0][1] if there else None, "curve": points}


if __name__ == "__main__":
    main()
