"""A blob as a message of Flower's."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from ...errors import check

RECORD = "thinwire"
# Bytes. An object whose upload takes longer than 180 s is lost with its message, a request that is not answered within
# 30 s is sent again, and a heartbeat queues behind two of these for 5 s at most: at 0.1 Mbit/s all three still pass.
PIECE = 1 << 15
NAME = 200  # bytes of a client's name, at most


def packed(data: bytes) -> RecordDict:
    """A blob as the content of a message, cut into pieces that slow links deliver."""
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)] or [b""]
    arrays = {str(i): Array("uint8", (len(piece),), RECORD, piece) for i, piece in enumerate(pieces)}
    return RecordDict({RECORD: ArrayRecord(arrays)})


def unpacked(content: RecordDict, most: int | None = None) -> bytes:
    """The blob that :func:`packed` cut, of at most so many bytes. Raises ``WireError``."""
    check(set(content) == {RECORD} and isinstance(content[RECORD], ArrayRecord), "one record of ours")
    arrays = content.array_records[RECORD]
    check(list(arrays) == [str(i) for i in range(len(arrays))], "pieces in their order")
    parts = [array.data for array in arrays.values()]
    check(most is None or sum(map(len, parts)) <= most, f"a blob of at most {most} bytes")
    return b"".join(parts)
