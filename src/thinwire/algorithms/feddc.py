"""FedDC: every client learns how far its own model drifts, and sends a corrected one.

Gao, Fu, Li, Chen, Xu, Xu, "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling
and Correction", CVPR 2022, arXiv:2203.11751, Algorithm 1.

Differences from the paper: the gradient correction is that of the authors' code. After a round a client's g_i is
g_i - g + (x - theta_i) / (S lr), where S is its number of local steps. The way from x to theta_i contains the
correction g - g_i that bent it. With that taken out, g_i is the mean gradient of the client's own loss (and of its
pull) on its way, as SCAFFOLD's control is. Left in, g_i would be only what the correction left over, the next
correction would be almost zero, and every second round would go uncorrected. Learning rate and number of steps are
those of the round in which the client trained, so both may change from round to round and differ between clients. g is
the mean over those who replied last. The authors' code keeps a mean over all clients, each as it last replied, and
divides it by the weight of the client that uses it; the two are the same where all clients take part with equal
weights. Likewise the authors' code adds to the mean of the models y of those who replied the mean of h over *all*
clients, each as it last was; here both means are over those who replied. ``mean_examples`` gives each client an alpha
of its own. The paper and the default have one for all. Model and gradient travel in both directions, twice FedAvg's
bytes: where other clients take part each time, updates alone do not tell the mean of the drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..key import Key
from ..local import Local, LocalSGD, Trainer
from ..params import Params
from ..ranges import NonNegative
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start
from .feddyn import positive, scale
from .trainers import own_pull, plain_steps


class Server(NamedTuple):
    """What the server keeps, and what everyone is sent."""

    x: Params  # w
    g: Params  # the mean of g_i over those who replied in the round before


class Own(NamedTuple):
    """What a client keeps."""

    h: Params  # its drift, the sum of its updates
    g: Params  # g_i: its loss's mean gradient on its way, when it last took part


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params  # theta_i + h_i - w
    gradient: Params  # g_i


@dataclass(frozen=True)
class FedDC(Algorithm):
    """Clients minimise L_i(y) + alpha/2 |h_i + y - x|^2 + <y, g - g_i>; the server averages y + h_i.

    A client keeps two vectors of the model's size, h_i and g_i. ``mean_examples`` is the mean number of examples of all
    clients: with it the alpha of a client with n examples is ``alpha * mean_examples / n``. None: every client has
    ``alpha``. Raises ``ValueError`` for a negative ``alpha``, for a ``mean_examples`` that is not positive and for a
    ``local`` with a ``prox`` of its own, and :class:`~thinwire.errors.CombinationError` for local momentum or a
    trainer other than :class:`LocalSGD`.
    """

    paper = "Gao et al., CVPR 2022, arXiv:2203.11751"

    local: Trainer = LocalSGD()
    alpha: NonNegative = 0.1
    mean_examples: float | None = None

    def __post_init__(self) -> None:
        own_pull(self, "alpha")
        positive(self, self.mean_examples)
        plain_steps(self)

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        return Start(Server(x, zero), Server(zero, zero), Own(zero, zero), Reply(zero, zero))

    def broadcast(self, server: State, view: State) -> Message:
        return server

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x, g, h_i, g_i = view.x, view.g, state.h, state.g
        trainer = replace(self.local, prox=self.alpha * scale(self.mean_examples, len(task)))
        y = yield Local(x, trainer, offset=g - g_i, anchor=x - h_i)
        step = y.x - x
        h_i = h_i + step
        if y.rates > 0:  # else a schedule's last round: the client went nowhere and learned nothing
            g_i = g_i - g - step / y.rates
        return Reply(step + h_i, g_i), Own(h_i, g_i)

    def bypass(self, layers: Sequence[str]) -> Algorithm:
        return super().bypass(layers)  # g is the clients' mean, and no momentum of the server's

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        return Server(server.x + mean.update, mean.gradient)
