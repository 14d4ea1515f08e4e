"""LUAR over several optimisers: recycling against dropping, and how layers are chosen, at equal measured bytes.

Kim, Kang, Lee, NeurIPS 2025: on CIFAR-10 (ResNet-20, 128 clients, 32 a round, Dirichlet 0.1, 20 local steps) FedAvg
reaches 61.27 % and LUAR at about half of the uplink a point less; choosing the layers at random costs 7.33 points, as a
third party quotes it. Which layers are chosen decides how many bytes a round takes, so arms of equally many rounds are
not equally dear: here every arm is looked at when it has spent the same bytes upwards, those that the thriftiest arm
spent in all, and a half and a quarter of them.

    python experiments/optimisers/luar.py --seed 0 --seed 1 --seed 2
    python experiments/optimisers/luar.py --inner "FedAvg(opt=Adam(0.01))" --recycle 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import Problem, standard

INNER = ["FedAvg()", "FedAvg(opt=Adam(0.01))", "MOON()"]
PAPER = {"whole": 61.27, "metric": 60.15, "uniform": 53.94}  # CIFAR-10, over FedAvg, about half of the uplink
SHARES = (0.25, 0.5, 1.0)


def problem(o: argparse.Namespace, seed: int) -> Problem:
    """``examples`` of a data set, dealt by Dirichlet labels."""
    loaded = sets.load(o.data)
    part = torch.randperm(len(loaded.targets), generator=torch.Generator().manual_seed(seed))[: o.examples]
    loaded = replace(loaded, inputs=loaded.inputs[part], targets=loaded.targets[part])
    split = sets.Dirichlet(o.alpha, min_examples=2)
    return standard(loaded, o.model, clients=o.clients, split=split, seed=seed)


def arms(inner: tw.Algorithm, recycle: int, layers: Any) -> dict[str, tw.Algorithm]:
    """The rows: name -> method."""
    luar = tw.LUAR(inner, recycle, layers=layers)
    return {
        "whole": inner,
        "metric": luar,
        "metric, dropped": replace(luar, drop=True),
        "uniform": replace(luar, select="uniform"),
        "round-robin": replace(luar, select="round-robin"),
        "gradient-norm": replace(luar, select="gradient-norm"),
    }


def within(line: record.Line, budget: float) -> float | None:
    """Accuracy % of the last evaluated round that fits into a budget of bytes upwards."""
    fits = [100 * accuracy for _, accuracy, _, _, up, _ in line["curve"] if up <= budget]
    return fits[-1] if fits else None


def table(into: Path) -> None:
    """Of the runs in a file: the rounds that fit into the bytes up of the thriftiest, and what they cost down."""
    lines = [json.loads(line) for line in into.read_text().splitlines()]
    for inner in dict.fromkeys(line["inner"] for line in lines):
        own = [line for line in lines if line["inner"] == inner]
        budget = min(line["bytes_up"] for line in own)
        print(f"{inner}: within {budget / 1e6:.0f} MB up, at each run's mean rate, and at the end")
        for name in dict.fromkeys(line["row"] for line in own):
            runs = [line for line in own if line["row"] == name]
            fit = statistics.mean(budget / line["bytes_up"] for line in runs)
            rounds, down = fit * runs[0]["rounds"], fit * runs[0]["bytes_down"] / 1e6
            end = 100 * statistics.mean(line["accuracy"] for line in runs)
            print(f"{name:16s}{rounds:6.1f} rounds{down:8.0f} MB down{end:8.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner", action="append", help="methods to go around")
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--model", default="fedavg_cnn")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--sample", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet split")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--recycle", type=int, default=2)
    parser.add_argument("--layers", choices=["kernels", "tensors", "modules"], default="kernels")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=1, help="rounds between evaluations")
    parser.add_argument("--arm", action="append", help="of these names alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results" / "luar.jsonl")
    parser.add_argument("--table", action="store_true", help="train nothing: what the results there cost")
    o = parser.parse_args()
    if o.table:
        table(o.into)
        return
    defaults = {"lr": o.lr, "batch": o.batch, "steps": o.steps}
    seeds = o.seed or [0]
    settings = {seed: problem(o, seed) for seed in seeds}
    for text in o.inner or INNER:
        inner = replace(tw.parse(text, defaults), weights="uniform")  # the paper's mean
        curves: dict[str, dict[int, record.Line]] = {}
        for seed in seeds:
            for name, method in arms(inner, o.recycle, o.layers).items():
                if o.arm and name not in o.arm:
                    continue
                paper = PAPER.get(name) if text == "FedAvg()" else None
                row = {"experiment": "luar, equal bytes", "data": o.data, "inner": text, "row": name}
                row |= {"alpha": o.alpha, "paper_accuracy_cifar10": paper}
                print(f"seed {seed} {text:24s} {name:16s}", end=" ")
                options = {"sample": o.sample, "seed": seed, "device": o.device, "evaluate_every": o.every}
                if found := record.run(method, settings[seed], o.rounds, o.into, row, **options):
                    curves.setdefault(name, {})[seed] = found
        budget = min(line["bytes_up"] for by_seed in curves.values() for line in by_seed.values())
        heads = "".join(f"{share * budget / 1e6:>10.2f} MB" for share in SHARES)
        print(f"\n{text}: accuracy % when so much was sent up\n{'':16s}{heads}")
        for name, by_seed in curves.items():
            cells = []
            for share in SHARES:
                values = [v for line in by_seed.values() if (v := within(line, share * budget)) is not None]
                spread = f"±{statistics.stdev(values):4.2f}" if len(values) > 1 else ""
                cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "-")
            print(f"{name:16s}" + "".join(f"{cell:>13s}" for cell in cells))
        print()


if __name__ == "__main__":
    main()
