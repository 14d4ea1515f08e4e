"""Federated methods, one file a paper."""

from .base import Algorithm, Each, Start, Sum
from .domo import DOMO
from .fedavg import FedAvg
from .fedpara import FedPara
from .flss import FLSS
from .intrinsic import Intrinsic
from .luar import LUAR
from .momentum import FedAvgLM, FedAvgLMZ, FedAvgSLM, FedAvgSLMZ, FedAvgSM
from .prunefl import PruneFL
from .scaffold import SCAFFOLD

__all__ = [
    "DOMO",
    "FLSS",
    "LUAR",
    "SCAFFOLD",
    "Algorithm",
    "Each",
    "FedAvg",
    "FedAvgLM",
    "FedAvgLMZ",
    "FedAvgSLM",
    "FedAvgSLMZ",
    "FedAvgSM",
    "FedPara",
    "Intrinsic",
    "PruneFL",
    "Start",
    "Sum",
]
