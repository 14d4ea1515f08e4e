"""MOON: local features are drawn to those of the global model, away from those of the last local one.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, arXiv:2103.16257, Algorithm 1.

The server is FedAvg's, and so are the bytes: the last local model stays with its client.

Differences from the paper: the representation is taken from a layer of the user's model, by default what enters its
last ``nn.Linear``. No projection head is added. A client that has not trained before takes the initial model for its
last local one, as in the authors' code. This costs no bytes: every client makes the initial model from the run's seed.
In round 1 the initial model is also the model that is broadcast, and the contrast adds mu log 2 to the loss and
nothing to its gradient. The two models that features are compared with run in evaluation mode, with the norm
statistics of this round's broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require
from ..key import Key
from ..local import Local, Loss, Net
from ..params import Params
from ..ranges import NonNegative, Positive
from ..task import Batch, Task
from ..wire import State
from .base import Client, Start
from .features import last_linear, layer, pass_through
from .fedavg import FedAvg, Reply


@dataclass(frozen=True)
class Contrast(Loss):
    """l + mu * -log(e^(cos(z, z_x) / tau) / (e^(cos(z, z_x) / tau) + e^(cos(z, z_last) / tau)))."""

    x: Params
    last: Params
    mu: float
    temperature: float
    layer: str | None

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        with torch.no_grad():
            near, far = (self.features(net.other(x), task, batch)[1] for x in (self.x, self.last))
        losses, z = self.features(net.module, task, batch)
        there, back = F.cosine_similarity(z, near), F.cosine_similarity(z, far)
        return losses + self.mu * F.softplus((back - there) / self.temperature)

    def features(self, module: nn.Module, task: Task, batch: Batch) -> tuple[Float[Tensor, " b"], Float[Tensor, "b f"]]:
        name, side = (self.layer, "output") if self.layer is not None else (last_linear(module) or "", "input")
        losses, z = pass_through(module, task, batch, name, side)
        require(
            len(z) == len(losses),
            f"MOON(layer={self.layer!r}): a layer that gives one row an example is wanted; layer {name!r} gives "
            f"{list(z.shape)} for {len(losses)} examples",
        )
        return losses, z.flatten(1)


@dataclass(frozen=True, kw_only=True)
class MOON(FedAvg):
    """FedAvg whose clients add a contrastive loss of features, mu times, at a temperature (tau).

    ``layer`` names the layer of the model whose output is the representation, as
    ``model.named_modules()`` has it ("features.7"); None takes what enters the last
    ``nn.Linear``. Each local step takes two more forward passes, and each client keeps one model
    in memory. Raises ``ValueError`` for a negative ``mu``, a ``temperature`` that is not positive, a
    ``layer`` that the model does not have, and a model without an ``nn.Linear`` where ``layer`` is None.
    """

    paper = "Li, He, Song, CVPR 2021, arXiv:2103.16257"

    mu: NonNegative = 1.0
    temperature: Positive = 0.5
    layer: str | None = None

    def prepare(self, module: nn.Module) -> nn.Module:
        if self.layer is not None:
            layer(module, self.layer, f"MOON(layer={self.layer!r})")
        elif last_linear(module) is None:
            names = ", ".join(name for name, _ in module.named_modules() if name)
            raise ValueError(
                f"MOON(): the model has no nn.Linear; name the layer whose output is the representation: {names}"
            )
        return module

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return super().init(x, num_clients, key)._replace(client=x)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        last: Params = state  # the model that this client trained when it last took part
        y = yield Local(view.x, self.local, loss=Contrast(view.x, last, self.mu, self.temperature, self.layer))
        return Reply(update=y.x - view.x), y.x
