"""Every model by its name, fitted to the shape of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ..errors import nearest, require
from .cnn import fedavg_cnn, lbgm_cnn
from .dense import linear, mlp
from .resnet import resnet20
from .transformer import char_transformer

_FLAT: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": lambda inputs, classes: linear(inputs, classes),
    "mlp": lambda inputs, classes: mlp(inputs, classes=classes),
}
_PICTURES: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "fedavg_cnn": fedavg_cnn,
    "lbgm_cnn": lbgm_cnn,
    "resnet20": resnet20,
    "resnet20_group": lambda shape, classes: resnet20(shape, classes, norm="group"),
}
_TEXTS: dict[str, Callable[[int, int], nn.Module]] = {
    "char_transformer": lambda context, vocabulary: char_transformer(vocabulary, context),
}


def names() -> list[str]:
    """The names that :func:`build` knows, sorted."""
    return sorted([*_FLAT, *_PICTURES, *_TEXTS])


def build(name: str, data_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The model of this name for examples of ``data_shape``.

    Pictures are (channels, height, width), texts (length,). The weights are drawn from torch's
    global generator. Raises ValueError for an unknown name, or a shape the model cannot take.
    """
    shape = tuple(data_shape)
    if name in _FLAT:
        return _FLAT[name](math.prod(shape), num_classes)
    if name in _PICTURES:
        require(len(shape) == 3, f"{name} takes pictures (channels, height, width), not examples of shape {shape}")
        return _PICTURES[name]((shape[0], shape[1], shape[2]), num_classes)
    if name in _TEXTS:
        require(len(shape) == 1, f"{name} takes texts (length,), not examples of shape {shape}")
        return _TEXTS[name](shape[0], num_classes)
    raise ValueError(f"no model {name!r}{nearest(name, names())}; known are {', '.join(names())}")
