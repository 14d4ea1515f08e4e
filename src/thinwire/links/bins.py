"""Bins: every entry as the mean of those that fall into its bin.

Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo", 2025,
arXiv:2508.15706, whose values of 2 bits these are, with four bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float32, Int16
from torch import Size, Tensor

from ..errors import check
from ..kernels import levels as coder
from ..key import Key
from ..ranges import Range
from ..wire import Packet
from .base import Codec, finite, octets, parts, vector

SIGMAS = 6.0  # what the bins cover together, in standard deviations


@dataclass(frozen=True)
class Bins(Codec):
    """``levels`` bins of equal width around a layer's mean, together six standard deviations wide.

    An entry is sent as the number of its bin, and a bin in use as the mean of its entries, 4 bytes. Entries beyond the
    outermost bins belong to them. The numbers of bins are sent by the adaptive coder (:mod:`thinwire.kernels.levels`),
    with 256 bins as bytes. What the receiver sees is never further off than zeros would be, so the link is a
    contraction. ``ChunkTopK(64, values=Bins(4))`` sends the numbers of all layers in one stream. Raises ``ValueError``
    for ``levels`` outside 2 to 256.

    Differences from the paper: the paper says 2 bits, and no more. Where bins lie, and that they are read as means, is
    how uniform quantisers of this field do it, and as the authors' code is described; it was not run beside this. There
    a number of a bin takes its 2 bits, or 8, a layer has a float for each bin, in use or not, and one for its mean,
    which is part of the means of bins here. The standard deviation is computed in 64 bits.
    """

    paper = "Sarfi, Thérien, Lidin, Belilovsky, 2025, arXiv:2508.15706"

    levels: Annotated[int, Range(lambda x: 2 <= x <= 256, "must be from 2 to 256")] = 4

    contraction = True

    def bins(
        self, x: Float32[Tensor, " n"]
    ) -> tuple[Float32[Tensor, " used"], Int16[Tensor, " n"], Float32[Tensor, " n"]]:
        """The mean of each bin that has entries, and of each entry its bin, from the middle, and that bin's mean.

        The last of these is what the receiver sees.
        """
        if not x.numel():
            return x, x.to(torch.int16), x
        wide = finite(self, x).double()
        centred = wide - wide.mean()
        width = float(centred.square().sum().div(max(1, x.numel() - 1)).sqrt()) * SIGMAS / self.levels
        middle = self.levels // 2
        number = (centred / (width or 1.0) + middle).round_().clamp_(0, self.levels - 1).long()
        sums, counts = torch.bincount(number, wide), torch.bincount(number)
        means = (sums / counts).float()  # NaN where a bin has no entry, which no number names
        return means[counts > 0], (number - middle).to(torch.int16), means[number]

    def pack(self, bins: Int16[Tensor, " n"]) -> Tensor:
        """The bytes of numbers of bins."""
        if self.levels > 2 * coder.LARGEST:
            return (bins + self.levels // 2).to(torch.uint8)
        coded = coder.pack(bins.to(torch.int8), 2 * bins.numel() + 16, most=self.levels // 2)
        assert coded is not None, "a number takes two bytes at most"
        return coded

    def unpack(self, packet: Packet, n: int) -> Int16[Tensor, " n"]:
        """What :meth:`pack` packed; anything else is a ``WireError``."""
        data = octets(packet)
        if self.levels > 2 * coder.LARGEST:
            return vector(data, n, torch.uint8).to(torch.int16) - self.levels // 2
        bins = coder.unpack(data, n, most=self.levels // 2).to(torch.int16)
        check(not n or int(bins.max()) < self.levels - self.levels // 2, f"numbers of {self.levels} bins")
        return bins

    def values(self, means: Packet, bins: Int16[Tensor, " n"]) -> Float32[Tensor, " n"]:
        """What the receiver sees of each entry. Raises ``WireError`` unless there is one mean for each bin in use."""
        number = bins.long() + self.levels // 2
        used = torch.bincount(number, minlength=self.levels) > 0
        table = torch.zeros(self.levels, dtype=torch.float32, device="cpu")
        table[used] = vector(means, int(used.sum()), torch.float32)
        return table[number]

    def encode(self, x: Tensor, key: Key) -> Packet:
        return self.transcode(x, key)[0]

    def transcode(self, x: Tensor, key: Key) -> tuple[Packet, Tensor]:
        means, bins, seen = self.bins(x.reshape(-1))
        return [means, self.pack(bins)], seen.view(x.shape)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        means, coded = parts(packet, 2, "means and numbers of bins")
        return self.values(means, self.unpack(coded, shape.numel())).view(shape)

    def count(self, packet: Packet) -> float:
        return float(packet[0].numel()) + float(packet[1].numel()) / 4
