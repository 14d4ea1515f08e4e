"""Runners: they own loops, means, storage, sampling, transport, time and failure."""

from .ledger import Ledger
from .network import Network
from .privacy import Privacy
from .result import Result
from .setting import Setting
from .simulate import Simulation, simulate

__all__ = ["Ledger", "Network", "Privacy", "Result", "Setting", "Simulation", "simulate"]
