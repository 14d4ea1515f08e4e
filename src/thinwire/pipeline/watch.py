"""How stale a part's gradients are: what moved between a batch's forward pass and the step that its gradient makes.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Lemma 1.4.1 and Section 1.5.4: the gradient of DSP differs from that
of backpropagation by no more than a multiple of how far parameters moved meanwhile.

Differences from the thesis: it draws the length of the difference by the number of parameters; here are that number and
the lengths of both vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..wire import State
from .losses import scale, share

if TYPE_CHECKING:
    from .stage import Stage


class Watch:
    """The watch over one part. It holds a copy of the parameters for each forward pass that waits for its way back."""

    def __init__(self) -> None:
        self.left: deque[tuple[int, Tensor | None]] = deque()  # of each micro-batch, in the order of the stage's queue
        self.moved: list[float] = []  # of each that went back
        self.gradient: tuple[int, Tensor] | None = None  # of the last step: its batch, and what was added up for it

    def forward(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """A micro-batch goes forward with these parameters, which are there after ``version`` steps."""
        known = self.left[-1] if self.left else None
        same = known is not None and known[0] == version
        self.left.append(known if known is not None and same else (version, _flat(weights.values())))

    def backward(self, weights: Mapping[str, Tensor]) -> None:
        """The oldest one goes back, and the parameters are these."""
        _, before = self.left.popleft()
        if before is not None:
            self.moved.append(float((_flat(weights.values()) - before).double().norm()))

    def step(self, batch: int, weights: Mapping[str, Tensor]) -> None:
        """The optimiser makes a step with the gradients that ``weights`` have."""
        self.gradient = batch, _flat(torch.zeros_like(p) if p.grad is None else p.grad for p in weights.values())

    def state(self) -> State:
        """The state that the next entries of ``moved`` depend on."""
        return [[version, before] for version, before in self.left]

    def load(self, state: Sequence[Sequence[Any]] | None, waiting: int) -> None:
        """Go on from :meth:`state`. None is that of a training that was not watched: ``waiting`` ones are left out."""
        self.left = deque((v, b) for v, b in state) if state is not None else deque([(-1, None)] * waiting)


def mean_moved(stage: Stage) -> float | None:
    """||x - x'||, the mean over micro-batches that went back since it was asked for; None where none did."""
    assert stage.watch is not None
    moved, stage.watch.moved = stage.watch.moved, []
    return sum(moved) / len(moved) if moved else None


def size(stage: Stage) -> float:
    """||x|| of a part."""
    return float(_flat(stage.trained.values()).double().norm())


def parameters(stage: Stage) -> int:
    """How many a part trains."""
    return sum(p.numel() for p in stage.trained.values())


def due(stage: Stage) -> int | None:
    """The batch with whose gradient the part makes the last step of its next tick; None where it makes none."""
    ops = stage.schedule.tick(stage.part, stage.parts, stage.given, stage.first)
    return next((op.batch for op in reversed(ops) if op.do == "step"), None)


def backpropagate(stages: Sequence[Stage], part: int, batch: int, x: Tensor, y: Tensor) -> Float[Tensor, " d"]:
    """The gradient of a part's parameters by backpropagation of a batch through all parts as they are now.

    Nothing changes. Links between parts take no part. Random layers draw what they draw in training.
    """
    pieces, total = stages[0].schedule.pieces, None
    parameters = list(stages[part].trained.values())
    for micro, (h, targets) in enumerate(zip(x.chunk(pieces), y.chunk(pieces), strict=True)):
        for stage in stages:
            h = stage.plain(h.to(stage.device), batch, micro)
        own = share(targets, y, pieces)
        loss = scale(stages[-1].settings.loss, h, targets.to(h.device), own, pieces) / pieces
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = _flat(torch.zeros_like(p) if g is None else g for p, g in zip(parameters, slopes, strict=True))
        total = flat if total is None else total + flat
    assert total is not None
    return total


def difference(stage: Stage, batch: int, by: Float[Tensor, " d"]) -> float:
    """How far the gradient of a part's last step, which was that of ``batch``, is from another."""
    assert stage.watch is not None
    assert stage.watch.gradient is not None
    made, gradient = stage.watch.gradient
    assert made == batch
    return float((gradient - by).double().norm())


@torch.no_grad()
def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])
