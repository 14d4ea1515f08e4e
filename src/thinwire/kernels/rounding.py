"""Rows of numbers as multiples of a step each: the nearest whole numbers, with zeros where these are not worth it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from . import native

MOST = 1 << 22  # magnitudes up to which floats are rounded by adding and taking away 1.5 times 2^23


def round_rows(
    x: Float[Tensor, "rows n"], scales: Float[Tensor, " rows"], dead: float, most: int
) -> tuple[Float[Tensor, "rows n"], Int32[Tensor, "rows n"]]:
    """``x`` times a scale each row, rounded to the nearest whole number, a half to the even one: as floats, and as
    integers. What is smaller than ``dead`` becomes 0, and no magnitude is beyond ``most``, which is below 2^22.
    """
    assert most < MOST
    lib = native.library(x, scales)
    if lib is None:
        whole = round_levels(x * scales[:, None], dead, most)
        return whole, whole.to(torch.int32)
    x, scales = x.contiguous(), scales.contiguous()
    out, levels = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    lib.tw_round_rows(x, scales, *x.shape, dead, most, out, levels)
    return out, levels


def round_levels(x: Float32[Tensor, "*shape"], dead: float, most: int) -> Float32[Tensor, "*shape"]:
    """The nearest whole numbers, 0 for what is smaller than ``dead``, and none beyond ``most``."""
    return torch.where(x.abs() < dead, 0.0, x.round().clamp_(-most, most))
