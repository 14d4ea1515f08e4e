"""FedLUAR's Table 1 in kind: what it is compared with, in its setting scaled to a CPU.

The paper has 128 clients, 32 of them a round, labels dealt by Dirichlet(0.1), 20 local steps with momentum 0.9 and a
plain mean: CIFAR-10 on ResNet-20 for 200 rounds (lr .2, batch 32, decay 1e-4; 10 to 12 of 23 kernels recycled), and
FEMNIST on a CNN (lr .01, batch 20; 2 of 4 kernels). Here EMNIST letters stand for FEMNIST, with the CNN of the FedAvg
paper, and the options say how many clients, steps and rounds. "Comm" is the paper's own figure: floats sent up, as a
share of FedAvg's. FedPara and PruneFL are not among the rows.

    python experiments/luar/baselines.py --rounds 40 --clients 32 --sample 8
    python experiments/luar/baselines.py --data cifar10 --rounds 30 --clients 32 --sample 4 --steps 10
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import standard

PAPER = {  # Table 1: accuracy %, Comm
    "cifar10": {"FedAvg": (61.27, 1.0), "LBGM": (54.87, 0.65), "FedPAQ": (57.42, 0.5)},
    "emnist_letters": {"FedAvg": (71.01, 1.0), "LBGM": (69.83, 0.71), "FedPAQ": (71.54, 0.25)},
    "digits": {},
}
SETTING: dict[str, dict[str, Any]] = {
    "cifar10": {"model": "resnet20", "lr": 0.2, "batch": 32, "weight_decay": 1e-4, "recycle": 11, "size": 272_762},
    "emnist_letters": {
        "model": "fedavg_cnn", "lr": 0.01, "batch": 20, "weight_decay": 0.0, "recycle": 2, "size": 590_234,
    },
    "digits": {"model": "mlp", "lr": 0.1, "batch": 20, "weight_decay": 0.0, "recycle": 1, "size": 4_810},
}  # fmt: skip


def methods(local: tw.LocalSGD, size: int, recycle: int) -> dict[str, tw.Algorithm]:
    """The rows, all with a plain mean."""

    def averaged(up: tw.Link, down: tw.Link | None = None) -> tw.Algorithm:
        return tw.FedAvg(local, up=up, down=down or tw.Dense(), weights="uniform")

    plain, cols = averaged(tw.Dense()), size // 20
    return {
        "FedAvg": plain,
        "FedLUAR": tw.LUAR(plain, recycle=recycle),
        "LBGM": averaged(tw.Layerwise(tw.LBGM(threshold=0.2))),
        "FedPAQ": averaged(tw.QSGD(16)),
        "FedDropoutAvg": averaged(tw.DropoutAvg(0.5)),
        "Sign+EF": averaged(tw.ErrorFeedback(tw.ScaledSign())),
        "STC": averaged(tw.ErrorFeedback(tw.STC(1 / 32)), tw.EF21(tw.STC(1 / 32))),
        "FetchSGD": tw.FetchSGD(cols, k=cols // 10, local=local, weights="uniform"),
    }


def comm(result: tw.Result, base: float) -> dict[str, Any]:
    """The paper's figure: floats sent up as a share of FedAvg's; and what was spent by when."""
    sent = sum(r["up_floats"] for r in result.rounds)
    return {"comm": sent / (base or sent)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(SETTING), default="emnist_letters")
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--sample", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--lr", type=float, help="default: the paper's")
    parser.add_argument("--only", action="append", help="a row; may be given several times")
    parser.add_argument("--every", type=int, default=5, help="rounds between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    o = parser.parse_args()
    s = SETTING[o.data]
    lr, cut = o.lr or s["lr"], (o.rounds // 2, o.rounds * 3 // 4)
    local = tw.LocalSGD(
        tw.Decay(lr, rounds=cut), steps=o.steps, batch=s["batch"], momentum=0.9, weight_decay=s["weight_decay"]
    )
    problem = standard(o.data, s["model"], o.clients, sets.Dirichlet(0.1, min_examples=8), o.seed)
    into = o.into / f"baselines_{o.data}.jsonl"
    base = 0.0
    for name, method in methods(local, s["size"], s["recycle"]).items():
        if name not in (o.only or [name]):
            continue
        accuracy, share = PAPER[o.data].get(name, (None, None))
        row = {
            "experiment": "luar, baselines",
            "data": o.data,
            "row": name,
            "paper_data": "FEMNIST" if o.data == "emnist_letters" else "CIFAR-10",
            "paper_accuracy": accuracy,
            "paper_comm": share,
        }
        print(f"{name:14s} paper {accuracy} at {share}", end="  ")
        measure = partial(comm, base=base)
        options = {"sample": o.sample, "seed": o.seed, "evaluate_every": o.every}
        line = record.run(method, problem, o.rounds, into, row, measure, **options)
        base = base or (line["floats_up"] if line else 0.0)


if __name__ == "__main__":
    main()
