"""The norm after a convolution, by its name."""

from __future__ import annotations

from torch import nn

from ..errors import require

_GROUPS = 8  # what the thesis trains DOMO with (A. Xu, 2023, chapter 4)


def normalise(kind: str, channels: int) -> nn.Module:
    """BatchNorm for "batch", GroupNorm in 8 groups for "group". Raises ValueError for another kind."""
    require(kind in ("batch", "group"), f'norm must be "batch" or "group", not {kind!r}')
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(_GROUPS, channels)
