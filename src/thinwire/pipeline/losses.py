"""The loss of a batch from those of its micro-batches: each weighs as much as what it counts.

A mean over tokens is not the mean of the means of micro-batches where some have fewer tokens that count. Targets of
whole numbers that are -100 do not count, as torch's cross-entropy has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import CombinationError
from ..losses import IGNORED, Ratio, loss_by_type, masks, weigh
from ..losses import mean_loss as mean_of

Loss = Callable[[Tensor, Tensor], Tensor | Ratio]
CLOSE = 2e-5  # how far, of its size, a loss may be from that of two halves: sums of 32-bit floats differ by less
NARROW = 2e-2  # the same of a loss of 16 bits
LEAST = 0.1  # of smaller losses that far of this


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor | Ratio:
    """The loss by the targets' type: cross entropy, the mean over what counts, or the squared error for floats."""
    return weigh(loss_by_type(outputs, targets), targets)


def counting(targets: Tensor) -> int:
    """How many of these targets count."""
    if targets.is_floating_point() or masks(targets):
        return targets.numel()
    return int((targets != IGNORED).sum())


def share(part: Tensor, whole: Tensor, pieces: int) -> float:
    """How much of a batch's targets that count a micro-batch, one of ``pieces`` of equal size, has: 0 to 1."""
    every = counting(whole) if pieces > 1 else whole.numel()
    return 1 / pieces if every in (0, whole.numel()) else counting(part) / every


def scale(loss: Loss, outputs: Tensor, targets: Tensor, own: float, pieces: int) -> Tensor:
    """A micro-batch's loss, so that the mean over a batch's ``pieces`` is the batch's loss. ``own`` is its share.

    Values an example are averaged over all examples, a ratio and a mean over what counts. Raises
    ``CombinationError`` for a loss that is not the mean of its parts: micro-batches would train something else.
    """
    if own == 0:  # nothing of it counts, and many a loss is 0 / 0 then
        return outputs.float().sum() * 0.0
    value = loss(outputs, targets)
    if not isinstance(value, Ratio) and value.ndim:
        return value.mean()
    if pieces == 1:
        return mean_of(value)
    value = mean_of(value)
    _check_halves(loss, outputs, targets, value.detach())
    return value if own == 1 / pieces else value * (own * pieces)


@torch.no_grad()
def _check_halves(loss: Loss, outputs: Tensor, targets: Tensor, value: Tensor) -> None:
    """Raise ``CombinationError`` unless the loss of a micro-batch is that of its halves, each by its share."""
    whole, middle = counting(targets), len(targets) // 2
    if not middle or not whole:
        return
    expected = 0.0
    for half in (slice(middle), slice(middle, None)):
        if own := counting(targets[half]):
            expected += own / whole * float(mean_of(loss(outputs[half], targets[half])))
    near, size = CLOSE if value.dtype in (torch.float32, torch.float64) else NARROW, float(value)
    if math.isfinite(size) and not abs(expected - size) <= near * max(abs(size), LEAST):
        raise CombinationError(
            f"the loss of a micro-batch is {size:.6g}, and {expected:.6g} from its two halves: it is no mean over "
            f"examples, or over targets that are not {IGNORED}, and micro-batches would train something else. Let it "
            f"return one value an example (reduction='none'), mark what does not count by {IGNORED}, or take a "
            f"schedule without micro-batches"
        )
