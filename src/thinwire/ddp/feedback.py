"""The loop of data-parallel training with a residual: its switches, and which of them go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

from ..config import LATER, Config
from ..errors import CombinationError, require
from ..links import Dense, Link, RandomBlock
from ..links.bandwidth import goes_by_rate
from ..optimizers import SGD, Optimizer
from ..params import Params
from ..ranges import BelowOne, Count, Fraction, Natural
from ..wire import State
from .rounds import Rounds, Seconds

BY_THE_CLOCK = 16  # steps that a round by the clock counts as, where what was measured fades by the step


@dataclass(frozen=True)
class Method(Config):
    """What a rank sends of its step, and what it does with the rest."""


def check_no_rate(method: Method, link: Link) -> None:
    """Raise :class:`CombinationError` for a link that goes by a rate, as none is measured between ranks."""
    if goes_by_rate(link):
        raise CombinationError(
            f"{method!r}: ranks measure no rate, so ByBandwidth would always take the link of the highest: give that "
            f"link itself"
        )


@dataclass(frozen=True)
class Feedback(Method):
    """The loop of :mod:`.methods`. Its subclasses are settings of its switches.

    - ``steps``: optimiser steps from one exchange to the next, H. Nothing is sent between. Gradients and the
      optimiser's state stay local, and a rank trains a model of its own, from x - lam * e on. ``Seconds(30)`` in place
      of a number is for ranks that are not equally fast, in processes: each makes as many as it can, and the mean is
      weighted by them (:mod:`.clock`).
    - ``decay``: of the residual, once an exchange: p = u + decay * e.
    - ``outer``: what x does with d = mean C(p), an optimiser of :mod:`thinwire.optimizers` that is given -d. With
      ``SGD(1.0)`` it is x - d. Its state is the same on every rank.
    - ``count``: of what d is the mean. "all" ranks, or entry by entry the "senders", over a link whose messages say
      which entries they have, such as ``TopK`` and ``ChunkTopK``. DEF is then judged by x.
    - ``fragments``: parts of the model, F, with a round of ``steps`` each and an exchange every ``steps`` / F steps.
      Layers are dealt in turn: fragment f has the layers f, f + F, ...
    - ``delay``, ``mix``: what was sent after one step is applied ``delay`` steps later, at most ``steps`` / F, and the
      rank's own model becomes (1 - mix) * (x - lam * e) + mix * w, where w is what it is by then. Processes train on
      meanwhile. With ``delay`` = ``steps`` a message is sent first, and then the one before it is applied. So each
      movement is in one message: applied, on its way and owed (without ``decay`` and ``mix``) are all that there were.

    Raises ``ValueError`` for a value out of its range, and ``CombinationError`` for switches that do not go together.
    """

    steps: Count | Seconds = field(default=1, kw_only=True, metadata=LATER)
    decay: Fraction = field(default=1.0, kw_only=True, metadata=LATER)
    outer: Optimizer = field(default=SGD(1.0), kw_only=True, metadata=LATER)
    count: Literal["all", "senders"] = field(default="all", kw_only=True, metadata=LATER)
    fragments: Count = field(default=1, kw_only=True, metadata=LATER)
    delay: Natural = field(default=0, kw_only=True, metadata=LATER)
    mix: BelowOne = field(default=0.0, kw_only=True, metadata=LATER)

    def __post_init__(self) -> None:
        if self.link is not None:
            self._check_link(self.link)
        self._check_rounds()
        name, given = type(self).__name__, self.at_output > 0
        if (given or self.estimate) and self.outer != SGD(1.0):
            what = "the estimate of a step" if self.estimate else "y = x - mean e"
            raise CombinationError(
                f"{name}(outer={self.outer!r}): {what} is right for outer=SGD(1.0) alone: leave outer out, or take EF "
                f"or DEFA"
            )
        if self.estimate and (self.decay != 1 or self.delay or self.count != "all"):
            raise CombinationError(
                f"{name} keeps estimates of steps: decay, delay and count are for methods "
                f"that keep a residual, such as EF"
            )
        if self.count == "senders" and not (self.link is not None and self.link.sparse):
            raise CombinationError(
                f"{name}(count='senders') needs a link whose messages say which entries they have, such as "
                f"ChunkTopK(64) or TopK(0.01): take one, or count='all'"
            )

    def _check_link(self, link: Link) -> None:
        name = type(self).__name__
        if not link.contraction:
            raise CombinationError(
                f"{name} needs a link that always keeps a part of what it is given (a contraction); "
                f"{link!r} does not say so (contraction = True in its class), and the residual would grow without "
                f"bound: take Hook({link!r})"
            )
        check_no_rate(self, link)
        if link.memory:
            raise CombinationError(
                f"{name} keeps what was not sent itself; {link!r} remembers on its own: take Hook({link!r})"
            )

    def _check_rounds(self) -> None:
        name = type(self).__name__
        if isinstance(self.steps, Seconds):
            if self.fragments > 1 or self.delay or self.estimate:
                raise CombinationError(
                    f"{name}(steps={self.steps!r}): fragments, a delay and estimates of steps need rounds of so many "
                    f"steps: give a number"
                )
            return
        most = self.steps // self.fragments
        require(
            self.steps % self.fragments == 0,
            f"{name}(steps={self.steps}, fragments={self.fragments}): fragments take turns within a round, so give "
            f"steps that are a multiple of them",
        )
        require(
            self.delay <= most,
            f"{name}(delay={self.delay}): one fragment is on its way at a time, and one is sent every {most} step(s), "
            f"steps / fragments: delay must be at most that",
        )
        require(not self.mix or self.delay > 0, f"{name}(mix={self.mix}): nothing is mixed without a delay: give one")
        if self.fragments > 1 and self.detach is None:
            raise CombinationError(
                f"{name}(fragments={self.fragments}): fragments begin their rounds at different steps, and lam is "
                f"measured for all at one: give a number, lam=0.5"
            )

    @classmethod
    def _in_order(cls) -> Sequence[Field[Any]]:
        return sorted(fields(cls), key=lambda f: "later" in f.metadata)  # those that came later are last

    @property
    def rounds(self) -> Rounds:
        """When what is sent and applied."""
        return Rounds(self.length, self.fragments, self.delay)

    @property
    def length(self) -> int:
        """Steps of a round. Of one by the clock it is not known, and a number stands for it that is above 1."""
        return BY_THE_CLOCK if isinstance(self.steps, Seconds) else self.steps

    @property
    def link(self) -> Link | None:
        """The link that sends, or None: a block."""
        return None

    @property
    def block(self) -> RandomBlock:
        """The block, where no link sends: where it starts, and how many entries it has."""
        raise TypeError(f"{type(self).__name__} has a link")

    @property
    def by_tensor(self) -> bool:
        """Whether there is a block of each tensor."""
        return False

    @property
    def owes(self) -> bool:
        """Whether anything is ever left to be sent: not of a link that sends all as it is. Then e is not allocated."""
        return self.link != Dense()

    @property
    def averages(self) -> bool:
        """Whether an exchange is the mean of ranks' models and nothing else. x is then that mean, to the bit."""
        return self.length > 1 and not (self.owes or self.delay or self.estimate) and self.plain

    @property
    def plain(self) -> bool:
        """Whether x moves by what arrives: x <- x - d."""
        return self.outer == SGD(1.0)

    def outer_of(self, ranks: int) -> Optimizer:
        """The outer optimiser of so many ranks."""
        return self.outer

    def apply(self, x: Params, d: Params, v: State, rates: Sequence[float], ranks: int) -> tuple[Params, State]:
        """x and the state of the outer optimiser after an exchange, of which d = mean C(p) came; it points uphill.

        ``rates`` are the learning rates of the optimisers' groups.
        """
        return self.outer_of(ranks).step(x, d * -1.0, v)

    @property
    def detach(self) -> float | None:
        """lambda: the gradient is taken at x - lambda * e. None: by what is measured."""
        return 0.0

    @property
    def measures(self) -> bool:
        """Whether the best lambda is measured during training. That takes one number (4 bytes) more in each block."""
        return False

    def first(self, ranks: int) -> float:
        """lambda before anything was measured.

        Where it is to be measured, (1 + 1 / K) / 2 for K ranks: the best lambda if half of what they owe were common
        to all.
        """
        return (1 + 1 / ranks) / 2 if self.detach is None else self.detach

    def warn(self, ranks: int) -> None:
        """Warn of a setting that trains worse with so many ranks."""

    @property
    def at_rest(self) -> float:
        """The parameters hold x - at_rest * e between steps."""
        return 0.0

    @property
    def at_output(self) -> float:
        """The model that is evaluated is x - at_output * mean e."""
        return 0.0

    @property
    def estimate(self) -> bool:
        """Whether the step itself is estimated. Then e is minus the estimate."""
        return False

    @property
    def every(self) -> int | None:
        """How many steps lie between two averages of the residuals. None: they are never averaged."""
        return None


@dataclass(frozen=True)
class Ratio(Feedback):
    """Those that send a random block, or what a link sends in its place.

    ``ratio`` is how many times fewer entries are sent: a random block of neighbours, the same on every rank, at a
    place that the shared seed gives, 4 bytes an entry. ``scope`` is "vector", one block of all parameters, or
    "tensor", one block of each. In place of a number ``ratio`` may be a link that is a contraction,
    ``DEF(TopK(0.01))``. Linear links are sent by all-reduce, others by all-gather. Raises ``ValueError`` for a ratio
    below 1 or infinite, and ``CombinationError`` for a link that is no contraction or has a memory.
    """

    ratio: float | Link = 64.0
    scope: Literal["vector", "tensor"] = field(default="vector", kw_only=True)

    def __post_init__(self) -> None:
        require(
            isinstance(self.ratio, Link) or 1 <= self.ratio < math.inf,
            f"{type(self).__name__}(ratio={self.ratio!r}): a number of at least 1, and finite, or a link such as "
            f"TopK(0.01)",
        )
        super().__post_init__()

    @property
    def link(self) -> Link | None:
        return self.ratio if isinstance(self.ratio, Link) else None

    @property
    def block(self) -> RandomBlock:
        assert not isinstance(self.ratio, Link)
        return RandomBlock(self.ratio)

    @property
    def by_tensor(self) -> bool:
        return self.scope == "tensor"
