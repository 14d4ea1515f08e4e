"""Another personalisation in SoftPull's place: FedSM's global model and selector beside the models of any method.

A. Xu, PhD thesis, University of Pittsburgh, 2023, section 3.3.1 ("personalized models trained by any personalization FL
training method") and Table 14, which has FT, APFL, Per-FedAvg and pFedMe there.

Differences from the paper: it does not say what crosses the wire. Here a client sends what its own model is made of as
it is, once a round, so that the server has all models for a prediction; that model is not sent back. Models that a
method makes of a client's examples when they are asked for (FT, Per-FedAvg) are never sent. Where the model that the
method's clients share is FedAvg's, and is trained alike, it is the global model, trained and sent once. Else (pFedMe,
Per-FedAvg) it is trained before the global model, and both are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CombinationError, require
from ..key import Key
from ..local import Local, Memory, Trained
from ..params import Params
from ..task import Task
from ..wire import Several, State
from . import fedavg
from .around import Around, adapts
from .base import SHARED, Algorithm, Client, Each, Exact, Message, Start
from .detached import Detached
from .own import Adapting
from .selector import MODEL, Labelled, part
from .softpull import Nothing, of, of_client

if TYPE_CHECKING:
    from .fedsm import FedSM


class OwnModel(NamedTuple):
    """What a client's own model is made of."""

    state: Exact[Any]  # what the method keeps with the client
    buffers: Params | None  # norm statistics of that model


class Held(NamedTuple):
    """What the server keeps of one client."""

    client: int
    kept: OwnModel | None  # None: its model is made when it is asked for


class Beside(NamedTuple):
    """The model that the method's clients share, where it is not the global one, or its change."""

    x: Params
    buffers: Params  # norm statistics, which stay apart from the global model's; without layers where there are none


class Server(NamedTuple):
    """What the server keeps."""

    x: Params  # the global model w_g and the selector w_s
    opt: State  # of w_g
    moments: Memory  # of the selector's Adam
    inner: State  # the method's server; None: its model is w_g
    buffers: Params  # norm statistics of that server's model, as in Beside
    first: Held  # what a client begins with
    held: Several  # of Held
    round: int  # rounds done


class Broadcast(NamedTuple):
    """What everyone is sent."""

    x: Params
    first: Exact[Params]
    second: Exact[Params]
    steps: int
    beside: Beside | Nothing


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params  # of w_g and w_s
    first: Exact[Params]
    second: Exact[Params]
    beside: Beside | Nothing
    own: Each[OwnModel | None]


@dataclass(frozen=True)
class InPlace:
    """The hooks of a :class:`FedSM` whose ``personal`` is a method. The method knows nothing of the selector."""

    outer: FedSM

    @property
    def method(self) -> Algorithm:
        assert isinstance(self.outer.personal, Algorithm)
        return self.outer.personal

    @property
    def inmost(self) -> Algorithm:
        """The method without those around it."""
        method = self.method
        while isinstance(method, Around):
            method = method.inner
        return method

    @property
    def once(self) -> bool:
        """Whether the method's shared model is the global one: FedAvg's, trained alike."""
        mine, own = self.outer, self.inmost
        return own.on_fedavg and (own.local, own.opt) == (mine.local, mine.opt)  # type: ignore[attr-defined]  # then

    def check(self) -> None:
        """Raise :class:`CombinationError` for what has no meaning."""
        outer, method, inmost = self.outer, self.method, self.inmost
        name, said = type(outer).__name__, f"{type(outer).__name__}(personal={method!r})"
        if outer.extra:
            raise CombinationError(
                f"{said}: its selector is trained on the losses of models that the server sends to all, which are "
                f"SoftPull's; give personal a link, or take FedSM"
            )
        if not method.personal_models or method.at_server:
            raise CombinationError(
                f"{said}: {type(method).__name__} leaves no model with its clients; take FT(FedAvg()), APFL(), "
                f"Ditto(), PerFedAvg() or pFedMe(), or for SoftPull a link such as personal=Dense()"
            )
        inner = method
        while isinstance(inner, Around):
            if isinstance(inner, Detached):
                raise CombinationError(
                    f"{said}: messages are {name}'s, and so is what its clients owe; leave Detached away"
                )
            inner = inner.inner
        if outer.lam != type(outer).lam:
            raise CombinationError(
                f"{said}: lam={outer.lam} is SoftPull's, in whose place the method is; leave lam out"
            )
        for field in SHARED:
            value = getattr(method, field)
            if value not in (getattr(outer, field), type(inmost).__dataclass_fields__[field].default):
                raise CombinationError(
                    f"{said}: messages are {name}'s, so {field}={value!r} has to be given to {name} and left out of "
                    f"the method"
                )
        if not self.once and method.local.keep:
            raise CombinationError(
                f"{said}: a client keeps what the trainer of the global model remembers, and this is another; leave "
                f"keep at False, or give both the same local"
            )

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        outer, method = self.outer, self.method
        require(
            num_clients > 1,
            f"{type(outer).__name__}'s selector tells clients apart, and there is one client: use {method!r}",
        )
        model = outer.halves(x)[0]
        inner = method.init(model, num_clients, key)
        fits = type(inner.server) is fedavg.Server and type(inner.reply) is fedavg.Reply and inner.message is None
        if not fits or inner.reply.update.layout != model.layout:
            raise CombinationError(
                f"{type(outer).__name__}(personal={method!r}): the method has to send one whole model each way, as "
                f"FedAvg does; {type(method).__name__} sends something else"
            )
        if not self.once and outer.buffers == "local" and buffers is not None:
            raise CombinationError(
                f"{outer!r}: a client trains two shared models and would keep one set of norm statistics; leave "
                f"buffers at 'mean'"
            )
        buffers = buffers if outer.buffers == "mean" else None
        moments = outer.begin_moments(x)
        first = Held(-1, None if adapts(method) else OwnModel(inner.client, buffers))
        apart = None if self.once else inner.server
        moved = model.only(()) if buffers is None or self.once else buffers
        server = Server(x, outer.opt.init(model), moments, apart, moved, first, Several([], first), 0)
        m, v = moments.vectors
        beside = Nothing() if self.once else Beside(model.zeros(), moved)
        blank = Reply(x.zeros(), m, v, beside, first.kept)
        return Start(server, Broadcast(x.zeros(), m, v, 0, beside), inner.client, blank)

    def broadcast(self, server: State, view: State) -> Message:
        m, v = server.moments.vectors
        beside = Nothing() if server.inner is None else Beside(server.inner.x, server.buffers)
        return Broadcast(server.x, m, v, server.moments.steps, beside)

    # -- a client's round ---------------------------------------------------

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        outer, x = self.outer, view.x
        names = part(x.layout, MODEL)
        work = self.method.client(self.shared_view(view), state, task, key)
        (reply, state), asked, buffers, own = yield from within(work, x, view.beside)
        update, beside = reply.update, view.beside
        if not self.once:  # FedAvg's training, on the mini-batches of a round's first one
            y = yield Local(x, outer.local, again=asked)
            update, beside = (y.x - x).only(names), Beside(update, buffers)
        assert key.client is not None
        s = yield outer.selector_request(x, Labelled(key.client), view)._replace(aside=True)
        m, v = outer.moments_of(s.memory, view)
        kept = None if adapts(self.method) else OwnModel(state, own if outer.buffers == "mean" else None)
        return Reply((s.x - x).replace(update), m, v, beside, kept), state

    def adapt(self, x: Params, task: Task, key: Key) -> Adapting:
        work = self.method.adapt(x.only(part(x.layout, MODEL)), task, key)
        own, *_ = yield from within(work, x, Nothing())
        return x.replace(own)

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, opt, moments = self.outer.step_shared(server, mean)
        inner, buffers = server.inner, server.buffers
        if inner is not None:
            inner = self.method.server(inner, None, fedavg.Reply(mean.beside.x), key)
            buffers = mean.beside.buffers
        held = {one.client: one for one in server.held}
        if mean.own is not None and server.first.kept is not None:
            held |= {client: Held(client, of(mean.own, client)) for client in clients_of(mean.own)}
        each = Several([held[client] for client in sorted(held)], server.first)
        return Server(x, opt, moments, inner, buffers, server.first, each, server.round + 1)

    # -- whose model is which -----------------------------------------------

    def shared_view(self, view: State) -> fedavg.Broadcast:
        """What the method's clients are sent, of what FedSM's are."""
        return fedavg.Broadcast(self.outer.halves(view.x)[0] if self.once else view.beside.x)

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        x: Params = server.x
        if client is None:
            return x
        kept = of_client(server, client).kept
        inner = fedavg.Server(self.outer.halves(x)[0], None) if server.inner is None else server.inner
        return x.replace(self.method.model(inner, client, own if kept is None else kept.state))

    def statistics(self, server: State, client: int | None = None) -> Params | None:
        if client is None:
            return None
        kept = of_client(server, client).kept
        if kept is None:
            return statistics_or_none(server.buffers)
        buffers: Params | None = kept.buffers
        return buffers if self.method.own_statistics(kept.state) else None

    def at_client(self, view: State, client: int | None, own: State) -> Params | None:
        x: Params = view.x
        inner = None if client is None else self.method.at_client(self.shared_view(view), client, own)
        return x if inner is None else x.replace(inner)

    def statistics_at_client(self, view: State, client: int) -> Params | None:
        return None if self.once or not adapts(self.method) else statistics_or_none(view.beside.buffers)

    def own_statistics(self, own: State) -> bool:
        return self.method.own_statistics(own)


def clients_of(value: Any) -> list[int]:
    """The clients of a field that is not averaged."""
    return list(value) if isinstance(value, dict) else clients_of(value[0])


def statistics_or_none(buffers: Params) -> Params | None:
    """Norm statistics, or None where there are none."""
    return buffers if buffers.names else None


def within(
    work: Generator[Local, Trained, Any], x: Params, beside: Beside | Nothing
) -> Generator[Local, Trained, tuple[Any, int, Params, Params | None]]:
    """A method's ``work`` at a model that has a selector beside it in ``x``, which stays.

    Gives what the work returns, how many trainings it asked for, and where norm statistics went: those of the model
    ``beside`` that the method's clients share, and those of the client's own.
    """
    apart = isinstance(beside, Beside)
    buffers = statistics_or_none(beside.buffers) if isinstance(beside, Beside) else None
    names, asked = part(x.layout, MODEL), 0
    own = newest = None
    try:
        request = next(work)
        while True:
            trained = yield widen(request, x, apart, buffers)
            asked, newest = asked + 1, trained.buffers
            own = newest if request.own else own
            buffers = buffers if buffers is None or request.aside else newest
            memory = _map(trained.memory, lambda vector: vector.only(names))
            request = work.send(trained._replace(x=trained.x.only(names), memory=memory))
    except StopIteration as done:
        own = newest if own is None else own
        return done.value, asked, x.only(()) if buffers is None else buffers, own


def widen(request: Local, x: Params, apart: bool, buffers: Params | None) -> Local:
    """A request of a method that knows the model alone, as one for the model and the selector.

    ``apart``: the model is not the global one, whose norm statistics stay, and the training begins with ``buffers``.
    """
    rest = x.zeros()
    wide = request._replace(
        x=x.replace(request.x),
        anchor=None if request.anchor is None else x.replace(request.anchor),
        offset=None if request.offset is None else rest.replace(request.offset),
        shift=None if request.shift is None else rest.replace(request.shift),
        memory=_map(request.memory, rest.replace),
    )
    if not apart:
        return wide
    return wide._replace(aside=True, buffers=None if request.aside and request.own else buffers)


def _map(memory: Memory | None, change: Callable[[Params], Params]) -> Memory | None:
    """A trainer's memory with other vectors."""
    return None if memory is None else memory._replace(vectors=tuple(map(change, memory.vectors)))
