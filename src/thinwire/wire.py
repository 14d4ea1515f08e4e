"""Values to bytes and back: the one serialiser.

A message is a version byte, the structure of the value, then the raw little-endian
data of its tensors, each section padded to its item size::

    01 | structure | padding | tensor data | padding | tensor data ...

Structure, one byte of tag each: None, False, True, integers (zig-zag varint), floats
(8 bytes), strings, lists, dicts (keys are strings or integers), tensors (dtype,
dimensions). Truth values are sent as bits, eight to a byte. Nothing is ever unpickled;
bytes that are not exactly what :func:`dumps` makes raise :class:`WireError`.
"""

from __future__ import annotations

import struct
import sys
import warnings
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import WireError
from .kernels import native
from .kernels.magnitude import magnitude
from .params import Params, is_finite
from .template import Packet, Several, State, clone, conform, restore

__all__ = [
    "VERSION",
    "Packet",
    "Several",
    "State",
    "WireError",
    "clone",
    "conform",
    "count",
    "dumps",
    "largest",
    "length",
    "loads",
    "modest",
    "pieces",
    "restore",
]

VERSION = 1
SINGLE = (None, False, True)  # each by its place in this row
INT, FLOAT, TEXT, LIST, DICT = range(3, 8)
TENSOR = 0x40  # plus the number of the dtype
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
MOST_ENTRIES = 1 << 48  # no tensor of a message has more, whatever its dimensions say
DEEPEST = 100  # lists within lists, far below Python's own limit
MOST_DIMENSIONS = 64  # torch's own limit
MOST = 2.0**96  # no number of an update comes near; sums of what is below, weighted and decoded, stay finite

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("thinwire's messages are little-endian; this machine is not")

with warnings.catch_warnings():  # torch warns once a process that bytes cannot be written to; loads says so itself
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def dumps(x: State) -> bytes:
    """The bytes of ``x``. ``Params`` are sent as their vector, tuples as lists, bytes as a vector of uint8.

    Raises ``TypeError`` for anything that is not a :data:`State`.
    """
    return native.join(list(pieces(x)))


def pieces(x: State) -> Iterator[bytes | bytearray | memoryview]:
    """:func:`dumps` piece by piece, none of them a copy of a tensor."""
    structure = bytearray([VERSION])
    tensors: list[Tensor] = []
    _write(x, structure, tensors)
    yield structure
    position = len(structure)
    for tensor in tensors:
        data = _raw(tensor)
        if pad := -position % _alignment(tensor.dtype):
            yield bytes(pad)
        yield data
        position += pad + len(data)


def length(x: State) -> int:
    """``len(dumps(x))``, without a copy of any tensor."""
    structure = bytearray([VERSION])
    tensors: list[Tensor] = []
    _write(x, structure, tensors)
    position = len(structure)
    for tensor in tensors:
        n = tensor.numel()
        position += -position % _alignment(tensor.dtype)
        position += (n + 7) // 8 if tensor.dtype == torch.bool else n * tensor.dtype.itemsize
    return position


def loads(
    data: bytes,
    *,
    max_depth: int = 32,
    max_bytes: int | None = None,
    max_values: int | None = 1 << 17,
    finite: bool = True,
) -> Packet:
    """The value in ``data``; its tensors are views of ``data`` and must not be written to.

    ``max_depth`` bounds nesting (at most 100), ``max_bytes`` the message, ``max_values`` the
    number of values in it (an empty tensor is three bytes there and about a kilobyte here: who
    knows how many values a message has says so, :func:`count`).
    With ``finite`` (the default) a NaN or an infinity anywhere is refused. Nothing is
    allocated before its length was checked against the bytes that are there. Raises
    :class:`WireError` and nothing else.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError(f"a message of {len(data)} bytes; at most {max_bytes} are accepted")
    most = len(data) if max_values is None else max_values
    reader = _Reader(bytes(data), min(max_depth, DEEPEST), most)  # bytes of bytes are the same object
    if reader.byte() != VERSION:
        raise WireError(f"not a message of format version {VERSION}")
    value = reader.value(0)
    if isinstance(value, _Section):
        value = reader.section(value)
    for container, place, section in reader.sections:
        container[place] = reader.section(section)
    if reader.position != len(data):
        raise WireError(f"{len(data) - reader.position} bytes too many at the end")
    if finite and not all_finite(value):
        raise WireError("NaN or infinity in a message")
    return value


def count(x: State) -> int:
    """How many values :func:`loads` finds in the bytes of ``x``: itself, and what it holds, keys included."""
    if isinstance(x, dict):
        return 1 + len(x) + sum(map(count, x.values()))
    return 1 + sum(map(count, x)) if isinstance(x, list | tuple) else 1


# -- writing ------------------------------------------------------------------


def _write(x: Any, out: bytearray, tensors: list[Tensor], depth: int = 0) -> None:
    if depth > DEEPEST:
        raise TypeError(f"nested deeper than {DEEPEST}: this has no place in a message")
    if isinstance(x, Params):
        x = x.flat
    elif isinstance(x, bytes):
        x = torch.frombuffer(x, dtype=torch.uint8) if x else torch.zeros(0, dtype=torch.uint8, device="cpu")
    if x is None or isinstance(x, bool):
        out.append(SINGLE.index(x))
    elif isinstance(x, Tensor):
        if x.dtype not in CODES or x.layout != torch.strided:
            kind = x.dtype if x.layout == torch.strided else x.layout
            raise TypeError(f"tensors of {kind} have no place in a message")
        out.append(TENSOR + CODES[x.dtype])
        _varint(x.ndim, out)
        for size in x.shape:
            _varint(size, out)
        tensors.append(x)
    elif isinstance(x, int):
        if not -(1 << 63) <= x < 1 << 63:
            raise TypeError(f"{x} does not fit 64 bits")
        out.append(INT)
        _varint(x << 1 if x >= 0 else ~(x << 1), out)
    elif isinstance(x, float):
        out.append(FLOAT)
        out += struct.pack("<d", x)
    elif isinstance(x, str):
        try:
            text = x.encode()
        except UnicodeEncodeError as error:
            raise TypeError("text that is not Unicode has no place in a message") from error
        out.append(TEXT)
        _varint(len(text), out)
        out += text
    elif isinstance(x, list | tuple):
        out.append(LIST)
        _varint(len(x), out)
        for item in x:
            _write(item, out, tensors, depth + 1)
    elif isinstance(x, dict):
        out.append(DICT)
        _varint(len(x), out)
        for key, item in x.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"a key of type {type(key).__name__}; keys are strings or integers")
            _write(key, out, tensors, depth + 1)
            _write(item, out, tensors, depth + 1)
    else:
        kinds = "tensors, numbers, strings, None, lists and dicts have"
        raise TypeError(f"{type(x).__name__} has no place in a message: {kinds}")


def _varint(n: int, out: bytearray) -> None:
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)


def _raw(x: Tensor) -> memoryview | bytes:
    if x.dtype == torch.bool:
        return np.packbits(x.numpy(force=True), axis=None, bitorder="little").tobytes()
    numbers = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy(force=True)  # numpy knows no bfloat16
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def _alignment(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.bool else dtype.itemsize


# -- reading ------------------------------------------------------------------


class _Section:
    """A tensor whose data come after the structure."""

    def __init__(self, dtype: torch.dtype, shape: list[int]) -> None:
        self.dtype, self.shape, self.entries = dtype, shape, prod(shape)


class _Reader:
    def __init__(self, data: bytes, max_depth: int, max_values: int) -> None:
        self.data, self.position, self.max_depth, self.values_left = data, 0, max_depth, max_values
        self.sections: list[tuple[Any, Any, _Section]] = []

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self.data):
            raise self.shortage(length)
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def byte(self) -> int:
        try:
            byte = self.data[self.position]
        except IndexError:
            raise self.shortage(1) from None
        self.position += 1
        return byte

    def shortage(self, length: int) -> WireError:
        return WireError(f"cut short: {length} bytes expected at {self.position}, {len(self.data)} in all")

    def varint(self) -> int:
        n = shift = 0
        while True:
            byte = self.byte()
            n |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise WireError("a number written longer than needed")
                if n >= 1 << 64:
                    raise WireError("a number of more than 64 bits")
                return n
            shift += 7
            if shift > 63:
                raise WireError("a number of more than 64 bits")

    def count(self) -> int:
        """How many items follow; each takes at least a byte."""
        n = self.varint()
        if n > len(self.data) - self.position:
            raise WireError(f"{n} items announced in {len(self.data) - self.position} bytes")
        return n

    def value(self, depth: int) -> Any:
        if depth > self.max_depth:
            raise WireError(f"nested deeper than {self.max_depth}")
        self.values_left -= 1
        if self.values_left < 0:
            raise WireError("more values than are accepted")
        tag = self.byte()
        if tag < len(SINGLE):
            return SINGLE[tag]
        if tag == INT:
            n = self.varint()
            return n >> 1 if not n & 1 else ~(n >> 1)
        if tag == FLOAT:
            return struct.unpack("<d", self.take(8))[0]
        if tag == TEXT:
            return self.text()
        if tag == LIST:
            items: list[Any] = []
            for place in range(self.count()):
                items.append(None)
                self.put(items, place, depth)
            return items
        if tag == DICT:
            return self.mapping(depth)
        if TENSOR <= tag < TENSOR + len(DTYPES):
            shape = [self.varint() for _ in range(self.count())]
            if len(shape) > MOST_DIMENSIONS or prod(max(size, 1) for size in shape) > MOST_ENTRIES:
                raise WireError(f"a tensor of {shape}")
            return _Section(DTYPES[tag - TENSOR], shape)
        raise WireError(f"unknown tag {tag} at {self.position - 1}")

    def put(self, container: Any, place: Any, depth: int) -> None:
        value = self.value(depth + 1)
        if isinstance(value, _Section):
            self.sections.append((container, place, value))
            value = None  # keeps a dict's order
        container[place] = value

    def text(self) -> str:
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise WireError("text that is not UTF-8") from error

    def mapping(self, depth: int) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for _ in range(self.count()):
            key = self.value(depth + 1)
            if type(key) not in (str, int) or key in items:
                raise WireError("a key that is repeated, or neither text nor integer")
            self.put(items, key, depth)
        return items

    def section(self, section: _Section) -> Tensor:
        """The next tensor: a view of the bytes, or bits spread out."""
        dtype, entries = section.dtype, section.entries
        if any(self.take(-self.position % _alignment(dtype))):
            raise WireError("padding that is not zero")
        length = (entries + 7) // 8 if dtype == torch.bool else entries * dtype.itemsize
        start = self.position
        if length > len(self.data) - start:
            raise WireError(f"a tensor of {length} bytes announced, {len(self.data) - start} are there")
        self.position += length
        if entries == 0:
            return torch.zeros(section.shape, dtype=dtype, device="cpu")
        if dtype == torch.bool:
            packed = np.frombuffer(self.data, np.uint8, length, start)
            if entries % 8 and packed[-1] >> entries % 8:
                raise WireError("bits beyond the end of a tensor")
            bits = np.unpackbits(packed, count=entries, bitorder="little")
            return torch.from_numpy(bits).view(torch.bool).view(section.shape)
        flat = torch.frombuffer(self.data, dtype=dtype, count=entries, offset=start)
        return flat if len(section.shape) == 1 else flat.view(section.shape)


def all_finite(x: Any) -> bool:
    """Whether no number in what was read is NaN or infinite."""
    if isinstance(x, Tensor):
        return is_finite(x)
    if isinstance(x, float):
        return x - x == 0.0
    if isinstance(x, list):
        return all(map(all_finite, x))
    return all(map(all_finite, x.values())) if isinstance(x, dict) else True


def modest(x: Any) -> bool:
    """Whether no number in ``x`` is NaN, infinite or beyond :data:`MOST`."""
    return largest(x) <= MOST  # NaN is not


def largest(x: Any) -> float:
    """The largest magnitude of the floating-point numbers in ``x``: NaN where there is one, 0 where there is none."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, list | tuple):
        parts = [largest(one) for one in x]
        return max(parts, key=lambda one: (one != one, one), default=0.0)  # NaN above all
    values = x.flat if isinstance(x, Params) else x
    if isinstance(values, Tensor):
        return magnitude(values) if values.dtype.is_floating_point else 0.0
    return abs(values) if isinstance(values, float) else 0.0
