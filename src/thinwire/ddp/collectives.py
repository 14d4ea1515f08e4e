"""What ranks say to one another: a mean, or everyone's bytes.

A method is a generator that asks for them. So the same lines run over a process group, where
each rank drives its own generator (:class:`Group`), and for many logical workers of one process,
whose generators are driven side by side (:func:`together`). A generator may ask for another one to be driven behind
what follows (:class:`Later`): by a thread of a process (:mod:`.overlap`), and for logical workers at once.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import NonFinite, OutOfSync, RankLost
from ..wire import dumps, loads

T = TypeVar("T")
SHORT = 1 << 20  # bytes of an all-reduce, up to which two ranks exchange them whole
HEAD = 256  # bytes of a message that come with its length: more would be waited for by those who send little


class AllReduce(NamedTuple):
    """Asks for the mean over ranks, which is written over ``x``."""

    x: Tensor


class Gather(NamedTuple):
    """Asks for the bytes of every rank, in the order of ranks."""

    data: bytes


class Later(NamedTuple):
    """Asks for a generator to be driven behind what follows, after those asked for before. The answer is a future."""

    talk: Generator[AllReduce | Gather | Later, Any, Any]


class Broadcast(NamedTuple):
    """Asks for the bytes of one rank, ``source``. Those of the others are not looked at."""

    data: bytes
    source: int


Request = AllReduce | Gather | Later
Talk = Generator[Request, Any, T]  # that logical workers can hold too


@dataclass
class Traffic:
    """Bytes that this rank gave to collectives, and how often.

    Of an all-reduce of n bytes among W ranks 2 (W - 1) / W * n cross each rank's link, of an all-gather (W - 1) n.
    ``setup`` is what ranks compared before the first step, and told one another where some of them came or went. It is
    not among ``bytes``.
    """

    steps: int = 0
    reduced: int = 0  # bytes given to all-reduce
    gathered: int = 0  # bytes given to all-gather, lengths and padding included
    calls: int = 0
    setup: int = 0

    @property
    def bytes(self) -> int:
        """All of them, but for ``setup``."""
        return self.reduced + self.gathered

    def received(self, ranks: int) -> int:
        """Bytes that this rank, one of ``ranks``, got back.

        Of an all-reduce they are as many as it gave, of an all-gather those of all others.
        """
        return self.reduced + (ranks - 1) * self.gathered

    def take(self, other: Traffic) -> None:
        """Add what another has of bytes and calls, and leave nothing there."""
        for name in ("reduced", "gathered", "calls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
            setattr(other, name, 0)

    def summary(self) -> dict[str, int]:
        """As numbers, for a log."""
        return {**asdict(self), "bytes": self.bytes}


class Behind(Protocol):
    """Who drives generators behind the training."""

    def submit(self, talk: Talk[T], where: str) -> Future[T]:
        """Drive one after those before it."""

    def wait(self) -> Traffic:
        """Wait until all have ended, and give the bytes since the last time."""


class Group:
    """Answers a generator from a process group. Each answer is waited for ``timeout`` seconds, or the group's own."""

    def __init__(self, group: dist.ProcessGroup, traffic: Traffic, timeout: float | None = None) -> None:
        self.group, self.traffic, self.timeout = group, traffic, timeout
        self.behind: Behind | None = None  # who drives what is asked for later
        self.size, self.rank = group.size(), group.rank()
        # Where the group has a backend: NCCL's has none for tensors on a CPU.
        self.kinds = {device.type for device in group._device_types}
        self.device = torch.device("cpu" if "cpu" in self.kinds else sorted(self.kinds)[0])
        if self.device.type == "cuda" and torch.cuda.is_available():  # now: backward passes have threads of their own
            self.device = torch.device("cuda", torch.cuda.current_device())

    def drive(self, talk: Generator[Request | Broadcast, Any, T], where: str) -> T:
        """Run ``talk`` to its end. ``where`` says what is being done, for the error if a rank is lost meanwhile.

        Raises :class:`~thinwire.errors.RankLost` if another rank died, stalled, or is doing something else.
        """
        answer: Any = None
        while True:
            try:
                request = talk.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(request, Later):
                assert self.behind is not None
                answer = self.behind.submit(request.talk, where)
                continue
            try:
                answer = self.answer(request)
            except RuntimeError as error:
                # Gloo's are plain RuntimeErrors, which torch raises for much that is no fault of another rank.
                known = isinstance(error, dist.DistError) or "gloo/" in str(error) or "timed out" in str(error)
                if not known:
                    error.add_note(f"rank {self.rank} of {self.size}, {where}")
                    raise
                limit = "the process group's timeout" if self.timeout is None else f"{self.timeout:g} s"
                raise RankLost(
                    f"rank {self.rank} of {self.size}, {where}: another rank died, stalled beyond {limit}, or is doing "
                    f"something else ({str(error).splitlines()[0]})"
                ) from error

    def answer(self, request: AllReduce | Gather | Broadcast) -> Any:
        """What all ranks together say to one request, which is the same kind of all of them."""
        if isinstance(request, AllReduce):
            return self.mean(request.x)
        return self.gather(request.data) if isinstance(request, Gather) else self.broadcast(*request)

    def total(self) -> Traffic:
        """The traffic, with that of who drives later, which is waited for."""
        if self.behind is not None:
            self.traffic.take(self.behind.wait())
        return self.traffic

    def mean(self, x: Tensor) -> Tensor:
        """In place: scaled, then summed, as DistributedDataParallel does it.

        Two ranks on CPUs exchange what is short whole. That is as many bytes of each, the same bits, and a round trip
        less than the two halves of gloo's all-reduce take.
        """
        x.mul_(1 / self.size)
        self.traffic.reduced += x.nbytes
        self.traffic.calls += 1
        there = self._there(x)
        if self.size == 2 and there.is_cpu and there.dtype == torch.float32 and there.nbytes <= SHORT:
            everyone = [torch.empty_like(there) for _ in range(2)]
            self._wait(dist.all_gather(everyone, there, group=self.group, async_op=self.timeout is not None))
            return torch.add(*everyone, out=there) if there is x else x.copy_(torch.add(*everyone))
        self._wait(dist.all_reduce(there, group=self.group, async_op=self.timeout is not None))
        return x if there is x else x.copy_(there)

    def gather(self, data: bytes) -> list[bytes]:
        """The length and the first bytes of all; where they are not all, the rest, padded to the longest."""
        head = torch.zeros(8 + HEAD, dtype=torch.uint8, device="cpu")
        head[:8] = torch.tensor([len(data)], device="cpu").view(torch.uint8)
        _fill(head[8:], data[:HEAD])
        heads = self._gather(head)
        lengths = [int(h[:8].clone().view(torch.int64)) for h in heads]
        firsts = [h[8 : 8 + min(n, HEAD)] for h, n in zip(heads, lengths, strict=True)]
        if max(lengths) <= HEAD:
            return [_bytes(first) for first in firsts]
        rest = torch.zeros(max(lengths) - HEAD, dtype=torch.uint8, device="cpu")
        _fill(rest, data[HEAD:])
        rests = self._gather(rest)
        joined = zip(firsts, rests, lengths, strict=True)
        return [_bytes(torch.cat([first, part[: max(0, n - HEAD)]])) for first, part, n in joined]

    def broadcast(self, data: bytes, source: int) -> bytes:
        """The length of one rank's bytes, and then they."""
        length = torch.tensor([len(data)], device="cpu").view(torch.uint8)
        whole = torch.empty(int(self._broadcast(length, source).view(torch.int64)), dtype=torch.uint8, device="cpu")
        if self.rank == source:
            _fill(whole, data)
        return _bytes(self._broadcast(whole, source))

    def _broadcast(self, x: Tensor, source: int) -> Tensor:
        if self.rank == source:
            self.traffic.gathered += x.nbytes
        self.traffic.calls += 1
        there = self._there(x)
        self._wait(dist.broadcast(there, group=self.group, group_src=source, async_op=self.timeout is not None))
        return there.cpu()

    def _gather(self, mine: Tensor) -> list[Tensor]:
        self.traffic.gathered += mine.nbytes
        self.traffic.calls += 1
        mine = self._there(mine)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(dist.all_gather(everyone, mine, group=self.group, async_op=self.timeout is not None))
        return [one.cpu() for one in everyone]

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None and self.timeout is not None:
            work.wait(datetime.timedelta(seconds=self.timeout))

    def _there(self, x: Tensor) -> Tensor:
        """A tensor where the group has a backend for it: as it is, or a copy."""
        return x if x.device.type in self.kinds else x.to(self.device)


def mean(x: Tensor) -> Talk[None]:
    """The mean over ranks, in place."""
    yield AllReduce(x)


def gather(data: bytes) -> Talk[list[bytes]]:
    """Everyone's bytes."""
    everyone: list[bytes] = yield Gather(data)
    return everyone


def agree(mine: list[Any], fatal: bool = True) -> Talk[None]:
    """Raise on every rank unless all are at the same step and block with finite numbers.

    Where others may be what a GradScaler skips (``fatal`` is False) they are warned of.
    """
    answers = yield Gather(dumps(mine))
    everyone = [loads(data) for data in answers]
    for number, (step, begin, finite) in enumerate(everyone):
        if [step, begin] != everyone[0][:2]:
            raise OutOfSync(
                f"rank {number} is at step {step} and sends the block that starts at {begin}; "
                f"rank 0 is at step {everyone[0][0]} with {everyone[0][1]}"
            )
        if not finite:
            text = f"step {step}: rank {number} would send NaN or infinity; lower the learning rate or clip"
            if fatal:
                raise NonFinite(text)
            warnings.warn(f"{text}, unless a GradScaler skips the step", stacklevel=2)


def together(talks: Sequence[Talk[T]], traffic: Traffic | None = None) -> list[T]:
    """Run the generators of all logical workers side by side: each gets what a process group would answer.

    A mean is summed in the order of ranks, so that of two workers it has the bits of any all-reduce. ``traffic``
    is charged what one rank would give.
    """
    answers: list[Any] = [None] * len(talks)
    while True:
        requests: list[Request] = []
        results: list[T] = []
        for talk, answer in zip(talks, answers, strict=True):
            try:
                requests.append(talk.send(answer))
            except StopIteration as end:
                results.append(end.value)
        if not requests:
            return results
        assert len(requests) == len(talks), "workers that do not ask alike"
        answers = answer_all(requests, traffic)


def answer_all(requests: Sequence[Request], traffic: Traffic | None = None) -> list[Any]:
    """What a process group would answer to the requests of all its ranks. ``traffic`` is charged what one gives."""
    later = [r.talk for r in requests if isinstance(r, Later)]
    if later:
        return [_future(result) for result in together(later, traffic)]
    means = [r.x for r in requests if isinstance(r, AllReduce)]
    if means:
        answers = _mean(means)
        _charge(traffic, reduced=means[0].nbytes)
        return answers
    data = [r.data for r in requests if isinstance(r, Gather)]
    longest = max(map(len, data))
    _charge(traffic, gathered=8 + HEAD)
    if longest > HEAD:
        _charge(traffic, gathered=longest - HEAD)
    return [data] * len(requests)


def _mean(parts: list[Tensor]) -> list[Tensor]:
    total = parts[0].mul_(1 / len(parts))
    for part in parts[1:]:
        total.add_(part.mul_(1 / len(parts)))
    for part in parts[1:]:
        part.copy_(total)
    return parts


def _future(result: Any) -> Future[Any]:
    """One that has its result."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def _charge(traffic: Traffic | None, reduced: int = 0, gathered: int = 0) -> None:
    if traffic is not None:
        traffic.reduced += reduced
        traffic.gathered += gathered
        traffic.calls += 1


def _fill(out: Tensor, data: bytes) -> None:
    if data:
        out[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(x: Tensor) -> bytes:
    return x.numpy().tobytes()
