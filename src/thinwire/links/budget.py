"""A budget of bytes, spent where it lowers the error most."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import check, require
from ..key import Key
from ..params import Layout, Params
from ..ranges import PositiveInt
from ..wire import Packet, State, length
from .base import Codec, Link, finite, join, parts, vector
from .dense import Dense, Half
from .quantize import Int8
from .sign import ScaledSign
from .sparse import TopK, count_of

LADDER = (TopK(0.001), TopK(0.003), TopK(0.01), TopK(0.03), TopK(0.1), ScaledSign(), Int8(), Half(), Dense())


class _Option(NamedTuple):
    """One layer by one codec."""

    choice: int  # of the ladder
    packet: Packet
    bytes: int
    error: float  # squared, summed over the layer


@dataclass(frozen=True)
class Budget(Link):
    """At most ``bytes`` a message: for each layer the codec of ``ladder`` that is worth its bytes.

    Every layer is encoded once by every codec, and its bytes and squared error are measured. All layers begin at
    their cheapest codec. Then the step to a dearer codec that takes most error off a byte, over all layers, is made
    again and again, as long as the message stays within the budget. The packet names each layer's codec in one byte.
    The budget is for the serialised packet, ``len(dumps(packet))``, and holds for every message. Costs the time of
    all codecs together, and the memory of all their packets. ``send`` raises ``ValueError`` if the layers at their
    cheapest need more, and says how many bytes they need.

    The steps are those along the lower convex hull of each layer's points (bytes, error), in the order of a falling
    Lagrange multiplier, which is the least error for the bytes used: Shoham, Gersho, "Efficient Bit Allocation for an
    Arbitrary Set of Quantizers", IEEE Trans. ASSP, 1988.

    Differences from the paper: its algorithm stops at the first step that does not fit. Here the bytes that are left
    go to whatever still fits, best first. Then the step that did not fit is tried as well, with the other layers
    bought anew after it, and the choice with less error is sent (one layer may be nearly the whole model).
    """

    paper = "Shoham, Gersho, IEEE Trans. ASSP, 1988"

    bytes: PositiveInt
    ladder: tuple[Codec, ...] = LADDER

    def __post_init__(self) -> None:
        require(0 < len(self.ladder) <= 256, f"Budget(ladder=...): {len(self.ladder)} codecs; it takes 1 to 256")

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        return all(codec.contraction for codec in self.ladder)

    @property
    def absolute(self) -> bool:  # type: ignore[override]
        return all(codec.absolute for codec in self.ladder)

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        layers = [self._options(layer, key.at(name)) for name, layer in x.to(torch.float32).items()]
        hulls = [_hull(options) for options in layers]
        chosen, missed = _spend(self.bytes, layers, hulls)
        if chosen is None:
            least = length(_pack([hull[0] for hull in hulls]))
            raise ValueError(
                f"{self!r}: the {len(hulls)} layers take {least} bytes at their cheapest; raise bytes to that, or put "
                f"a cheaper codec into the ladder"
            )
        while missed is not None:  # a large step found no room: it may be worth more than what was bought instead
            i, high = missed
            hulls[i] = hulls[i][hulls[i].index(high) :]
            instead, missed = _spend(self.bytes, layers, hulls)
            if instead is None or _error(instead) >= _error(chosen):
                break
            chosen = instead
        packet = _pack(chosen)
        return packet, self._decode(packet, x.layout, key), None

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        choices, packets = parts(packet, 2, "choices and packets")
        vector(choices, len(layout.names), torch.uint8)
        check(bool((choices < len(self.ladder)).all()), f"choices below {len(self.ladder)}")
        parts(packets, len(layout.names), "one packet a layer")
        return self._decode(packet, layout, key), None

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return dict(zip(layout.names, packet[1], strict=True))

    def floats(self, packet: Packet) -> float:
        return float(sum(self.ladder[c].count(p) for c, p in zip(packet[0].tolist(), packet[1], strict=True)))

    def _options(self, layer: Tensor, key: Key) -> list[_Option]:
        options = []
        for choice, codec in enumerate(self.ladder):
            packet, seen = codec.transcode(layer, key)
            lost = layer - seen
            norm = finite(self, torch.linalg.vector_norm(lost, dtype=torch.float64))
            options.append(_Option(choice, packet, length(packet), float(norm) ** 2))
        return options

    def _decode(self, packet: Packet, layout: Layout, key: Key) -> Params:
        named = zip(packet[0].tolist(), packet[1], layout.names, layout.shapes, strict=True)
        return join(layout, (self.ladder[c].decode(p, shape, key.at(name)) for c, p, name, shape in named))


def least(layout: Layout) -> int:
    """Bytes that hold any numbers of these layers, each by that codec of ``LADDER`` which never takes more than so few.

    At their cheapest layers of other numbers take more or fewer bytes, as where one was zero. So this is above that.
    """
    return 16 + sum(1 + min(_most(codec, size) for codec in LADDER) for size in layout.sizes)


@cache
def _most(codec: Codec, n: int) -> int:
    """Bytes that ``n`` entries take at most: of TopK with as many ties as it sends, anywhere."""
    if not isinstance(codec, TopK):
        return 3 + length(codec.encode(torch.zeros(n, device="cpu"), Key(0)))  # whatever they are, and padding
    k = min(n, 2 * count_of(codec.share, n))
    b = max(0, round(math.log2(max(1.0, n / max(k, 1)))))
    return 34 + 4 * k + min(n, k * (b + 1) + (n >> b)) // 8  # structure, values, gaps in a Rice code or a bit an entry


def _pack(options: list[_Option]) -> Packet:
    return [torch.tensor([o.choice for o in options], dtype=torch.uint8, device="cpu"), [o.packet for o in options]]


def _error(chosen: list[_Option]) -> float:
    return sum(o.error for o in chosen)


def _spend(
    most: int, layers: list[list[_Option]], hulls: list[list[_Option]]
) -> tuple[list[_Option] | None, tuple[int, _Option] | None]:
    """What each layer is sent as in at most so many bytes, from the first of its hull on, and the first step that
    did not fit (its layer and where it leads). None where even the first of all hulls are too many bytes.
    """
    steps = [(_slope(low, high), i, high) for i, hull in enumerate(hulls) for low, high in pairwise(hull)]
    steps.sort(key=lambda step: -step[0])  # stable: a layer's own steps stay in order

    def after(count: int) -> list[_Option]:
        chosen = [hull[0] for hull in hulls]
        for _, i, high in steps[:count]:
            chosen[i] = high
        return chosen

    fitting = bisect_right(range(len(steps) + 1), most, key=lambda count: length(_pack(after(count))))
    if fitting == 0:
        return None, None
    chosen = after(fitting - 1)
    room = most - length(_pack(chosen))
    better = [
        (_slope(chosen[i], o), i, o)
        for i, options in enumerate(layers)
        for o in options
        if o.error < chosen[i].error and o.bytes > chosen[i].bytes
    ]
    for _, i, o in sorted(better, key=lambda step: -step[0]):
        if o.error < chosen[i].error and o.bytes - chosen[i].bytes <= room:
            dearer = [*chosen[:i], o, *chosen[i + 1 :]]
            left = most - length(_pack(dearer))  # exactly: padding depends on what lies before
            if left >= 0:
                chosen, room = dearer, left
    return chosen, None if fitting > len(steps) else steps[fitting - 1][1:]


def _hull(options: list[_Option]) -> list[_Option]:
    """The lower convex hull, cheapest first: each takes less error off a byte than the one before."""
    hull: list[_Option] = []
    for o in sorted(options, key=lambda o: (o.bytes, o.error)):
        if hull and o.error >= hull[-1].error:
            continue  # dearer and no better
        while len(hull) > 1 and _slope(hull[-1], o) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(o)
    return hull


def _slope(low: _Option, high: _Option) -> float:
    """The squared error that a byte more takes off."""
    return (low.error - high.error) / (high.bytes - low.bytes)
