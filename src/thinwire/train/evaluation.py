"""Metrics over a test set: summed batch by batch, and added over its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import require
from ..losses import Perplexity, Ratio
from ..task import LOOKED, Batch, Task
from .device import to_device
from .given import by_batch
from .precision import without_cache
from .slot import Slot


class Tally(NamedTuple):
    """A metric over some examples: what it adds up to, and over how much. 64-bit floats."""

    total: float
    weight: float
    exp: bool = False  # whether the mean's exponential is shown (perplexity)

    def plus(self, other: Tally) -> Tally:
        """Over the examples of both."""
        return Tally(self.total + other.total, self.weight + other.weight, self.exp)

    @property
    def mean(self) -> float:
        """NaN where nothing was counted."""
        mean = self.total / self.weight if self.weight else math.nan
        if not self.exp:
            return mean
        return math.exp(mean) if mean < 700 else math.inf


def evaluate(slot: Slot, task: Task, start: int = 0, stop: int | None = None) -> dict[str, Tally]:
    """Every metric over examples ``start`` to ``stop`` of a task, in parts that can be added."""
    with without_cache(slot.device):
        return sums(slot.module, task, partial(slot.batch, task), start, len(task) if stop is None else stop)


def means(module: nn.Module, task: Task, device: torch.device | str) -> dict[str, float]:
    """The mean of every metric (``loss`` as ``test_loss``) over a task. The module's layers keep their modes."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        parts = sums(module, task, lambda rows: to_device(task.batch(rows), torch.device(device)), 0, len(task))
    finally:
        for part, training in modes:
            part.training = training
    return {("test_loss" if name == "loss" else name): part.mean for name, part in parts.items()}


def mean_metrics(parts: Iterable[Mapping[str, Tally]]) -> dict[str, float]:
    """The means of metrics over several parts of a task."""
    return {name: part.mean for name, part in add_parts(parts).items()}


def add_parts(parts: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Metrics over the examples of all parts."""
    whole: dict[str, Tally] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = whole[name].plus(value) if name in whole else value
    return whole


@torch.no_grad()
def sums(module: nn.Module, task: Task, batch: Callable[[Tensor], Batch], start: int, stop: int) -> dict[str, Tally]:
    """Every metric over examples ``start`` to ``stop``, of which ``batch`` gives those at some positions.

    Raises ``ValueError`` for a metric that is a mean already.
    """
    module.eval()
    fewest = 2 if any(map(by_batch, module.modules())) else 1  # batch norm without running statistics
    looked = max(fewest, task.at_once(module)) if hasattr(task, "at_once") else LOOKED
    rows = [torch.arange(*chunk, device="cpu") for chunk in portions(start, stop, looked, fewest)]
    return add_parts(tally(task, module, batch(chunk), len(chunk)) for chunk in rows)


def tally(task: Task, module: nn.Module, batch: Batch, examples: int) -> dict[str, Tally]:
    """Every metric of a batch of so many examples. Raises ``ValueError`` for one that is a mean already."""
    metrics: Mapping[str, Tensor | Ratio] = task.metrics(module, batch)
    who = type(task).__name__
    return {name: _part(value, f"metric {name!r} of {who}", examples) for name, value in metrics.items()}


def portions(start: int, stop: int, size: int, fewest: int = 1) -> Iterator[tuple[int, int]]:
    """``start`` to ``stop`` in portions of ``size``; a last one of fewer than ``fewest`` goes with the one before."""
    edges = [*range(start, stop, size), stop]
    if len(edges) > 2 and edges[-1] - edges[-2] < fewest:
        del edges[-2]
    yield from pairwise(edges)


def _part(value: Any, who: str, examples: int) -> Tally:
    """A metric of a batch as what it adds up to. Raises ``ValueError`` unless it is a value an example, or a ratio."""
    if isinstance(value, Ratio):
        value.check(who)
        exp = isinstance(value, Perplexity)
        return Tally(float(value.totals.double().sum()), float(value.counts.double().sum()), exp)
    fits = isinstance(value, Tensor) and value.ndim == 1 and len(value) == examples
    shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    require(
        fits,
        f"{who} gives {shape} for {examples} examples: a metric is one value an example, of shape [b], whose mean is "
        f"reported; do not average. Where examples count unequally give Ratio(totals, counts)",
    )
    return Tally(float(value.double().sum()), examples)
