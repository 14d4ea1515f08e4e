"""A secret in shares, of which any ``threshold`` give it back and fewer say nothing.

Shamir, "How to Share a Secret", Communications of the ACM 22 (11), 1979: each byte of the secret is the value at 0 of a
random polynomial of degree ``threshold`` - 1 over the field of 256 elements, x^8 + x^4 + x^3 + x + 1, and share number
n is its value at n, from 1 to 255.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8

from ...errors import require

MOST = 255  # shares
Bytes = UInt8[np.ndarray, "..."]


def _tables() -> tuple[Bytes, np.ndarray]:
    """The powers of 3, which are all elements but 0, twice over; and of each element which power it is."""
    powers, logarithms, x = np.zeros(510, np.uint8), np.zeros(256, np.int64), 1
    for n in range(255):
        powers[n] = powers[n + 255] = x
        logarithms[x] = n
        x ^= (x << 1) ^ (0x11B if x & 0x80 else 0)
    return powers, logarithms


POWERS, LOGARITHMS = _tables()


def multiply(a: Bytes, b: Bytes) -> Bytes:
    """Products in the field, element by element."""
    product: Bytes = np.where((a == 0) | (b == 0), 0, POWERS[LOGARITHMS[a] + LOGARITHMS[b]]).astype(np.uint8)
    return product


def split(secret: bytes, shares: int, threshold: int) -> list[bytes]:
    """The shares of numbers 1, 2, ... Raises ``ValueError`` for a threshold above ``shares``, or too many of them."""
    fits = 1 <= threshold <= shares <= MOST
    require(fits, f"{threshold} of {shares} shares: give at least 1, no more than there are, and at most {MOST} shares")
    own = np.frombuffer(secret, np.uint8)
    rest = np.frombuffer(secrets.token_bytes((threshold - 1) * len(own)), np.uint8).reshape(threshold - 1, len(own))
    numbers = np.arange(1, shares + 1, dtype=np.uint8)[:, None]
    value = np.zeros((shares, len(own)), np.uint8)
    for coefficient in (*rest, own):  # Horner
        value = multiply(value, numbers) ^ coefficient
    return [row.tobytes() for row in value]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret from shares by their numbers: as many as its threshold, or more."""
    numbers = np.array(list(shares), np.uint8)
    values = np.stack([np.frombuffer(share, np.uint8) for share in shares.values()])
    # Of each number the polynomial that is 1 there and 0 at the others, at 0: the product of x / (x - number).
    quotients = LOGARITHMS[numbers] - LOGARITHMS[numbers[:, None] ^ numbers]
    np.fill_diagonal(quotients, 0)
    weights = POWERS[quotients.sum(1) % 255]
    total: Bytes = np.bitwise_xor.reduce(multiply(values, weights[:, None]), axis=0)
    return total.tobytes()
