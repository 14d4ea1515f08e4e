"""LUAR: layers whose last aggregated update is applied again instead of being sent.

Kim, Kang, Lee, "Layer-wise Update Aggregation with Recycling for Communication-Efficient
Federated Learning", NeurIPS 2025, arXiv:2503.11146, Algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense
from ..optimizers import SGD, Optimizer, passable
from ..params import Layout, Params
from ..ranges import Range
from ..task import Task
from ..wire import State
from .around import Around
from .base import Algorithm, Client, Message, Start, each_link, kinds
from .fedavg import FedAvg

EPSILON = 1e-12  # under ||x_l||: a bias that starts at zero has a finite score


class Server(NamedTuple):
    """What the server keeps."""

    inner: State
    last: Params  # the update applied in the round before
    score: Tensor  # [units], float64: s_l of the last round in which the unit was really sent
    recycled: Tensor  # [layers], bool: R_t


class Broadcast(NamedTuple):
    """What everyone is sent."""

    inner: Message
    recycled: Tensor


class Both(NamedTuple):
    """What the server keeps where clients repeat recycled updates."""

    inner: State
    last: Params
    score: Tensor
    recycled: Tensor
    unsent: Tensor  # [layers], bool: R_t of the last round
    round: int  # rounds done


class Steps(NamedTuple):
    """What everyone is sent where clients repeat recycled updates: at first the model, then what moves it."""

    inner: Message
    update: Params  # of the layers that were sent up
    recycled: Tensor
    round: int


class Held(NamedTuple):
    """What a client holds then."""

    inner: State
    last: Params  # the update of the layers that are recycled now; zero elsewhere
    recycled: Tensor
    round: int


@dataclass(frozen=True)
class LUAR(Around):
    """Each round ``recycle`` layers are not sent; the server applies their last update again.

    The layers are drawn without replacement, likelier the smaller ||update|| / ||weights||
    (``select="metric"``), the smaller ||update|| ("gradient-norm"), all alike ("uniform"), or
    in turn ("round-robin"). ``layers`` says what counts as one: tensors of more than one
    dimension, the rest being sent always ("kernels", as in the authors' code), every tensor
    ("tensors"), or all tensors of a module together ("modules"). Tensors without entries are none.
    ``drop`` applies nothing where it would recycle.

    ``both`` saves downwards too: everyone is sent the model once and then the updates of the layers that were not
    recycled, and clients apply the recycled ones again themselves. The model is that of ``both=False``, bit for bit.
    Where a client was away it is sent all updates that it missed, or the model and the updates that are recycled now,
    whichever is fewer bytes. So it saves where clients take part in most rounds: with a share s of the bytes recycled,
    one that missed m rounds is sent (m + 1) (1 - s) models, at most 1 + s, where ``both=False`` sends it one.

    Works over any algorithm whose reply has an ``update``. Where the server's optimiser has a state (Momentum, Adam,
    Yogi, Adagrad, and the momentum of FedACG and DOMO), a recycled layer goes ``past`` it, as in the authors' code: it
    steps by its last update as it was averaged, times the server's rate, and its momentum and moments stay as they are.
    With ``past=False`` the optimiser gets the last update again, as if all layers had been sent. A momentum beta then
    counts an update that is recycled for long 1 / (1 - beta) times. Optimisers without a state (SGD, MajorityVote) make
    the same step either way. :meth:`~thinwire.algorithms.base.Algorithm.bypass` is how a method says what goes past.

    Raises ``ValueError`` where ``recycle`` is negative or leaves no layer to be sent, and
    :class:`~thinwire.errors.CombinationError` over a method without one averaged update of the model,
    and over one whose server remembers every update that was sent (FedDyn). ``both`` raises it over anything but FedAvg
    and what its arguments make of it with ``opt=SGD(...)`` and ``down=Dense()``: clients could not repeat the step.
    ``past`` raises it over a method or an optimiser of one's own that does not say how a layer goes past its state.

    Differences from the paper: nothing is recycled in the first round, because there is no earlier
    update (the listing's R_0 is all layers). The score of a layer is that of the last round in which
    it was sent. A layer with a low score is likelier to be recycled, as equation (2) has it;
    section 3.2 says "less likely". The mean is weighted as the inner method's ``weights`` says, by
    examples unless told otherwise; the paper averages uniformly. ``both`` and ``past=False`` are not in the paper.
    The momentum of the authors' clients goes on over the rounds, one for each worker of the cohort, whichever client it
    trains; here it begins at zero in every round, or goes on with its client (``LocalSGD(keep=True)``). The LBGM that
    they compare with tests the whole vector against a threshold of .95; ``Layerwise(LBGM(...))`` tests layer by layer.
    """

    paper = "Kim, Kang, Lee, NeurIPS 2025, arXiv:2503.11146"
    late = False  # an earlier round's reply leaves out other layers
    nests = ("server", "view")
    chained = False  # only the newest broadcast says which layers are recycled

    recycle: Annotated[int, Range(lambda x: x >= 0, "is a number of layers, 0 or more")]
    layers: Literal["kernels", "tensors", "modules"] = "kernels"
    select: Literal["metric", "uniform", "round-robin", "gradient-norm"] = "metric"
    drop: bool = False
    both: bool = False
    past: bool = True

    def __post_init__(self) -> None:
        if self.both and not _repeatable(self.inner):
            raise CombinationError(
                f"LUAR({self.inner!r}, both=True): clients repeat the server's step, which they can over FedAvg and "
                f"what its arguments make of it (FedProx, MOON, FedNTD), with opt=SGD(...) and down=Dense(); leave "
                f"both at False"
            )
        if isinstance(self.inner, LUAR):
            raise CombinationError("LUAR over LUAR: the outer one would recycle what the inner one did not send")
        if self.inner.remembers:
            raise CombinationError(
                f"LUAR over {type(self.inner).__name__}: its server keeps {self.inner.remembers}, which a layer that "
                f"is recycled and not sent would put out of step"
            )

    @property
    def whole(self) -> bool:
        return self.inner.whole and not self.both

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        inner = self.inner.init_with(x, buffers, num_clients, key)
        update = getattr(inner.reply, "update", None)
        if not isinstance(update, Params) or not _layers_of(update.layout, x.layout):
            raise CombinationError(f"LUAR needs a reply with an update of the model; {self.inner!r} has none")
        shared = update.layout  # all layers, but for those that stay with their clients
        if kinds(type(inner.reply))["update"] == "each":  # type: ignore[arg-type]  # a class has a hash
            raise CombinationError(
                f"LUAR recycles layers of one aggregated update; {self.inner!r} has an update of each client's own "
                f"(Each[...]), and no aggregate of it"
            )
        if self.past:
            _passable(self.inner, inner.server, shared, lambda method: method.init_with(x, buffers, num_clients, key))
        num = len(self.units(shared))
        require(num > 0, f"LUAR(layers={self.layers!r}): the model has no {self.layers}; try layers='tensors'")
        require(
            self.recycle < num,
            f"LUAR(recycle={self.recycle}): at most {num - 1}, the model has {num} {self.layers} and one must be sent",
        )
        nothing = torch.zeros(len(shared.names), dtype=torch.bool, device="cpu")
        server = Server(inner.server, shared.zeros(), torch.zeros(num, dtype=torch.float64, device="cpu"), nothing)
        if self.both:
            blank = Steps(inner.view, shared.zeros(), nothing, 0)
            view = Held(inner.view, shared.zeros(), nothing, 0)
            return Start(Both(*server, nothing, 0), view, inner.client, inner.reply, blank, inner.alone)
        message = None if inner.message is None else Broadcast(inner.message, nothing)
        return Start(server, Broadcast(inner.view, nothing), inner.client, inner.reply, message, inner.alone)

    def broadcast(self, server: State, view: State) -> Message:
        inner = self.inner.broadcast(server.inner, view.inner)
        if not self.both:
            return Broadcast(inner, server.recycled)
        if server.round == 0:
            return Steps(inner, server.last.only(()), server.recycled, 0)
        sent = server.last.drop(server.last.layout.named(server.unsent))
        return Steps(inner._replace(x=inner.x.only(())), sent, server.recycled, server.round)

    def see(self, view: State, msg: Message, key: Key) -> State:
        if not self.both:
            return Broadcast(self._reader(view, msg).see(view.inner, msg.inner, key), msg.recycled)
        if msg.round == view.round and not msg.inner.x.names:
            return view  # the same again: nobody answered in the round before
        if msg.inner.x.names:
            x, update = msg.inner.x, view.last.zeros().replace(msg.update)
        else:
            update = view.last.replace(msg.update)  # of those not sent the last one; with `drop` zero
            x, _ = self.inner.opt.step(view.inner.x, update, None)  # type: ignore[attr-defined]  # of FedAvg
        kept = update.only(() if self.drop else update.layout.named(msg.recycled))
        return Held(view.inner._replace(x=x), update.zeros().replace(kept), msg.recycled, msg.round)

    def supersedes(self, older: Message, newer: Message) -> bool:
        if self.both:
            same: bool = older.round == newer.round
            return same
        return self.inner.supersedes(older.inner, newer.inner)

    def afresh(self, view: State) -> Message | None:
        if not self.both:
            return None
        recycled = () if self.drop else view.last.layout.named(view.recycled)
        return Steps(view.inner, view.last.only(recycled), view.recycled, view.round)

    def take(self, view: State, msg: Message) -> State:
        return view._replace(inner=self.inner.take(view.inner, msg))

    def depart(self, view: State, owed: Message, lam: float = 0.0) -> State:
        return view._replace(inner=self.inner.depart(view.inner, owed, lam))

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        reply, state = yield from self.inner.client(view.inner, state, task, key)
        return reply._replace(update=reply.update.drop(reply.update.layout.named(view.recycled))), state

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        recycled = blank.update.layout.named(view.recycled)
        inner = self.inner.outlines(view.inner, blank, key)
        return [one._replace(update=one.update.only(set(one.update.names) - set(recycled))) for one in inner]

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x = self.inner.model(server.inner).only(server.last.names)
        unsent = x.zeros() if self.drop else server.last
        update = unsent.replace(mean.update)  # Alg. 1 line 5
        units = self.units(x.layout)
        sent = [unit[0] in mean.update.layout.spans for unit in units]
        score = torch.where(torch.tensor(sent, device="cpu"), self._score(update, x, units), server.score)
        chosen = self._select(score, key)
        recycled = x.layout.mask(name for unit in chosen for name in units[unit])  # line 8
        absent = x.layout.mask(set(x.names) - set(mean.update.names))
        inner = self._around(x.layout.named(absent)).server(server.inner, view.inner, mean._replace(update=update), key)
        if self.both:
            return Both(inner, update, score, recycled, absent, server.round + 1)
        return Server(inner, update, score, recycled)

    def units(self, layout: Layout) -> list[list[str]]:
        """What counts as one layer: lists of tensor names."""
        if self.layers == "modules":
            modules: dict[str, list[str]] = {}
            for name in layout.names:
                modules.setdefault(name.rpartition(".")[0], []).append(name)
            return list(modules.values())
        spans = layout.spans.items()
        return [[name] for name, (_, size, shape) in spans if size and (self.layers == "tensors" or len(shape) > 1)]

    def _around(self, layers: Sequence[str]) -> Algorithm:
        """The inner method for a round in which these layers are recycled."""
        return self.inner.bypass(layers) if self.past and layers else self.inner

    def _reader(self, view: State, msg: Message) -> Algorithm:
        """The inner method for a message after which a client has recycled the layers that ``view`` names."""
        x = getattr(msg.inner, "x", None)
        if self.inner.whole or not isinstance(x, Params) or len(x.names) != len(view.recycled):
            return self.inner  # no step is read off it
        return self._around(x.layout.named(view.recycled))

    def _score(self, update: Params, x: Params, units: Sequence[Sequence[str]]) -> Tensor:
        """s_l of equation (1), or the plain norm."""
        moved = [update.only(unit).norm() for unit in units]
        if self.select == "gradient-norm":
            return torch.tensor(moved, dtype=torch.float64, device="cpu")
        weights = [x.only(unit).norm() + EPSILON for unit in units]
        return torch.tensor([m / w for m, w in zip(moved, weights, strict=True)], dtype=torch.float64, device="cpu")

    def _select(self, score: Tensor, key: Key) -> list[int]:
        """R_{t+1}, as indices of units."""
        num = len(score)
        if self.recycle == 0:
            return []
        if self.select == "round-robin":
            return [(key.round * self.recycle + i) % num for i in range(self.recycle)]
        p = torch.ones_like(score) if self.select == "uniform" else 1 / score.clamp_min(1e-30)  # equation (2)
        return torch.multinomial(p, self.recycle, generator=key.generator("recycle")).tolist()


def _repeatable(inner: Algorithm) -> bool:
    """Whether clients that have the mean update can make the server's step themselves."""
    same = (type(inner).server, type(inner).broadcast) == (FedAvg.server, FedAvg.broadcast)
    steps = isinstance(inner, FedAvg) and isinstance(inner.opt, SGD)
    return same and steps and all(link == Dense() for link in each_link(inner.down))


def _passable(method: Algorithm, server: State, shared: Layout, init: Callable[[Algorithm], Start]) -> None:
    """Raise :class:`CombinationError` where a layer cannot go past what a method's server keeps.

    ``init`` makes the start of a method. Known are the model, what the optimisers in fields keep, and where a method
    goes around another one what that keeps.
    """
    known = 1
    for value in vars(method).values():
        if isinstance(value, Optimizer):
            passable(value, shared.zeros())
            known += len(_like(shared, value.init(shared.zeros())))
    if isinstance(method, Around):
        inner = init(method.inner).server
        _passable(method.inner, inner, shared, init)
        known = len(_like(shared, inner))
    vectors = _like(shared, server)
    if len(vectors) > known and type(method).bypass is Algorithm.bypass:
        name = type(method).__name__
        raise CombinationError(
            f"LUAR over {name}: its server keeps {' and '.join(vectors)}, each like the model, and does not say what "
            f"becomes of them where a layer is recycled: keep a momentum by an optimizer in a field (opt=Momentum()), "
            f"write {name}.bypass (`return super().bypass(layers)` if there is none), or LUAR(..., past=False)"
        )


def _like(layout: Layout, state: State) -> list[str]:
    """The fields of a state that hold a vector with these layers."""
    return [name for name, part in _leaves(state) if isinstance(part, Params) and _layers_of(layout, part.layout)]


def _leaves(state: State, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of a state that hold a value, and what their fields are called."""
    if isinstance(state, tuple | list | dict):
        names = getattr(state, "_fields", None) or (state if isinstance(state, dict) else [name] * len(state))
        for own, part in zip(names, state.values() if isinstance(state, dict) else state, strict=True):
            yield from _leaves(part, str(own))
    else:
        yield name, state


def _layers_of(part: Layout, whole: Layout) -> bool:
    """Whether one layout is of some layers of another, in their order."""
    return set(part.names) <= set(whole.names) and bool(part.names) and whole.only(part.names) == part
