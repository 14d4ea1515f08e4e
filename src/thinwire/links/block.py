"""One contiguous block of every layer: what is cheapest to cut out and to put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Size, Tensor

from ..key import Key
from ..ranges import Range
from ..wire import Packet
from .base import Drawn, vector


@dataclass(frozen=True)
class RandomBlock(Drawn):
    """One run of neighbours of each layer, a ``ratio``-th of it, wherever the shared seed says.

    This is RBGS, random block-wise gradient sparsification. Of a layer's n entries the block has max(1,
    floor(n/ratio)). Every start has the same probability, and the block goes on at the beginning when it meets the
    end. It is the same for all clients of a round. So only its values are sent, 4 bytes each, and packets can be
    averaged before they are decoded. It is a contraction on average over the draw, because every entry is sent as
    often as any other. With ``unbiased`` the receiver divides the values by the share that was sent, and the link is
    no contraction. Raises ``ValueError`` for a ``ratio`` below 1 or infinite. Xu, Huang, "Detached Error Feedback for
    Distributed SGD with Random Sparsification", ICML 2022.

    Differences from the paper: none in the default. ``unbiased`` is an addition: the paper does not rescale.
    """

    paper = "Xu, Huang, ICML 2022"

    ratio: Annotated[float, Range(lambda x: 1 <= x < float("inf"), "must be at least 1 and finite")] = 64.0
    unbiased: bool = False

    def block(self, n: int, key: Key) -> tuple[int, int]:
        """Where the block of a layer of ``n`` entries starts, and how many entries it has."""
        return (key.everyone().number("block") % n, max(1, int(n // self.ratio))) if n else (0, 0)

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        start, length = self.block(flat.numel(), key)
        wrapped = max(0, start + length - flat.numel())
        return torch.cat([flat[start : start + length], flat[:wrapped]])

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        start, length = self.block(n, key)
        values = vector(packet, length, torch.float32)
        if self.unbiased and n:
            values = values * (n / length)
        flat = torch.zeros(n, dtype=torch.float32, device="cpu")
        straight = min(length, n - start)
        flat[start : start + straight] = values[:straight]
        flat[: length - straight] = values[straight:]
        return flat.view(shape)
