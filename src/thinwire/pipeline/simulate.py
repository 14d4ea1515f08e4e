"""All parts of a pipeline in one process: what processes compute, bit for bit.

Messages wait in queues in memory. A part whose message is not there yet waits, and another one goes on. In which order
they do changes nothing, because each part executes its own list of operations in order. Bytes are those that the same
messages take between processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import require
from ..train.threads import one_thread
from ..wire import length
from .handle import Training, modules
from .schedule import Schedule
from .stage import Give, Loss, Optimizers, Settings, Stage, Take, mean_loss

__all__ = ["Simulation", "simulate_pipeline"]

HEAD = 24  # bytes before a message: its length, batch and micro-batch
LEAST = 256  # bytes of a frame


class Simulation(Training):
    """Parts in one process. The arguments are those of :func:`~thinwire.pipeline.pipeline`."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        optimizer: Optimizers,
        schedule: Schedule,
        *,
        loss: Loss = mean_loss,
        seed: int = 0,
        rate: Callable[[int, int], float] | None = None,
        clip: float | None = None,
    ) -> None:
        parts = modules(stages)
        schedule.check(len(parts))
        settings = Settings(schedule, len(parts), optimizer, loss, seed, rate, clip)
        super().__init__({k: Stage(module, k, settings) for k, module in enumerate(parts)}, settings)
        self.mail: dict[tuple[int, str], deque[list[Any]]] = {}
        self.frames: dict[tuple[int, str], int] = {}  # bytes of a frame, as the first message sets them

    def run(self, what: str, begin: Any, check: Any = None) -> Any:
        if check is not None:
            check()
        talks = {part: begin(stage) for part, stage in self.stages.items()}
        waits: dict[int, Take | None] = dict.fromkeys(talks)
        result = None
        with one_thread():
            while talks:
                before = len(talks), self._waiting()
                for part in self.order(list(talks)):
                    try:
                        waits[part] = self._advance(part, talks[part], waits[part])
                    except StopIteration as end:
                        del talks[part]
                        result = end.value if part == self.settings.parts - 1 else result
                assert (len(talks), self._waiting()) != before or not talks, "parts that wait for one another"
        if what == "step":
            for ledger in self.ledger.values():
                ledger.batches += 1
        return result

    def order(self, parts: list[int]) -> list[int]:
        """Whose turn it is: any order gives the same result."""
        return parts

    def _waiting(self) -> int:
        return sum(ledger.sent + ledger.received + ledger.look_received for ledger in self.ledger.values())

    def _advance(self, part: int, talk: Any, waits: Take | None) -> Take:
        """Go on until a message is needed that is not there. Raises ``StopIteration`` at the end."""
        request: Any = talk.send(None) if waits is None else waits
        while True:
            if isinstance(request, Give):
                other = part - 1 if request.way == "backward" else part + 1
                self.mail.setdefault((other, request.way), deque()).append(list(request))
                size = self._frame(part, request)
                self.ledger[part].add(request.way, "sent", size)
                self.ledger[other].add(request.way, "received", size)
                request = talk.send(None)
                continue
            box = self.mail.get((part, request.way))
            if not box:
                found: Take = request
                return found
            _, batch, micro, packet = box.popleft()
            assert (batch, micro) == (request.batch, request.micro)
            request = talk.send(packet)

    def _frame(self, part: int, message: Give) -> int:
        """The bytes that a message takes between processes: see :mod:`thinwire.pipeline.runtime`."""
        needed = HEAD + length(message.packet)
        name, opening = (part, message.way), 0
        if name not in self.frames:
            self.frames[name], opening = max(needed, LEAST), LEAST
        return opening + max(needed, self.frames[name])

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything that the next step depends on, a dict a part, copied. A process loads that of its part."""
        boxes = {part: self.mail.get((part, "backward"), ()) for part in self.stages}
        return [
            {**self.state_of(part, [m[1:] for m in boxes[part]]), "frames": self._frames(part)} for part in self.stages
        ]

    def _frames(self, part: int) -> dict[str, int]:
        return {way: size for (owner, way), size in self.frames.items() if owner == part}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on where states were taken, bit for bit; those of processes too. Raises ``ValueError`` for others'."""
        require(len(states) == self.settings.parts, f"{len(states)} states for {self.settings.parts} parts")
        self.mail, self.frames = {}, {}
        for part, state in enumerate(states):
            pending = self.load_part(part, state)
            self.mail[part, "backward"] = deque(["backward", *message] for message in pending)
            self.frames |= {(part, way): size for way, size in state["frames"].items()}


def simulate_pipeline(
    stages: Sequence[nn.Module],
    optimizer: Optimizers,
    schedule: Schedule,
    batches: Iterable[Sequence[Tensor]],
    **more: Any,
) -> tuple[Simulation, list[float]]:
    """Train ``stages`` with all ``batches`` of (x, y), and drain. Returns the training and the losses in their order.

    ``optimizer``, ``schedule`` and ``more`` are as for :func:`~thinwire.pipeline.pipeline`. The modules are trained in
    place. The result depends on them, the batches and the seed alone.
    """
    training, losses = Simulation(stages, optimizer, schedule, **more), []
    for x, y, *examples in batches:
        losses.append(training.step(x, y, *examples))
    losses.append(training.drain())
    return training, [float(loss) for loss in losses if loss is not None]
