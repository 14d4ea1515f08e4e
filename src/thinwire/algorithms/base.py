"""What is broadcast, what a client makes of it, what it does, what the server does.

An algorithm is a frozen dataclass; its states go in and come out. Most need only ``init``,
``client`` and ``server``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast, get_type_hints

from torch import nn

from ..config import Config
from ..errors import CombinationError
from ..key import Key
from ..links import Dense, Link
from ..local import Local, LocalSGD, Trained, Trainer
from ..optimizers import Optimizer, Past
from ..params import Params
from ..task import Task
from ..wire import State
from .own import Own

T = TypeVar("T")
Each = Annotated[T, "each"]
"""A field of a reply that is not averaged: the server gets a dict by client."""
Sum = Annotated[T, "sum"]
"""A field of a reply that is summed without weights."""
Exact = Annotated[T, "exact"]
"""A Params field that a link for all fields leaves as it is. A dict of links may name it."""

Weights = Literal["examples", "uniform", "steps"]
SHARED = ("up", "down", "weights", "buffers")  # the fields of every method
Buffers = Literal["mean", "local"]
Message = Any  # a NamedTuple of Params, tensors, numbers and such NamedTuples
Client = Generator[Local, Trained, tuple[Message, State]]


def link_of(links: Link | dict[str, Link], field: str) -> Link:
    """The link of a field, of one for all or of a dict by field name."""
    return links.get(field, Dense()) if isinstance(links, dict) else links


def each_link(links: Link | dict[str, Link]) -> list[Link]:
    """The links in what a message is sent by."""
    return list(links.values()) if isinstance(links, dict) else [links]


@cache
def kinds(reply: type) -> dict[str, str]:
    """What becomes of each field of a reply, from its annotation: "mean", "each" or "sum"."""
    hints = get_type_hints(reply, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: next((m for m in marks[name] if m in ("each", "sum")), "mean") for name in marks}


@cache
def exact(message: type) -> frozenset[str]:
    """The fields that are annotated as :data:`Exact`."""
    hints = get_type_hints(message, include_extras=True)
    return frozenset(name for name, hint in hints.items() if "exact" in getattr(hint, "__metadata__", ()))


class Start(NamedTuple):
    """Everything before round 1."""

    server: State
    view: State  # what a client holds that has heard nothing yet
    client: State
    reply: Message  # a blank one: field types, layouts, what the links open on
    message: Message = None  # a blank broadcast with all its fields; None: the first has them all
    alone: Message = None  # a blank of what one client alone is sent; None: nothing


@dataclass(frozen=True)
class Algorithm(Own, Config, ABC):
    """Both halves of a federated method.

    ``local`` is how clients train: a field that each method declares where it wants it. Four more fields are every
    method's, and keyword-only. ``up`` carries the Params fields of a reply, ``down`` those of a broadcast; a dict by
    field name where they differ. ``weights`` is how replies are averaged: by examples, by local steps, or all alike.
    ``buffers`` says what becomes of float buffers (the statistics of norm layers): averaged with the same weights and
    broadcast, whole, or kept by each client (the model that all share is then evaluated with the statistics it started
    with, each client's own model with its own).
    """

    example = "FedAvg()"

    late: ClassVar[bool] = False
    """Whether a reply to an earlier broadcast may be averaged with replies to the newest one."""
    remembers: ClassVar[str] = ""
    """Why LUAR must not go around this method; empty if it may.

    It names what server and clients both compute from every update that was sent, and what recycling would put out of
    step.
    """
    scalable: ClassVar[bool] = True
    """Whether a reply of half the length says half as much. Masks, and other values as they are, do not."""
    chained: ClassVar[bool] = False
    """Whether the first broadcast of a chain carries the final state of the chain before.

    Broadcasts that supersede one another form a chain (Intrinsic: an epoch). If this is true, a client that received
    any message of the old chain may skip the rest of it once the next chain has begun.
    """

    local = cast("Trainer", LocalSGD())  # not annotated: no field here, but one of each method, at its own place

    up: Link | dict[str, Link] = field(default=Dense(), kw_only=True)
    down: Link | dict[str, Link] = field(default=Dense(), kw_only=True)
    weights: Weights = field(default="examples", kw_only=True)
    buffers: Buffers = field(default="mean", kw_only=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        annotations = vars(cls).get("__annotations__", {})
        for name in SHARED:  # declared again, for another default, they stay keyword-only
            value = vars(cls).get(name)
            constant = "ClassVar" in str(annotations.get(name, "ClassVar"))
            if not constant and value is not None and not isinstance(value, Field):
                setattr(cls, name, field(default=value, kw_only=True))

    @classmethod
    def _in_order(cls) -> list[Field[Any]]:
        return sorted(fields(cls), key=lambda f: bool(f.kw_only))  # as in the signature

    @property
    def whole(self) -> bool:
        """Whether a broadcast is all that clients go by, whatever they heard before.

        So it is where the message is the view. ``down=PerClient(...)`` needs that.
        """
        return type(self).see is Algorithm.see

    warms: ClassVar[str] = "saves nothing"
    """What the method does in the rounds of :attr:`warm_up`, in words."""

    @property
    def warm_up(self) -> int:
        """Rounds before the method begins to do what it is for."""
        return 0

    def prepare(self, module: nn.Module) -> nn.Module:
        """The module that is trained, e.g. re-parameterised; unchanged by default."""
        return module

    def finish(self, module: nn.Module) -> nn.Module:
        """The trained module as its user wrote it: what :meth:`prepare` did is undone."""
        return module

    def assemble(self, module: nn.Module, num_clients: int) -> nn.Module:
        """:meth:`prepare`, for a method whose module depends on the number of clients."""
        return self.prepare(module)

    @abstractmethod
    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        """The states before round 1, for the initial model ``x``."""

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        """:meth:`init`, for a method that keeps norm statistics itself: ``buffers`` are the initial ones, if any."""
        return self.init(x, num_clients, key)

    @abstractmethod
    def broadcast(self, server: State, view: State) -> Message:
        """One message for everyone; its fields are absolute values."""

    def see(self, view: State, msg: Message, key: Key) -> State:
        """What a client makes of a broadcast. By default the message is the view."""
        return msg

    def depart(self, view: State, owed: Message, lam: float = 0.0) -> State:
        """What :meth:`client` is given as its view: with ``lam`` a client begins ahead of the model it was sent.

        ``owed`` is a blank reply whose Params fields have what the client's links add to its next message: layers in
        any order, and none where a link owes nothing. The model ``x`` of the view moves by ``lam`` times what is owed
        of ``update``. :class:`Detached` gives ``lam``. A method whose view has its model elsewhere writes this. Raises
        :class:`~thinwire.errors.CombinationError` where there is no such ``x`` or no such ``update``.
        """
        if not lam:
            return view
        x, update = getattr(view, "x", None), getattr(owed, "update", None)
        if not isinstance(x, Params) or not isinstance(update, Params) or not set(update.names) <= set(x.names):
            raise CombinationError(
                f"{self!r}: its clients do not send an update of a model x that their view has, so they cannot begin "
                f"ahead of it: leave Detached away"
            )
        return view._replace(x=x + x.zeros().replace(update) * lam)

    @abstractmethod
    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        """A client's round: ``trained = yield Local(...)``, then ``return reply, state``."""

    def sent(self, state: State, seen: Message) -> State:
        """The client's state once it knows what the server will see of its reply."""
        return state

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        """The layers that clients' replies have in a round: ``blank`` (``Start.reply``) with these alone in its fields.

        A reply that has other ones is refused. Several outlines are those that a client may choose among. ``view`` is
        what all clients hold, ``key`` that of the client in the round. By default every field has all layers. A method
        whose clients leave layers out writes this, as LUAR does of those that it recycles: a layer that comes from some
        and not from others counts as zero in these.
        """
        return (blank,)

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        """A client's reply after checks, for clients that need not be honest. By default the reply as it is.

        Links check Params fields, and the runner clips them. A method whose reply has other fields checks those here.
        It raises ``WireError`` (:func:`~thinwire.errors.check`) for numbers that no honest client with so many
        ``examples`` can send. With ``clip``, no field may move the model more than a Params field of that Euclidean
        norm would: a longer one is returned shortened. ``view`` is what the client holds.

        What ``clip`` means: of every Params field, mean, ``Sum`` or ``Each``, the Euclidean norm of what was decoded
        (in FLSS's, Intrinsic's and FetchSGD's messages that of the coefficients, or of the sketch). ClusteredLBGM:
        also of rho times its centroid. FedDyn: ``replies`` has to be 1. FedGen: ``labels`` are at most ``examples``.
        Norm statistics (``buffers="mean"``) are not clipped. A run with ``clip`` refuses a method that has other
        fields and no ``admit`` of its own.
        """
        return reply

    @abstractmethod
    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        """The server's round, given the mean reply."""

    def bypass(self, layers: Sequence[str]) -> Algorithm:
        """The method for a round in which these layers go past what its server keeps of them, as LUAR recycles them.

        Its ``server`` steps them by the mean update as it is, at the server's rate, and leaves the momentum and moments
        that are kept of them as they were. Its ``see`` takes the step from a model to the next one as such a step. By
        default the optimisers among the attributes, and the method that this one goes around, are told so. A method
        whose server has a momentum in another way writes this. So does one whose server keeps other vectors like the
        model, to say that they are none: ``return super().bypass(layers)``.
        """
        method = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Optimizer):
                object.__setattr__(method, name, Past(value, tuple(layers)))
            elif isinstance(value, Algorithm):
                object.__setattr__(method, name, value.bypass(layers))
        return method

    def weigh(self, examples: int) -> float:
        """What a reply of a client with so many examples weighs, before weights are normalised."""
        if self.weights == "steps":
            return float(self.local.num_steps(examples))
        return float(examples) if self.weights == "examples" else 1.0

    def afresh(self, view: State) -> Message | None:
        """A broadcast after which any client has this ``view``, whatever it heard before.

        It is sent in place of the whole view to those who missed too much. None, the default: the view is sent.
        """
        return None

    def supersedes(self, older: Message, newer: Message) -> bool:
        """Whether a client that is sent ``newer`` needs no ``older``: see(see(v, older), newer) == see(v, newer)."""
        return type(self).see is Algorithm.see
