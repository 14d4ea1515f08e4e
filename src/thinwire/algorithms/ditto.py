"""Ditto: each client trains a model of its own too, which is pulled towards the shared one.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
arXiv:2012.04221, Algorithm 1.

Differences from the paper: the shared model is FedAvg's, as in the listing, with any optimiser at the server. Both
models are trained as ``local`` says; the paper may give them different numbers of steps. Each has mini-batches of its
own. The paper has no norm statistics: here a client's own model has its own, from its own training, which stay with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..key import Key
from ..local import Local
from ..ranges import NonNegative
from ..task import Task
from ..wire import State
from .base import Client
from .fedavg import Reply
from .personal import Beside


@dataclass(frozen=True, kw_only=True)
class Ditto(Beside):
    """FedAvg, and at each client a model v of its own, which minimises its loss + lam/2 |v - x|^2.

    v goes on from round to round. ``lam`` = 0 trains it alone. A ``prox`` of ``local`` is the shared model's.
    ``keep=True`` keeps the shared model's momentum; v's begins anew in each round.

    Raises ``ValueError`` for a negative ``lam``.
    """

    paper = "Li et al., ICML 2021, arXiv:2012.04221"
    on_fedavg = True

    lam: NonNegative = 0.1

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, self.local)
        own = replace(self.local, prox=self.lam, keep=False)
        v = yield Local(state, own, anchor=view.x, aside=True, own=True)  # lam pulls v to x
        return Reply(y.x - view.x), v.x
