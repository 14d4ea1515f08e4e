"""Integers in few bits: an adaptive binary range coder, with contexts that the caller gives.

Every number is a few yes-or-no questions: is it zero; is it negative; how many bits it has after the first (in unary);
those bits. A question is coded by a model, which learns the chance of its answer from the answers so far, quickly at
first and then more slowly. A number's models are those of its context, which the caller names: numbers that are
expected to be alike share one. Whether it is zero and how long it is depends besides on the sizes (0, 1, more) of the
number before it and of the one a row before. Signs, and bits beyond the second after the first, are not modelled.

Binary arithmetic coding: Rissanen, Langdon, IEEE Trans. Inf. Theory, 1981; contexts of neighbours as in Marpe,
Schwarz, Wiegand, IEEE Trans. CSVT, 2003. Models learn from counts as in Krichevsky, Trofimov, 1981.

Only integers: the same bytes everywhere. A range has 32 bits, a chance 15, and bytes that are zeros at the end are not
sent. So a reader never waits for more: beyond the end it reads zeros, and what it does for ``n`` numbers is bounded by
n times 62 questions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import torch
from jaxtyping import Int32, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ..errors import check, require
from . import native

EACH = 128  # models of a context:
PREFIX = 16  # from here how long a number is,
TOP = 80  # from here its two bits after the first
LONGEST = 30  # bits after the first
SHARE = 15  # a probability's bits
SLOWEST = 160  # events after which a model adapts no slower
RAREST = 16  # of 2^16, a probability is never less
RENEW = 1 << 24  # of a range: below, a byte is done
WHOLE = (1 << 32) - 1
MOST = 1 << 31  # magnitudes are below it

PLAIN = -1  # the model of what is not modelled
LOW, RANGE, AT, FULL = range(4)  # what a coder is between two calls
Numbers = NDArray[np.int32]
Contexts = NDArray[np.uint8]


def _models(contexts: int) -> NDArray[np.uint16]:
    """Of each model the chance of a zero in 16 bits, and how many answers it was learnt from."""
    require(0 < contexts <= 256, f"{contexts} contexts: 1 to 256")
    models = np.zeros((contexts * EACH, 2), np.uint16)
    models[:, 0] = 1 << 15
    return models


class Writer:
    """Numbers to at most ``room`` bytes. There are ``contexts`` contexts, 256 at most."""

    def __init__(self, contexts: int, room: int) -> None:
        self.models, self.room = _models(contexts), room
        self.coder = np.array([0, WHOLE, 0, 0], np.int64)
        self.out = np.empty(max(room, 1), np.uint8)

    def put(
        self, values: Int32[Tensor, " n"], contexts: UInt8[Tensor, " n"], row: int = 0, negative: bool = True
    ) -> bool:
        """Code these numbers next; whether there was room. After a False nothing more can be put.

        ``contexts`` has the context of each. ``row`` is how far back the second neighbour is; 0 for none. Without
        ``negative`` no number may be below zero. Raises ``ValueError`` for a context or a number out of range.
        """
        own, about = _given(values, contexts, len(self.models) // EACH)
        require(own.size == 0 or int(own.min()) > (-MOST if negative else -1), "numbers of at most 31 bits")
        lib = native.library()
        if self.coder[FULL]:
            return False
        if lib is None:
            self._put(own, about, row, negative)
        else:
            places = self.models.ctypes.data, self.coder.ctypes.data, self.out.ctypes.data
            lib.tw_adaptive_put(own.ctypes.data, about.ctypes.data, own.size, row, negative, *places, self.room)
        return not self.coder[FULL]

    def bytes(self) -> UInt8[Tensor, " bytes"] | None:
        """What was put, as bytes of which the last is not zero; None if there is no room."""
        if self.coder[FULL]:
            return None
        coder, out = self.coder.copy(), self.out.copy()
        lib = native.library()
        if lib is None:
            size = _end(coder, out, self.room)
        else:
            size = lib.tw_adaptive_end(coder.ctypes.data, out.ctypes.data, self.room)
        return None if size < 0 else torch.from_numpy(out[:size].copy())

    def _put(self, values: Numbers, contexts: Contexts, row: int, negative: bool) -> None:
        models: list[list[int]] = self.models.tolist()
        low, width, at, _ = self.coder.tolist()
        for model, bit in _questions(values.tolist(), contexts.tolist(), row, negative):
            if model == PLAIN:
                width >>= 1
                low += width if bit else 0
            else:
                p, seen = models[model]
                bound = (width >> SHARE) * (p >> 1)
                low, width = (low + bound, width - bound) if bit else (low, bound)
                models[model] = _learnt(p, seen, bit)
            if low >> 32:
                _carry(self.out, at)
                low &= WHOLE
            while width < RENEW:
                if at == self.room:
                    self.coder[FULL] = 1
                    return
                self.out[at] = low >> 24
                low, width, at = low << 8 & WHOLE, width << 8, at + 1
        self.models[:], self.coder[:] = models, (low, width, at, 0)


class Reader:
    """The numbers that a :class:`Writer` made ``data`` of, asked for in the same order with the same contexts."""

    def __init__(self, data: UInt8[Tensor, " bytes"], contexts: int) -> None:
        check(data.numel() == 0 or int(data[-1]) > 0, "coded bytes that do not end in a zero")
        self.data, self.models = np.ascontiguousarray(data.numpy()), _models(contexts)
        first = [*self.data[:4].tolist(), 0, 0, 0, 0]
        self.coder = np.array([int.from_bytes(bytes(first[:4]), "big"), WHOLE, 4, 0], np.int64)

    def get(self, n: int, contexts: UInt8[Tensor, " n"], row: int = 0, negative: bool = True) -> Int32[Tensor, " n"]:
        """The next ``n`` numbers, whatever the bytes are."""
        values = np.zeros(n, np.int32)
        found = torch.from_numpy(values)
        _, about = _given(found, contexts, len(self.models) // EACH)
        lib = native.library()
        if lib is None:
            self._get(values, about, row, negative)
        else:
            places = self.models.ctypes.data, self.coder.ctypes.data, self.data.ctypes.data
            lib.tw_adaptive_get(values.ctypes.data, about.ctypes.data, n, row, negative, *places, self.data.size)
        return found

    def end(self) -> None:
        """Raises ``WireError`` if there are bytes that no number needed."""
        check(self.data.size <= self.coder[AT], "no more bytes than the numbers take")

    def _get(self, values: Numbers, contexts: Contexts, row: int, negative: bool) -> None:
        numbers, answers = values.tolist(), self._answers()
        next(answers)
        for i, context in enumerate(contexts.tolist()):
            zero, prefix, top = _places(numbers, i, row, context)
            if not answers.send(zero):
                continue
            minus, more, size, node = negative and answers.send(PLAIN), 0, 1, 0
            while more < LONGEST and answers.send(prefix + more):
                more += 1
            first = top + 3 * (min(more, 16) - 1)
            for k in reversed(range(more)):
                bit = answers.send(PLAIN if more - k > 2 else first + node)
                size, node = size << 1 | bit, 1 + bit
            numbers[i] = -size if minus else size
        answers.close()
        values[:] = numbers

    def _answers(self) -> Generator[int, int, None]:
        """The answer to each question, given its model."""
        models: list[list[int]] = self.models.tolist()
        low, width, at, _ = self.coder.tolist()
        data, bit = self.data.tolist(), 0
        try:
            while True:
                model = yield bit
                if model == PLAIN:
                    width >>= 1
                    bit = int(low >= width)
                    low -= width if bit else 0
                else:
                    p, seen = models[model]
                    bound = (width >> SHARE) * (p >> 1)
                    bit = int(low >= bound)
                    low, width = (low - bound, width - bound) if bit else (low, bound)
                    models[model] = _learnt(p, seen, bit)
                while width < RENEW:
                    low = (low << 8 & WHOLE) | (data[at] if at < len(data) else 0)
                    width, at = width << 8, at + 1
        finally:
            self.models[:], self.coder[:] = models, (low, width, at, 0)


def pack(values: Int32[Tensor, " n"], room: int, row: int = 0, negative: bool = True) -> UInt8[Tensor, " bytes"] | None:
    """Numbers of one kind, as bytes; None if they take more than ``room``."""
    writer = Writer(1, room)
    writer.put(values, torch.zeros_like(values, dtype=torch.uint8), row, negative)
    return writer.bytes()


def unpack(data: UInt8[Tensor, " bytes"], n: int, row: int = 0, negative: bool = True) -> Int32[Tensor, " n"]:
    """What :func:`pack` packed; of any other bytes other numbers, or a ``WireError``."""
    reader = Reader(data, 1)
    values = reader.get(n, torch.zeros(n, dtype=torch.uint8), row, negative)
    reader.end()
    return values


def _questions(values: list[int], contexts: list[int], row: int, negative: bool) -> Iterator[tuple[int, int]]:
    """Each question about these numbers: its model, and the answer."""
    for i, value in enumerate(values):
        zero, prefix, top = _places(values, i, row, contexts[i])
        yield zero, int(value != 0)
        if value == 0:
            continue
        if negative:
            yield PLAIN, int(value < 0)
        size, more = abs(value), abs(value).bit_length() - 1
        for k in range(min(more + 1, LONGEST)):
            yield prefix + k, int(k < more)
        first, node = top + 3 * (min(more, 16) - 1), 0
        for k in reversed(range(more)):
            bit = size >> k & 1
            yield (PLAIN if more - k > 2 else first + node), bit
            node = 1 + bit


def _given(values: Tensor, contexts: Tensor, most: int) -> tuple[Numbers, Contexts]:
    own, about = values.contiguous().numpy(), contexts.contiguous().numpy()
    require(own.shape == about.shape, "a context for each number")
    require(about.size == 0 or int(about.max()) < most, f"contexts below {most}")
    return own, about


# Asked millions of times by the references: without annotations, which tests would check at each call.
_places = lambda values, i, row, context: (  # noqa: E731
    context * EACH
    + 3 * (min(2, abs(values[i - 1])) if i else 0)
    + (min(2, abs(values[i - row])) if 0 < row <= i else 0),
    context * EACH
    + PREFIX
    + 32 * ((min(2, abs(values[i - 1])) if i else 0) + (min(2, abs(values[i - row])) if 0 < row <= i else 0) > 1),
    context * EACH + TOP,
)
_learnt = lambda p, seen, bit: [  # noqa: E731
    p + (((RAREST if bit else (1 << 16) - RAREST) - p) * ((1 << 17) // (2 * seen + 3)) >> 16),
    min(seen + 1, SLOWEST),
]


def _carry(out: NDArray[np.uint8], at: int) -> None:
    """Add one to the bytes before ``at``, as to a number."""
    at -= 1
    while out[at] == 255:
        out[at] = 0
        at -= 1
    out[at] += 1


def _end(coder: NDArray[np.int64], out: NDArray[np.uint8], room: int) -> int:
    """The fewest bytes that tell the range, without zeros at the end; -1 where there is no room."""
    low, width, at, _ = coder.tolist()
    for count in range(5):
        rest = (1 << 32 - 8 * count) - 1
        value = (low + rest) & ~rest
        if value > low + width - 1:
            continue
        if value >> 32:
            _carry(out, at)
        if at + count > room:
            return -1
        for k in range(count):
            out[at + k] = value >> 24 - 8 * k & 255
        at += count
        break
    while at and out[at - 1] == 0:
        at -= 1
    return int(at)
