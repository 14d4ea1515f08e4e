"""Whole layers: as they are, or with fewer bits a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Size, Tensor

from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State
from .base import Codec, vector


@dataclass(frozen=True)
class Dense(Codec):
    """Every number as it is, 4 bytes each, or 8 of a model in 64 bits. All layers are one tensor, which is not copied.

    Within another codec, as in ``TopK(0.01, values=Dense())``, numbers have 32 bits.
    """

    linear = True
    contraction = True
    absolute = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        return x.reshape(-1)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        return vector(packet, shape.numel(), torch.float32).view(shape)

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        return x.flat, x, None

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return Params(layout, vector(packet, layout.size, layout.dtype)), None

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return {name: packet[start : start + size] for name, (start, size, _) in layout.spans.items()}

    def floats(self, packet: Packet) -> float:
        return self.count(packet)


class _Narrow(Codec):
    """Every number in 16 bits. The mean of packets is taken in 32 bits, so it decodes to the mean."""

    linear = True
    contraction = True
    absolute = True
    dtype: torch.dtype

    def encode(self, x: Tensor, key: Key) -> Packet:
        most = torch.finfo(self.dtype).max
        return x.reshape(-1).clamp(-most, most).to(self.dtype)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        return vector(packet, shape.numel(), self.dtype, torch.float32).to(torch.float32).view(shape)


@dataclass(frozen=True)
class Half(_Narrow):
    """IEEE half precision, 2 bytes each: 11 significant bits. Numbers beyond 65,504 are cut to 65,504."""

    dtype = torch.float16


@dataclass(frozen=True)
class BF16(_Narrow):
    """bfloat16, 2 bytes each: 8 significant bits and the range of 32-bit floats."""

    dtype = torch.bfloat16
