"""FedSM-extra and the ensemble: the selector of FedSM is trained after the models, with their losses.

A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 3, and appendix C.2, Algorithms 5 and 6.

Differences from the paper: those of :mod:`thinwire.algorithms.fedsm`. Equation (3-1) is printed as L(h, h_k); the label
is the k with the least loss of h_k, 0 being the global model. All K + 1 models are broadcast once, when the selector's
rounds begin. Those are extra, after ``start`` rounds of the models: a run counts both. The thesis has 100 and 50.
``form="epoch"``, of which the thesis says nothing here, is that of FedSM's selector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..errors import require
from ..key import Key
from ..local import Memory
from ..params import Params
from ..ranges import Count
from ..task import Task
from ..wire import Several, State
from .base import Client, Each, Exact, Message, Start, each_link
from .fedsm import Change, FedSM, Held
from .own import Models
from .selector import MODEL, SELECTOR, Mixed, Mixture, Nearest, part, scores
from .softpull import THESIS, SiteModel, of_client


class LateBroadcast(NamedTuple):
    """What everyone is sent, and what a client holds."""

    x: Params  # the global model, later the selector
    models: Several  # of SiteModel, once: the global one, then those of all clients
    round: int  # rounds done


class LateServer(NamedTuple):
    """What the server keeps."""

    x: Params
    opt: State
    first: Held
    held: Several
    num_clients: int
    round: int


class LateReply(NamedTuple):
    """What a client sends back."""

    update: Params  # of the global model, later of the selector
    own: Each[Any]  # a Change, later without layers


class EpochBroadcast(NamedTuple):
    """A LateBroadcast, and the selector's moments: without layers in the models' rounds."""

    x: Params
    models: Several
    round: int
    first: Exact[Params]
    second: Exact[Params]
    steps: int


class EpochServer(NamedTuple):
    """A LateServer, and the selector's moments."""

    x: Params
    opt: State
    first: Held
    held: Several
    num_clients: int
    round: int
    moments: Memory


class EpochReply(NamedTuple):
    """A LateReply, and the selector's moments."""

    update: Params
    own: Each[Any]
    first: Exact[Params]
    second: Exact[Params]


EPOCH: dict[type, Callable[..., Any]] = {
    LateBroadcast: EpochBroadcast,
    LateServer: EpochServer,
    LateReply: EpochReply,
}
"""What has the selector's moments in place of what has none."""


@dataclass(frozen=True)
class FedSMExtra(FedSM):
    """FedSM whose selector is trained after the models, to name the model with the smallest loss.

    For ``start`` rounds (the thesis' R) the global model and the clients' own are trained. Then all of them are sent to
    everyone, once and without loss, and all further rounds train the selector, which has an output for the global model
    too. Those rounds send the selector alone, with ``form="epoch"`` its moments too. K + 1 models then lie with every
    client. The selector's rounds are extra: a run of R rounds of models and S of the selector is
    ``FedSMExtra(start=R)`` for R + S rounds.

    Inference takes the model that the selector names. Raises what :class:`FedSM` raises, and ``ValueError`` for a
    ``start`` below 1 and for a ``gamma``.
    """

    paper = THESIS
    late = False  # replies of the models' rounds have other layers than those of the selector's
    remembers = "models that stand still while the selector is trained"

    start: Count = 100

    extra: ClassVar[int] = 1
    warms: ClassVar[str] = "trains no selector, without which it predicts by any of its models,"
    target: ClassVar[type[Nearest | Mixed]] = Nearest

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require(self.gamma == 0, f"{name}(gamma={self.gamma}): the selector has an output for the global model itself")

    @property
    def warm_up(self) -> int:
        return self.start

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        begun = super().init_with(x, buffers, num_clients, key)
        first: Held = begun.server.first
        server = LateServer(x, begun.server.opt, first, begun.server.held, num_clients, 0)
        blank = LateBroadcast(x.zeros(), Several([], first.model), 0)
        reply, moments = LateReply(x.zeros(), begun.reply.own), self.begin_moments(x)
        known = self.with_moments(blank, *moments.vectors, 0)
        answer = self.with_moments(reply, *moments.vectors)
        return Start(self.with_moments(server, moments), known, None, answer, known, begun.alone)

    def with_moments(self, value: Message, *moments: Any) -> Message:
        """A message or state as it is; with ``form="epoch"`` that of EPOCH, which has the selector's moments too."""
        return value if self.form == "batch" else EPOCH[type(value)](*value, *moments)

    def broadcast(self, server: State, view: State) -> Message:
        late, models = server.round - self.start, []
        model, selector = (server.x.only(part(server.x.layout, prefix)) for prefix in (MODEL, SELECTOR))
        if late == 0:
            shared = SiteModel(model, server.first.model.buffers)  # its statistics are the broadcast's, not these
            models = [shared, *(of_client(server, client).model for client in range(server.num_clients))]
        # Links with a memory open on what they carry first.
        whole = server.round == 0 and any(link.memory for link in each_link(self.down))
        x = server.x if whole else model if late < 0 else selector
        msg = LateBroadcast(x, Several(models, server.first.model), server.round)
        if self.form == "batch":
            return msg
        moments = (vector if late >= 0 else vector.only(()) for vector in server.moments.vectors)
        return self.with_moments(msg, *moments, server.moments.steps)

    def see(self, view: State, msg: Message, key: Key) -> State:
        x = view.x.replace(msg.x)
        known = msg._replace(x=x, models=view.models)
        if msg.models:
            known = msg._replace(x=x.replace(msg.models[0].x))
        if self.form == "batch":
            return known
        return known._replace(first=view.first.replace(msg.first), second=view.second.replace(msg.second))

    def supersedes(self, older: Message, newer: Message) -> bool:
        return bool(newer.models) or (not older.models and set(older.x.names) <= set(newer.x.names))

    def alone(self, server: State, client: int) -> Message:
        model = of_client(server, client).model
        return model if server.round < self.start else nothing(model)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        shared, own = view.shared, view.own
        x, models = shared.x, shared.models
        if shared.round < self.start:
            update, change = yield from self.train_models(x, own)
            return self.with_moments(LateReply(update, change), *self.no_moments(shared)), state
        each = [x.replace(model.x) for model in models]
        loss = self.target(each, [None, *(model.buffers for model in models[1:])])
        s = yield self.selector_request(x, loss, shared)
        reply = LateReply((s.x - x).only(part(x.layout, SELECTOR)), Change(*nothing(own)))
        moments = () if self.form == "batch" else self.moments_of(s.memory, shared)
        return self.with_moments(reply, *moments), state

    def no_moments(self, of: Message) -> tuple[Params, ...]:
        """Moments without layers; none where ``of`` has none."""
        return () if self.form == "batch" else (of.first.only(()), of.second.only(()))

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        layout, late = blank.update.layout, view.round >= self.start
        update = blank.update.only(part(layout, SELECTOR if late else MODEL))
        reply = blank._replace(update=update, own=Change(*nothing(SiteModel(*blank.own))) if late else blank.own)
        if self.form == "epoch" and not late:
            first, second = self.no_moments(blank)
            reply = reply._replace(first=first, second=second)
        return (reply,)

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        names, after = mean.update.names, server._replace(round=server.round + 1)
        if server.round >= self.start:
            after = after._replace(x=server.x.replace(server.x.only(names) + mean.update))
            if self.form == "batch":
                return after
            return after._replace(moments=Memory((mean.first, mean.second), server.moments.steps + self.steps))
        model, opt = self.opt.step(server.x.only(names), mean.update, server.opt)
        return after._replace(x=server.x.replace(model), opt=opt, held=self.pull_clients(server, mean.own))

    def sent_to(self, view: State, client: int) -> SiteModel:
        model: SiteModel = view.shared.models[client + 1] if view.shared.models else view.own
        return model

    def selected(self, models: Models, inputs: Any) -> Tensor:
        """The client whose model each example is for, -1 for the global one: Algorithm 5."""
        return scores(models.beside["selector"], inputs).argmax(-1) - 1


def nothing(model: SiteModel) -> SiteModel:
    """A model without layers."""
    return SiteModel(model.x.only(()), None if model.buffers is None else model.buffers.only(()))


@dataclass(frozen=True)
class Ensemble(FedSMExtra):
    """FedSM-extra whose prediction is the sum of all K + 1 models' outputs, weighted by the selector.

    The selector is trained on the loss of that sum. Rounds, bytes and refusals are those of :class:`FedSMExtra`. A
    prediction costs a forward pass of every model.
    """

    paper = THESIS

    target: ClassVar[type[Nearest | Mixed]] = Mixed

    def predict(self, models: Models, inputs: Any) -> Any:
        each = [models.module, *(models.personal(client) for client in range(models.clients))]
        return Mixture(each, models.beside["selector"])(inputs)
