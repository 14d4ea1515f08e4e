"""Federated methods that give each client a model of its own, one file a paper."""

from .apfl import APFL
from .ditto import Ditto
from .fedsm import Ensemble, FedSM, FedSMExtra
from .ft import FT
from .perfedavg import PerFedAvg
from .pfedme import pFedMe
from .softpull import SoftPull
from .staying import FedBN, FedPer, FedRep

__all__ = [
    "APFL",
    "FT",
    "Ditto",
    "Ensemble",
    "FedBN",
    "FedPer",
    "FedRep",
    "FedSM",
    "FedSMExtra",
    "PerFedAvg",
    "SoftPull",
    "pFedMe",
]
