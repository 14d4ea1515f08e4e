"""FedSM: a global model, a model for each client, and a selector that says which of them an example is for.

A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 3, Algorithms 2 and 3;
A. Xu et al., "Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation", CVPR 2022,
arXiv:2203.10144.

Differences from the paper: a client trains the three models one after the other, each on mini-batches of its own; the
listing takes a step of each on the same mini-batch. Clients send changes of models, not models. Weights are normalised
over those who replied. ``opt`` steps the global model alone; the selector is averaged. The mean of the selector and of
the global model is weighted as ``weights`` says, by examples as in the listing, or by local steps as in the authors'
code. ``form="epoch"`` is that of the authors' code: Adam at the selector takes one step an epoch, along the gradient of
all the client's examples (in memory at once), and its moments are averaged over clients and sent out again. A round
takes 2 w_g + w_s each way with "batch" and 2 w_g + 3 w_s with "epoch"; the thesis says 2 w_g + w_s. ``up`` and ``down``
leave the moments as they are, unless a dict names them. Whose models are mixed with partial participation,
:mod:`thinwire.algorithms.softpull` says, and what other methods in SoftPull's place send,
:mod:`thinwire.algorithms.in_place`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense, Link
from ..local import Local, LocalAdam, LocalSGD, Loss, Memory, Trained, Trainer
from ..optimizers import SGD, Optimizer
from ..params import Params
from ..ranges import Fraction, Range
from ..task import Task
from ..wire import Several, State
from .around import adapts
from .base import Algorithm, Client, Each, Exact, Message, Start
from .in_place import InPlace
from .own import Adapting, Models
from .selector import MODEL, SELECTOR, Labelled, Super, join_selector, part, scores
from .softpull import THESIS, SiteModel, of_client, pull_all


class Held(NamedTuple):
    """What the server keeps of one client: its model, and its norm statistics."""

    client: int
    model: SiteModel


class Server(NamedTuple):
    """What the server keeps."""

    x: Params  # the global model w_g and the selector w_s
    opt: State  # of w_g
    moments: Memory  # of the selector's Adam: vectors without layers for "batch"
    first: Held  # what a client begins with
    held: Several  # of Held: w_p,k of each client that has replied
    round: int  # rounds done


class Broadcast(NamedTuple):
    """What everyone is sent."""

    x: Params
    first: Exact[Params]  # Adam's moments: where a link made the second one 0, a step would be enormous
    second: Exact[Params]
    steps: int


class View(NamedTuple):
    """What a client goes by in a round."""

    shared: Message
    own: SiteModel


class Change(NamedTuple):
    """What became of a client's own model."""

    update: Params
    buffers: Params | None


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params  # of w_g and w_s
    first: Exact[Params]
    second: Exact[Params]
    own: Each[Any]  # a Change


H = TypeVar("H", bound=Callable[..., Any])


def or_in_place(hook: H) -> H:
    """A hook of FedSM with SoftPull; where ``personal`` is a method, that of :class:`InPlace` of the same name."""

    @wraps(hook)
    def either(self: FedSM, *args: Any) -> Any:
        if isinstance(self.personal, Algorithm):
            return getattr(InPlace(self), hook.__name__)(*args)
        return hook(self, *args)

    return cast("H", either)


@dataclass(frozen=True)
class FedSM(Algorithm):
    """FedAvg, a model for each client by :class:`SoftPull`, and a selector trained to tell clients' examples apart.

    ``local`` trains the global model and, anew, the client's own. ``selecting`` trains the selector, label = client:
    with ``form="batch"`` as it is, with "epoch" by one step an epoch of :class:`LocalAdam`. ``lam`` is SoftPull's.
    ``result.predict(x)`` takes the model of the client that the selector names where its confidence is above ``gamma``,
    else the global model.

    ``personal`` is the link of the model that SoftPull sends a client, or a method in SoftPull's place:
    ``FT(FedAvg())``, ``APFL()``, ``Ditto()``, ``PerFedAvg()``, ``pFedMe()``, or one of your own that sends what FedAvg
    sends. Clients' models are then that method's, trained by its own ``local``. Messages (``up``, ``down``,
    ``weights``, ``buffers``) and the global model are FedSM's, and ``lam`` is left out. FT, APFL and Ditto share
    FedAvg's model: with the same ``local`` and ``opt`` as FedSM it is the global one, trained and sent once. Else the
    method's shared model crosses the wire too. Each client sends what its own model is made of, which no link codes
    and the server keeps. FT and Per-FedAvg make clients' models of their examples, when they are asked for: nothing of
    them is sent, and the server of a deployment, which has no examples, cannot predict with them.

    ``selector`` is a model of :mod:`thinwire.models` by its name, for examples of ``shape``, or ``"module:function"``,
    a function of the number of outputs. By default it follows from the model's first layer: ``vgg_small`` for pictures,
    ``mlp`` for rows of numbers, ``fasttext`` for texts.

    The server keeps a model for each client that has replied, and as many again where ``personal`` has a memory.

    Raises ``ValueError`` for a ``lam`` or ``gamma`` outside [0, 1], for a single client, and for a selector that cannot
    be made or has norm statistics, and :class:`~thinwire.errors.CombinationError` for ``form="epoch"`` with a
    ``selecting`` other than LocalAdam, and for a method in ``personal`` that keeps no models with its clients, sends
    other messages than FedAvg's, or sets what is FedSM's.
    """

    paper = THESIS
    personal_models = True

    local: Trainer = LocalSGD()
    lam: Fraction = 0.7
    gamma: Annotated[float, Range(lambda x: 0 <= x <= 1, "is a share, 0 to 1")] = 0.0
    selecting: Trainer = LocalAdam(0.001)
    form: Literal["batch", "epoch"] = "batch"
    selector: str = ""
    shape: tuple[int, ...] | None = None
    opt: Optimizer = SGD(1.0)
    personal: Link | dict[str, Link] | Algorithm = field(default=Dense(), kw_only=True)  # type: ignore[assignment]

    extra: ClassVar[int] = 0  # outputs of the selector beside one a client

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.form == "epoch" and not isinstance(self.selecting, LocalAdam):
            raise CombinationError(
                f"{name}(form='epoch') averages the moments of Adam, which {type(self.selecting).__name__} has not: "
                f"use selecting=LocalAdam(0.001)"
            )
        require(
            not self.selecting.keep,
            f"{name}(selecting={self.selecting!r}): the selector's trainer begins at the server's moments or at rest; "
            f"leave keep at False",
        )
        if isinstance(self.personal, Algorithm):
            InPlace(self).check()

    @property
    def at_server(self) -> bool:  # type: ignore[override]  # it depends on the method
        return not self.adapting

    @property
    def adapting(self) -> bool:
        return isinstance(self.personal, Algorithm) and adapts(self.personal)

    def bypass(self, layers: Sequence[str]) -> Algorithm:
        method = super().bypass(layers)
        assert isinstance(method, FedSM)
        return replace(method, personal=self.personal)  # what its server keeps goes past no layer

    def assemble(self, module: nn.Module, num_clients: int) -> nn.Module:
        return join_selector(module, self.selector, self.shape, num_clients + self.extra)

    def finish(self, module: nn.Module) -> nn.Module:
        assert isinstance(module, Super)
        return module.model

    def beside(self, module: nn.Module) -> Mapping[str, nn.Module]:
        assert isinstance(module, Super)
        return {"selector": module.selector}

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return self.init_with(x, None, num_clients, key)

    @or_in_place
    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        name = type(self).__name__
        require(
            num_clients > 1,
            f"{name} pulls a client's model towards the mean of the others', and there is one client: use FedAvg",
        )
        model, moments = self.halves(x)[0], self.begin_moments(x)
        buffers = buffers if self.buffers == "mean" else None
        first = Held(-1, SiteModel(model, buffers))
        server = Server(x, self.opt.init(model), moments, first, Several([], first), 0)
        change = Change(model.zeros(), buffers)
        m, v = moments.vectors
        blank = Reply(x.zeros(), m, v, change)
        return Start(server, Broadcast(x.zeros(), m, v, 0), None, blank, None, first.model)

    def halves(self, x: Params) -> tuple[Params, Params]:
        """The model and the selector. Raises :class:`CombinationError` where one of them is missing."""
        model, selector = (x.only(part(x.layout, prefix)) for prefix in (MODEL, SELECTOR))
        if not model.names or not selector.names:
            name = type(self).__name__
            raise CombinationError(f"{name} needs a model with a selector beside it, as its `assemble` makes it")
        return model, selector

    def begin_moments(self, x: Params) -> Memory:
        """The selector's moments before round 1: without layers for "batch"."""
        return Memory((self.halves(x)[1].zeros() if self.form == "epoch" else x.only(()),) * 2, 0)

    @or_in_place
    def broadcast(self, server: State, view: State) -> Message:
        m, v = server.moments.vectors
        return Broadcast(server.x, m, v, server.moments.steps)

    def alone(self, server: State, client: int) -> Message:
        return of_client(server, client).model

    def take(self, view: State, msg: Message) -> State:
        return View(view, msg)

    @or_in_place
    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x, own = view.shared.x, view.own
        assert key.client is not None
        update, change = yield from self.train_models(x, own)
        s = yield self.selector_request(x, Labelled(key.client), view.shared)._replace(aside=True)  # line 11
        m, v = self.moments_of(s.memory, view.shared)
        return Reply((s.x - x).replace(update), m, v, change), state

    def train_models(self, x: Params, own: SiteModel) -> Generator[Local, Trained, tuple[Params, Change]]:
        """The change of the global model, and that of the client's own: lines 8 and 9."""
        names = own.x.names
        y = yield Local(x, self.local)
        v = yield Local(x.replace(own.x), replace(self.local, keep=False), aside=True, buffers=own.buffers)
        buffers = own.buffers if own.buffers is None or v.buffers is None else v.buffers
        return (y.x - x).only(names), Change(v.x.only(names) - own.x, buffers)

    def selector_request(self, x: Params, loss: Loss, shared: Message) -> Local:
        """The selector's training."""
        if self.form == "batch":
            return Local(x, self.selecting, loss=loss)
        trainer = replace(self.selecting, steps=self.steps, batch=None)
        vectors = tuple(x.zeros().replace(m) for m in (shared.first, shared.second))
        return Local(x, trainer, loss=loss, memory=Memory(vectors, shared.steps))

    @property
    def steps(self) -> int:
        """Steps that the selector takes in a round with "epoch"."""
        return self.selecting.steps or max(1, round(self.selecting.epochs))

    def moments_of(self, memory: Memory | None, shared: Message) -> tuple[Params, ...]:
        """What goes back of Adam's moments."""
        if self.form == "batch":
            return shared.first, shared.second
        assert memory is not None
        return tuple(m.only(shared.first.names) for m in memory.vectors)

    @or_in_place
    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        held = self.pull_clients(server, mean.own)
        return Server(*self.step_shared(server, mean), server.first, held, server.round + 1)

    def step_shared(self, server: State, mean: Message) -> tuple[Params, State, Memory]:
        """The global model after a step of ``opt`` and the selector after that of its clients, with what is kept."""
        model, selector = (mean.update.only(part(mean.update.layout, prefix)) for prefix in (MODEL, SELECTOR))
        x, opt = self.opt.step(server.x.only(model.names), model, server.opt)  # line 15
        x = server.x.replace(x).replace(server.x.only(selector.names) + selector)
        moments = server.moments
        if self.form == "epoch":
            moments = Memory((mean.first, mean.second), moments.steps + self.steps)
        return x, opt, moments

    def pull_clients(self, server: State, changes: Message) -> Several:
        """Clients' models after their changes and SoftPull: line 16."""
        held = {one.client: one.model for one in server.held}
        for client, update in changes.update.items():
            x = held.get(client, server.first.model).x + update
            held[client] = SiteModel(x, None if changes.buffers is None else changes.buffers[client])
        clients = sorted(held)
        models = pull_all([held[client] for client in clients], self.lam)
        return Several(list(map(Held, clients, models)), server.first)

    @or_in_place
    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        x: Params = server.x
        return x if client is None else x.replace(of_client(server, client).model.x)

    @or_in_place
    def statistics(self, server: State, client: int | None = None) -> Params | None:
        return None if client is None else of_client(server, client).model.buffers

    def sent_to(self, view: State, client: int) -> SiteModel:
        """The client's own model, as it was sent."""
        model: SiteModel = view.own
        return model

    @or_in_place
    def at_client(self, view: State, client: int | None, own: State) -> Params:
        x: Params = view.shared.x
        return x if client is None else x.replace(self.sent_to(view, client).x)

    @or_in_place
    def statistics_at_client(self, view: State, client: int) -> Params | None:
        return self.sent_to(view, client).buffers

    @or_in_place
    def own_statistics(self, own: State) -> bool:
        return super().own_statistics(own)

    @or_in_place
    def adapt(self, x: Params, task: Task, key: Key) -> Adapting:
        return super().adapt(x, task, key)

    # -- prediction ---------------------------------------------------------

    def selected(self, models: Models, inputs: Any) -> Tensor:
        """The client whose model each example is for, -1 for the global one: Algorithm 3."""
        shares = scores(models.beside["selector"], inputs).softmax(-1)
        best = shares.max(-1)
        return torch.where(best.values > self.gamma, best.indices, -1)

    def predict(self, models: Models, inputs: Any) -> Any:
        return answers(models, inputs, self.selected(models, inputs))


def answers(models: Models, inputs: Any, clients: Tensor) -> Tensor:
    """Each example's output by the model of its client, -1 being the global one."""
    if not len(clients):
        return models.module(inputs)  # type: ignore[no-any-return]  # of no examples
    outputs: Tensor | None = None
    for client in sorted(set(clients.tolist())):
        rows = clients == client
        out = (models.module if client < 0 else models.personal(client))(inputs[rows])
        if outputs is None:
            outputs = out.new_empty((len(clients), *out.shape[1:]))
        outputs[rows] = out
    assert outputs is not None
    return outputs
