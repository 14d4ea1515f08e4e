"""The largest learning rates for which DSP is proved to converge, beside that of backpropagation.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Theorem 1.4.1 (SGD) and Theorem 1.4.2 (SGD with momentum), with K the
number of parts, Delta t the largest layer-wise staleness in steps, M the largest norm of an error gradient
(Assumption 1.4.3) and L the Lipschitz constant of gradients (Assumption 1.4.2).

Each theorem's rate is a number by L, which nobody knows. Divided by the same rate at Delta t = 0, which is
backpropagation's, L is gone. The limits at Delta t = 0, 1 / (2 L) and (1 - beta) / ((3 + beta^2 c_2) L), are taken by
writing the roots without a difference in their numerators.

Differences from the thesis: it has no numbers for M. Here M is measured, on one batch and at the initial model, and is
larger where a model in training has larger error gradients. A bound that is proved is not what works in practice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .losses import Loss, mean_loss, scale

MOMENTUM = 0.9  # the thesis' in all experiments


def sgd_rate(parts: int, staleness: int, error: float) -> float:
    """The largest rate of Theorem 1.4.1 by that of backpropagation, 0 to 1: c_1 / (c_0 Delta t^2) by 1/2.

    ``staleness`` is Delta t in steps, ``error`` is M, in units of the loss by those of an activation.
    """
    square = staleness**2
    c0 = error**2 * parts * (parts + 1) ** 2
    return 4 / (square + 2 + math.sqrt((square + 2) ** 2 + 2 * c0 * square))


def momentum_rate(parts: int, staleness: int, error: float, beta: float = MOMENTUM, s: float = 0.0) -> float:
    """The largest rate of Theorem 1.4.2 by that of backpropagation, 0 to 1.

    ``beta`` is the momentum, 0 to below 1. ``s`` is 0 for heavy-ball momentum, which torch's SGD has, and 1 for
    Nesterov's. The others are those of :func:`sgd_rate`.
    """
    square, rest = staleness**2, 1 - beta
    c2 = (rest * s - 1) ** 2 / rest**2  # (1-12)
    c3 = error**2 * parts * (parts + 1) ** 2 * square * (c2 + s**2)  # (1-13)
    plain = 3 + beta**2 * c2
    c4 = plain + 2 * rest**2 * square * (c2 + s**2)  # (1-14)
    return 2 * plain / (c4 + math.sqrt(c4**2 + 4 * rest**2 * c3))


def largest_error(stages: Sequence[nn.Module], x: Tensor, y: Tensor, loss: Loss = mean_loss) -> float:
    """M on one batch: the largest norm of the error gradients that parts receive, and of the loss' at the outputs.

    ``x`` and ``y`` are as for ``step``, ``loss`` as for :func:`~thinwire.pipeline.pipeline`. Modules, statistics and
    random numbers are left as they are.
    """
    outputs = []
    with torch.random.fork_rng(devices=[]):
        for stage in copy.deepcopy(list(stages)):
            device = next(stage.parameters()).device
            x = stage(x.to(device))
            x.retain_grad()
            outputs.append(x)
        scale(loss, x, y.to(x.device), 1.0, 1).sum().backward()  # type: ignore[no-untyped-call]
    return max(float(out.grad.double().norm()) for out in outputs if out.grad is not None)
