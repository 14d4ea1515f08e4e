"""Large blobs in parts that are kept at both ends: a transfer that is cut goes on where it was.

Flower drops a message whose objects take too long, and with it all that had come of it. So a blob of more than
``PART`` bytes travels as parts of its own messages. A part is named by its digest, and whoever has received it keeps it
on disk until the blob is whole. For a call the server sends

1. ``offer``: the digests of the call's parts, and a short call itself. The client says which parts are ``missing``;
2. ``part``: each of those. The client keeps it, and says that it has it;
3. ``offer`` again: now the call is whole. The client answers it, keeps the answer, and sends it if it is short, else
   the digests of its parts, ``whole``;
4. ``want``: the digest of a part of the answer, which the client sends.

An offer that comes again is answered from what is kept: the client does not train twice for one call, and a server that
was killed, and offers the same call again, sends and fetches only what is missing. What is sent again after a cut is at
most ``WINDOW`` parts each way.

Both halves are here, and neither imports torch. Whoever sends nonsense is refused: sizes are bounded before anything is
kept, and a part that is not what its digest says is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ...errors import WireError, check

PART = 1 << 21  # bytes: four seconds at 4 Mbit/s
WINDOW = 2  # parts on their way to a client, or from it
MAGIC = b"\0thinwire\0"  # no call and no answer begins so
DIGEST = 16  # bytes
LONGEST = 1 << 20  # bytes of a header
PAUSE = 5.0  # seconds until what was lost is sent again
GRACE = 30.0  # seconds for replies to what was sent before a node was away, once it is back
FINAL = (1, 2, 7)  # codes of Flower's errors that another try does not mend: the app cannot be loaded, or has raised

Answered = tuple[bytes, float]
"""An answer, and the rate in Mbit/s by which it is cut into Flower's objects."""


class Frame(NamedTuple):
    """A message of a transfer: what it is, which parts it is about, the bytes of one, and of the whole blob."""

    kind: str
    parts: list[str]
    body: bytes = b""
    size: int = 0
    rate: float = 0.0  # Mbit/s, by which a client cuts its answer

    def write(self) -> bytes:
        """The bytes of it."""
        head = json.dumps([self.kind, self.parts, self.size, self.rate]).encode()
        return MAGIC + len(head).to_bytes(4, "big") + head + self.body


def read_frame(data: bytes) -> Frame | None:
    """A message of a transfer; None where it is none, but a blob in one piece. Raises ``WireError``."""
    if not data.startswith(MAGIC):
        return None
    start = len(MAGIC) + 4
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    check(length <= LONGEST and len(data) >= start + length, "the header of a transfer")
    try:
        kind, parts, size, rate = json.loads(data[start : start + length])
    except (ValueError, TypeError) as error:
        raise WireError(f"the header of a transfer is none: {error}") from error
    digests = isinstance(parts, list) and all(isinstance(part, str) and is_digest(part) for part in parts)
    numbers = type(size) is int and size >= 0 and type(rate) in (int, float) and 0 <= rate < 1e9
    check(isinstance(kind, str) and digests and numbers, "the header of a transfer")
    return Frame(kind, parts, data[start + length :], size, float(rate))


def is_digest(text: str) -> bool:
    """Whether this names a part: it becomes a file's name."""
    return len(text) == 2 * DIGEST and set(text) <= set("0123456789abcdef")


def digest_of(data: bytes) -> str:
    """The name of a part."""
    return hashlib.blake2b(data, digest_size=DIGEST).hexdigest()


def cut(data: bytes) -> dict[str, bytes]:
    """The parts of a blob, in their order, each with its place in its name's digest: no two are the same."""
    pieces = [data[start : start + PART] for start in range(0, len(data), PART)]
    return {digest_of(index.to_bytes(4, "big") + piece): piece for index, piece in enumerate(pieces)}


class Parts:
    """The parts that are here: files of their digests' names, in a folder; in memory where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.held = folder, dict[str, bytes]()

    def keep(self, index: int, digest: str, data: bytes) -> None:
        """Keep the part of this place in a blob. Raises ``WireError`` where it is not what its digest says."""
        check(digest_of(index.to_bytes(4, "big") + data) == digest, "the part that its digest names")
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
        """The blob of these parts; None where one is missing or damaged. Raises ``WireError`` for another size."""
        pieces = list[bytes]()
        for index, digest in enumerate(digests):
            piece = self.read(digest)
            if piece is None or digest_of(index.to_bytes(4, "big") + piece) != digest:
                return None
            pieces.append(piece)
        check(sum(map(len, pieces)) == size, "parts of a blob of that size")
        return b"".join(pieces)


# -- the client's half -------------------------------------------------------------

ANSWER = "answer"  # the file that says of which call's answer the parts are kept: frames of both


def reply(data: bytes, folder: Path, answer: Callable[[bytes], Answered]) -> Answered:
    """A client's reply to a message. ``answer`` answers a call, and ``folder`` is where parts are kept."""
    frame, kept = read_frame(data), Parts(folder)
    if frame is None:
        return answer(data)
    if frame.kind == "part":
        check(len(frame.parts) == 1, "a part")
        kept.keep(frame.size, frame.parts[0], frame.body)
        return Frame("have", frame.parts).write(), 0.0
    if frame.kind == "want":
        check(len(frame.parts) == 1, "a part that is wanted")
        piece = kept.read(frame.parts[0])
        if piece is None:
            return Frame("gone", frame.parts).write(), 0.0
        return Frame("part", frame.parts, piece, frame.size).write(), frame.rate
    check(frame.kind == "offer", "a message of a transfer")
    return reply_to_offer(frame, kept, answer)


def reply_to_offer(offer: Frame, kept: Parts, answer: Callable[[bytes], Answered]) -> Answered:
    """The answer to the call that is offered, or what is missing of it."""
    before = kept.read(ANSWER)
    named = None if before is None else json.loads(before)
    if named is None or named["call"] != offer.parts:
        if offer.body:
            check(list(cut(offer.body)) == offer.parts, "the call that its digest names")
            for name, piece in cut(offer.body).items():
                kept.write(name, piece)
        here = kept.names()
        missing = [part for part in offer.parts if part not in here]
        call = None if missing else kept.join(offer.parts, offer.size)
        if call is None:
            kept.drop(but=offer.parts if missing else ())
            return Frame("missing", missing or offer.parts).write(), 0.0
        made, rate = answer(call)
        parts = cut(made)
        for name, piece in parts.items():
            kept.write(name, piece)
        named = {"call": offer.parts, "parts": list(parts), "size": len(made), "rate": rate}
        kept.write(ANSWER, json.dumps(named).encode())
        kept.drop(but=[ANSWER, *parts])
    if named["size"] <= PART:
        whole = kept.join(named["parts"], named["size"])
        if whole is not None:
            return whole, named["rate"]
    return Frame("whole", named["parts"], b"", named["size"], named["rate"]).write(), 0.0


# -- the server's half -------------------------------------------------------------


class Transfer:
    """A call to a client and its answer, of which at least one is large: what is still to be sent, and what has come.

    ``most`` is how many bytes an answer has at most. What has come of it is kept in ``parts``. ``again`` is told
    how many bytes are sent again.
    """

    def __init__(
        self, call: bytes, most: int, parts: Parts, again: Callable[[int], object] = lambda size: None
    ) -> None:
        self.call, self.most, self.kept, self.again = cut(call), most, parts, again
        self.size, self.places = len(call), {name: index for index, name in enumerate(self.call)}
        self.offered = False
        self.sending = dict[str, bool]()  # parts of the call that the client misses -> whether one is on its way
        self.whole: Frame | None = None  # the answer, as the client describes it
        self.wanted = dict[str, bool]()  # parts of the answer that are missing here -> whether one is on its way
        self.away = dict[str, tuple[str, str]]()  # message -> what it is about
        self.stale = dict[str, tuple[str, str]]()  # the same of messages that were taken for lost
        self.absent, self.back, self.doubted = False, 0.0, set[str]()  # the node, and what was sent before it was away
        self.paused = 0.0
        self.since: float | None = None  # when the first part of the answer was asked for

    @property
    def progress(self) -> tuple[str, int, int]:
        """The direction that is under way, how many of its parts have come, and of how many."""
        if self.whole is None:
            return "down", len(self.call) - len(self.sending), len(self.call)
        return "up", len(self.whole.parts) - len(self.wanted), len(self.whole.parts)

    def due(self, rate: float) -> list[tuple[tuple[str, str], bytes]]:
        """The messages to send now, and what each is about: ``(kind, digest)``."""
        if time.monotonic() < self.paused:
            return []
        free = WINDOW - len(self.away)
        if self.whole is not None:
            names = [name for name, away in self.wanted.items() if not away][: max(free, 0)]
            self.wanted |= dict.fromkeys(names, True)
            place = {name: index for index, name in enumerate(self.whole.parts)}
            return [(("want", n), Frame("want", [n], b"", place[n], rate).write()) for n in names]
        names = [name for name, away in self.sending.items() if not away][: max(free, 0)]
        self.sending |= dict.fromkeys(names, True)
        parts = [(("part", n), Frame("part", [n], self.call[n], self.places[n]).write()) for n in names]
        if self.sending or self.offered:
            return parts
        self.offered = True
        body = b"".join(self.call.values()) if self.size <= PART else b""
        return [(("offer", ""), Frame("offer", list(self.call), body, self.size, rate).write())]

    def sent(self, message: str, about: tuple[str, str]) -> None:
        """Note which message is about what."""
        self.away[message] = about

    def lost(self, message: str) -> None:
        """A message, or its reply, did not get through: what it was about is due again."""
        kind, name = self.stale[message] = self.away.pop(message)
        self.paused = time.monotonic() + PAUSE
        self.due_again(kind, name)

    def seen(self, there: bool) -> None:
        """Note whether the node is there. What was sent before it was away, and is not replied to, is lost."""
        now = time.monotonic()
        if there and self.absent:
            self.doubted, self.back = set(self.away), now
        elif there and now - self.back > GRACE:
            for message in self.doubted & self.away.keys():
                self.lost(message)
            self.doubted = set()
        self.absent = not there

    def take(self, message: str, data: bytes) -> bytes | None:
        """Take the reply to a message; the answer, where that is whole now. Raises ``WireError``."""
        kind, name = self.away.pop(message) if message in self.away else self.stale.pop(message)
        frame = read_frame(data)
        if frame is None:
            check(kind == "offer", "a message of a transfer")
            return data
        if frame.kind == "missing" and kind == "offer":
            check(set(frame.parts) <= self.call.keys() and frame.parts, "parts of the call")
            self.offered, self.sending = False, dict.fromkeys(frame.parts, False)
        elif frame.kind == "have" and kind == "part":
            self.sending.pop(name, None)
        elif frame.kind == "whole" and kind == "offer":
            if self.whole is not None:
                return None
            enough = len(set(frame.parts)) == len(frame.parts) == -(-frame.size // PART)
            check(0 < frame.size <= self.most and enough, f"an answer of at most {self.most} bytes in parts")
            self.whole, self.since = frame, time.monotonic()
            here = self.kept.names()
            self.kept.drop(but=frame.parts)
            self.wanted = {part: False for part in frame.parts if part not in here}
            return self._joined()
        elif frame.kind == "part" and kind == "want":
            if self.whole is None or name not in self.wanted:
                return None  # it had come already
            check(len(frame.body) <= PART and frame.parts == [name], "the part that was wanted")
            self.kept.keep(self.whole.parts.index(name), name, frame.body)
            self.wanted.pop(name, None)
            return self._joined()
        elif frame.kind == "gone" and kind == "want":  # the client has lost what it kept: it is offered the call again
            self.whole, self.offered, self.wanted = None, False, {}
        else:
            raise WireError(f"a {frame.kind!r} in reply to a {kind!r}")
        return None

    def _joined(self) -> bytes | None:
        assert self.whole is not None
        if self.wanted:
            return None
        data = self.kept.join(self.whole.parts, self.whole.size)
        if data is None:  # the disk has damaged one
            self.kept.drop()
            self.wanted = dict.fromkeys(self.whole.parts, False)
        return data

    def due_again(self, kind: str, name: str) -> None:
        if kind == "offer":
            self.offered = False
        elif kind == "part" and name in self.sending:
            self.sending[name] = False
            self.again(len(self.call[name]))
        elif kind == "want" and name in self.wanted:
            self.wanted[name] = False
            self.again(PART)
