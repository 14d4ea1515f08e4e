"""U-Net for pictures in which every pixel has a label.

O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation", MICCAI 2015, arXiv:1505.04597, with the channels of FedSM (A. Xu et al., CVPR
2022; thesis, chapter 3): 16, 32, 64, 128, 256.

Differences from the paper: a quarter of its channels; padded convolutions, so that the output
has the size of the input; a norm after each of them.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ..errors import require
from .norm import normalise


def unet(
    shape: tuple[int, int, int] = (3, 256, 256),
    outputs: int = 1,
    widths: tuple[int, ...] = (16, 32, 64, 128, 256),
    norm: str = "batch",
) -> nn.Module:
    """Pictures [n, channels, height, width] to logits [n, outputs, height, width].

    By default one output for each pixel and 1,942,577 parameters. ``norm`` is "batch" or "group".
    Raises ValueError for another one, or for sides that cannot be halved once for each width after the first.
    """
    channels, height, width = shape
    side = 2 ** (len(widths) - 1)
    require(
        height % side == 0 and width % side == 0,
        f"unet needs pictures whose sides are multiples of {side} pixels, not {height} x {width}",
    )
    return UNet(channels, outputs, widths, norm)


class UNet(nn.Module):
    """Two convolutions at each width on the way down and up; each step up sees the same step down."""

    def __init__(self, channels: int, outputs: int, widths: tuple[int, ...], norm: str) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _two(inputs, width, norm) for inputs, width in zip((channels, *widths), widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        upwards = list(zip(widths[:0:-1], widths[-2::-1], strict=True))  # (256, 128), (128, 64), ...
        self.larger = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for wide, narrow in upwards)
        self.up = nn.ModuleList(_two(2 * narrow, narrow, norm) for _, narrow in upwards)
        self.out = nn.Conv2d(widths[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        for i, down in enumerate(self.down):
            x = down(self.pool(x) if i else x)
            seen.append(x)
        seen.pop()
        for larger, up in zip(self.larger, self.up, strict=True):
            x = up(torch.cat([seen.pop(), larger(x)], dim=1))
        out: Tensor = self.out(x)
        return out


def _two(inputs: int, outputs: int, norm: str) -> nn.Sequential:
    layers: dict[str, nn.Module] = {}
    for i in (1, 2):
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers |= {f"conv{i}": conv, f"norm{i}": normalise(norm, outputs), f"relu{i}": nn.ReLU()}
        inputs = outputs
    return nn.Sequential(OrderedDict(layers))
