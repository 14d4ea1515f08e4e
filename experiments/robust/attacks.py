"""What rules in place of the mean buy under attack, and what they cost without one.

The digits that come with scikit-learn, ten clients, all of them in each of 25 rounds, a network of 4,810 parameters.
Two of the ten are hostile. Each rule is tried under each attack, and without one, with dense updates, top-k with error
feedback, LBGM and Auto. The last attack is one on what a link remembers: on the multiplier of LBGM, on the residual of
error feedback. Rules are told of two hostile clients; Bulyan can bear one among ten.

    python experiments/robust/attacks.py [--only dense --only top-k --only LBGM --only Auto] [--split iid]
        [--attack none] [--rule "Median()"] [--rounds 25] [--seeds 1] [--into experiments/robust/results]

Each method has a file of its own in the folder ``--into``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire.data import IID, Dirichlet, Split

CLIENTS = 10
SPLITS: dict[str, Split] = {"iid": IID(), "Dirichlet(0.3)": Dirichlet(0.3)}
LOCAL = tw.LocalSGD(0.3)
METHODS: dict[str, record.Method] = {
    "dense": tw.FedAvg(LOCAL),
    "top-k": tw.FedAvg(LOCAL, up=tw.ErrorFeedback(tw.TopK(0.1))),
    "LBGM": tw.FedAvg(LOCAL, up=tw.LBGM(threshold=0.4)),
    "Auto": tw.Auto(0.1, local=LOCAL),
}
RULES: dict[str, dict[str, Any]] = {
    "Mean()": {},
    'clip="auto"': {"clip": "auto"},
    **{
        repr(rule): {"aggregate": rule}
        for rule in (
            tw.Median(),
            tw.TrimmedMean(0.2),
            tw.Krum(2),
            tw.MultiKrum(2),
            tw.Bulyan(1),
            tw.GeometricMedian(),
            tw.NormClip(),
            tw.CenteredClip(),
        )
    },
}
ATTACKS: dict[str, tw.Attack | None] = {
    "none": None,
    "SignFlip": tw.SignFlip(0.2, scale=10),
    "GaussianNoise": tw.GaussianNoise(0.2, scale=10),
    "ALIE": tw.ALIE(0.2, z=1.5),
    "IPM": tw.IPM(0.2, scale=2),
    "LabelFlip": tw.LabelFlip(0.2),
}
OWN: dict[str, tw.Attack] = {"top-k": tw.ResidualFlip(0.2, scale=10), "LBGM": tw.RhoFlip(0.2, scale=10)}


def judged(result: tw.Result, attack: tw.Attack | None, seed: int) -> dict[str, Any]:
    """Of hostile and of honest clients the share of replies that were far off; and who were so three times on end."""
    hostile = frozenset[int]() if attack is None else attack.hostile(CLIENTS, seed)
    far = [client for line in result.rounds for client in line.get("far", ())]
    named = {client for line in result.rounds for client, _ in line.get("again", ())}
    rounds = len(result.rounds)
    return {
        "far_hostile": sum(c in hostile for c in far) / (len(hostile) * rounds) if hostile else None,
        "far_honest": sum(c not in hostile for c in far) / ((CLIENTS - len(hostile)) * rounds),
        "named_hostile": len(named & hostile),
        "named_honest": len(named - hostile),
    }


def main() -> None:
    parser = record.options(__doc__, METHODS, SPLITS, Path(__file__).parent / "results")
    parser.add_argument("--attack", action="append", choices=[*ATTACKS, "own"])
    parser.add_argument("--rule", action="append", choices=list(RULES))
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    for seed, split, problem, name, method in record.trials(given, METHODS, SPLITS, "digits", CLIENTS):
        attacks = ATTACKS | ({"own": OWN[name]} if name in OWN else {})
        for attack, hostile in attacks.items():
            if given.attack and attack not in given.attack:
                continue
            for rule, setting in RULES.items():
                if given.rule and rule not in given.rule:
                    continue
                row = {"split": split, "method": name, "attack": attack, "rule": rule}
                row["expressions"] = [repr(hostile), rule]
                options: dict[str, Any] = {**setting, "seed": seed, "attack": hostile, "evaluate_every": 25}
                record.run(
                    *(method, problem, given.rounds, given.into / f"{name}.jsonl", row),
                    lambda result, hostile=hostile, seed=seed: judged(result, hostile, seed),
                    **options,
                )


if __name__ == "__main__":
    main()
