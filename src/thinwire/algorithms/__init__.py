"""Federated methods, one file a paper."""

from .base import Algorithm, Each, Start, Sum
from .fedavg import FedAvg
from .luar import LUAR
from .scaffold import SCAFFOLD

__all__ = ["LUAR", "SCAFFOLD", "Algorithm", "Each", "FedAvg", "Start", "Sum"]
