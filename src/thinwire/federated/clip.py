"""How long a reply may be: a norm that is given, or one that follows the replies' own norms ("auto").

One client that sends ten times the opposite of its update ruins a model, and a bound that is too small slows all. So
"auto" measures. Of each field of a reply, as the server decodes it and before it is shortened, it takes the norms of
the newest rounds, this one among them, and bounds the field by ``TIMES`` their lower median. Fewer than half of the
replies cannot move a lower median beyond the norms of the others, in either direction: from it downwards and from it
upwards there is always one of these. Source: the norm bounding of Sun, Kairouz, Suresh, McMahan, "Can You Really
Backdoor Federated Learning?", 2019, arXiv:1911.07963, whose bound is given.

Differences from the paper: the bound follows a median. There is no noise here; with noise the bound has to be given,
since it must not depend on what it hides (:class:`~thinwire.Privacy`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ..algorithms.around import Around
from ..algorithms.base import Algorithm
from ..errors import CombinationError
from .messages import Form

Clip = float | Literal["auto"] | None
Norms = dict[str, float]  # of one reply, by field
Past = dict[str, list[list[float]]]  # by field, the norms of each of the newest rounds, oldest first

TIMES = 2.0  # the median: what honest clients differ by stays below, and it cost least (experiments/clip)
ROUNDS = 5  # that count, this one among them: norms fall while a model learns, and of few replies many may be hostile
DIGITS = 4  # of what is recorded, and of a bound


def bounds(past: Past, replies: Sequence[Norms]) -> dict[str, float]:
    """The bound of every field that a reply of this round, or of the rounds before, had."""
    after = following(past, replies)
    return {field: short(TIMES * median(norm for norms in rounds for norm in norms)) for field, rounds in after.items()}


def following(past: Past, replies: Sequence[Norms]) -> Past:
    """The norms of the newest rounds, after these replies."""
    fields = dict.fromkeys([*past, *(field for norms in replies for field in norms)])
    now = {field: [norms[field] for norms in replies if field in norms] for field in fields}
    return {field: [*past.get(field, []), *([now[field]] if now[field] else [])][-ROUNDS:] for field in fields}


def median(norms: Iterable[float]) -> float:
    """The lower median."""
    ordered = sorted(norms)
    return ordered[(len(ordered) - 1) // 2]


def quantiles(replies: Sequence[Norms]) -> dict[str, list[float]]:
    """Of every field the lowest norm, the lower quartile, the lower median, the upper quartile and the highest norm."""
    ordered = {field: sorted(rounds[-1]) for field, rounds in following({}, replies).items()}
    return {field: [short(x[(len(x) - 1) * part // 4]) for part in range(5)] for field, x in ordered.items()}


def whole(clip: float | Mapping[str, float] | None) -> float | None:
    """The bound of what is no field by itself: of several the largest."""
    return max(clip.values(), default=None) if isinstance(clip, Mapping) else clip


def short(x: float) -> float:
    """A number of ``DIGITS`` digits."""
    return float(f"{x:.{DIGITS}g}") if math.isfinite(x) else x


def check_clippable(algorithm: Algorithm, form: Form) -> None:
    """Raise :class:`CombinationError` where ``clip`` would not bound what a reply does: see ``Algorithm.admit``."""
    inner = algorithm
    while isinstance(inner, Around):
        inner = inner.inner
    numbers = [leaf.name for leaf in form.leaves if leaf.link is None and leaf.blank is not None]
    if numbers and type(inner).admit is Algorithm.admit:
        raise CombinationError(
            f"clip= bounds fields of layers, and {type(inner).__name__}'s replies have {', '.join(numbers)}: give "
            f"{type(inner).__name__} a method `admit` that bounds what these do, or leave clip out"
        )
    for leaf in form.leaves:
        if leaf.exact and leaf.kind == "each" and leaf.link is not None:
            raise CombinationError(
                f"{algorithm!r}: {leaf.name} is a model as it is, and clip= bounds changes; leave clip out"
            )
    if not any(leaf.link is not None and not leaf.statistics for leaf in form.leaves):
        raise CombinationError(
            f"clip= bounds fields of layers, and {type(inner).__name__}'s replies have none: leave clip out"
        )
