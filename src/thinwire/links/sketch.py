"""A count sketch as a link: a table whose size is chosen, whatever the layer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Size, Tensor

from ..kernels.sketch import MOST_ROWS, count_sketch, estimate
from ..key import Key
from ..ranges import Count, Range
from ..wire import Packet
from .base import Codec, vector

Rows = Annotated[int, Range(lambda x: 0 < x <= MOST_ROWS, f"must be 1 to {MOST_ROWS}")]


@dataclass(frozen=True)
class CountSketch(Codec):
    """Every entry added, with a random sign, to one of ``cols`` numbers in each of ``rows`` rows; medians are seen.

    A layer becomes rows * cols floats of 4 bytes. A layer of no more entries than that is sent whole.
    ``Flat(CountSketch(...))`` sketches the whole vector. The hashes are the same for all clients. They are drawn anew
    each round, or once with ``fixed``. Raises ``ValueError`` for rows or cols out of range. Charikar, Chen,
    Farach-Colton, ICALP 2002.

    A row's estimate of an entry is right on average and off by about ||x|| / sqrt(cols). The median over rows is
    right on average too, because its error is symmetric, and it is rarely far off. Where the layer is longer than a
    row this is no contraction. ``FetchSGD`` is the method that applies only the entries that stand out.

    The link is linear: the mean of sketches is the sketch of the mean, and the server decodes the estimate of that.
    With one row this equals the mean of what each packet decodes to. With more rows it is closer to the truth and not
    equal, because a median of means is no mean of medians. Where clients keep account of what the server saw of them
    (SCAFFOLD), use one row.

    Differences from the paper: the entries of a vector are counted in place of the items of a stream, and all of them
    are estimated, not the frequent ones alone. The hashes are counters, and neighbouring entries lie side by side in
    a row (:mod:`thinwire.kernels.sketch`). Of an even number of rows the estimate is the mean of the middle two.
    """

    rows: Rows
    cols: Count
    fixed: bool = False

    linear = True
    grows = True
    paper = "Charikar, Chen, Farach-Colton, ICALP 2002"

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
