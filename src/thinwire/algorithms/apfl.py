"""APFL: a client's model is a mixture of the shared one and of one that it trains inside of the mixture.

Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv:2003.13461, Algorithm 1.

Differences from the paper: the listing moves w and v in turn, on the same mini-batches. Here w is trained to its end
first, as in FedAvg, and then v on the same mini-batches again, while w moves along the straight line between its two
ends, by an equal part after each step. w and v are not projected on a set; alpha is kept in [0, 1]. alpha is learnt
once a round, at the mixture of v and the shared model, before v is trained. The mean over replies is weighted by
``weights``, examples by default; the paper's is uniform. The mixture that is evaluated has the newest shared model in
it, not a mean over rounds. Weight decay and the clip of ``local`` act on the mixture, its ``prox`` on w alone. Where
alpha is below .001, v is not trained, because rounding is divided by alpha. The paper has no norm statistics: here a
client's own model has its own, those of the mixture in v's training, which stay with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import CombinationError
from ..key import Key
from ..local import Local, LocalSGD, look
from ..params import Params
from ..ranges import Fraction
from ..task import Task
from ..wire import State
from .base import Client
from .fedavg import Reply
from .personal import Personal

LEAST = 1e-3  # an alpha below: a step of v is alpha times a gradient, and rounding is divided by alpha


class Own(NamedTuple):
    """What a client keeps."""

    v: Params
    alpha: float


@dataclass(frozen=True, kw_only=True)
class APFL(Personal):
    """FedAvg, and at each client v, trained so that alpha v + (1 - alpha) w is good for its examples.

    ``alpha`` = 0 leaves v as it is, and the mixture is FedAvg's model; 1 trains v alone. With ``adaptive`` each client
    begins with ``alpha`` and learns its own by gradient descent at the learning rate of ``local``, in [0, 1].

    Raises ``ValueError`` for an ``alpha`` outside of [0, 1], and :class:`~thinwire.errors.CombinationError` for a
    ``local`` other than ``LocalSGD``.
    """

    paper = "Deng, Kamani, Mahdavi, 2020, arXiv:2003.13461"
    on_fedavg = True

    alpha: Fraction = 0.5
    adaptive: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.local, LocalSGD):
            raise CombinationError(
                f"APFL takes a step of v as alpha times one of the mixture, which those of "
                f"{type(self.local).__name__} are not: use LocalSGD"
            )

    def begin(self, x: Params) -> State:
        return Own(x, self.alpha)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x, (v, alpha), rate = view.x, state, self.local.rate(key)
        w = (yield Local(x, self.local)).x
        if self.adaptive:
            seen = yield look(mix(v, x, alpha), self.local, self.local.batch)._replace(again=1)  # of w's first step
            alpha = min(max(alpha - rate * (seen.gradient @ (v - x)), 0.0), 1.0)  # a step down the slope in alpha
        if alpha >= LEAST:
            start, shift = mix(v, x, alpha), (w - x) * (1 - alpha)
            # v moves by lr alpha times the gradient at the mixture, and the mixture by alpha times that
            trainer = replace(self.local, lr=rate * alpha**2, prox=0.0, keep=False)
            end = yield Local(start, trainer, shift=shift, aside=True, own=True, again=2 if self.adaptive else 1)
            v = (end.x - w * (1 - alpha)) / alpha
        return Reply(w - x), Own(v, alpha)

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        x: Params = server.x
        return x if client is None else mix(own.v, x, own.alpha)

    def own_statistics(self, own: State) -> bool:
        return bool(own.alpha >= LEAST)


def mix(v: Params, w: Params, alpha: float) -> Params:
    """alpha v + (1 - alpha) w."""
    return v * alpha + w * (1 - alpha)
