"""What else saves bytes in both directions: variants and rivals at about one percent of FedAvg's, on one setting.

That of ``curve.py`` on Fashion-MNIST: 100 clients, Dirichlet(0.1), 10 a round, the CNN of the FedAvg paper (582,026
parameters), 50 rounds of one local epoch, the start known at both ends. ``Averaged(..., 0.8)`` goes around every
method, so that each line has the trained model's accuracy and the average's. A visit may take 46,560 bytes, as with
``Auto(0.01)``: a hundredth of FedAvg's. Every row is trained with seed 0, FedAvg and transform coding with seeds 1 and
2 too, and so is the best of the others at equal computing. The rate is FedAvg's best of three (on seed 100, for fewer
rounds). Rows for which it means something else have three of their own.

- ``both ways``: FedAvg; transform coding, with error feedback at the client and a downlink per client, dealt 1 : 2; it
  without error feedback, and over a stream; momentum at the server and at the client; products of factors (FedPara);
  another codec (``Budget``)
- ``splits``: the same transform coding, dealt 2 : 1, 1 : 1, 1 : 4 and 1 : 8 between up and down
- ``computing``: fewer rounds of more epochs or of more clients, FedAvg and transform coding with messages so much
  larger that a run's bytes are equal. Computing is equal, 500 epochs of a client's examples in all. The last five
  evaluations are a fifth of the training, but half of it where there are ten rounds: there the served average says more
- ``everyone``: 10 of the clients, all of which take part in each round, so that LUAR can recycle downwards

The methods of the literature with settings at one percent (FetchSGD, Intrinsic, STC, LUAR, LBGM) are in ``curve.py``.
So are a supermask (FedPM), whose masks are about a bit a parameter, which is more, and a zeroth-order method that sends
scalars (DeComFL). Its bytes would do for dozens of times as many rounds as the 50 that all have, and its computing for
fewer: every direction is random bits for the whole model, drawn again at both ends. Minutes are those of one idle core,
about.

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
import groups
import units
from arms import SEEDS, Arm, Federated

import thinwire as tw
from thinwire.problem import Problem

FASHION = groups.GROUPS[0]
SETTING, ROUNDS, SAMPLE = FASHION.setting(), FASHION.rounds, FASHION.sample
VISIT = 46_560  # bytes up and down, of two times 582,026 numbers of 4 bytes
MISSED = 8.2  # messages of a stream that a client gets in a visit, on average, where ten of a hundred take part

Making = Callable[[float, int], tw.Algorithm]


def problem(seed: int) -> Problem:
    return groups.problem(FASHION, seed)


def few(seed: int) -> Problem:
    """The first ten clients of the hundred, and the same test examples."""
    whole = problem(seed)
    return replace(whole, tasks=whole.tasks[:SAMPLE])


def fedavg(rate: float, rounds: int, epochs: float = 1, momentum: float = 0.0, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(tw.LocalSGD(rate, epochs=epochs, momentum=momentum), **fields)


def links(visit: float = VISIT, split: float = 2) -> dict[str, tw.Link]:
    """Transform coding with so many bytes a visit, dealt 1 : ``split``, and error feedback upwards."""
    up = round(visit / (1 + split))
    down = tw.PerClient(tw.TransformCoding(round(visit) - up))
    return {"up": tw.ErrorFeedback(tw.TransformCoding(up)), "down": down}


def coded(rate: float, rounds: int, visit: float = VISIT, split: float = 2, **fields: Any) -> tw.Algorithm:
    return fedavg(rate, rounds, **{**links(visit, split), **fields})


def luar(rate: float, rounds: int, recycle: int, both: bool = False, **fields: Any) -> tw.Algorithm:
    return tw.LUAR(fedavg(rate, rounds, **fields), recycle, both=both)


def fedpara(rate: float, rounds: int, ratio: float) -> tw.Algorithm:
    return tw.FedPara(coded(rate, rounds), ratio=ratio)


STREAM = tw.EF21(tw.TransformCoding(round(VISIT * 2 / 3 / MISSED)))
BUDGET = {"up": tw.ErrorFeedback(tw.Budget(VISIT // 3)), "down": tw.PerClient(tw.Budget(VISIT - VISIT // 3))}
VARIANTS: dict[str, Making] = {  # at FedAvg's rate
    "TransformCoding, no error feedback": partial(coded, up=tw.TransformCoding(VISIT // 3)),
    "TransformCoding, a stream": partial(coded, down=STREAM),
    "TransformCoding, server momentum .5": partial(coded, opt=tw.Momentum(0.5, beta=0.5)),
    "TransformCoding, server momentum .9": partial(coded, opt=tw.Momentum(0.1, beta=0.9)),
    "Budget, per client": partial(coded, **BUDGET),
}
OWN: dict[str, tuple[Making, tuple[float, ...]]] = {  # with the rates to choose from
    "TransformCoding, local momentum .9": (partial(coded, momentum=0.9), (0.005, 0.01, 0.02)),
    "FedPara, a quarter": (partial(fedpara, ratio=0.25), FASHION.rates),
    "FedPara, a half": (partial(fedpara, ratio=0.5), FASHION.rates),
}
EVERYONE: dict[str, Making] = {  # at the rate of FedAvg among them; a client misses nothing
    "LUAR, 2 of 4": partial(luar, recycle=2),
    "LUAR, 2 of 4, both": partial(luar, recycle=2, both=True),
    "LUAR, 3 of 4, both": partial(luar, recycle=3, both=True),
    "LUAR, 3 of 4, both, coded up": partial(luar, recycle=3, both=True, up=links()["up"]),
    "TransformCoding, a stream": partial(coded, down=tw.EF21(tw.TransformCoding(round(VISIT * 2 / 3)))),
}
SPLITS = (0.5, 1, 4, 8)  # 1 : 2 is the first of the rows
COMPUTING = (  # epochs, rounds, clients in a round, bytes a visit
    (2, 25, SAMPLE, 2 * VISIT),
    (5, 10, SAMPLE, 5 * VISIT),
    (1, 25, 2 * SAMPLE, VISIT),
)


def arm(name: str, row: str, method: Making, **fields: Any) -> Federated:
    given: dict[str, Any] = {
        "setting": {**SETTING, "name": name},
        "row": row,
        "method": partial(averaged, method),
        "problem": problem,
        "rounds": ROUNDS,
        "sample": SAMPLE,
        "seeds": (0,),
        "minutes": 1.3 * FASHION.minutes,
        "evaluate_every": max(1, fields.get("rounds", ROUNDS) // 25),
        "start": "known",
    }
    return Federated(**(given | fields))


def averaged(method: Making, rate: float, rounds: int) -> tw.Algorithm:
    return tw.Averaged(method(rate, rounds), 0.8)


def best(of: list[Federated]) -> Federated:
    """The best of some rows with seed 0, with two more."""
    return replace(of[0], row="the best", best_of=of, by=0, seeds=(1, 2))


def arms() -> list[Arm]:
    """What says most comes first."""
    plain = arm("both ways", "FedAvg", fedavg, rates=FASHION.rates, seeds=SEEDS, minutes=FASHION.minutes)
    follows: dict[str, Any] = {"follows": plain}
    both = [arm("both ways", row, method, **follows) for row, method in VARIANTS.items()]
    both += [arm("both ways", row, method, rates=rates, tuning=0.3) for row, (method, rates) in OWN.items()]
    ratio = lambda down: f"1 : {down:g}" if down >= 1 else f"{1 / down:g} : 1"  # noqa: E731
    splits = [arm("splits", ratio(down), partial(coded, split=down), **follows) for down in SPLITS]

    computing = []
    for epochs, rounds, sample, visit in COMPUTING:
        longer = epochs * rounds * sample / (ROUNDS * SAMPLE)
        about = {"rounds": rounds, "sample": sample, "setting": {**SETTING, "name": "computing", "sample": sample}}
        name = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}, {rounds} rounds of {sample}"
        for row, method in (("FedAvg", fedavg), ("TransformCoding", partial(coded, visit=visit))):
            made = partial(method, epochs=epochs)
            minutes = longer * FASHION.minutes * (1.0 if row == "FedAvg" else 1.3)
            computing.append(arm("computing", f"{row}, {name}", made, **follows, **about, minutes=minutes))

    all_take_part: dict[str, Any] = {
        "setting": {**SETTING, "name": "everyone", "clients": SAMPLE},
        "problem": few,
    }
    ten = arm("everyone", "FedAvg", fedavg, rates=FASHION.rates, **all_take_part)
    everyone = [arm("everyone", row, method, follows=ten, **all_take_part) for row, method in EVERYONE.items()]

    found = [plain, arm("both ways", "TransformCoding", coded, **follows, seeds=SEEDS)]
    found += [*both, *splits, *computing, ten, *everyone]
    return [*found, best([*both, *splits])]


if __name__ == "__main__":
    units.main(arms(), Path(__file__).parent / "results" / "search.jsonl", str(__doc__))
