"""Count sketches: a long vector in a small table that is linear in it, and what is large in it back.

Charikar, Chen, Farach-Colton, ICALP 2002. Row r adds entry i, with a sign, to one column.
Differences from the paper: a hash of counters (:mod:`.counter`) instead of a pairwise independent family, and runs
of 16 entries side by side. A run starts in a random column, its entries lie in that and the next ones, round the end;
each has a sign of its own. Two entries of different runs still meet with probability 1 / columns, two of one run
never, so that an estimate errs as it would; but a processor reads and writes a run at once. What is lost: where two
runs meet, more than one entry of each does. Of fewer than 16 columns a run is one entry.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..errors import require
from . import counter, native
from .select import top_k

MOST_ROWS = 64
RUN = 16


def count_sketch(x: Float[Tensor, " n"], rows: int, cols: int, seed: int) -> Float[Tensor, " rows cols"]:
    """The sketch of ``x``; each row is summed in the order of the positions. On CUDA in no fixed order.

    Sums and multiples of sketches with one seed are the sketches of the sums and multiples,
    to rounding. At most 2^31 entries. Extra memory: the result (reference: 3 MB more).
    """
    _require(x.numel(), rows, cols)
    lib = native.library(x)
    if lib is None:
        return count_sketch_reference(x, rows, cols, seed)
    x, sketch, keys = x.contiguous(), native.empty(lib, rows, cols), native.keys(counter.keys(seed, rows))
    threads = torch.get_num_threads()
    lib.tw_count_sketch(x, x.numel(), rows, cols, keys, sketch, threads)
    return sketch


def count_sketch_reference(x: Tensor, rows: int, cols: int, seed: int) -> Tensor:
    sketch = torch.zeros(rows, cols, device=x.device, dtype=torch.float32)
    for row, key in zip(sketch, counter.keys(seed, rows), strict=True):
        for start in range(0, x.numel(), counter.CHUNK):
            part = x[start : start + counter.CHUNK]
            column, sign = _places(start, start + part.numel(), cols, key, x.device)
            row.index_add_(0, column, part * sign)
    return sketch


def estimate(sketch: Float[Tensor, "rows cols"], n: int, seed: int) -> Float[Tensor, " n"]:
    """Every entry's estimate: the median over the rows (of an even number the mean of the middle two).

    Extra memory: the result (reference: 5 MB more).
    """
    rows, cols = sketch.shape
    _require(n, rows, cols)
    lib = native.library(sketch)
    if lib is None:
        return estimate_reference(sketch, n, seed)
    sketch, estimates, keys = sketch.contiguous(), native.empty(lib, n), native.keys(counter.keys(seed, rows))
    lib.tw_estimate(sketch, n, rows, cols, keys, estimates, torch.get_num_threads())
    return estimates


def estimate_reference(sketch: Tensor, n: int, seed: int) -> Tensor:
    rows, cols = sketch.shape
    estimates = torch.zeros(n, device=sketch.device, dtype=torch.float32)
    for start in range(0, n, counter.CHUNK):
        stop = min(n, start + counter.CHUNK)
        guesses = []
        for row, key in zip(sketch, counter.keys(seed, rows), strict=True):
            column, sign = _places(start, stop, cols, key, sketch.device)
            guesses.append(row[column] * sign)
        ordered = torch.stack(guesses).sort(0).values
        middle = ordered[rows // 2]
        if rows % 2 == 0:
            middle = (ordered[rows // 2 - 1] + middle) * 0.5
        estimates[start:stop] = middle + 0.0  # one zero, whichever was in the middle
    return estimates


def heavy(
    sketch: Float[Tensor, "rows cols"], n: int, k: int, seed: int
) -> tuple[Int64[Tensor, " k"], Float[Tensor, " k"]]:
    """The ``k`` entries of largest estimated magnitude: positions, ascending, and estimates. Extra memory: n floats."""
    estimates = estimate(sketch, n, seed)
    positions = top_k(estimates, k)
    return positions, estimates.index_select(0, positions)


def _places(start: int, stop: int, cols: int, key: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Column and sign of each entry; ``start`` begins a run."""
    wide = RUN if cols >= RUN else 1
    drawn = counter.bits(2 * (start // wide), 2 * -(-stop // wide), key, device).view(-1, 2, 1)
    lane = torch.arange(wide, device=device)
    column, sign = (drawn[:, 0] * cols >> 32) + lane, 1 - 2 * (drawn[:, 1] >> lane & 1)
    return (column % cols).view(-1)[: stop - start], sign.view(-1)[: stop - start].float()


def _require(n: int, rows: int, cols: int) -> None:
    require(1 <= rows <= MOST_ROWS, f"a sketch of {rows} rows: 1 to {MOST_ROWS}")
    require(1 <= cols < 1 << 31, f"a sketch of {cols} columns: 1 to {(1 << 31) - 1}")
    most = counter.MOST // 2  # two draws a run
    require(n <= most, f"a sketch of {n} entries: at most {most}")
