"""The largest magnitude of a vector: how a message is looked at for NaN, infinity, and numbers that are too large."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import native

BRIEF = 1 << 17  # entries, up to which the interpreter's lock is kept: to take it again costs more than to look


def magnitude(x: Tensor) -> float:
    """The largest ``|x|`` of floating-point numbers of any shape: NaN where there is one, 0 of nothing.

    Extra memory: none, or a copy of a tensor with gaps.
    """
    size = x.numel()
    lib = native.library(x) if size else None
    if lib is None:
        return magnitude_reference(x)
    x = x if x.is_contiguous() else x.contiguous()
    if size <= BRIEF:
        return float(native.brief().tw_magnitude(x, size, 1))
    return float(lib.tw_magnitude(x, size, torch.get_num_threads()))


def magnitude_reference(x: Tensor) -> float:
    if x.numel() == 0:
        return 0.0
    low, high = (float(end) for end in torch.aminmax(x.detach()))
    return math.nan if math.isnan(low) else max(abs(low), abs(high))
