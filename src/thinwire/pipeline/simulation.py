"""All parts of a pipeline in one process: what processes compute that have one thread each, bit for bit.

Messages wait in queues in memory. A part whose message is not there yet waits, and another one goes on. In which order
they do changes nothing, because each part executes its own list of operations in order. Bytes are those that the same
messages take between processes.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..ddp.collectives import AllReduce, Gather, Traffic, answer_all
from ..errors import require
from ..train.threads import one_thread
from ..wire import length
from .base import Schedule
from .frames import HEAD, LEAST
from .handle import Training, modules, whole
from .settings import Optimizers, Settings, settle
from .stage import Stage
from .talk import Give, Take

__all__ = ["Simulation", "simulate_pipeline"]


class Simulation(Training):
    """Parts in one process. The arguments are those of :func:`~thinwire.pipeline.pipeline`, all but its last two.

    A batch is dealt to the replicas in equal pieces, in order, and a loss is the mean of theirs. The modules that were
    given are those of the first replica.
    """

    def __init__(self, stages: Sequence[nn.Module], optimizer: Optimizers, schedule: Schedule, **fields: Any) -> None:
        parts = modules(stages)
        settings = settle(Settings(schedule, len(parts), optimizer, **fields))
        schedule.check(len(parts))
        teams = [parts, *(copy.deepcopy(parts) for _ in range(settings.replicas - 1))]
        made = [Stage(module, k, settings, r) for r, team in enumerate(teams) for k, module in enumerate(team)]
        super().__init__(dict(enumerate(made)), settings)
        self.mail: dict[tuple[int, str], deque[list[Any]]] = {}
        self.frames: dict[tuple[int, str], int] = {}  # bytes of a frame, as announced with the first message
        self.shared = [Traffic() for _ in parts]  # what one replica of each part gave to collectives

    def step(self, x: Tensor | None, y: Tensor | None = None, examples: Tensor | Sequence[int] | None = None) -> Any:
        replicas = self.settings.replicas
        fits = x is None or len(x) % replicas == 0
        require(fits, f"batch {self.batches} has {0 if x is None else len(x)} examples for {replicas} replicas alike")
        return super().step(x, y, examples)

    def share(self, whole: Any, replica: int) -> Any:
        n = self.settings.replicas
        return whole if whole is None or n == 1 else whole[len(whole) * replica // n : len(whole) * (replica + 1) // n]

    def run(self, what: str, begin: Any, check: Any = None) -> Any:
        self._sound()
        if check is not None:
            check()
        self.begun = True
        results = self._finish(begin)
        if what == "step":
            for ledger in self.ledger.values():
                ledger.batches += 1
        answers = [results[rank] for rank, stage in self.stages.items() if stage.last and results[rank] is not None]
        if len(answers) < 2:
            return answers[0] if answers else None
        return torch.cat(answers) if what == "predict" else torch.stack(answers).mean()

    def whole_state_dict(self) -> dict[str, Tensor]:
        self._sound()
        parts = self._finish(lambda stage: stage.whole())
        return whole([parts[k] for k in range(self.settings.parts)])

    def _finish(self, begin: Any) -> dict[int, Any]:
        """The result of each rank's talk. Where one raises, the parts are left at different places."""
        try:
            return self._drive_all(begin)
        except BaseException as error:
            self.failed = f"{type(error).__name__}: {error}"
            raise

    def _drive_all(self, begin: Any) -> dict[int, Any]:
        talks = {rank: begin(stage) for rank, stage in self.stages.items()}
        waits: dict[int, Any] = dict.fromkeys(talks)  # the request that a rank waits with
        answers: dict[int, Any] = {}  # to those that a rank made of its replicas
        results: dict[int, Any] = {}
        with one_thread():
            while talks:
                before = dict(waits)
                for rank in self.order(list(talks)):
                    try:
                        waits[rank] = self._advance(rank, talks[rank], waits[rank], answers)
                    except StopIteration as end:
                        del talks[rank], waits[rank]
                        results[rank] = end.value
                self._answer(waits, answers)
                moved = len(waits) < len(before) or any(waits[rank] is not before[rank] for rank in waits)
                assert moved or answers, "parts that wait for one another"
        return results

    def order(self, ranks: list[int]) -> list[int]:
        """Whose turn it is: any order gives the same result."""
        return ranks

    def _answer(self, waits: dict[int, Any], answers: dict[int, Any]) -> None:
        """Answer requests that all replicas of a part have made."""
        parts, replicas = self.settings.parts, self.settings.replicas
        for part, traffic in enumerate(self.shared):
            ranks = range(part, parts * replicas, parts)
            requests = [waits.get(rank) for rank in ranks]
            if replicas > 1 and ranks[0] not in answers and all(isinstance(r, AllReduce | Gather) for r in requests):
                before = traffic.bytes
                for rank, answer in zip(ranks, answer_all(requests, traffic), strict=True):  # type: ignore[arg-type]
                    answers[rank] = answer
                    self.ledger[rank].averaged += traffic.bytes - before

    def _advance(self, rank: int, talk: Any, waits: Any, answers: dict[int, Any]) -> Take | AllReduce | Gather:
        """Go on until an answer is needed that is not there. Raises ``StopIteration`` at the end."""
        request: Any = talk.send(None) if waits is None else waits
        while True:
            if isinstance(request, Give):
                other = rank - 1 if request.way == "backward" else rank + 1
                self.mail.setdefault((other, request.way), deque()).append(list(request[:4]))
                size = self._frame(rank, request)
                self.ledger[rank].add(request.way, "sent", size)
                self.ledger[other].add(request.way, "received", size)
                request = talk.send(None)
                continue
            if isinstance(request, AllReduce | Gather):
                if rank not in answers:
                    return request
                request = talk.send(answers.pop(rank))
                continue
            box = self.mail.get((rank, request.way))
            if not box:
                take: Take = request
                return take
            _, batch, micro, packet = box.popleft()
            assert (batch, micro) == (request.batch, request.micro)
            request = talk.send(packet)

    def _frame(self, rank: int, message: Give) -> int:
        """The bytes that a message takes between processes: see :mod:`thinwire.pipeline.frames`."""
        size = length(message.packet)
        needed, usual = HEAD + size, HEAD + (size if message.usual is None else message.usual)
        name, opening = (rank, message.way), 0
        if name not in self.frames:
            self.frames[name], opening = max(usual, LEAST), LEAST
        return opening + max(needed, self.frames[name])

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything that the next step depends on, a dict a rank, copied. A process loads that of its rank."""
        self._sound()
        boxes = {rank: self.mail.get((rank, "backward"), ()) for rank in self.stages}
        return [
            {**self.state_of(rank, [m[1:] for m in boxes[rank]]), "frames": self._frames(rank)} for rank in self.stages
        ]

    def _frames(self, rank: int) -> dict[str, int]:
        return {way: size for (owner, way), size in self.frames.items() if owner == rank}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on where states were taken, bit for bit; those of processes too. Raises ``ValueError`` for others'."""
        require(len(states) == self.settings.ranks, f"{len(states)} states for {self.settings}")
        self.mail, self.frames, self.failed = {}, {}, None
        for rank, state in enumerate(states):
            pending = self.load_part(rank, state)
            self.mail[rank, "backward"] = deque(["backward", *message] for message in pending)
            self.frames |= {(rank, way): size for way, size in state["frames"].items()}


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
