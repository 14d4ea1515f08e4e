"""A budget of bytes for a whole update: each layer in the basis where it is shortest, one step for all numbers.

Updates of a network's layers are nearly of low rank, and not sparse. So a layer is sent as a few rank-one terms of its
singular value decomposition, rounded so that a bit more takes the same error off everywhere: transform coding, as
images are coded (Goyal, "Theoretical Foundations of Transform Coding", IEEE Signal Processing Magazine, 2001). The
choices are those of rate and distortion together (Shoham, Gersho, IEEE Trans. ASSP, 1988).

Differences from the paper: none claims this method. The transform is each layer's own and is sent with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import check, require
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State, length
from .allocation import least, search
from .base import Link, finite, octets, vector
from .bitstream import read


@dataclass(frozen=True)
class TransformCoding(Link):
    """At most ``bytes`` a message, spent over all layers where they take most error off.

    A layer is the matrix [first dimension, all others]. It is sent as rounded rank-one terms of its singular value
    decomposition, as its rounded entries, or not at all, whatever is least error for its bits. Layers of one dimension
    are sent as entries. All numbers of a message are rounded to multiples of one step; for a term, in units of the
    layer it is part of. The step is found by bisection so that the message fills its bytes. Levels are coded by
    :mod:`thinwire.kernels.adaptive`.

    Give one of three. ``bytes`` holds for the serialised packet, ``len(dumps(packet))``, and for every message. With
    ``rate`` it is so many bits an entry of what is sent, and 64 bytes. ``share`` is the share of the squared length
    that the receiver sees, at least, in as few bytes as that takes.

    Where the numbers themselves, 4 bytes each, fit the bytes (with ``share``: are fewer), they are sent as they are. It
    is a contraction: error feedback may go around it. For broadcasts: ``EF21(TransformCoding(16000))``. What the
    receiver sees are the same bits on every machine; the packet depends on the library that decomposes. Raises
    ``ValueError`` where not exactly one is given or one is out of range, and if the bytes do not hold a single entry.
    """

    bytes: int | None = None
    rate: float | None = None
    share: float | None = None

    contraction = True
    example: ClassVar[str] = "TransformCoding(4000)"

    def __post_init__(self) -> None:
        given = [value for value in (self.bytes, self.rate, self.share) if value is not None]
        require(len(given) == 1, f"{self!r}: give one of bytes, rate (bits an entry) and share (of the squared length)")
        require(self.bytes is None or self.bytes > 0, f"{self!r}: bytes must be positive")
        require(
            self.rate is None or 0 < self.rate <= 64, f"{self!r}: rate must be above 0 and at most 64 bits an entry"
        )
        require(self.share is None or 0 < self.share < 1, f"{self!r}: share must be above 0 and below 1")

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, seen = self._code(Params(_single(x.layout), finite(self, x.flat.to(torch.float32))), key)
        return packet, Params(x.layout, seen.flat.to(x.layout.dtype)), None

    def _code(self, x: Params, key: Key) -> tuple[Tensor, Params]:
        most = self._most(x.layout)
        largest = float(x.flat.abs().max()) if x.layout.size else 0.0
        if not largest:
            return torch.zeros(0, dtype=torch.uint8, device="cpu"), x.zeros()
        if most is not None and length(x.flat) <= most:
            return x.flat, x.clone()
        message = search(x, largest, most, self.share, key)
        if message is None or (most is None and length(x.flat) <= length(message[0])):
            if most is not None:
                enough = least(x.layout)
                instead = f"raise bytes to {enough}" if self.bytes else f"give bytes={enough} in place of rate"
                raise ValueError(f"{self!r}: a single entry of {x.layout} takes more; {instead}")
            return x.flat, x.clone()
        finite(self, message[1].flat)
        return message

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if isinstance(packet, Tensor) and packet.dtype == torch.float32:
            return Params(layout, vector(packet, layout.size, torch.float32).to(layout.dtype)), None
        coded = octets(packet)
        most = self._most(layout)
        check(most is None or length(coded) <= most, f"at most {most} bytes")
        return Params(layout, read(coded, _single(layout)).flat.to(layout.dtype)), None

    def _most(self, layout: Layout) -> int | None:
        """The bytes of a packet of these layers, at most."""
        if self.rate is not None:
            return 64 + math.ceil(self.rate * layout.size / 8)
        return self.bytes

    def floats(self, packet: Packet) -> float:
        return float(packet.numel() * packet.dtype.itemsize / 4)


def _single(layout: Layout) -> Layout:
    """The same layers in 32 bits, in which all is coded."""
    return Layout(layout.names, layout.shapes)
