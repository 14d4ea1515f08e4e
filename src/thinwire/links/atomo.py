"""ATOMO: a few singular atoms, drawn so that their sum is right on average.

Wang, Sievert, Charles, Liu, Wright, Papailiopoulos, "ATOMO: Communication-efficient Learning via Atomic
Sparsification", NeurIPS 2018, arXiv:1806.04090, Algorithm 1 (Spectral-ATOMO).

Differences from the paper: every layer is the matrix [first dimension, all others]. Layers of one dimension are sent
whole, and so are those whose ``rank`` atoms would be no fewer floats. If more atoms were drawn than the layer has
room for, their sum is sent. Atoms below 1.2e-7 of the largest are rounding errors of 32-bit floats and are never
drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Size, Tensor

from ..errors import check
from ..key import Key
from ..ranges import Count
from ..wire import Packet
from .base import Codec, finite, vector
from .lowrank import atoms, factors, product, sides, thin

NOISE = torch.finfo(torch.float32).eps  # atoms below this share of the largest are rounding, not signal


@dataclass(frozen=True)
class ATOMO(Codec):
    """Singular atoms of each layer, each kept by chance and divided by its chance: ``rank`` of them on average.

    An atom takes m + n floats of 4 bytes for a layer of m by n. The sum is right on average, and its variance is the
    least that so many atoms allow. It is no contraction: an atom that was kept is longer than it was. ``LowRank`` is
    the biased one. Raises ``ValueError`` for a rank below 1.
    """

    paper = "Wang et al., NeurIPS 2018, arXiv:1806.04090"

    rank: Count = 2

    grows = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        if not thin(x.shape, self.rank):
            return x.reshape(-1)
        left, right = atoms(finite(self, x).reshape(len(x), -1))
        # Of every pair one factor is of unit length, so the product of the lengths is the singular value.
        values = torch.linalg.vector_norm(left, dim=0) * torch.linalg.vector_norm(right, dim=1)
        p = probabilities(torch.where(values > NOISE * values[0], values, 0.0), self.rank)
        kept = torch.rand(len(p), generator=key.generator("atoms"), dtype=torch.float64, device="cpu") < p
        packet = factors(left[:, kept], right[kept] / p[kept, None])
        return packet if len(packet) < x.numel() else product(packet, x.shape, int(kept.sum())).reshape(-1)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        whole = shape.numel()
        if not thin(shape, self.rank) or (isinstance(packet, Tensor) and packet.shape == (whole,)):
            return vector(packet, whole, torch.float32).view(shape)
        each = sum(sides(shape))
        num = packet.numel() // each if isinstance(packet, Tensor) else 0
        check(num * each < whole, "whole atoms, fewer floats than the layer has,")
        return product(vector(packet, num * each, torch.float32), shape, num)


def probabilities(values: Float[Tensor, " n"], budget: int) -> Float[Tensor, " n"]:
    """Algorithm 1: how likely each atom is kept, given their magnitudes in descending order.

    Proportional to the magnitude, but at most 1; ``budget`` of them are kept on average (all
    that are not zero, where those are fewer).
    """
    rest = values.flip(0).cumsum(0).flip(0)  # the sum of this and all smaller ones
    left = budget - torch.arange(
        len(values), dtype=values.dtype, device="cpu"
    )  # s, after those before were kept for certain
    shared = (values * left <= rest).nonzero()[0]  # line 3: the first that need not be certain; at s = 1 at the latest
    p = (values * left[shared] / rest[shared]).clamp_max(1.0)  # line 4; the larger ones before come out above 1
    return torch.where(values > 0, p, 0.0)
