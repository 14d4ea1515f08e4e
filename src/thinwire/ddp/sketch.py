"""64 numbers of a vector that say how long it is, and that may be averaged.

Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002. The square of a sketch is
||x||^2 on average over signs, and the mean of sketches is the sketch of the mean.

Differences from the paper: an entry's bucket is its place modulo 64, and its sign is the product of two, one of its row
and one of its column where the vector is laid out in rows of 4,096. Signs of two entries are still independent, so the
square is right on average, and 10^8 entries need 28,000 signs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..key import Key

BUCKETS, COLUMNS, ROWS = 64, 4096, 256


def sketch(x: Float[Tensor, " d"], key: Key) -> Float[Tensor, "64"]:
    """Sums of entries with random signs; ``key`` is the same on all ranks."""
    rows = -(-len(x) // COLUMNS)
    signs = torch.randint(0, 2, (rows + COLUMNS,), generator=key.generator("sketch"), device="cpu")
    signs = (2 * signs - 1).to(x.device, x.dtype)
    down, across, total = signs[:rows, None], signs[rows:], x.new_zeros(COLUMNS)
    for first in range(0, rows, ROWS):  # by pieces: the signed vector would be as long as the model
        piece = x[first * COLUMNS : (first + ROWS) * COLUMNS]
        whole = piece[: len(piece) // COLUMNS * COLUMNS].view(-1, COLUMNS)
        total.add_((whole * down[first : first + len(whole)]).sum(0))
        if rest := len(piece) - whole.numel():
            total[:rest].add_(piece[-rest:] * down[first + len(whole)])
    return (total * across).view(-1, BUCKETS).sum(0)
