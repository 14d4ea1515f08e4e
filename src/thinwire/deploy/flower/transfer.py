"""Large blobs in chunks that are kept at both ends: a transfer that is cut goes on where it was.

Flower drops a message whose objects take too long, and with it all that had come of it. So a blob of more than
``CHUNK`` bytes travels as chunks in messages of their own. A chunk is named by its digest, and whoever has received it
keeps it on disk until the blob is whole. For a call the server sends

1. ``offer``: the digests of the call's chunks, and a short call itself. The client says which chunks are ``missing``;
2. ``chunk``: each of those. The client keeps it, and says that it has it;
3. ``offer`` again: now the call is whole. The client answers it, keeps the answer, and sends it if it is short, else
   the digests of its chunks, ``whole``;
4. ``want``: the digest of a chunk of the answer, which the client sends.

An offer that comes again is answered from what is kept: the client does not train twice for one call, and a server that
was killed, and offers the same call again, sends and fetches only what is missing. What is sent again after a cut is at
most ``WINDOW`` chunks each way.

Both halves are here, and neither imports torch. Whoever sends nonsense is refused: sizes are bounded before anything is
kept, and a chunk that is not what its digest says is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import WireError, check

CHUNK = 1 << 21  # bytes: four seconds at 4 Mbit/s
WINDOW = 2  # chunks on their way to a client, or from it
MAGIC = b"\0thinwire\0"  # no call and no answer begins so
DIGEST = 16  # bytes
LONGEST = 1 << 20  # bytes of a header
PAUSE = 5.0  # seconds until what was lost is sent again
GRACE = 30.0  # seconds for replies to what was sent before a node was away, once it is back
FINAL = (1, 2, 7)  # codes of Flower's errors that another try does not mend: the app cannot be loaded, or has raised

Bill = Callable[[Literal["up", "down"], int, int], object]
"""What is told of bytes that cross: which way, of headers and questions, and of bodies that were sent before."""
Answered = tuple[bytes, float]
"""An answer, and the rate in Mbit/s by which it is cut into Flower's objects."""


class Frame(NamedTuple):
    """A message of a transfer: what it is, which chunks it is about, the bytes of one, and of the whole blob."""

    kind: str
    chunks: list[str]
    body: bytes = b""
    size: int = 0
    rate: float = 0.0  # Mbit/s, by which a client cuts its answer

    def write(self) -> bytes:
        """The bytes of it."""
        head = json.dumps([self.kind, self.chunks, self.size, self.rate]).encode()
        return MAGIC + len(head).to_bytes(4, "big") + head + self.body


def read_frame(data: bytes) -> Frame | None:
    """A message of a transfer; None where it is none, but a blob in one piece. Raises ``WireError``."""
    if not data.startswith(MAGIC):
        return None
    start = len(MAGIC) + 4
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    check(length <= LONGEST and len(data) >= start + length, "the header of a transfer")
    try:
        kind, chunks, size, rate = json.loads(data[start : start + length])
    except (ValueError, TypeError) as error:
        raise WireError(f"the header of a transfer is none: {error}") from error
    digests = isinstance(chunks, list) and all(isinstance(chunk, str) and is_digest(chunk) for chunk in chunks)
    numbers = type(size) is int and size >= 0 and type(rate) in (int, float) and 0 <= rate < 1e9
    check(isinstance(kind, str) and digests and numbers, "the header of a transfer")
    return Frame(kind, chunks, data[start + length :], size, float(rate))


def is_digest(text: str) -> bool:
    """Whether this names a chunk: it becomes a file's name."""
    return len(text) == 2 * DIGEST and set(text) <= set("0123456789abcdef")


def digest_of(data: bytes) -> str:
    """The name of a chunk."""
    return hashlib.blake2b(data, digest_size=DIGEST).hexdigest()


def cut(data: bytes) -> dict[str, bytes]:
    """The chunks of a blob, in their order, each with its place in its name's digest: no two are the same."""
    pieces = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    return {digest_of(index.to_bytes(4, "big") + piece): piece for index, piece in enumerate(pieces)}


class Chunks:
    """The chunks that are here: files of their digests' names, in a folder; in memory where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.held = folder, dict[str, bytes]()

    def keep(self, index: int, digest: str, data: bytes) -> None:
        """Keep the chunk of this place in a blob. Raises ``WireError`` where it is not what its digest says."""
        check(digest_of(index.to_bytes(4, "big") + data) == digest, "the chunk that its digest names")
        self.write(digest, data)

    def write(self, name: str, data: bytes) -> None:
        """Keep something, which a killed process leaves whole or not at all."""
        if self.folder is None:
            self.held[name] = data
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.folder / f".{name}.{os.getpid()}"
        draft.write_bytes(data)
        draft.replace(self.folder / name)

    def read(self, name: str) -> bytes | None:
        """What is kept by a name; None where nothing is."""
        if self.folder is None:
            return self.held.get(name)
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> set[str]:
        """The names of all that is kept."""
        if self.folder is None:
            return set(self.held)
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()

    def drop(self, but: Iterable[str] = ()) -> None:
        """Keep nothing but this."""
        for name in self.names() - set(but):
            if self.folder is None:
                del self.held[name]
            else:
                (self.folder / name).unlink(missing_ok=True)

    def join(self, digests: list[str], size: int) -> bytes | None:
        """The blob of these chunks; None where one is missing or damaged. Raises ``WireError`` for another size."""
        pieces = list[bytes]()
        for index, digest in enumerate(digests):
            piece = self.read(digest)
            if piece is None or digest_of(index.to_bytes(4, "big") + piece) != digest:
                return None
            pieces.append(piece)
        check(sum(map(len, pieces)) == size, "chunks of a blob of that size")
        return b"".join(pieces)


# -- the client's half -------------------------------------------------------------

ANSWER = "answer"  # the file that says of which call's answer the chunks are kept: frames of both


def reply(data: bytes, folder: Path, answer: Callable[[bytes], Answered]) -> Answered:
    """A client's reply to a message. ``answer`` answers a call, and ``folder`` is where chunks are kept."""
    frame, kept = read_frame(data), Chunks(folder)
    if frame is None:
        return answer(data)
    if frame.kind == "chunk":
        check(len(frame.chunks) == 1, "a chunk")
        kept.keep(frame.size, frame.chunks[0], frame.body)
        return Frame("have", frame.chunks).write(), 0.0
    if frame.kind == "want":
        check(len(frame.chunks) == 1, "a chunk that is wanted")
        piece = kept.read(frame.chunks[0])
        if piece is None:
            return Frame("gone", frame.chunks).write(), 0.0
        return Frame("chunk", frame.chunks, piece, frame.size).write(), frame.rate
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
        self.size, self.places = len(call), {name: index for index, name in enumerate(self.call)}
        self.offered, self.asked = False, False  # whether the client was told of the call, and has said what is missing
        self.come = 0  # bytes of the answer's chunks
        self.tried = set[tuple[str, str]]()  # what messages that were sent were about
        self.sending = dict[str, bool]()  # chunks of the call that the client misses -> whether one is on its way
        self.whole: Frame | None = None  # the answer, as the client describes it
        self.wanted = dict[str, bool]()  # chunks of the answer that are missing here -> whether one is on its way
        self.rates = {"down": 0.0, "up": 0.0}  # Mbit/s, as the newest chunk has shown; 0 after a loss
        self.began, self.newest = dict[str, float](), 0.0  # message -> when it was sent; when a chunk last came
        self.away = dict[str, tuple[str, str]]()  # message -> what it is about
        self.stale = dict[str, tuple[str, str]]()  # the same of messages that were taken for lost
        self.absent, self.back, self.doubted = False, 0.0, set[str]()  # the node, and what was sent before it was away
        self.paused = 0.0
        self.since: float | None = None  # when the first chunk of the answer was asked for

    @property
    def progress(self) -> tuple[str, int, int]:
        """The direction that is under way, how many of its chunks have come, and of how many."""
        if self.whole is None:
            return "down", (len(self.call) if self.asked else 0) - len(self.sending), len(self.call)
        return "up", len(self.whole.chunks) - len(self.wanted), len(self.whole.chunks)

    def due(self, rate: float) -> list[tuple[tuple[str, str], bytes]]:
        """The messages to send now, and what each is about: ``(kind, digest)``."""
        if time.monotonic() < self.paused or self.absent:
            return []  # to a node that is away it would be sent for nothing
        free, rate = WINDOW - len(self.away), round(max(rate, self.rates["up"]), 3)
        if self.whole is not None:
            names = [name for name, away in self.wanted.items() if not away][: max(free, 0)]
            self.wanted |= dict.fromkeys(names, True)
            place = {name: index for index, name in enumerate(self.whole.chunks)}
            return [(("want", n), Frame("want", [n], b"", place[n], rate).write()) for n in names]
        names = [name for name, away in self.sending.items() if not away][: max(free, 0)]
        self.sending |= dict.fromkeys(names, True)
        chunks = [(("chunk", n), Frame("chunk", [n], self.call[n], self.places[n]).write()) for n in names]
        if self.sending or self.offered:
            return chunks
        self.offered = True
        body = b"".join(self.call.values()) if self.size <= CHUNK else b""
        return [(("offer", ""), Frame("offer", list(self.call), body, self.size, rate).write())]

    def note_sent(self, message: str, about: tuple[str, str], size: int) -> None:
        """Note which message, of so many bytes, is about what."""
        (kind, name), again = about, about in self.tried
        self.away[message], self.began[message] = about, time.monotonic()
        self.tried.add(about)
        body = len(self.call[name]) if kind == "chunk" else self.size if kind == "offer" and self.size <= CHUNK else 0
        self.bill("down", size - body, body if again else 0)
        if kind == "want" and again and self.whole is not None:
            self.bill("up", 0, min(CHUNK, self.whole.size - CHUNK * self.whole.chunks.index(name)))

    def lose(self, message: str) -> None:
        """A message, or its reply, did not get through: what it was about is due again."""
        kind, name = self.stale[message] = self.away.pop(message)
        self.paused, self.rates = time.monotonic() + PAUSE, {"down": 0.0, "up": 0.0}
        self.due_again(kind, name)

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
        kind, name = self.away.pop(message) if message in self.away else self.stale.pop(message)
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
            self.sending.pop(name, None)
            self.measure("down", message, len(self.call[name]))
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
            if self.whole is None or name not in self.wanted:
                return None  # it had come already, and is billed as what was asked for again
            check(len(frame.body) <= CHUNK and frame.chunks == [name], "the chunk that was wanted")
            self.kept.keep(self.whole.chunks.index(name), name, frame.body)
            self.come += len(frame.body)
            self.measure("up", message, len(frame.body))
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
        self.newest = now

    def due_again(self, kind: str, name: str) -> None:
        if kind == "offer":
            self.offered = False
        elif kind == "chunk" and name in self.sending:
            self.sending[name] = False
        elif kind == "want" and name in self.wanted:
            self.wanted[name] = False
