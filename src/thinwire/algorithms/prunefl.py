"""PruneFL: entries of the model that promise little are taken out, and may come back.

Jiang, Wang, Valls, Ko, Lee, Leung, Tassiulas, "Model Pruning Enables Efficient Federated Learning on Edge Devices",
IEEE TNNLS 2022, arXiv:1909.12326.

A reconfiguration chooses the set M of entries to keep. M maximises (sum of g_j^2 over M) / (c + size of M): the fall
of the loss that a step promises, over what a round costs. g is the gradient at the model, also of entries that are
out. Entries join in the order of g_j^2 for as long as they raise the quotient (the paper's Algorithm 2 and Theorem 1).
Vectors (biases, norms) are always kept. Of the entries still in, the ``share`` of smallest magnitude may go at once;
the others are kept.

No mask is sent beside the model. An entry that is out is +0.0, an entry that is in and zero is -0.0, and ``Sparse``
sends entries that have a bit set. So the positions in its packet are the mask. They are billed: a bit an entry or less.

Differences from the paper: the cost of an entry is its bytes, the same for all; the paper measures the seconds that an
entry of each layer takes. g is the mean of the clients' gradients, each on ``batch`` examples, squared at the server.
Clients measure it after local training, in the rounds that end with a reconfiguration. The initial pruning is done at
the server too: the first ``initial`` rounds all end with a reconfiguration, where the paper has one trusted client
train alone. ``share`` does not fall from round to round; ``least`` is where pruning ends. Each kernel keeps its
largest entry, so that no layer dies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ..errors import CombinationError
from ..key import Key
from ..links import Dense, Link, Sparse
from ..links.sparse import set_bits
from ..local import LocalSGD, look
from ..params import Params
from ..ranges import BelowOne, Count, Natural, Range, Share
from ..task import Task
from ..wire import State
from .around import Around, asking
from .base import Client, Message, Start, link_of
from .fedavg import FedAvg


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params  # zero where the model is pruned
    gradient: Params  # of all entries; no layers in most rounds


@dataclass(frozen=True)
class PruneFL(Around):
    """Keep and send only the entries of the model that are worth their bytes; choose anew after ``every`` rounds.

    Of the entries of kernels that are left, at most ``share``, the smallest ones, may be taken out at once. At least
    the share ``least`` of the model is kept. ``overhead`` is what a round costs besides entries (the paper's c), in
    models: the larger, the more is kept. The first ``initial`` rounds all end with a choice. A client takes the
    gradient of ``batch`` of its examples; None takes all of them.

    Raises ``ValueError`` for a number out of range, and :class:`~thinwire.errors.CombinationError` around anything but
    :class:`FedAvg` and its variants, or over a ``down`` that loses something.
    """

    every: Count = 50
    share: BelowOne = 0.3
    least: Share = 0.1
    overhead: Annotated[float, Range(lambda x: 0 <= x < float("inf"), "must not be negative or infinite")] = 1.0
    initial: Natural = 0
    batch: Annotated[int, Range(lambda x: x >= 1, "must be positive, or None")] | None = 256

    paper = "Jiang et al., IEEE TNNLS 2022, arXiv:1909.12326"
    late = False  # an earlier round's reply may lack the gradient, or have one of another model

    def __post_init__(self) -> None:
        if isinstance(self.inner, PruneFL):
            raise CombinationError("PruneFL goes around a method that prunes nothing yet: leave one of the two")
        if isinstance(self.inner, Around):
            raise CombinationError(self._instead(self.inner))
        if not isinstance(self.inner, FedAvg):
            raise CombinationError(
                f"PruneFL goes around FedAvg and what its arguments make of it (FedProx, FedAdam, FedAvgSM, local "
                f"momentum); {type(self.inner).__name__} keeps or sends more than the model, which would not be pruned"
            )
        down = link_of(self.inner.down, "x")
        if down not in (Dense(), Sparse()):
            raise CombinationError(
                f"PruneFL(FedAvg(down={down!r})): which entries are kept is read off the model that is sent, so it "
                f"must not lose anything: leave down at its default"
            )

    def _instead(self, around: Around) -> str:
        """What to write where ``inner`` goes around a method itself: the other way round, if that can be had."""
        name = type(around).__name__
        try:
            other = replace(around, inner=replace(self, inner=around.inner))
        except ValueError:
            return f"PruneFL does not go around {name}, nor {name} around PruneFL: leave one of the two"
        return f"PruneFL goes inside of {name}, not around it: {other!r}"

    @property  # type: ignore[misc]  # a field of others
    def up(self) -> dict[str, Link]:
        up = link_of(self.inner.up, "update")
        return {"update": Sparse() if up == Dense() else up, "gradient": Dense()}

    @property  # type: ignore[misc]  # a field of others
    def down(self) -> Link:
        return Sparse()

    def reconfigures(self, round: int) -> bool:
        """Whether round ``round``, counted from 1, ends with a choice of the entries to keep."""
        return round <= self.initial or round % self.every == 0

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        everything = torch.ones(x.layout.size, dtype=torch.bool, device="cpu")
        start = self.inner.init_with(prune(x, everything), buffers, num_clients, key)
        return start._replace(reply=Reply(x.zeros(), x.zeros()))

    def depart(self, view: State, owed: Message, lam: float = 0.0) -> State:
        after = self.inner.depart(view, owed, lam)
        return after._replace(x=prune(after.x, entries_in(view.x)))  # what is out stays out

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        mask = Params(view.x.layout, entries_in(view.x).to(view.x.layout.dtype))
        work = self.inner.client(view, state, task, key)
        reply, state = yield from asking(work, lambda request: request._replace(mask=mask))
        if not self.reconfigures(key.round):
            return Reply(reply.update, view.x.zeros().only(())), state
        seen = yield look(view.x, LocalSGD(1e-6), self.batch)  # a step too short to leave what can be represented
        return Reply(reply.update, seen.gradient), state

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        return (blank if self.reconfigures(key.round) else blank._replace(gradient=blank.gradient.only(())),)

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        mask = entries_in(server.x)
        update = mean.update.map(lambda f: torch.where(mask, f, 0.0))
        server = self.inner.server(server, view, mean._replace(update=update), key)
        if self.reconfigures(key.round):
            mask = self.choose(server.x, mean.gradient, mask)
        return server._replace(x=prune(server.x, mask))

    def choose(self, x: Params, g: Params, mask: Bool[Tensor, " d"]) -> Bool[Tensor, " d"]:
        """Which entries of ``x`` are kept from here, given the mean gradient at it and which were kept so far."""
        candidate = self._candidates(x, mask)
        worth = g.flat.double().square()
        order = candidate.nonzero().view(-1)
        order = order[worth[order].argsort(descending=True, stable=True)]
        base = int((~candidate).sum())  # kept in any case
        sizes = base + torch.arange(len(order) + 1, dtype=torch.float64, device="cpu")
        gained = torch.cat([worth.new_zeros(1), worth[order].cumsum(0)]) + worth[~candidate].sum()
        quotient = gained / (self.overhead * x.layout.size + sizes).clamp_min(1)
        best = max(int(quotient.argmax()), math.ceil(self.least * x.layout.size) - base)
        chosen = ~candidate
        chosen[order[:best]] = True
        return chosen

    def _candidates(self, x: Params, mask: Tensor) -> Tensor:
        """Entries that may go or stay: those that are out, and the smallest of the others; of kernels alone."""
        kernels = torch.zeros(x.layout.size, dtype=torch.bool, device="cpu")
        largest = []
        for start, size, shape in x.layout.spans.values():
            if len(shape) > 1 and size:
                kernels[start : start + size] = True
                largest.append(start + int(x.flat[start : start + size].abs().argmax()))
        inside = (kernels & mask).nonzero().view(-1)
        smallest = inside[x.flat[inside].abs().argsort(stable=True)[: int(self.share * len(inside))]]
        candidate = kernels & ~mask
        candidate[smallest] = True
        candidate[largest] = False
        return candidate


def entries_in(x: Params) -> Bool[Tensor, " d"]:
    """Which entries are in: those with a bit set, and all of vectors."""
    mask = set_bits(x.flat)
    for start, size, shape in x.layout.spans.values():
        if len(shape) <= 1:
            mask[start : start + size] = True
    return mask


def prune(x: Params, mask: Bool[Tensor, " d"]) -> Params:
    """``x`` with +0.0 where it is pruned and -0.0 where it is kept and zero."""
    return x.map(lambda f: torch.where(mask, torch.where(f == 0, -0.0, f), 0.0))
