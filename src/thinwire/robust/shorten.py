"""Rules that shorten: to a norm, and around what came of the round before.

:class:`NormClip`: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019,
arXiv:1911.07963, section 4. :class:`CenteredClip`: Karimireddy, He, Jaggi, "Learning from History for Byzantine
Robust Optimization", ICML 2021, arXiv:2012.10333, Algorithm 2.

Differences from the papers: bounds may follow the replies' own lengths. There is no noise. Clients send changes of a
model by local training; a momentum of theirs, which the analysis of CenteredClip asks for, is the method's own matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..ranges import Count, Positive
from .base import Aggregator, Products, Shares, Weights
from .rows import lower_median

Radius = Positive | Literal["adaptive"]


@dataclass(frozen=True)
class NormClip(Aggregator):
    """The weighted mean of replies of which none counts as longer than ``norm``.

    "adaptive" is the lower median norm of the round's replies. It is stricter than a run's ``clip="auto"``, twice the
    median of five rounds, and has no memory.
    """

    paper = "Sun et al., 2019, arXiv:1911.07963"

    norm: Radius = "adaptive"

    changes = True
    weighted = True

    def choose(self, products: Products, weights: Weights) -> Shares:
        norms = products.diagonal().sqrt()
        return weights * factors(norms, lower_median(norms) if self.norm == "adaptive" else self.norm)


@dataclass(frozen=True)
class CenteredClip(Aggregator):
    """The centre, moved by the mean of what the replies differ from it, none longer than ``radius``; ``steps`` times.

    v <- v + mean of (x - v) min(1, radius / |x - v|), from the result v of the round before on, which is zero before
    the first. "adaptive" is the lower median distance of the replies from the centre, in each step anew. The server
    keeps v, one vector a field.
    """

    paper = "Karimireddy et al., ICML 2021, arXiv:2012.10333"

    radius: Radius = "adaptive"
    steps: Count = 3

    changes = True
    remembers = True

    def choose(self, products: Products, weights: Weights) -> Shares:
        # The centre is a combination of the replies and of the first row, the centre before, if there is one.
        replies, centre = weights > 0, torch.zeros_like(weights)
        centre[: len(weights) - int(replies.sum())] = 1.0
        for _ in range(self.steps):
            about = products @ centre
            apart = (products.diagonal() - 2 * about + centre @ about).clamp(min=0).sqrt()
            radius = lower_median(apart[replies]) if self.radius == "adaptive" else self.radius
            moves = weights * factors(apart, radius)
            centre = centre * (1 - moves.sum()) + moves
        return centre


def factors(lengths: Weights, most: float) -> Weights:
    """What each of some lengths is multiplied by so that none is longer than ``most``."""
    return (most / lengths.clamp(min=1e-300)).clamp(max=1.0)
