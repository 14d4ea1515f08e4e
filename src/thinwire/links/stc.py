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

from ..errors import check
from ..kernels import gaps, levels
from ..kernels.select import largest
from ..kernels.signs import mean_magnitude, pack_signs, unpack_signs
from ..key import Key
from ..ranges import Share
from ..wire import Packet
from .base import Codec, number, octets, parts, width
from .sparse import count_of

GOLDEN = (1 + math.sqrt(5)) / 2


@dataclass(frozen=True)
class STC(Codec):
    """The largest entries, ``share`` of each layer (the paper's p), all at their mean magnitude.

    Of n entries k are share * n, rounded up. All entries that equal the k-th largest magnitude are sent, as in the
    authors' code, however many they are. Magnitudes are compared in 12 bits: sums of ternary messages have many ties
    that differ by rounding alone. Zeros are not sent. A message has the mean magnitude (4 bytes a layer), a sign an
    entry, and the gaps between positions in a Golomb code (Algorithm 1). The number of entries is read off the code,
    and the code's parameter follows from it, so neither is sent. Where they are fewer bytes, as in most layers of more
    than some hundred entries, the number of entries, and their places and signs together by the adaptive coder
    (:mod:`thinwire.kernels.levels`), take the place of signs and gaps. If at most 2 k entries are sent, the receiver
    sees what ``TopK(share, values=ScaledSign())`` delivers. If all entries are sent, a message has little more than two
    bits an entry. Raises ``ValueError`` unless 0 < share <= 1.

    The whole method has residuals at both ends, A_i at the clients and A at the server (Algorithm 2)::

        FedAvg(up=ErrorFeedback(STC(0.01)), down=EF21(STC(0.01)))

    ErrorFeedback keeps A_i. EF21 sends STC of the difference between the model and what clients have of it. That
    difference is A plus the mean update, so the messages are those of the paper.

    Differences from the paper: p is taken of each layer; ``Flat(STC(0.01))`` takes it of the whole vector. Gaps in a
    Golomb code are sent only where the adaptive coder takes more. The mean magnitude is that of all entries that are
    sent, ties included, and the p of the code is their share of the entries.
    """

    paper = "Sattler et al., TNNLS 2020, arXiv:1903.02891"

    share: Share = 0.01

    contraction = True
    sparse = True

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        n = flat.numel()
        positions = largest(flat, count_of(self.share, n))
        values = flat[positions]
        magnitude, packed = mean_magnitude(values), pack_signs(values)
        coded = None
        if n < levels.MOST:
            signs = torch.zeros(n, dtype=torch.int8, device="cpu")
            signs[positions] = torch.where(values.signbit(), -1, 1).to(torch.int8)
            coded = levels.pack(signs, n, width(x.shape), most=1)
        quotients, rests = gaps.encode(positions, n, golomb(len(positions), n))
        if coded is not None and coded.numel() < packed.numel() + quotients.numel() + rests.numel():
            return [magnitude, len(positions), coded]
        return [magnitude, packed, quotients, rests]

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        if isinstance(packet, list) and len(packet) == 3:
            magnitude, k, coded = packet
            ternary = levels.unpack(octets(coded), n, width(shape), most=1)
            check(type(k) is int and int(ternary.count_nonzero()) == k, "as many entries as are said")
            return (ternary.float() * number(magnitude)).view(shape)
        magnitude, *packed = parts(packet, 4, "a magnitude, signs and gaps")
        signs, quotients, rests = map(octets, packed)
        positions = gaps.decode(quotients, rests, n, golomb(gaps.count(quotients), n))
        flat = torch.zeros(n, dtype=torch.float32, device="cpu")
        flat[positions] = unpack_signs(signs, len(positions), float(number(magnitude)))
        return flat.view(shape)

    def count(self, packet: Packet) -> float:
        signs = (packet[1] + 7) // 8 if len(packet) == 3 else packet[1].numel()  # bytes, whatever they are coded in
        return 1 + float(signs) / 4


def golomb(k: int, n: int) -> int:
    """The parameter b of the gaps' code, ``1 + floor(log2(ln(phi - 1) / ln(1 - p)))`` for p = k / n, at least 0.

    Gaps of random positions are geometrically distributed, and this b is the best one for them. phi is the golden
    ratio.
    """
    if not 0 < k < n:
        return 0
    return max(0, 1 + math.floor(math.log2(math.log(GOLDEN - 1) / math.log1p(-k / n))))
