"""FedProx: local training is pulled back towards the model it started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, arXiv:1812.06127, Algorithm 2.

Differences from the paper: clients are sampled uniformly, and their updates are averaged by ``weights``. The paper
samples clients by size and averages them alike. How exactly a client solves its local problem is set by ``local``
(epochs or steps); the paper measures it as an inexactness gamma. ``FedAvg(LocalSGD(prox=0.01))`` is the same run, bit
for bit, under another name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..key import Key
from ..local import Local
from ..ranges import NonNegative
from ..task import Task
from ..wire import State
from .base import Client
from .fedavg import FedAvg, Reply
from .trainers import own_pull


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose clients minimise their loss + mu/2 |y - x|^2.

    ``mu`` = 0 is FedAvg. The bytes are FedAvg's. Raises ``ValueError`` for a negative ``mu``, and for a ``local`` with
    a ``prox`` of its own.
    """

    paper = "Li et al., MLSys 2020, arXiv:1812.06127"

    mu: NonNegative = 0.01

    def __post_init__(self) -> None:
        own_pull(self, "mu")

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, replace(self.local, prox=self.mu))  # eq. (2)
        return Reply(update=y.x - view.x), state
