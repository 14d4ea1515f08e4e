"""Transform coding, its bytes: layers as rounded entries or rounded rank-one terms, and back.

A packet is the step (4 bytes) and what :mod:`thinwire.kernels.adaptive` makes of, in this order: the mode of each
layer; how large the entries are of each layer of entries; the levels of each term, as differences; corrections of
scales; the entries. The context of an entry is how large the entries of its layer, or of its term, are expected to be.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int32, UInt8
from torch import Size, Tensor

from ..errors import check
from ..kernels.adaptive import Reader, Writer
from ..kernels.outer import outer_sum
from ..params import Layout, Params
from .base import join, width
from .lowrank import sides

FINEST = 1 << 20  # levels to a unit vector, at most
GAINS = 64  # parts in which the scale of a layer's own entries is corrected
MODE, CLASS, LEVELS, GAIN, TERMS, ENTRIES = 0, 1, 2, 3, 4, 36  # contexts; of the last two 32 each
CONTEXTS = ENTRIES + 32
TERM = 4  # bytes of a packet for each of its terms, at least: one that is worth its bits takes 6 and more


class CodedLayer(NamedTuple):
    """One layer as it is coded: nothing, its rounded entries, or rank-one terms."""

    mode: int  # 0: nothing, 1: entries, 2 and more: terms, and one more
    levels: list[int]  # of each term, to a unit vector
    gains: list[int]  # corrections of scales: of each term in its levels, of entries in 64ths
    left: Int32[Tensor, "rank m"]  # or all entries, [1, n]
    right: Int32[Tensor, "rank n"]


NONE = torch.zeros(0, 0, dtype=torch.int32, device="cpu")
NOTHING = CodedLayer(0, [], [], NONE, NONE)


def most_terms(shape: Size) -> int:
    """The most terms a layer is sent as: half as many numbers as it has entries; 0 of a layer of one dimension."""
    if len(shape) < 2:
        return 0
    m, n = sides(shape)
    return m * n // (2 * (m + n)) if m > 1 and n > 1 else 0


def write(step: float, parts: list[CodedLayer], shapes: Sequence[Size], room: int) -> UInt8[Tensor, " bytes"] | None:
    """Step and layers as bytes; None where they are more than ``room``, or fewer than so many terms can take."""
    writer = Writer(CONTEXTS, room - 4)
    kinds = [_kind(part.left) for part in parts if part.mode == 1]
    _write(writer, [part.mode for part in parts], MODE, negative=False)
    _write(writer, kinds, CLASS, negative=False)
    _write(writer, [each for part in parts if part.levels for each in (part.levels[0], *_steps(part.levels))], LEVELS)
    _write(writer, [each for part in parts for each in part.gains], GAIN)
    queue, matrices, contexts = iter(kinds), list[Tensor](), list[int]()  # a context for each row
    for part, shape in zip(parts, shapes, strict=True):
        if part.mode == 1:
            matrices.append(part.left.view(-1, width(shape) or part.left.numel()))
            contexts += [ENTRIES + next(queue)] * len(matrices[-1])
        elif part.mode:
            for side in (part.left, part.right):
                matrices.append(side)
                contexts += [_about(level, side.shape[1]) for level in part.levels]
    writer.put_rows(matrices, torch.tensor(contexts, dtype=torch.uint8, device="cpu"))
    coded = writer.bytes()
    if coded is None or coded.numel() + 4 < TERM * sum(len(part.levels) for part in parts):
        return None
    return torch.cat([torch.frombuffer(bytearray(struct.pack("<f", step)), dtype=torch.uint8), coded])


def _steps(levels: list[int]) -> list[int]:
    return [b - a for a, b in pairwise(levels)]


def _write(writer: Writer, values: list[int], context: int, negative: bool = True) -> None:
    numbers = torch.tensor(values, dtype=torch.int32, device="cpu")
    writer.put(numbers, torch.full_like(numbers, context, dtype=torch.uint8), 0, negative)


def _get(reader: Reader, n: int, context: int, negative: bool = True) -> list[int]:
    numbers: list[int] = reader.get(n, torch.full((n,), context, dtype=torch.uint8, device="cpu"), 0, negative).tolist()
    return numbers


def _kind(entries: Int32[Tensor, "1 n"]) -> int:
    """How large a layer's entries are: :func:`_octave` of the sum of their squares."""
    return _octave(int(entries.long().square().sum()), entries.numel())


def _octave(squares: int, n: int) -> int:
    """How large numbers are whose squares have this sum, in half octaves from a quarter on: 0 to 31."""
    return min(31, (16 * squares // max(n, 1)).bit_length())


@lru_cache(1 << 16)
def _about(level: int, n: int) -> int:
    """The context of the ``n`` entries of a term."""
    return TERMS + _octave(level * level, n)


def _contexts(levels: list[int], n: int) -> UInt8[Tensor, " entries"]:
    """The contexts of terms with ``n`` entries each."""
    each = [_about(level, n) for level in levels]
    return torch.tensor(each, dtype=torch.uint8, device="cpu").repeat_interleave(n)


def read(packet: UInt8[Tensor, " bytes"], layout: Layout) -> Params:
    """What the bytes stand for. Raises ``WireError`` for bytes that no sender makes."""
    if packet.numel() == 0:
        return layout.zeros()
    check(packet.numel() >= 4, "a step")
    (step,) = struct.unpack("<f", packet[:4].numpy().tobytes())
    check(math.isfinite(step) and step > 0, "a step above zero")
    reader = Reader(packet[4:], CONTEXTS)
    parts = parts_of(reader, layout.shapes, packet.numel() // TERM)
    reader.end()
    return join_parts(layout, parts, step)


def parts_of(reader: Reader, shapes: Sequence[Size], terms: int) -> list[CodedLayer]:
    """Layers as they were coded, of at most so many terms in all. Raises ``WireError``.

    Beyond the end a reader reads zeros, so without this bound a few bytes would be a thousand terms to multiply.
    """
    modes = _get(reader, len(shapes), MODE, negative=False)
    ranks = [max(0, mode - 1) for mode in modes]
    check(all(rank <= most_terms(shape) for rank, shape in zip(ranks, shapes, strict=True)), "fewer terms")
    check(sum(ranks) <= terms, f"{TERM} bytes a term")
    kinds = _get(reader, modes.count(1), CLASS, negative=False)
    check(all(kind < 32 for kind in kinds), "sizes of entries")
    levels = _get(reader, sum(ranks), LEVELS)
    gains = _get(reader, sum(ranks) + modes.count(1), GAIN)
    parts = []
    for mode, rank, shape in zip(modes, ranks, shapes, strict=True):
        if mode == 0:
            parts.append(NOTHING)
        elif mode == 1:
            n, kind, own = shape.numel(), kinds.pop(0), [gains.pop(0)]
            check(abs(own[0]) <= GAINS // 2, "scales of entries")
            entries = reader.get(n, torch.full((n,), ENTRIES + kind, dtype=torch.uint8, device="cpu"), width(shape))
            parts.append(CodedLayer(1, [], own, entries.view(1, n), NONE))
        else:
            (m, n), each, own = sides(shape), list(accumulate(levels[:rank])), gains[:rank]
            levels, gains = levels[rank:], gains[rank:]
            check(all(1 <= x <= FINEST for x in each), "levels of terms")
            check(all(abs(g) <= x for g, x in zip(own, each, strict=True)), "scales of terms")
            left = reader.get(rank * m, _contexts(each, m), m).view(rank, m)
            parts.append(CodedLayer(mode, each, own, left, reader.get(rank * n, _contexts(each, n), n).view(rank, n)))
    return parts


def build(part: CodedLayer, step: float, shape: Size) -> Tensor:
    """A layer of its parts. Scales are computed in 64 bits, each operation rounded, then in 32 bits: the same bits
    wherever it is done.
    """
    if part.mode == 0:
        return torch.zeros(shape, dtype=torch.float32, device="cpu")
    if part.mode == 1:
        return (part.left.to(torch.float32) * float(np.float32(step * (GAINS + part.gains[0]) / GAINS))).view(shape)
    scales = [step * (each + g) / (each * each) for each, g in zip(part.levels, part.gains, strict=True)]
    left = (
        part.left.to(torch.float32) * torch.tensor(scales, dtype=torch.float64, device="cpu").to(torch.float32)[:, None]
    )
    return outer_sum(left, part.right.to(torch.float32)).view(shape)


def join_parts(layout: Layout, parts: list[CodedLayer], step: float) -> Params:
    """What parts stand for."""
    return join(layout, (build(part, step, shape) for part, shape in zip(parts, layout.shapes, strict=True)))
