"""Entries left out at random, by each client for itself."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Size, Tensor

from ..errors import check, require
from ..key import Key
from ..params import fold
from ..wire import Packet
from .base import Codec
from .dense import vector
from .sparse import kept


@dataclass(frozen=True)
class DropoutAvg(Codec):
    """A share ``drop`` of each layer is left out; each entry is averaged over those who sent it.

    FedDropoutAvg: Gunesli, Bilal, Raza, Rajpoot, "FedDropoutAvg: Generalizable federated
    learning for histology image classification", 2021, arXiv:2111.13230. Its dropping of
    clients is the runner's ``dropout``. The entries are drawn anew by every client in every
    round; a bit an entry says which were sent. ``drop=0.0`` is ``Dense()``.

    Linear, in that packets are averaged before they are decoded; but where others add to
    ``sum(w x) / sum(w)`` over everyone, here both sums are over those who sent the entry. One
    that nobody sent is zero: the model keeps it. Inside a link that is not linear
    (``LBGM(DropoutAvg())``), and where the server clips replies (``clip=``, ``Privacy``),
    packets are decoded one by one, and what was dropped is zero there too. No contraction:
    what is left out is made up for by the others, and a residual would deliver it twice.

    Differences from the paper: the change of the model is dropped instead of the model,
    which has the same mean. Exactly ``drop`` of the entries go, rounded down; at least one stays.
    """

    paper = "Gunesli et al., 2021, arXiv:2111.13230"

    drop: float = 0.5

    linear = True

    def __post_init__(self) -> None:
        require(0 <= self.drop < 1, f"DropoutAvg(drop={self.drop}): drop must be at least 0 and below 1")

    def _sent(self, n: int) -> int:
        return kept(1 - Fraction(str(self.drop)), n)

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        n = flat.numel()
        sent = torch.zeros(n, dtype=torch.bool)
        sent[torch.randperm(n, generator=key.generator("dropout"))[: self._sent(n)]] = True
        return [sent, flat[sent]]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        if isinstance(packet, Tensor):  # the mean of several
            return vector(packet, n, torch.float32).view(shape)
        check(isinstance(packet, list) and len(packet) == 2, "which entries were sent, and their values")
        vector(packet[0], n, torch.bool)
        vector(packet[1], self._sent(n), torch.float32)
        return _spread(packet).view(shape)

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        """Of each layer: sum of w x, and of w, over those who sent an entry; sum of w over everyone."""
        spread = [_spread(layer) for layer in packet]  # all are checked before any is added
        totals: list[Any] = total or [(None, None, 0.0)] * len(packet)
        return [
            (fold(values, x, weight), fold(weights, layer[0], weight), whole + weight)
            for (values, weights, whole), x, layer in zip(totals, spread, packet, strict=True)
        ]

    def scale(self, total: Packet, whole: float) -> Packet:
        # ``whole`` is the sum of w for a mean, 1 for a sum; clients that lack these layers count in it too. What
        # everyone sent is divided by exactly that.
        parts = [(values, (weights.double() * whole / everyone).float()) for values, weights, everyone in total]
        return [torch.where(part > 0, values / part, 0.0) for values, part in parts]


def _spread(packet: Packet) -> Tensor:
    """The values in their places, zero elsewhere."""
    sent, values = packet
    check(int(sent.sum()) == values.numel(), "a value for every entry sent")
    flat = torch.zeros(sent.numel())
    flat[sent] = values
    return flat
