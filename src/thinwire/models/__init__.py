"""The networks of the papers, and the small ones to try things on.

Each function takes plain numbers and returns a module, initialised from torch's global
generator: seed it before the call.
"""

from __future__ import annotations

from .build import build, names
from .cnn import fedavg_cnn, lbgm_cnn
from .dense import linear, mlp
from .resnet import resnet20
from .transformer import char_transformer

__all__ = ["build", "char_transformer", "fedavg_cnn", "lbgm_cnn", "linear", "mlp", "names", "resnet20"]
