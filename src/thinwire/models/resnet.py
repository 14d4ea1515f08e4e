"""ResNet-8, ResNet-20 and ResNet-56 for small pictures.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
arXiv:1512.03385, Section 4.2.

Differences from the paper: each of the three stages begins with a projection shortcut (its
option B, with a norm after it), also the first, where no size changes. That gives the 23
kernels (tensors with more than one dimension) that FedLUAR counts: 1 first convolution, 18
in the blocks, 3 projections, 1 dense layer. With projections where sizes change alone there
would be 22, with the paper's option A 20. ResNet-56 is built alike, which gives it 288
parameters more than projections where sizes change alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .norm import normalise
from .pool import ChannelMean


def resnet8(
    shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, norm: str = "batch", width: int = 16
) -> nn.Module:
    """78,330 parameters at 3 channels and 10 classes: one block a stage; otherwise as :func:`resnet20`.

    ``width`` is the number of channels of the first stage. With 8 there are 20,034 parameters.
    """
    return ResNet(shape[0], classes, norm, blocks=1, width=width)


def resnet20(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, norm: str = "batch") -> nn.Module:
    """272,762 parameters at 3 channels and 10 classes; pictures of any size.

    ``norm`` is "batch" or "group"; the latter keeps no statistics of batches, which suits clients of few classes.
    Raises ValueError for another norm.
    """
    return ResNet(shape[0], classes, norm, blocks=3)


def resnet56(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, norm: str = "batch") -> nn.Module:
    """856,058 parameters at 3 channels and 10 classes; otherwise as :func:`resnet20`.

    The thesis trains it with ``norm`` "group" (A. Xu, 2023, chapter 4).
    """
    return ResNet(shape[0], classes, norm, blocks=9)


class ResNet(nn.Module):
    """Three stages of ``blocks`` blocks each, with ``width``, twice and four times as many channels."""

    def __init__(self, channels: int, classes: int, norm: str, blocks: int, width: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = normalise(norm, width)
        sizes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.stages = nn.Sequential(
            *(
                Block(outputs if i else inputs, outputs, 1 if i else stride, norm, project=i == 0)
                for inputs, outputs, stride in sizes
                for i in range(blocks)
            )
        )
        self.dense = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))  # [n, 16, height, width]
        x = self.stages(x).mean(dim=(2, 3))  # [n, 64]
        out: Tensor = self.dense(x)
        return out

    def chain(self) -> list[nn.Module]:
        """The modules in order, each of which takes what the one before gives: where a pipeline may cut."""
        return [self.conv, self.norm, nn.ReLU(), *self.stages, ChannelMean(), self.dense]


class Block(nn.Module):
    """Two convolutions, and what came in, or a projection of it, added to what they give."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, project: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = normalise(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = normalise(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if project:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), normalise(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))
