"""Federated methods, one file a paper."""

from .base import Algorithm, Each, Start, Sum
from .clustered_lbgm import ClusteredLBGM
from .fedacg import FedACG
from .fedavg import FedAvg
from .feddc import FedDC
from .feddyn import FedDyn
from .fedgen import FedGen
from .fedmut import FedMut
from .fedntd import FedNTD
from .fedprox import FedProx
from .fetchsgd import FetchSGD
from .flss import FLSS
from .intrinsic import Intrinsic
from .luar import LUAR
from .moon import MOON
from .scaffold import SCAFFOLD

__all__ = [
    "FLSS",
    "LUAR",
    "MOON",
    "SCAFFOLD",
    "Algorithm",
    "ClusteredLBGM",
    "Each",
    "FedACG",
    "FedAvg",
    "FedDC",
    "FedDyn",
    "FedGen",
    "FedMut",
    "FedNTD",
    "FedProx",
    "FetchSGD",
    "Intrinsic",
    "Start",
    "Sum",
]
