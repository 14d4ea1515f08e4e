"""Intrinsic gradient compression: sentences (table 3) and 10,000 clients (figure 1), rates chosen for each row.

Melas-Kyriazi, Wang, 2021. Table 3: BERT on SST-2, static and time-varying subspaces of d = 200 to 25,600: accuracy
rises with d, and time-varying is ahead of static below d = 6,400. Here fastText, from random weights, 50 clients with
equally distributed sentences, 10 a round, one epoch, 300 rounds. Figure 1: ResNet-9 on CIFAR-10, 10,000 clients with
five pictures of one class each, 100 a round, 24 epochs of 100 rounds. Here the CNN of LBGM's paper (657,080
parameters), 10,000 clients of five pictures as there, 50 a round, one gradient each, 300 rounds.

- ``SST-2``: FedAvg, static and time-varying by d, K = 8 subspaces for the upload of one
- ``10,000 clients``: no compression, top-k, one subspace, eight for the same upload, both time-varying
- ``SST-2, transformer``: two blocks in place of fastText, d = 800 and 3,200
- ``ResNet-9``: the paper's network and clients, 20 a round, for 100 of its 2,400 rounds, which is as far as a CPU gets.
  It shows whether 6.6 million parameters train in a subspace at all, and decides no claim

The rows of SST-2 come first. They try the main claims (more dimensions are better, and time-varying is ahead of
static), and take 1.3 hours of a core. What a server sees of a client's picture, the figure of appendix E, is
``experiments/analysis/look.py --jobs leakage,leakage_cifar10``.

    python experiments/intrinsic/claims.py --list
    python experiments/intrinsic/claims.py
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

import thinwire as tw
from thinwire import data as sets
from thinwire import models
from thinwire.problem import Problem, standard

Make = Callable[[float, int], tw.Algorithm]
TABLE_3 = {200: (82.8, 85.9), 800: (87.1, 87.8), 3200: (88.3, 89.0), 25600: (89.5, 89.4)}  # static, time-varying
TABLE_3 |= {400: (85.3, 87.8), 1600: (87.5, 88.7), 6400: (89.4, 89.4)}
PICTURES = 657_080  # parameters of the CNN


@cache
def sentences(seed: int) -> Problem:
    return standard("sst2", "fasttext", 50, sets.IID(), seed)


@cache
def read(seed: int) -> Problem:
    """The same sentences to a transformer of two blocks, 32 wide."""
    words = sets.load("sst2").vocabulary
    return replace(sentences(seed), model=partial(models.text_transformer, words, 2, width=32))


@cache
def deeper(seed: int) -> Problem:
    """The same pictures, fewer to test, to the paper's network."""
    found = standard("cifar10", "resnet9", 10_000, sets.Shards(1), seed)
    return replace(found, test=replace(found.test, indices=torch.arange(1000)))


@cache
def pictures(seed: int) -> Problem:
    """Sorted by label and cut in fives: a client has pictures of one class, where a class is a multiple of five."""
    found = standard("cifar10", "lbgm_cnn", 10_000, sets.Shards(1), seed)
    return replace(found, test=replace(found.test, indices=torch.arange(4000)))


def trained(rate: float, steps: int | None = None) -> tw.LocalSGD:
    return tw.LocalSGD(rate, steps=1, batch=None) if steps == 1 else tw.LocalSGD(rate, batch=32)


def fedavg(rate: float, rounds: int, steps: int | None = None, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(trained(rate, steps), **fields)


def intrinsic(
    rate: float, rounds: int, dim: int, local: float, steps: int | None = None, **fields: Any
) -> tw.Algorithm:
    """The rate is the server's. What comes back is about sqrt(D / d) times as long; a rate of 1 was too much."""
    return tw.Intrinsic(dim, local=trained(local, steps), opt=tw.SGD(rate), known=True, **fields)


def arms() -> list[units.Arm]:
    texts: dict[str, Any] = {
        "setting": {"name": "SST-2", "data": "sst2", "model": "fasttext", "clients": 50, "split": "IID()", "batch": 32},
        "problem": sentences,
        "rounds": 300,
        "sample": 10,
        "minutes": 2.0,
        "tuning": 0.3,
    }
    found: list[units.Arm] = [units.Federated(row="FedAvg", method=fedavg, rates=[0.3, 1.0, 3.0], **texts)]
    rates = [0.01, 0.05, 0.3]
    for dim, (static, varying) in TABLE_3.items():
        for row, how, paper in (
            (f"static, d = {dim:,}", {}, static),
            (f"time-varying, d = {dim:,}", {"varying": True}, varying),
        ):
            make = partial(intrinsic, dim=dim, local=1.0, **how)
            found.append(units.Federated(row=row, method=make, rates=rates, paper=paper, **texts))
    eight = partial(intrinsic, dim=200, local=1.0, subspaces=8)
    found.append(units.Federated(row="K = 8, d = 200", method=eight, rates=rates, **texts))
    many: dict[str, Any] = {
        "setting": {
            "name": "10,000 clients",
            "data": "cifar10",
            "model": "lbgm_cnn",
            "clients": 10_000,
            "split": "Shards(1)",
        },
        "problem": pictures,
        "rounds": 300,
        "sample": 50,
        "evaluate_every": 10,
        "minutes": 9.0,
        "tuning": 0.2,
    }
    step: dict[str, Any] = {"steps": 1, "local": 0.1}  # the server's rate is what is tried
    d = PICTURES // 475
    rows: dict[str, tuple[Make, list[float], Any]] = {
        "FedAvg": (partial(fedavg, steps=1), [0.02, 0.05, 0.1], units.SEEDS),
        "static, D / 475": (partial(intrinsic, dim=d, **step), [0.03, 0.1, 0.3], units.SEEDS),
        "K = 8, D / 475": (partial(intrinsic, dim=d, subspaces=8, **step), [0.03, 0.1, 0.3], units.SEEDS),
        "static, D / 30": (partial(intrinsic, dim=PICTURES // 30, **step), [0.03, 0.1, 0.3], (0,)),
        "time-varying, D / 475": (partial(intrinsic, dim=d, varying=True, epoch=50, **step), [0.03, 0.1, 0.3], (0,)),
        "top-k, D / 475": (partial(fedavg, steps=1, up=tw.TopK(1 / 475)), [0.05, 0.1, 0.2], (0,)),
    }
    for row, (method, tried, seeds) in rows.items():
        found.append(units.Federated(row=row, method=method, rates=tried, **{**many, "seeds": seeds}))
    return [*found, *attended(texts), *deep(many)]


def attended(texts: dict[str, Any]) -> list[units.Arm]:
    """SST-2 by a transformer from random weights."""
    about = {**texts["setting"], "name": "SST-2, transformer", "model": "text_transformer"}
    own = {**texts, "setting": about, "problem": read, "rounds": 200, "minutes": 4.0, "seeds": (0,)}
    found: list[units.Arm] = [units.Federated(row="FedAvg", method=fedavg, rates=[0.1, 0.3], **own)]
    for dim in (800, 3200):
        for name, how in (("static", {}), ("time-varying", {"varying": True})):
            make = partial(intrinsic, dim=dim, local=0.3, **how)
            found.append(units.Federated(row=f"{name}, d = {dim:,}", method=make, rates=[0.05, 0.3], **own))
    return found


def deep(many: dict[str, Any]) -> list[units.Arm]:
    """ResNet-9, at one rate a row, which was not chosen by trials."""
    about = {**many["setting"], "name": "ResNet-9", "model": "resnet9"}
    own = {**many, "setting": about, "problem": deeper, "rounds": 100, "sample": 20, "minutes": 10.0, "seeds": (0,)}
    found: list[units.Arm] = [units.Federated(row="FedAvg", method=partial(fedavg, steps=1), rates=[0.05], **own)]
    d = 6_570_880 // 475
    for name, how in (("static", {}), ("time-varying", {"varying": True, "epoch": 25})):
        make = partial(intrinsic, dim=d, steps=1, local=0.1, **how)
        found.append(units.Federated(row=f"{name}, D / 475", method=make, rates=[0.1], **own))
    return found


if __name__ == "__main__":
    units.main(units.thrice(arms()), Path(__file__).parent / "results" / "claims.jsonl", str(__doc__))
