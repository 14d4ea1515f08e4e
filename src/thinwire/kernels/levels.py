"""Small whole numbers of a matrix, most of them zeros, by the adaptive binary range coder.

What is kept of an update lies together: some rows and columns have many numbers, most have few or none, and the signs
in a row go along with those in a column, since updates are nearly of low rank. So every row says first how many of its
numbers are not zero. Which they are is asked entry by entry until all are found. The model of a question is chosen by
three things that a reader knows too: the share of the rest of the row that is set, the share of the column that was
set so far against that of all columns, both in half octaves, and whether the number before was set. The sign has a
model for each pair of last signs, in the row and in the column, and a magnitude one for each sum of last sizes.

The range coder and how models learn are those of :mod:`.adaptive`. Counts and magnitudes are numbers in Elias' gamma
code (the length in unary, and the first bit after the highest, have models). Only integers: the same bytes everywhere.
A reader asks at most one question more an entry than there are numbers, whatever the bytes are. Extra memory: 8 bytes
a column and 7 kB. The reference in Python takes about a microsecond a question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Int8, UInt8
from torch import Tensor

from ..errors import check, require
from . import native
from .adaptive import EACH, LONGEST, PLAIN, Reader, Writer

MOST = 1 << 31  # entries
LARGEST = 127  # magnitude
WIDTH = 1024  # entries of a row, where what is coded is a vector

IS = 0  # whether an entry is set: 32 shares of rows, 16 of columns, two each
COUNT = 1024  # how many are, of a row after an empty one and after another: 64 each
SIGN = 1152  # 3 * 3
SIZE = 1168  # magnitudes: 9 of 64
MODELS = 14 * EACH

Ask = Callable[[int, int], int]


def pack(
    values: Int8[Tensor, " n"], room: int, width: int = 0, negative: bool = True, most: int = LARGEST
) -> UInt8[Tensor, " bytes"] | None:
    """The bytes of numbers from ``-most`` to ``most``, or 0 to ``most`` without ``negative``; None: more than ``room``.

    ``width`` is the length of a row; 0 for a vector. Raises ``ValueError`` for a number out of range.
    """
    n, width = _sizes(values.numel(), width, most)
    low, high = (int(values.min()), int(values.max())) if n else (0, 0)
    require(-most * negative <= low and high <= most, f"numbers from {-most * negative} to {most}")
    writer = Writer(MODELS // EACH, room)
    own = np.ascontiguousarray(values.numpy())
    if writer.lib is None:
        asked, answers = list[int](), list[int]()

        def ask(model: Any, bit: Any) -> Any:
            asked.append(model)
            answers.append(bit)
            return bit

        _walk(ask, own.tolist(), width, negative, most, count=True)
        writer._answer(asked, answers)
    else:
        coder = writer.models, writer.state, writer.out
        native.check(writer.lib.tw_levels_put(own, n, width, negative, most, *coder, writer.room))
    return writer.bytes()


def unpack(
    data: UInt8[Tensor, " bytes"], n: int, width: int = 0, negative: bool = True, most: int = LARGEST
) -> Int8[Tensor, " n"]:
    """What :func:`pack` packed, given the same; of any other bytes other numbers in this range, or a ``WireError``."""
    n, width = _sizes(n, width, most)
    reader = Reader(data, MODELS // EACH)
    numbers = torch.zeros(n, dtype=torch.int8, device="cpu")
    if reader.lib is None:
        values = [0] * n
        answer, settle = reader.asking()
        right = _walk(lambda model, bit: answer(model), values, width, negative, most, count=False)
        settle()
        numbers = torch.tensor(values, dtype=torch.int8, device="cpu") if right else numbers
    else:
        coder = reader.models, reader.state, reader.data
        status = reader.lib.tw_levels_get(numbers, n, width, negative, most, *coder, reader.data.size)
        native.check(status == 1)
        right = status == 0
    check(right, f"rows of at most {width} numbers up to {most}")
    reader.end()
    return numbers


def _sizes(n: int, width: int, most: int) -> tuple[int, int]:
    require(n < MOST, f"{n} entries: fewer than {MOST}")
    require(0 < most <= LARGEST and width >= 0, f"a width, and magnitudes up to 1 to {LARGEST}")
    return n, min(width or WIDTH, max(n, 1))


def _walk(ask: Ask, values: list[int], width: int, negative: bool, most: int, count: bool) -> bool:
    """All questions in their order. A writer answers from ``values``, and counts them; a reader fills ``values``.

    False: no writer gives such an answer.
    """
    n, total, before = len(values), 0, 0
    counts, classes, signs, sizes = ([x] * min(width, n) for x in (0, _halves(16), 0, 0))
    for start in range(0, n, width):
        wide = min(width, n - start)
        left = sum(value != 0 for value in values[start : start + wide]) if count else 0
        left = _number(ask, COUNT + 64 * (before > 0), left)
        if left > wide:
            return False
        mean, density, was, sign, size = _halves(16 * (2 * total + width) // width), 0, 0, 0, 0
        before, total = left, total + left
        for j in range(wide):
            if left == 0:
                break
            value = values[start + j]
            if left < wide - j:
                if was or j % 16 == 0:
                    density = _halves((left << 12) // (wide - j))
                about = min(15, max(0, classes[j] - mean + 8))
                was = ask(IS + (density * 16 + about) * 2 + was, int(value != 0))
            else:
                was = 1  # all that are left
            if not was:
                continue
            left -= 1
            counts[j] += 1
            classes[j] = _halves(16 * (2 * counts[j] + 1))
            minus, magnitude = 0, 1
            if negative:
                minus = ask(SIGN + 3 * sign + signs[j], int(value < 0))
                sign = signs[j] = 1 + minus
            if most > 1:
                magnitude = 1 + _number(ask, SIZE + 64 * (size + sizes[j]), max(0, abs(value) - 1))
                if magnitude > most:
                    return False
                size = sizes[j] = min(4, magnitude.bit_length())
            values[start + j] = -magnitude if minus else magnitude
    return True


def _number(ask: Ask, first: int, value: int) -> int:
    """A number that is not negative."""
    bits, size = value.bit_length(), 0
    while size < LONGEST and ask(first + size, int(size < bits)):
        size += 1
    magnitude = int(size > 0)
    for k in reversed(range(size - 1)):
        bit = value >> k & 1
        magnitude = magnitude << 1 | ask(first + 32 + size if k == size - 2 else PLAIN, bit)
    return magnitude


def _halves(x: int) -> int:
    """The logarithm in half octaves: 0 of 0, 1 of 1."""
    if x < 2:
        return x
    bits = x.bit_length()
    return 2 * bits - 2 + (x >> bits - 2 & 1)
