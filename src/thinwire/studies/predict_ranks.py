"""Bytes of data-parallel methods before anything is trained: ``thinwire ddp-predict``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..ddp.exchange import exchanges_a_look
from ..ddp.feedback import Feedback, Method
from ..ddp.prediction import predict
from ..problem import Problem
from ..ranges import Count
from ..train.slot import make_module
from .cells import draw

LEAST = ("B a step up", "B a step down")
ABOUT = (
    "What one rank gives to collectives, and gets from them, in the mean over steps. Where the length of a message "
    "depends on what is in it (positions, bins), it is about that of a training. A link that looks back (LBGM) is "
    "reckoned with whole messages, the most that it sends, and a Switch as its first link."
)


@dataclass(frozen=True)
class Exchanges:
    """What a rank's exchanges come to, in bytes a step, and dense gradients' of the same model."""

    method: str
    step_up: float
    step_down: float
    dense: int


def rehearse(methods: Sequence[Method], problem: Problem, ranks: Count) -> list[Exchanges]:
    """What methods would send of a problem's model, from exchanges that are really encoded.

    They are of two rounds, or of as many as lie between two looks at the residuals and between two averages of them.
    """
    model = problem.model
    module = model if isinstance(model, nn.Module) else make_module(model, 0)
    dense = sum(4 * p.numel() for p in module.parameters() if p.requires_grad)
    made = []
    for method in methods:
        steps = 2
        if isinstance(method, Feedback):
            measured = exchanges_a_look(method) if method.measures else 1
            steps = method.length * max(2, math.lcm(measured, method.every or 1))  # whole periods: a mean over them
        traffic = predict(method, module, ranks, steps)
        made.append(Exchanges(repr(method), traffic.bytes / steps, traffic.received(ranks) / steps, dense))
    return made


def show(exchanges: Sequence[Exchanges], ranks: int) -> None:
    """The exchanges as a table on the terminal."""
    lines = [
        [one.method, f"{one.step_up:,.0f}", f"{one.step_down:,.0f}", f"1/{one.dense / one.step_up:,.0f}"]
        for one in exchanges
    ]
    draw(f"{ranks} ranks", ("method", *LEAST, "of dense gradients, up"), lines, LEAST, ABOUT)
