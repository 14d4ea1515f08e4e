"""What answers to a client's requests are: those of a function in place of training are looked at."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ..algorithms.base import Algorithm
from ..errors import require
from ..key import Key
from ..local import Local, Trained
from ..params import Params
from ..task import Task

Training = Callable[[Local, Task, Key], Trained]
"""What answers a request in place of training; the key has the round and the client."""


def with_checks(train: Training) -> Training:
    """The same function, whose answers are what a method may go on with. Raises ``ValueError`` for one that is not."""

    def answer(request: Local, task: Task, key: Key) -> Trained:
        return check_trained(train(request, task, key), request, key)

    return answer


def check_trained(trained: Any, request: Local, key: Key) -> Trained:
    """An answer to a request, with plain numbers in it. Raises ``ValueError``, naming round and client."""
    who = f"round {key.round}, client {key.client}: train"
    given = type(trained).__name__
    require(isinstance(trained, Trained), f"{who} gave {given}: it returns Trained(x, steps, loss)")
    x, layout = trained.x, request.x.layout
    alike = isinstance(x, Params) and x.layout == layout and x.flat.dtype == layout.dtype
    require(alike, f"{who} gave an x of other layers or of another type: it is made of the request's, request.x + ...")
    try:
        steps, loss, rates = operator.index(trained.steps), float(trained.loss), float(trained.rates)
    except (TypeError, ValueError):
        numbers = f"steps={trained.steps!r}, loss={trained.loss!r}, rates={trained.rates!r}"
        raise ValueError(f"{who} gave {numbers}: a whole number and two floats are expected") from None
    counted = steps >= 0 and (not steps or math.isfinite(loss))
    require(counted, f"{who} gave steps={steps}, loss={loss}: steps must not be negative, and a loss must be finite")
    if request.gradient:
        shown = trained.momentum is not None
        require(shown, f"{who} was asked for a gradient: it returns Trained(..., memory=Memory((gradient,), 1))")
    if request.trainer.keep and not request.aside:
        require(trained.memory is not None, f"{who} gave no memory, which {request.trainer!r} keeps")
    plain: Trained = trained._replace(steps=steps, loss=loss, rates=rates)
    return plain


def check_steps(algorithm: Algorithm, request: Local, trained: Trained, examples: int, key: Key) -> None:
    """Raise ``ValueError`` where replies are weighed by local steps, and other ones were made than are counted."""
    if algorithm.weights != "steps" or request.aside or request.trainer != algorithm.local:
        return
    counted = request.trainer.num_steps(examples)
    require(
        trained.steps == counted,
        f"client {key.client}: weights='steps' counts {counted} steps, and {trained.steps} were made, as its order "
        f"says or without a last batch of one: take weights='examples'",
    )
