"""Intrinsic gradient compression: sentences (table 3) and 10,000 clients (figure 1), rates chosen for each row.

Melas-Kyriazi, Wang, 2021. Table 3: BERT on SST-2, static and time-varying subspaces of d = 200 to 25,600: accuracy
rises with d, and time-varying is ahead of static below d = 6,400. Here fastText, from random weights, 50 clients with
equally distributed sentences, 10 a round, one epoch, 300 rounds. BERT was trained before, and has 110 million
parameters, of which 25,600 are .02 %. fastText here has 237,138, and begins at random, so d is a larger share: 6,400,
25,600 and 102,400 are 3, 11 and 43 %. Figure 1: ResNet-9 on CIFAR-10, 10,000 clients with five pictures of one class
each, 100 a round, 24 epochs of 100 rounds. Here the CNN of LBGM's paper (657,080 parameters), 10,000 clients of five
pictures as there, 50 a round, one gradient each, 300 rounds.

- ``SST-2``: FedAvg, static and time-varying by d, K = 8 subspaces for the upload of one
- ``10,000 clients``: no compression, top-k, FetchSGD, one subspace, eight for the same upload, both time-varying too. A
  subspace stays for 12 rounds, one of eight for 96. In the paper it stays for an epoch, which would be 200 of the 300.
  FetchSGD is tried with three numbers of entries down: a tenth of a row of the sketch, half, and the whole sketch
- ``SST-2, transformer``: two blocks in place of fastText, with d from 400 on, where the paper has its differences, and
  K = 8 for the bytes of one subspace, both ways together: with the upload of d it has 4.5 times those bytes
- ``ResNet-9``: the paper's network and clients, 20 a round, for 100 of its 2,400 rounds, which is as far as a CPU gets.
  It shows whether 6.6 million parameters train in a subspace at all, with one seed, and decides no claim

The rows of SST-2 come first. They try the main claims: more dimensions are better, and time-varying is ahead of static.
Rates are tried for all of the rounds there, since a small one needs them. What a server sees of a client's picture, the
figure of appendix E, is ``experiments/analysis/look.py --jobs leakage,leakage_cifar10``.

    python experiments/intrinsic/claims.py --list
    python experiments/intrinsic/claims.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
from thinwire import models
from thinwire.problem import Problem, standard

Make = Callable[[float, int], tw.Algorithm]
DIMS, WIDE, NARROW = (6400, 25_600, 102_400), (25_600, 102_400), (400, 1600, 6400)
PICTURES = 657_080  # parameters of the CNN
COLS = PICTURES // 475 // 5  # of each of the five rows of a sketch


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


def fetched(rate: float, rounds: int, k: int) -> tw.Algorithm:
    """A sketch of as many floats as a subspace has, and ``k`` entries down; momentum and error as in its paper."""
    return tw.FetchSGD(COLS, k=k, local=trained(rate, 1))


def arms() -> list[Arm]:
    texts: dict[str, Any] = {
        "setting": {"name": "SST-2", "data": "sst2", "model": "fasttext", "clients": 50, "split": "IID()", "batch": 32},
        "problem": sentences,
        "rounds": 300,
        "sample": 10,
        "minutes": 0.25,
    }
    plain = Federated(row="FedAvg", method=fedavg, rates=[0.3, 1.0, 3.0], tuning=0.3, **texts)
    found: list[Arm] = [plain, *subspaces(texts, DIMS, 1.0)]
    eight = partial(intrinsic, dim=DIMS[0], local=1.0, subspaces=8)
    found.append(Federated(row=f"K = 8, d = {DIMS[0]:,}", method=eight, rates=SERVER, tuning=1.0, **texts))
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
        "minutes": 4.0,
        "tuning": 0.2,
    }
    step: dict[str, Any] = {"steps": 1, "local": 0.1}  # the server's rate is what is tried
    d = PICTURES // 475
    rows: dict[str, tuple[Make, list[float], Any]] = {
        "FedAvg": (partial(fedavg, steps=1), [0.02, 0.05, 0.1], SEEDS),
        "static, D / 475": (partial(intrinsic, dim=d, **step), [0.03, 0.1, 0.3], SEEDS),
        "K = 8, D / 475": (partial(intrinsic, dim=d, subspaces=8, **step), [0.03, 0.1, 0.3], SEEDS),
        "static, D / 30": (partial(intrinsic, dim=PICTURES // 30, **step), [0.03, 0.1, 0.3], (0,)),
        "time-varying, D / 475": (partial(intrinsic, dim=d, varying=True, epoch=12, **step), [0.03, 0.1, 0.3], (0,)),
        "K = 8, time-varying, D / 475": (
            partial(intrinsic, dim=d, subspaces=8, varying=True, epoch=96, **step),
            [0.03, 0.1, 0.3],
            (0,),
        ),
        "top-k, D / 475": (partial(fedavg, steps=1, up=tw.TopK(1 / 475)), [0.05, 0.1, 0.2], (0,)),
    }
    for row, (method, tried, seeds) in rows.items():
        found.append(Federated(row=row, method=method, rates=tried, **{**many, "seeds": seeds}))
    sketched: dict[str, Any] = {"row": "FetchSGD, D / 475", "rates": [0.05, 0.1, 0.2], **many}
    sketches = [
        Federated(method=partial(fetched, k=k), **{**sketched, "seeds": ()}) for k in (COLS // 10, COLS // 2, 5 * COLS)
    ]
    found.append(replace(sketches[0], seeds=(0,), best_of=sketches))
    return [*found, *attended(texts), *deep(many)]


SERVER = [0.1, 0.3, 1.0]


def subspaces(texts: dict[str, Any], dims: Sequence[int], local: float, tuning: float = 1.0) -> list[Arm]:
    """Static and time-varying ones of each dimension."""
    return [
        Federated(
            row=f"{name}, d = {dim:,}",
            method=partial(intrinsic, dim=dim, local=local, varying=name == "time-varying"),
            **{**texts, "rates": SERVER, "tuning": tuning},
        )
        for dim in dims
        for name in ("static", "time-varying")
    ]


def attended(texts: dict[str, Any]) -> list[Arm]:
    """SST-2 by a transformer from random weights."""
    about = {**texts["setting"], "name": "SST-2, transformer", "model": "text_transformer"}
    own = {**texts, "setting": about, "problem": read, "rounds": 60, "minutes": 4.0, "seeds": (0,)}
    plain = Federated(row="FedAvg", method=fedavg, rates=[0.1, 0.3, 1.0], tuning=0.5, **own)
    small = {**own, "seeds": SEEDS}
    eight = [
        Federated(
            row=f"K = 8, d = {dim:,}, the bytes of {of:,}",
            method=partial(intrinsic, dim=dim, local=0.3, subspaces=8),
            **{**small, "rates": SERVER, "tuning": 0.5},
        )
        for of in NARROW[1:]
        for dim in [round(of / 4.5)]
    ]
    return [plain, *subspaces(own, WIDE, 0.3, 0.5), *subspaces(small, NARROW, 0.3, 0.5), *eight]


def deep(many: dict[str, Any]) -> list[Arm]:
    """ResNet-9, at one rate a row, which was not chosen by trials. It computes in bfloat16."""
    about = {**many["setting"], "name": "ResNet-9", "model": "resnet9", "precision": "bfloat16"}
    own = {**many, "setting": about, "problem": deeper, "narrow": True}
    own |= {"rounds": 100, "sample": 20, "minutes": 4.0, "seeds": (0,)}
    found: list[Arm] = [Federated(row="FedAvg", method=partial(fedavg, steps=1), rates=[0.05], **own)]
    d = 6_570_880 // 475
    for name, how in (("static", {}), ("time-varying", {"varying": True, "epoch": 25})):
        make = partial(intrinsic, dim=d, steps=1, local=0.1, **how)
        found.append(Federated(row=f"{name}, D / 475", method=make, rates=[0.1], **own))
    return found


if __name__ == "__main__":
    once = [arm for arm in arms() if arm.setting["name"] == "ResNet-9"]
    others = [arm for arm in arms() if arm.setting["name"] != "ResNet-9"]
    units.main([*units.thrice(others), *once], Path(__file__).parent / "results" / "claims.jsonl", str(__doc__))
