"""Federated methods, one file a paper."""

from .auto import Auto
from .averaged import Averaged
from .base import Algorithm, Each, Start, Sum
from .clustered_lbgm import ClusteredLBGM
from .decomfl import DeComFL
from .domo import DOMO
from .fedacg import FedACG
from .fedavg import FedAvg
from .feddc import FedDC
from .feddyn import FedDyn
from .fedgen import FedGen
from .fedmut import FedMut
from .fedntd import FedNTD
from .fedpara import FedPara
from .fedpm import FedPM
from .fedprox import FedProx
from .fetchsgd import FetchSGD
from .flss import FLSS
from .intrinsic import Intrinsic
from .luar import LUAR
from .momentum import FedAvgLM, FedAvgLMZ, FedAvgSLM, FedAvgSLMZ, FedAvgSM
from .moon import MOON
from .prunefl import PruneFL
from .scaffold import SCAFFOLD

__all__ = [
    "DOMO",
    "FLSS",
    "LUAR",
    "MOON",
    "SCAFFOLD",
    "Algorithm",
    "Auto",
    "Averaged",
    "ClusteredLBGM",
    "DeComFL",
    "Each",
    "FedACG",
    "FedAvg",
    "FedAvgLM",
    "FedAvgLMZ",
    "FedAvgSLM",
    "FedAvgSLMZ",
    "FedAvgSM",
    "FedDC",
    "FedDyn",
    "FedGen",
    "FedMut",
    "FedNTD",
    "FedPM",
    "FedPara",
    "FedProx",
    "FetchSGD",
    "Intrinsic",
    "PruneFL",
    "Start",
    "Sum",
]
