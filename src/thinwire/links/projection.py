"""A random subspace as a link: d floats whatever the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Size, Tensor

from ..key import Key
from ..ranges import PositiveInt
from ..wire import Packet
from .base import Codec, vector
from .subspace import Basis, Fastfood


@dataclass(frozen=True)
class Projection(Codec):
    """Aᵀx in ``dim`` floats of 4 bytes; the receiver sees A Aᵀx, which is x on average.

    A is drawn anew each round, or once with ``fixed``. The link is linear, so packets are averaged before they are
    decoded. It is no contraction: of D entries the error is about sqrt(D / d) times as long as x, so no error
    feedback goes around it. Each layer is projected alone; ``Flat(Projection(...))`` takes the whole vector. A layer
    of at most ``dim`` entries is sent whole. Raises ``ValueError`` for a ``dim`` below 1. Melas-Kyriazi, Wang, 2021.

    Differences from the paper: there one matrix is drawn for the whole vector, and the model itself moves inside its
    span, so that the downlink is small too. That is :class:`~thinwire.Intrinsic`. Here updates alone are projected,
    layer by layer, and another matrix in each round lets them reach every direction. The constant is that of the
    paper, which makes E[A Aᵀ] = I.
    """

    dim: PositiveInt
    basis: Basis = Fastfood()
    fixed: bool = False

    linear = True
    grows = True
    paper = "Melas-Kyriazi, Wang, 2021"

    def _key(self, key: Key) -> Key:
        return key.everyone().always() if self.fixed else key.everyone()

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        return flat if flat.numel() <= self.dim else self.basis.project(flat, self.dim, self._key(key))

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        values = vector(packet, min(n, self.dim), torch.float32)
        if n <= self.dim:
            return values.view(shape)
        # Own memory: a product's bits may depend on how its factors are aligned, and a message is as it is.
        return self.basis.expand(values.clone(), n, self._key(key)).view(shape)
