"""The range of a field as part of its type, and the one place that says of a value that it lies outside.

``share: Share = 0.01`` in a frozen dataclass is all that a class writes of it; :class:`~thinwire.config.Config` looks.
The ``lambda`` of a range that is written in a class knows builtins alone, no other names of its module.
A number that is None, where the type allows it, is in every range. NaN is in none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from .errors import require


class Range(NamedTuple):
    """The values that a field may have, and the sentence that refuses all others.

    One that begins with "must" or "is" is said of the field. Any other is a sentence by itself.
    """

    has: Callable[[Any], bool]
    sentence: str


def at_least(least: int) -> Range:
    """From a whole number on."""
    return Range(lambda x: x >= least, f"must be at least {least}" if least else "must not be negative")


POSITIVE = Range(lambda x: 0 < x < math.inf, "must be positive")

Count = Annotated[int, at_least(1)]
PositiveInt = Annotated[int, POSITIVE]
CountOrNone = Annotated[int, Range(lambda x: x >= 1, "must be at least 1, or None")] | None
Natural = Annotated[int, at_least(0)]
AboveZero = Annotated[float, Range(lambda x: x > 0, "must be positive")]  # infinity too
SLOWEST = 1e-6  # Mbit/s: a bit a second, so that clocks are finite
LONGEST = 1e9  # seconds
Latency = Annotated[float, Range(lambda x: 0 <= x <= LONGEST, f"must be from 0 to {LONGEST:.0e} seconds")]
LinkRate = Annotated[float, Range(lambda x: x >= SLOWEST, f"must be at least {SLOWEST}, a bit a second")]  # or infinite
Mbit = Annotated[float, Range(lambda x: SLOWEST <= x < math.inf, f"a rate must be finite, and at least {SLOWEST}")]
Rate = Annotated[float, Range(lambda x: 0 < x < math.inf, "must be positive and finite")]
Positive = Annotated[float, POSITIVE]
NonNegative = Annotated[float, Range(lambda x: 0 <= x < math.inf, "must not be negative")]
Share = Annotated[float, Range(lambda x: 0 < x <= 1, "must be above 0 and at most 1")]
Fraction = Annotated[float, Range(lambda x: 0 <= x <= 1, "must be in [0, 1]")]
BelowOne = Annotated[float, Range(lambda x: 0 <= x < 1, "must be at least 0 and below 1")]
Decay = Annotated[float, Range(lambda x: 0 <= x < 1, "must be in [0, 1)")]


Beginning = Callable[[type, str, Any], tuple[str, str]]
"""How a refusal begins, by the class, the field and its value: what was given, and the subject of the sentence."""


def of_call(cls: type, name: str, value: Any) -> tuple[str, str]:
    """How a refusal begins: ``TopK(share=2.0): share``."""
    return f"{cls.__name__}({name}={value})", name


def of_option(cls: type, name: str, value: Any) -> tuple[str, str]:
    """The same of an option of the command line: ``--rounds 0: it``."""
    return f"--{name.replace('_', '-')} {value}", "it"


def of_argument(cls: type, name: str, value: Any) -> tuple[str, str]:
    """The same of an argument of a function, whose settings the class holds: ``rounds=0: it``."""
    return f"{name}={value}", "it"


def check_ranges(cls: type, values: Mapping[str, Any], beginning: Beginning = of_call) -> None:
    """Raise ``ValueError`` for the first of the fields' values that lies outside the range in its annotation."""
    try:
        known = ranges(cls)
    except NameError:  # an annotation that only a function knows, or a module that is not read to its end
        return
    for name, range in known.items():
        for value in _each(values.get(name)):
            given, subject = beginning(cls, name, value)
            of_field = f"{subject} " if range.sentence.startswith(("must ", "is ")) else ""
            require(range.has(value), f"{given}: {of_field}{range.sentence}")


@cache
def ranges(cls: type) -> dict[str, Range]:
    """The ranges of a class' fields, by name. A field that is declared again keeps that of the base class.

    Of a field without a range nothing is there.
    """
    inherited = {name: range for base in reversed(cls.__bases__) for name, range in ranges(base).items()}
    hints = get_type_hints(cls, include_extras=True).items()
    return inherited | {name: range for name, kind in hints if (range := _range_in(kind)) is not None}


def _range_in(kind: Any) -> Range | None:
    """The range in an annotation: of ``Count``, ``Count | None``, ``tuple[Count, ...]``."""
    if get_origin(kind) is Annotated:
        return next((word for word in kind.__metadata__ if isinstance(word, Range)), None)
    return next((range for inside in get_args(kind) if (range := _range_in(inside)) is not None), None)


def _each(value: Any) -> Iterator[Any]:
    """The numbers in a value: itself, those of a tuple or list, none in what is no number, such as None or a link."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _each(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
