"""What is broadcast, what a client makes of it, what it does, what the server does.

An algorithm is a frozen dataclass; its states go in and come out. Most need only ``init``,
``client`` and ``server``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_type_hints

from torch import nn

from ..config import Config
from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense, Link
from ..local import Local, LocalSGD, Trained, Trainer
from ..params import Params
from ..task import Task
from ..wire import State

T = TypeVar("T")
Each = Annotated[T, "each"]
"""A field of a reply that is not averaged: the server gets a dict by client."""
Sum = Annotated[T, "sum"]
"""A field of a reply that is summed without weights."""

Weights = Literal["examples", "uniform"]
Buffers = Literal["mean", "local"]
Message = Any  # a NamedTuple of Params, tensors, numbers and such NamedTuples
Client = Generator[Local, Trained, tuple[Message, State]]


@cache
def kinds(reply: type) -> dict[str, str]:
    """What becomes of each field of a reply, from its annotation: "mean", "each" or "sum"."""
    hints = get_type_hints(reply, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: next((m for m in marks[name] if m in ("each", "sum")), "mean") for name in marks}


class Start(NamedTuple):
    """Everything before round 1."""

    server: State
    view: State  # what a client holds that has heard nothing yet
    client: State
    reply: Message  # a blank one: field types, layouts, what the links open on
    message: Message = None  # a blank broadcast with all its fields; None: the first has them all


class Algorithm(Config, ABC):
    """Both halves of a federated method.

    ``local`` is how clients train. ``up`` carries the Params fields of a reply, ``down`` those of
    a broadcast; a dict by field name where they differ. ``weights`` is how replies are averaged.
    ``buffers`` says what becomes of float buffers (the statistics of norm layers): averaged with
    the same weights and broadcast, whole, or kept by each client (the model that all share is then
    evaluated with the statistics it started with, each client's own model with its own).
    """

    example = "FedAvg()"

    late: ClassVar[bool] = False
    """Whether a reply to an earlier broadcast may be averaged with replies to the newest one."""
    remembers: ClassVar[str] = ""
    """Why LUAR must not go around this method; empty if it may.

    It names what server and clients both compute from every update that was sent, and what recycling would put out of
    step.
    """

    local: Trainer = LocalSGD()
    up: Link | dict[str, Link] = Dense()
    down: Link | dict[str, Link] = Dense()
    weights: Weights = "examples"
    buffers: Buffers = "mean"

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

    @abstractmethod
    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        """The states before round 1, for the initial model ``x``."""

    @abstractmethod
    def broadcast(self, server: State, view: State) -> Message:
        """One message for everyone; its fields are absolute values."""

    def see(self, view: State, msg: Message, key: Key) -> State:
        """What a client makes of a broadcast. By default the message is the view."""
        return msg

    @abstractmethod
    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        """A client's round: ``trained = yield Local(...)``, then ``return reply, state``."""

    def sent(self, state: State, seen: Message) -> State:
        """The client's state once it knows what the server will see of its reply."""
        return state

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

    @abstractmethod
    def model(self, server: State, client: int | None = None) -> Params:
        """What is evaluated and saved; with ``client``, that client's own model where it has one."""

    chained = False
    """Whether the first broadcast of a chain carries the final state of the chain before.

    Broadcasts that supersede one another form a chain (Intrinsic: an epoch). If this is true, a client that received
    any message of the old chain may skip the rest of it once the next chain has begun.
    """

    def supersedes(self, older: Message, newer: Message) -> bool:
        """Whether a client that is sent ``newer`` needs no ``older``: see(see(v, older), newer) == see(v, newer)."""
        return type(self).see is Algorithm.see


class Around(Algorithm):
    """An algorithm around another one, ``inner``: what it does not change is the inner one's."""

    inner: Algorithm

    @property
    def remembers(self) -> str:  # type: ignore[override]
        return self.inner.remembers

    @property
    def local(self) -> Trainer:  # type: ignore[override]
        return self.inner.local

    @property
    def up(self) -> Link | dict[str, Link]:  # type: ignore[override]
        return self.inner.up

    @property
    def down(self) -> Link | dict[str, Link]:  # type: ignore[override]
        return self.inner.down

    @property
    def weights(self) -> Weights:  # type: ignore[override]
        return self.inner.weights

    @property
    def buffers(self) -> Buffers:  # type: ignore[override]
        return self.inner.buffers

    def prepare(self, module: nn.Module) -> nn.Module:
        return self.inner.prepare(module)

    def finish(self, module: nn.Module) -> nn.Module:
        return self.inner.finish(module)

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        return self.inner.admit(view, reply, examples, clip)

    def model(self, server: State, client: int | None = None) -> Params:
        return self.inner.model(server.inner, client)


def own_pull(algorithm: Algorithm, local: Trainer, field: str) -> None:
    """Raise ``ValueError`` where ``local`` has a ``prox``: the method's own ``field`` sets the pull."""
    name = type(algorithm).__name__
    require(not local.prox, f"{name}(local={local!r}): {name} pulls by its own {field}; leave prox at 0")


def plain_steps(algorithm: Algorithm, local: Trainer, otherwise: str = "") -> None:
    """Raise :class:`CombinationError` for a trainer other than SGD without momentum.

    The method computes a client's mean gradient as (x - y) / (sum of learning rates), which holds for plain SGD alone.
    ``otherwise`` is what the user may write instead.
    """
    said = f"{type(algorithm).__name__} reads the mean gradient off the distance a client went"
    if not isinstance(local, LocalSGD):
        raise CombinationError(
            f"{said}, and a step of {type(local).__name__} is no multiple of a gradient: use LocalSGD{otherwise}"
        )
    if local.momentum:
        raise CombinationError(f"{said}, which local momentum={local.momentum} stretches: use momentum=0{otherwise}")
