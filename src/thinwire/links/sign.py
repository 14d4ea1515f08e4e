"""One bit an entry."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Size, Tensor

from ..kernels.signs import mean_magnitude, pack_signs, unpack_signs
from ..key import Key
from ..wire import Packet
from .base import Codec, number, octets, parts


@dataclass(frozen=True)
class ScaledSign(Codec):
    """The sign of every entry, eight to a byte, and one scale a layer: the mean magnitude, 4 bytes.

    sign(0) is +1. It is a contraction, so error feedback may go around it. Karimireddy, Rebjock, Stich, Jaggi, "Error
    Feedback Fixes SignSGD", ICML 2019, arXiv:1901.09847, section 4.

    Differences from the paper: none.
    """

    paper = "Karimireddy et al., ICML 2019, arXiv:1901.09847"

    contraction = True
    packed = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        return [mean_magnitude(flat), pack_signs(flat)]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        scale, signs = parts(packet, 2, "a scale and signs")
        return unpack_signs(octets(signs), shape.numel(), float(number(scale))).view(shape)


@dataclass(frozen=True)
class SignSGD(Codec):
    """The sign of every entry, eight to a byte, and nothing else: the receiver sees +1 or -1.

    sign(0) is +1. Clients' signs are averaged like any update, ``FedAvg(up=SignSGD(), opt=SGD(0.001))``, so the
    server's rate is the size of a step. With the majority vote of the paper one bit an entry is enough in both
    directions::

        FedAvg(up=SignSGD(), down=EF21(ScaledSign()), opt=MajorityVote(0.001), weights="uniform")

    The receiver does not learn how large an entry is, so the link is no contraction. For error feedback take
    :class:`ScaledSign`. Bernstein, Wang, Azizzadenesheli, Anandkumar, ICML 2018, arXiv:1802.04434, Algorithm 1;
    Bernstein, Zhao, Azizzadenesheli, Anandkumar, ICLR 2019, arXiv:1810.05291.

    Differences from the paper: the sign is that of the change of the model, which for one local step is that of the
    gradient.
    """

    paper = "Bernstein et al., ICML 2018, arXiv:1802.04434"

    packed = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        return pack_signs(x.reshape(-1))

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        return unpack_signs(octets(packet), shape.numel(), 1.0).view(shape)
