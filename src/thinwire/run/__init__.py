"""Runners: they own loops, means, storage, sampling, transport, time and failure."""

from .result import Result
from .simulate import Simulation, simulate

__all__ = ["Result", "Simulation", "simulate"]
