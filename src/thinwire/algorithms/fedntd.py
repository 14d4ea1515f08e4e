"""FedNTD: what the global model knows about the classes that are not the right one is kept.

Lee, Jeong, Shin, Bae, Yun, "Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning", NeurIPS 2022, arXiv:2106.03097, Algorithm 1.

The server is FedAvg's, and so are the bytes.

Differences from the paper: the distillation loss is multiplied by tau^2, as in the authors' code,
so that its gradient does not shrink with the temperature. The global model runs in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from ..errors import require
from ..key import Key
from ..local import Local, Loss, Net
from ..params import Params
from ..ranges import NonNegative, Positive
from ..task import Batch, Task, labels
from ..wire import State
from .base import Client
from .features import pass_through
from .fedavg import FedAvg, Reply


@dataclass(frozen=True)
class NotTrue(Loss):
    """l + beta tau^2 KL(global || local), both softmaxes at tau over all classes but the right one."""

    x: Params
    beta: float
    temperature: float

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        targets = labels(batch, "FedNTD")
        with torch.no_grad():
            _, told = pass_through(net.other(self.x), task, batch, "", "output")
        losses, outputs = pass_through(net.module, task, batch, "", "output")
        require(
            outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1,
            f"FedNTD needs a score for each of two classes or more, beside every target; the model gives "
            f"{list(outputs.shape)} for targets of {list(targets.shape)}",
        )
        ours, theirs = (F.log_softmax(others(o, targets) / self.temperature, -1) for o in (outputs, told))
        apart = (theirs.exp() * (theirs - ours)).sum(-1)  # KL, one value a target
        return losses + self.beta * self.temperature**2 * apart.view(len(losses), -1).mean(1)


def others(outputs: Float[Tensor, "*b c"], targets: Int64[Tensor, "*b"]) -> Float[Tensor, "*b rest"]:
    """The scores of all classes but the right one."""
    wrong = torch.ones_like(outputs, dtype=torch.bool).scatter_(-1, targets.unsqueeze(-1), value=False)
    return outputs[wrong].view(*outputs.shape[:-1], -1)


@dataclass(frozen=True, kw_only=True)
class FedNTD(FedAvg):
    """FedAvg whose clients add beta times a distillation of the global model's not-true classes.

    ``temperature`` is the paper's tau. For tasks whose batches are (inputs, targets) with whole
    numbers as targets, and whose model gives a score a class. A sequence counts as one example, the
    mean over its tokens. Each local step takes one more forward pass. Raises ``ValueError`` for a
    negative ``beta``, for a ``temperature`` that is not positive, and in training for a model whose
    outputs are no scores of two classes or more.
    """

    paper = "Lee et al., NeurIPS 2022, arXiv:2106.03097"

    beta: NonNegative = 1.0
    temperature: Positive = 1.0

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, self.local, loss=NotTrue(view.x, self.beta, self.temperature))
        return Reply(update=y.x - view.x), state
