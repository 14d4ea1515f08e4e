"""Losses and metrics of a batch: a value an example, or a ratio where examples count unequally."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from .data.dataset import VOID
from .errors import require

__all__ = ["Perplexity", "Ratio"]


class Ratio(NamedTuple):
    """A loss or a metric whose mean is sum(totals) / sum(counts): of examples that count unequally, such as texts of
    different lengths.

    ``totals`` and ``counts`` are of one shape, [b] of a loss: what an example adds up to (nats, say), and over how much
    (tokens). An example whose count is 0 does not count. Batches, clients and chunks of a test add up: the mean over a
    test is that over all its tokens.
    """

    totals: Tensor
    counts: Tensor

    def check(self, who: str) -> None:
        """Raise ``ValueError``, beginning with ``who``, unless both parts are tensors of one shape."""
        fits = all(isinstance(part, Tensor) for part in self) and self.totals.shape == self.counts.shape
        require(fits, f"{who} is a ratio of unlike parts: give a total and a count of each example, both of shape [b]")

    def each(self) -> Tensor:
        """Values an example, [b], whose plain mean is the ratio's: for what adds something to each."""
        return self.totals * (len(self.totals) / self.counts.sum().clamp_min(TINY))


class Perplexity(Ratio):
    """A metric of which exp(sum(totals) / sum(counts)) is shown: ``Perplexity(nats, tokens)``."""


TINY = 1e-30  # what is divided by where nothing counts


def mean_loss(losses: Tensor | Ratio) -> Tensor:
    """The mean that is minimised: over examples, or over what they count. 0 where nothing counts."""
    if isinstance(losses, Ratio):
        return losses.totals.sum() / losses.counts.sum().clamp_min(TINY)
    return losses.mean()


def per_example(losses: Tensor | Ratio) -> Tensor:
    """Values an example, [b], whose mean is :func:`mean_loss`."""
    return losses.each() if isinstance(losses, Ratio) else losses


LossOf = Callable[[Tensor, Tensor], Tensor | Ratio]  # outputs, targets -> one value an example, or a ratio

IGNORED = -100  # a target that does not count, as torch's cross-entropy has it


def count_shares(targets: Tensor) -> Tensor:
    """The share of each example's targets that count, 0 to 1, [b]: those that are not ``IGNORED``."""
    counts = (targets != IGNORED).float()
    return counts if counts.ndim == 1 else counts.flatten(1).mean(1)


def weigh(values: Tensor | Ratio, targets: Tensor) -> Tensor | Ratio:
    """Values an example, [b], each as good as the share of its targets that count; others as they are."""
    whole = not (targets.is_floating_point() or masks(targets))
    if not whole or not isinstance(values, Tensor) or values.ndim != 1:
        return values
    shares = count_shares(targets)
    return Ratio(values * shares, shares)


_ignoring = WeakIdKeyDictionary()  # whether targets that many clients share have any that is ignored


def ignores(targets: Tensor, ignored: int = IGNORED) -> bool:
    """Whether any of these whole numbers does not count. Looked up once for each tensor."""
    if targets.is_floating_point() or masks(targets):
        return False
    known: dict[int, bool] = _ignoring.get(targets) or {}  # type: ignore[no-untyped-call]
    if ignored not in known:
        known[ignored] = bool((targets == ignored).any())
        _ignoring[targets] = known
    return known[ignored]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value an example; a sequence counts as one example, the mean over its tokens.

    Targets of -100 do not count: the mean is over a sequence's others, and 0 where there are none.
    """
    outputs = wide_enough(outputs)
    if outputs.ndim == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(len(targets), -1)
    return losses.mean(1) if targets.is_floating_point() else _mean_of_counted(losses, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the target; for a sequence the share of its tokens. Targets of -100 do not count:
    see :func:`cross_entropy`.
    """
    right = (outputs.argmax(-1) == targets).float()
    return right if right.ndim == 1 else _mean_of_counted(right.flatten(1), targets)


def _mean_of_counted(values: Tensor, targets: Tensor) -> Tensor:
    """The mean over an example's targets that count, of values that are 0 where they do not. [b, n] to [b]."""
    counts = (targets != IGNORED).flatten(1).sum(1)
    return values.sum(1) / counts.clamp_min(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(output - target)^2, the mean over an example's values. Outputs [b, 1] are taken for targets [b].

    Raises ``ValueError`` where outputs and targets are of different shapes.
    """
    return _apart(outputs, targets).square().flatten(1).mean(1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """|output - target|, the mean over an example's values. Raises ``ValueError`` as :func:`squared_error`."""
    return _apart(outputs, targets).abs().flatten(1).mean(1)


def dice_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 - the soft Dice coefficient of each picture: of the probabilities that ``outputs`` are logits of.

    ``outputs`` are [b, m, h, w], ``targets`` masks, uint8 [b, m, h, w], or [b, h, w] where m is 1. They are of 0, 1 and
    ``VOID`` (255), whose pixels do not count. With p the sigmoid of the outputs and t a mask it is 1 - (2 sum pt + 1) /
    (sum p + sum t + 1), the mean over a picture's masks, one value a picture, in 32 bits. The 1 makes it smooth, and 0
    for an empty mask that nothing was found in.

    Milletari, Navab, Ahmadi, "V-Net", 3DV 2016, arXiv:1606.04797, Section 3.

    Differences from the paper: p and t are not squared in the denominator, and the 1, which the paper does not have.
    Raises ``ValueError`` for outputs of another shape.
    """
    logits, counted, t = _pixels(outputs, targets)
    p = torch.sigmoid(logits) * counted
    return (1 - (2 * (p * t).sum(2) + 1) / (p.sum(2) + t.sum(2) + 1)).mean(1)


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Dice coefficient of each picture, 0 to 1: twice the pixels in both masks over the sum of pixels in each.

    A pixel is in the model's mask where its probability is above .5. Arguments and errors are those of
    :func:`dice_loss`; pixels that are ``VOID`` do not count. 1 where both masks are empty. Of a picture with several
    masks it is their mean.
    """
    logits, counted, t = _pixels(outputs, targets)
    inside = (logits > 0) * counted
    both, sizes = (inside * t).sum(2), inside.sum(2) + t.sum(2)
    return torch.where(sizes > 0, 2 * both / sizes.clamp(min=1), torch.ones_like(both)).mean(1)


def _pixels(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, whether a pixel counts, and the masks: floats [b, masks, pixels]."""
    whole = each_mask(targets)
    require(
        outputs.shape == whole.shape,
        f"the model gives {list(outputs.shape)} for masks of {list(targets.shape)}: to segment pictures it needs one "
        f"output for each pixel of each mask, {list(whole.shape)}, as the model unet has",
    )
    logits = wide_enough(outputs).flatten(2)
    return logits, (whole != VOID).flatten(2).to(logits), (whole == 1).flatten(2).to(logits)


def _apart(outputs: Tensor, targets: Tensor) -> Tensor:
    """The differences, [b, values]."""
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    require(
        outputs.shape == targets.shape,
        f"the model gives {list(outputs.shape)} for targets of {list(targets.shape)}: a regression needs an output for "
        f"each value; labels of classes are whole numbers, as targets.long() makes them",
    )
    return (wide_enough(outputs) - targets).unsqueeze(-1)


def wide_enough(outputs: Tensor) -> Tensor:
    """Outputs in 32 bits, of a model in bfloat16 too; those in 64 bits as they are."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def masks(targets: Tensor) -> bool:
    """Whether targets are masks of pictures: uint8 [n, height, width], or [n, masks, height, width]."""
    return targets.dtype == torch.uint8 and targets.ndim in (3, 4)


def each_mask(targets: Tensor) -> Tensor:
    """Masks as [n, masks, height, width]: each picture of [n, height, width] has one."""
    return targets.unsqueeze(1) if targets.ndim == 3 else targets


def loss_by_type(outputs: Tensor, targets: Tensor) -> Tensor | Ratio:
    """The loss that the targets' type says: of masks, of floats, and of whole numbers."""
    return loss_for(targets)(outputs, targets)


def loss_for(targets: Tensor) -> LossOf:
    """:func:`loss_by_type` for these targets."""
    if masks(targets):
        return dice_loss
    return squared_error if targets.is_floating_point() else cross_entropy


MEASURE: dict[LossOf, dict[str, LossOf]] = {
    cross_entropy: {"accuracy": accuracy},
    squared_error: {"mae": absolute_error},
    dice_loss: {"dice": dice},
}
"""By the loss that targets' type says: what the model is judged by."""
