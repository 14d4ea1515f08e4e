"""The networks of the papers, and the small ones to try things on.

Each function takes plain numbers and returns a module, initialised from torch's global
generator: seed it before the call.
"""

from __future__ import annotations

from thinwire.models.build import build, names
from thinwire.models.cnn import fedavg_cnn, lbgm_cnn
from thinwire.models.dense import linear, mlp
from thinwire.models.resnet import resnet20
from thinwire.models.transformer import char_transformer

__all__ = ["build", "char_transformer", "fedavg_cnn", "lbgm_cnn", "linear", "mlp", "names", "resnet20"]
