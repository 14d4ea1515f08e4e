"""What the theorems assume of losses and gradients, measured at models of a run on the data that it trained on.

Papers bound what nobody knows: the smoothness of a loss, the variance of a mini-batch's gradient, how far clients'
gradients are from one another. Here each is the largest value that was seen at a few models of the run, so it is no
more than the paper's constant: a bound that is computed of it may be too low, and is never too high for this reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..key import Key
from ..local import Local, Trainer, look
from ..params import Params
from ..task import Task
from ..train.one import train
from ..train.slot import Slot


class Point(NamedTuple):
    """K clients at one model. Gradients are of the loss that they minimise, with weight decay where it is coupled."""

    round: int  # after which the model was there; 0: the start
    x: Params
    losses: list[float]  # F_k, means over a client's examples
    gradients: list[Tensor]  # of F_k, [d] each, in double precision
    noise: list[float]  # the mean over mini-batches of ||g - grad F_k||^2; 0 where a mini-batch is all examples
    second: list[float]  # the mean over mini-batches of ||g||^2
    sketched: float | None = None  # the mean over clients and mini-batches of ||A^T (g - grad F)||^2


Sketch = Callable[[Params], Tensor]


def gradient_at(slot: Slot, task: Task, x: Params, trainer: Trainer, key: Key, batch: int | None = None) -> Trained:
    """The loss and the gradient of a mini-batch, or of all examples."""
    trained = train(slot, task, look(x, trainer, batch), key)
    return Trained(trained.loss, trained.gradient.flat.double())


class Trained(NamedTuple):
    """A loss, and its gradient [d]."""

    loss: float
    gradient: Tensor


def measure(
    slot: Slot,
    tasks: Sequence[Task],
    weights: Sequence[float],
    trainer: Trainer,
    models: Sequence[tuple[int, Params]],
    batches: int,
    seed: int = 0,
    sketch: Sketch | None = None,
) -> list[Point]:
    """Every client at each of these models. ``weights`` add up to 1; so many mini-batches are drawn of each client."""
    points = []
    for round, x in models:
        whole = [gradient_at(slot, task, x, trainer, Key(seed, round, k, "whole")) for k, task in enumerate(tasks)]
        mean = total([one.gradient for one in whole], weights)
        noise, second, sketched = list[float](), list[float](), 0.0
        for k, (task, one) in enumerate(zip(tasks, whole, strict=True)):
            size = min(trainer.batch or len(task), len(task))
            drawn = [one.gradient]
            if size < len(task):
                keys = [Key(seed, round, k, f"measured{i}") for i in range(batches)]
                drawn = [gradient_at(slot, task, x, trainer, key, size).gradient for key in keys]
            noise.append(statistics.fmean(square(g - one.gradient) for g in drawn))
            second.append(statistics.fmean(square(g) for g in drawn))
            if sketch is not None:
                apart = [Params(x.layout, (g - mean).to(x.layout.dtype)) for g in drawn]
                sketched += weights[k] * statistics.fmean(square(sketch(v).double()) for v in apart)
        losses, gradients = [one.loss for one in whole], [one.gradient for one in whole]
        points.append(Point(round, x, losses, gradients, noise, second, None if sketch is None else sketched))
    return points


def square(v: Tensor) -> float:
    """||v||^2."""
    return float(v @ v)


def total(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted sum of vectors."""
    out = torch.zeros_like(vectors[0])
    for v, w in zip(vectors, weights, strict=True):
        out.add_(v, alpha=w)
    return out


@dataclass(frozen=True)
class Constants:
    """The constants of the theorems, as points of a run show them. F is the mean of the F_k with these weights."""

    points: list[Point]
    weights: list[float]

    def loss(self, point: Point) -> float:
        """F at a point."""
        return sum(w * f for w, f in zip(self.weights, point.losses, strict=True))

    def gradient(self, point: Point) -> Tensor:
        """The gradient of F at a point, [d]."""
        return total(point.gradients, self.weights)

    @property
    def smoothness(self) -> float:
        """L: the largest ||grad F_k(x) - grad F_k(y)|| / ||x - y|| between neighbouring points."""
        return max((math.sqrt(square(g) / square(v)) for g, v in self._steps()), default=0.0)

    @property
    def convexity(self) -> float:
        """mu: the least <grad F_k(x) - grad F_k(y), x - y> / ||x - y||^2; 0 where one is negative."""
        return max(0.0, min((float(g @ v) / square(v) for g, v in self._steps()), default=0.0))

    def _steps(self) -> list[tuple[Tensor, Tensor]]:
        steps = []
        for p, q in pairwise(self.points):
            v = q.x.flat.double() - p.x.flat.double()
            if square(v) > 0:
                steps += [(b - a, v) for a, b in zip(p.gradients, q.gradients, strict=True)]
        return steps

    @property
    def noise(self) -> float:
        """sigma^2: the largest mean of ||g - grad F_k||^2 over a client's mini-batches at a point."""
        return max(max(point.noise) for point in self.points)

    @property
    def second(self) -> float:
        """G^2: the largest mean of ||g||^2 over a client's mini-batches at a point."""
        return max(max(point.second) for point in self.points)

    @property
    def whole(self) -> float:
        """M^2: the largest ||grad F||^2 at a point."""
        return max(square(self.gradient(point)) for point in self.points)

    @property
    def mean_square(self) -> float:
        """The mean of ||grad F||^2 over the points."""
        return statistics.fmean(square(self.gradient(point)) for point in self.points)

    def apart(self, weights: Sequence[float] | None = None) -> float:
        """The largest mean over clients of ||grad F_k - grad F||^2 at a point."""
        weights = self.weights if weights is None else weights
        means = ((p, total(p.gradients, weights)) for p in self.points)
        return max(sum(w * square(g - m) for w, g in zip(weights, p.gradients, strict=True)) for p, m in means)

    @property
    def farthest(self) -> float:
        """The largest ||grad F_k - grad F||^2 of a client at a point."""
        return max(square(g - self.gradient(point)) for point in self.points for g in point.gradients)


def descend(loss: Callable[[Tensor], Trained], x: Tensor, steps: int, rate: float) -> float:
    """The least loss of so many steps of gradient descent from ``x``.

    A step that makes the loss no smaller is not taken, and the rate halves; after one that does it grows by a half.
    """
    here = loss(x)
    for _ in range(steps):
        there = loss(x - rate * here.gradient)
        if there.loss < here.loss:
            x, here, rate = x - rate * here.gradient, there, 1.5 * rate
        else:
            rate /= 2
    return here.loss


def losses_of(
    slot: Slot, tasks: Sequence[Task], weights: Sequence[float], trainer: Trainer
) -> Callable[[Tensor], Trained]:
    """The weighted mean loss of clients as a function of a model [d], and its gradient."""

    def at(x: Tensor) -> Trained:
        model = Params(slot.layout, x.to(slot.layout.dtype))
        each = [gradient_at(slot, task, model, trainer, Key(0, 0, k)) for k, task in enumerate(tasks)]
        loss = sum(w * one.loss for w, one in zip(weights, each, strict=True))
        return Trained(loss, total([one.gradient for one in each], weights))

    return at


class PathSlot(Slot):
    """A slot that keeps the model [d] that was loaded into it, and those after every step of training from there."""

    path: list[Tensor]

    def load(self, x: Params) -> None:
        self.path = []
        super().load(x)

    def round(self) -> None:
        super().round()
        self.path.append(self.flat.to(torch.float64, copy=True))


def ways(
    slot: PathSlot, tasks: Sequence[Task], x: Params, trainer: Trainer, seed: int, round: int
) -> list[list[Tensor]]:
    """The models [d] of each client after 0, 1, 2, ... steps of a round's local training from ``x``."""
    paths = []
    for k, task in enumerate(tasks):
        train(slot, task, Local(x, trainer), Key(seed, round, k))
        paths.append(slot.path)
    return paths
