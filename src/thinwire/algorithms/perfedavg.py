"""Per-FedAvg: a shared model that is good after one gradient step on a client's examples.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", NeurIPS 2020, arXiv:2002.07948, with its approximations FO and HF.

Differences from the paper: replies are averaged by ``weights``, examples by default; the paper averages uniformly. A
client's own model is made by one step on a mini-batch of its examples; the paper says one step, or a few. The paper has
no norm statistics: here they are those of the forward passes at w, and a client's own model has the shared model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import CombinationError
from ..key import Key
from ..local import Local, LocalSGD, look
from ..params import Params
from ..ranges import NonNegative, Positive
from ..task import Task
from ..wire import State
from .base import Client
from .fedavg import Reply
from .own import Adapting
from .personal import Personal


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Personal):
    """Local steps along the gradient of the loss after a step of rate ``alpha``; a client's own model is after it.

    ``local`` says how many steps a client takes, their rate (the paper's beta) and the size of mini-batches, of which
    each gradient has a new one. "FO" leaves the Hessian out; "HF" takes its product with the gradient from two more
    gradients, ``delta`` times the gradient before and behind, both on one mini-batch. A step costs two gradients, or
    four.

    A client's own model is made when it is evaluated: the shared model after one step of rate ``alpha`` on a mini-batch
    of its examples. ``alpha`` = 0 is FedAvg, whose mini-batches are drawn anew for each step.

    Raises ``ValueError`` for a negative ``alpha`` or a ``delta`` that is not positive, and
    :class:`~thinwire.errors.CombinationError` for a ``local`` that is not plain SGD.
    """

    paper = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv:2002.07948"

    alpha: NonNegative = 0.01
    hessian: Literal["FO", "HF"] = "FO"
    delta: Positive = 0.001

    def __post_init__(self) -> None:
        own = self.local
        plain = LocalSGD(own.lr, own.epochs, own.batch, weight_decay=own.weight_decay, steps=own.steps)
        if own != plain:
            raise CombinationError(f"PerFedAvg(local={own!r}): its steps are of plain SGD; use {plain!r}")

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        w, beta = view.x, self.local.rate(key)
        for _ in range(self.local.num_steps(len(task))):
            here = yield self.gradient(w)._replace(aside=False)  # norm statistics and the client's loss are of these
            ahead = yield self.gradient(w - here.gradient * self.alpha)  # at the adapted model
            g = ahead.gradient
            if self.hessian == "HF":
                up = yield self.gradient(w + g * self.delta)
                down = yield self.gradient(w - g * self.delta)._replace(again=1)
                g = g - (up.gradient - down.gradient) * (self.alpha / (2 * self.delta))  # the Hessian times g
            w = w - g * beta  # the outer step
        return Reply(w - view.x), state

    def gradient(self, x: Params) -> Local:
        """A request for the gradient of a mini-batch."""
        return look(x, self.local, self.local.batch)

    def adapt(self, x: Params, task: Task, key: Key) -> Adapting:
        here = yield self.gradient(x)
        return x - here.gradient * self.alpha
