"""The chunks of a large blob: the messages that carry some, and where they are kept. Nothing here imports torch."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...errors import WireError, check

CHUNK = 1 << 21  # bytes: four seconds at 4 Mbit/s
MOST = 16  # chunks in a message: 32 MiB, which server, SuperLink and client each hold in memory
PLACES = 1 << 32  # of chunks in a blob
MAGIC = b"\0thinwire\0"  # no call and no answer begins so
DIGEST = 16  # bytes
LONGEST = 1 << 20  # bytes of a header

Piece = bytes | memoryview


class Frame(NamedTuple):
    """A message of a transfer: what it is, which chunks it is about, and their bytes.

    ``size`` is the whole blob's, in bytes, and for a ``chunk`` or a ``want`` the place of the first chunk in it.
    """

    kind: str
    chunks: list[str]
    body: bytes = b""
    size: int = 0
    rate: float = 0.0  # Mbit/s, by which a client cuts its answer

    def write(self, *body: Piece) -> bytes:
        """The bytes of it; those of its body may be given here in pieces."""
        head = json.dumps([self.kind, self.chunks, self.size, self.rate]).encode()
        return b"".join([MAGIC, len(head).to_bytes(4, "big"), head, self.body, *body])


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


def digest_of(place: int, data: Piece) -> str:
    """The name of the chunk in this place of a blob."""
    digest = hashlib.blake2b(place.to_bytes(4, "big"), digest_size=DIGEST)
    digest.update(data)
    return digest.hexdigest()


def cut(data: bytes, first: int = 0) -> dict[str, memoryview]:
    """The chunks of a blob, in their order, each with its place in its name's digest: no two are the same.

    They share memory with the blob. ``first`` is the place of the first of them, where these are the neighbours of
    others.
    """
    pieces = [memoryview(data)[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    return {digest_of(place, piece): piece for place, piece in enumerate(pieces, first)}


def neighbours(places: list[int], most: int) -> list[int]:
    """The first of these places and those that follow it without a gap, at most so many."""
    return [place for place, there in zip(itertools.count(places[0]), places[:most]) if place == there]


class Chunks:
    """The chunks that are here: files of their digests' names, in a folder; in memory where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.held = folder, dict[str, bytes]()

    def keep(self, frame: Frame) -> dict[str, int]:
        """Keep the chunks of a message; the bytes of each. Raises ``WireError`` where a digest says otherwise."""
        check(0 < len(frame.body) <= MOST * CHUNK and frame.size <= PLACES - MOST, f"at most {MOST} chunks")
        pieces = cut(frame.body, frame.size)
        check(list(pieces) == frame.chunks, "the chunks that their digests name")
        for name, piece in pieces.items():
            self.write(name, piece)
        return {name: len(piece) for name, piece in pieces.items()}

    def write(self, name: str, data: Piece) -> None:
        """Keep something, which a killed process leaves whole or not at all."""
        if self.folder is None:
            self.held[name] = bytes(data)
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
        whole = io.BytesIO()  # which hands out what it holds without a copy
        for place, digest in enumerate(digests):
            piece = self.read(digest)
            if piece is None or digest_of(place, piece) != digest:
                return None
            whole.write(piece)
        check(whole.tell() == size, "chunks of a blob of that size")
        return whole.getvalue()
