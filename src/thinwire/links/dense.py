"""Whole layers: as they are, or with fewer bits a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Size, Tensor

from ..errors import check
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State
from .base import Codec, Link


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


def vector(packet: Packet, size: int, *dtypes: torch.dtype) -> Tensor:
    """The packet. Raises ``WireError`` unless it is a vector of this size and one of these types."""
    kinds = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    check(
        isinstance(packet, Tensor) and packet.dtype in dtypes and packet.shape == (size,),
        f"{size} numbers of {kinds}",
    )
    tensor: Tensor = packet
    return tensor


def octets(packet: Packet) -> Tensor:
    """The packet. Raises ``WireError`` unless it is a row of bytes. The caller checks how many bytes there are."""
    check(isinstance(packet, Tensor) and packet.dtype == torch.uint8 and packet.ndim == 1, "a row of bytes")
    tensor: Tensor = packet
    return tensor


def number(packet: Packet, dtype: torch.dtype = torch.float32) -> Tensor:
    """The packet. Raises ``WireError`` unless it is one number of this type."""
    check(isinstance(packet, Tensor) and packet.dtype == dtype and packet.shape == (), "one number")
    tensor: Tensor = packet
    return tensor


__all__ = ["BF16", "Dense", "Half", "Link", "number", "octets", "vector"]
