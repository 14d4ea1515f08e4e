"""What crossed by layer: bytes of each, and the layers that no reply carried."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from ..wire import Packet, length, loads
from .messages import Form, present
from .stream import Logged, Parcel

SEVERAL = "*"


class LayerBytes:
    """Payload of a round by layer, in bytes, up and down.

    A layer is called ``field/layer``, such as ``update/0.weight``: a field of the method's message and a layer of it.
    ``*`` is what belongs to no single layer: packets in which a link sends several layers as one, numbers, snapshots,
    and the structure of messages. So the values of a direction add up to its payload.
    """

    def __init__(self, up: Form, down: Form) -> None:
        self.up, self.down = up, down
        self._begin()

    def _begin(self) -> None:
        self.sums: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
        self.carried: set[str] = set()
        self.replies = 0
        self.broadcasts: dict[tuple[bytes, bool], Counter[str]] = {}  # which go to many, and are measured once

    def enter_reply(self, body: Packet, size: int) -> None:
        """Enter a reply that was taken: its body, and its payload in bytes."""
        self.sums["up"].update(by_layer(self.up, body, size))
        self.carried |= layers_of(self.up, body)
        self.replies += 1

    def enter_call(self, parcel: Parcel) -> None:
        """Enter what a client was sent."""
        for message in parcel.messages:
            known = message.blob, parcel.snapshot
            if known not in self.broadcasts:
                self.broadcasts[known] = self._broadcast(message, parcel.snapshot)
            self.sums["down"].update(self.broadcasts[known])

    def _broadcast(self, message: Logged, snapshot: bool) -> Counter[str]:
        size = len(message.blob)
        return Counter({SEVERAL: size}) if snapshot else by_layer(self.down, loads(message.blob), size)

    def record(self) -> dict[str, Any]:
        """The round that ends: bytes of each layer ``up`` and ``down``, and the layers that are ``unsent``.

        ``unsent`` has the layers of a reply that no reply carried, in the model's order; none where nobody replied.
        """
        fields = [leaf for leaf in self.up.leaves if leaf.link is not None]
        names = [f"{leaf.name}/{layer}" for leaf in fields for layer in leaf.blank.names] if self.replies else []
        ways = {way: dict(sums) for way, sums in self.sums.items()}
        unsent = [name for name in names if name not in self.carried]
        self._begin()
        return {**ways, "unsent": unsent}


def by_layer(form: Form, body: Packet, size: int) -> Counter[str]:
    """The ``size`` bytes of a message's body by layer."""
    sizes: Counter[str] = Counter()
    for leaf, packet in zip(form.leaves, body, strict=True):
        if leaf.link is None or packet[1] is None:
            continue
        layout, inner = present(packet, leaf)
        for layer, part in leaf.link.by_layer(inner, layout).items():
            if layer != SEVERAL:
                sizes[f"{leaf.name}/{layer}"] += carries(part)
    sizes[SEVERAL] = size - sizes.total()
    return sizes


def carries(packet: Packet) -> int:
    """Bytes of the numbers in a packet, without structure and padding."""
    if isinstance(packet, list):
        return sum(map(carries, packet))
    if isinstance(packet, Tensor):
        bits = packet.dtype == torch.bool
        return (packet.numel() + 7) // 8 if bits else packet.numel() * packet.dtype.itemsize
    return length(packet) - length(None)


def layers_of(form: Form, body: Packet) -> set[str]:
    """The layers that a message's body has anything of."""
    pairs = zip(form.leaves, body, strict=True)
    return {
        f"{leaf.name}/{layer}"
        for leaf, packet in pairs
        if leaf.link is not None
        for layer in present(packet, leaf)[0].names
    }
