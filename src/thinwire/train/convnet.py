"""Convolutions before linear layers, as ``kernels/native/convnet.c`` takes them.

It knows ``nn.Conv2d`` with a square kernel, stride 1, zeros of any width around the picture, without groups or
dilation; behind each ``nn.ReLU`` and ``nn.MaxPool2d(2)``, one, both or neither; then ``nn.Flatten`` and a chain of
linear layers.
Behind a pool the derivative of a convolution's output is zero at three positions of four. C does not compute what they
would add, which torch does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from ..kernels import native
from ..params import Layout


class ConvLayer(NamedTuple):
    """A convolution of stride 1 with a square kernel, what follows it, and where its numbers lie in the model."""

    inputs: int
    outputs: int
    kernel: int
    padding: int
    relu: bool
    pool: bool  # the largest of 2 x 2
    weight: int
    bias: int  # -1: none

    @property
    def size(self) -> int:
        """Entries in the model."""
        return self.inputs * self.outputs * self.kernel**2 + (self.outputs if self.bias >= 0 else 0)

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """The pixels a side that leave it, of those that come in. 0 or fewer: there are too few."""
        step = 2 if self.pool else 1
        less = self.kernel - 1 - 2 * self.padding
        return (height - less) // step, (width - less) // step


class Front(native.Struct):
    """The convolutions, and the pictures that come in."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("depth", "channels", "height", "width")),
    )

    def __init__(self, layers: Sequence[ConvLayer], shape: Sequence[int]) -> None:
        self.point(layers=torch.tensor([list(layer) for layer in layers], dtype=torch.int64, device="cpu"))
        self.depth = len(layers)
        self.channels, self.height, self.width = shape


def convolutions(stages: Sequence[tuple[str, nn.Module]], layout: Layout) -> tuple[list[ConvLayer], int]:
    """The convolutions that a module begins with, and how many of its stages they are."""
    layers: list[ConvLayer] = []
    for number, (name, stage) in enumerate(stages):
        if type(stage) is nn.Conv2d:
            layer = _layer(name, stage, layout)
            if layer is None or (layers and layers[-1].outputs != layer.inputs):
                return layers, number
            layers.append(layer)
        elif type(stage) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif layers and not layers[-1].pool and _halves(stage):
            layers[-1] = layers[-1]._replace(pool=True)
        else:
            return layers, number
    return layers, len(stages)


def _halves(stage: nn.Module) -> bool:
    """Whether it takes the largest of 2 x 2, and leaves out a last row or column that is alone."""
    if type(stage) is not nn.MaxPool2d or stage.return_indices or stage.ceil_mode:
        return False
    given = (stage.kernel_size, 2), (stage.stride, 2), (stage.padding, 0), (stage.dilation, 1)
    return all(n in (wanted, (wanted, wanted)) for n, wanted in given)


def _layer(name: str, stage: nn.Conv2d, layout: Layout) -> ConvLayer | None:
    """A convolution as C takes it; None where it is frozen, or of another kind."""
    weight, bias = layout.spans.get(f"{name}weight"), layout.spans.get(f"{name}bias")
    kernel, padding = stage.kernel_size, stage.padding
    square = kernel[0] == kernel[1] and isinstance(padding, tuple) and padding[0] == padding[1]
    plain = stage.stride == stage.dilation == (1, 1) and stage.groups == 1
    plain = plain and (padding == (0, 0) or stage.padding_mode == "zeros")
    if not (square and plain) or weight is None or (bias is None) != (stage.bias is None):
        return None
    at = -1 if bias is None else bias[0]
    return ConvLayer(stage.in_channels, stage.out_channels, kernel[0], padding[0], False, False, weight[0], at)
