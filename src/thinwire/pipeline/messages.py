"""Activations and error gradients as packets: through the links of a schedule, and AQ-SGD's memory of examples."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import check
from ..key import Key
from ..links import Dense
from ..params import Layout, Params
from ..wire import Packet, length
from .base import Op, Schedule
from .stored import AQSGD, Store

ROOM = 16  # differences may take so small a share more than the numbers themselves, before they need two messages
What = Literal["activations", "gradients"]


class Messages:
    """Packets that one part sends, and tensors of those that it gets. Both ends draw from the key of the sender."""

    def __init__(self, schedule: Schedule, seed: int, replica: int, part: int, parts: int) -> None:
        self.schedule, self.seed, self.replica, self.part, self.parts = schedule, seed, replica, part, parts
        stored = schedule.activations
        most = stored.examples if isinstance(stored, AQSGD) else 0
        self.sent, self.received = Store(most), Store(most)
        self.announced = False  # how large messages of differences are

    def pack(self, x: Tensor, what: What, op: Op, examples: list[int] | None = None) -> tuple[Packet, int | None]:
        """A packet, and the bytes of those to come where it is larger than they are."""
        link: Any = getattr(self.schedule, what)
        key = self._key(what, op, self.part)
        if isinstance(link, AQSGD):
            kind, numbers, usual = [str(x.dtype), list(x.shape)], x.detach().to("cpu", torch.float32), None
            if not self.announced and not self.sent.knows(self._name(examples)):
                later = length([*kind, self.sent.differences(link.link, numbers, key)])
                usual, self.announced = later + later // ROOM, True
            return [*kind, self.sent.send(link.link, numbers, self._name(examples), key)], usual
        if type(link) is Dense:
            return plain(x), None
        params = Params.of([("x", x.detach().cpu())])
        return [str(x.dtype), list(x.shape), link.send(params, None, key)[0]], None

    def unpack(self, packet: Packet, what: What, op: Op, examples: list[int] | None = None) -> Tensor:
        """The tensor of a neighbour's packet: activations of the part before, or gradients of the one after."""
        link: Any = getattr(self.schedule, what)
        if type(link) is Dense:
            return open_plain(packet)
        key = self._key(what, op, self.part - 1 if what == "activations" else self.part + 1)
        check(isinstance(packet, list) and len(packet) == 3, "a type, a shape and what the link made of the numbers")
        kind, shape, inner = packet
        dtype = getattr(torch, str(kind).removeprefix("torch."), None)
        check(isinstance(dtype, torch.dtype), "the name of a type")
        if isinstance(link, AQSGD):
            return self.received.recv(link.link, inner, self._name(examples), key).to(dtype)
        layout = Layout(("x",), (torch.Size(shape),), torch.float64 if dtype == torch.float64 else torch.float32)
        x: Tensor = link.recv(inner, layout, None, key)[0]["x"].to(dtype)
        return x

    def _key(self, what: str, op: Op, sender: int) -> Key:
        number = self.replica * self.parts + sender  # among all parts of all replicas: no two draw alike
        return Key(self.seed, op.batch, number, f"pipeline/{what}/{op.micro}")

    def _name(self, examples: list[int] | None) -> list[int]:
        if examples is None:
            raise ValueError(
                f"{self.schedule.activations!r} remembers activations by example: step(x, y, examples=...) needs the "
                "numbers of the batch's examples, on every rank"
            )
        return examples


def plain(x: Tensor) -> Tensor:
    """A tensor as a packet without a link."""
    return x.detach().to("cpu").contiguous()


def open_plain(packet: Packet) -> Tensor:
    """The tensor of :func:`plain`. Raises ``WireError`` for anything else."""
    check(isinstance(packet, Tensor) and packet.is_floating_point(), "one tensor of floats")
    x: Tensor = packet
    return x
