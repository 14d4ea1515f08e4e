"""DOMO, fairly: CIFAR-10, about a hundred local steps a round, and a learning rate of its own for each row.

The thesis (A. Xu, 2023), chapter 4: 16 clients, all in every round, VGG-16 without norms, batches of 32, one local
epoch (P = 98), 200 epochs, weight decay 5e-4, a tenth of the rate from 60 % and from 80 % of the rounds on, mu_s = .9,
mu_l = .6, alpha = 1, beta = .9. Here: a quarter of the pictures and batches of 8, which is P = 98 too, the CNN of
LBGM's paper (657,080 parameters, no norms), 25 rounds, the first 4,000 test pictures. The rate stays as it is: a decay
makes DOMO's momentum, which is in units of updates, larger than the thesis' for a few rounds, and 25 have no few.

- ``s = 10 %`` and ``s = 20 %``: the eight methods
- ``alpha and beta``: five of table 16
- ``mu``: three points of figure 14. A momentum makes steps 1 / (1 - mu) times as long
- ``E``: figure 15, DOMO and FedAvgSLM-Z

Each row has a rate of its own, chosen in 15 rounds. The first four rows try the main claim, that DOMO is ahead of what
has no fusion.

    python experiments/optimisers/claims.py --list
    python experiments/optimisers/claims.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import units
from arms import SEEDS, Arm, Federated

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import Problem, standard

ROUNDS, EXAMPLES, TESTED = 25, 12_544, 4000  # 16 clients, 98 steps, batches of 8
Make = Callable[[float, int], tw.Algorithm]
PLAIN, HEAVY, BOTH = (0.02, 0.05, 0.1), (0.01, 0.02, 0.05), (0.005, 0.01, 0.02)  # by momentum: none, one, two


@cache
def problem(share: float, seed: int) -> Problem:
    loaded = sets.load("cifar10")
    part = torch.randperm(len(loaded.targets), generator=torch.Generator().manual_seed(seed))[:EXAMPLES]
    small = replace(loaded, inputs=loaded.inputs[part], targets=loaded.targets[part])
    found = standard(small, "lbgm_cnn", 16, sets.Similarity(share), seed, augment=[sets.Crop(4), sets.Flip()])
    return replace(found, test=replace(found.test, indices=torch.arange(TESTED)))


def local(rate: float, rounds: int, momentum: float = 0.0, epochs: float = 1.0) -> tw.LocalSGD:
    return tw.LocalSGD(rate, epochs=epochs, batch=8, momentum=momentum, weight_decay=5e-4)


def server(alpha: float = 1.0, momentum: float = 0.9) -> tw.Momentum:
    return tw.Momentum(alpha, beta=momentum)


def plain(rate: float, rounds: int, cls: Any = tw.FedAvg, epochs: float = 1.0, **fields: Any) -> tw.Algorithm:
    made: tw.Algorithm = cls(local(rate, rounds, epochs=epochs), weights="uniform", **fields)
    return made


def heavy(
    rate: float, rounds: int, cls: Any = tw.FedAvgSLMZ, momentum: float = 0.6, epochs: float = 1.0, **fields: Any
) -> tw.Algorithm:
    made: tw.Algorithm = cls(local=local(rate, rounds, momentum, epochs), weights="uniform", **fields)
    return made


def domo(rate: float, rounds: int, beta: float = 0.9, **fields: Any) -> tw.Algorithm:
    return heavy(rate, rounds, tw.DOMO, beta=beta, **fields)


METHODS: dict[str, tuple[Make, tuple[float, ...]]] = {
    "DOMO": (domo, BOTH),
    "FedAvg": (plain, PLAIN),
    "FedAvgSLM-Z": (partial(heavy, opt=server()), BOTH),
    "FedAvgSM": (partial(plain, cls=tw.FedAvgSM, opt=server()), BOTH),
    "FedAvgLM": (partial(heavy, cls=tw.FedAvgLM), HEAVY),
    "FedAvgLM-Z": (partial(heavy, cls=tw.FedAvgLMZ), HEAVY),
    "FedAvgSLM": (partial(heavy, cls=tw.FedAvgSLM, opt=server()), BOTH),
    "DOMO-S": (partial(domo, intra=True), BOTH),
}
TABLE_16 = {"beta 1": 81.89, "beta .6": 81.60, "beta .2": 74.54, "alpha .8": 84.83, "alpha .4": 82.08}


def arm(name: str, row: str, method: Make, share: float = 0.1, **fields: Any) -> Federated:
    about = {"name": name, "data": "cifar10", "model": "lbgm_cnn", "clients": 16, "similarity": share, "batch": 8}
    given: dict[str, Any] = {
        "setting": about,
        "row": row,
        "method": method,
        "problem": partial(problem, share),
        "rounds": ROUNDS,
        "evaluate_every": 1,
        "minutes": 3.5,
        "tuning": 0.6,
    }
    return Federated(**(given | fields))


def arms() -> list[Arm]:
    one: dict[str, Any] = {"seeds": (0,)}
    found: dict[str, Arm] = {}
    for i, (row, (method, rates)) in enumerate(METHODS.items()):
        found[row] = arm("s = 10 %", row, method, seeds=SEEDS if i < 4 else (0,), rates=rates)
    more = [
        arm("s = 20 %", row, METHODS[row][0], 0.2, rates=METHODS[row][1], **one)
        for row in ("DOMO", "FedAvgSLM-Z", "FedAvgSM", "FedAvg", "FedAvgSLM", "FedAvgLM-Z", "FedAvgLM", "DOMO-S")
    ]
    table = [(f"beta {beta:g}", partial(domo, beta=beta)) for beta in (1.0, 0.6, 0.2)]
    table += [(f"alpha {alpha:g}", partial(domo, opt=server(alpha))) for alpha in (0.8, 0.4)]
    for row, method in ((name.replace(" 0.", " ."), made) for name, made in table):
        more.append(arm("alpha and beta", row, method, paper=TABLE_16[row], rates=BOTH, **one))
    more += [
        arm("mu", "mu_s .6", partial(domo, opt=server(momentum=0.6)), rates=(0.02, 0.04, 0.08), **one),
        arm("mu", "mu_l .9", partial(domo, momentum=0.9), rates=(0.00125, 0.0025, 0.005), **one),
        arm("mu", "mu_l 0", partial(domo, momentum=0.0), rates=BOTH, **one),
    ]
    for epochs, name in ((0.5, "E = .5"), (2.0, "E = 2")):
        for row in ("DOMO", "FedAvgSLM-Z"):
            made = partial(METHODS[row][0], epochs=epochs)
            more.append(arm(name, row, made, rates=METHODS[row][1], minutes=3.5 * epochs, **one))
    return [*found.values(), *more]


if __name__ == "__main__":
    units.main(units.thrice(arms()), Path(__file__).parent / "results" / "claims.jsonl", str(__doc__))
