"""What else saves bytes in both directions: variants and rivals at about one percent of FedAvg's, on one setting.

That of ``curve.py`` on Fashion-MNIST: 100 clients, Dirichlet(0.1), 10 a round, the CNN of the FedAvg paper (582,026
parameters), 50 rounds of one local epoch, the start known at both ends. ``Averaged(..., 0.8)`` goes around every
method, so that each line has the trained model's accuracy and the average's. Seeds are 0 and 1. Every rival chooses its
rate of three, on seed 100 and for fewer rounds. Variants of transform coding share the rate that it chooses itself.

- ``both ways``: transform coding, what may be added to it, and methods of the literature with a downlink per client
- ``rivals``: a supermask, and a zeroth-order method that sends scalars
- ``everyone``: 10 of the clients, all of which take part in each round, so that LUAR can recycle downwards
- ``splits``: transform coding with 20,000 bytes a visit, dealt 1 : 1 to 1 : 8 between up and down
- ``computing``: 50 epochs of local training a client's visits, as fewer rounds of more epochs, or of more clients

Minutes are those of one idle core, about.

    python experiments/onepercent/search.py --list
    python experiments/onepercent/search.py --only splits --seed 0 --hours 2
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import curve
import units

import thinwire as tw
from thinwire.problem import Problem

FASHION = curve.GROUPS[0]
SETTING = {name: value for name, value in FASHION.setting().items() if name != "rate"}  # each row has its own
ROUNDS, SAMPLE, SEEDS = FASHION.rounds, FASHION.sample, (0, 1)
RATES = (0.02, 0.05, 0.1)
UP, DOWN = 4_000, 16_000  # bytes of a message, where nothing else is said
WITH = tw.PerClient(tw.TransformCoding(DOWN))

Making = Callable[[float, int], tw.Algorithm]


def problem(seed: int) -> Problem:
    return curve.problem(FASHION, seed)


def few(seed: int) -> Problem:
    """The first ten clients of the hundred, and the same test examples."""
    whole = problem(seed)
    return replace(whole, tasks=whole.tasks[:SAMPLE])


def fedavg(rate: float, rounds: int, epochs: float = 1, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(tw.LocalSGD(rate, epochs=epochs), **fields)


def coded(rate: float, rounds: int, **fields: Any) -> tw.Algorithm:
    return fedavg(rate, rounds, **{"up": tw.TransformCoding(UP), "down": WITH, **fields})


def split(up: int, down: int) -> Making:
    return partial(coded, up=tw.TransformCoding(up), down=tw.PerClient(tw.TransformCoding(down)))


def stc(rate: float, rounds: int, share: float) -> tw.Algorithm:
    return fedavg(rate, rounds, up=tw.ErrorFeedback(tw.STC(share)), down=tw.PerClient(tw.STC(share)))


def lbgm(rate: float, rounds: int, threshold: float) -> tw.Algorithm:
    return coded(rate, rounds, up=tw.LBGM(tw.TopK(0.01), threshold=threshold))


def luar(rate: float, rounds: int, recycle: int, both: bool = False, **fields: Any) -> tw.Algorithm:
    return tw.LUAR(fedavg(rate, rounds, **fields), recycle, both=both)


def fedpara(rate: float, rounds: int, ratio: float) -> tw.Algorithm:
    return tw.FedPara(coded(rate, rounds), ratio=ratio)


def fetchsgd(rate: float, rounds: int, cols: int, k: int) -> tw.Algorithm:
    return tw.FetchSGD(cols, k, local=tw.LocalSGD(rate))


def intrinsic(rate: float, rounds: int, opt: tw.Optimizer) -> tw.Algorithm:
    return tw.Intrinsic(5800, local=tw.LocalSGD(rate), opt=opt)


def flss(rate: float, rounds: int, rank: int, start: int) -> tw.Algorithm:
    return tw.FLSS(fedavg(rate, rounds), rank=rank, start=start)


def fedpm(rate: float, rounds: int, reset: int = 1, **fields: Any) -> tw.Algorithm:
    return tw.FedPM(tw.LocalAdam(rate), reset=reset, down=tw.Entropy(tw.Dense()), **fields)


def decomfl(rate: float, rounds: int, steps: int, directions: int) -> tw.Algorithm:
    return tw.DeComFL(steps, directions, local=tw.LocalSGD(rate))


CODED = "TransformCoding, per client"
VARIANTS: dict[str, Making] = {  # with the rate of CODED
    "the same as a stream": partial(coded, down=tw.EF21(tw.TransformCoding(DOWN))),
    "the same with error feedback": partial(coded, up=tw.ErrorFeedback(tw.TransformCoding(UP))),
    "the same with momentum at the server": partial(coded, opt=tw.Momentum(1.0, beta=0.5)),
    "Budget, per client": partial(coded, up=tw.Budget(UP), down=tw.PerClient(tw.Budget(DOWN))),
}
BOTH: dict[str, tuple[Making, float]] = {  # and the minutes of one training
    "STC(0.004), per client": (partial(stc, share=0.004), 6),
    "STC(0.01), per client": (partial(stc, share=0.01), 6),
    "LBGM(TopK(0.01)), .2, per client": (partial(lbgm, threshold=0.2), 6),
    "LUAR, 2 of 4, coded": (partial(luar, recycle=2, up=tw.TransformCoding(UP), down=WITH), 6),
    "FedPara, a quarter, coded": (partial(fedpara, ratio=0.25), 7),
    "FetchSGD(2000, 250)": (partial(fetchsgd, cols=2_000, k=250), 6),
    "Intrinsic(5800), momentum": (partial(intrinsic, opt=tw.Momentum(1.0, beta=0.6)), 9),
    "FLSS, 8 from round 10": (partial(flss, rank=8, start=10), 5),
}
RIVALS: dict[str, tuple[Making, float, tuple[float, ...]]] = {
    "FedPM": (fedpm, 12, (0.03, 0.1, 0.3)),
    "FedPM, counts of 10 rounds": (partial(fedpm, reset=10), 12, (0.03, 0.1, 0.3)),
    "DeComFL(5, 20)": (partial(decomfl, steps=5, directions=20), 10, (0.0003, 0.001, 0.003)),
    "DeComFL(20, 10)": (partial(decomfl, steps=20, directions=10), 20, (0.0003, 0.001, 0.003)),
}
EVERYONE: dict[str, Making] = {
    "FedAvg": fedavg,
    "LUAR, 2 of 4": partial(luar, recycle=2),
    "LUAR, 2 of 4, both": partial(luar, recycle=2, both=True),
    "LUAR, 3 of 4, both": partial(luar, recycle=3, both=True),
    "LUAR, 3 of 4, both, coded": partial(luar, recycle=3, both=True, up=tw.TransformCoding(UP)),
    "TransformCoding, stream": partial(coded, down=tw.EF21(tw.TransformCoding(DOWN))),
}
SPLITS = {f"1 : {n}": (20_000 // (1 + n), 20_000 * n // (1 + n)) for n in (1, 2, 4, 8)}
PLAIN_AND_CODED: dict[str, Callable[..., tw.Algorithm]] = {"FedAvg": fedavg, "coded": coded}
COMPUTING = ((2, 25, SAMPLE), (5, 10, SAMPLE), (1, 25, 2 * SAMPLE))  # epochs, rounds, clients in a round


def arm(name: str, row: str, method: Making, minutes: float, **fields: Any) -> units.Federated:
    given: dict[str, Any] = {
        "setting": {**SETTING, "name": name},
        "row": row,
        "method": lambda rate, rounds: tw.Averaged(method(rate, rounds), 0.8),
        "rates": RATES,
        "problem": problem,
        "rounds": ROUNDS,
        "sample": SAMPLE,
        "seeds": SEEDS,
        "minutes": minutes,
        "evaluate_every": 2,
        "start": "known",
    }
    return units.Federated(**(given | fields))


def arms() -> list[units.Arm]:
    best = arm("both ways", CODED, coded, 6)
    follows: dict[str, Any] = {"rates": (), "follows": best}
    found = [best, *(arm("both ways", row, method, 6, **follows) for row, method in VARIANTS.items())]
    found += [arm("both ways", row, method, minutes) for row, (method, minutes) in BOTH.items()]
    found += [arm("rivals", row, method, minutes, rates=rates) for row, (method, minutes, rates) in RIVALS.items()]
    all_take_part: dict[str, Any] = {
        "setting": {**SETTING, "name": "everyone", "clients": SAMPLE},
        "problem": few,
    }
    found += [arm("everyone", row, method, 5, **all_take_part) for row, method in EVERYONE.items()]
    found += [arm("splits", row, split(*each), 6, **follows) for row, each in SPLITS.items()]
    for epochs, rounds, sample in COMPUTING:
        for row, method in PLAIN_AND_CODED.items():
            name = f"{row}, {epochs} epochs, {rounds} rounds of {sample}"
            setting = {**SETTING, "name": "computing", "sample": sample}
            about: dict[str, Any] = {"setting": setting, "rounds": rounds, "sample": sample}
            found.append(arm("computing", name, partial(method, epochs=epochs), 5, **about))
    return list(found)


if __name__ == "__main__":
    units.main(arms(), Path(__file__).parent / "results" / "search.jsonl", str(__doc__))
