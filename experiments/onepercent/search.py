"""What else saves bytes in both directions: variants and rivals at about one percent of FedAvg's, on one setting.

That of ``curve.py`` on Fashion-MNIST: 100 clients, Dirichlet(0.1), 10 a round, the CNN of the FedAvg paper (582,026
parameters), 50 rounds of one local epoch, the start known at both ends. ``Averaged(..., 0.8)`` goes around every
method, so that each line has the trained model's accuracy and the average's. A visit may take 46,560 bytes, as with
``Auto(0.01)``: a hundredth of FedAvg's. Of a group every row is trained with seed 0, and the best that is coded with
seeds 1 and 2, beside FedAvg and plain transform coding with all three. The rate is FedAvg's best of three (on seed 100,
for fewer rounds). Rows for which it means something else have three of their own.

- ``both ways``: FedAvg; transform coding, and what may be added to it: error feedback at the client, momentum at the
  server and at the client, products of factors (FedPara), STC and LBGM with a downlink per client
- ``splits``: transform coding, dealt 1 : 1 to 1 : 16 between up and down
- ``computing``: fewer rounds of more epochs or of more clients, FedAvg and transform coding with messages so much
  larger that a run's bytes are equal. Computing is equal, 500 epochs of a client's examples in all, but where twice as
  many clients send half as many bytes each, for as many rounds, which is twice the computing. The last five evaluations
  are a fifth of the training, but half of it where there are ten rounds: there the served average says more
- ``everyone``: 10 of the clients, all of which take part in each round, so that LUAR can recycle downwards
- ``rivals``: a supermask, whose masks are about a bit a parameter: it takes more than one percent; and a zeroth-order
  method that sends scalars. The bytes of the latter would do for dozens of times as many rounds. It has as many as take
  a quarter of an hour, since every direction is random bits for the whole model, drawn again at both ends

The methods of the literature with settings at one percent (FetchSGD, Intrinsic, STC, LUAR, LBGM) are in ``curve.py``.
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
SETTING, ROUNDS, SAMPLE = FASHION.setting(), FASHION.rounds, FASHION.sample
VISIT = 46_560  # bytes up and down, of two times 582,026 numbers of 4 bytes
MISSED = 8.2  # messages of a stream that a client gets in a visit, on average, where ten of a hundred take part

Making = Callable[[float, int], tw.Algorithm]


def problem(seed: int) -> Problem:
    return curve.problem(FASHION, seed)


def few(seed: int) -> Problem:
    """The first ten clients of the hundred, and the same test examples."""
    whole = problem(seed)
    return replace(whole, tasks=whole.tasks[:SAMPLE])


def fedavg(rate: float, rounds: int, epochs: float = 1, momentum: float = 0.0, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(tw.LocalSGD(rate, epochs=epochs, momentum=momentum), **fields)


def links(visit: float = VISIT, split: float = 2) -> dict[str, tw.Link]:
    """Transform coding with so many bytes a visit, dealt 1 : ``split``."""
    up = round(visit / (1 + split))
    return {"up": tw.TransformCoding(up), "down": tw.PerClient(tw.TransformCoding(round(visit) - up))}


def coded(rate: float, rounds: int, visit: float = VISIT, split: float = 2, **fields: Any) -> tw.Algorithm:
    return fedavg(rate, rounds, **{**links(visit, split), **fields})


def luar(rate: float, rounds: int, recycle: int, both: bool = False, **fields: Any) -> tw.Algorithm:
    return tw.LUAR(fedavg(rate, rounds, **fields), recycle, both=both)


def fedpara(rate: float, rounds: int, ratio: float) -> tw.Algorithm:
    return tw.FedPara(coded(rate, rounds), ratio=ratio)


def fedpm(rate: float, rounds: int, reset: int = 1) -> tw.Algorithm:
    return tw.FedPM(tw.LocalAdam(rate), reset=reset, down=tw.Entropy(tw.Dense()))


def decomfl(rate: float, rounds: int, steps: int, directions: int) -> tw.Algorithm:
    return tw.DeComFL(steps, directions, local=tw.LocalSGD(rate))


UP = links()["up"]
STREAM = tw.EF21(tw.TransformCoding(round(VISIT * 2 / 3 / MISSED)))
VARIANTS: dict[str, Making] = {  # at FedAvg's rate
    "TransformCoding, a stream": partial(coded, down=STREAM),
    "TransformCoding, error feedback": partial(coded, up=tw.ErrorFeedback(UP)),
    "TransformCoding, server momentum .5": partial(coded, opt=tw.Momentum(0.5, beta=0.5)),
    "TransformCoding, server momentum .9": partial(coded, opt=tw.Momentum(0.1, beta=0.9)),
    "TransformCoding, server momentum .5, steps twice as long": partial(coded, opt=tw.Momentum(1.0, beta=0.5)),
    "Budget, per client": partial(coded, up=tw.Budget(VISIT // 3), down=tw.PerClient(tw.Budget(VISIT - VISIT // 3))),
    "STC(0.1) and STC(0.11), per client": partial(
        fedavg, up=tw.ErrorFeedback(tw.STC(0.1)), down=tw.PerClient(tw.STC(0.11))
    ),
    "LBGM, .2, over TransformCoding": partial(coded, up=tw.LBGM(UP, threshold=0.2)),
    "LUAR, 2 of 4, over TransformCoding": partial(luar, recycle=2, **links()),
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
    "LUAR, 3 of 4, both, coded up": partial(luar, recycle=3, both=True, up=UP),
    "TransformCoding, a stream": partial(coded, down=tw.EF21(tw.TransformCoding(round(VISIT * 2 / 3)))),
}
SPLITS = (1, 2, 4, 8, 16)
MASKS = 2 * FASHION.minutes
SCALARS = ((1, 400, 14.0), (5, 100, 15.0))  # steps, as many rounds as are affordable, and the minutes of a training
COMPUTING = (  # epochs, rounds, clients in a round, bytes a visit
    (2, 25, SAMPLE, 2 * VISIT),
    (5, 10, SAMPLE, 5 * VISIT),
    (1, 25, 2 * SAMPLE, VISIT),
    (1, 50, 2 * SAMPLE, VISIT // 2),
)


def arm(name: str, row: str, method: Making, **fields: Any) -> units.Federated:
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
    return units.Federated(**(given | fields))


def averaged(method: Making, rate: float, rounds: int) -> tw.Algorithm:
    return tw.Averaged(method(rate, rounds), 0.8)


def best(of: list[units.Federated]) -> units.Federated:
    """The best of a group with seed 0, with two more."""
    return replace(of[0], row="the best", best_of=of, by=0, seeds=(1, 2))


def arms() -> list[units.Arm]:
    """What says most comes first."""
    plain = arm("both ways", "FedAvg", fedavg, rates=FASHION.rates, seeds=units.SEEDS, minutes=FASHION.minutes)
    follows: dict[str, Any] = {"follows": plain}
    both = [arm("both ways", row, method, **follows) for row, method in VARIANTS.items()]
    both += [arm("both ways", row, method, rates=rates, tuning=0.3) for row, (method, rates) in OWN.items()]
    splits = [arm("splits", f"1 : {down}", partial(coded, split=down), **follows) for down in SPLITS]

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
    ten = arm("everyone", "FedAvg", fedavg, rates=FASHION.rates, seeds=units.SEEDS, **all_take_part)
    everyone = [arm("everyone", row, method, follows=ten, **all_take_part) for row, method in EVERYONE.items()]

    mask = arm("rivals", "FedPM", fedpm, rates=(0.03, 0.1, 0.3), tuning=0.3, minutes=MASKS)
    rivals = [mask, arm("rivals", "FedPM, counts of 10 rounds", partial(fedpm, reset=10), follows=mask, minutes=MASKS)]
    for steps, rounds, minutes in SCALARS:
        name, rates = f"DeComFL({steps}, 20), {rounds} rounds", (0.0003, 0.001, 0.003)
        about = {"rounds": rounds, "minutes": minutes, "tuning": 0.1, "rates": rates, "evaluate_every": 10}
        rivals.append(arm("rivals", name, partial(decomfl, steps=steps, directions=20), **about))

    sent = [one for one in computing if not one.row.startswith("FedAvg")]
    thin = [one for one in everyone if "coded" in one.row or "TransformCoding" in one.row]
    found = [plain, arm("both ways", "TransformCoding", coded, **follows, seeds=units.SEEDS)]
    found += [*both, *splits, *computing, ten, *everyone, *rivals]
    return [*found, best(both), best(splits), best(sent), best(thin)]


if __name__ == "__main__":
    units.main(arms(), Path(__file__).parent / "results" / "search.jsonl", str(__doc__))
