"""The point from which the replies are least far away, all distances added up.

Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE Transactions on Signal Processing
2022, arXiv:1912.13445, Algorithm 2, the smoothed Weiszfeld algorithm.

Differences from the paper: the server has the replies themselves, so it makes the steps alone, on the inner products
of the replies, and until they no longer move. Every reply weighs the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Aggregator, Products, Shares, Weights
from .rows import lower_median, squares

STEPS = 1000  # at most
STILL = 1e-10  # the most that a share moves in a step that ends them
SMOOTH = 1e-6  # the paper's nu, in units of the lower median distance between replies


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The geometric median, by Weiszfeld's steps: shares go as one over the distance from the point before."""

    paper = "Pillutla et al., IEEE TSP 2022, arXiv:1912.13445"

    def choose(self, products: Products, weights: Weights) -> Shares:
        shares = weights
        smooth = SMOOTH * lower_median(squares(products).flatten()) ** 0.5 or 1e-300
        for _ in range(STEPS):
            about = products @ shares
            apart = (products.diagonal() - 2 * about + shares @ about).clamp(min=0).sqrt()
            after = weights / apart.clamp(min=smooth)
            after = after / after.sum()
            if float((after - shares).abs().max()) < STILL:
                return after
            shares = after
        return shares
