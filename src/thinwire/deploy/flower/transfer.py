"""Large blobs in chunks that are kept at both ends: a transfer that is cut goes on where it was.

Flower drops a message whose objects take too long, and with it all that had come of it. So a blob of more than
``CHUNK`` bytes travels as chunks in messages of their own (``chunks.py``). A chunk is named by its digest, and whoever
has received it keeps it on disk until the blob is whole. For a call the server sends

1. ``offer``: the digests of the call's chunks, and a short call itself. The client says which chunks are ``missing``;
2. ``chunk``: some of those, neighbours. The client keeps them, and says that it has them;
3. ``offer`` again: now the call is whole. The client answers it, keeps the answer, and sends it if it is short, else
   the digests of its chunks, ``whole``;
4. ``want``: the digests of some chunks of the answer, neighbours, which the client sends.

A message costs Flower requests and looks whatever is in it. So the first has one chunk, and while messages take less
than ``QUICK`` seconds the next has twice as many.

An offer that comes again is answered from what is kept: the client does not train twice for one call, and a server that
was killed, and offers the same call again, sends and fetches only what is missing. What is sent again after a cut is at
most ``WINDOW`` messages each way.

Both halves are here, and neither imports torch. Whoever sends nonsense is refused: sizes are bounded before anything is
kept, and a chunk that is not what its digest says is none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from ...errors import WireError, check
from .chunks import CHUNK, MOST, Chunks, Frame, cut, neighbours, read_frame

WINDOW = 2  # messages with chunks on their way to a client, or from it
QUICK = 2.5  # seconds: a message that takes less is followed by one that is twice as long
SLOW = 10.0  # seconds: a message that takes more is followed by one that is half as long
PAUSE = 5.0  # seconds until what was lost is sent again
GRACE = 30.0  # seconds for replies to what was sent before a node was away, once it is back
FINAL = (1, 2, 7)  # codes of Flower's errors that another try does not mend: the app cannot be loaded, or has raised

Bill = Callable[[Literal["up", "down"], int, int], object]
"""What is told of bytes that cross: which way, of headers and questions, and of bodies that were sent before."""
About = tuple[str, tuple[str, ...]]
"""What a message is about: its kind, and the digests of chunks."""
Answered = tuple[bytes, float]
"""An answer, and the rate in Mbit/s by which it is cut into Flower's objects."""


# -- the client's half -------------------------------------------------------------

ANSWER = "answer"  # the file that says of which call's answer the chunks are kept: frames of both


def reply(data: bytes, folder: Path, answer: Callable[[bytes], Answered]) -> Answered:
    """A client's reply to a message. ``answer`` answers a call, and ``folder`` is where chunks are kept."""
    frame, kept = read_frame(data), Chunks(folder)
    if frame is None:
        return answer(data)
    if frame.kind == "chunk":
        kept.keep(frame)
        return Frame("have", frame.chunks).write(), 0.0
    if frame.kind == "want":
        check(0 < len(frame.chunks) <= MOST, f"at most {MOST} chunks that are wanted")
        pieces = [piece for piece in map(kept.read, frame.chunks) if piece is not None]
        if len(pieces) < len(frame.chunks):
            return Frame("gone", frame.chunks).write(), 0.0
        return Frame("chunk", frame.chunks, b"", frame.size).write(*pieces), frame.rate
    check(frame.kind == "offer", "a message of a transfer")
    return reply_to_offer(frame, kept, answer)


def reply_to_offer(offer: Frame, kept: Chunks, answer: Callable[[bytes], Answered]) -> Answered:
    """The answer to the call that is offered, or what is missing of it."""
    before = kept.read(ANSWER)
    named = None if before is None else json.loads(before)
    if named is None or named["call"] != offer.chunks:
        if offer.body:
            check(list(cut(offer.body)) == offer.chunks, "the call that its digest names")
            for name, piece in cut(offer.body).items():
                kept.write(name, piece)
        here = kept.names()
        missing = [chunk for chunk in offer.chunks if chunk not in here]
        call = None if missing else kept.join(offer.chunks, offer.size)
        if call is None:
            kept.drop(but=offer.chunks if missing else ())
            return Frame("missing", missing or offer.chunks).write(), 0.0
        made, rate = answer(call)
        chunks = cut(made)
        for name, piece in chunks.items():
            kept.write(name, piece)
        named = {"call": offer.chunks, "chunks": list(chunks), "size": len(made), "rate": rate}
        kept.write(ANSWER, json.dumps(named).encode())
        kept.drop(but=[ANSWER, *chunks])
    if named["size"] <= CHUNK:
        whole = kept.join(named["chunks"], named["size"])
        if whole is not None:
            return whole, named["rate"]
    return Frame("whole", named["chunks"], b"", named["size"], named["rate"]).write(), 0.0


# -- the server's half -------------------------------------------------------------


class Transfer:
    """A call to a client and its answer, of which at least one is large: what is still to be sent, and what has come.

    ``most`` is how many bytes an answer has at most. What has come of it is kept in ``chunks``. ``bill`` is told what
    crosses beside call and answer: the direction, bytes of headers and questions, and bytes that were sent before.
    """

    def __init__(self, call: bytes, most: int, chunks: Chunks, bill: Bill = lambda way, framing, retries: None) -> None:
        self.call, self.most, self.kept, self.bill = cut(call), most, chunks, bill
        self.size = len(call)
        self.offered, self.asked = False, False  # whether the client was told of the call, and has said what is missing
        self.come = 0  # bytes of the answer's chunks
        self.tried = set[tuple[str, str]]()  # kinds of messages that were sent, and a chunk that each was about
        self.at_once = {"down": 1, "up": 1}  # chunks in a message
        self.sending = dict[str, bool]()  # chunks of the call that the client misses -> whether one is on its way
        self.whole: Frame | None = None  # the answer, as the client describes it
        self.wanted = dict[str, bool]()  # chunks of the answer that are missing here -> whether one is on its way
        self.rates = {"down": 0.0, "up": 0.0}  # Mbit/s, as the newest chunk has shown; 0 after a loss
        self.began, self.newest = dict[str, float](), 0.0  # message -> when it was sent; when a chunk last came
        self.away = dict[str, About]()  # message -> what it is about
        self.stale = dict[str, About]()  # the same of messages that were taken for lost
        self.absent, self.back, self.doubted = False, 0.0, set[str]()  # the node, and what was sent before it was away
        self.paused = 0.0
        self.since: float | None = None  # when the first chunk of the answer was asked for

    @property
    def progress(self) -> tuple[str, int, int]:
        """The direction that is under way, how many of its chunks have come, and of how many."""
        if self.whole is None:
            return "down", (len(self.call) if self.asked else 0) - len(self.sending), len(self.call)
        return "up", len(self.whole.chunks) - len(self.wanted), len(self.whole.chunks)

    def due(self, rate: float) -> list[tuple[About, bytes]]:
        """The messages to send now, and what each is about."""
        if time.monotonic() < self.paused or self.absent:
            return []  # to a node that is away it would be sent for nothing
        rate = round(max(rate, self.rates["up"]), 3)
        if self.whole is not None:
            wanted = self.batches(self.wanted, self.whole.chunks, "up")
            return [(("want", names), Frame("want", [*names], b"", first, rate).write()) for names, first in wanted]
        chunks = list[tuple[About, bytes]]()
        for names, first in self.batches(self.sending, list(self.call), "down"):
            frame = Frame("chunk", [*names], b"", first)
            chunks.append((("chunk", names), frame.write(*(self.call[name] for name in names))))
        if self.sending or self.offered:
            return chunks
        self.offered = True
        offer = Frame("offer", list(self.call), b"", self.size, rate)
        return [(("offer", ()), offer.write(*(self.call.values() if self.size <= CHUNK else ())))]

    def batches(
        self, due: dict[str, bool], names: list[str], way: Literal["down", "up"]
    ) -> Iterator[tuple[tuple[str, ...], int]]:
        """The chunks of each message that may be sent now, and the place of the first: from now on, they are away."""
        for _ in range(WINDOW - len(self.away)):
            places = [place for place, name in enumerate(names) if due.get(name) is False]
            if not places:
                return
            batch = neighbours(places, self.at_once[way])
            due |= dict.fromkeys([names[place] for place in batch], True)
            yield tuple(names[place] for place in batch), batch[0]

    def note_sent(self, message: str, about: About, size: int) -> None:
        """Note which message, of so many bytes, is about what."""
        kind, names = self.away[message] = about
        self.began[message] = time.monotonic()
        again = [name for name in names or ("",) if (kind, name) in self.tried]
        self.tried |= {(kind, name) for name in names or ("",)}
        if kind == "want" and self.whole is not None:
            self.bill("down", size, 0)
            rest = {name: self.whole.size - CHUNK * place for place, name in enumerate(self.whole.chunks)}
            self.bill("up", 0, sum(min(CHUNK, rest[name]) for name in again))
            return
        bodies = {name: len(self.call[name]) for name in names}
        if kind == "offer":
            bodies[""] = self.size if self.size <= CHUNK else 0
        self.bill("down", size - sum(bodies.values()), sum(bodies[name] for name in again))

    def lose(self, message: str) -> None:
        """A message, or its reply, did not get through: what it was about is due again."""
        about = self.stale[message] = self.away.pop(message)
        self.paused, self.rates = time.monotonic() + PAUSE, {"down": 0.0, "up": 0.0}
        self.at_once = {"down": 1, "up": 1}
        self.due_again(about)

    def note_presence(self, there: bool) -> None:
        """Note whether the node is there. What was sent before it was away, and is not replied to, is lost."""
        now = time.monotonic()
        if there and self.absent:
            self.doubted, self.back = set(self.away), now
        elif there and now - self.back > GRACE:
            for message in self.doubted & self.away.keys():
                self.lose(message)
            self.doubted = set()
        self.absent = not there

    def take(self, message: str, data: bytes) -> bytes | None:
        """Take the reply to a message; the answer, where that is whole now. Raises ``WireError``."""
        kind, names = self.away.pop(message) if message in self.away else self.stale.pop(message)
        try:
            frame = read_frame(data)
        except WireError:
            self.bill("up", len(data), 0)
            raise
        if frame is None:
            check(kind == "offer", "a message of a transfer")
            return data
        self.bill("up", len(data) - len(frame.body), 0)
        if frame.kind == "missing" and kind == "offer":
            check(set(frame.chunks) <= self.call.keys() and frame.chunks, "chunks of the call")
            self.offered, self.asked, self.sending = False, True, dict.fromkeys(frame.chunks, False)
        elif frame.kind == "have" and kind == "chunk":
            for name in names:
                self.sending.pop(name, None)
            self.measure("down", message, sum(len(self.call[name]) for name in names))
        elif frame.kind == "whole" and kind == "offer":
            if self.whole is not None:
                return None
            enough = len(set(frame.chunks)) == len(frame.chunks) == -(-frame.size // CHUNK)
            check(0 < frame.size <= self.most and enough, f"an answer of at most {self.most} bytes in chunks")
            self.whole, self.since = frame, time.monotonic()
            here = self.kept.names()
            self.kept.drop(but=frame.chunks)
            self.wanted = {chunk: False for chunk in frame.chunks if chunk not in here}
            return self._join()
        elif frame.kind == "chunk" and kind == "want":
            if self.whole is None or not self.wanted.keys() & set(names):
                return None  # they had come already, and are billed as what was asked for again
            check(frame.chunks == [*names], "the chunks that were wanted")
            sizes = self.kept.keep(frame)
            self.come += sum(size for name, size in sizes.items() if name in self.wanted)
            self.measure("up", message, len(frame.body))
            for name in names:
                self.wanted.pop(name, None)
            return self._join()
        elif frame.kind == "gone" and kind == "want":  # the client has lost what it kept: it is offered the call again
            self.whole, self.offered, self.wanted = None, False, {}
        else:
            raise WireError(f"a {frame.kind!r} in reply to a {kind!r}")
        return None

    def _join(self) -> bytes | None:
        """The answer; None where a chunk is still wanted."""
        assert self.whole is not None
        if self.wanted:
            return None
        data = self.kept.join(self.whole.chunks, self.whole.size)
        if data is None:  # the disk has damaged one
            self.kept.drop()
            self.wanted = dict.fromkeys(self.whole.chunks, False)
        return data

    def measure(self, way: Literal["up", "down"], message: str, size: int) -> None:
        """Note what a chunk says of its link: as many bytes at least went since it, or the one before, was replied to.

        What is on its way at the same time waits for it.
        """
        now = time.monotonic()
        self.rates[way] = 8e-6 * size / max(now - max(self.began[message], self.newest), 1e-3)
        self.newest, took = now, now - self.began[message]
        if took < QUICK:
            self.at_once[way] = min(2 * self.at_once[way], MOST)
        elif took > SLOW:
            self.at_once[way] = max(self.at_once[way] // 2, 1)

    def due_again(self, about: About) -> None:
        """A message about this was not sent, or is lost."""
        kind, names = about
        if kind == "offer":
            self.offered = False
        chunks = {"chunk": self.sending, "want": self.wanted}.get(kind, {})
        chunks |= dict.fromkeys(chunks.keys() & set(names), False)
