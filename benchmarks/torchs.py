"""The schedules of torch.distributed.pipelining, for a model that is cut into parts already.

Each process has ``len(stages) // ranks`` of the parts, part k at rank k modulo the ranks. A schedule of torch's cuts a
batch into micro-batches, sends dense tensors, and ends with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

KINDS = {
    "GPipe": schedules.ScheduleGPipe,
    "1F1B": schedules.Schedule1F1B,
    "Interleaved1F1B": schedules.ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": schedules.ScheduleInterleavedZeroBubble,
}
SINGLE = ("GPipe", "1F1B")  # of one part a process


class Torchs:
    """This process's parts of a model, under a schedule of ``KINDS``."""

    def __init__(
        self,
        kind: str,
        stages: Sequence[nn.Module],
        micro: int,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        rank, ranks, parts = dist.get_rank(), dist.get_world_size(), len(stages)
        mine = range(rank, parts, ranks)
        self.first, self.last = 0 in mine, parts - 1 in mine
        own = [PipelineStage(stages[k], k, parts, torch.device("cpu")) for k in mine]
        made: Any = KINDS[kind]
        self.schedule = made(own[0] if kind in SINGLE else own, micro, loss_fn=loss)
        self.parameters = [p for k in mine for p in stages[k].parameters()]
        self.optimizer = optimizer(self.parameters)

    def gradients(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Those of the mean loss of a batch, in ``.grad``; returns that loss at the last part."""
        losses: list[Tensor] = []
        target = {"target": y, "losses": losses} if self.last else {}
        self.schedule.step(*([x] if self.first else []), **target, return_outputs=False)
        return torch.stack(losses).mean().detach() if losses else None

    def step(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Train with a batch."""
        self.optimizer.zero_grad()
        loss = self.gradients(x, y)
        self.optimizer.step()
        return loss
