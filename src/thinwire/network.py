"""A simulated network and its clock: how long a round's bytes take."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .config import Config
from .errors import require
from .key import Key


@dataclass(frozen=True)
class Network(Config):
    """Every client's own link to the server.

    ``mbit`` up and ``down`` (the same where None) in Mbit/s; ``spread`` is the standard
    deviation of the logarithm of each client's rate, drawn once (0: all alike); ``latency``
    in seconds each way; ``step`` in seconds of computing a local step. With ``deadline``, in
    seconds, a reply that would come later is not waited for: its bytes are spent, its work
    is lost.
    """

    mbit: float = 10.0
    down: float | None = None
    spread: float = 0.0
    latency: float = 0.0
    step: float = 0.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        require(self.mbit > 0, f"Network(mbit={self.mbit}): a rate in Mbit/s must be positive")
        require(self.down is None or self.down > 0, f"Network(down={self.down}): a rate in Mbit/s must be positive")
        require(self.spread >= 0, f"Network(spread={self.spread}): spread must not be negative")
        require(self.latency >= 0, f"Network(latency={self.latency}): seconds must not be negative")
        require(self.step >= 0, f"Network(step={self.step}): seconds must not be negative")
        require(self.deadline is None or self.deadline > 0, f"Network(deadline={self.deadline}): it must be positive")

    def seconds(self, client: int, up: int, down: int, steps: int, seed: int) -> float:
        """From the broadcast to the reply's arrival, for bytes ``up`` and ``down``."""
        rate = 1.0
        if self.spread:
            draw = torch.randn((), generator=Key(seed, client=client, where="network").generator("rate"))
            rate = math.exp(self.spread * float(draw))
        return (
            2 * self.latency
            + steps * self.step
            + transfer(up, self.mbit * rate)
            + transfer(down, (self.down or self.mbit) * rate)
        )


def transfer(size: int, mbit: float) -> float:
    """Seconds for ``size`` bytes at a rate in Mbit/s."""
    return size * 8 / (mbit * 1e6)
