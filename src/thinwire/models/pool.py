"""The mean of each channel as a module, for models that are given as a chain of modules."""

from __future__ import annotations

from torch import Tensor, nn


class ChannelMean(nn.Module):
    """[n, channels, height, width] to [n, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))
