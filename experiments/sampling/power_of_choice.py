"""Clients with the largest loss first: power-of-choice beside sampling by size, at equal rounds.

Cho, Wang, Joshi, AISTATS 2022, arXiv:2010.01243; after its setting: Fashion-MNIST dealt to 100 clients by a Dirichlet
distribution, 3 of them in a round, a perceptron with two hidden layers of 64 and 30 units. Of d candidates, drawn by
size, the 3 with the largest loss train; d = 3 is sampling by size alone, which is what the paper compares with. A
client takes 30 steps of 64 examples. The rate is 0.005, and half of it from round 150 on.

    python experiments/sampling/power_of_choice.py [--split "Dirichlet(0.3)"] [--seeds 1] [--rounds 200]
        [--into experiments/sampling/results/power_of_choice.jsonl]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
from torch import nn

import thinwire as tw
from thinwire.data import Dirichlet, Split

CLIENTS, SAMPLE = 100, 3
SPLITS: dict[str, Split] = {"Dirichlet(0.3)": Dirichlet(0.3), "Dirichlet(2.0)": Dirichlet(2.0)}
METHODS: dict[str, record.Method] = {
    "FedAvg": tw.FedAvg(tw.LocalSGD(tw.Decay(0.005, (150,), 0.5), batch=64, steps=30)),
}
CANDIDATES = (3, 6, 9, 15)
TARGETS = (0.6, 0.7)  # accuracies


def perceptron() -> nn.Module:
    """784 -> 64 -> 30 -> 10: 52,530 parameters."""
    layers = (nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
    return nn.Sequential(*layers)


def reached(result: tw.Result) -> dict[str, Any]:
    """The round of the first evaluation that reached each target; None if none did."""
    looked = [line for line in result.rounds if line.get("accuracy") is not None]
    first = {target: next((r["round"] for r in looked if r["accuracy"] >= target), None) for target in TARGETS}
    return {f"rounds_to_{100 * target:.0f}": round for target, round in first.items()}


def main() -> None:
    parser = record.options(__doc__, METHODS, SPLITS, Path(__file__).parent / "results" / "power_of_choice.jsonl")
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    for seed, split, problem, name, method in record.trials(given, METHODS, SPLITS, "fashion_mnist", CLIENTS):
        for candidates in CANDIDATES:
            record.run(
                *(method, replace(problem, model=perceptron), given.rounds, given.into),
                {"split": split, "method": name, "candidates": candidates},
                reached,
                seed=seed,
                sample=SAMPLE,
                sampler=tw.PowerOfChoice(candidates),
                evaluate_every=5,
            )


if __name__ == "__main__":
    main()
