"""What is broadcast, what a client makes of it, what it does, what the server does.

An algorithm is a frozen dataclass; its states go in and come out. Most need only ``init``,
``client`` and ``server``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    get_type_hints,
    runtime_checkable,
)

from torch import Tensor, nn

from ..config import Config
from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense, Link
from ..local import Local, LocalSGD, Trained, Trainer
from ..optimizers import Optimizer, Past
from ..params import Params
from ..passing import Inner, pass_on
from ..task import Task
from ..wire import State

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
Adapting = Generator[Local, Trained, Params]


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


@runtime_checkable
class Models(Protocol):
    """What a run comes to, as a prediction needs it: modules on the CPU, in evaluation mode."""

    module: nn.Module  # that all share
    clients: int  # how many there are
    beside: Mapping[str, nn.Module]

    def personal(self, client: int) -> nn.Module:
        """The module with a client's own model."""


@dataclass(frozen=True)
class Algorithm(Config, ABC):
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
    chained: ClassVar[bool] = False
    """Whether the first broadcast of a chain carries the final state of the chain before.

    Broadcasts that supersede one another form a chain (Intrinsic: an epoch). If this is true, a client that received
    any message of the old chain may skip the rest of it once the next chain has begun.
    """

    personal_models: ClassVar[bool] = False
    """Whether :meth:`model` gives clients models of their own."""
    at_server: ClassVar[bool] = False
    """Whether these models lie in the server's state, and none of them with its client."""

    local = cast("Trainer", LocalSGD())  # not annotated: no field here, but one of each method, at its own place
    personal = cast("Link | dict[str, Link]", Dense())  # a field of those methods whose server writes to one client

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
    def _written(cls) -> list[Field[Any]]:
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

    def alone(self, server: State, client: int) -> Message:
        """What this client alone is sent in the round, beside the broadcast; its fields are absolute values.

        ``Start.alone`` is a blank of it, and ``personal`` the link of its Params fields. It is made for sampled clients
        only, from the newest state.
        """
        raise NotImplementedError(f"{type(self).__name__} says in Start.alone that it writes to single clients")

    def take(self, view: State, msg: Message) -> State:
        """What :meth:`client` is given as its view: made of the one that all share, and of what it alone was sent.

        It is kept for this round only. By default the message is the view.
        """
        return msg

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

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        """What is evaluated and saved: by default ``server.x``.

        A method with ``personal_models`` returns the own model of ``client`` where one is named. It may lie with the
        server, in ``server``, or with the client: ``own`` is what that client keeps, the state that ``sent`` returned,
        or before its first reply the one of ``init``.
        """
        x: Params = server.x
        return x

    def statistics(self, server: State, client: int | None = None) -> Params | None:
        """The norm statistics that belong to :meth:`model`, where the method's server keeps them; None where not."""
        return None

    def weigh(self, examples: int) -> float:
        """What a reply of a client with so many examples weighs, before weights are normalised."""
        if self.weights == "steps":
            return float(self.local.num_steps(examples))
        return float(examples) if self.weights == "examples" else 1.0

    def at_client(self, view: State, client: int | None, own: State) -> Params | None:
        """:meth:`model` as a client knows it, which has a ``view`` in place of the server's state.

        ``own`` is what the client keeps, or for the shared model (``client`` None) the client's state of ``init``. By
        default it is what ``model`` makes of the view, which has to have what that reads: ``x``, unless it is written
        otherwise. None for a shared model that clients do not know.
        """
        return self.model(view, client, own)

    def statistics_at_client(self, view: State, client: int) -> Params | None:
        """:meth:`statistics` of a client's own model as the client knows them; None where the server keeps none."""
        return None

    def own_statistics(self, own: State) -> bool:
        """Whether a client's own model has norm statistics of its own: those of its training as ``Local(own=True)``.

        ``own`` is what the client keeps. By default they are those of the shared model.
        """
        return False

    def beside(self, module: nn.Module) -> Mapping[str, nn.Module]:
        """What is trained beside the user's module in the one that :meth:`assemble` made, by name: FedSM's selector."""
        return {}

    def predict(self, models: Models, inputs: Any) -> Any:
        """What the trained models make of a batch of inputs. By default the one that all share is asked."""
        return models.module(inputs)

    def selected(self, models: Models, inputs: Any) -> Tensor:
        """The client whose model :meth:`predict` takes for each example, -1 for the shared one; [examples], int64."""
        raise ValueError(f"{self!r} selects no client's model: it has one answer for all examples")

    def served(self, server: State) -> Params | None:
        """A model that is evaluated and saved beside :meth:`model`, such as an average. None, the default: no other."""
        return None

    def adapt(self, x: Params, task: Task, key: Key) -> Adapting:
        """A client's own model as it is evaluated, made of its :meth:`model` and its examples. By default ``x`` itself.

        ``trained = yield Local(...)`` trains as in :meth:`client`; what is returned is kept by nobody.
        """
        yield from ()
        return x

    def afresh(self, view: State) -> Message | None:
        """A broadcast after which any client has this ``view``, whatever it heard before.

        It is sent in place of the whole view to those who missed too much. None, the default: the view is sent.
        """
        return None

    def supersedes(self, older: Message, newer: Message) -> bool:
        """Whether a client that is sent ``newer`` needs no ``older``: see(see(v, older), newer) == see(v, newer)."""
        return type(self).see is Algorithm.see


@dataclass(frozen=True)
@pass_on(Algorithm, assemble=("prepare",), init_with=("init",), weigh=("weights", "local"))
class Around(Algorithm):
    """An algorithm around another one, ``inner``: what it does not write is the inner one's, given what it was given.

    So a wrapper that keeps the inner one's states and messages writes only what it changes. One that holds them in
    states and messages of its own, as LUAR does, writes every method that is given one of those. ``assemble``,
    ``init_with``, ``weigh`` and ``whole`` are made of ``prepare``, ``init``, ``weights``, ``local`` and ``see``, where
    it writes these.
    """

    inner: Algorithm

    late: ClassVar[Any] = Inner()
    remembers: ClassVar[Any] = Inner()
    chained: ClassVar[Any] = Inner()
    personal_models: ClassVar[Any] = Inner()
    at_server: ClassVar[Any] = Inner()
    warm_up: ClassVar[Any] = Inner()
    warms: ClassVar[Any] = Inner()
    local: ClassVar[Any] = Inner()  # type: ignore[misc]
    personal: ClassVar[Any] = Inner()  # type: ignore[misc]
    up: ClassVar[Any] = Inner()  # type: ignore[misc]
    down: ClassVar[Any] = Inner()  # type: ignore[misc]
    weights: ClassVar[Any] = Inner()  # type: ignore[misc]
    buffers: ClassVar[Any] = Inner()  # type: ignore[misc]

    bypass = Algorithm.bypass  # a wrapper around what that of ``inner`` returns

    @property
    def whole(self) -> bool:
        return type(self).see is Around.see and self.inner.whole

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return self.inner.init(x, num_clients, key)

    def broadcast(self, server: State, view: State) -> Message:
        return self.inner.broadcast(server, view)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        return self.inner.client(view, state, task, key)

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        return self.inner.server(server, view, mean, key)


def adapts(algorithm: Algorithm) -> bool:
    """Whether a client's own model is made of its examples when it is asked for (``adapt``), and lies nowhere."""
    return _writes(algorithm, "adapt")


def predicts(algorithm: Algorithm) -> bool:
    """Whether a prediction is another than that of the model that all share (``predict``)."""
    return _writes(algorithm, "predict")


def _writes(algorithm: Algorithm, name: str) -> bool:
    """Whether a method, or one that it goes around, has a half of this name of its own."""
    while isinstance(algorithm, Around) and getattr(type(algorithm), name) is getattr(Around, name):
        algorithm = algorithm.inner
    return getattr(type(algorithm), name) is not getattr(Algorithm, name)


def asking(work: Client, change: Callable[[Local], Local]) -> Client:
    """The client's round ``work``, whose requests for training are passed on as ``change`` makes them.

    In a wrapper's ``client``: ``reply, state = yield from asking(self.inner.client(...), change)``.
    """
    try:
        request = next(work)
        while True:
            request = work.send((yield change(request)))
    except StopIteration as done:
        reply, state = done.value
        return reply, state


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
