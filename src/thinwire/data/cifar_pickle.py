"""One of CIFAR-10's Python batches, without running what a pickle asks for.

A pickle is a program. The batches are pickles of Python 2 that need three names from
numpy; here those names lead to inert stand-ins which only note what they are given, every
other name is refused, and the array is built from the noted bytes.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError

_PIXELS = 3 * 32 * 32


class _Noted:
    """Stands for ``numpy.ndarray`` and ``numpy.dtype``: keeps its arguments and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    """Stands for ``_codecs.encode``, by which Python 3 writes bytes in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unexpected encoding")
    return text.encode("latin1")


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Noted,
    ("numpy._core.multiarray", "_reconstruct"): _Noted,  # the same since numpy 2
    ("numpy", "ndarray"): _Noted,
    ("numpy", "dtype"): _Noted,
    ("_codecs", "encode"): _latin1,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR-10 needs")


def read_batch(data: bytes, count: int, source: str) -> tuple[Tensor, Tensor]:
    """uint8 [count, 3, 32, 32] and int64 [count] from the bytes of one batch.

    ``source`` names the file in errors. Raises DataError for anything but such a batch;
    nothing named in the data is imported or called.
    """
    try:
        batch = _Restricted(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{source}: refused, not a batch of CIFAR-10 ({error})") from error
    if not isinstance(batch, dict):
        raise DataError(f"{source}: refused, holds a {type(batch).__name__} instead of a dict")
    pixels = _pixels(batch.get(b"data", batch.get("data")), count)
    if pixels is None:
        raise DataError(f"{source}: its data are not {count:,} rows of {_PIXELS:,} bytes")
    labels = batch.get(b"labels", batch.get("labels"))
    if (
        not isinstance(labels, list)
        or len(labels) != count
        or any(type(y) is not int or not 0 <= y < 10 for y in labels)
    ):
        raise DataError(f"{source}: its labels are not {count:,} integers from 0 to 9")
    return pixels.reshape(count, 3, 32, 32), torch.tensor(labels, dtype=torch.int64, device="cpu")


def _pixels(noted: Any, count: int) -> Tensor | None:
    """The array from what was noted: (version, shape, dtype, column-major, bytes)."""
    state = getattr(noted, "state", None)
    if not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, dtype, by_columns, content = state
    kind = getattr(dtype, "arguments", ())[:1]
    if shape != (count, _PIXELS) or kind not in (("u1",), (b"u1",)):
        return None
    if not isinstance(content, bytes) or len(content) != count * _PIXELS:
        return None
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return flat.reshape(_PIXELS, count).T.contiguous() if by_columns else flat.reshape(count, _PIXELS)
