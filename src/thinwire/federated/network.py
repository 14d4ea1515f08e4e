"""A simulated network and its clock: how long a round's bytes take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from ..config import Config
from ..errors import require
from ..key import Key
from ..ranges import Range, at_least


@dataclass(frozen=True)
class Network(Config):
    """Every client's own link to the server.

    ``mbit`` up and ``down`` (the same where None) in Mbit/s, for all clients or, as a tuple,
    one a client; ``spread`` is the standard deviation of the logarithm of a factor on each
    client's rates, drawn once (0: none). ``latency`` in seconds each way; ``step`` in seconds
    of computing a local step. With ``deadline``, in seconds, a reply that would come later is
    not waited for: its bytes are spent, its work is lost.
    """

    example = "Network(mbit=10)"

    mbit: float | tuple[float, ...] = 10.0
    down: float | tuple[float, ...] | None = None
    spread: Annotated[float, at_least(0)] = 0.0
    latency: float = 0.0
    step: float = 0.0
    deadline: Annotated[float, Range(lambda x: x > 0, "it must be positive")] | None = None

    def __post_init__(self) -> None:
        for name, rates in (("mbit", self.mbit), ("down", self.mbit if self.down is None else self.down)):
            every = rates if isinstance(rates, tuple) else (rates,)
            require(
                min(every, default=0) > 0 and max(every) < math.inf,
                f"Network({name}={rates}): a rate in Mbit/s must be positive",
            )
        require(self.latency >= 0, f"Network(latency={self.latency}): seconds must not be negative")
        require(self.step >= 0, f"Network(step={self.step}): seconds must not be negative")

    def check(self, clients: int) -> None:
        """Raise ``ValueError`` where there is not one rate a client."""
        for name, rates in (("mbit", self.mbit), ("down", self.down)):
            fits = not isinstance(rates, tuple) or len(rates) == clients
            require(fits, f"Network({name}={rates}): one rate for each of the {clients} clients, or one for all")

    def rate(self, client: int, seed: int) -> float:
        """A client's uplink in Mbit/s."""
        return self._factor(client, seed) * _rate(self.mbit, client)

    def rates(self, client: int, seed: int) -> tuple[float, float]:
        """A client's uplink and downlink in Mbit/s."""
        factor, down = self._factor(client, seed), self.mbit if self.down is None else self.down
        return factor * _rate(self.mbit, client), factor * _rate(down, client)

    def seconds(self, client: int, up: int, down: int, steps: int, seed: int) -> float:
        """From the broadcast to the reply's arrival, for bytes ``up`` and ``down``."""
        sending, receiving = self.rates(client, seed)
        return 2 * self.latency + steps * self.step + transfer(up, sending) + transfer(down, receiving)

    def _factor(self, client: int, seed: int) -> float:
        if not self.spread:
            return 1.0
        draw = torch.randn(
            (), generator=Key(seed, client=client, where="network").generator("rate"), dtype=torch.float32, device="cpu"
        )
        return math.exp(self.spread * float(draw))


def _rate(rates: float | tuple[float, ...], client: int) -> float:
    return rates[client] if isinstance(rates, tuple) else rates


def transfer(size: int, mbit: float) -> float:
    """Seconds for ``size`` bytes at a rate in Mbit/s."""
    return size * 8 / (mbit * 1e6)


LARGE = 1 << 16  # bytes: what is sent faster than this shows the delays of a link, not its rate


def measure_rate(before: float | None, size: int, seconds: float) -> float | None:
    """A client's uplink in Mbit/s, after ``size`` bytes took ``seconds``; None where that is not known yet."""
    rate = size * 8 / 1e6 / max(seconds, 1e-3)
    if size >= LARGE:
        return rate
    return None if before is None else max(before, rate)
