"""Ascending positions as gaps in a Rice code (Rice and Plaunt, 1971): a Golomb code whose parameter is 2^b.

A gap is the number of entries skipped, ``q * 2^b + r``. The quotients lie in one row of bits, each as q zeros and
a one; the rests in another, b bits each, the lowest first. Bits fill bytes from the lowest on, and zeros fill
the last byte: no quotient ends in them, so the number of positions is the number of ones.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ..errors import check, require
from .signs import check_bits, pack_bits_reference, unpack_bits_reference

MOST = 1 << 48  # entries of a vector, as many as a tensor in a message may have


def best(positions: Int64[Tensor, " k"], n: int) -> tuple[int, int]:
    """The parameter b that needs the fewest bits for these positions below ``n``, and how many."""
    return best_reference(positions, n)


def best_reference(positions: Tensor, n: int) -> tuple[int, int]:
    gaps, k = _gaps(positions, n), positions.numel()
    guess = max(0, round(math.log2(max(1.0, 0.69 * n / max(k, 1)))))  # Rice's optimum for random gaps
    lengths = {b: k * (b + 1) + int((gaps >> b).sum()) for b in range(guess + 2)}  # clustered ones want less
    b = min(lengths, key=lambda b: lengths[b])
    return b, lengths[b]


def encode(positions: Int64[Tensor, " k"], n: int, b: int) -> tuple[UInt8[Tensor, " a"], UInt8[Tensor, " c"]]:
    """The bytes of the quotients and of the rests. Raises ``ValueError`` unless positions ascend below ``n``.

    Extra memory: the result (reference: 32 bytes a position and 10 a bit).
    """
    _require(n, b)
    return encode_reference(positions, n, b)


def encode_reference(positions: Tensor, n: int, b: int) -> tuple[Tensor, Tensor]:
    gaps = _gaps(positions, n)
    ends = ((gaps >> b) + 1).cumsum(0) - 1
    ones = torch.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=torch.bool, device=gaps.device)
    ones[ends] = True
    rests = gaps[:, None] >> torch.arange(b, device=gaps.device) & 1
    return pack_bits_reference(ones), pack_bits_reference(rests.bool().view(-1))


def decode(quotients: UInt8[Tensor, " a"], rests: UInt8[Tensor, " c"], n: int, b: int) -> Int64[Tensor, " k"]:
    """The positions that :func:`encode` made these bytes of; ``WireError`` for any other bytes.

    Nothing is read beyond the bytes, no sum wraps round, and there are no more positions than ones.
    """
    check(0 <= n <= MOST and 0 <= b <= n.bit_length(), f"a Rice parameter for gaps below {n}")
    return decode_reference(quotients, rests, n, b)


def decode_reference(quotients: Tensor, rests: Tensor, n: int, b: int) -> Tensor:
    check(quotients.numel() == 0 or int(quotients[-1]) > 0, "quotients that end in a one")
    ends = unpack_bits_reference(quotients, 8 * quotients.numel()).nonzero().view(-1)
    found = ends.diff(prepend=ends.new_full((1,), -1)) - 1
    check(len(ends) <= n and bool((found <= n >> b).all()), f"at most {n} gaps below {n}")  # no sum can wrap round
    check_bits(rests, len(ends) * b)
    bits = unpack_bits_reference(rests, len(ends) * b).view(len(ends), b)
    gaps = (found << b) + (bits.long() << torch.arange(b, device=bits.device)).sum(1)
    positions: Tensor = (gaps + 1).cumsum(0) - 1
    check(len(positions) == 0 or int(positions[-1]) < n, f"positions below {n}")
    return positions


def encode_bits(positions: Int64[Tensor, " k"], n: int) -> UInt8[Tensor, " bytes"]:
    """One bit an entry of ``n``: set at the positions. ``ValueError`` unless they ascend below ``n``."""
    _require(n, 0)
    return encode_bits_reference(positions, n)


def encode_bits_reference(positions: Tensor, n: int) -> Tensor:
    _gaps(positions, n)
    chosen = torch.zeros(n, dtype=torch.bool, device=positions.device)
    chosen[positions] = True
    return pack_bits_reference(chosen)


def decode_bits(packed: UInt8[Tensor, " bytes"], n: int) -> Int64[Tensor, " k"]:
    """The positions of the bits that are set; ``WireError`` unless they are ``n`` bits."""
    check_bits(packed, n)
    return decode_bits_reference(packed, n)


def decode_bits_reference(packed: Tensor, n: int) -> Tensor:
    return unpack_bits_reference(packed, n).nonzero().view(-1)


def _gaps(positions: Tensor, n: int) -> Tensor:
    """How many entries are skipped before each position."""
    gaps = positions.diff(prepend=positions.new_full((1,), -1)) - 1
    ascending = positions.numel() == 0 or (int(gaps.min()) >= 0 and int(positions[-1]) < n)
    require(ascending, f"positions must ascend from 0 to less than {n}")
    return gaps


def _require(n: int, b: int) -> None:
    require(0 <= n <= MOST and 0 <= b <= n.bit_length(), f"a Rice parameter of {b} for gaps below {n}")
