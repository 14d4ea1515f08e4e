"""Entries left out at random, by each client for itself."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Size, Tensor

from ..errors import check
from ..key import Key
from ..params import fold
from ..ranges import BelowOne
from ..wire import Packet
from .base import Codec, parts, vector
from .sparse import count_of


@dataclass(frozen=True)
class DropoutAvg(Codec):
    """A share ``drop`` of each layer is left out; each entry is averaged over those who sent it.

    FedDropoutAvg: Gunesli, Bilal, Raza, Rajpoot, "FedDropoutAvg: Generalizable federated learning for histology image
    classification", 2021, arXiv:2111.13230. Every client draws its entries anew in every round. A message has one bit
    an entry that says which were sent, and 4 bytes for each of them. ``drop=0.0`` delivers what ``Dense()`` does.
    Raises ``ValueError`` unless 0 <= drop < 1. The paper also leaves out whole clients: that is the runner's
    ``dropout``.

    The link is linear: packets are averaged before they are decoded. Other links divide ``sum(w x)`` by ``sum(w)``
    over all clients. Here both sums are over the clients that sent the entry, and an entry that nobody sent is zero.
    Inside a link that is not linear (``LBGM(DropoutAvg())``), and where the server clips replies (``clip=``,
    ``Privacy``), packets are decoded one by one, and an entry that was left out counts as zero. The link is no
    contraction: the other clients make up for what one leaves out, and a residual would deliver it twice.

    Differences from the paper: the change of the model is dropped in place of the model, which has the same mean.
    Exactly ``drop`` of the entries are left out, rounded down, and at least one is sent.
    """

    paper = "Gunesli et al., 2021, arXiv:2111.13230"

    drop: BelowOne = 0.5

    linear = True

    def _count(self, n: int) -> int:
        return count_of(1 - Fraction(str(self.drop)), n)

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        n = flat.numel()
        sent = torch.zeros(n, dtype=torch.bool, device="cpu")
        sent[torch.randperm(n, generator=key.generator("dropout"), device="cpu")[: self._count(n)]] = True
        return [sent, flat[sent]]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        if isinstance(packet, Tensor):  # the mean of several
            return vector(packet, n, torch.float32).view(shape)
        sent, values = parts(packet, 2, "which entries were sent, and their values")
        vector(sent, n, torch.bool)
        vector(values, self._count(n), torch.float32)
        return _spread(packet).view(shape)

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        """Of each layer: the sums of w x and of w over those who sent an entry, and the sum of w over everyone."""
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
    flat = torch.zeros(sent.numel(), dtype=torch.float32, device="cpu")
    flat[sent] = values
    return flat
