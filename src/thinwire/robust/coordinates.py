"""Rules that look at each coordinate by itself: the median, and the mean without the ends.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
2018, arXiv:1803.01498, Definitions 1 and 2.

Differences from the paper: replies are changes of a model by local training, not gradients, and all that there are in
a round count, whoever sent them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from ..ranges import Range
from .base import Aggregator, Block, Products, Shares, Weights

BelowHalf = Annotated[float, Range(lambda x: 0 <= x < 0.5, "must be at least 0 and below 0.5")]


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each coordinate; of an even number of replies the mean of the middle two.

    Of sparse replies, such as top-k's, a coordinate that fewer than half of the clients send has median zero.
    """

    paper = "Yin et al., ICML 2018, arXiv:1803.01498"

    sparing = True

    def choose(self, products: Products, weights: Weights) -> Shares:
        return weights

    def join(self, block: Block, shares: Shares) -> Float[Tensor, " b"]:
        return trimmed_mean(block, (len(block) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Of each coordinate the mean without the ``share`` largest and the ``share`` smallest of the values.

    How many are left out at each end is ``share`` times the replies of the round, rounded down, so that 0.1 of ten
    clients is one. It should be at least the share of hostile clients.
    """

    paper = "Yin et al., ICML 2018, arXiv:1803.01498"

    share: BelowHalf = 0.1

    sparing = True

    def choose(self, products: Products, weights: Weights) -> Shares:
        return weights

    def join(self, block: Block, shares: Shares) -> Float[Tensor, " b"]:
        return trimmed_mean(block, math.floor(self.share * len(block) + 1e-9))  # 0.3 of ten is three


def trimmed_mean(block: Block, cut: int) -> Float[Tensor, " b"]:
    """The mean of each column without its ``cut`` smallest and its ``cut`` largest values."""
    return block.double().sort(0).values[cut : len(block) - cut].mean(0)
