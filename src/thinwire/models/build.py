"""Every model by its name, fitted to the shape of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ..errors import nearest, require
from .cnn import fedavg_cnn, lbgm_cnn
from .dense import linear, mlp
from .fasttext import fasttext
from .resnet import resnet20, resnet56
from .resnet9 import resnet9
from .transformer import char_transformer
from .vgg import vgg16, vgg_small

_FLAT: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": lambda inputs, classes: linear(inputs, classes),
    "mlp": lambda inputs, classes: mlp(inputs, classes=classes),
}
_PICTURES: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "fedavg_cnn": fedavg_cnn,
    "lbgm_cnn": lbgm_cnn,
    "resnet20": resnet20,
    "resnet20_group": lambda shape, classes: resnet20(shape, classes, norm="group"),
    "resnet56": resnet56,
    "resnet56_group": lambda shape, classes: resnet56(shape, classes, norm="group"),
    "resnet9": resnet9,
    "vgg16": vgg16,
    "vgg16_group": lambda shape, classes: vgg16(shape, classes, norm="group"),
    "vgg16_none": lambda shape, classes: vgg16(shape, classes, norm="none"),
    "vgg_small": vgg_small,
}
_CONTINUE: dict[str, Callable[[int, int], nn.Module]] = {
    "char_transformer": lambda context, vocabulary: char_transformer(vocabulary, context),
}
_CLASSIFY: dict[str, Callable[[int, int], nn.Module]] = {
    "fasttext": lambda vocabulary, classes: fasttext(vocabulary, classes),
}


def names() -> list[str]:
    """The names that :func:`build` knows, sorted."""
    return sorted([*_FLAT, *_PICTURES, *_CONTINUE, *_CLASSIFY])


def build(name: str, data_shape: tuple[int, ...], num_classes: int, vocabulary: int | None = None) -> nn.Module:
    """The model of this name for examples of ``data_shape``.

    Pictures are (channels, height, width), texts (length,). ``vocabulary`` is the number of ids
    in texts; it has to be given for models that classify texts, and is ``num_classes`` for those
    that continue them. The weights are drawn from torch's global generator. Raises ValueError
    for an unknown name, or data that the model cannot take.
    """
    shape = tuple(data_shape)
    if name in _FLAT:
        return _FLAT[name](math.prod(shape), num_classes)
    if name in _PICTURES:
        require(len(shape) == 3, f"{name} takes pictures (channels, height, width), not examples of shape {shape}")
        return _PICTURES[name]((shape[0], shape[1], shape[2]), num_classes)
    if name in _CONTINUE:
        require(len(shape) == 1, f"{name} takes texts (length,), not examples of shape {shape}")
        require(
            vocabulary in (None, num_classes),
            f"{name} continues texts, so that its {num_classes} classes should be the {vocabulary} ids; "
            f"to classify texts take {' or '.join(_CLASSIFY)}",
        )
        return _CONTINUE[name](shape[0], num_classes)
    if name in _CLASSIFY:
        require(len(shape) == 1, f"{name} takes texts (length,), not examples of shape {shape}")
        if vocabulary is None:
            raise ValueError(f"{name} has to know the number of ids in texts: give vocabulary=data.vocabulary")
        return _CLASSIFY[name](vocabulary, num_classes)
    raise ValueError(f"no model {name!r}{nearest(name, names())}; known are {', '.join(names())}")
