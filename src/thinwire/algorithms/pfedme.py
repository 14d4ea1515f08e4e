"""pFedMe: clients' own models are Moreau envelopes of their losses around the shared one.

T. Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, arXiv:2006.08848,
Algorithm 1. Its beta is the rate of ``opt``: ``pFedMe(opt=SGD(2.0))``.

Differences from the paper: the subproblem of a local round is solved by ``steps`` steps of ``local`` from w, all on one
mini-batch; the paper asks for a solution of some accuracy, from anywhere. Only the clients of a round train; in the
paper all clients train in every round, and the server's mean is over some of them. The paper has no norm statistics:
here those of a client's own model are what its round ended with, and stay with it; the shared model has their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..key import Key
from ..local import Local
from ..ranges import Count, Positive
from ..task import Task
from ..wire import State
from .base import Client, Weights
from .fedavg import Reply
from .personal import Beside
from .trainers import own_pull


@dataclass(frozen=True, kw_only=True)
class pFedMe(Beside):
    """Each local round finds theta, near the least of the loss + lam/2 |theta - w|^2, and moves w towards it.

    There are as many local rounds (the paper's R) as ``local`` has mini-batches: its ``epochs``, or its ``steps``.
    ``steps`` is the paper's K, steps of ``local`` in each, ``lr`` their rate. w moves by ``eta * lam`` of the way to
    theta. A client's own model is the last theta.

    Raises ``ValueError`` for a ``lam`` or ``eta`` that is not positive, for ``steps`` below 1, and for a ``local`` with
    a ``prox`` of its own.
    """

    paper = "T. Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848"

    lam: Positive = 15.0
    eta: Positive = 0.005
    steps: Count = 5
    weights: Weights = field(default="uniform", kw_only=True)

    def __post_init__(self) -> None:
        own_pull(self, "lam")

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        w, theta = view.x, state
        solver = replace(self.local, steps=1, prox=self.lam)
        for _ in range(self.local.num_steps(len(task))):
            theta, memory = w, None
            for k in range(self.steps):  # towards argmin of f + lam / 2 ||theta - w||^2, f of one mini-batch
                trained = yield Local(theta, solver, anchor=w, memory=memory, own=True, again=k)
                theta, memory = trained.x, trained.memory
            w = w - (w - theta) * (self.eta * self.lam)  # a step down the Moreau envelope
        return Reply(w - view.x), theta
