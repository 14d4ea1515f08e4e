"""The replies of a round as rows of a matrix, read block by block.

A rule that is no mean has to see every reply decoded. Rows up to :data:`HELD` bytes lie in memory, later ones in a
temporary file. What is read at once has :data:`BLOCK` numbers, however long a row is.
"""

from __future__ import annotations

import copy
import os
import tempfile
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

HELD = 1 << 28  # bytes of rows in memory
BLOCK = 1 << 20  # numbers that are read at once


class Rows:
    """Vectors of ``size`` numbers each, in the order in which they were added. They are read, never written to."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size, self.dtype, self.bytes = size, dtype, 0
        self.rows: list[Tensor | int] = []  # itself, or where it begins in the file

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def file(self) -> Any:
        """A file that goes when nobody holds these rows any more."""
        file = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, file.close)
        return file

    def add(self, row: Float[Tensor, " d"]) -> None:
        """One row more. It may not be written to afterwards."""
        row = row.detach().to("cpu", self.dtype)
        self.bytes += row.nbytes
        if self.bytes <= HELD:
            self.rows.append(row)
            return
        self.rows.append(self.file.seek(0, os.SEEK_END))
        self.file.write(row.contiguous().numpy().tobytes())
        self.file.flush()

    def behind(self, first: Tensor | None) -> Rows:
        """The same rows after a first one, if there is one. To be used while these are held."""
        rows = copy.copy(self)
        rows.rows = [*([] if first is None else [first]), *self.rows]
        return rows

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "n b"]]]:
        """The columns of each block, and all rows in them."""
        wide = max(1, BLOCK // max(1, len(self)))
        for start in range(0, self.size, wide):
            columns = slice(start, min(start + wide, self.size))
            yield columns, torch.stack([self._read(row, columns) for row in self.rows])

    def products(self) -> Float[Tensor, "n n"]:
        """The inner product of every two rows, in double precision."""
        total = torch.zeros(len(self), len(self), dtype=torch.float64, device="cpu")
        for _, block in self.blocks():
            wide = block.double()
            total += wide @ wide.T
        return total

    def _read(self, row: Tensor | int, columns: slice) -> Tensor:
        if isinstance(row, Tensor):
            return row[columns]
        each = self.dtype.itemsize
        data = os.pread(self.file.fileno(), (columns.stop - columns.start) * each, row + columns.start * each)
        return torch.from_numpy(np.frombuffer(bytearray(data), {4: "f4", 8: "f8"}[each]))


def squares(products: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The squared distance of every two rows, given their products."""
    own = products.diagonal()
    return (own[:, None] + own[None, :] - 2 * products).clamp_(min=0).fill_diagonal_(0)


def lower_median(x: Float[Tensor, " n"]) -> float:
    """The lower median."""
    return float(x.sort().values[(len(x) - 1) // 2])
