"""DOMO: the server's momentum is put into local training before, or along with, the local one.

A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 4, Algorithm 4, Options I (DOMO) and II (DOMO-S).

alpha and mu_s are the ``lr`` and ``beta`` of ``opt``, mu_l is the ``momentum`` of ``local``, beta the fusion. With
beta = 0 it is FedAvgSLMZ.

Differences from the thesis: m is kept in the units of updates and points downhill, M = -eta P m. Line 7 is then
x + beta M, line 10 adds beta M / P after each of a client's own P steps, line 12 sends the whole change of the model
less what was fused, and lines 14 and 15 are ``Momentum``. Nothing is divided by eta or P, so clients may take
different numbers of steps, and M = (x_r - x_{r-1}) / alpha (line 5) is right when eta or P have changed. The thesis
would fuse eta m with the new eta; after a decay of the learning rate, M here is larger than that for a few rounds. A
client that skipped rounds cannot infer M from two consecutive models. It is sent what it missed, or the model and M,
whichever is fewer bytes, and is billed for it. A round without replies moves nothing. Clients recognise it by the
number of rounds done, which travels with the model. Where only some clients take part, the mean is over those who
replied (appendix D.3). The mean is weighted as ``weights`` says; the thesis weighs clients alike, which is
``weights="uniform"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import CombinationError
from ..key import Key
from ..links import Dense, Sparse
from ..local import Local, LocalSGD, Trainer
from ..optimizers import Momentum
from ..params import Params
from ..ranges import Fraction
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start, link_of
from .fedavg import Reply


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    momentum: Params  # M
    round: int  # rounds done


class Broadcast(NamedTuple):
    """What everyone is sent where M is inferred."""

    x: Params
    round: int


class View(NamedTuple):
    """What a client holds, and what everyone is sent where M is sent."""

    x: Params
    momentum: Params
    round: int


@dataclass(frozen=True)
class DOMO(Algorithm):
    """Local momentum SGD from where the server's momentum would carry the model.

    With ``intra`` it is DOMO-S, which goes there step by step. ``beta`` is the share of the server's momentum that is
    fused. ``momentum="inferred"`` infers the server's momentum from two consecutive models; while all clients take
    part, this costs no more than FedAvg. "sent" sends the momentum as a second model down. Any trainer fits as
    ``local``, because what is fused is in the units of updates.

    Raises ``ValueError`` for a ``beta`` outside [0, 1], and :class:`~thinwire.errors.CombinationError` for an inferred
    momentum over a ``down`` that loses something.
    """

    paper = "A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 4"

    beta: Fraction = 0.9
    local: Trainer = LocalSGD(momentum=0.6)
    opt: Momentum = Momentum(1.0, beta=0.9)
    intra: bool = False
    momentum: Literal["inferred", "sent"] = "inferred"

    def __post_init__(self) -> None:
        down = link_of(self.down, "x")
        if self.momentum == "inferred" and down not in (Dense(), Sparse()):
            raise CombinationError(
                f"DOMO(down={down!r}): the difference of two models that lost something on the way is not the server's "
                f"momentum; take momentum='sent', or a downlink that loses nothing"
            )

    @property
    def whole(self) -> bool:
        return self.momentum == "sent"

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        return Start(Server(x, zero, 0), View(zero, zero, 0), None, Reply(zero))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x, server.round) if self.momentum == "inferred" else View(*server)

    def see(self, view: State, msg: Message, key: Key) -> State:
        if self.momentum == "sent":
            return msg
        if msg.round == 0:
            return View(msg.x, msg.x.zeros(), 0)
        if msg.round == view.round:  # nobody answered: the model is the same, and so is the momentum
            return view
        momentum = (msg.x - view.x) / self.opt.rate  # line 5
        if self.opt.past:  # these layers' step was no momentum, which is as it was
            momentum = momentum.replace(view.momentum.only(self.opt.past))
        return View(msg.x, momentum, msg.round)

    def supersedes(self, older: Message, newer: Message) -> bool:
        return self.momentum == "sent"

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x, fused = view.x, view.momentum * self.beta
        if self.intra:
            y = yield Local(x, self.local, shift=fused)  # line 10
            return Reply(y.x - x - fused), state  # line 12
        x = x + fused  # line 7
        y = yield Local(x, self.local)
        return Reply(y.x - x), state  # line 12

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, momentum = self.opt.step(server.x, mean.update, server.momentum)  # lines 14 and 15
        return Server(x, momentum, server.round + 1)
