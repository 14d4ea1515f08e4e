"""FedLUAR, fairly: long enough, with the paper's local training, and with a seed more than one.

Kim, Kang, Lee, NeurIPS 2025, arXiv:2503.11146. The paper's FEMNIST row: 128 clients, 32 a round, Dirichlet(0.1), 20
steps of 20 with momentum .9, lr .01, a tenth of it from half of 200 rounds on, a plain mean, a CNN of four kernels of
which two are recycled. Here: EMNIST letters, 64 clients, 8 a round, 150 rounds, the CNN of the FedAvg paper, which has
four kernels too, and computes in bfloat16, in which parameters and updates are not. 4,000 of the test examples, every
five rounds.

- ``recycling``: whole, recycled and dropped, by the metric and at random, two of four kernels; then one and three, and
  two by the norm of the update and in turn
- ``AG News``: fastText (two kernels) by 32 clients, 8 a round; the paper's row is DistilBERT, at 17 % of the floats
- ``AG News, transformer``: two blocks from random weights (ten kernels), by Adam in 60 rounds, where the paper's
  DistilBERT is trained before
- ``compared``: what the paper compares with
- ``optimisers``: LUAR over the eight other methods that the paper has it over, with the paper's settings
- ``alike``: clients that are alike, as the authors' are: each of theirs has the pictures of ten writers, and neighbours
  share nine of them. Here the pictures are dealt at random, 16 of 64 clients take part in a round, and the rate falls
  twice, at 1/2 and 3/4 of the rounds, as it does in the authors' code. Recycled layers go past a server's momentum
- ``AG News, alike``: the same rounds and rates for texts, whose clients are less alike: Dirichlet(1), 16 of 64
- ``ResNet-20``: 12 of the 23 kernels, on 10,000 pictures of CIFAR-10, with the authors' rate of .2 and batches of 32

Rows have the paper's learning rate. Three that train badly at it choose a smaller one: three of four kernels recycled,
and two over FedAvgM and FedACG. These two were trained with ``past=False``, which feeds a recycled update to the
server's momentum again, as LUAR did here when they were made. The authors' recycled layers go past the momentum, as
those of ``alike`` do, at the paper's learning rate.

The first four rows try the main claim: it is worth more to recycle two of four kernels than to leave them out. They
take .4 hours of a core.

    python experiments/luar/claims.py --list
    python experiments/luar/claims.py
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
from arms import Arm, Federated, patient

import thinwire as tw
from thinwire import data as sets
from thinwire import models
from thinwire.problem import Problem, standard

ROUNDS, TESTED = 150, 4000
EMNIST = {
    "data": "emnist_letters",
    "model": "fedavg_cnn",
    "clients": 64,
    "sample": 8,
    "split": "Dirichlet(0.1)",
    "steps": 20,
    "batch": 20,
    "momentum": 0.9,
    "tested": TESTED,
}


APART = patient(sets.Dirichlet(0.1, min_examples=2))


@cache
def problem(data: str, model: str, clients: int, seed: int, split: sets.Split = APART) -> Problem:
    found = standard(data, model, clients, split, seed)
    some = torch.randperm(len(found.test), generator=torch.Generator().manual_seed(0))[:TESTED]
    return replace(found, test=replace(found.test, indices=some))


def local(rate: float, rounds: int, batch: int = 20, twice: bool = False) -> tw.LocalSGD:
    falls = (rounds // 2, 3 * rounds // 4) if twice else (rounds // 2,)
    return tw.LocalSGD(tw.Decay(rate, rounds=falls), steps=20, batch=batch, momentum=0.9)


DENSE = tw.Dense()


def fedavg(rate: float, rounds: int, up: tw.Link = DENSE, batch: int = 20, twice: bool = False, **fields: Any) -> Any:
    return tw.FedAvg(local(rate, rounds, batch, twice), up=up, weights="uniform", **fields)


def luar(
    rate: float, rounds: int, recycle: int, inner: Callable[[float, int], tw.Algorithm] = fedavg, **fields: Any
) -> tw.Algorithm:
    return tw.LUAR(inner(rate, rounds), recycle, **fields)


def arm(name: str, row: str, method: Callable[[float, int], tw.Algorithm], **fields: Any) -> Federated:
    given: dict[str, Any] = {
        "setting": {"name": name, **EMNIST, "precision": "bfloat16"},
        "narrow": True,
        "row": row,
        "method": method,
        "rates": [0.01],
        "problem": partial(problem, "emnist_letters", "fedavg_cnn", 64),
        "rounds": ROUNDS,
        "sample": 8,
        "minutes": 2.2,
    }
    return Federated(**(given | fields))


RECYCLING: dict[str, tuple[Callable[[float, int], tw.Algorithm], Any]] = {
    "FedAvg": (fedavg, (71.01, 1.0)),
    "2 of 4, metric, recycled": (partial(luar, recycle=2), None),
    "2 of 4, metric, dropped": (partial(luar, recycle=2, drop=True), None),
    "2 of 4, uniform, recycled": (partial(luar, recycle=2, select="uniform"), None),
}
OTHERS: dict[str, Callable[[float, int], tw.Algorithm]] = {
    "1 of 4, metric, recycled": partial(luar, recycle=1),
    "1 of 4, metric, dropped": partial(luar, recycle=1, drop=True),
    "1 of 4, uniform, recycled": partial(luar, recycle=1, select="uniform"),
    "2 of 4, uniform, dropped": partial(luar, recycle=2, select="uniform", drop=True),
    "1 of 4, uniform, dropped": partial(luar, recycle=1, select="uniform", drop=True),
    "3 of 4, metric, recycled": partial(luar, recycle=3),
    "3 of 4, metric, dropped": partial(luar, recycle=3, drop=True),
    "2 of 4, gradient norm, recycled": partial(luar, recycle=2, select="gradient-norm"),
    "2 of 4, round-robin, recycled": partial(luar, recycle=2, select="round-robin"),
}


def fedpara(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedPara(fedavg(rate, rounds), ratio=0.25)


def prunefl(rate: float, rounds: int) -> tw.Algorithm:
    return tw.PruneFL(fedavg(rate, rounds), every=25, share=0.3)


COMPARED: dict[str, tuple[Callable[[float, int], tw.Algorithm], Any]] = {
    "FedPAQ, 16 levels": (partial(fedavg, up=tw.QSGD(16)), (71.54, 0.25)),
    "LBGM layer by layer, delta .2": (partial(fedavg, up=tw.Layerwise(tw.LBGM(threshold=0.2))), (69.83, 0.71)),
    "FedPara, a quarter": (fedpara, (67.69, 0.22)),
    "PruneFL": (prunefl, None),
    "FedDropoutAvg, half": (partial(fedavg, up=tw.DropoutAvg(0.5)), None),
}


def prox(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedProx(local(rate, rounds), mu=0.001, weights="uniform")


def fedopt(rate: float, rounds: int) -> tw.Algorithm:
    return fedavg(rate, rounds, opt=tw.SGD(0.9))


def fedavgm(rate: float, rounds: int) -> tw.Algorithm:
    return fedavg(rate, rounds, opt=tw.Momentum(1.0, beta=0.6))


def moon(rate: float, rounds: int) -> tw.Algorithm:
    return tw.MOON(local(rate, rounds), mu=1.0, temperature=0.5, weights="uniform")


def fedmut(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedMut(local(rate, rounds), alpha=0.3, weights="uniform")


def fedacg(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedACG(local(rate, rounds), momentum=0.7, beta=0.01, weights="uniform")


OPTIMISERS = {"FedProx": prox, "FedOpt, .9": fedopt, "FedAvgM, .6": fedavgm, "FedACG": fedacg, "FedMut": fedmut}
OPTIMISERS |= {"MOON": moon, "FedPAQ, 16 levels": partial(fedavg, up=tw.QSGD(16)), "PruneFL": prunefl}

NEWS = {**EMNIST, "data": "ag_news", "model": "fasttext", "clients": 32}


def adam(rate: float, rounds: int) -> tw.Algorithm:
    """For the transformer. With SGD it ended at guessing, or diverged, in trials of which there is no record."""
    return tw.FedAvg(tw.LocalAdam(tw.Decay(rate, rounds=(rounds // 2,)), steps=20, batch=20), weights="uniform")


def read(seed: int) -> Problem:
    """AG News to a transformer of two blocks, 32 wide: ten kernels, of which that of the words has most floats."""
    found, words = problem("ag_news", "fasttext", 32, seed), sets.load("ag_news").vocabulary
    return replace(found, model=partial(models.text_transformer, words, 4, width=32))


def news(model: str, row: str, method: Callable[[float, int], tw.Algorithm], **fields: Any) -> Federated:
    fast = model == "fasttext"
    about = {**NEWS, "model": model, **({} if fast else {"momentum": "Adam's"})}
    given: dict[str, Any] = {
        "setting": {"name": "AG News" if fast else "AG News, transformer", **about},
        "narrow": False,
        "problem": partial(problem, "ag_news", "fasttext", 32) if fast else read,
        "rounds": 100 if fast else 60,
        "rates": [1.0, 3.0, 10.0] if fast else [0.001, 0.003, 0.01],
        "minutes": 0.2 if fast else 2.5,
    }
    return arm("", row, method, **(given | fields))


twice = partial(fedavg, twice=True)
ALIKE: dict[str, Callable[[float, int], tw.Algorithm]] = {
    "FedAvg": twice,
    "2 of 4, metric, recycled": partial(luar, recycle=2, inner=twice),
    "2 of 4, metric, dropped": partial(luar, recycle=2, inner=twice, drop=True),
    "2 of 4, uniform, recycled": partial(luar, recycle=2, inner=twice, select="uniform"),
    "3 of 4, metric, recycled": partial(luar, recycle=3, inner=twice),
    "3 of 4, metric, dropped": partial(luar, recycle=3, inner=twice, drop=True),
    "LBGM, whole vector, delta .8": partial(twice, up=tw.LBGM(threshold=0.8)),
    "LBGM, whole vector, delta .9": partial(twice, up=tw.LBGM(threshold=0.9)),
}


def averaged_momentum(rate: float, rounds: int) -> tw.Algorithm:
    return fedavg(rate, rounds, twice=True, opt=tw.Momentum(1.0, beta=0.6))


def accelerated(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedACG(local(rate, rounds, twice=True), momentum=0.7, beta=0.01, weights="uniform")


ALIKE |= {"FedAvgM, .6": averaged_momentum, "FedACG": accelerated}
ALIKE |= {f"{row}, 2 of 4 recycled": partial(luar, recycle=2, inner=ALIKE[row]) for row in ("FedAvgM, .6", "FedACG")}
COARSE = partial(fedavg, batch=32, twice=True)
KERNELS = {  # of ResNet-20
    "FedAvg": COARSE,
    "12 of 23, metric, recycled": partial(luar, recycle=12, inner=COARSE),
    "12 of 23, metric, dropped": partial(luar, recycle=12, inner=COARSE, drop=True),
}


def few(seed: int) -> Problem:
    """10,000 pictures of CIFAR-10, dealt to 32 clients at random."""
    loaded = sets.load("cifar10")
    some = torch.randperm(len(loaded.targets), generator=torch.Generator().manual_seed(seed))[:10_000]
    loaded = replace(loaded, inputs=loaded.inputs[some], targets=loaded.targets[some])
    found = standard(loaded, "resnet20", 32, sets.IID(), seed)
    return replace(found, test=replace(found.test, indices=torch.arange(2_000)))


def alike() -> list[Arm]:
    """The rows of clients that are alike."""
    about = {"name": "alike", **EMNIST, "sample": 16, "split": "IID()", "falls": 2}
    dealt = partial(problem, "emnist_letters", "fedavg_cnn", 64, split=sets.IID())
    same: dict[str, Any] = {"setting": about, "narrow": False, "problem": dealt, "sample": 16, "minutes": 4.4}
    found: list[Arm] = [arm("", row, method, **same) for row, method in ALIKE.items()]
    about = {"name": "AG News, alike", **NEWS, "clients": 64, "sample": 16, "split": "Dirichlet(1.0)", "falls": 2}
    dealt = partial(problem, "ag_news", "fasttext", 64, split=patient(sets.Dirichlet(1.0, min_examples=2)))
    same = {"setting": about, "problem": dealt, "sample": 16, "minutes": 0.4}
    for row in ("FedAvg", "2 of 4, metric, recycled", "2 of 4, metric, dropped"):
        method = twice if row == "FedAvg" else partial(luar, recycle=1, inner=twice, drop="dropped" in row)
        found.append(news("fasttext", row.replace("2 of 4", "1 of 2"), method, **same))
    about = {"name": "ResNet-20", "data": "cifar10", "model": "resnet20", "clients": 32, "sample": 8, "split": "IID()"}
    about |= {"examples": 10_000, "tested": 2_000, "steps": 20, "batch": 32, "momentum": 0.9, "falls": 2}
    same = {"setting": about, "narrow": False, "rates": [0.2], "problem": few, "rounds": 100, "minutes": 30.0}
    return [*found, *(arm("", row, method, seeds=(0,), **same) for row, method in KERNELS.items())]


def arms() -> list[Arm]:
    found: list[Arm] = [arm("recycling", row, method, paper=p) for row, (method, p) in RECYCLING.items()]
    paper = ("as FedAvg", 0.17)
    for model, many, of, inner in (("fasttext", 1, 2, fedavg), ("text_transformer", 7, 10, adam)):
        over = partial(luar, recycle=many, inner=inner)
        recycled = news(model, f"{many} of {of}, metric, recycled", over, paper=paper)
        found += [news(model, "FedAvg", inner, paper=(82.66, 1.0)), recycled]
        found.append(news(model, f"{many} of {of}, metric, dropped", partial(over, drop=True)))
    found += [arm("recycling", row, method, seeds=(0,), **_own(row)) for row, method in OTHERS.items()]
    found += [arm("compared", row, method, paper=p, seeds=(0,)) for row, (method, p) in COMPARED.items()]
    for row, inner in OPTIMISERS.items():
        around = partial(luar, recycle=2, inner=inner, past=row not in THROUGH)
        if row not in COMPARED:
            found.append(arm("optimisers", row, inner, seeds=(0,)))
        own = f"{row}, 2 of 4 recycled"
        found.append(arm("optimisers", own, around, seeds=(0,), **_own(own)))
    return found + alike()


THROUGH = ("FedAvgM, .6", "FedACG")  # whose recycled updates went through the momentum again
OWN = ("3 of 4, metric, recycled", "FedAvgM, .6, 2 of 4 recycled", "FedACG, 2 of 4 recycled")


def _own(row: str) -> dict[str, Any]:
    """Smaller rates, to choose from, of rows that do not train at the paper's."""
    return {"rates": [0.001, 0.003, 0.01]} if row in OWN else {}


if __name__ == "__main__":
    once = [one for one in arms() if one.setting["name"] == "ResNet-20"]
    rows = units.thrice([one for one in arms() if one.setting["name"] != "ResNet-20"])
    units.main([*rows, *once], Path(__file__).parent / "results" / "claims.jsonl", str(__doc__))
