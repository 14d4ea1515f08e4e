"""Seconds until a model is good enough where clients are not equally fast: rounds that wait, and rounds that do not.

The digits that come with scikit-learn, ten clients that all train all the time, a network of 4,810 parameters. Their
links carry 1 Mbit/s to 0.1 Mbit/s, both ways, in equal ratios: the slowest is ten times as slow as the fastest, and
which client has which link is drawn by the seed. Every row trains until the server has had 600 replies.

    python experiments/buffered/time_to_target.py [--only dense --only top-k --only LBGM] [--split iid] [--seeds 1]
        [--replies 600] [--target 0.9] [--into experiments/buffered/results/time_to_target.jsonl]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire.data import IID, Dirichlet, Split

CLIENTS = 10
SPLITS: dict[str, Split] = {"iid": IID(), "Dirichlet(0.3)": Dirichlet(0.3)}
LOCAL = tw.LocalSGD(0.3)
METHODS: dict[str, record.Method] = {
    "dense": tw.FedAvg(LOCAL),
    "top-k": tw.FedAvg(LOCAL, up=tw.ErrorFeedback(tw.TopK(0.1)), down=tw.PerClient(tw.TopK(0.2))),
    "LBGM": tw.FedAvg(LOCAL, up=tw.LBGM(threshold=0.4)),
}
BUFFERS = (None, tw.Buffered(5), tw.Buffered(2), tw.Buffered(1))


def network(seed: int) -> tw.Network:
    """Links of a tenfold spread, in an order of the seed."""
    order = torch.randperm(CLIENTS, generator=torch.Generator().manual_seed(seed)).tolist()
    return tw.Network(mbit=tuple(10 ** -(place / (CLIENTS - 1)) for place in order))


def reached(result: tw.Result, target: float) -> dict[str, Any]:
    """When, and after how many bytes up, the accuracy was ``target`` first; None if it never was."""
    up = 0
    for line in result.rounds:
        up += line["up_bytes"]
        if line["accuracy"] >= target:
            return {"target": target, "seconds_to_target": line["clock"], "bytes_to_target": up, **end(result)}
    return {"target": target, "seconds_to_target": None, "bytes_to_target": None, **end(result)}


def end(result: tw.Result) -> dict[str, Any]:
    """The clock at the end, and the most and the mean steps for which a reply was on its way."""
    steps = [step for line in result.rounds for step in line.get("staleness", [0])]
    return {"clock": result.rounds[-1]["clock"], "stalest": max(steps), "mean_staleness": sum(steps) / len(steps)}


def main() -> None:
    into = Path(__file__).parent / "results" / "time_to_target.jsonl"
    parser = record.options(__doc__, METHODS, SPLITS, into)
    parser.add_argument("--replies", type=int, default=600)
    parser.add_argument("--target", type=float, default=0.9)
    given = parser.parse_args()
    for seed, split, problem, name, method in record.trials(given, METHODS, SPLITS, "digits", CLIENTS):
        for buffer in BUFFERS:
            rounds = given.replies // (CLIENTS if buffer is None else buffer.replies)
            record.run(
                *(method, problem, rounds, given.into),
                {"split": split, "method": name, "buffer": None if buffer is None else repr(buffer)},
                lambda result: reached(result, given.target),
                seed=seed,
                network=network(seed),
                buffer=buffer,
            )


if __name__ == "__main__":
    main()
