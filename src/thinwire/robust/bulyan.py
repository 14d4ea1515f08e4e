"""Bulyan: Krum again and again, and then the values next to the median of each coordinate.

El Mhamdi, Guerraoui, Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018,
arXiv:1802.07927, section 4.

Differences from the paper: replies are changes of a model by local training, not gradients. The rule that is repeated
is Krum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..ranges import Natural
from .base import Aggregator, Block, Products, Shares, Weights
from .krum import scores
from .rows import squares


@dataclass(frozen=True)
class Bulyan(Aggregator):
    """Krum picks n - 2 f replies, one after another; of each coordinate the n - 4 f next to the median are averaged.

    ``f`` is how many of a round's replies may be hostile. It needs 4 f + 3 replies: of ten clients one may be.
    """

    paper = "El Mhamdi et al., ICML 2018, arXiv:1802.07927"

    f: Natural = 1

    @property
    def least(self) -> int:
        return 4 * self.f + 3

    def choose(self, products: Products, weights: Weights) -> Shares:
        apart, left = squares(products), list(range(len(products)))
        chosen = list[int]()
        while len(chosen) < len(products) - 2 * self.f:  # theta
            where = torch.tensor(left, device="cpu")
            chosen.append(left.pop(int(scores(apart[where][:, where], self.f).argmin())))
        return torch.zeros_like(weights).index_fill_(0, torch.tensor(chosen, device="cpu"), 1 / len(chosen))

    def join(self, block: Block, shares: Shares) -> Float[Tensor, " b"]:
        values = block[shares > 0].double().sort(0).values
        median = values.quantile(0.5, 0)
        keep = len(values) - 2 * self.f  # beta
        nearest = (values - median).abs().argsort(dim=0, stable=True)[:keep]
        return values.gather(0, nearest).mean(0)
