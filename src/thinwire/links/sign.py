"""One bit an entry."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Size, Tensor

from ..errors import check
from ..kernels.signs import mean_magnitude, pack_signs, unpack_signs
from ..key import Key
from ..wire import Packet
from .base import Codec
from .dense import number, octets


@dataclass(frozen=True)
class ScaledSign(Codec):
    """The sign of every entry, eight to a byte, and one scale a layer: the mean magnitude.

    sign(0) is +1. Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD",
    ICML 2019, arXiv:1901.09847, section 4. Differences from the paper: none.
    """

    paper = "Karimireddy et al., ICML 2019, arXiv:1901.09847"

    contraction = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        return [mean_magnitude(flat), pack_signs(flat)]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        check(isinstance(packet, list) and len(packet) == 2, "a scale and signs")
        scale = float(number(packet[0]))
        return unpack_signs(octets(packet[1]), shape.numel(), scale).view(shape)

    def count(self, packet: Packet) -> float:
        return 1 + float(packet[1].numel()) / 4
