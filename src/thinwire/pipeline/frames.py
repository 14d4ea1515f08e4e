"""Frames between the processes of two neighbouring parts: sent and received ahead of time over torch.distributed.

A message is a frame of one size, which is said ahead of the first message in its direction: that message's, or the
usual size of those to come where it is smaller. So the receiver posts receives for frames to come, and a frame crosses
a slow link while both ends compute. gloo would otherwise ask for each message first, a round trip. A frame begins with
the length of the message, its batch and its micro-batch, 8 bytes each. What does not fit follows in a message of its
own. A negative length says that its sender has failed, and why.

gloo does not say that a frame has left until it is waited for. A part keeps its last ``ahead`` messages, to which its
neighbour may not have answered, waits for those before, and lets go of them. They have left long ago, but where queues
fill for the first time.
"""

from __future__ import annotations

import datetime
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..wire import Packet, loads, pieces

HEAD = 24  # bytes before a message: its length, batch and micro-batch
LEAST = 256  # bytes of a frame
OPENING, REST = 4, 8  # added to a tag: the message that says a frame's size, and what did not fit into one


class Lost(Exception):
    """A neighbour that is not there, or says that it failed."""


@dataclass
class Room:
    """Bytes of memory that the frames of a process take ``now``, and the ``most`` that they took at once."""

    now: int = 0
    most: int = 0

    def add(self, count: int) -> None:
        """Enter a frame, or take one out."""
        self.now += count
        self.most = max(self.most, self.now)


class Outbox:
    """Frames to one neighbour, sent while this rank goes on: the newest and ``ahead`` more may not have left."""

    def __init__(self, group: dist.ProcessGroup, peer: int, tag: int, ahead: int, timeout: float, room: Room) -> None:
        self.group, self.peer, self.tag, self.ahead, self.timeout = group, peer, tag, ahead, timeout
        self.room = room
        self.size: int | None = None
        self.going: deque[list[tuple[Any, Tensor]]] = deque()  # the frames of each message

    def send(self, batch: int, micro: int, packet: Packet, usual: int | None = None) -> int:
        """Returns the bytes. ``usual`` are those of packets to come where they are smaller than this one."""
        self.finish(len(self.going) - self.ahead, self.timeout)
        self.going.append([])
        sections = list(pieces(packet))
        length = sum(memoryview(piece).nbytes for piece in sections)
        total = 0
        if self.size is None:
            total += self._open(max(LEAST, HEAD + (length if usual is None else usual)))
        assert self.size is not None
        room = max(self.size - HEAD, length)
        whole = torch.empty(HEAD + room, dtype=torch.uint8, device="cpu")  # the frame, and what does not fit
        whole[:HEAD] = torch.tensor([length, batch, micro], device="cpu").view(torch.uint8)
        view, at = memoryview(whole.numpy()), HEAD  # type: ignore[arg-type]
        for piece in sections:
            if size := memoryview(piece).nbytes:
                view[at : at + size] = memoryview(piece).cast("B")
                at += size
        whole[at:] = 0
        self._post(whole[: self.size], self.tag)
        if len(whole) > self.size:
            self._post(whole[self.size :], self.tag + REST)
        return total + len(whole)

    def fail(self, text: str) -> None:
        """Say that this rank goes no further."""
        words = text.encode()[: LEAST - HEAD]
        self.going.append([])
        if self.size is None:
            self._open(-len(words), words)
            return
        frame = torch.zeros(self.size, dtype=torch.uint8, device="cpu")
        frame[:HEAD] = torch.tensor([-len(words), 0, 0], device="cpu").view(torch.uint8)
        frame[HEAD : HEAD + len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        self._post(frame, self.tag)

    def _open(self, size: int, words: bytes = b"") -> int:
        opening = torch.zeros(LEAST, dtype=torch.uint8, device="cpu")
        opening[:8] = torch.tensor([size], device="cpu").view(torch.uint8)
        if words:
            opening[HEAD : HEAD + len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        self._post(opening, self.tag + OPENING)
        self.size = max(size, 0)
        return LEAST

    def _post(self, frame: Tensor, tag: int) -> None:
        """Send a frame of the last message."""
        try:
            work = dist.isend(frame, self.peer, group=self.group, tag=tag)
        except RuntimeError as error:
            raise Lost(first_line(error)) from error
        self.going[-1].append((work, frame))
        self.room.add(frame.nbytes)

    def finish(self, count: int, timeout: float) -> None:
        """Wait until the oldest messages have left, at most ``timeout`` seconds for each frame."""
        for _ in range(count):
            for work, frame in self.going.popleft():
                try:
                    work.wait(datetime.timedelta(seconds=timeout))
                except RuntimeError as error:
                    raise Lost(first_line(error)) from error
                self.room.add(-frame.nbytes)


class Inbox:
    """Frames from one neighbour, in order, ``ahead`` of which are waited for at any time; 0: the one that is taken."""

    def __init__(self, group: dist.ProcessGroup, peer: int, tag: int, ahead: int, timeout: float, room: Room) -> None:
        self.group, self.peer, self.tag, self.ahead, self.timeout = group, peer, tag, ahead, timeout
        self.room = room
        self.size: int | None = None
        self.opening: tuple[Any, Tensor] | None = None  # what says the size of a frame
        self.posted: deque[tuple[Any, Tensor]] = deque()
        self.fault = ""  # why no more frames can be waited for: those posted before it may be here all the same
        self.waited = 0.0  # seconds

    def take(self) -> tuple[int, int, Packet, int]:
        """The batch, the micro-batch, the packet of the next message, and its bytes."""
        total = 0
        if self.size is None:
            opening = self._opening()
            size = int(opening[:8].clone().view(torch.int64))
            if size < 0:
                raise Lost(_text(opening[HEAD : HEAD - size]))
            self.size, total = size, LEAST
            for _ in range(self.ahead):
                self._post(self._empty(size))
        if not self.ahead:
            self._post(self._empty(self.size))
        if not self.posted:
            raise Lost(self.fault)
        work, frame = self.posted.popleft()
        self._wait(work)
        length, batch, micro = frame[:HEAD].clone().view(torch.int64).tolist()
        if length < 0:
            raise Lost(_text(frame[HEAD : HEAD - length]))
        fits = min(length, self.size - HEAD)
        data = frame[HEAD : HEAD + fits].numpy().tobytes()
        if self.ahead:
            self._post(frame)
        else:
            self.room.add(-frame.nbytes)
        total += self.size
        if fits < length:
            rest = self._take(self._ask(length - fits, self.tag + REST))
            data += rest.numpy().tobytes()
            total += len(rest)
        return batch, micro, loads(data, max_values=None, finite=False), total

    def _post(self, frame: Tensor) -> None:
        """Wait for a frame more. A neighbour that has ended is an error of the message that it did not send."""
        if self.fault:
            return
        try:
            self.posted.append((dist.irecv(frame, self.peer, group=self.group, tag=self.tag), frame))
        except RuntimeError as error:
            self.fault = first_line(error)

    def look(self) -> str | None:
        """Why the neighbour has failed, where it has said so and that is here. Messages stay for :meth:`take`."""
        if self.size is None:
            self.opening = self.opening or self._ask(LEAST, self.tag + OPENING)
        for work, frame in [self.opening] if self.opening else self.posted:
            length = int(frame[:8].clone().view(torch.int64))
            if length < 0:  # its last byte is there, so all of them: what follows is on its way
                self._wait(work)
                return _text(frame[HEAD : HEAD - length])
        return None

    def _opening(self) -> Tensor:
        asked, self.opening = self.opening or self._ask(LEAST, self.tag + OPENING), None
        return self._take(asked)

    def _empty(self, size: int) -> Tensor:
        self.room.add(size)
        return torch.zeros(size, dtype=torch.uint8, device="cpu")

    def _ask(self, size: int, tag: int) -> tuple[Any, Tensor]:
        frame = self._empty(size)
        try:
            return dist.irecv(frame, self.peer, group=self.group, tag=tag), frame
        except RuntimeError as error:
            raise Lost(first_line(error)) from error

    def _take(self, asked: tuple[Any, Tensor]) -> Tensor:
        """The frame that was asked for, once it is there."""
        work, frame = asked
        self._wait(work)
        self.room.add(-frame.nbytes)
        return frame

    def _wait(self, work: Any) -> None:
        began = time.perf_counter()
        try:
            work.wait(datetime.timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise Lost(first_line(error)) from error
        self.waited += time.perf_counter() - began


def _text(data: Tensor) -> str:
    return bytes(data.tolist()).decode(errors="replace")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
