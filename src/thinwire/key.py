"""Random numbers that both ends of a wire can draw alike.

Nothing here touches the global generators: a draw is a pure function of the key and
of what it is for.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch


class Key(NamedTuple):
    """What both ends know. ``client`` is None where the draw is the same for everyone."""

    seed: int
    round: int = 0
    client: int | None = None
    where: str = ""  # "up/update/conv1.weight": no two fields or layers share a mask
    mbit: float | None = None  # the client's uplink in Mbit/s, where it was measured; no draw depends on it

    def at(self, part: str) -> Key:
        """One step down: a direction, a field, a layer."""
        return self._replace(where=f"{self.where}/{part}" if self.where else part)

    def everyone(self) -> Key:
        """The same for all clients: shared masks, dithers of the server."""
        return self._replace(client=None, mbit=None)

    def always(self) -> Key:
        """The same in all rounds: bases, hashes."""
        return self._replace(round=-1)

    def number(self, purpose: str) -> int:
        """63 bits that depend on every part of the key and on the purpose."""
        text = f"{self.seed}|{self.round}|{self.client}|{self.where}|{purpose}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    def generator(self, purpose: str) -> torch.Generator:
        """A generator on the CPU. torch seeds it from the lower 32 bits of :meth:`number`."""
        return torch.Generator().manual_seed(self.number(purpose))
