"""Krum: the replies that lie closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
NeurIPS 2017, arXiv:1703.02757, section 4 (Krum) and section 6 (m-Krum).

Differences from the paper: replies are changes of a model by local training, not gradients. Where two scores are
equal the client with the lower number is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from ..ranges import Count, Natural
from .base import Aggregator, Products, Shares, Weights
from .rows import squares


@dataclass(frozen=True)
class Krum(Aggregator):
    """One reply of the round: that whose n - f - 2 nearest others are nearest, in squared distances added up.

    ``f`` is how many of a round's replies may be hostile. It needs 2 f + 3 replies. It learns from one client a round.
    """

    paper = "Blanchard et al., NeurIPS 2017, arXiv:1703.02757"

    f: Natural = 1

    @property
    def least(self) -> int:
        return 2 * self.f + 3

    def choose(self, products: Products, weights: Weights) -> Shares:
        return nearest(products, self.f, 1)


@dataclass(frozen=True)
class MultiKrum(Aggregator):
    """The mean of the ``m`` replies with the lowest scores of Krum, all weighted alike.

    ``f`` is how many of a round's replies may be hostile. It needs 2 f + 3 replies. ``m`` None is n - f - 2.
    """

    paper = "Blanchard et al., NeurIPS 2017, arXiv:1703.02757"

    f: Natural = 1
    m: Count | None = None

    @property
    def least(self) -> int:
        return max(2 * self.f + 3, self.m or 1)

    def choose(self, products: Products, weights: Weights) -> Shares:
        return nearest(products, self.f, self.m or len(products) - self.f - 2)


def scores(apart: Float[Tensor, "n n"], f: int) -> Float[Tensor, " n"]:
    """Of each reply the squared distances to its n - f - 2 nearest others, added up (section 4)."""
    near = max(1, len(apart) - f - 2)
    return apart.sort(1).values[:, 1 : near + 1].sum(1)  # the first is its own


def nearest(products: Products, f: int, m: int) -> Shares:
    """Equal shares of the ``m`` replies with the lowest scores."""
    require(m <= len(products), f"m={m}: there are {len(products)} replies")
    chosen = scores(squares(products), f).argsort(stable=True)[:m]
    return torch.zeros(len(products), dtype=torch.float64, device="cpu").index_fill_(0, chosen, 1 / m)
