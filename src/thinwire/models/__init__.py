"""The networks of the papers, and the small ones to try things on.

Each function takes plain numbers and returns a module, initialised from torch's global
generator: seed it before the call.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial

from torch import nn

from ..errors import nearest, require
from .cnn import fedavg_cnn, lbgm_cnn
from .dense import linear, mlp
from .fasttext import fasttext
from .lenet import dlg_lenet
from .resnet import resnet8, resnet20, resnet56
from .resnet9 import resnet9
from .transformer import char_transformer, text_transformer
from .unet import unet
from .vgg import vgg11, vgg16, vgg_small

__all__ = [
    "build",
    "char_transformer",
    "dlg_lenet",
    "fasttext",
    "fedavg_cnn",
    "lbgm_cnn",
    "linear",
    "mlp",
    "names",
    "resnet8",
    "resnet9",
    "resnet20",
    "resnet56",
    "text_transformer",
    "unet",
    "vgg11",
    "vgg16",
    "vgg_small",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "char_transformer": char_transformer,
    "dlg_lenet": dlg_lenet,
    "fasttext": fasttext,
    "fedavg_cnn": fedavg_cnn,
    "lbgm_cnn": lbgm_cnn,
    "linear": linear,
    "mlp": mlp,
    "resnet20": resnet20,
    "resnet20_group": partial(resnet20, norm="group"),
    "resnet8": resnet8,
    "resnet8_half": partial(resnet8, width=8),
    "resnet56": resnet56,
    "resnet56_group": partial(resnet56, norm="group"),
    "resnet9": resnet9,
    "text_transformer": text_transformer,
    "unet": unet,
    "unet_group": partial(unet, norm="group"),
    "vgg11": vgg11,
    "vgg11_group": partial(vgg11, norm="group"),
    "vgg11_none": partial(vgg11, norm="none"),
    "vgg16": vgg16,
    "vgg16_group": partial(vgg16, norm="group"),
    "vgg16_none": partial(vgg16, norm="none"),
    "vgg_small": vgg_small,
}
"""The models that :func:`build` knows. The names of a function's arguments say what data it takes:

- ``inputs``, ``classes``: examples of any shape, of so many numbers each
- ``shape``, ``classes``: pictures (channels, height, width)
- ``shape``, ``outputs``: pictures of which every pixel has so many labels, one a mask
- ``vocabulary``, ``classes``: texts to classify, whose words have ids below ``vocabulary``
- ``vocabulary``, ``context``: texts of at most ``context`` ids to continue
"""


def names() -> list[str]:
    """The names that :func:`build` knows, sorted."""
    return sorted(MODELS)


def build(
    name: str, data_shape: tuple[int, ...], num_classes: int, vocabulary: int | None = None, masks: int = 1
) -> nn.Module:
    """The model of this name for examples of ``data_shape``.

    Pictures are (channels, height, width), texts (length,). ``masks`` is how many a picture to segment has.
    ``vocabulary`` is the number of ids in texts; it has to be given for models that classify texts, and is
    ``num_classes`` for those that continue them. The weights are drawn from torch's global generator. Raises ValueError
    for an unknown name, or data that the model cannot take.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}{nearest(name, names())}; known are {', '.join(names())}")
    shape, takes = tuple(data_shape), _arguments(name)
    if "shape" in takes:
        require(len(shape) == 3, f"{name} takes pictures (channels, height, width), not examples of shape {shape}")
    if "vocabulary" in takes:
        require(len(shape) == 1, f"{name} takes texts (length,), not examples of shape {shape}")
    if "context" in takes:
        classify = [other for other in names() if {"vocabulary", "classes"} <= _arguments(other)]
        require(
            vocabulary in (None, num_classes),
            f"{name} continues texts, so that its {num_classes} classes should be the {vocabulary} ids; "
            f"to classify texts take {' or '.join(classify)}",
        )
        return MODELS[name](vocabulary=num_classes, context=shape[0])
    if "vocabulary" in takes and vocabulary is None:
        raise ValueError(f"{name} has to know the number of ids in texts: give vocabulary=data.vocabulary")
    known = {"inputs": math.prod(shape), "shape": shape, "vocabulary": vocabulary, "classes": num_classes}
    known["outputs"] = masks
    return MODELS[name](**{argument: value for argument, value in known.items() if argument in takes})


def _arguments(name: str) -> set[str]:
    return set(inspect.signature(MODELS[name]).parameters)
