"""Range coding of bytes by how often each occurs (order 0), many lanes at a time.

rANS: Duda, 2013, arXiv:1311.2540; interleaved as in Giesen, 2014, arXiv:1402.3392. Entry i
belongs to lane ``i % lanes``. A lane's state is a number in [2^16, 2^32); where one would
grow beyond, its lower 16 bits are written out. Only integers: the same bytes everywhere.
"""

from __future__ import annotations

import math
from ctypes import CDLL
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int16, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ..errors import check
from . import native

PRECISION = 14  # frequencies add up to 2^14
WHOLE = 1 << PRECISION
WORD = 16
LOWEST = 1 << WORD  # of a state

Numbers = NDArray[Any]  # uint32, or uint64 where products are computed in numpy
Symbols = NDArray[np.uint8]
Words = NDArray[np.uint16]


class Coded(NamedTuple):
    """Bytes in fewer bits. The number of bytes is kept beside it."""

    present: Bool[Tensor, " 256"]
    """Which values occur."""
    counts: Int16[Tensor, " present"]
    """How often, of 2^14 times, less one."""
    words: Int16[Tensor, " words"]
    """The lanes' states, two words each, then what they wrote: read from front to back."""


def lanes(n: int) -> int:
    """How many bytes are coded side by side: each lane costs four bytes, each step a handful of calls."""
    return max(1, math.isqrt(n) // 8)


def encode(data: UInt8[Tensor, " n"]) -> Coded:
    """``data`` by its own frequencies; about its order-0 entropy, and 4 bytes a lane."""
    symbols = np.ascontiguousarray(data.numpy())
    present, counts = _frequencies(symbols)
    lib = native.library(data)
    states, written = (_encode if lib is None else partial(_encode_native, lib))(symbols, *_tables(present, counts)[:2])
    words = torch.from_numpy(np.concatenate([states.view(np.uint16), written]).view(np.int16))
    return Coded(torch.from_numpy(present), torch.from_numpy(counts), words)


def decode(coded: Coded, n: int) -> UInt8[Tensor, " n"]:
    """The ``n`` bytes that were coded. Raises ``WireError`` for anything :func:`encode` does not make."""
    present, counts = coded.present.numpy(), coded.counts.numpy()
    check(present.shape == (256,) and counts.shape == (int(present.sum()),), "a count for every value that occurs")
    check(n > 0 and bool((counts >= 0).all()) and int(counts.sum(dtype=np.int64)) + counts.size == WHOLE, "counts")
    words, width = np.ascontiguousarray(coded.words.numpy()).view(np.uint16), lanes(n)
    check(words.size >= 2 * width, "a state for every lane")
    states, rest = words[: 2 * width].copy().view(np.uint32), words[2 * width :]
    lib = native.library(coded.words)
    symbols, read = (_decode if lib is None else partial(_decode_native, lib))(
        rest, n, states, *_tables(present, counts)
    )
    check(read >= 0, "more words")
    check(read == rest.size and bool((states == LOWEST).all()), "lanes that end where they began")
    return torch.from_numpy(symbols)


def _encode(symbols: Symbols, frequency: Numbers, start: Numbers) -> tuple[Numbers, Words]:
    """The lanes' last states, and what they wrote."""
    width, frequency, start = lanes(symbols.size), frequency.astype(np.uint64), start.astype(np.uint64)
    state = np.full(width, LOWEST, np.uint64)
    written: list[Words] = []
    for first in reversed(range(0, symbols.size, width)):
        row = symbols[first : first + width]
        f, x = frequency[row], state[: row.size]
        full = x >= f << np.uint64(32 - PRECISION)
        written.append(x[full].astype(np.uint16))
        x = np.where(full, x >> np.uint64(WORD), x)
        state[: row.size] = (x // f << np.uint64(PRECISION)) + x % f + start[row]
    return state.astype(np.uint32), np.concatenate(written[::-1])


def _encode_native(lib: CDLL, symbols: Symbols, frequency: Numbers, start: Numbers) -> tuple[Numbers, Words]:
    states, words = np.empty(lanes(symbols.size), np.uint32), np.empty(symbols.size, np.uint16)
    size = lib.tw_rans_encode(symbols, symbols.size, states.size, frequency, start, states, words, words.size)
    return states, words[words.size - size :]


def _decode(
    words: Words, n: int, states: Numbers, frequency: Numbers, start: Numbers, value: Symbols
) -> tuple[Symbols, int]:
    """The bytes, and how many words were read, -1 where there are not enough; ``states`` become the last ones."""
    frequency, start = frequency.astype(np.uint64), start.astype(np.uint64)
    data, at = np.empty(n, np.uint8), 0
    for first in range(0, n, states.size):
        x = states[: n - first].astype(np.uint64)
        slot = x & np.uint64(WHOLE - 1)
        row = data[first : first + states.size] = value[slot]
        x = frequency[row] * (x >> np.uint64(PRECISION)) + slot - start[row]
        short = np.flatnonzero(x < LOWEST)
        if at + short.size > words.size:
            return data, -1
        x[short] = x[short] << np.uint64(WORD) | words[at : at + short.size]
        at += short.size
        states[: x.size] = x
    return data, at


def _decode_native(
    lib: CDLL, words: Words, n: int, states: Numbers, frequency: Numbers, start: Numbers, value: Symbols
) -> tuple[Symbols, int]:
    data = np.empty(n, np.uint8)
    return data, lib.tw_rans_decode(words, words.size, n, states.size, frequency, start, value, states, data)


def _frequencies(symbols: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.int16]]:
    """Which values occur, and their shares of 2^14, less one: at least 1, the rest goes to the most frequent."""
    totals = np.bincount(symbols, minlength=256)
    present = totals > 0
    totals = totals[present]
    counts = totals * (WHOLE - totals.size) // symbols.size
    counts[totals.argmax()] += WHOLE - totals.size - counts.sum()
    return present, counts.astype(np.int16)


def _tables(present: NDArray[np.bool_], counts: NDArray[np.int16]) -> tuple[Numbers, Numbers, NDArray[np.uint8]]:
    """Each value's frequency and where its slots start; the value of each slot."""
    frequency = np.zeros(256, np.uint32)
    frequency[present] = counts.astype(np.uint32) + np.uint32(1)
    start = frequency.cumsum(dtype=np.uint32) - frequency
    return frequency, start, np.repeat(np.arange(256, dtype=np.uint8), frequency.astype(np.int64))
