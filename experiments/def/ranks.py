"""DEF's lambda by the number of ranks: by rule, constant, and as it is measured, which was the default before.

Logical workers on Fashion-MNIST with a small convolutional network, 64 examples a step in all. Lines that are there
already are not trained again.

    python experiments/def/ranks.py --workers 2 4 8 16 --seeds 0 1 2
    python experiments/def/ranks.py --workers 8 --seeds 3 4
    python experiments/def/ranks.py --table
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
from torch import nn

import thinwire as tw
from thinwire.config import complete
from thinwire.ddp import DEF, Hook, Method
from thinwire.errors import NonFinite
from thinwire.problem import Problem
from thinwire.studies import DataParallel
from thinwire.studies.study import StudyRun

EXAMPLES = 64  # of all workers in a step


def network() -> nn.Module:
    """26,826 parameters."""
    convs = [nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convs, nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def train(o: argparse.Namespace, method: Method, workers: int, seed: int) -> dict[str, Any]:
    """Accuracy of y and of x at the end, and both lambdas on the way."""
    data = tw.data.load(o.data)
    about = {"mean": data.mean, "std": data.std}
    problem = Problem(
        network,
        [tw.Supervised(data.inputs[: o.examples], data.targets[: o.examples], **about)],
        tw.Supervised(data.test_inputs[: o.tested], data.test_targets[: o.tested], **about),
    )
    study = DataParallel(
        (complete(method),),
        data=o.data,
        workers=workers,
        steps=o.steps,
        batch=EXAMPLES // workers,
        lr=o.lr,
        weight_decay=5e-4,
        decay=(0.5, 0.75),
        evaluate_every=max(1, o.steps // 4),
    )
    try:
        with study.start(StudyRun(method, seed, problem)) as run:
            result = study.finish(run)
    except NonFinite as error:  # a result too
        return {"accuracy": None, "accuracy_x": None, "lam": [], "diverged": str(error)}
    lams = [[r["step"], round(r["lam"], 4), round(r["lam_star"], 4)] for r in result.records if r.get("lam_star")]
    last = result.records[-1]
    return {"accuracy": last["accuracy"], "accuracy_x": last.get("accuracy_x"), "lam": lams}


def reached(line: dict[str, Any]) -> str:
    """Accuracy, or that a training came to none."""
    return "diverged" if line["accuracy"] is None else f"{100 * line['accuracy']:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 16])
    parser.add_argument("--lambdas", type=float, nargs="*", default=[0.3, 0.5, 0.7, 1.0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--tested", type=int, default=10_000, help="examples of the test set that are looked at")
    parser.add_argument("--table", action="store_true", help="train nothing: print what is in --into")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results")
    o = parser.parse_args()
    into = o.into / f"ranks_{o.data}.jsonl"
    lines = [json.loads(line) for line in into.read_text().splitlines()] if into.exists() else []
    if o.table:
        for line in lines:
            last = line["lam"][-1][2] if line["lam"] else None
            best = "" if last is None else f"{last:.2f}"
            print(f"| {line['workers']} | `{line['name']}` | {reached(line)} | {best} |")
        return
    methods = [Hook(tw.Dense()), DEF(64), *(DEF(64, lam) for lam in o.lambdas)]
    for workers, seed, method in itertools.product(o.workers, o.seeds, methods):
        began = time.time()
        line = {"name": repr(method), "workers": workers, "batch": EXAMPLES // workers, "data": o.data, "lr": o.lr}
        line |= {"steps": o.steps, "seed": seed, "examples": o.examples, "tested": o.tested}
        key = line | {"expression": complete(method)}
        if any(all(old.get(name) == value for name, value in key.items()) for old in lines):
            continue
        line |= train(o, method, workers, seed) | record.about(complete(method), began)
        record.write(into, line)
        print(f"{reached(line)}  {line['lam'][-1:]}  {workers} workers  {method!r}", flush=True)


if __name__ == "__main__":
    main()
