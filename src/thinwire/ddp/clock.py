"""Rounds that last so many seconds, for ranks that are not equally fast: each makes the steps that it can.

Nothing waits within a round. When ``seconds`` have gone by since its last exchange a rank exchanges after the step that
it is making, and waits for the slowest one's step alone. Rank k of K then has made h_k steps, and its movement counts
h_k / mean h times: d = sum h_k C(p_k) / sum h. The mean of h takes one number more in an exchange, 4 bytes.

Differences from the papers: theirs have a number of steps. The weights are those that federated averaging gives to
clients by the steps that they make.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import CombinationError
from ..key import Key
from .collectives import AllReduce, Talk
from .exchange import Rank, exchange
from .feedback import Feedback, Method
from .rounds import Seconds

FIRST = 2  # steps that a round has at least, at first: before the second DistributedDataParallel deals its buckets


class Clock:
    """Where a rank is in its round."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0
        self.set(0, 0)

    def set(self, exchanges: int, made: int) -> None:
        """So many exchanges there were, and so many steps since the last one. Seconds are counted from now."""
        self.exchanges, self.made, self.began = exchanges, made, time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the round ends with the step that was just made."""
        return self.calls >= FIRST and time.monotonic() - self.began >= self.seconds


def begin(method: Feedback, model: nn.Module) -> Clock | None:
    """The clock of a method whose rounds go by one.

    Raises ``CombinationError`` for a ``model`` whose ranks wait for one another in a forward or a backward pass.
    """
    if not isinstance(method.steps, Seconds):
        return None
    name = f"{type(method).__name__}(steps={method.steps!r})"
    if not isinstance(model, DistributedDataParallel):
        raise CombinationError(f"{name}: the ranks of a fully_shard model wait for one another: give a number of steps")
    if model.find_unused_parameters or model.will_sync_module_buffers():  # type: ignore[no-untyped-call]
        raise CombinationError(
            f"{name}: ranks make different numbers of steps, and this model lets them wait for one another in each: "
            "make it with DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=False), or "
            "give a number of steps"
        )
    return Clock(method.steps.seconds)


def advance_by(
    clock: Clock,
    moved: bool,
    method: Feedback,
    rank: Rank,
    w: Float[Tensor, " d"],
    key: Key,
    rates: Sequence[float] = (),
    debug: bool = False,
    still: Sequence[tuple[int, int]] = (),
) -> Talk[None]:
    """:func:`~thinwire.ddp.exchange.advance` by the clock: nothing within a round. ``moved``: no step was skipped."""
    clock.calls += 1
    clock.made += moved
    if not clock.over:
        return
    mean = torch.tensor([float(clock.made)], device=w.device)
    yield AllReduce(mean)
    share = clock.made / float(mean) if float(mean) else 1.0
    yield from exchange(method, rank, w, key._replace(round=clock.exchanges), debug, still, 0, rates, share)
    clock.set(clock.exchanges + 1, 0)


def refuse(method: Method, where: str) -> None:
    """``CombinationError`` for rounds by the clock where there is none."""
    if isinstance(method, Feedback) and isinstance(method.steps, Seconds):
        raise CombinationError(
            f"{method!r}: {where}, and a round of {method.steps.seconds:g} seconds has as many as a process makes in "
            "them: give steps= a number"
        )
