"""One direction of one wire: codecs (no memory), and links that hold links."""

from .base import Codec, Link
from .budget import Budget
from .dense import BF16, Dense, Half
from .feedback import EF21, ErrorFeedback
from .lbgm import LBGM
from .projection import Projection
from .sign import ScaledSign
from .sparse import RandK, Sparse, TopK, top_k
from .wrappers import Flat, Layerwise, Partition

__all__ = [
    "BF16",
    "EF21",
    "LBGM",
    "Budget",
    "Codec",
    "Dense",
    "ErrorFeedback",
    "Flat",
    "Half",
    "Layerwise",
    "Link",
    "Partition",
    "Projection",
    "RandK",
    "ScaledSign",
    "Sparse",
    "TopK",
    "top_k",
]
