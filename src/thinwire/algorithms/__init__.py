"""Federated methods, one file a paper."""

from .base import Algorithm, Each, Start, Sum
from .clustered_lbgm import ClusteredLBGM
from .fedavg import FedAvg
from .fetchsgd import FetchSGD
from .flss import FLSS
from .intrinsic import Intrinsic
from .luar import LUAR
from .scaffold import SCAFFOLD

__all__ = [
    "FLSS",
    "LUAR",
    "SCAFFOLD",
    "Algorithm",
    "ClusteredLBGM",
    "Each",
    "FedAvg",
    "FetchSGD",
    "Intrinsic",
    "Start",
    "Sum",
]
