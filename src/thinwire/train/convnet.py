"""Convolutions before linear layers, as ``kernels/native/convnet.c`` takes them.

It knows ``nn.Conv2d`` with a square kernel, any stride, zeros of any width around the picture, without groups or
dilation. Behind each may come ``nn.BatchNorm2d``, ``nn.ReLU`` and ``nn.MaxPool2d(2)``, and it knows the blocks of
:mod:`thinwire.models.resnet`. Then come ``nn.Flatten`` or the means of channels, and a chain of linear layers. Behind a
pool the derivative of a convolution's output is zero at three positions of four: C does not compute what they would
add. Behind a norm kernels of 3 x 3 take Winograd's products, four for nine. Torch does neither.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import native
from ..models.pool import ChannelMean
from ..models.resnet import Block, ResNet
from ..params import Layout

PICTURES = -1


class ConvLayer(NamedTuple):
    """A convolution with a square kernel, what follows it, and where its numbers lie in the model (-1: it has none)."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    relu: int  # 0 or 1
    pool: int  # the largest of 2 x 2; 0 or 1
    source: int  # the number of the convolution whose outputs it takes, or PICTURES
    add: int  # of one whose outputs are added before ReLU; -1: none
    weight: int
    bias: int
    scale: int = -1  # of its norm
    shift: int = -1
    running: int = -1  # where the norm's running mean and variance lie among those of all norms

    @property
    def size(self) -> int:
        """Entries in the model."""
        vectors = (self.bias >= 0) + 2 * (self.scale >= 0)
        return self.inputs * self.outputs * self.kernel**2 + vectors * self.outputs


@dataclass
class Convolutions:
    """Those that a module begins with; an empty list where it begins with others."""

    layers: list[ConvLayer] = field(default_factory=list)
    means: bool = False  # whether linear layers take the means of channels
    norms: list[str] = field(default_factory=list)  # their names, in the order of their statistics
    constants: set[tuple[float, float]] = field(default_factory=set)  # (eps, momentum) of all norms

    def __bool__(self) -> bool:
        return bool(self.layers)

    @property
    def size(self) -> int:
        """Entries in the model."""
        return sum(layer.size for layer in self.layers)

    def features(self, channels: int, height: int, width: int) -> int:
        """What a linear layer is given of such pictures, in numbers; 0 where C does not take them."""
        shapes = {PICTURES: (channels, height, width)}
        for number, layer in enumerate(self.layers):
            before, *sides = shapes[layer.source]
            left = [(side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in sides]
            if layer.pool and layer.scale >= 0 and any(side % 2 for side in left):
                return 0  # the norm has seen what the pool leaves out
            high, wide = (side // 2 if layer.pool else side for side in left)
            shapes[number] = layer.outputs, high, wide
            fits = before == layer.inputs and min(high, wide) > 0
            if not fits or (layer.add >= 0 and shapes[layer.add] != shapes[number]):
                return 0
        outputs, high, wide = shapes[len(self.layers) - 1]
        return outputs if self.means else outputs * high * wide


class Front(native.Struct):
    """The convolutions, and the pictures that come in."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("depth", "channels", "height", "width", "means")),
        *((name, ctypes.c_double) for name in ("epsilon", "momentum")),
    )

    def __init__(self, convs: Convolutions, shape: Sequence[int]) -> None:
        self.point(layers=torch.tensor([list(layer) for layer in convs.layers], dtype=torch.int64, device="cpu"))
        self.depth, self.means = len(convs.layers), convs.means
        self.channels, self.height, self.width = shape
        self.epsilon, self.momentum = min(convs.constants, default=(0.0, 0.0))


class Room(NamedTuple):
    """Memory for a network's outputs and derivatives, and what it was made for."""

    layers: Tensor
    sides: tuple[int, int, int]
    most: int  # pictures a batch
    floats: Tensor


class Rooms:
    """The room of a worker's last client, for its next one: fresh memory is dear, and borders in it stay zero."""

    def __init__(self) -> None:
        self.room: Room | None = None

    def at_least(self, front: Front, size: int) -> Room:
        """One for batches of ``size`` pictures. Raises ``MemoryError``."""
        room, sides = self.room, (front.channels, front.height, front.width)
        assert front.owners is not None
        layers = front.owners["layers"]
        if room is None or room.most < size or room.sides != sides or not torch.equal(room.layers, layers):
            lib = native.library()
            assert lib is not None
            floats = lib.tw_room(ctypes.byref(front), size)
            native.check(floats < 0)
            self.room = room = Room(layers, sides, size, torch.zeros(floats, dtype=torch.float32, device="cpu"))
        return room


def convolutions(stages: Sequence[tuple[str, nn.Module]], layout: Layout) -> tuple[Convolutions, int]:
    """The convolutions that a module begins with, and how many of its stages they are."""
    convs = Convolutions()
    for number, (name, stage) in enumerate(stages):
        last = convs.layers[-1] if convs else None
        if type(stage) is nn.Conv2d:
            known = _append(convs, name, stage, layout, len(convs.layers) - 1)
        elif type(stage) is Block:
            known = last is not None and _append_block(convs, name, stage, layout)
        elif type(stage) is nn.BatchNorm2d:
            plain = last is not None and last.scale < 0 and not last.relu and not last.pool
            known = plain and _norm(convs, name, stage, layout)
        elif type(stage) is nn.ReLU:
            known = last is not None and not last.relu and _mend(convs, relu=1)
        elif type(stage) is nn.MaxPool2d:
            known = last is not None and not last.pool and last.add < 0 and _halves(stage) and _mend(convs, pool=1)
        elif type(stage) is ChannelMean and last is not None:
            convs.means = True
            return convs, number + 1
        else:
            return convs, number
        if not known:
            return convs, number
    return convs, len(stages)


def stages_of(module: ResNet) -> list[tuple[str, nn.Module]]:
    """Its modules by name, each of which takes what the one before gives."""
    blocks = [(f"stages.{name}.", block) for name, block in module.stages._modules.items()]
    first: list[tuple[str, nn.Module]] = [("conv.", module.conv), ("norm.", module.norm), ("", nn.ReLU())]
    return [*first, *blocks, ("", ChannelMean()), ("dense.", module.dense)]


def _mend(convs: Convolutions, **fields: int) -> bool:
    """Change the last layer."""
    convs.layers[-1] = convs.layers[-1]._replace(**fields)
    return True


def _append_block(convs: Convolutions, name: str, block: Block, layout: Layout) -> bool:
    """Two convolutions, and what is added to the second: what the first takes, or a projection of it."""
    before = len(convs.layers) - 1
    shortcut, parts = before, block.shortcut
    if type(parts) is nn.Sequential and len(parts) == 2:
        shortcut = before + 1
        known = _append(convs, f"{name}shortcut.0.", parts[0], layout, before)
        if not (known and _norm(convs, f"{name}shortcut.1.", parts[1], layout)):
            return False
    elif type(parts) is not nn.Identity:
        return False
    first = len(convs.layers)
    known = _append(convs, f"{name}conv1.", block.conv1, layout, before)
    known = known and _norm(convs, f"{name}norm1.", block.norm1, layout) and _mend(convs, relu=1)
    known = known and _append(convs, f"{name}conv2.", block.conv2, layout, first)
    return known and _norm(convs, f"{name}norm2.", block.norm2, layout) and _mend(convs, relu=1, add=shortcut)


def _halves(stage: nn.MaxPool2d) -> bool:
    """Whether it takes the largest of 2 x 2, and leaves out a last row or column that is alone."""
    if stage.return_indices or stage.ceil_mode:
        return False
    given = (stage.kernel_size, 2), (stage.stride, 2), (stage.padding, 0), (stage.dilation, 1)
    return all(n in (wanted, (wanted, wanted)) for n, wanted in given)


def _append(convs: Convolutions, name: str, stage: nn.Module, layout: Layout, source: int) -> bool:
    """Add a convolution that takes what another one gives. False where it is frozen, or not known to C."""
    if type(stage) is not nn.Conv2d:
        return False
    weight, bias = layout.spans.get(f"{name}weight"), layout.spans.get(f"{name}bias")
    kernel, padding, stride = stage.kernel_size, stage.padding, stage.stride
    square = (
        kernel[0] == kernel[1] and isinstance(padding, tuple) and padding[0] == padding[1] and stride[0] == stride[1]
    )
    plain = stage.dilation == (1, 1) and stage.groups == 1 and (padding == (0, 0) or stage.padding_mode == "zeros")
    if not (square and plain) or weight is None or (bias is None) != (stage.bias is None):
        return False
    if source >= 0 and convs.layers[source].outputs != stage.in_channels:
        return False
    sizes = stage.in_channels, stage.out_channels, kernel[0], stride[0], int(padding[0])
    convs.layers.append(ConvLayer(*sizes, 0, 0, source, -1, weight[0], -1 if bias is None else bias[0]))
    return True


def _norm(convs: Convolutions, name: str, stage: nn.Module, layout: Layout) -> bool:
    """Put a norm behind the last convolution. False where it is frozen, or not known to C."""
    scale, shift = layout.spans.get(f"{name}weight"), layout.spans.get(f"{name}bias")
    if type(stage) is not nn.BatchNorm2d or stage.num_features != convs.layers[-1].outputs:
        return False
    if scale is None or shift is None or stage.momentum is None or not stage.track_running_stats or not stage.training:
        return False
    running = 2 * sum(layer.outputs for layer in convs.layers if layer.scale >= 0)
    convs.norms.append(name.removesuffix("."))
    convs.constants.add((stage.eps, stage.momentum))
    return len(convs.constants) == 1 and _mend(convs, scale=scale[0], shift=shift[0], running=running)
