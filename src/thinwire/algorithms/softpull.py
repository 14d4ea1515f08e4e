"""SoftPull: every client has a model of its own, which the server pulls towards the mean of the others'.

A. Xu, PhD thesis, University of Pittsburgh, 2023, section 3.3.2, equation (3-11); A. Xu et al., "Closing the
Generalization Gap of Cross-silo Federated Medical Image Segmentation", CVPR 2022, arXiv:2203.10144.

Differences from the paper: with partial participation the K of a round are the clients that have replied at least once.
The models of those that are away are pulled too, and pull. The thesis has all clients in every round. How a client
trains, and what the server makes of its reply, is the inner method's, for each client by itself; the thesis has one
local epoch of Adam. Clients send the change of their model, not the model. lam may be any number from 0 to 1, since the
thesis tries some below 1/K too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch

from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense, Link
from ..params import Params
from ..ranges import Fraction
from ..task import Task
from ..wire import Several, State
from .around import Around
from .base import Algorithm, Client, Each, Message, Start, kinds
from .fedavg import FedAvg

THESIS = "A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 3"


class SiteModel(NamedTuple):
    """A model and the statistics of its norm layers; None where there are none, or where they stay with the client."""

    x: Params
    buffers: Params | None


class Held(NamedTuple):
    """What the server keeps of one client."""

    client: int
    inner: State  # the inner method's, as if there were no other client
    buffers: Params | None


class Server(NamedTuple):
    """What the server keeps: of each client that has replied, and what the others begin with."""

    first: Held
    held: Several  # of Held, in the order of clients
    x: Params  # the mean of their models
    buffers: Params | None  # and of their norm statistics


class Nothing(NamedTuple):
    """What everyone is sent."""


class Own(NamedTuple):
    """What one client alone is sent."""

    inner: Message
    buffers: Params | None


class Reply(NamedTuple):
    """What a client sends back."""

    inner: Each[Any]
    buffers: Each[Params | None]


def pull(models: Sequence[Params], lam: float) -> list[Params]:
    """Equation (3-11), all models at once, from what they were: lam w_k + (1 - lam) times the mean of the others.

    Sums are of 64-bit floats. A model without others stays as it is.
    """
    others = len(models) - 1
    if others < 1:
        return list(models)
    whole = total(models)

    def mix(w: Params) -> Params:
        own = w.flat.double()
        return Params(w.layout, (own * lam + (whole - own) * ((1 - lam) / others)).to(w.flat.dtype))

    return [mix(w) for w in models]


def pull_all(models: Sequence[SiteModel], lam: float) -> list[SiteModel]:
    """:func:`pull` of models, and of their norm statistics where all have some."""
    statistics = [model.buffers for model in models]
    known = [buffers for buffers in statistics if buffers is not None]
    mixed = pull(known, lam) if len(known) == len(models) else statistics
    return list(map(SiteModel, pull([model.x for model in models], lam), mixed))


def of_client(server: State, client: int) -> Any:
    """What a server keeps of a client (an item of its ``held``), or of one that has not replied yet (``first``)."""
    return next((one for one in server.held if one.client == client), server.first)


def total(models: Sequence[Params]) -> torch.Tensor:
    """The sum of models, in 64-bit floats."""
    whole = models[0].flat.double().clone()
    for w in models[1:]:
        whole += w.flat
    return whole


def middle(models: Sequence[Params]) -> Params:
    """The plain mean of models, summed in 64-bit floats."""
    whole = total(models) / len(models)
    return Params(models[0].layout, whole.to(models[0].flat.dtype))


@dataclass(frozen=True)
class SoftPull(Around):
    """A model for each client, trained there as by ``inner``, and mixed at the server.

    After each round w_k becomes lam w_k + (1 - lam) times the mean of the other clients' models, norm statistics
    included. ``lam`` = 1 is local training, 1/K the plain mean of all. ``personal`` is the link of the model that a
    client is sent, which is its alone. With the inner method's ``buffers="local"`` norm statistics are not sent, and
    stay with their client.

    The server keeps what the inner method keeps, of each client that has replied: for FedAvg one model each, and as
    many again where ``personal`` has a memory. The model that all share (``result.module``) is the mean of theirs.

    Raises ``ValueError`` for a ``lam`` outside [0, 1] and for a single client, and
    :class:`~thinwire.errors.CombinationError` around a method whose client has more than the newest broadcast for its
    view (LUAR, FLSS, Intrinsic), whose server keeps no model ``x``, whose clients have models of their own, or whose
    ``down`` is not Dense: ``personal`` carries models here.
    """

    paper = THESIS
    personal_models: ClassVar[Any] = True
    at_server: ClassVar[Any] = True
    remembers: ClassVar[Any] = ""
    buffers: ClassVar[Any] = "local"  # type: ignore[misc]  # the runner averages none

    inner: Algorithm = FedAvg()
    lam: Fraction = 0.7
    personal: Link | dict[str, Link] = field(default=Dense(), kw_only=True)

    def __post_init__(self) -> None:
        inner = self.inner
        if inner.personal_models:
            raise CombinationError(
                f"SoftPull over {type(inner).__name__}: its clients have models of their own already"
            )
        while type(inner).see is Around.see:
            assert isinstance(inner, Around)
            inner = inner.inner
        if type(inner).see is not Algorithm.see:
            raise CombinationError(
                f"SoftPull over {type(inner).__name__}: its clients make their view of every broadcast they have "
                f"heard, and here each is sent a model of its own"
            )
        if self.inner.down != Dense():
            raise CombinationError(
                f"SoftPull over a method with down={self.inner.down!r}: no model is sent to everyone; leave down at "
                f"Dense() and give SoftPull a link for single clients, such as personal=EF21(TopK(0.1))"
            )

    @property
    def mixes(self) -> bool:
        """Whether norm statistics are sent and mixed."""
        return self.inner.buffers == "mean"

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        require(
            num_clients > 1,
            "SoftPull pulls a client's model towards the mean of the others', and there is one client: use its inner "
            "method",
        )
        inner = self.inner.init(x, 1, key)
        if getattr(inner.server, "x", None) is not x or inner.message is not None:
            raise CombinationError(
                f"SoftPull mixes models that the inner server keeps as `x` and sends whole; "
                f"{type(self.inner).__name__} keeps or sends something else"
            )
        first = Held(-1, inner.server, buffers if self.mixes else None)
        reply = Reply(inner.reply, None if first.buffers is None else first.buffers.zeros())
        server = Server(first, Several([], first), x, first.buffers)
        own = Own(self.inner.broadcast(inner.server, inner.view), first.buffers)
        return Start(server, Nothing(), inner.client, reply, None, own)

    def broadcast(self, server: State, view: State) -> Message:
        return Nothing()

    def see(self, view: State, msg: Message, key: Key) -> State:
        return msg

    def supersedes(self, older: Message, newer: Message) -> bool:
        return True

    def afresh(self, view: State) -> Message | None:
        return None  # everyone's view is nothing, whatever was heard

    def alone(self, server: State, client: int) -> Message:
        own = of_client(server, client)
        return Own(self.inner.broadcast(own.inner, None), own.buffers)

    def take(self, view: State, msg: Message) -> State:
        return msg

    def depart(self, view: State, owed: Message, lam: float = 0.0) -> State:
        return view._replace(inner=self.inner.depart(view.inner, owed.inner, lam))

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        work, buffers = self.inner.client(view.inner, state, task, key), view.buffers
        try:
            request = next(work)
            while True:
                trained = yield request if buffers is None else request._replace(buffers=buffers)
                if trained.buffers is not None and buffers is not None and not request.aside:
                    buffers = trained.buffers
                request = work.send(trained)
        except StopIteration as done:
            reply, state = done.value
            return Reply(reply, buffers), state

    def sent(self, state: State, seen: Message) -> State:
        return self.inner.sent(state, seen.inner)

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        return [blank._replace(inner=one) for one in self.inner.outlines(view, blank.inner, key)]

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        return reply._replace(inner=self.inner.admit(view, reply.inner, examples, clip))

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        held = {one.client: one for one in server.held}
        for client, buffers in mean.buffers.items():
            own = held.get(client, server.first)
            alone = self.inner.broadcast(own.inner, None)
            inner = self.inner.server(own.inner, alone, of(mean.inner, client), key)
            held[client] = Held(client, inner, buffers)
        each = [held[client] for client in sorted(held)]
        models = pull_all([SiteModel(one.inner.x, one.buffers) for one in each], self.lam)  # (3-11)
        after = [
            Held(one.client, one.inner._replace(x=model.x), model.buffers)
            for one, model in zip(each, models, strict=True)
        ]
        kept = [one.buffers for one in each if one.buffers is not None]
        x = middle([model.x for model in models])
        return Server(server.first, Several(after, server.first), x, middle(kept) if kept else None)

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        x: Params = server.x if client is None else of_client(server, client).inner.x
        return x

    def served(self, server: State) -> Params | None:
        return None  # the inner server is kept once for each client, and none of them for all

    def statistics(self, server: State, client: int | None = None) -> Params | None:
        buffers: Params | None = server.buffers if client is None else of_client(server, client).buffers
        return buffers

    def at_client(self, view: State, client: int | None, own: State) -> Params | None:
        return None if client is None else self.inner.at_client(view.inner, None, own)  # nothing of the mean of all

    def statistics_at_client(self, view: State, client: int) -> Params | None:
        buffers: Params | None = view.buffers
        return buffers


def of(reply: Message, client: int) -> Message:
    """One client's reply, of those of all, as the mean of itself."""
    marks, fields = kinds(type(reply)), []  # type: ignore[arg-type]  # a class has a hash
    for name, value in zip(reply._fields, reply, strict=True):
        inside = of(value, client) if hasattr(value, "_fields") else value[client]
        fields.append({client: inside} if marks[name] == "each" and not hasattr(value, "_fields") else inside)
    return type(reply)(*fields)
