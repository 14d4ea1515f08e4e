"""How stale a part's gradients are: what moved between a batch's forward pass and the step that its gradient makes.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Lemma 1.4.1 and Section 1.5.4: the gradient of DSP differs from that
of backpropagation by no more than a multiple of how far parameters moved meanwhile.

There are two gradients by backpropagation to compare with. That of :func:`backpropagate` by default is at the
parameters as they are when the step is made, which is what plain training would do next. That of :func:`lemma` is at
the *forward* parameters, those with which the batch went forward at each part, as Lemma 1.4.1 has it.

Differences from the thesis: it draws the length of the difference by the number of parameters; here are that number and
the lengths of both vectors. The lemma's bound has constants L and M, which nobody knows; here is the distance by the
sum of the ways, which is a lower bound of L M.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..wire import State
from .losses import scale, share

if TYPE_CHECKING:
    from .stage import Stage


class Watch:
    """The watch over one part. It holds a copy of the parameters for each forward pass that waits for its way back.

    It also keeps those of the ``behind`` newest batches that went back, which the parts before have still to take back.
    """

    def __init__(self, behind: int = 0) -> None:
        # Of each micro-batch, in the order of the stage's queue: its batch, steps before it, parameters.
        self.left: deque[tuple[int, int, Tensor | None]] = deque()
        self.gone: deque[tuple[int, Tensor, float]] = deque(maxlen=behind + 1)  # batch, parameters ahead, ||x - x'||
        self.moved: list[float] = []  # of each that went back
        self.gradient: tuple[int, Tensor] | None = None  # of the last step: its batch, and what was added up for it

    def forward(self, batch: int, version: int, weights: Mapping[str, Tensor]) -> None:
        """A micro-batch goes forward with these parameters, which are there after ``version`` steps."""
        known = self.left[-1] if self.left else None
        same = known is not None and known[1] == version
        self.left.append((batch, version, known[2] if known is not None and same else _flat(weights.values())))

    def backward(self, weights: Mapping[str, Tensor]) -> None:
        """The oldest one goes back, and the parameters are these."""
        batch, _, before = self.left.popleft()
        if before is not None:
            self.moved.append(float((_flat(weights.values()) - before).double().norm()))
            self.gone.append((batch, before, self.moved[-1]))

    def ahead(self, batch: int) -> Float[Tensor, " d"] | None:
        """The parameters with which a batch went forward, where it is on its way or has just come back."""
        known = ((b, x) for b, x in [(b, x) for b, _, x in self.left] + [(b, x) for b, x, _ in self.gone])
        return next((x for b, x in known if b == batch), None)

    def way(self, batch: int) -> float | None:
        """||x - x'|| of a batch that has just come back."""
        return next((moved for b, _, moved in self.gone if b == batch), None)

    def step(self, batch: int, weights: Mapping[str, Tensor]) -> None:
        """The optimiser makes a step with the gradients that ``weights`` have."""
        self.gradient = batch, _flat(torch.zeros_like(p) if p.grad is None else p.grad for p in weights.values())

    def state(self) -> State:
        """The state that the next entries of ``moved``, and the next :func:`lemma`, depend on."""
        return {"left": [list(each) for each in self.left], "gone": [list(each) for each in self.gone]}

    def load(self, state: Any, waiting: int) -> None:
        """Go on from :meth:`state`. None is that of a training that was not watched: ``waiting`` ones are left out.

        So are those of checkpoints from before there was ``gone``.
        """
        known: Any = state if isinstance(state, Mapping) else {"left": [(-1, -1, None)] * waiting, "gone": []}
        self.left = deque((n, v, b) for n, v, b in known["left"])
        self.gone.clear()
        self.gone.extend((n, b, moved) for n, b, moved in known["gone"])


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


def backpropagate(
    stages: Sequence[Stage], part: int, batch: int, x: Tensor, y: Tensor, at: Sequence[Tensor] | None = None
) -> Float[Tensor, " d"]:
    """The gradient of a part's parameters by backpropagation of a batch through all parts.

    The parts are as they are now, or hold the parameters ``at``, a vector a part. Nothing changes. Links between parts
    take no part. Random layers draw what they draw in training.
    """
    if at is not None:
        with _placing(stages, at):
            return backpropagate(stages, part, batch, x, y)
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


class Lemma(NamedTuple):
    """The quantities of Lemma 1.4.1 for the last step of a part."""

    difference: float  # of its gradient from that of backpropagation at the forward parameters
    gradient: float  # the length of the latter
    ways: float  # ||x - x'|| of the step's batch, added up over this part and those after it

    @property
    def ratio(self) -> float | None:
        """The difference by the ways, at most L M of the lemma's assumptions; None where nothing moved."""
        return self.difference / self.ways if self.ways else None


def lemma(stages: Sequence[Stage], part: int, x: Tensor, y: Tensor) -> Lemma | None:
    """Lemma 1.4.1 for the last step of a part, which was that of the batch ``x``, ``y``: its left side, and the ways.

    None where the part made no step, where batches are cut into micro-batches, or where a part after it has not kept
    the batch: ``Watch(behind)`` has to be as long as the first part's delay.
    """
    watches = [stage.watch for stage in stages]
    assert all(watches)
    own = [watch for watch in watches if watch is not None]
    if own[part].gradient is None or stages[0].schedule.pieces > 1:
        return None
    batch, gradient = own[part].gradient  # type: ignore[misc]  # it is not None
    at, ways = [watch.ahead(batch) for watch in own], [watch.way(batch) for watch in own[part:]]
    if any(x is None for x in at) or any(way is None for way in ways):
        return None
    by = backpropagate(stages, part, batch, x, y, [x for x in at if x is not None])
    return Lemma(
        float((gradient - by).double().norm()), float(by.double().norm()), sum(w for w in ways if w is not None)
    )


@contextmanager
def _placing(stages: Sequence[Stage], at: Sequence[Tensor]) -> Iterator[None]:
    """Parts that hold other parameters for a while."""
    parameters = [list(stage.trained.values()) for stage in stages]
    before = [_flat(own) for own in parameters]
    try:
        _fill(parameters, at)
        yield
    finally:
        _fill(parameters, before)


@torch.no_grad()
def _fill(parameters: Sequence[Sequence[Tensor]], vectors: Sequence[Tensor]) -> None:
    for own, vector in zip(parameters, vectors, strict=True):
        for p, values in zip(own, torch.split(vector, [p.numel() for p in own]), strict=True):
            p.data.copy_(values.view_as(p))  # unseen by graphs that wait, whose numbers are there again afterwards


@torch.no_grad()
def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])
