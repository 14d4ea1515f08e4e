"""Whole numbers that are drawn from the discrete Gaussian distribution, exactly.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, arXiv:2004.00010, Algorithms
2 and 3. A number x has a probability in proportion to exp(-x^2 / 2 s^2). Floating point decides nothing that it cannot
decide: a uniform number is compared with a probability in 53 bits, and in as many as it takes where these are close.

Differences from the paper: probabilities are compared with their values, not by series of coins; the discrete Laplace
distribution that is drawn from has a power of two for its scale.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Float, Int64

from ...errors import require
from .masks import stream

CLOSE = 2.0**-44  # more than floating point is ever wrong by: then more bits decide
DIGITS = 60  # decimal digits of the first of these
MOST = 2.0**40  # a deviation: whole numbers are then exact in 64-bit floats


class Coins:
    """Bits that nobody can guess: a function of a secret of 32 bytes, and of what they are for."""

    def __init__(self, secret: bytes, purpose: str, close: float = CLOSE) -> None:
        self.stream, self.close = stream(secret, purpose), close

    def words(self, count: int) -> np.ndarray:
        """So many numbers of 64 bits, from 0."""
        return np.frombuffer(self.stream(8 * count), "<u8")

    def falls(self, numerator: Float[np.ndarray, " n"], denominator: float) -> Bool[np.ndarray, " n"]:
        """Truth values, each with the probability exp(-numerator / denominator) of its entry. Both are exact."""
        uniform = self.words(len(numerator)) >> np.uint64(11)
        gap = uniform * 2.0**-53 - np.exp(-numerator / denominator)
        falls: np.ndarray = gap < 0
        for i in np.flatnonzero(np.abs(gap) <= self.close):
            falls[i] = self._decide(int(uniform[i]), Fraction(numerator[i]) / Fraction(denominator))
        return falls

    def _decide(self, uniform: int, exponent: Fraction) -> bool:
        """Whether a number of which the first 53 bits are known is below exp(-exponent)."""
        bits, digits = 53, DIGITS
        while True:
            with localcontext() as context:
                context.prec = digits
                value = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
                slack = Decimal(10) ** (3 - digits)
                low, high = (Decimal(u) / Decimal(1 << bits) for u in (uniform, uniform + 1))
                if high <= value - slack:
                    return True
                if low >= value + slack:
                    return False
            uniform, bits, digits = uniform << 64 | int(self.words(1)[0]), bits + 64, digits + 20


def laplace(count: int, scale: int, coins: Coins) -> Int64[np.ndarray, " n"]:
    """Draws of the discrete Laplace distribution, exp(-|x| / scale), for a scale that is a power of two."""
    draws = np.zeros(count, np.int64)
    left = np.arange(count)
    while len(left):
        low = (coins.words(len(left)) & np.uint64(scale - 1)).astype(np.int64)
        low, open_ = low[keep := coins.falls(low.astype(np.float64), float(scale))], left[keep]
        high, rising = np.zeros(len(open_), np.int64), np.arange(len(open_))
        while len(rising):
            rising = rising[coins.falls(np.ones(len(rising)), 1.0)]
            high[rising] += 1
        size = low + scale * high
        negative = (coins.words(len(open_)) & np.uint64(1)).astype(bool)
        good = ~(negative & (size == 0))  # else 0 would be drawn twice as often
        draws[open_[good]] = np.where(negative, -size, size)[good]
        done = np.zeros(count, bool)
        done[open_[good]] = True
        left = left[~done[left]]
    return draws


def gaussian(count: int, deviation: float, coins: Coins) -> Int64[np.ndarray, " n"]:
    """Draws of the discrete Gaussian distribution of a parameter s = ``deviation``; zeros where that is 0."""
    require(0 <= deviation <= MOST, f"deviation={deviation}: it must be from 0 to {MOST:g}")
    draws = np.zeros(count, np.int64)
    if not deviation:
        return draws
    scale = 1 << max(0, int(np.ceil(np.log2(deviation))))
    square = deviation * deviation  # what it is rounded to is the parameter's square
    left = np.arange(count)
    while len(left):
        drawn = laplace(len(left), scale, coins)
        keep = _accept(drawn, scale, square, coins)
        draws[left[keep]] = drawn[keep]
        left = left[~keep]
    return draws


def _accept(drawn: Int64[np.ndarray, " n"], scale: int, square: float, coins: Coins) -> Bool[np.ndarray, " n"]:
    """Algorithm 3: with the probability exp(-(|y| - s^2 / t)^2 / 2 s^2)."""
    away = np.abs(drawn) - square / scale  # its last bits move the probability by far less than `close`
    uniform = coins.words(len(drawn)) >> np.uint64(11)
    gap = uniform * 2.0**-53 - np.exp(-away * away / (2 * square))
    keep: np.ndarray = gap < 0
    for i in np.flatnonzero(np.abs(gap) <= coins.close):
        exact = (abs(int(drawn[i])) - Fraction(square) / scale) ** 2 / (2 * Fraction(square))
        keep[i] = coins._decide(int(uniform[i]), exact)
    return keep
