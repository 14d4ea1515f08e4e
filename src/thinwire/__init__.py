"""Federated, data-parallel and pipelined training over thin networks.

What crosses the network is small, known to the byte, and safe to lose::

    import thinwire as tw

    result = tw.simulate(tw.FedAvg(up=tw.LBGM(threshold=0.4)), model, tasks, rounds=50, sample=10, test=test)
    print(result.accuracy, result.bytes_up, result.bytes_down)
"""

from . import errors, wire
from .algorithms import (
    FLSS,
    LUAR,
    MOON,
    SCAFFOLD,
    Algorithm,
    ClusteredLBGM,
    Each,
    FedACG,
    FedAvg,
    FedDC,
    FedDyn,
    FedGen,
    FedMut,
    FedNTD,
    FedProx,
    FetchSGD,
    Intrinsic,
    Start,
    Sum,
)
from .config import complete
from .expression import parse
from .key import Key
from .ledger import Ledger
from .links import (
    ATOMO,
    BF16,
    EF21,
    LBGM,
    QSGD,
    STC,
    Budget,
    Codec,
    CountSketch,
    Dense,
    DropoutAvg,
    Entropy,
    ErrorFeedback,
    Flat,
    Half,
    Int8,
    Layerwise,
    Link,
    LowRank,
    Partition,
    PowerSGD,
    Projection,
    RandK,
    RandomBlock,
    ScaledSign,
    SignSGD,
    Sparse,
    Ternary,
    TopK,
)
from .local import Local, LocalSGD, Trained
from .network import Network
from .optimizers import SGD, Adagrad, Adam, MajorityVote, Momentum, Optimizer, Yogi
from .params import Layout, Params
from .run import Result, Simulation, simulate
from .schedules import Cosine, Decay, Exponential, Schedule, Triangle
from .subspace import Basis, Fastfood, Gaussian
from .task import Supervised, Task
from .version import code_version
from .wire import dumps, loads, restore

__version__ = code_version().partition("+")[0]

__all__ = [
    "ATOMO",
    "BF16",
    "EF21",
    "FLSS",
    "LBGM",
    "LUAR",
    "MOON",
    "QSGD",
    "SCAFFOLD",
    "SGD",
    "STC",
    "Adagrad",
    "Adam",
    "Algorithm",
    "Basis",
    "Budget",
    "ClusteredLBGM",
    "Codec",
    "Cosine",
    "CountSketch",
    "Decay",
    "Dense",
    "DropoutAvg",
    "Each",
    "Entropy",
    "ErrorFeedback",
    "Exponential",
    "Fastfood",
    "FedACG",
    "FedAvg",
    "FedDC",
    "FedDyn",
    "FedGen",
    "FedMut",
    "FedNTD",
    "FedProx",
    "FetchSGD",
    "Flat",
    "Gaussian",
    "Half",
    "Int8",
    "Intrinsic",
    "Key",
    "Layerwise",
    "Layout",
    "Ledger",
    "Link",
    "Local",
    "LocalSGD",
    "LowRank",
    "MajorityVote",
    "Momentum",
    "Network",
    "Optimizer",
    "Params",
    "Partition",
    "PowerSGD",
    "Projection",
    "RandK",
    "RandomBlock",
    "Result",
    "ScaledSign",
    "Schedule",
    "SignSGD",
    "Simulation",
    "Sparse",
    "Start",
    "Sum",
    "Supervised",
    "Task",
    "Ternary",
    "TopK",
    "Trained",
    "Triangle",
    "Yogi",
    "complete",
    "dumps",
    "errors",
    "loads",
    "parse",
    "restore",
    "simulate",
    "wire",
]
