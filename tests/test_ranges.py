"""The range of a field in its annotation: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from thinwire.config import Config
from thinwire.ranges import (
    Count,
    Decay,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    PositiveInt,
    Range,
    Share,
    check_ranges,
    of_argument,
    of_option,
)


@dataclass(frozen=True)
class Every(Config):
    count: Count = 1
    size: PositiveInt = 1
    natural: Natural = 0
    positive: Positive = 1.0
    free: NonNegative = 0.0
    share: Share = 1.0
    fraction: Fraction = 0.0
    decay: Decay = 0.0
    odd: Annotated[int, Range(lambda x: x % 2 == 1, "must be odd")] = 1
    maybe: Count | None = None
    several: tuple[Positive, ...] = ()
    none: float = -1.0


OUTSIDE = {
    "count=0": "count must be at least 1",
    "count=-3": "count must be at least 1",
    "size=0": "size must be positive",
    "natural=-1": "natural must not be negative",
    "positive=0.0": "positive must be positive",
    "positive=inf": "positive must be positive",
    "positive=nan": "positive must be positive",
    "free=-0.5": "free must not be negative",
    "free=inf": "free must not be negative",
    "share=0.0": "share must be above 0 and at most 1",
    "share=1.5": "share must be above 0 and at most 1",
    "fraction=-0.1": r"fraction must be in \[0, 1\]",
    "decay=1.0": r"decay must be in \[0, 1\)",
    "odd=2": "odd must be odd",
    "maybe=0": "maybe must be at least 1",
}


@pytest.mark.parametrize("given", OUTSIDE)
def test_a_value_outside_its_range_is_refused_in_one_sentence(given: str) -> None:
    name, value = given.split("=")
    number = float(value) if "." in value or value in ("inf", "nan") else int(value)
    with pytest.raises(ValueError, match=rf"^Every\({name}={value}\): {OUTSIDE[given]}$"):
        Every(**{name: number})


def test_none_and_what_lies_inside_is_taken_and_each_number_of_several_is_looked_at() -> None:
    Every(maybe=3, several=(0.5, 2.0), none=-7.0, share=0.001, fraction=1.0, decay=0.999)
    with pytest.raises(ValueError, match=r"^Every\(several=-1.0\): several must be positive$"):
        Every(several=(0.5, -1.0))


def test_an_option_and_an_argument_are_named_as_they_are_written() -> None:
    with pytest.raises(ValueError, match=r"^--count 0: it must be at least 1$"):
        check_ranges(Every, {"count": 0}, of_option)
    with pytest.raises(ValueError, match=r"^count=0: it must be at least 1$"):
        check_ranges(Every, {"count": 0}, of_argument)


def test_the_type_is_looked_at_before_the_range() -> None:
    with pytest.raises(ValueError, match=r"^Every\(count='a'\): int is expected$"):
        Every(count="a")  # type: ignore[arg-type]
