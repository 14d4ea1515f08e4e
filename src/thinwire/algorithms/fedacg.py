"""FedACG: clients start where the server's momentum is about to carry the model.

Kim, Kim, Han, "Communication-Efficient Federated Learning with Accelerated Client Gradient",
CVPR 2024, arXiv:2201.03172, Algorithm 1.

Differences from the paper: none in the steps. The mean is weighted as ``weights`` says, by examples unless told
otherwise. The model that is evaluated is theta, not the lookahead. One model travels in each direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from ..key import Key
from ..local import Local, LocalSGD, Trainer
from ..optimizers import Momentum, Optimizer
from ..params import Params
from ..ranges import Decay, NonNegative
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start
from .fedavg import Broadcast, Reply
from .trainers import own_pull


class Server(NamedTuple):
    """What the server keeps."""

    x: Params  # theta
    m: Params


@dataclass(frozen=True)
class FedACG(Algorithm):
    """Broadcast x + momentum * m; clients stay near it (beta/2 |y - lookahead|^2); m follows the mean update.

    ``momentum`` is the paper's lambda. Raises ``ValueError`` for a ``momentum`` outside [0, 1), for a negative
    ``beta``, and for a ``local`` with a ``prox`` of its own.
    """

    paper = "Kim, Kim, Han, CVPR 2024, arXiv:2201.03172"

    local: Trainer = LocalSGD()
    momentum: Decay = 0.85
    beta: NonNegative = 0.01

    opt: ClassVar[Optimizer]  # the server's step is FedAvgM's: each object has that of its momentum

    def __post_init__(self) -> None:
        own_pull(self, "beta")
        object.__setattr__(self, "opt", Momentum(1.0, beta=self.momentum))

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return Start(Server(x, self.opt.init(x)), Broadcast(x.zeros()), None, Reply(x.zeros()))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x + server.m * self.momentum)  # the lookahead

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, replace(self.local, prox=self.beta))
        return Reply(update=y.x - view.x), state

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        return Server(*self.opt.step(server.x, mean.update, server.m))
