"""A start that is ahead: clients begin where a part of what their uplink still owes is done already.

An Xu, Heng Huang, "Detached Error Feedback for Distributed SGD with Random Sparsification", ICML 2022, and A. Xu, PhD
thesis, University of Pittsburgh, 2023, chapter 2. There gradients of data-parallel workers are taken at x - lam e,
between the model that all share and the worker's own.

Differences from the papers: a client trains for a whole round from there, with any trainer. e belongs to a client that
is sampled now and then: it is as old as the client's last reply. It points in the direction of updates here, so its
sign is the other one. lam is one number, where data-parallel training may measure it
(:class:`thinwire.ddp.DEF`). The server's model is evaluated, as of DEFA, and no y.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CombinationError
from ..key import Key
from ..params import Params
from ..ranges import Fraction
from ..wire import State
from .around import Around
from .base import Message, Start, link_of


@dataclass(frozen=True)
class Detached(Around):
    """Around a method with error feedback: clients begin at x + ``lam`` e, and send what training changed from there.

    e is what :class:`~thinwire.links.ErrorFeedback` around ``up`` holds of a client's updates that was not sent yet.
    The message is u + e as before, where u is the way from the start to the end of training: each movement is sent
    once. Messages, bytes and states are those of ``inner``, and so is the run with ``lam=0``.

    ``lam`` is from 0 to 1. With 1 a client begins where the server would be had it got all that this client owes.

    Raises ``ValueError`` for a ``lam`` outside 0 to 1, and :class:`~thinwire.errors.CombinationError` around a method
    whose uplink keeps no residual, around one whose clients do not send an ``update`` of the model that they begin at
    (FetchSGD, Intrinsic, FedPM, DeComFL, ClusteredLBGM, FedSM), and around another ``Detached``.
    """

    paper = "Xu, Huang, ICML 2022"
    example = "Detached(FedAvg(up=ErrorFeedback(TopK(0.01))))"

    lam: Fraction = 0.5

    def __post_init__(self) -> None:
        if not link_of(self.up, "update").feedback:
            raise CombinationError(
                f"{self!r}: up={self.up!r} keeps no residual that others may read, so there is nothing to begin ahead "
                f"by: give the method error feedback, such as up=ErrorFeedback(TopK(0.01)), or leave Detached away"
            )

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        start = self.inner.init_with(x, buffers, num_clients, key)
        view = start.view if start.alone is None else self.inner.take(start.view, start.alone)
        self.depart(view, start.reply)  # raises where nobody can begin ahead
        return start

    def depart(self, view: State, owed: Message, lam: float = 0.0) -> State:
        if lam:
            raise CombinationError(f"Detached around {self!r}: there is one lam; leave one of the two away")
        return self.inner.depart(view, owed, self.lam)
