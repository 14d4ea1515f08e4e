"""FedDyn: a regulariser of each client's own, which moves so that all agree on where to stop.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv:2111.04263, Algorithm 1.

Differences from the paper: a client's gradient g_i moves by the update that the server received, not by the update that
the client computed. So h stays the mean of all g_i when a link loses something or a reply is lost. This is exact for
``weights="uniform"``, which is the paper's rule and the default here. With "examples", h follows the weighted mean
when all clients take part, and is near it otherwise. ``mean_examples`` gives each client an alpha of its own. The
paper and the default have one for all. Each reply also carries the number 1, at most 2 bytes:
their sum tells the server how many clients replied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import check, require
from ..key import Key
from ..local import Local, LocalSGD, Trainer
from ..params import Params
from ..ranges import Positive
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start, Sum, Weights
from .fedavg import Broadcast
from .trainers import own_pull


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    h: Params
    num_clients: int


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params
    replies: Sum[int]  # 1


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Clients minimise L_i(y) - <g_i, y> + alpha/2 |y - x|^2; g_i and the server's h follow where they end.

    ``alpha`` near 0 is not FedAvg: the model is the mean of the clients' models less h / alpha.

    ``mean_examples`` is the mean number of examples of all clients. With it the alpha of a client with n examples is
    ``alpha * mean_examples / n``, so the model settles where the mean of all losses weighted by examples is least. A
    client then keeps g_i times n / ``mean_examples``, of which h is the mean. None: every client has ``alpha``.

    Raises ``ValueError`` for an ``alpha`` or ``mean_examples`` that is not positive, and for a ``local`` with a
    ``prox`` of its own.
    """

    paper = "Acar et al., ICLR 2021, arXiv:2111.04263"
    remembers = "h, the mean of the gradients that clients remember of every update they sent"

    local: Trainer = LocalSGD()
    alpha: Positive = 0.1
    mean_examples: float | None = None
    weights: Weights = field(default="uniform", kw_only=True)

    def __post_init__(self) -> None:
        own_pull(self, "alpha")
        positive(self, self.mean_examples)

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        return Start(Server(x, zero, num_clients), Broadcast(zero), zero, Reply(zero, 0))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        by = scale(self.mean_examples, len(task))
        y = yield Local(view.x, replace(self.local, prox=self.alpha * by), offset=-state * by)  # eq. (1)
        return Reply(y.x - view.x, 1), state

    def sent(self, state: State, seen: Message) -> State:
        return state - seen.update * self.alpha  # g_i / by; g_i is the gradient of L_i where the client ended

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        check(reply.replies == 1, "one reply")
        return reply

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        h = server.h - mean.update * (self.alpha * mean.replies / server.num_clients)
        return Server(server.x + mean.update - h / self.alpha, h, server.num_clients)


def scale(mean_examples: float | None, examples: int) -> float:
    """What alpha is multiplied by for a client with so many examples."""
    return 1.0 if mean_examples is None else mean_examples / examples


def positive(method: Algorithm, mean_examples: float | None) -> None:
    """Raise ``ValueError`` for a mean number of examples that is none."""
    said = f"{type(method).__name__}(mean_examples={mean_examples}): a mean number of examples is positive"
    require(mean_examples is None or 0 < mean_examples < math.inf, said)
