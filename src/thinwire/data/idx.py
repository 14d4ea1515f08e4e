"""The IDX format of MNIST: two zero bytes, a type byte, the number of dimensions, the
dimensions as big-endian 32-bit integers, then the values.

Source: the format description on the MNIST page, http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError
from .files import gunzip

_UINT8 = 8  # the type byte


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The uint8 array of a gzip-packed IDX file, which must have this shape.

    Raises DataError that names the file and what is wrong with it.
    """
    start = 4 + 4 * len(shape)
    size = math.prod(shape)
    data = gunzip(path, most=start + size)
    magic = bytes([0, 0, _UINT8, len(shape)])
    if data[:4] != magic:
        raise DataError(
            f"{path}: begins with {data[:4].hex() or 'nothing'} instead of {magic.hex()}; "
            f"it is not an IDX file of bytes in {len(shape)} dimension(s)"
        )
    sizes = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    if sizes != shape:
        raise DataError(f"{path}: holds an array of shape {sizes} instead of {shape}")
    if len(data) != start + size:
        raise DataError(f"{path}: holds {len(data) - start:,} values instead of the {size:,} its header announces")
    # A bytearray, because torch warns about memory that cannot be written.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).reshape(shape)
