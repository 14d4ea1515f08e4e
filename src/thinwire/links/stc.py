"""STC, sparse ternary compression.

Sattler, Wiedemann, Müller, Samek, "Robust and Communication-Efficient Federated Learning From
Non-IID Data", IEEE Transactions on Neural Networks and Learning Systems 2020 (online 2019),
arXiv:1903.02891.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from ..errors import check, require
from ..kernels import gaps
from ..kernels.select import largest
from ..kernels.signs import mean_magnitude, pack_signs, unpack_signs
from ..key import Key
from ..wire import Packet
from .base import Codec
from .dense import number, octets
from .sparse import kept

GOLDEN = (1 + math.sqrt(5)) / 2


@dataclass(frozen=True)
class STC(Codec):
    """The largest entries, ``share`` of each layer (the paper's p), all at their mean magnitude.

    Of n entries k are share * n, rounded up. As in the authors' code all that equal the k-th
    largest magnitude are sent, however many: sums of ternary messages are full of such ties, and
    taken from larger numbers they are equal but for rounding, so 12 bits are compared. But
    zeros stay zero, and are not sent. A sign each, and the gaps between them in a Golomb code
    (Algorithm 1): what ``TopK(share, values=ScaledSign())`` delivers where no more than 2 k are
    sent, in the paper's code. How many there are is read off the code, and its parameter follows
    from that, so neither is sent. Little more than two bits an entry, if all of them are sent.

    The whole method has residuals at both ends, A_i at the clients and A at the server
    (Algorithm 2)::

        FedAvg(up=ErrorFeedback(STC(0.01)), down=EF21(STC(0.01)))

    ErrorFeedback keeps A_i. EF21 sends STC of (what the model is - what clients have of
    it), and that difference is A plus the mean update: the same messages, in absolute values.

    Differences from the paper: by layer; ``Flat(STC(0.01))`` takes the whole vector. The mean
    magnitude is that of all that are sent, and the code's p their share of the entries.
    """

    paper = "Sattler et al., TNNLS 2020, arXiv:1903.02891"

    share: float = 0.01

    contraction = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"STC(share={self.share}): share must be above 0 and at most 1")

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        n = flat.numel()
        positions = largest(flat, kept(self.share, n))
        values = flat[positions]
        return [mean_magnitude(values), pack_signs(values), *gaps.encode(positions, n, golomb(len(positions), n))]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        check(isinstance(packet, list) and len(packet) == 4, "a magnitude, signs and gaps")
        magnitude, signs, quotients, rests = number(packet[0]), *map(octets, packet[1:])
        positions = gaps.decode(quotients, rests, n, golomb(gaps.count(quotients), n))
        flat = torch.zeros(n)
        flat[positions] = unpack_signs(signs, len(positions), float(magnitude))
        return flat.view(shape)

    def count(self, packet: Packet) -> float:
        return 1 + float(packet[1].numel()) / 4


def golomb(k: int, n: int) -> int:
    """The parameter b of the gaps' code, ``1 + floor(log2(ln(phi - 1) / ln(1 - p)))`` for p = k / n, at least 0.

    Gaps of random positions are geometric; phi, the golden ratio, is where 2^b is best for them.
    """
    if not 0 < k < n:
        return 0
    return max(0, 1 + math.floor(math.log2(math.log(GOLDEN - 1) / math.log1p(-k / n))))
