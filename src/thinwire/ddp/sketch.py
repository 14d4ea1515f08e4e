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
STRIDE = 1024  # entries from one to the next of those that are looked at where a link sends at every step


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


def sample(e: Float[Tensor, " n"], steps: int, key: Key) -> Float[Tensor, " m"]:
    """Numbers whose mean over ranks says how long the mean of e is: some of e, or between ``steps`` a sketch of all."""
    if steps > 1:
        return sketch(e, key.at("lambda"))
    return e[key.number("lambda") % min(STRIDE, len(e)) :: STRIDE]


def with_square(parts: list[Tensor]) -> Float[Tensor, " n"]:
    """The entries of all parts, and the sum of their squares."""
    entries = torch.cat([*parts, parts[0].new_zeros(1)])
    entries[-1] = torch.dot(entries[:-1], entries[:-1])
    return entries


def square_of_mean(sums: Tensor) -> Float[Tensor, "2"]:
    """||mean||^2 of the entries of :func:`_with_square`, and the mean of their squares, from its mean over ranks."""
    return torch.stack([torch.dot(sums[:-1], sums[:-1]), sums[-1]])
