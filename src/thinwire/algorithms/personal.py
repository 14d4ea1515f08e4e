"""What methods share whose clients keep their own model: one model that all share, averaged as FedAvg's is.

A client's own model lies in its state (``own`` of :meth:`~thinwire.algorithms.base.Algorithm.model`), or is made of the
shared one when it is asked for (:meth:`~thinwire.algorithms.base.Algorithm.adapt`). It is never sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..key import Key
from ..local import LocalSGD, Trainer
from ..optimizers import SGD, Optimizer
from ..params import Params
from ..wire import State
from .base import Algorithm, Message, Start
from .fedavg import Broadcast, Reply, Server


@dataclass(frozen=True)
class Personal(Algorithm):
    """FedAvg's server and messages. A subclass writes the client, and where a client's own model is."""

    late = True
    personal_models = True

    local: Trainer = LocalSGD()
    opt: Optimizer = SGD(1.0)

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return Start(Server(x, self.opt.init(x)), Broadcast(x.zeros()), self.begin(x), Reply(x.zeros()))

    def begin(self, x: Params) -> State:
        """What a client keeps before its first round."""
        return None

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x)

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, opt = self.opt.step(server.x, mean.update, server.opt)
        return Server(x, opt)


@dataclass(frozen=True)
class Beside(Personal):
    """A client keeps its own model, with norm statistics of its own, and nothing else."""

    def begin(self, x: Params) -> State:
        return x

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        x: Params = server.x if client is None else own
        return x

    def own_statistics(self, own: State) -> bool:
        return True
