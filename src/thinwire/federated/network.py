"""A simulated network and its clock: how long a round's bytes take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from ..config import Config
from ..errors import require
from ..key import Key
from ..ranges import LONGEST, SLOWEST, Range
from .devices import read_devices, replay
from .sessions import Availability


@dataclass(frozen=True)
class Network(Config):
    """Every client's own link to the server.

    ``mbit`` up and ``down`` (the same where None) in Mbit/s, for all clients or, as a tuple,
    one a client; ``spread`` is the standard deviation of the logarithm of a factor on each
    client's rates, drawn once (0: none). ``latency`` in seconds each way; ``step`` in seconds
    of computing a local step, for all or one a client. With ``deadline``, in seconds, a reply
    that would come later is not waited for: its bytes are spent, its work is lost.

    ``sessions`` say when clients are there (:class:`~thinwire.Sessions`, :class:`~thinwire.Recorded`;
    None: always). A round draws its cohort from those that are there when it begins, fewer than
    ``sample`` if there are no more, and begins when the first comes if there are none. Of a client
    that leaves before its reply is there the bytes are spent and the work is lost, and the server
    waits for it until it leaves. A round's record has ``there``, how many clients were.
    """

    example = "Network(mbit=10)"

    mbit: float | tuple[float, ...] = 10.0
    down: float | tuple[float, ...] | None = None
    spread: Annotated[float, Range(lambda x: 0 <= x <= 10, "must be from 0 to 10")] = 0.0
    latency: float = 0.0
    step: float | tuple[float, ...] = 0.0
    deadline: Annotated[float, Range(lambda x: x > 0, "it must be positive")] | None = None
    sessions: Availability | None = None

    def __post_init__(self) -> None:
        for name, rates in (("mbit", self.mbit), ("down", self.mbit if self.down is None else self.down)):
            every = rates if isinstance(rates, tuple) else (rates,)
            require(
                len(every) > 0 and all(SLOWEST <= rate < math.inf for rate in every),  # NaN is neither
                f"Network({name}={rates}): a rate in Mbit/s must be finite, and at least {SLOWEST}",
            )
        for name, seconds in (("latency", self.latency), ("step", self.step)):
            each = seconds if isinstance(seconds, tuple) else (seconds,)
            require(
                len(each) > 0 and all(0 <= one <= LONGEST for one in each),
                f"Network({name}={seconds}): seconds must be from 0 to {LONGEST:.0e}, so that clocks are finite",
            )

    @classmethod
    def read(cls, path: str | Path, clients: int, batch: int, **fields: Any) -> Network:
        """A network of devices that were measured, as FedScale's are. ``fields`` come beside or in place of theirs.

        The file is a JSON list of devices: ``computation``, milliseconds of inference an example; ``communication``,
        kbit/s (1,000 bits) both ways; and, where sessions are known, ``active`` and ``inactive``, when they begin and
        end, and ``finish_time``, after which they begin anew, in seconds. As there a local step of ``batch`` examples
        takes three times its inference, and of fewer devices than clients client k is device k modulo their number.
        Source: FedScale 1.0, ``fedscale/cloud/internal/client_metadata.py``. Raises :class:`DataError`.
        """
        devices = read_devices(path)
        require(clients >= 1 and batch >= 1, f"clients={clients}, batch={batch}: there is one or more")
        chosen = [devices[client % len(devices)] for client in range(clients)]
        measured: dict[str, Any] = {
            "mbit": tuple(device.kbit / 1000 for device in chosen),
            "step": tuple(3 * batch * device.milliseconds / 1000 for device in chosen),
            "sessions": replay(chosen),
        }
        return cls(**(measured | fields))

    @property
    def loses(self) -> bool:
        """Whether replies may come too late to count."""
        return self.deadline is not None or self.sessions is not None

    def check(self, clients: int) -> None:
        """Raise ``ValueError`` where there is not one number a client."""
        for name, numbers in (("mbit", self.mbit), ("down", self.down), ("step", self.step)):
            fits = not isinstance(numbers, tuple) or len(numbers) == clients
            require(fits, f"Network({name}={numbers}): one for each of the {clients} clients, or one for all")
        if self.sessions is not None:
            self.sessions.check(clients)

    def rate(self, client: int, seed: int) -> float:
        """A client's uplink in Mbit/s."""
        return self._factor(client, seed) * _of(self.mbit, client)

    def rates(self, client: int, seed: int) -> tuple[float, float]:
        """A client's uplink and downlink in Mbit/s."""
        factor, down = self._factor(client, seed), self.mbit if self.down is None else self.down
        return factor * _of(self.mbit, client), factor * _of(down, client)

    def seconds(self, client: int, up: int, down: int, steps: int, seed: int) -> float:
        """From the broadcast to the reply's arrival, for bytes ``up`` and ``down``."""
        sending, receiving = self.rates(client, seed)
        return 2 * self.latency + steps * _of(self.step, client) + transfer(up, sending) + transfer(down, receiving)

    def judge(self, client: int, seconds: float, clock: float, seed: int) -> tuple[bool, float]:
        """Whether a reply of a client called at ``clock`` counts that takes so long, and how long it is waited for."""
        late = self.deadline is not None and seconds > self.deadline
        waited = self.deadline if self.deadline is not None and late else seconds
        if self.sessions is not None:
            left = self.sessions.departure(client, clock, seed) - clock
            late, waited = late or seconds > left, min(waited, left)
        return not late, waited

    def present_clients(self, clients: Iterable[int], clock: float, seed: int) -> tuple[set[int], float]:
        """Who is there at ``clock``, or when the first of them comes; and that time. Raises ``ValueError`` if none."""
        if self.sessions is None:
            return set(clients), clock
        comes = {client: self.sessions.next_arrival(client, clock, seed) for client in clients}
        first = max(clock, min(comes.values(), default=clock))
        require(first < math.inf, f"{self!r}: none of the clients is ever there again")
        return {client for client, time in comes.items() if time <= first}, first

    def _factor(self, client: int, seed: int) -> float:
        if not self.spread:
            return 1.0
        draw = torch.randn(
            (), generator=Key(seed, client=client, where="network").generator("rate"), dtype=torch.float32, device="cpu"
        )
        return math.exp(self.spread * float(draw))


def _of(numbers: float | tuple[float, ...], client: int) -> float:
    return numbers[client] if isinstance(numbers, tuple) else numbers


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
