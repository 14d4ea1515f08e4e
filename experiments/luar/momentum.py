"""What LUAR costs over a server with momentum, where recycled layers go past the momentum and where they go through it.

EMNIST letters, 64 clients with labels by Dirichlet(0.1), 8 a round, the CNN of the FedAvg paper, of whose four kernels
two are recycled. Local training is 20 steps of SGD at a constant rate of 0.01, batches of 20, momentum 0.9. The mean is
uniform; 60 rounds, tested every fourth on 2,000 pictures; one seed. FedACG has momentum 0.7, FedAvgM 0.6.

    python experiments/luar/momentum.py [--rounds 60] [--into experiments/luar/results/momentum.jsonl]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
import torch
from arms import patient

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import Problem, standard

LOCAL = tw.LocalSGD(0.01, steps=20, batch=20, momentum=0.9)
SERVERS: dict[str, tw.Algorithm] = {
    "FedACG": tw.FedACG(LOCAL, momentum=0.7, weights="uniform"),
    "FedAvgM": tw.FedAvg(LOCAL, opt=tw.Momentum(1.0, beta=0.6), weights="uniform"),
}


def problem(tested: int = 2000) -> Problem:
    """Seed 0's clients and model, and the first ``tested`` pictures of the test set in an order of their own."""
    whole = standard("emnist_letters", "fedavg_cnn", 64, patient(sets.Dirichlet(0.1, min_examples=2)), 0)
    some = torch.randperm(len(whole.test), generator=torch.Generator().manual_seed(0))[:tested]
    return replace(whole, test=replace(whole.test, indices=some))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results" / "momentum.jsonl")
    given = parser.parse_args()
    data = problem()
    for server, method in SERVERS.items():
        ways = {"alone": method, "past": tw.LUAR(method, 2), "through": tw.LUAR(method, 2, past=False)}
        for way, arm in ways.items():
            about = {"server": server, "way": way}
            record.run(arm, data, given.rounds, given.into, about, seed=0, sample=8, evaluate_every=4)


if __name__ == "__main__":
    main()
