"""The requests that a part makes while it works: whoever carries messages answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple, TypeVar

from ..ddp.collectives import Request
from ..wire import Packet

T = TypeVar("T")
Way = Literal["forward", "backward", "look"]


class Take(NamedTuple):
    """Asks for the next message of a neighbour: ``forward`` from the part before, ``backward`` from the one after.

    ``look`` goes forward too, of batches that are looked at and not trained with. The answer is a packet.
    """

    way: Way
    batch: int
    micro: int


class Give(NamedTuple):
    """Hands a packet on: ``forward`` to the part after, ``backward`` to the one before.

    ``usual`` is given with a packet that is larger than those to come: their bytes, about.
    """

    way: Way
    batch: int
    micro: int
    packet: Packet
    usual: int | None = None


Talk = Generator[Take | Give | Request, Any, T]  # replicas have no delay, and ask for nothing later
