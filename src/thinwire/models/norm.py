"""What networks for pictures share: the norm after a convolution, by its name, and the smallest picture."""

from __future__ import annotations

from torch import nn

from ..errors import require

_GROUPS = 8  # what the thesis trains DOMO with (A. Xu, 2023, chapter 4)


def normalise(kind: str, channels: int) -> nn.Module:
    """BatchNorm for "batch", GroupNorm in 8 groups for "group". Raises ValueError for another kind."""
    require(kind in ("batch", "group"), f'norm must be "batch" or "group", not {kind!r}')
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(_GROUPS, channels)


def check_size(name: str, shape: tuple[int, int, int], smallest: int, otherwise: str = "") -> None:
    """Raise ValueError for pictures of fewer pixels a side; ``otherwise`` says what takes them."""
    _, height, width = shape
    require(
        min(height, width) >= smallest,
        f"{name} needs pictures of {smallest} x {smallest} pixels or more, not {height} x {width}{otherwise}",
    )
