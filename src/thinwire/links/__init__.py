"""One direction of one wire: codecs (no memory), and links that hold links. docs/measured/links.md has their cost."""

from ..kernels.select import top_k
from .atomo import ATOMO
from .bandwidth import ByBandwidth
from .base import Codec, Link, Wrapper
from .bins import Bins
from .block import RandomBlock
from .budget import Budget
from .chunk import ChunkTopK
from .dct import DCT
from .dense import BF16, Dense, Half
from .dropout import DropoutAvg
from .entropy import Entropy, entropy_bound
from .feedback import EF21, ErrorFeedback
from .lbgm import LBGM
from .lowrank import LowRank
from .perclient import PerClient
from .powersgd import PowerSGD
from .projection import Projection
from .quantize import QSGD, Int8, Ternary
from .secure import SecureSum
from .sign import ScaledSign, SignSGD
from .sketch import CountSketch
from .sparse import RandK, Sparse, TopK
from .stc import STC
from .subspace import Basis, Fastfood, Gaussian, PerTensor
from .switch import Switch
from .transform import TransformCoding
from .wrappers import Flat, Layerwise, Partition

__all__ = [
    "ATOMO",
    "BF16",
    "DCT",
    "EF21",
    "LBGM",
    "QSGD",
    "STC",
    "Basis",
    "Bins",
    "Budget",
    "ByBandwidth",
    "ChunkTopK",
    "Codec",
    "CountSketch",
    "Dense",
    "DropoutAvg",
    "Entropy",
    "ErrorFeedback",
    "Fastfood",
    "Flat",
    "Gaussian",
    "Half",
    "Int8",
    "Layerwise",
    "Link",
    "LowRank",
    "Partition",
    "PerClient",
    "PerTensor",
    "PowerSGD",
    "Projection",
    "RandK",
    "RandomBlock",
    "ScaledSign",
    "SecureSum",
    "SignSGD",
    "Sparse",
    "Switch",
    "Ternary",
    "TopK",
    "TransformCoding",
    "Wrapper",
    "entropy_bound",
    "top_k",
]
