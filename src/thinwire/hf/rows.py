"""Rows of unequal length in one vector, and batches of them that are filled up on the right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor


class Rows(NamedTuple):
    """Rows of whole numbers one after another in one vector: row i is ``flat[edges[i] : edges[i + 1]]``."""

    flat: Int64[Tensor, " total"]
    edges: Int64[Tensor, " rows_and_one"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Rows:
        sizes = torch.tensor([0, *map(len, rows)], dtype=torch.int64, device="cpu")
        flat = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int64, device="cpu")
        return cls(flat, sizes.cumsum(0))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def sizes(self) -> Int64[Tensor, " rows"]:
        """How many numbers each row has."""
        return self.edges.diff()

    def pad(
        self, which: Int64[Tensor, " b"], fill: int
    ) -> tuple[Int64[Tensor, "b longest"], Bool[Tensor, "b longest"]]:
        """The rows at these positions, filled up on the right to the longest of them, and where they are not filled."""
        starts, sizes = self.edges[which], self.sizes()[which]
        steps = torch.arange(int(sizes.max()), device="cpu")
        inside = steps < sizes.unsqueeze(1)
        there = (starts.unsqueeze(1) + steps).clamp_max_(len(self.flat) - 1)
        return self.flat[there].masked_fill_(~inside, fill), inside


def pack(rows: Sequence[Sequence[int]], length: int, between: int) -> list[list[int]]:
    """Rows one after another, each ended by the token ``between``, cut into rows of ``length``; the last is shorter."""
    tokens = [token for row in rows for token in (*row, between)]
    return [tokens[start : start + length] for start in range(0, len(tokens), length)]
