"""A pipeline whose parts are processes: each drives its stage, and exchanges frames with its neighbours."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..config import complete
from ..ddp.collectives import AllReduce, Gather, Group, Traffic, gather
from ..ddp.methods import Hook, Method
from ..errors import OutOfSync, RankLost, ThinwireError, require
from ..links import Dense
from ..wire import Packet, dumps, loads
from .base import Schedule
from .frames import Inbox, Lost, Outbox, Room, first_line
from .handle import Training, modules, whole
from .losses import Loss, mean_loss
from .settings import Optimizers, Settings, settle
from .stage import Stage
from .talk import Give, Take

__all__ = ["Pipeline", "pipeline"]

TAGS = {"forward": 1, "backward": 2, "look": 3}
FIRST = 1 << 20  # above the tags that gloo gives to collectives
EACH = 16  # tags of one training: receives that an earlier one has posted must not take messages of this one
trainings = 0  # that this process has begun
INITIAL = ("model (its parameters' names or shapes)", "initial model")
COMPARING = "comparing what is to be trained"
LOOK = 0.2  # seconds between two looks at what neighbours say, at a barrier
PARTING = 5.0  # seconds in which a rank that fails tries to say so


def pipeline(
    stages: Sequence[nn.Module],
    optimizer: Optimizers,
    schedule: Schedule,
    *,
    loss: Loss = mean_loss,
    seed: int = 0,
    rate: Callable[[int, int], float] | None = None,
    clip: float | None = None,
    replicas: int = 1,
    average: Method = Hook(Dense()),  # noqa: B008  frozen
    group: dist.ProcessGroup | None = None,
    timeout: float = 300.0,
) -> Pipeline:
    """Train a part of a model in each process of a group: rank k has ``stages[k]``, where its parameters lie.

    With ``replicas`` there are so many such pipelines: rank r K + k is part k of K of replica r, and each replica's
    script gives batches of its own. What the replicas of a part send one another at each step is ``average``.

    - ``stages``: what :func:`split` returned, the whole list on every rank.
    - ``optimizer``: a function that makes an optimiser of torch's of a part's parameters.
    - ``loss``: of outputs and targets, the mean over examples; by default cross entropy, or the squared error for
      targets of floats.
    - ``seed``: of random layers and links. It is the same on every rank.
    - ``rate``: a factor of the learning rate by (batch, part), at least 0.
    - ``clip``: the largest norm of a part's gradient; larger ones are scaled down.
    - ``replicas``: pipelines side by side.
    - ``average``: a method of :mod:`thinwire.ddp` such as ``DEF(64)`` or ``Hook(TopK(0.01))``; by default the mean of
      gradients. It acts part by part. Parameters are then where the method takes gradients; ``whole_state_dict()`` and
      ``predict`` have the model that it is judged by. Gradients are clipped as the optimiser sees them: means over
      replicas under a ``Hook``, each replica's own under all others. Running statistics, the links' memories, and
      DNI's auxiliary networks are each replica's own.
    - ``group``: the ranks, by default all. They speak gloo, in a group of their own where this one has no CPU backend.
    - ``timeout``: seconds after which a neighbour that sends nothing is lost, and in which all ranks make this call.

    All ranks call it at the same place. Raises ``ValueError`` for what cannot be trained, :class:`OutOfSync` on every
    rank where one has another model, schedule, seed, clip, average, or number of parts or replicas, and
    :class:`RankLost` where one is missing.
    """
    parts = modules(stages)
    require(timeout > 0, f"timeout={timeout}: seconds, above 0")
    alone = not (dist.is_available() and dist.is_initialized())
    settings = settle(Settings(schedule, len(parts), optimizer, loss, seed, rate, clip, replicas, average))
    needed = settings.ranks
    require(
        not alone or needed == 1,
        f"{settings} are {needed} processes: call torch.distributed.init_process_group first, under "
        f"torchrun --nproc-per-node {needed}, or train them in one with Simulation",
    )
    group = None if alone else group or dist.group.WORLD
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    if group is not None and "cpu" not in {device.type for device in group._device_types}:
        ranks = dist.get_process_group_ranks(group)
        group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    setup = Traffic()
    tag = 0 if group is None else _same_everywhere(Group(group, setup, timeout), settings, parts)
    schedule.check(len(parts))  # on all ranks alike, once they have the same
    require(size == needed, f"{settings}, and {size} ranks: split(model, parts={size // replicas}, ...)")
    replica, part = divmod(rank, len(parts))
    peers = None
    if group is not None and replicas > 1:
        ranks = [dist.get_global_rank(group, other) for other in range(part, size, len(parts))]
        limit = datetime.timedelta(seconds=timeout)
        peers = dist.new_group(ranks, limit, backend="gloo", use_local_synchronization=True)
    stage = Stage(parts[part], part, settings, replica)
    return Pipeline(stage, settings, group, timeout, tag, setup.gathered, peers)


def _same_everywhere(group: Group, settings: Settings, parts: Sequence[nn.Module]) -> int:
    """Raise on every rank unless all want the same; returns the first tag of their messages."""
    global trainings
    digest = hashlib.blake2b(digest_size=16)
    names = []
    for number, part in enumerate(parts):
        for name, tensor in part.state_dict().items():
            names.append([number, name, str(tensor.dtype), list(tensor.shape)])
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    shown = complete(settings.average)
    mine = [len(parts), settings.replicas, complete(settings.schedule), shown, settings.seed, settings.clip]
    mine += [names, digest.hexdigest()]
    everyone = [loads(data, max_values=None) for data in group.drive(gather(dumps([trainings, *mine])), COMPARING)]
    trainings = 1 + max(int(theirs.pop(0)) for theirs in everyone)
    what = ("number of parts", "number of replicas", "schedule", "average", "seed", "clip", *INITIAL)
    for rank, one in enumerate(everyone):
        for name, theirs, expected in zip(what, one, everyone[0], strict=True):
            if theirs != expected:
                shown = f": {theirs}, not {expected}" if isinstance(theirs, int | float | str | None) else ""
                hint = "; seed torch alike on every rank before the model is made" if name == INITIAL[-1] else ""
                raise OutOfSync(f"rank {rank} has another {name} than rank 0{'' if hint else shown}{hint}")
    return FIRST + trainings * EACH


class Pipeline(Training):
    """A part of a pipeline, in this process. ``bytes`` are those that it sent and received."""

    def __init__(
        self,
        stage: Stage,
        settings: Settings,
        group: dist.ProcessGroup | None,
        timeout: float,
        tag: int,
        setup: int,
        peers: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = stage.replica * settings.parts + stage.part
        super().__init__({self.rank: stage}, settings)
        self.stage, self.part, self.group, self.timeout = stage, stage.part, group, timeout
        self.peers = None if peers is None else Group(peers, Traffic())  # this part in all replicas
        self.ledger[self.rank].setup = setup
        self.computed = 0.0  # seconds that this part has computed, and not waited for messages or sent them
        self.pending: deque[list[Any]] = deque()  # messages back that arrived before they were asked for
        self.out: dict[str, Outbox] = {}
        self.into: dict[str, Inbox] = {}
        self.room = Room()
        for way, number in TAGS.items():
            above, below = (self.part + 1, self.part - 1) if way != "backward" else (self.part - 1, self.part + 1)
            if group is not None and 0 <= above < settings.parts:
                ahead = self._ahead(way, above)
                self.out[way] = Outbox(group, self._rank(above), tag + number, ahead, timeout, self.room)
            if group is not None and 0 <= below < settings.parts:
                # As many as can be under way at once: of a batch that is looked at none but the one that is asked for.
                ahead = 0 if way == "look" else self._ahead(way, below) + 1
                self.into[way] = Inbox(group, self._rank(below), tag + number, ahead, timeout, self.room)

    def _ahead(self, way: str, other: int) -> int:
        """Messages that the sender of two neighbours can be ahead of those that the other has answered to."""
        return 0 if way == "look" else self.settings.schedule.slack(min(self.part, other), self.settings.parts)

    @property
    def bytes(self) -> Any:
        """Bytes of this part, by direction."""
        return self.ledger[self.rank]

    @property
    def frames(self) -> int:
        """The most bytes that frames took here at once: those that are sent, and those that are waited for.

        The frames of ``predict`` count too, while it is at work.
        """
        return self.room.most

    @property
    def waited(self) -> float:
        """Seconds that this part has waited for messages of its neighbours."""
        return sum(box.waited for box in self.into.values())

    def _rank(self, part: int) -> int:
        assert self.group is not None
        return dist.get_global_rank(self.group, self.stage.replica * self.settings.parts + part)

    def run(self, what: str, begin: Any, check: Any = None) -> Any:
        self._sound()
        self.begun = self.begun or what != "predict"
        try:
            if check is not None:
                check()
            result = self._drive(begin(self.stage))
            if what != "step":
                self._wait_sent()
            else:
                self.bytes.batches += 1
                if self.settings.schedule.barrier and self.group is not None:
                    self._barrier()
        except Exception as error:
            self._fail(error, what)
            raise
        return result

    def _drive(self, talk: Any) -> Any:
        answer: Any = None
        while True:
            began = time.perf_counter()
            try:
                request = talk.send(answer)
            except StopIteration as end:
                return end.value
            finally:
                self.computed += time.perf_counter() - began
            try:
                answer = None
                if isinstance(request, Give):
                    self._give(request)
                elif isinstance(request, AllReduce | Gather):
                    answer = self._gather(request)
                else:
                    answer = self._take(request)
            except Lost as error:
                ahead = isinstance(request, Give) ^ (request.way == "backward")
                raise self._describe_loss(ahead, request.batch, error) from error

    def _give(self, request: Give) -> None:
        self.bytes.add(request.way, "sent", self.out[request.way].send(*request[1:]))

    def _wait_sent(self) -> None:
        """Wait until messages have left this process, which may end now."""
        for way, box in self.out.items():
            try:
                box.finish(len(box.going), self.timeout)
            except Lost as error:
                raise self._describe_loss(way != "backward", self.batches, error) from error

    def _gather(self, request: AllReduce | Gather) -> Any:
        """The answer of all replicas of this part."""
        assert self.peers is not None
        before = self.peers.traffic.bytes
        try:
            answer = self.peers.mean(request.x) if isinstance(request, AllReduce) else self.peers.gather(request.data)
        except RuntimeError as error:
            raise RankLost(
                f"part {self.part} of {self.settings.parts}, replica {self.stage.replica}: another replica of this "
                f"part died, failed, or sent nothing for {self.timeout:g} s ({first_line(error)})"
            ) from error
        self.bytes.averaged += self.peers.traffic.bytes - before
        return answer

    def _take(self, request: Take) -> Packet:
        if request.way == "backward" and self.pending:
            batch, micro, packet = self.pending.popleft()
        else:
            batch, micro, packet, size = self.into[request.way].take()
            self.bytes.add(request.way, "received", size)
        if (batch, micro) != (request.batch, request.micro):
            raise OutOfSync(
                f"part {self.part} expects {request.way} batch {request.batch}.{request.micro} and is sent "
                f"{batch}.{micro}: all ranks give the same batches, and call step, drain and predict in one order"
            )
        return packet

    def _describe_loss(self, ahead: bool, batch: int, error: Lost) -> RankLost:
        """The error that says that the part after this one, or the one before, is lost."""
        said, other = str(error), self.part + 1 if ahead else self.part - 1
        if said.startswith("part "):
            return RankLost(f"part {self.part} of {self.settings.parts} cannot go on: {said}")
        return RankLost(
            f"part {self.part} of {self.settings.parts}, batch {batch}: the process of part {other} died, or "
            f"sent nothing for {self.timeout:g} s ({said})"
        )

    def _barrier(self) -> None:
        """Wait for all parts, and look now and then whether a neighbour has said that it goes no further."""
        work, end = dist.barrier(self.group, async_op=True), time.monotonic() + self.timeout
        while True:
            over = work.is_completed()  # before the wait: it may come to an end just after that was given up
            try:
                work.wait(datetime.timedelta(seconds=max(0.001, min(LOOK, end - time.monotonic()))))
                return
            except RuntimeError as error:
                if (told := self._reason()) is not None:
                    raise RankLost(f"part {self.part} of {self.settings.parts} cannot go on: {told}") from error
                if over or time.monotonic() >= end:
                    raise RankLost(
                        f"part {self.part} of {self.settings.parts} waits for all parts: one of them died, or sent "
                        f"nothing for {self.timeout:g} s ({first_line(error)})"
                    ) from error

    def _reason(self) -> str | None:
        """Why a neighbour goes no further, where it has said so."""
        try:
            return next((said for way, box in self.into.items() if way != "look" and (said := box.look())), None)
        except Lost:
            return None

    def _fail(self, error: Exception, what: str) -> None:
        """Tell neighbours why they will hear no more."""
        said = str(error).partition("cannot go on: ")[2] if isinstance(error, RankLost) else ""
        name = "" if isinstance(error, ThinwireError) else f"{type(error).__name__}: "
        self.failed = said or (str(error) if str(error).startswith("part ") else f"part {self.part}: {name}{error}")
        for way, box in self.out.items():
            if way == "look" and what != "predict":
                continue  # where nobody waits
            try:
                box.fail(self.failed)
            except (Lost, RuntimeError):
                continue
        if self.peers is not None:  # its connections are closed: other replicas would wait for this one
            peers, self.peers = self.peers.group, None
            with contextlib.suppress(RuntimeError, ValueError):
                dist.destroy_process_group(peers)
            del peers
        end = time.monotonic() + min(PARTING, self.timeout)
        for box in self.out.values():
            while box.going:
                try:
                    box.finish(1, max(0.01, end - time.monotonic()))
                except Lost:
                    break

    # -- checkpoints ----------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything of this part that the next step depends on, copied. Save it on every rank, at the same batch.

        Messages that are on their way to this part are waited for first, and are in it. The training goes on as if
        nothing had been saved. Raises ``ValueError`` for a training that has failed.
        """
        self._sound()
        while len(self.pending) < self.stage.owed:
            try:
                batch, micro, packet, size = self.into["backward"].take()
            except Lost as error:
                raise self._describe_loss(True, self.batches, error) from error
            self.bytes.add("backward", "received", size)
            self.pending.append([batch, micro, packet])
        self._wait_sent()
        frames = {way: box.size for way, box in self.out.items() if box.size}
        return {**self.state_of(self.rank, self.pending), "frames": frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state of this part was taken, bit for bit. Every rank loads its own, before its first batch.

        Raises ``ValueError`` for the state of another part, schedule, seed, model or optimiser, and after the first
        batch: neighbours have messages on their way that the state knows nothing of.
        """
        require(
            not self.begun,
            "load_state_dict: this training has begun, and messages of its batches are on their way: make a new one "
            "with pipeline(...) on every rank, and load into that",
        )
        self.pending = deque(self.load_part(self.rank, state))

    def whole_state_dict(self) -> dict[str, Tensor]:
        self._sound()
        mine = self._drive(self.stage.whole())
        if self.group is None:
            alone: dict[str, Tensor] = mine
            return alone
        data = dumps({} if self.stage.replica else mine)
        group = Group(self.group, Traffic(), self.timeout)
        gathered = group.drive(gather(data), "gathering the model")
        parts = [loads(part, max_values=None, finite=False) for part in gathered[: self.settings.parts]]
        return whole([{name: tensor.clone() for name, tensor in part.items()} for part in parts])
