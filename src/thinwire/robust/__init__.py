"""Federations with hostile clients: rules that bear them in place of the mean, and attacks to try these by."""

from .attack import Attack
from .base import Aggregator, Mean
from .bulyan import Bulyan
from .colluding import ALIE, IPM
from .coordinates import Median, TrimmedMean
from .geometric import GeometricMedian
from .krum import Krum, MultiKrum
from .labels import LabelFlip
from .own import GaussianNoise, SignFlip
from .remembering import ResidualFlip, RhoFlip
from .shorten import CenteredClip, NormClip

__all__ = [
    "ALIE",
    "IPM",
    "Aggregator",
    "Attack",
    "Bulyan",
    "CenteredClip",
    "GaussianNoise",
    "GeometricMedian",
    "Krum",
    "LabelFlip",
    "Mean",
    "Median",
    "MultiKrum",
    "NormClip",
    "ResidualFlip",
    "RhoFlip",
    "SignFlip",
    "TrimmedMean",
]
