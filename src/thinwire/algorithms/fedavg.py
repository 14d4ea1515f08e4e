"""FedAvg and what a choice of server optimiser or local training makes of it.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, arXiv:1602.05629, Algorithm 1.

===================  ================================================================================
FedAvg               ``FedAvg()``
FedProx              ``FedProx(mu=0.01)``, in a file of its own
FedAvgM              ``FedAvg(opt=Momentum(1.0, beta=0.9))``, or :class:`FedAvgSM`
FedAdam / FedYogi    ``FedAvg(opt=Adam(0.03))`` / ``FedAvg(opt=Yogi(0.03))``
FedAdagrad           ``FedAvg(opt=Adagrad(0.03))``
compressed uplink    ``FedAvg(up=ErrorFeedback(TopK(0.01)))``
FedPAQ               ``FedAvg(up=QSGD(16))``
STC                  ``FedAvg(up=ErrorFeedback(STC(0.01)), down=EF21(STC(0.01)))``
FedDropoutAvg        ``FedAvg(up=DropoutAvg(0.5))`` and the runner's ``dropout``
DiLoCo               ``FedAvg(LocalAdamW(steps=500, keep=True), opt=Nesterov(0.7), weights="uniform")``
majority vote        ``FedAvg(up=SignSGD(), opt=MajorityVote(0.001), weights="uniform")``
===================  ================================================================================

Differences from the paper: clients send the change of the model, not the model, so that
links can compress it; weights are normalised over those who replied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..key import Key
from ..local import Local, LocalSGD, Trainer
from ..optimizers import SGD, Optimizer
from ..params import Params
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    opt: State


class Broadcast(NamedTuple):
    """What everyone is sent."""

    x: Params


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Average the changes that clients make by local training; step along the mean."""

    paper = "McMahan et al., AISTATS 2017, arXiv:1602.05629"

    late = True

    local: Trainer = LocalSGD()
    opt: Optimizer = SGD(1.0)

    @property
    def on_fedavg(self) -> bool:  # type: ignore[override]  # of classes made of this one, where they change nothing
        return type(self).client is FedAvg.client and type(self).server is FedAvg.server

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return Start(Server(x, self.opt.init(x)), Broadcast(x.zeros()), None, Reply(x.zeros()))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, self.local)
        return Reply(update=y.x - view.x), state

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, opt = self.opt.step(server.x, mean.update, server.opt)
        return Server(x, opt)
