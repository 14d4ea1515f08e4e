"""Differential privacy whose noise is the clients': of a secure sum nobody sees a reply, nor the sum without noise.

Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021, arXiv:2102.06387, Algorithm 1 and Theorem 1. Concentrated privacy is converted by Canonne, Kamath, Steinke,
NeurIPS 2020, arXiv:2004.00010, Corollary 13.

Differences from the paper: numbers are rounded first, then the whole numbers are shortened towards zero to a norm of at
most ``clip``, so no bound on rounding is needed, and what is beyond ``clip`` is not right on average. Numbers are not
rotated beforehand. Noise is divided among the fewest clients whose sum is uncovered,
more than half of a round's: when more answer there is more of it than is claimed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from ...errors import CombinationError
from ...links import SecureSum
from ..privacy import Privacy, check_spent
from .gaussian import Coins, gaussian

TAIL = 8.0  # deviations of the noise of a sum that fit its range: beyond them is one number in 10^15


def fewest(clients: int) -> int:
    """How many clients of a round have to answer: with fewer the sum is not uncovered."""
    return clients // 2 + 1


@dataclass(frozen=True)
class ClientNoise:
    """What the clients of a round do to a reply before they hide it; ``numbers`` are those of a reply."""

    privacy: Privacy
    link: SecureSum
    numbers: int
    clients: int

    @property
    def bound(self) -> float:
        """The norm of a client's whole numbers."""
        return self.privacy.clip / self.link.step

    @property
    def deviation(self) -> float:
        """Of a client's noise, in whole numbers: that of the fewest clients together is ``noise * bound``."""
        if not self.privacy.noise:
            return 0.0
        return self.privacy.noise * self.bound / math.sqrt(fewest(self.clients))

    def check(self) -> None:
        """Raise :class:`~thinwire.errors.CombinationError` where a sum might not fit its range."""
        if self.privacy.clip == math.inf:
            return
        half = 1 << (self.link.bits - 1)
        largest = self.clients * min(self.bound, half) + TAIL * math.sqrt(self.clients) * self.deviation
        if largest >= 1 << (self.link.width - 1):
            raise CombinationError(
                f"{self.privacy!r} over {self.link!r}: the sum of {self.clients} clients with their noise may be "
                f"{largest:.3g} steps, and {self.link.width} bits hold {1 << (self.link.width - 1)}: give the link a "
                f"larger clip or a larger most"
            )

    def add(self, numbers: Int64[Tensor, " n"], secret: bytes, about: bytes) -> Int64[Tensor, " n"]:
        """Whole numbers of a reply, shortened and with noise: a function of all of this, and of nothing else."""
        norm = float(numbers.double().norm())
        if norm > self.bound:
            numbers = (numbers.double() * (self.bound / norm * (1 - 2.0**-50))).trunc().long()
        seen = hashlib.sha256(numbers.numpy().tobytes()).hexdigest()
        purpose = f"noise|{about!r}|{self.privacy!r}|{self.clients}|{seen}"
        return numbers + torch.from_numpy(gaussian(len(numbers), self.deviation, Coins(secret, purpose)))

    def concentration(self) -> float:
        """The rho of a round, which is rho-concentrated: Theorem 1, half of epsilon squared."""
        if not self.privacy.noise:
            return math.inf
        few, variance = fewest(self.clients), self.deviation**2
        tau = 10 * sum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, few))
        ratio = 1 / self.privacy.noise  # the bound over the deviation of a sum
        first = math.sqrt(ratio**2 + tau * self.numbers / 2)
        return min(first, ratio + tau * math.sqrt(self.numbers)) ** 2 / 2

    def epsilon(self, rounds: int, delta: float = 1e-5) -> float:
        """The epsilon, for this ``delta``, of a client that has replied in so many rounds.

        Neighbours are runs with a client's replies and with zeros in their place. It holds towards the server too, as
        long as it and the clients do what they say. Of clients that tell it their noise, that noise does not count.
        """
        check_spent(rounds, delta)
        rho = rounds * self.concentration() if rounds else 0.0
        return convert(rho, delta)


def convert(rho: float, delta: float) -> float:
    """The epsilon of what is rho-concentrated: the least over the order alpha > 1."""
    if rho in (0.0, math.inf):
        return rho

    def at(order: float) -> float:
        alpha = 1 + math.exp(order)
        return alpha * rho + (math.log1p(-1 / alpha) * (alpha - 1) - math.log(alpha * delta)) / (alpha - 1)

    low, high = -20.0, 30.0  # of log(alpha - 1), in which it falls and then rises
    for _ in range(200):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, second) if at(first) < at(second) else (first, high)
    return max(at(low), 0.0)
