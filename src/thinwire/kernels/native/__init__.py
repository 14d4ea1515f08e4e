"""The loops in C: found, checked and chosen here. ``build.py`` compiles them, ``native.c`` and beside it ``convnet.c``.

They run where the library was compiled (at install) and the tensors are 32-bit floats on the CPU; everywhere else
the references in torch do, with the same bits. The environment variable ``THINWIRE_KERNELS`` chooses:
``reference``, or the highest instruction set to use, ``plain``, ``avx2`` or ``avx512``.
As many threads are used as torch would use in the calling thread, and the interpreter's lock is released.

No kernel handles an address. A function takes the tensors and arrays themselves (:class:`Array`), and so the call
holds them until it has returned; an address is refused. What C reads by a structure of addresses is a :class:`Struct`,
which holds what they are of. An address by itself keeps nothing alive: another thread may drop the last name of an
array that C still reads.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...errors import require
from . import build

LEVELS = ("plain", "avx2", "avx512")
MOST_THREADS = 64
LARGE = 1 << 22  # bytes, from which large pages are worth asking for
ctypes.pythonapi.PyBytes_FromStringAndSize.restype = ctypes.py_object
ctypes.pythonapi.PyBytes_FromStringAndSize.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]


class Array(ctypes.c_void_p):
    """What a function in C reads or writes: a tensor, a numpy array, bytes, an object of ctypes, or None.

    The caller hands over the object, which ctypes holds until the function has returned. ``ctypes.ArgumentError`` for
    an address, which would hold nothing, and for what has gaps or is not in the memory of the CPU.
    """

    @classmethod
    def from_param(cls, owner: Any) -> Any:
        return ctypes.c_void_p.from_param(_address(owner))


class Struct(ctypes.Structure):
    """Fields as C has them. Those that :meth:`point` sets are addresses, and it holds what lies there."""

    owners: dict[str, Any] | None = None

    def point(self, **owners: Tensor | None) -> None:
        """Set these fields to where the tensors lie; None: nowhere."""
        self.owners = {**(self.owners or {}), **owners}
        for name, owner in owners.items():
            setattr(self, name, _address(owner))


S = TypeVar("S", bound=Struct)


def row(structs: Sequence[S]) -> Any:
    """One structure after the other, as an array of C, which holds what they hold."""
    made: Any = (type(structs[0]) * len(structs))(*structs)
    made.owners = [struct.owners for struct in structs]
    return made


def _address(owner: Any) -> Any:
    """Where a tensor or a numpy array lies, the one place that says so; what ctypes knows itself is left to it."""
    if isinstance(owner, Tensor):
        if not (owner.is_cpu and owner.is_contiguous()):
            raise TypeError("a tensor without gaps, on the CPU")
        return owner.data_ptr()
    if isinstance(owner, np.ndarray):
        if not owner.flags.c_contiguous:
            raise TypeError("an array without gaps")
        return owner.ctypes.data
    if isinstance(owner, int | ctypes.c_void_p):
        raise TypeError("the array itself, and not its address, which would not keep it")
    return owner


POINTER, LONG, INT, REAL = Array, ctypes.c_int64, ctypes.c_int, ctypes.c_float
WORD, KEY = ctypes.c_uint32, ctypes.c_uint64
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "tw_use": (INT, [INT]),
    "tw_source": (WORD, []),
    "tw_large": (None, [POINTER, LONG]),
    "tw_keep_memory": (None, []),
    "tw_top_k": (INT, [POINTER, LONG, LONG, POINTER, INT]),
    "tw_count": (LONG, [POINTER, LONG, WORD, WORD, POINTER, INT]),
    "tw_count_largest": (LONG, [POINTER, LONG, LONG, WORD, POINTER, POINTER, INT]),
    "tw_fill": (None, [POINTER, LONG, WORD, WORD, POINTER, POINTER, INT]),
    "tw_pack_signs": (None, [POINTER, LONG, POINTER, INT]),
    "tw_unpack_signs": (None, [POINTER, LONG, REAL, POINTER, INT]),
    "tw_partial_sums": (None, [POINTER, LONG, POINTER, INT]),
    "tw_magnitude": (REAL, [POINTER, LONG, INT]),
    "tw_quantize": (None, [POINTER, LONG, REAL, REAL, INT, INT, KEY, POINTER, INT]),
    "tw_dequantize": (INT, [POINTER, LONG, INT, INT, REAL, POINTER, INT]),
    "tw_count_sketch": (None, [POINTER, LONG, LONG, LONG, POINTER, POINTER, INT]),
    "tw_estimate": (None, [POINTER, LONG, LONG, LONG, POINTER, POINTER, INT]),
    "tw_hadamard": (INT, [POINTER, LONG, INT]),
    "tw_fastfood": (INT, [POINTER, LONG, POINTER, LONG, LONG, POINTER, POINTER, REAL, INT]),
    "tw_fastfood_transpose": (INT, [POINTER, LONG, POINTER, LONG, POINTER, LONG, LONG, POINTER, POINTER, INT]),
    "tw_round_rows": (None, [POINTER, POINTER, LONG, LONG, REAL, REAL, POINTER, POINTER]),
    "tw_gaps_lengths": (LONG, [POINTER, LONG, LONG, INT, POINTER]),
    "tw_gaps_encode": (None, [POINTER, LONG, INT, POINTER, POINTER]),
    "tw_ones": (LONG, [POINTER, LONG]),
    "tw_gaps_decode": (INT, [POINTER, LONG, POINTER, LONG, LONG, INT, POINTER]),
    "tw_bits_encode": (INT, [POINTER, LONG, LONG, POINTER]),
    "tw_bits_decode": (None, [POINTER, LONG, POINTER]),
    "tw_rans_encode": (LONG, [POINTER, LONG, LONG, POINTER, POINTER, POINTER, POINTER, LONG]),
    "tw_rans_decode": (LONG, [POINTER, LONG, LONG, LONG, POINTER, POINTER, POINTER, POINTER, POINTER]),
    "tw_adaptive_put": (None, [POINTER, POINTER, LONG, LONG, INT, POINTER, POINTER, POINTER, LONG]),
    "tw_adaptive_put_rows": (None, [*[POINTER] * 4, LONG, POINTER, POINTER, POINTER, LONG]),
    "tw_adaptive_end": (LONG, [LONG, LONG, LONG, POINTER, LONG]),
    "tw_adaptive_get": (None, [POINTER, POINTER, LONG, LONG, INT, POINTER, POINTER, POINTER, LONG]),
    "tw_levels_put": (INT, [POINTER, LONG, LONG, INT, INT, POINTER, POINTER, POINTER, LONG]),
    "tw_levels_get": (INT, [POINTER, LONG, LONG, INT, INT, POINTER, POINTER, POINTER, LONG]),
    "tw_outer_sum": (None, [POINTER, POINTER, LONG, LONG, LONG, POINTER, INT]),
    "tw_room": (LONG, [POINTER, LONG]),
    "tw_chains": (INT, [POINTER, LONG, LONG, POINTER, POINTER, POINTER, INT, POINTER]),
}


def library(*tensors: Tensor) -> ctypes.CDLL | None:
    """The compiled functions, if they are there and can take these tensors; None where the reference has to do."""
    for x in tensors:
        if x.device.type != "cpu" or (x.dtype.is_floating_point and x.dtype != torch.float32):
            return None
    lib, level = _load(), _level()
    if lib is None or level == "reference":
        return None
    return lib


def empty(lib: ctypes.CDLL, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor to be written to, on large pages where it is long: fresh small ones cost more than most loops."""
    made = torch.empty(shape, dtype=dtype, device="cpu")
    if made.nbytes >= LARGE:
        lib.tw_large(made, made.nbytes)
    return made


@cache
def keep_memory() -> None:
    """From now on, in this process, memory that was freed is kept for what comes next (GNU libc).

    Else vectors of some hundred kilobytes, made and dropped by the thousand, are given back to the system and faulted
    in again page by page, which costs more than what is computed in them. What a process takes at most stays as it is.
    """
    lib = _load()
    if lib is not None:
        lib.tw_keep_memory()


def join(parts: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """``b"".join(parts)``; where it is long on large pages, and copied by as many threads as torch has here."""
    size, lib = sum(map(len, parts)), _load()
    if size < LARGE or lib is None or _level() == "reference":
        return b"".join(parts)
    made: bytes = ctypes.pythonapi.PyBytes_FromStringAndSize(None, size)  # nobody else has it yet: it may be written
    lib.tw_large(made, size)
    whole = torch.frombuffer(made, dtype=torch.uint8)
    bytewise, position = whole.numpy().data, 0
    for part in parts:
        end = position + len(part)
        if len(part) < LARGE:
            bytewise[position:end] = part
        else:
            whole[position:end].copy_(torch.frombuffer(part, dtype=torch.uint8))
        position = end
    return made


def use(level: str) -> str:
    """Run at most this level from now on, ``reference`` or one of ``LEVELS``; which one that is here is returned."""
    require(level in ("reference", *LEVELS), f"no level {level!r}: reference, {', '.join(LEVELS)}")
    lib = _load() if level != "reference" else None
    _chosen[:] = ["reference" if lib is None else LEVELS[lib.tw_use(LEVELS.index(level))]]
    return _chosen[0]


def check_out(out: Tensor | None, size: int, dtype: torch.dtype) -> None:
    """What a result is to be written into has to be of its type and length, and without gaps."""
    fits = out is None or (out.shape == (size,) and out.dtype == dtype and out.is_contiguous())
    require(fits, f"out= takes a contiguous vector of {size} entries of {dtype}")


def check(status: int) -> None:
    """What a function says that could not get the memory it needs."""
    if status:
        raise MemoryError("no memory for a kernel")


def keys(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    """Keys as C takes them."""
    return (KEY * len(values))(*values)


_chosen: list[str] = []  # at most one: what `use` was told, or the environment


def _level() -> str:
    return _chosen[0] if _chosen else use(os.environ.get("THINWIRE_KERNELS") or LEVELS[-1])


@cache
def brief() -> ctypes.PyDLL:
    """:func:`library`, where it is there, for calls of some microseconds: the interpreter's lock is kept."""
    return _declare(ctypes.PyDLL(str(build.LIBRARY)))


L = TypeVar("L", bound=ctypes.CDLL)


def _declare(lib: L) -> L:
    """Say what each function takes and gives; the library itself. ``AttributeError`` where one is missing."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


@cache
def _load() -> ctypes.CDLL | None:
    """The library, with its signatures; one warning where it cannot be had."""
    try:
        lib = _declare(ctypes.CDLL(str(build.LIBRARY)))
        reason = "" if lib.tw_source() == build.checksum() else "they were compiled of another version"
    except (OSError, AttributeError) as error:
        reason = str(error)
    if not reason:
        return lib
    how = "with a C compiler at hand, python -m thinwire.kernels.native.build makes them"
    warnings.warn(f"thinwire's compiled kernels are missing, torch does their work: {reason}; {how}", stacklevel=2)
    return None
