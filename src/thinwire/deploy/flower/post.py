"""A blob as the content of a message of Flower's, and back. Nothing here imports torch."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from ...errors import check

RECORD = "thinwire"
# Bytes. An object whose upload takes longer than 180 s is lost with its message, a request that is not answered within
# 30 s is sent again, and a heartbeat may take 5 s, as long as two of these: at 0.1 Mbit/s all three still pass.
PIECE = 1 << 15
LARGEST = 1 << 20
SECONDS = 2.5  # that a larger piece may take on its link, as the small one does at 0.1 Mbit/s
NAME = 200  # bytes of a client's name, at most


def pack(data: bytes, mbit: float = 0.0) -> RecordDict:
    """A blob as the content of a message, cut into pieces that a link of so many Mbit/s delivers (0: not known).

    Each piece is a ConfigRecord, which Flower sends, or asks for, in one request; an array takes
    two. A request has a signature and a key of 1.2 kB: fewer are less to send.
    """
    size = min(max(PIECE, int(mbit * 1e6 / 8 * SECONDS)), LARGEST)
    pieces = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
    return RecordDict({str(i): ConfigRecord({RECORD: piece}) for i, piece in enumerate(pieces)})


def unpack(content: RecordDict, most: int | None = None) -> bytes:
    """The blob that :func:`pack` cut, of at most so many bytes. Raises ``WireError``."""
    check(list(content) == [str(i) for i in range(len(content))], "pieces in their order")
    records = [r for r in content.values() if isinstance(r, ConfigRecord) and list(r) == [RECORD]]
    parts = [piece for piece in (record[RECORD] for record in records) if isinstance(piece, bytes)]
    check(parts and len(parts) == len(content), "records of ours")
    check(most is None or sum(map(len, parts)) <= most, f"a blob of at most {most} bytes")
    return b"".join(parts)
