"""Layer by layer: how far each one moves beside how large it is, and what recycling leaves out.

Kim, Kang, Lee, "Layer-wise Update Aggregation with Recycling for Communication-Efficient Federated Learning", NeurIPS
2025, arXiv:2503.11146, Figure 1, Equation 1 and Theorem 3.2.

Differences from the paper: kappa is the share of the recycled layers in the squared norm of the full gradient. Here the
gradient is the mean change of the model over the round's clients, all layers of which are trained and recorded, those
too that are not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..studies.read import Run, lacks

KAPPA = 1 / 16  # Theorem 3.2 asks for less


class Layer(NamedTuple):
    """A layer, the means over rounds."""

    layer: str
    change: float  # ||Delta_l||
    weights: float  # ||x_l||
    score: float  # s_l = ||Delta_l|| / ||x_l||, the mean of the rounds' own
    share: float  # of the squared norm of the whole change
    recycled: int  # rounds in which it was not sent


class Kappa(NamedTuple):
    """A round's recycled layers."""

    round: int
    unsent: list[str]
    kappa: float | None  # their share of the squared norm of the change; None where the change is the server's


def layers(lines: Sequence[Mapping[str, Any]]) -> list[Layer]:
    """Of rounds with ``layers``, in the model's order. s_l is 0 where a layer's weights are all zero."""
    own = [line for line in lines if "layers" in line]
    found = []
    for name in own[0]["layers"] if own else ():
        pairs = [line["layers"][name] for line in own]
        scores = [change / weights if weights else 0.0 for change, weights in pairs]
        shares = [
            change**2 / line["change"]["norm"] ** 2 for (change, _), line in zip(pairs, own, strict=True) if change
        ]
        times = sum(name in line["unsent"] for line in own)
        changes, weights = zip(*pairs, strict=True)
        change, weight, score, share = (sum(values) / len(own) for values in (changes, weights, scores, shares))
        found.append(Layer(name, change, weight, score, share, times))
    return found


def kappas(lines: Sequence[Mapping[str, Any]]) -> list[Kappa]:
    """Of rounds with ``layers``; kappa is 0 in rounds that recycled nothing.

    Where the change is the server's, recycled layers are in it as the server has them: kappa is not known.
    """
    found = []
    for line in lines:
        if "layers" in line:
            left = sum(line["layers"][name][0] ** 2 for name in line["unsent"])
            whole = line["change"]["norm"] ** 2
            kappa = left / whole if whole else 0.0
            unknown = line["unsent"] and line["change"].get("of") == "server"
            found.append(Kappa(line["round"], list(line["unsent"]), None if unknown else kappa))
    return found


def recorded(run: Run) -> tuple[list[Layer], list[Kappa]]:
    """Of a run that was trained with ``record="layers"``. Raises :class:`RunError` for any other."""
    found = layers(run.rounds)
    if not found:
        raise lacks(run, "recorded layers", "federated", "train it with --record layers")
    return found, kappas(run.rounds)
