"""Numbers as whole numbers of a fixed range, in a form that clients may hide and that a server may still add.

The arithmetic of secure aggregation: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", CCS 2017, section 4. Who hides what from whom is :mod:`thinwire.federated.secure`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ..errors import CombinationError, check, require
from ..key import Key
from ..params import Layout, Params
from ..ranges import Count, Positive, Range
from ..wire import Packet, State
from .base import Link, Wrapper, finite, octets
from .dense import Dense

Bits = Annotated[int, Range(lambda x: 2 <= x <= 32, "must be from 2 to 32")]
PIECE = 1 << 16  # numbers whose bits are moved at once


@dataclass(frozen=True)
class SecureSum(Wrapper):
    """The numbers of another link's packet, each as a whole number of ``bits`` bits, added modulo a power of two.

    A number is rounded at random to one of the 2**bits multiples of clip / 2**(bits - 1) from -``clip`` to one below
    ``clip``, so that it is right on average. Beyond them it is cut to the nearest. What is seen is what ``inner`` makes
    of the rounded numbers. Each takes ``bits`` bits and as many as the sum of ``most`` clients needs, 10 for 1,024. A
    round's sum is exact: no rounding but that of each client is in it.

    In a run, clients add masks to what they send that cancel in the sum alone (:mod:`thinwire.federated.secure`). The
    server then learns the sum and not a reply. ``neighbours`` is with how many others of a round each client shares
    masks, None: by the size of the round; ``threshold`` is how many of them have to answer beside it at a round's end,
    None: half of them, rounded up. ``inner`` is a linear link: ``Dense()``, ``RandK``, ``RandomBlock``, ``Projection``,
    ``CountSketch``. Raises ``CombinationError`` for others, and ``ValueError`` for values out of range.

    Differences from the paper: numbers are rounded at random, not to the nearest.
    """

    paper = "Bonawitz et al., CCS 2017; Bell et al., CCS 2020"

    inner: Link = Dense()
    bits: Bits = 16
    clip: Positive = 1.0
    most: Count = 1024
    neighbours: Count | None = None
    threshold: Count | None = None

    contraction = False
    absolute = False
    sparse = False
    feedback = False

    def __post_init__(self) -> None:
        if not self.inner.linear or self.inner.memory or _adds_otherwise(self.inner):
            raise CombinationError(
                f"SecureSum({self.inner!r}): a sum is all that the server learns, and packets of this link cannot be "
                f"added: take a linear one, such as Dense(), RandK(0.01), RandomBlock(64) or CountSketch(...)"
            )
        few = self.threshold is None or self.neighbours is None or self.threshold <= self.neighbours
        require(
            few,
            f"SecureSum(neighbours={self.neighbours}, threshold={self.threshold}): no more can answer than there are "
            f"neighbours",
        )
        large = f"SecureSum(bits={self.bits}, most={self.most}): a sum has {self.width} bits, and must have at most 62"
        require(self.width <= 62, large)

    @property
    def width(self) -> int:
        """Bits of a number that is sent: it is modulo 2**width."""
        return max(8, self.bits + (self.most - 1).bit_length())

    @property
    def step(self) -> float:
        """What a whole number counts."""
        return self.clip / (1 << (self.bits - 1))

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, _, tx = self.inner.send(x, tx, key)
        numbers = finite(self, _numbers(packet)).double() / self.step
        draw = torch.rand(numbers.shape, generator=key.generator("round"), dtype=torch.float64, device="cpu")
        half = 1 << (self.bits - 1)
        whole = (numbers + draw).floor().clamp(-half, half - 1).long()
        seen, _ = self.inner.recv(_refill(packet, whole.double() * self.step), x.layout, None, key)
        return self.pack(whole), seen, tx

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        blank = self.inner.shape(layout, key)
        count = _numbers(blank).numel()
        if isinstance(packet, Tensor) and packet.dtype == torch.float64:  # a mean, which `scale` made
            check(packet.shape == (count,), f"{count} numbers")
            return self.inner.recv(_refill(blank, packet), layout, rx, key)
        return self.inner.recv(_refill(blank, self.signed(self.unpack(packet, count)) * self.step), layout, rx, key)

    def check(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self.recv(packet, layout, rx, key)

    def shape(self, layout: Layout, key: Key) -> Packet:
        count = _numbers(self.inner.shape(layout, key)).numel()
        return torch.zeros((), dtype=torch.uint8, device="cpu").expand(-(-count * self.width // 8))

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        if weight != int(weight) or weight < 1:
            raise CombinationError(f"{self!r}: whole numbers are added, and a weight of {weight:g} is none")
        numbers = self.unpack(octets(packet), None) * int(weight)
        if total is not None:
            numbers += total
        return numbers & ((1 << self.width) - 1)

    def scale(self, total: Packet, whole: float) -> Packet:
        return self.signed(total) * (self.step / whole)

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return {"*": packet}

    def floats(self, packet: Packet) -> float:
        return octets(packet).numel() * 8 // self.width * self.bits / 32

    def pack(self, numbers: Int64[Tensor, " n"]) -> UInt8[Tensor, " bytes"]:
        """Whole numbers modulo 2**width, ``width`` bits each, the highest first; the last byte is filled with zeros."""
        places = np.arange(self.width - 1, -1, -1)
        pieces = np.array_split(numbers.numpy(), max(1, -(-len(numbers) // PIECE)))
        bits = [((piece[:, None] >> places) & 1).astype(np.uint8).ravel() for piece in pieces]
        return torch.from_numpy(np.packbits(np.concatenate(bits)))

    def unpack(self, packet: Packet, count: int | None) -> Int64[Tensor, " n"]:
        """``count`` numbers, from 0 on; None: as many as there are. Raises ``WireError`` for another length."""
        data = octets(packet)
        count = data.numel() * 8 // self.width if count is None else count
        check(data.numel() == -(-count * self.width // 8), f"{count} numbers of {self.width} bits")
        places, numbers = 1 << np.arange(self.width - 1, -1, -1), np.zeros(count, np.int64)
        step = PIECE * 8  # numbers of whole bytes
        for at in range(0, count, step):
            part = data[at * self.width // 8 : -(-(at + step) * self.width // 8)].numpy()
            size = min(step, count - at)
            bits = np.unpackbits(part, count=size * self.width).reshape(size, self.width)
            numbers[at : at + size] = bits.astype(np.int64) @ places
        return torch.from_numpy(numbers)

    def signed(self, numbers: Int64[Tensor, " n"]) -> Tensor:
        """Numbers modulo 2**width as those from -2**(width - 1) on, in 64-bit floats."""
        half = 1 << (self.width - 1)
        return (((numbers + half) & ((1 << self.width) - 1)) - half).double()


def holds_secret(link: Link) -> bool:
    """Whether a link is a :class:`SecureSum`, or holds one."""
    return isinstance(link, SecureSum) or any(map(holds_secret, link.held if isinstance(link, Wrapper) else ()))


def _adds_otherwise(link: Link) -> bool:
    """Whether a linear link, or one that it holds, does not add numbers, entry by entry: DropoutAvg adds by sender."""
    if isinstance(link, Wrapper) and not isinstance(link, SecureSum):
        return any(map(_adds_otherwise, link.held))
    return type(link).fold is not Link.fold or type(link).scale is not Link.scale


def _numbers(packet: Packet) -> Tensor:
    """All numbers of a linear link's packet, in order."""
    parts = list[Tensor]()
    _walk(packet, lambda x: parts.append(x.reshape(-1)) or x)  # type: ignore[func-returns-value]
    return torch.cat(parts) if parts else torch.zeros(0, device="cpu")


def _refill(packet: Packet, numbers: Tensor) -> Packet:
    """The packet with other numbers in their places."""
    at = 0

    def take(x: Tensor) -> Tensor:
        nonlocal at
        part = numbers[at : at + x.numel()].to(x.dtype if x.dtype.itemsize > 2 else torch.float32).view(x.shape)
        at += x.numel()
        return part

    return _walk(packet, take)


def _walk(packet: Packet, change: Callable[[Tensor], Tensor]) -> Packet:
    if isinstance(packet, Tensor):
        return change(packet) if packet.is_floating_point() else packet
    return [_walk(part, change) for part in packet] if isinstance(packet, list) else packet
