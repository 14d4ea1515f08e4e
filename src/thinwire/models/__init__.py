"""The networks of the papers, and the small ones to try things on.

Each function takes plain numbers and returns a module, initialised from torch's global
generator: seed it before the call.
"""

from __future__ import annotations

from .build import build, names
from .cnn import fedavg_cnn, lbgm_cnn
from .dense import linear, mlp
from .fasttext import fasttext
from .resnet import resnet20, resnet56
from .resnet9 import resnet9
from .transformer import char_transformer
from .unet import unet
from .vgg import vgg16, vgg_small

__all__ = [
    "build",
    "char_transformer",
    "fasttext",
    "fedavg_cnn",
    "lbgm_cnn",
    "linear",
    "mlp",
    "names",
    "resnet9",
    "resnet20",
    "resnet56",
    "unet",
    "vgg16",
    "vgg_small",
]
