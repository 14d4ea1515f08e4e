"""Federated methods, one file a paper; among them those that give each client a model of its own."""

from .apfl import APFL
from .auto import Auto
from .averaged import Averaged
from .base import Algorithm, Each, Start, Sum
from .clustered_lbgm import ClusteredLBGM
from .decomfl import DeComFL
from .detached import Detached
from .ditto import Ditto
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
from .fedsm import FedSM
from .fedsm_extra import Ensemble, FedSMExtra
from .fetchsgd import FetchSGD
from .flss import FLSS
from .ft import FT
from .intrinsic import Intrinsic
from .luar import LUAR
from .momentum import FedAvgLM, FedAvgLMZ, FedAvgSLM, FedAvgSLMZ, FedAvgSM
from .moon import MOON
from .perfedavg import PerFedAvg
from .pfedme import pFedMe
from .prunefl import PruneFL
from .scaffold import SCAFFOLD
from .softpull import SoftPull
from .staying import FedBN, FedPer, FedRep

__all__ = [
    "APFL",
    "DOMO",
    "FLSS",
    "FT",
    "LUAR",
    "MOON",
    "SCAFFOLD",
    "Algorithm",
    "Auto",
    "Averaged",
    "ClusteredLBGM",
    "DeComFL",
    "Detached",
    "Ditto",
    "Each",
    "Ensemble",
    "FedACG",
    "FedAvg",
    "FedAvgLM",
    "FedAvgLMZ",
    "FedAvgSLM",
    "FedAvgSLMZ",
    "FedAvgSM",
    "FedBN",
    "FedDC",
    "FedDyn",
    "FedGen",
    "FedMut",
    "FedNTD",
    "FedPM",
    "FedPara",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSM",
    "FedSMExtra",
    "FetchSGD",
    "Intrinsic",
    "PerFedAvg",
    "PruneFL",
    "SoftPull",
    "Start",
    "Sum",
    "pFedMe",
]
