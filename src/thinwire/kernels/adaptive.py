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
n times 62 questions. Extra memory: 4 bytes times 128 a context. The reference in Python takes about half a microsecond
a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

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
SLOWEST = 160  # answers after which a model adapts no slower
RAREST = 16  # of 2^16, a probability is never less
RENEW = 1 << 24  # of a range: below, a byte is done
WHOLE = (1 << 32) - 1
MOST = 1 << 31  # magnitudes are below it
PLAIN = -1  # the model of what is not modelled

RATES = [(1 << 17) // (2 * seen + 3) for seen in range(SLOWEST + 1)]  # of 2^16, after so many answers


class _Coder:
    """What writer and reader have between two calls."""

    lib: CDLL | None

    def __init__(self, contexts: int) -> None:
        require(0 < contexts <= 256, f"{contexts} contexts: 1 to 256")
        self.contexts, self.lib = contexts, native.library()
        if self.lib is None:
            self.chances = [1 << 15] * (contexts * EACH)  # of a zero, in 16 bits
            self.seen = [0] * (contexts * EACH)  # answers
        else:
            self.models = np.zeros((contexts * EACH, 2), np.uint16)
            self.models[:, 0] = 1 << 15
        self.state = np.array([0, WHOLE, 0, 0], np.int64)  # low or code, range, the next byte's place, no room

    def arguments(self, values: Tensor, contexts: Tensor, row: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Numbers and their contexts, looked at: C reads where they say."""
        own, about = values.contiguous().numpy(), contexts.contiguous().numpy()
        require(own.shape == about.shape, "a context for each number")
        self._check(about)
        require(row >= 0, f"row={row}: how far back the second neighbour is")
        return own, about

    def _check(self, contexts: NDArray[np.uint8]) -> None:
        require(contexts.size == 0 or int(contexts.max()) < self.contexts, f"contexts below {self.contexts}")


class Writer(_Coder):
    """Numbers to at most ``room`` bytes. There are ``contexts`` contexts, 256 at most."""

    def __init__(self, contexts: int, room: int) -> None:
        super().__init__(contexts)
        self.room = max(0, room)
        self.out = np.empty(self.room, np.uint8)

    def put(
        self, values: Int32[Tensor, " n"], contexts: UInt8[Tensor, " n"], row: int = 0, negative: bool = True
    ) -> bool:
        """Code these numbers next; whether there was room. After a False nothing more can be put.

        ``contexts`` has the context of each. ``row`` is how far back the second neighbour is; 0 for none. Without
        ``negative`` no number may be below zero. Raises ``ValueError`` for a context or a number out of range.
        """
        own, about = self.arguments(values, contexts, row)
        _check_range(own, negative)
        if self.state[3]:
            return False
        if self.lib is None:
            self._answer(*_questions(own, about, row, negative))
        else:
            coder = self.models, self.state, self.out
            self.lib.tw_adaptive_put(own, about, own.size, row, negative, *coder, self.room)
        return not self.state[3]

    def put_rows(self, matrices: Sequence[Int32[Tensor, "_ _"]], contexts: UInt8[Tensor, " all_rows"]) -> bool:
        """Code these matrices next, [rows, n] each, as one :meth:`put` after the other would with ``row=n``; whether
        there was room. ``contexts`` has the context of each of their rows. Raises ``ValueError`` as :meth:`put`.
        """
        shapes = np.array([matrix.shape for matrix in matrices], np.int64).reshape(-1, 2)
        rows, widths = np.ascontiguousarray(shapes.T)
        require(int(rows.sum()) == contexts.numel(), "a context for each row")
        if self.lib is None:
            parts = zip(matrices, torch.split(contexts, rows.tolist()), strict=True)
            return all(self.put(x.reshape(-1), each.repeat_interleave(x.shape[1]), x.shape[1]) for x, each in parts)
        if not matrices:
            return not self.state[3]
        own, about = torch.cat([matrix.reshape(-1) for matrix in matrices]).numpy(), contexts.contiguous().numpy()
        self._check(about)
        _check_range(own, negative=True)
        if not self.state[3]:
            coder = self.models, self.state, self.out
            self.lib.tw_adaptive_put_rows(own, about, rows, widths, len(rows), *coder, self.room)
        return not self.state[3]

    def bytes(self) -> UInt8[Tensor, " bytes"] | None:
        """What was put, as bytes of which the last is not zero; None if there is no room."""
        if self.state[3]:
            return None
        low, width, at, _ = self.state.tolist()
        if self.lib is None:
            size = _end(low, width, at, self.out, self.room)
        else:
            size = self.lib.tw_adaptive_end(low, width, at, self.out, self.room)
        self.state[3] = 1  # the end is written: nothing more can be put
        return None if size < 0 else torch.from_numpy(self.out[:size].copy())

    def _answer(self, asked: list[int], answers: list[int]) -> None:
        chances, seen, rates, out, room = self.chances, self.seen, RATES, self.out, self.room
        low, width, at, _ = self.state.tolist()
        for model, bit in zip(asked, answers, strict=True):
            if model < 0:
                width >>= 1
                if bit:
                    low += width
            else:
                p, n = chances[model], seen[model]
                bound = (width >> SHARE) * (p >> 1)
                if bit:
                    low, width = low + bound, width - bound
                    chances[model] = p + ((RAREST - p) * rates[n] >> 16)
                else:
                    width = bound
                    chances[model] = p + ((65536 - RAREST - p) * rates[n] >> 16)
                if n < SLOWEST:
                    seen[model] = n + 1
            if low > WHOLE:
                _carry(out, at)
                low &= WHOLE
            while width < RENEW:
                if at >= room:
                    self.state[3] = 1
                    return
                out[at] = low >> 24
                low, width, at = low << 8 & WHOLE, width << 8, at + 1
        self.state[:] = low, width, at, 0


class Reader(_Coder):
    """The numbers that a :class:`Writer` made ``data`` of, asked for in the same order with the same contexts."""

    def __init__(self, data: UInt8[Tensor, " bytes"], contexts: int) -> None:
        super().__init__(contexts)
        check(data.numel() == 0 or int(data[-1]) > 0, "coded bytes that do not end in a zero")
        self.data = np.ascontiguousarray(data.numpy())
        first = [*self.data[:4].tolist(), 0, 0, 0, 0]
        self.state[0], self.state[2] = int.from_bytes(bytes(first[:4]), "big"), 4

    def get(self, n: int, contexts: UInt8[Tensor, " n"], row: int = 0, negative: bool = True) -> Int32[Tensor, " n"]:
        """The next ``n`` numbers, whatever the bytes are."""
        numbers = torch.zeros(n, dtype=torch.int32, device="cpu")
        values, about = self.arguments(numbers, contexts, row)
        if self.lib is None:
            values[:] = self._get(about.tolist(), row, negative)
        else:
            coder = self.models, self.state, self.data
            self.lib.tw_adaptive_get(values, about, n, row, negative, *coder, self.data.size)
        return numbers

    def end(self) -> None:
        """Raises ``WireError`` if there are bytes that no number needed."""
        check(self.data.size <= self.state[2], "no more bytes than the numbers take")

    def asking(self) -> tuple[Any, Any]:
        """The reference: what answers a question, given its model, and what keeps the place that was reached."""
        chances, seen, rates = self.chances, self.seen, RATES
        low, width, at, _ = self.state.tolist()
        data, length = self.data.tolist(), self.data.size

        def answer(model: Any) -> Any:  # without a type that tests would look at in each call
            nonlocal low, width, at
            if model < 0:
                width >>= 1
                bit = low >= width
                if bit:
                    low -= width
            else:
                p, n = chances[model], seen[model]
                bound = (width >> SHARE) * (p >> 1)
                bit = low >= bound
                if bit:
                    low, width = low - bound, width - bound
                    chances[model] = p + ((RAREST - p) * rates[n] >> 16)
                else:
                    width = bound
                    chances[model] = p + ((65536 - RAREST - p) * rates[n] >> 16)
                if n < SLOWEST:
                    seen[model] = n + 1
            while width < RENEW:
                low = (low << 8 & WHOLE) | (data[at] if at < length else 0)
                width, at = width << 8, at + 1
            return int(bit)

        def settle() -> Any:
            self.state[:] = low, width, at, 0

        return answer, settle

    def _get(self, contexts: list[int], row: int, negative: bool) -> list[int]:
        answer, settle = self.asking()
        numbers, sizes = [0] * len(contexts), [0] * len(contexts)
        for i, context in enumerate(contexts):
            left, above = sizes[i - 1] if i else 0, sizes[i - row] if 0 < row <= i else 0
            own = context * EACH
            if not answer(own + 3 * left + above):
                continue
            minus = negative and answer(PLAIN)
            prefix, more = own + PREFIX + 32 * (left + above > 1), 0
            while more < LONGEST and answer(prefix + more):
                more += 1
            first, size, node = own + TOP + 3 * (min(more, 16) - 1), 1, 0
            for k in reversed(range(more)):
                bit = answer(PLAIN if more - k > 2 else first + node)
                size, node = size << 1 | bit, 1 + bit
            numbers[i], sizes[i] = -size if minus else size, 2 if more else 1
        settle()
        return numbers


def pack(values: Int32[Tensor, " n"], room: int, row: int = 0, negative: bool = True) -> UInt8[Tensor, " bytes"] | None:
    """Numbers of one kind, as bytes; None if they take more than ``room``."""
    writer = Writer(1, room)
    writer.put(values, torch.zeros_like(values, dtype=torch.uint8), row, negative)
    return writer.bytes()


def unpack(data: UInt8[Tensor, " bytes"], n: int, row: int = 0, negative: bool = True) -> Int32[Tensor, " n"]:
    """What :func:`pack` packed; of any other bytes other numbers, or a ``WireError``."""
    reader = Reader(data, 1)
    values = reader.get(n, torch.zeros(n, dtype=torch.uint8, device="cpu"), row, negative)
    reader.end()
    return values


def _questions(
    values: NDArray[np.int32], contexts: NDArray[np.uint8], row: int, negative: bool
) -> tuple[list[int], list[int]]:
    """The model of each question about these numbers, and its answer."""
    sizes = np.minimum(np.abs(values), 2).astype(np.int64)
    left, above = np.zeros_like(sizes), np.zeros_like(sizes)
    left[1:] = sizes[:-1]
    if 0 < row < len(sizes):
        above[row:] = sizes[:-row]
    zeros = contexts.astype(np.int64) * EACH + 3 * left + above
    prefixes = contexts.astype(np.int64) * EACH + PREFIX + 32 * (left + above > 1)
    asked, answers = list[int](), list[int]()
    for value, context, zero, prefix in zip(
        values.tolist(), contexts.tolist(), zeros.tolist(), prefixes.tolist(), strict=True
    ):
        asked.append(zero)
        if value == 0:
            answers.append(0)
            continue
        answers.append(1)
        if negative:
            asked.append(PLAIN)
            answers.append(value < 0)
        size = abs(value)
        more = size.bit_length() - 1
        count = min(more + 1, LONGEST)
        asked.extend(range(prefix, prefix + count))
        answers.extend([1] * more + [0] * (count - more))
        first, node = context * EACH + TOP + 3 * (min(more, 16) - 1), 0
        for k in reversed(range(more)):
            bit = size >> k & 1
            asked.append(PLAIN if more - k > 2 else first + node)
            answers.append(bit)
            node = 1 + bit
    return asked, answers


def _check_range(values: NDArray[np.int32], negative: bool) -> None:
    require(values.size == 0 or int(values.min()) > (-MOST if negative else -1), "numbers of at most 31 bits")


def _carry(out: NDArray[np.uint8], at: int) -> None:
    """Add one to the bytes before ``at``, as to a number."""
    at -= 1
    while out[at] == 255:
        out[at] = 0
        at -= 1
    out[at] += 1


def _end(low: int, width: int, at: int, out: NDArray[np.uint8], room: int) -> int:
    """Write the fewest bytes that tell the range; how many there are without zeros at the end, -1: no room."""
    for count in range(5):
        rest = (1 << 32 - 8 * count) - 1
        value = (low + rest) & ~rest
        if value > low + width - 1:
            continue
        if at + count > room:
            return -1
        if value >> 32:
            _carry(out, at)
        for k in range(count):
            out[at + k] = value >> 24 - 8 * k & 255
        at += count
        break
    while at and out[at - 1] == 0:
        at -= 1
    return at
