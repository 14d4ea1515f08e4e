"""What else saves bytes in both directions: every rival at about one percent of FedAvg's, on one setting.

Fashion-MNIST, 100 clients, Dirichlet(0.1), 10 a round, the CNN of the FedAvg paper (582,026 parameters), 50 rounds of
one local epoch of batches of 10, the start known at both ends. ``Averaged(..., 0.8)`` goes around every method, so that
each line has the trained model's accuracy and the average's. Rates are chosen for each row on a seed of its own.

- ``both ways``: links in both directions, and methods that save in one or both
- ``splits``: transform coding with 20,000 bytes a visit, dealt 1 : 1 to 1 : 8 between up and down
- ``computing``: 50 epochs of local training a client's visits, as fewer rounds of more epochs
- ``rivals``: a supermask, and a zeroth-order method that sends scalars

    python experiments/onepercent/search.py --list
    python experiments/onepercent/search.py --only splits --seed 0 --hours 2
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import units

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import Problem, standard

ROUNDS, SAMPLE = 50, 10
SETTING = {"data": "fashion_mnist", "model": "fedavg_cnn", "clients": 100, "sample": SAMPLE, "split": "Dirichlet(0.1)"}
RATES = (0.02, 0.05, 0.1)

Making = Callable[[float, int], tw.Algorithm]


@cache
def problem(seed: int) -> Problem:
    return standard("fashion_mnist", "fedavg_cnn", 100, units.patient(sets.Dirichlet(0.1, min_examples=2)), seed)


def local(rate: float, epochs: float = 1) -> tw.LocalSGD:
    return tw.LocalSGD(rate, batch=10, epochs=epochs)


def fedavg(rate: float, rounds: int, epochs: float = 1, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(local(rate, epochs), **fields)


def coded(rate: float, rounds: int, up: int, down: int, epochs: float = 1, feedback: bool = False) -> tw.Algorithm:
    link: tw.Link = tw.TransformCoding(up)
    link = tw.ErrorFeedback(link) if feedback else link
    return fedavg(rate, rounds, epochs, up=link, down=tw.EF21(tw.TransformCoding(down)))


def stc(rate: float, rounds: int, share: float) -> tw.Algorithm:
    return fedavg(rate, rounds, up=tw.ErrorFeedback(tw.STC(share)), down=tw.EF21(tw.STC(share)))


def fetchsgd(rate: float, rounds: int, cols: int, k: int) -> tw.Algorithm:
    return tw.FetchSGD(cols, k, local=local(rate))


def intrinsic(rate: float, rounds: int, opt: tw.Optimizer) -> tw.Algorithm:
    return tw.Intrinsic(5800, local=local(rate), opt=opt)


def luar(rate: float, rounds: int, recycle: int) -> tw.Algorithm:
    return tw.LUAR(fedavg(rate, rounds), recycle)


def lbgm(rate: float, rounds: int, threshold: float) -> tw.Algorithm:
    return fedavg(rate, rounds, up=tw.LBGM(tw.TopK(0.01), threshold=threshold), down=tw.EF21(tw.TopK(0.01)))


def flss(rate: float, rounds: int, rank: int, start: int) -> tw.Algorithm:
    return tw.FLSS(fedavg(rate, rounds), rank=rank, start=start)


def fedpara(rate: float, rounds: int, ratio: float) -> tw.Algorithm:
    return tw.FedPara(coded(rate, rounds, 4_000, 16_000), ratio=ratio)


def fedpm(rate: float, rounds: int, epochs: float = 1, reset: int = 1) -> tw.Algorithm:
    return tw.FedPM(tw.LocalAdam(rate, batch=10, epochs=epochs), reset=reset, down=tw.Entropy(tw.Dense()))


def decomfl(rate: float, rounds: int, steps: int, directions: int) -> tw.Algorithm:
    return tw.DeComFL(steps, directions, local=tw.LocalSGD(rate, batch=32))


BOTH: dict[str, tuple[Making, float]] = {
    "FedAvg": (fedavg, 4),
    "TransformCoding(4000) up, 16000 down": (partial(coded, up=4_000, down=16_000), 5),
    "the same with error feedback": (partial(coded, up=4_000, down=16_000, feedback=True), 5),
    "STC(0.001)": (partial(stc, share=0.001), 5),
    "STC(0.004)": (partial(stc, share=0.004), 5),
    "STC(0.01)": (partial(stc, share=0.01), 5),
    "FetchSGD(1000, 500)": (partial(fetchsgd, cols=1_000, k=500), 6),
    "FetchSGD(2000, 250)": (partial(fetchsgd, cols=2_000, k=250), 6),
    "Intrinsic(5800)": (partial(intrinsic, opt=tw.SGD(1.0)), 8),
    "Intrinsic(5800), momentum": (partial(intrinsic, opt=tw.Momentum(1.0, beta=0.6)), 8),
    "LBGM(TopK(0.01)), .2": (partial(lbgm, threshold=0.2), 5),
    "LBGM(TopK(0.01)), .5": (partial(lbgm, threshold=0.5), 5),
    "LUAR, 2 of 4": (partial(luar, recycle=2), 4),
    "LUAR, 3 of 4": (partial(luar, recycle=3), 4),
    "FLSS, 8 from round 10": (partial(flss, rank=8, start=10), 5),
    "FLSS, 20 from round 20": (partial(flss, rank=20, start=20), 5),
    "FedPara, a quarter, and transform coding": (partial(fedpara, ratio=0.25), 6),
}
SPLITS = {f"1 : {n}": (20_000 // (1 + n), 20_000 * n // (1 + n)) for n in (1, 2, 3, 4, 5, 6, 7, 8)}
COMPUTING = {1: 50, 2: 25, 5: 10}


def arm(name: str, row: str, method: Making, minutes: float, **fields: Any) -> units.Federated:
    given: dict[str, Any] = {
        "setting": {"name": name, **SETTING},
        "row": row,
        "method": lambda rate, rounds: tw.Averaged(method(rate, rounds), 0.8),
        "rates": RATES,
        "problem": problem,
        "rounds": ROUNDS,
        "sample": SAMPLE,
        "minutes": minutes,
        "evaluate_every": 2,
        "start": "known",
    }
    return units.Federated(**(given | fields))


def arms() -> list[units.Arm]:
    found: list[units.Arm] = [arm("both ways", row, method, minutes) for row, (method, minutes) in BOTH.items()]
    best = next(one for one in found if one.row.startswith("TransformCoding"))
    follows: dict[str, Any] = {"rates": (), "follows": best}
    found += [arm("splits", row, partial(coded, up=up, down=down), 5, **follows) for row, (up, down) in SPLITS.items()]
    for epochs, rounds in COMPUTING.items():
        for row, method in (("FedAvg", fedavg), ("coded", partial(coded, up=4_000, down=16_000))):
            around = partial(method, epochs=epochs)
            found.append(arm("computing", f"{row}, {epochs} epochs, {rounds} rounds", around, 5, rounds=rounds))
    for row, method, minutes, rates in (
        ("FedPM", fedpm, 12.0, (0.03, 0.1, 0.3)),
        ("FedPM, 5 epochs", partial(fedpm, epochs=5), 60.0, (0.03, 0.1, 0.3)),
        ("FedPM, counts of 10 rounds", partial(fedpm, reset=10), 12.0, (0.03, 0.1, 0.3)),
        ("DeComFL(5, 20)", partial(decomfl, steps=5, directions=20), 6.0, (0.0003, 0.001, 0.003)),
        ("DeComFL(20, 10)", partial(decomfl, steps=20, directions=10), 12.0, (0.0003, 0.001, 0.003)),
    ):
        found.append(arm("rivals", row, method, minutes, rates=rates))
    return found


if __name__ == "__main__":
    units.main(arms(), Path(__file__).parent / "results" / "search.jsonl", str(__doc__))
