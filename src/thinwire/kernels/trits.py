"""Numbers from 0 to 2, five to a byte: 3^5 = 243 of the 256 values are used, 1.6 bits an entry."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import pad

from ..errors import check

EACH = 5
VALUES = 3**EACH
DIGITS = (torch.arange(VALUES, device="cpu")[:, None] // 3 ** torch.arange(EACH, device="cpu") % 3).to(
    torch.uint8
)  # of each byte, lowest first


def pack_trits(trits: UInt8[Tensor, " n"]) -> UInt8[Tensor, " bytes"]:
    """Entry ``i`` is digit ``i % 5`` of byte ``i // 5``, the sum of ``digit * 3^place``. Zeros fill the last byte."""
    rows = pad(trits, (0, -trits.numel() % EACH)).view(-1, EACH)
    packed = rows[:, EACH - 1]
    for place in reversed(range(EACH - 1)):
        packed = packed * 3 + rows[:, place]
    return packed


def unpack_trits(packed: UInt8[Tensor, " bytes"], n: int) -> UInt8[Tensor, " n"]:
    """What :func:`pack_trits` made of ``n`` entries; ``WireError`` for any other bytes."""
    size = (n + EACH - 1) // EACH
    check(packed.numel() == size, f"{n} digits in {size} bytes")
    check(n == 0 or int(packed.max()) < VALUES, f"bytes below {VALUES}")
    trits = DIGITS.index_select(0, packed.to(torch.int32)).view(-1)
    check(not trits[n:].any(), "zeros beyond the last digit")
    return trits[:n]
