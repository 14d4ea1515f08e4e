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
from . import native
from .signs import check_bits, pack_bits_reference, unpack_bits_reference

MOST = 1 << 48  # entries of a vector, as many as a tensor in a message may have


def best(positions: Int64[Tensor, " k"], n: int) -> tuple[int, int]:
    """The parameter b that needs the fewest bits for these positions below ``n``, and how many."""
    k = positions.numel()
    guess = max(0, round(math.log2(max(1.0, 0.69 * n / max(k, 1)))))  # Rice's optimum for random gaps
    lengths = [k * b + quotients for b, quotients in enumerate(_quotients(positions, n, guess + 2))]
    b = min(range(guess + 2), key=lambda b: lengths[b])  # clustered ones want less
    return b, lengths[b]


def _quotients(positions: Tensor, n: int, count: int) -> list[int]:
    """The bits that the quotients take with each parameter below ``count``."""
    lib = native.library(positions)
    if lib is None:
        gaps = _gaps(positions, n)
        return [positions.numel() + int((gaps >> b).sum()) for b in range(count)]
    positions, lengths = positions.long().contiguous(), torch.empty(count, dtype=torch.int64, device="cpu")
    status = lib.tw_gaps_lengths(positions, positions.numel(), n, count, lengths)
    _ascending(status == 0, n)
    return lengths.tolist()


def encode(positions: Int64[Tensor, " k"], n: int, b: int) -> tuple[UInt8[Tensor, " a"], UInt8[Tensor, " c"]]:
    """The bytes of the quotients and of the rests. Raises ``ValueError`` unless positions ascend below ``n``.

    Extra memory: the result (reference: 32 bytes a position and 10 a bit).
    """
    _require(n, b)
    lib = native.library(positions)
    if lib is None:
        return encode_reference(positions, n, b)
    positions, k = positions.long().contiguous(), positions.numel()
    length = _quotients(positions, n, b + 1)[b]
    quotients = torch.zeros((length + 7) // 8, dtype=torch.uint8, device="cpu")
    rests = torch.zeros((k * b + 7) // 8, dtype=torch.uint8, device="cpu")
    lib.tw_gaps_encode(positions, k, b, quotients, rests)
    return quotients, rests


def encode_reference(positions: Tensor, n: int, b: int) -> tuple[Tensor, Tensor]:
    gaps = _gaps(positions, n)
    ends = ((gaps >> b) + 1).cumsum(0) - 1
    ones = torch.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=torch.bool, device=gaps.device)
    ones[ends] = True
    rests = gaps[:, None] >> torch.arange(b, device=gaps.device) & 1
    return pack_bits_reference(ones), pack_bits_reference(rests.bool().view(-1))


def count(quotients: UInt8[Tensor, " a"]) -> int:
    """How many positions there are: the ones among the bits of their quotients."""
    lib = native.library(quotients)
    if lib is None:
        return int(unpack_bits_reference(quotients, 8 * quotients.numel()).sum())
    quotients = quotients.contiguous()
    return int(lib.tw_ones(quotients, quotients.numel()))


def decode(quotients: UInt8[Tensor, " a"], rests: UInt8[Tensor, " c"], n: int, b: int) -> Int64[Tensor, " k"]:
    """The positions that :func:`encode` made these bytes of; ``WireError`` for any other bytes.

    Nothing is read beyond the bytes, no sum wraps round, and there are no more positions than ones. Extra memory: the
    positions (reference: about 10 bytes a bit and 32 a position).
    """
    check(0 <= n <= MOST and 0 <= b <= n.bit_length(), f"a Rice parameter for gaps below {n}")
    check(quotients.numel() <= (n + 7) // 8, f"quotients of at most {n} bits")  # a one a position, a zero a skip
    check(quotients.numel() == 0 or int(quotients[-1]) > 0, "quotients that end in a one")
    lib = native.library(quotients, rests)
    if lib is None:
        return decode_reference(quotients, rests, n, b)
    quotients, rests = quotients.contiguous(), rests.contiguous()
    k = count(quotients)
    check(k <= n, f"at most {n} gaps below {n}")
    check_bits(rests, k * b)
    positions = torch.empty(k, dtype=torch.int64, device="cpu")
    sizes = quotients, quotients.numel(), rests, rests.numel()
    check(lib.tw_gaps_decode(*sizes, n, b, positions) == 0, f"positions below {n}")
    return positions


def decode_reference(quotients: Tensor, rests: Tensor, n: int, b: int) -> Tensor:
    ends = unpack_bits_reference(quotients, 8 * quotients.numel()).nonzero().view(-1)
    over = ends.diff(prepend=ends.new_full((1,), -1)) - 1
    check(len(ends) <= n and bool((over <= n >> b).all()), f"at most {n} gaps below {n}")  # no sum can wrap round
    check_bits(rests, len(ends) * b)
    bits = unpack_bits_reference(rests, len(ends) * b).view(len(ends), b)
    gaps = (over << b) + (bits.long() << torch.arange(b, device=bits.device)).sum(1)
    positions: Tensor = (gaps + 1).cumsum(0) - 1
    check(len(positions) == 0 or int(positions[-1]) < n, f"positions below {n}")
    return positions


def encode_bits(positions: Int64[Tensor, " k"], n: int) -> UInt8[Tensor, " bytes"]:
    """One bit an entry of ``n``: set at the positions. ``ValueError`` unless they ascend below ``n``."""
    _require(n, 0)
    lib = native.library(positions)
    if lib is None:
        return encode_bits_reference(positions, n)
    positions, packed = positions.long().contiguous(), torch.zeros((n + 7) // 8, dtype=torch.uint8, device="cpu")
    _ascending(lib.tw_bits_encode(positions, positions.numel(), n, packed) == 0, n)
    return packed


def encode_bits_reference(positions: Tensor, n: int) -> Tensor:
    _gaps(positions, n)
    chosen = torch.zeros(n, dtype=torch.bool, device=positions.device)
    chosen[positions] = True
    return pack_bits_reference(chosen)


def decode_bits(packed: UInt8[Tensor, " bytes"], n: int) -> Int64[Tensor, " k"]:
    """The positions of the bits that are set; ``WireError`` unless they are ``n`` bits."""
    check_bits(packed, n)
    lib = native.library(packed)
    if lib is None:
        return decode_bits_reference(packed, n)
    packed = packed.contiguous()
    positions = torch.empty(lib.tw_ones(packed, packed.numel()), dtype=torch.int64)
    lib.tw_bits_decode(packed, packed.numel(), positions)
    return positions


def decode_bits_reference(packed: Tensor, n: int) -> Tensor:
    return unpack_bits_reference(packed, n).nonzero().view(-1)


def _gaps(positions: Tensor, n: int) -> Tensor:
    """How many entries are skipped before each position."""
    gaps = positions.diff(prepend=positions.new_full((1,), -1)) - 1
    _ascending(positions.numel() == 0 or (int(gaps.min()) >= 0 and int(positions[-1]) < n), n)
    return gaps


def _ascending(condition: bool, n: int) -> None:
    require(condition, f"positions must ascend from 0 to less than {n}")


def _require(n: int, b: int) -> None:
    require(0 <= n <= MOST and 0 <= b <= n.bit_length(), f"a Rice parameter of {b} for gaps below {n}")
