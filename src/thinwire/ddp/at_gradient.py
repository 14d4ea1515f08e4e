"""Any link in a live training loop, in the place where DistributedDataParallel averages gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import require
from ..params import Params
from .exchange import Ends, average, ends
from .handle import Compressed, Named, frozen, thawed
from .methods import Hook


class AtGradient(Compressed):
    """After a backward pass every rank's gradients are the mean of what all links delivered.

    NaN or infinity in the gradients of any rank becomes infinity in those of all, so every rank's GradScaler skips
    the step. The links keep nothing of it.
    """

    local = False

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        method: Hook,
        named: Named,
        group: dist.ProcessGroup,
        seed: int,
        debug: bool,
    ) -> None:
        super().__init__(model, optimizers, method, named, group, seed, debug)
        self.method = method
        self.gradient = Params.of((n, torch.zeros_like(p, device="cpu")) for n, p in named)
        self.places = {p: self.gradient[n] for n, p in named}
        self.ends = ends(method.link, self.gradient.layout, self.group.size)
        self.hooks += [optimizer.register_state_dict_post_hook(self.stamped) for optimizer in optimizers]
        self.waiting: list[tuple[torch.futures.Future[Tensor], Tensor, list[Tensor], list[Tensor]]] = []

    def bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Into its place; when the last one is there, all are sent, and the means go back into the buckets.

        By parameter and not by bucket: DDP rebuilds its buckets after the first step.
        """
        if bucket.index() == 0:
            self.waiting = []  # a backward pass may have raised half-way
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        gradients, places = bucket.gradients(), [self.places[p] for p in bucket.parameters()]
        torch._foreach_copy_(places, gradients)
        self.waiting.append((future, bucket.buffer(), gradients, places))
        if bucket.is_last():
            waiting, self.waiting = self.waiting, []
            arrived = self._averaged()
            for waits, buffer, grads, at in waiting:
                if arrived is None:
                    buffer.fill_(torch.inf)
                else:
                    torch._foreach_copy_(grads, at)
                waits.set_result(buffer)
        return future

    @torch.no_grad()
    def _averaged(self) -> Params | None:
        self.remember()
        talk = average(self.method.link, self.ends, self.gradient, self.key())
        arrived: Params | None = self.drive(talk, "sending")
        self.count()
        if arrived is not None:
            self.gradient.flat.copy_(arrived.flat)
        return arrived

    def kept(self) -> dict[str, Any]:
        return {"link": frozen([self.ends.sender, self.ends.receivers])}

    def take(self, state: dict[str, Any]) -> None:
        self.ends = Ends(*thawed(state["link"], [self.ends.sender, self.ends.receivers]))

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        require(
            self.ends.sender is None and self.ends.receivers is None,
            f"{self.name} keeps a link's state on every rank, which has no meaning for {self.group.size} ranks where "
            f"there were {len(states)}: compress anew without a state",
        )
