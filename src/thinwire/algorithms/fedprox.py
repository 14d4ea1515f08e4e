"""FedProx: local training is pulled back towards the model it started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, arXiv:1812.06127, Algorithm 2.

Differences from the paper: clients are sampled uniformly and averaged by ``weights`` (the paper
samples them by size and averages them alike); how inexactly each solves its problem is what
``local`` says. ``FedAvg(LocalSGD(prox=0.01))`` is the same run, bit for bit, without the name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import require
from ..key import Key
from ..local import Local
from ..task import Task
from ..wire import State
from .base import Client, own_pull
from .fedavg import FedAvg, Reply


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients minimise their loss + mu/2 |y - x|^2."""

    paper = "Li et al., MLSys 2020, arXiv:1812.06127"

    mu: float = 0.01

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, f"FedProx(mu={self.mu}): mu must not be negative")
        own_pull(self, self.local, "mu")

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, replace(self.local, prox=self.mu))  # eq. (2)
        return Reply(update=y.x - view.x), state
