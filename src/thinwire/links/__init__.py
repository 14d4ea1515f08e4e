"""One direction of one wire: codecs (no memory), and links that hold links."""

from ..kernels.select import top_k
from .atomo import ATOMO
from .base import Codec, Link
from .dense import BF16, Dense, Half
from .feedback import EF21, ErrorFeedback
from .lbgm import LBGM
from .lowrank import LowRank
from .powersgd import PowerSGD
from .projection import Projection
from .sign import ScaledSign
from .sketch import CountSketch
from .sparse import RandK, Sparse, TopK
from .wrappers import Flat, Layerwise, Partition

__all__ = [
    "ATOMO",
    "BF16",
    "EF21",
    "LBGM",
    "Codec",
    "CountSketch",
    "Dense",
    "ErrorFeedback",
    "Flat",
    "Half",
    "Layerwise",
    "Link",
    "LowRank",
    "Partition",
    "PowerSGD",
    "Projection",
    "RandK",
    "ScaledSign",
    "Sparse",
    "TopK",
    "top_k",
]
