"""SCAFFOLD: control variates against the drift of clients with different data.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, arXiv:1910.06378, Algorithm 1.

Differences from the paper: a client's control c_i moves by the change that the server received, not by the change that
the client computed. So the server's c stays the mean of all c_i when a link loses something. The mean update is
weighted as ``weights`` says, by examples unless told otherwise; the paper averages uniformly. Changes of controls are
summed without weights and divided by the number of all clients, as in the paper. The server's rate eta_g is the ``lr``
of ``opt``. Option I takes the gradient of all of a client's examples in one pass, which leaves the statistics of norm
layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..key import Key
from ..local import Local, LocalSGD, Trainer, look
from ..optimizers import SGD, Optimizer
from ..params import Params
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start, Sum
from .trainers import plain_steps


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    opt: State
    c: Params
    num_clients: int


class Broadcast(NamedTuple):
    """What everyone is sent."""

    x: Params
    c: Params


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params
    control: Sum[Params]  # c_i+ - c_i


@dataclass(frozen=True)
class SCAFFOLD(Algorithm):
    """Correct every local step by the difference between everyone's and one's own control.

    A client's new control is the mean gradient on its way (``option="II"``), or the gradient
    of all its data at the server's model ("I": one more pass, of all examples at once). Model and
    control travel in both directions: twice FedAvg's bytes.

    Raises :class:`~thinwire.errors.CombinationError` for option II with local momentum or a trainer
    other than :class:`LocalSGD`: the way of such a client does not give its mean gradient.
    """

    paper = "Karimireddy et al., ICML 2020, arXiv:1910.06378"

    late = True

    local: Trainer = LocalSGD()
    opt: Optimizer = SGD(1.0)
    option: Literal["I", "II"] = "II"

    def __post_init__(self) -> None:
        if self.option == "II":
            plain_steps(self, ", or option='I'")

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        server = Server(x, self.opt.init(x), zero, num_clients)
        return Start(server, Broadcast(zero, zero), zero, Reply(zero, zero))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x, server.c)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x, c, c_i = view.x, view.c, state
        if self.option == "I":
            seen = yield look(x, self.local)
            y = yield Local(x, self.local, offset=c - c_i)
            return Reply(y.x - x, seen.gradient - c_i), c_i  # line 12, option I
        y = yield Local(x, self.local, offset=c - c_i)  # line 10
        if y.rates == 0:  # a schedule's last round: the client went nowhere and learned nothing
            return Reply(y.x - x, c_i.zeros()), c_i
        control = (x - y.x) / y.rates - c  # line 12, option II, less c_i
        return Reply(y.x - x, control), c_i

    def sent(self, state: State, seen: Message) -> State:
        return state + seen.control

    def bypass(self, layers: Sequence[str]) -> Algorithm:
        return super().bypass(layers)  # c is the clients' mean, of all layers, and no momentum of the server's

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, opt = self.opt.step(server.x, mean.update, server.opt)  # line 16
        c = server.c + mean.control / server.num_clients  # line 17
        return Server(x, opt, c, server.num_clients)
