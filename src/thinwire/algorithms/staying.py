"""FedBN, FedPer and FedRep: some layers stay with their client and are never sent; the others are averaged.

FedBN: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR
2021, arXiv:2102.07623, Algorithm 1. FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with
Personalization Layers", 2019, arXiv:1912.00818, Algorithms 1 and 2. FedRep: Collins, Hassani, Mokhtari, Shakkottai,
"Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, arXiv:2102.07078, Algorithm 1.

Differences from the papers: clients send the change of the shared layers, not the layers. Replies are averaged by
``weights``, examples by default; FedBN's and FedRep's listings average alike. All clients begin with the same layers
at home, those of the initial model; FedPer's and FedRep's begin with their own. FedRep's replies are averaged over the
clients that took part, and a client that is drawn trains head and body; the listing is the same. FedRep's head goes on
from where the client left it, and the body is trained as ``local`` says, where the listing has one step.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import torch
from torch import nn

from ..errors import CombinationError, require
from ..key import Key
from ..local import Local
from ..params import Layout, Params
from ..ranges import AboveZero
from ..task import Task
from ..wire import State
from .base import Buffers, Client, Message, Start
from .fedavg import Broadcast, Reply, Server
from .personal import Personal

NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
)


def matching(names: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The names that match any of some patterns such as ``"*.bias"``."""
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


@dataclass(frozen=True, kw_only=True)
class Staying(Personal):
    """FedAvg of the layers that do not stay. A client's own model is these, with its own layers beside them.

    The model that all share (``result.module``) has the layers that stay as they were before round 1.
    """

    @abstractmethod
    def home(self, layout: Layout) -> tuple[str, ...]:
        """The names of the layers that stay. Raises ``ValueError`` for patterns that fit no layer."""

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        home = self.home(x.layout)
        require(
            len(home) < len(x.names), f"{type(self).__name__}: every layer stays with its client, nothing would be sent"
        )
        shared = x.drop(home)
        zero = shared.zeros()
        return Start(Server(x, self.opt.init(shared)), Broadcast(zero), x, Reply(zero))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x.drop(self.home(server.x.layout)))

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(state.replace(view.x), self.local)
        return Reply(y.x.only(view.x.names) - view.x), y.x

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        shared, opt = self.opt.step(server.x.only(mean.update.names), mean.update, server.opt)
        return Server(server.x.replace(shared), opt)

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        x: Params = server.x
        return x if client is None else x.replace(own.only(self.home(x.layout)))

    def at_client(self, view: State, client: int | None, own: State) -> Params:
        x: Params = own.replace(view.x)
        return x


@dataclass(frozen=True, kw_only=True)
class FedPer(Staying):
    """FedAvg of the base layers; the personalisation layers, by default the last module, stay with their client.

    ``stay`` are patterns of names of layers, such as ``("head.*", "*.bias")``. None: all layers of the last module.
    The empty tuple is FedAvg.

    Raises ``ValueError`` for a pattern that fits no layer, and where all layers would stay.
    """

    paper = "Arivazhagan et al., 2019, arXiv:1912.00818"

    stay: tuple[str, ...] | None = None

    def home(self, layout: Layout) -> tuple[str, ...]:
        if self.stay is None:
            module = layout.names[-1].rpartition(".")[0]
            return tuple(name for name in layout.names if name.rpartition(".")[0] == module)
        for pattern in self.stay:
            require(
                bool(matching(layout.names, (pattern,))),
                f"{type(self).__name__}(stay=...): no layer is named {pattern!r}; the layers are "
                f"{', '.join(layout.names)}",
            )
        return matching(layout.names, self.stay)


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """The head, which stays, is trained alone for ``head_epochs`` first; then the body alone, as ``local`` says.

    ``stay`` names the head as in :class:`FedPer`. ``head_epochs`` are passes over the client's examples; everything
    else about them is as ``local`` says, whose ``steps`` are the body's alone.

    Raises ``ValueError`` as FedPer does, and for ``head_epochs`` that are not positive, and
    :class:`~thinwire.errors.CombinationError` for a ``local`` with ``keep=True``.
    """

    paper = "Collins et al., ICML 2021, arXiv:2102.07078"

    head_epochs: AboveZero = 10.0

    def __post_init__(self) -> None:
        if self.local.keep:
            raise CombinationError(
                "FedRep trains head and body in turn, and the momentum of one is none of the other: use keep=False"
            )

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x = state.replace(view.x)
        body = x.zeros().replace(view.x.map(torch.ones_like))
        head = body.map(torch.ones_like) - body
        y = yield Local(x, replace(self.local, epochs=self.head_epochs, steps=None), mask=head)  # Alg. 1, tau updates
        z = yield Local(y.x, self.local, mask=body)
        return Reply(z.x.only(view.x.names) - view.x), z.x


@dataclass(frozen=True, kw_only=True)
class FedBN(Staying):
    """FedAvg of all but norm layers, which stay with their client: weights, biases and, as ``buffers``, statistics.

    ``stay`` are patterns of their names. The default has those of layers named ``norm`` or ``bn``. For others they have
    to be written: ``FedBN(stay=("1.*", "4.*"))`` for a ``Sequential``. A model without norm layers is trained as by
    FedAvg.

    Raises ``ValueError`` for a model with a norm layer that ``stay`` leaves out, or with another layer of torch's that
    has such a name, and where all layers would stay.
    """

    paper = "Li et al., ICLR 2021, arXiv:2102.07623"

    stay: tuple[str, ...] = ("*norm*", "*bn*")
    buffers: Buffers = field(default="local", kw_only=True)

    def prepare(self, module: nn.Module) -> nn.Module:
        norms = (name for name, layer in module.named_modules() if isinstance(layer, NORMS))
        names = {name: [f"{name}.{p}" for p, _ in module.get_submodule(name).named_parameters()] for name in norms}
        left = [name for name, own in names.items() if len(matching(tuple(own), self.stay)) < len(own)]
        needed = ", ".join(repr(f"{name}.*") for name in left)
        require(not left, f"FedBN(stay={self.stay}): norm layers of this model have other names; add {needed}")
        if self.stay == type(self).stay:
            patterns = tuple(f"{name}.*" for name in names)
            for name, layer in module.named_modules():
                own = [f"{name}.{p}" for p, _ in layer.named_parameters(recurse=False)]
                by_name = matching(tuple(own), self.stay) and not matching(tuple(own), patterns)
                require(
                    not (by_name and type(layer).__module__.startswith("torch.nn.")),
                    f"FedBN(stay={self.stay}): {name}, a {type(layer).__name__}, has the name of a norm layer; name "
                    f"those that stay, stay={patterns}",
                )
        return module

    def home(self, layout: Layout) -> tuple[str, ...]:
        return matching(layout.names, self.stay)
