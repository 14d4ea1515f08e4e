"""Data sets as tensors, and the ways to deal them to clients.

data = load("fashion_mnist")
parts = Dirichlet(alpha=0.1)(data.targets, data.groups, num_clients=100, seed=1)
train, test = holdout(parts[0], share=0.2, seed=1)
"""

from __future__ import annotations

from .augment import Augment, Crop, Flip, Rotate90
from .dataset import DataSet
from .feature_shift import feature_shifted
from .sets import load, names
from .splits import IID, Dirichlet, Natural, Pathological, Shards, Similarity, Split, holdout
from .suites import Sites, Users

__all__ = [
    "IID",
    "Augment",
    "Crop",
    "DataSet",
    "Dirichlet",
    "Flip",
    "Natural",
    "Pathological",
    "Rotate90",
    "Shards",
    "Similarity",
    "Sites",
    "Split",
    "Users",
    "feature_shifted",
    "holdout",
    "load",
    "names",
]
