"""Momentum at the server, at the clients, or at both.

A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 4, Section 4.2, whose names these are. alpha and mu_s are
the ``lr`` and ``beta`` of the server's :class:`Momentum`, mu_l is the ``momentum`` of :class:`LocalSGD`.

==============  =====================================================================  ============
FedAvgSM        ``FedAvg(opt=Momentum(1.0, beta=0.9))``                                FedAvg's bytes
FedAvgLM        the local buffers are averaged and sent out again: :class:`FedAvgLM`   twice
FedAvgLMZ       ``FedAvg(LocalSGD(momentum=0.6))``, the buffers begin at zero          FedAvg's bytes
FedAvgSLM       FedAvgLM with the server's momentum                                    twice
FedAvgSLMZ      FedAvgLMZ with the server's momentum                                   FedAvg's bytes
==============  =====================================================================  ============

The thesis writes FedAvgLM-Z and FedAvgSLM-Z. Server momentum is Hsu, Qi, Brown, 2019, arXiv:1909.06335; averaged
local momentum is Yu, Jin, Yang, ICML 2019, arXiv:1905.03817, Algorithm 1.

Differences from the papers: the server's momentum is kept in the units of updates (eta P m in the thesis). So clients
may take different numbers of steps, and a change of the local learning rate does not rescale the momentum of earlier
rounds. Local buffers are averaged with the weights of the replies. Where only some clients take part, the local buffer
that is broadcast is the mean over those who replied (thesis, appendix D.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import CombinationError, require
from ..key import Key
from ..local import Local, LocalSGD, Memory, Trainer
from ..optimizers import SGD, Momentum, Optimizer
from ..params import Params
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start
from .fedavg import FedAvg

THESIS = "A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 4"


@dataclass(frozen=True)
class FedAvgSM(FedAvg):
    """FedAvg with momentum at the server."""

    paper = "Hsu, Qi, Brown, 2019, arXiv:1909.06335"

    opt: Optimizer = Momentum(1.0, beta=0.9)


@dataclass(frozen=True)
class FedAvgLMZ(FedAvg):
    """FedAvg with local momentum that begins at zero every round."""

    paper = THESIS

    local: Trainer = LocalSGD(momentum=0.6)


@dataclass(frozen=True)
class FedAvgSLMZ(FedAvg):
    """FedAvg with momentum at the server, and local momentum that begins at zero every round."""

    paper = THESIS

    local: Trainer = LocalSGD(momentum=0.6)
    opt: Optimizer = Momentum(1.0, beta=0.9)


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    opt: State
    momentum: Params


class Broadcast(NamedTuple):
    """What everyone is sent."""

    x: Params
    momentum: Params  # of the local steps, where they begin


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params
    momentum: Params  # where it ended


@dataclass(frozen=True)
class FedAvgLM(Algorithm):
    """FedAvg whose local momentum goes on from the mean of last round's: twice the bytes, both ways.

    Raises :class:`~thinwire.errors.CombinationError` for a trainer other than :class:`LocalSGD`, and ``ValueError`` for
    ``momentum=0`` or ``keep=True``.
    """

    paper = "Yu, Jin, Yang, ICML 2019, arXiv:1905.03817"

    local: Trainer = LocalSGD(momentum=0.6)
    opt: Optimizer = SGD(1.0)

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.local, LocalSGD):
            raise CombinationError(
                f"{name} averages the momentum of local SGD, and {type(self.local).__name__} has moments instead: use "
                f"LocalSGD(momentum=0.6), or FedAvg({self.local!r})"
            )
        require(self.local.momentum > 0, f"{name} averages local momentum: give it some, LocalSGD(momentum=0.6)")
        require(not self.local.keep, f"{name} begins each round at the server's momentum: leave keep at False")

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        return Start(Server(x, self.opt.init(x), zero), Broadcast(zero, zero), None, Reply(zero, zero))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x, server.momentum)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, self.local, memory=Memory((view.momentum,), 0))
        assert y.momentum is not None
        return Reply(y.x - view.x, y.momentum), state

    def bypass(self, layers: Sequence[str]) -> Algorithm:
        return super().bypass(layers)  # the momentum that is averaged is the clients', of all layers

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, opt = self.opt.step(server.x, mean.update, server.opt)
        return Server(x, opt, mean.momentum)


@dataclass(frozen=True)
class FedAvgSLM(FedAvgLM):
    """FedAvgLM with momentum at the server too."""

    paper = THESIS

    opt: Optimizer = Momentum(1.0, beta=0.9)
