"""The last stage, which loses nothing: another link's packet in as few bytes as its regularities allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import WireError, check
from ..kernels import levels, rans
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State, count, dumps, loads
from .base import Link, Wrapper, octets, row, width

STORED, ZSTD, RANS, LEVELS = range(4)
LEVEL = 3  # of zstd: higher ones take several times as long for a percent


@dataclass(frozen=True)
class Entropy(Wrapper):
    """``inner``'s packet as it is, by zstd, by range coding, or 8-bit numbers by the adaptive coder: the shortest.

    Quantised updates shrink most: ``Entropy(Int8())``. Range coding (:mod:`thinwire.kernels.rans`) comes within a
    percent or two of :func:`entropy_bound` and wins where most bytes are alike. zstd also finds what repeats. The
    adaptive coder (:mod:`thinwire.kernels.levels`) learns where in a layer numbers are large. Links that it serves by
    themselves (STC, TopK, QSGD, Ternary, TransformCoding) gain little or nothing here. The receiver sees what ``inner``
    delivers, and states are those of ``inner``. Coded packets cannot be added up, so they are decoded before they are
    averaged.

    A receiver decompresses at most :func:`limit` bytes with at most :func:`values` values in them. A packet beyond
    these is sent as it is. ``recv`` raises ``WireError`` for a packet that announces more.
    """

    inner: Link

    linear = False

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, seen, tx = self.inner.send(x, tx, key)
        return _code(packet, x.layout), seen, tx

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self.inner.recv(_decode(packet, limit(layout), values(layout)), layout, rx, key)

    def floats(self, packet: Packet) -> float:
        return self.inner.floats(_decode(packet, None, None))  # of a packet that was made here, or checked


def limit(layout: Layout) -> int:
    """The most bytes that a receiver of these layers decompresses: a number and one more an entry, and 1 kB a layer.

    A number has 4 bytes, or 8 of a model in 64 bits. No link sends more.
    """
    return (layout.dtype.itemsize + 1) * layout.size + 1024 * (len(layout.names) + 1)


def values(layout: Layout) -> int:
    """The most values that a receiver of these layers decompresses: 32 a layer, each up to a kilobyte of memory."""
    return 32 * (len(layout.names) + 1)


def entropy_bound(data: bytes) -> float:
    """Bytes that ``data`` takes at least if each byte is coded by its frequency alone: n times the order-0 entropy."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    counts = counts[counts > 0]
    return float(counts @ np.log2(max(1, len(data)) / counts)) / 8


def _code(packet: Packet, layout: Layout) -> Packet:
    """The shortest of the four; which one it is comes first."""
    import zstandard  # where it is used

    ways: list[Packet] = [[STORED, packet]]
    data = dumps(packet)
    if len(data) <= limit(layout) and count(packet) <= values(layout):
        frame = zstandard.ZstdCompressor(level=LEVEL).compress(data)
        ways.append([ZSTD, _bytes(frame)])
        # The frequencies and the lanes come on top of the bound; where zstd is ahead of it there is nothing to try.
        if entropy_bound(data) < len(frame):
            ways.append([RANS, len(data), *rans.encode(_bytes(data))])
        rows = _take_rows(packet, layout)
        if rows:
            ways.append([LEVELS, *rows])
    return min(ways, key=lambda way: len(dumps(way)))


def _decode(packet: Packet, most: int | None, most_values: int | None) -> Packet:
    """What :func:`_code` was given. Nothing longer than ``most`` bytes, or of more values, is decompressed."""
    check(isinstance(packet, list) and len(packet) >= 2 and type(packet[0]) is int, "how a packet is coded")
    way, *parts = packet
    if way == STORED:
        check(len(parts) == 1, "a packet as it is")
        return parts[0]
    if way == ZSTD:
        check(len(parts) == 1, "a zstd frame")
        return loads(_zstd(octets(parts[0]), most), max_values=most_values)
    if way == LEVELS:
        return _put_rows(parts, most, most_values)
    check(way == RANS and len(parts) == 4, "a packet stored, by zstd, by range coding or by levels")
    size, present, counts, words = parts
    check(type(size) is int and size > 0 and (most is None or size <= most), "a packet of no more bytes than accepted")
    coded = rans.Coded(row(present, torch.bool), row(counts, torch.int16), row(words, torch.int16))
    return loads(rans.decode(coded, size).numpy().tobytes(), max_values=most_values)


def _take_rows(packet: Packet, layout: Layout) -> list[Packet]:
    """The packet with empty rows in place of its rows of 8-bit numbers, and of each its length, the width of its layer
    and its bytes. Nothing where there are none, or where one has a number that the coder does not take.
    """
    taken: list[Packet] = []

    def take(part: Packet, row: int) -> Packet:
        if isinstance(part, list):
            return [take(one, row) for one in part]
        if not _is_row(part):
            return part
        fits = part.numel() == 0 or int(part.min()) >= -levels.LARGEST
        coded = (
            levels.pack(part.contiguous(), 2 * part.numel() + 16, row) if fits and part.numel() < levels.MOST else None
        )
        taken.append([part.numel(), row, coded])
        return part[:0]

    by_layer = isinstance(packet, list) and len(packet) == len(layout.names)
    rows = [width(shape) for shape in layout.shapes] if by_layer else None
    rest = take(packet, 0) if rows is None else [take(part, row) for part, row in zip(packet, rows, strict=True)]
    return [rest, *taken] if taken and all(coded is not None for _, _, coded in taken) else []


def _put_rows(parts: list[Packet], most: int | None, most_values: int | None) -> Packet:
    """What :func:`_take_rows` was given."""
    check(len(parts) > 1, "a packet and its 8-bit numbers")
    rest, *taken = parts
    check(most_values is None or count(rest) <= most_values, "a packet of no more values than accepted")
    sizes = [part[:2] for part in taken if isinstance(part, list) and len(part) == 3]
    check(len(sizes) == len(taken) and all(type(x) is int and x >= 0 for pair in sizes for x in pair), "lengths")
    check(sum(n for n, _ in sizes) <= (levels.MOST - 1 if most is None else most), "no more bytes than accepted")
    queue = iter(taken)

    def give(part: Packet) -> Packet:
        if isinstance(part, list):
            return [give(one) for one in part]
        if not _is_row(part):
            return part
        n, row, coded = next(queue, (0, 0, None))
        check(part.numel() == 0 and coded is not None, "8-bit numbers for each empty row")
        return levels.unpack(octets(coded), n, row)

    packet = give(rest)
    check(next(queue, None) is None, "an empty row for all 8-bit numbers")
    return packet


def _is_row(part: Packet) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.int8 and part.ndim == 1


def _zstd(frame: Tensor, most: int | None) -> bytes:
    import zstandard

    data = frame.numpy().tobytes()
    try:
        size = zstandard.frame_content_size(data)
        check(size > 0 and (most is None or size <= most), "a packet of no more bytes than accepted")
        # One block of the size announced, which the decoder does not exceed.
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"a zstd frame that cannot be read: {error}") from error


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
