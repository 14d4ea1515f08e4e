"""The range of a field in its annotation: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from thinwire.config import Config
from thinwire.ranges import (
    AboveZero,
    BelowOne,
    Count,
    CountOrNone,
    Decay,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    PositiveInt,
    Range,
    Rate,
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
    most: CountOrNone = None
    above: AboveZero = 1.0
    rate: Rate = 1.0
    below: BelowOne = 0.0
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
    "most=0": "most must be at least 1, or None",
    "above=0.0": "above must be positive",
    "above=nan": "above must be positive",
    "rate=0.0": "rate must be positive and finite",
    "rate=inf": "rate must be positive and finite",
    "below=1.0": "below must be at least 0 and below 1",
}


@pytest.mark.parametrize("given", OUTSIDE)
def test_a_value_outside_its_range_is_refused_in_one_sentence(given: str) -> None:
    name, value = given.split("=")
    number = float(value) if "." in value or value in ("inf", "nan") else int(value)
    with pytest.raises(ValueError, match=rf"^Every\({name}={value}\): {OUTSIDE[given]}$"):
        Every(**{name: number})


def test_none_and_what_lies_inside_is_taken_and_each_number_of_several_is_looked_at() -> None:
    Every(maybe=3, several=(0.5, 2.0), none=-7.0, share=0.001, fraction=1.0, decay=0.999)
    Every(above=float("inf"), most=1)
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


@dataclass(frozen=True)
class Again(Every):
    """A class that declares a field once more, for another default."""

    count: int = 2
    size: Annotated[int, Range(lambda x: x > 5, "must be more than 5")] = 6


def test_a_field_that_is_declared_again_keeps_its_range_unless_it_has_another() -> None:
    with pytest.raises(ValueError, match=r"^Again\(count=0\): count must be at least 1$"):
        Again(count=0)
    with pytest.raises(ValueError, match=r"^Again\(size=5\): size must be more than 5$"):
        Again(size=5)


def test_a_range_that_asks_for_an_unknown_name_is_no_range_that_is_passed_over() -> None:
    @dataclass(frozen=True)
    class Wrong(Config):
        x: Annotated[float, Range(lambda x: x < LIMIT, "must be less")] = 0.0  # type: ignore[name-defined]

    globals()["Wrong"] = Wrong
    with pytest.raises(NameError, match="LIMIT"):
        Wrong()


@dataclass(frozen=True)
class Said(Config):
    rate: Annotated[float, Range(lambda x: x > 0, "a rate must be positive")] = 1.0
    part: Annotated[float, Range(lambda x: x <= 1, "is a share, at most 1")] = 1.0


def test_a_sentence_that_is_not_of_the_field_stands_by_itself() -> None:
    with pytest.raises(ValueError, match=r"^Said\(rate=0.0\): a rate must be positive$"):
        Said(0.0)
    with pytest.raises(ValueError, match=r"^Said\(part=2.0\): part is a share, at most 1$"):
        Said(part=2.0)
