"""The thesis' Tables 5 and 6 in kind: EF, SAEF, PSync, DEF and DEF-A by compression ratio, and DEF by lambda.

Logical workers of one process, exactly. The thesis: VGG-16, 16 workers, batch 128 in all, momentum 0.9, weight
decay 5e-4, 200 epochs, a tenth of the rate at epochs 100 and 150, crops and flips, one block of each tensor, three
seeds. The options say how much of it is done here. DEF-A is the training of DEF judged by x, so each DEF line has
both: ``accuracy`` is that of y, ``accuracy_x`` that of x. A training that diverges is a line too.

    python experiments/def/table6.py --model vgg_small --steps 2000 --lr 0.05 [--lam 0.3] [--average 0]
    python experiments/def/table6.py --model vgg_small --steps 2000 --lr 0.05 --lambdas 0.1 0.2 0.3 0.4 0.6 0.8
    python experiments/def/table6.py --model vgg_small --table
    python experiments/def/table6.py --model vgg16 --steps 78000 --lr 0.1 --device cuda --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
import torch

import thinwire as tw
from thinwire.config import complete
from thinwire.ddp import DEF, EF, SAEF, Hook, Method, PSync
from thinwire.errors import NonFinite
from thinwire.studies import DataParallel
from thinwire.studies import data_parallel as compare
from thinwire.studies.study import StudyRun

# Table 6: CIFAR-10, VGG-16, test accuracy in percent. Of DEF that of y and that of x (DEF-A).
SGD_ALONE = 93.76
PAPER: dict[str, dict[int, Any]] = {
    "EF": {16: 93.04, 64: 92.16, 256: "diverges", 512: "diverges", 1024: "diverges"},
    "SAEF": {16: 93.15, 64: 91.88, 256: 89.59, 512: 87.83, 1024: 85.46},
    "PSync": {16: 93.31, 64: 91.79, 256: 88.70, 512: 86.47, 1024: 84.27},
    "DEF": {16: (93.61, 93.66), 64: (93.75, 93.61), 256: (93.45, 93.33), 512: (93.24, 93.25), 1024: (93.03, 93.06)},
}
# Table 5, the same at ratio 64, by lambda.
LAMBDAS = {
    0.1: (92.83, 92.78),
    0.2: (93.45, 93.20),
    0.3: (93.75, 93.61),
    0.4: (93.41, 93.41),
    0.6: (93.26, 93.11),
    0.8: (92.60, 92.59),
}


def rows(o: argparse.Namespace) -> list[tuple[Method, Any]]:
    """Every method, and what the thesis has for it."""
    if o.lambdas:
        found: list[tuple[Method, Any]] = [(DEF(64, lam, scope=o.scope), LAMBDAS.get(lam)) for lam in o.lambdas]
        return found
    found = [(Hook(tw.Dense()), SGD_ALONE)]
    for ratio in o.ratios:
        for method in (
            EF(ratio, scope=o.scope),
            SAEF(ratio, average=o.average or None, scope=o.scope),
            PSync(ratio, scope=o.scope),
            DEF(ratio, o.lam, scope=o.scope),
        ):
            found.append((method, PAPER[type(method).__name__].get(ratio)))
    return [(m, paper) for m, paper in found if not o.only or type(m).__name__ in o.only]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="vgg_small")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8, help="examples a worker takes in a step")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--decay", type=float, nargs="*", default=[0.5, 0.75])
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--augment", nargs="*", default=["Crop(4)", "Flip()"])
    parser.add_argument("--ratios", type=int, nargs="*", default=[16, 64, 256, 1024])
    parser.add_argument("--lambdas", type=float, nargs="*", default=[])
    parser.add_argument("--average", type=int, default=100, help="steps between SAEF's averages of residuals; 0: never")
    parser.add_argument("--lam", type=float, help="DEF's lambda (what is measured); the thesis has .3")
    parser.add_argument("--scope", default="tensor", help="vector, or tensor as in the authors' code")
    parser.add_argument("--only", action="append", help="EF, SAEF, PSync, DEF or Hook; may be repeated")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--evaluate-every", type=int, default=250)
    parser.add_argument("--tested", type=int, default=10_000, help="examples of the test set that are looked at")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="train nothing: print what is in --into")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results")
    o = parser.parse_args()
    into = o.into / f"table{5 if o.lambdas else 6}_{o.data}_{o.model}.jsonl"
    if o.table:
        table(into, o.decay[0] if o.decay else 1.0)
        return
    for seed in o.seeds:
        for method, paper in rows(o):
            line = train(o, method, seed)
            line["paper"] = paper
            record.write(into, line)
            end = line["diverged"] or f"{100 * line['accuracy']:5.1f} %"
            x = "" if line["accuracy_x"] is None else f"  of x {100 * line['accuracy_x']:5.1f} %"
            print(
                f"{end}{x}  {line['bytes'] / o.steps:9.0f} B a step  {line['seconds']:7.1f} s  {method!r}", flush=True
            )


def table(into: Path, decay: float) -> None:
    """Every line: the end, and the last look before the rate first decays; of x too, where that is another model."""
    for line in map(json.loads, into.read_text().splitlines()):
        before = [row for row in line["curve"] if row[0] <= decay * line["steps"]][-1:]
        looks = [*([["end", 0, line["accuracy"], line["accuracy_x"]]] if line["curve"] else []), *before]
        shown = [
            f"{at}: {100 * y:5.1f} %" + ("" if x is None else f", of x {100 * x:5.1f} %") for at, _, y, x, *_ in looks
        ]
        print(
            line["diverged"] or "  ".join(shown),
            f" lr {line['lr']}  {line['bytes'] / line['steps']:.0f} B a step",
            repr(compare.method(line["expression"])),
        )


def train(o: argparse.Namespace, method: Method, seed: int) -> dict[str, Any]:
    """One line."""
    study = DataParallel(
        (complete(method),),
        data=o.data,
        model=o.model,
        workers=o.workers,
        batch=o.batch,
        steps=o.steps,
        lr=o.lr,
        weight_decay=o.weight_decay,
        decay=tuple(o.decay),
        augment=tuple(o.augment),
        evaluate_every=o.evaluate_every,
        device=o.device,
    )
    problem, began, curve, diverged = study.problem(seed), time.time(), [], None
    build, test = problem.model, replace(problem.test, indices=torch.arange(min(o.tested, len(problem.test))))
    faster = lambda: build().to(memory_format=torch.channels_last)  # noqa: E731  by a third on a CPU
    try:
        with study.start(StudyRun(method, seed, replace(problem, model=faster, test=test))) as run:
            study.finish(run, curve.append)
    except NonFinite as error:
        diverged = str(error)
    last = curve[-1] if curve else {}
    return {
        "name": repr(method),
        "accuracy": last.get("accuracy"),
        "accuracy_x": last.get("accuracy_x"),
        "diverged": diverged,
        "bytes": sum(r["up_bytes"] for r in curve),
        "steps": o.steps,
        "workers": o.workers,
        "batch": o.batch,
        "lr": o.lr,
        "tested": o.tested,
        "data": o.data,
        "model": o.model,
        "seed": seed,
        **record.about(complete(method), began),
        "curve": [
            [r["step"], r["train_loss"], r["accuracy"], r.get("accuracy_x"), sent]
            for r, sent in zip(curve, accumulate(r["up_bytes"] for r in curve), strict=True)
        ],
    }


if __name__ == "__main__":
    main()
