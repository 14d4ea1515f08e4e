"""Accuracy against the bytes of a whole run, up and down together: the README's first picture.

Methods from all of FedAvg's bytes to a thousandth of them, at equal rounds. All headers are billed, and FedAvg's first
contacts; all other methods start from a model that is known from the seed. Around every method an average is served
(``Averaged``, no byte), so that a line has both figures: L5, the mean of the last five evaluations, and EMA, the served
average at the end.

- ``Fashion-MNIST``: 100 clients, Dirichlet(0.1), 10 a round, 50 rounds of the CNN of the FedAvg paper
- ``CIFAR-10``: 100 clients, Dirichlet(0.3), 10 a round, 60 rounds of a CNN with group norm, crops and flips
- ``EMNIST letters``: 100 clients, Dirichlet(0.1), 10 a round, 60 rounds of the CNN of the FedAvg paper
- ``Shakespeare``: 100 roles, 10 a round, 60 rounds of a character transformer, test pieces of all roles

A set's learning rate is that of three by which FedAvg does best on seed 100 in two fifths of the rounds. ``Auto`` and
most others follow it. FetchSGD and Intrinsic, whose steps are longer, choose theirs of shares of it. FedPM and DeComFL
do not step along gradients of weights, and choose of three of their own.

``Auto`` is given a share of FedAvg's bytes and nothing else: seven budgets. Its rivals at one percent are FetchSGD,
Intrinsic, STC and LUAR and LBGM with coded messages, each at three settings of about the bytes of ``Auto(0.01)``, .98 %
of FedAvg's. LBGM sends less than that where it recycles: .83 to .99 %, which only a training says. Both have a setting
with error feedback and as many bytes upwards as down, beside two without and with a fifth upwards. STC's positions are
coded, so its bytes depend on what moves: trainings on Fashion-MNIST, at a rate of 0.1, sent 1.03 to 1.09 %, and lines
of other sets have theirs. The best setting on seed 100, by the mean of the last five evaluations after half of the
rounds, is trained in whole, and its served average is what stands beside Auto's. So nothing but the share was told to
``Auto``, and each rival has had five trials or three. Two cannot come so low:

- FLSS refuses ``down=PerClient(...)``, as its clients go by all that they have heard. Over a stream of coded
  differences a client that was away is sent the model and the basis: more than FedAvg's bytes where ten of a hundred
  take part.
- ``LUAR(..., both=True)`` refuses a coded downlink, as clients repeat the server's step. LUAR with coded messages saves
  upwards alone by recycling.

They and others whose broadcasts are dense are trained at their own bytes, on Fashion-MNIST alone, for the picture.
``Auto, detached`` is Auto with clients that begin ahead by a half of what they owe (``Detached``). ``Auto(0.004)`` does
so by itself, and ``Auto(0.01)`` does not. ``Auto`` is without it at every budget. Both are trained on all sets at two
fifths of a percent and less. Lines of ``Auto, 0.004`` and below it that are older than this default had ``detach=0.0``
added to their expressions.

What says most comes first: FedAvg and ``Auto(0.01)`` on all sets, ``Auto(0.002)`` for twice the rounds and the other
budgets, the rivals on all sets with seed 0, and the best of them with two seeds more. Minutes are those of one idle
core, about.

    python experiments/onepercent/curve.py --list
    python experiments/onepercent/curve.py --only "Fashion-MNIST" --seed 0 --hours 2
    python experiments/onepercent/curve.py --picture curve.svg --only "Fashion-MNIST"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import picture
import record
import units
from arms import Arm, Federated
from groups import GROUPS, Group, problem
from methods import METHODS, RIVALS, Make

import thinwire as tw

INTO = Path(__file__).parent / "results" / "curve.jsonl"


def served(make: Make, group: Group, rate: float, rounds: int) -> tw.Algorithm | tw.Auto:
    """The method, with an average served beside it; Auto serves one anyway."""
    made = make(group, tw.LocalSGD(rate))
    return made if isinstance(made, tw.Auto) else tw.Averaged(made)


def arm(group: Group, row: str, name: str, seeds: Sequence[int] = (), times: int = 1) -> Federated:
    """A row at one setting, and at the rate of its first setting or of FedAvg; of ``times`` as many rounds."""
    way = METHODS[row]
    first = next(iter(way.settings)) if way.rates else ""
    rates = group.rates if row == "FedAvg" else way.tried(group) if name == first else ()
    return Federated(
        setting=group.setting(),
        row=", ".join(filter(None, (row, name))) + (f", {times} times the rounds" if times > 1 else ""),
        method=partial(served, way.settings[name], group),
        rates=rates,
        follows=None if rates else arm(group, row if way.rates else "FedAvg", first),
        problem=partial(problem, group),
        rounds=group.rounds * times,
        sample=group.sample,
        seeds=seeds,
        minutes=group.minutes * way.effort * times,
        evaluate_every=2,
        start=way.start,
        tuning=0.4 if row == "FedAvg" else 0.5,
    )


def best(group: Group, row: str, seeds: Sequence[int]) -> Federated:
    """A rival at the best of its three settings; rates are tried at the first."""
    settings = [arm(group, row, name) for name in METHODS[row].settings]
    return replace(settings[0], row=f"{row}, the best", seeds=seeds, best_of=settings)


def arms() -> list[Arm]:
    """What says most comes first."""
    fashion, more = GROUPS[0], (1, 2)
    main = [(group, *each) for group in GROUPS for each in (("FedAvg", ""), ("Auto", "0.01"))]
    budgets = [name for name in METHODS["Auto"].settings if name != "0.01"]
    rivals = {group: [best(group, row, (0,)) for row in RIVALS] for group in GROUPS}
    others = [(row, way) for row, way in METHODS.items() if row != "FedAvg" and "Auto" not in row and not way.rival]

    found = [arm(*each, seeds=(0,)) for each in main]
    found += [arm(*each, seeds=more) for each in main]
    found += [arm(fashion, "Auto", "0.002", (0, 1, 2), times=2)]
    found += [arm(fashion, "Auto", name, (0,)) for name in budgets]
    found += [one for some in rivals.values() for one in some]
    for some in rivals.values():
        found.append(replace(some[0], row="the best of the rivals", best_of=some, by=0, seeds=more))
    found += [arm(fashion, row, name, (0,)) for row, way in others for name in way.settings]
    found += [arm(fashion, "Auto", name, more) for name in budgets]
    for seeds, shares in ((0,), ("0.002", "0.001", "0.004", "0.01")), (more, ("0.002", "0.001", "0.004")):
        pairs = [(name, group) for name in shares for group in GROUPS]
        found += [arm(group, row, name, seeds) for name, group in pairs for row in ("Auto, detached", "Auto")]
    found.append(arm(fashion, "Auto, detached", "0.01", more))  # for the picture
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--only", action="append")
    asked, _ = parser.parse_known_args()
    if asked.picture is not None:
        picture.draw(record.read(asked.into), asked.only, asked.picture)
    else:
        units.main(arms(), INTO, f"{__doc__}\n--picture FILE draws what is there, and trains nothing.")


if __name__ == "__main__":
    main()
