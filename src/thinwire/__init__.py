"""Federated, data-parallel and pipelined training over thin networks.

What crosses the network is small, known to the byte, and safe to lose::

    import thinwire as tw

    result = tw.simulate(tw.FedAvg(up=tw.LBGM(threshold=0.4)), model, tasks, rounds=50, sample=10, test=test)
    print(result.accuracy, result.bytes_up, result.bytes_down)
"""

from . import errors, wire
from .algorithms import (
    DOMO,
    FLSS,
    LUAR,
    SCAFFOLD,
    Algorithm,
    Each,
    FedAvg,
    FedAvgLM,
    FedAvgLMZ,
    FedAvgSLM,
    FedAvgSLMZ,
    FedAvgSM,
    FedPara,
    Intrinsic,
    PruneFL,
    Start,
    Sum,
)
from .config import complete
from .expression import parse
from .key import Key
from .ledger import Ledger
from .links import (
    BF16,
    EF21,
    LBGM,
    Codec,
    Dense,
    ErrorFeedback,
    Flat,
    Half,
    Layerwise,
    Link,
    Partition,
    Projection,
    RandK,
    ScaledSign,
    Sparse,
    TopK,
)
from .local import Local, LocalSGD, Trained
from .network import Network
from .optimizers import SGD, Adagrad, Adam, Momentum, Optimizer, Yogi
from .params import Layout, Params
from .run import Result, Simulation, simulate
from .schedules import Cosine, Decay, Exponential, Schedule, Triangle, Warmup
from .subspace import Basis, Fastfood, Gaussian
from .task import Supervised, Task
from .version import code_version
from .wire import dumps, loads, restore

__version__ = code_version().partition("+")[0]

__all__ = [
    "BF16",
    "DOMO",
    "EF21",
    "FLSS",
    "LBGM",
    "LUAR",
    "SCAFFOLD",
    "SGD",
    "Adagrad",
    "Adam",
    "Algorithm",
    "Basis",
    "Codec",
    "Cosine",
    "Decay",
    "Dense",
    "Each",
    "ErrorFeedback",
    "Exponential",
    "Fastfood",
    "FedAvg",
    "FedAvgLM",
    "FedAvgLMZ",
    "FedAvgSLM",
    "FedAvgSLMZ",
    "FedAvgSM",
    "FedPara",
    "Flat",
    "Gaussian",
    "Half",
    "Intrinsic",
    "Key",
    "Layerwise",
    "Layout",
    "Ledger",
    "Link",
    "Local",
    "LocalSGD",
    "Momentum",
    "Network",
    "Optimizer",
    "Params",
    "Partition",
    "Projection",
    "PruneFL",
    "RandK",
    "Result",
    "ScaledSign",
    "Schedule",
    "Simulation",
    "Sparse",
    "Start",
    "Sum",
    "Supervised",
    "Task",
    "TopK",
    "Trained",
    "Triangle",
    "Warmup",
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
