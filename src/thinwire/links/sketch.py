"""A count sketch as a link: a table whose size is chosen, whatever the layer's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Size, Tensor

from ..errors import require
from ..kernels.sketch import MOST_ROWS, count_sketch, estimate
from ..key import Key
from ..wire import Packet
from .base import Codec
from .dense import vector


@dataclass(frozen=True)
class CountSketch(Codec):
    """Every entry added, with a random sign, to one of ``cols`` numbers in each of ``rows`` rows; medians are seen.

    The hashes are drawn anew each round, or once with ``fixed``, and are everyone's. A layer
    of no more than rows * cols entries is sent whole; ``Flat(CountSketch(...))`` sketches the
    whole vector. Charikar, Chen, Farach-Colton, ICALP 2002.

    A row's estimate of an entry is right on average, off by about ||x|| / sqrt(cols); so is
    the median, whose error is symmetric, and rarely far off. That is no contraction where the
    layer is longer than a row: ``FetchSGD`` is the method that keeps only what stands out.

    Linear: the mean of sketches is the sketch of the mean, and what the server decodes is its
    estimate. With one row that is also the mean of what each packet decodes to; with more it
    is better than that, and not the same, since a median of means is no mean of medians.
    Where clients keep account of what the server saw of them (SCAFFOLD), use one row.

    Differences from the paper: what is counted are the entries of a vector and not the items of
    a stream, and all are estimated, not the frequent ones alone. The hashes are counters, and
    neighbours lie side by side in a row: :mod:`thinwire.kernels.sketch`. Of an even number of
    rows the estimate is the mean of the middle two.
    """

    rows: int
    cols: int
    fixed: bool = False

    linear = True
    grows = True
    paper = "Charikar, Chen, Farach-Colton, ICALP 2002"

    def __post_init__(self) -> None:
        require(0 < self.rows <= MOST_ROWS, f"CountSketch(rows={self.rows}): rows must be 1 to {MOST_ROWS}")
        require(self.cols > 0, f"CountSketch(cols={self.cols}): cols must be at least 1")

    def _seed(self, key: Key) -> int:
        everyone = key.everyone()
        return (everyone.always() if self.fixed else everyone).number("sketch")

    def encode(self, x: Tensor, key: Key) -> Packet:
        flat = x.reshape(-1)
        if flat.numel() <= self.rows * self.cols:
            return flat
        return count_sketch(flat, self.rows, self.cols, self._seed(key)).reshape(-1)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        n = shape.numel()
        values = vector(packet, min(n, self.rows * self.cols), torch.float32)
        if n <= self.rows * self.cols:
            return values.view(shape)
        return estimate(values.view(self.rows, self.cols), n, self._seed(key)).view(shape)
