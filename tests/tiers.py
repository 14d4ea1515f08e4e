"""Which rows of a law are tried when: the first in every run of its test, further ones in ``make slow`` or ``soak``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def marks(place: int, fast: int | None = None, slow: int | None = None) -> list[pytest.MarkDecorator]:
    """The marks of a row that has so many before it: those after ``fast`` are slow, those after ``slow`` a soak's."""
    if slow is not None and place >= slow:
        return [pytest.mark.soak]
    return [pytest.mark.slow] if fast is not None and place >= fast else []


def tiers(
    rows: Iterable[Any], fast: int | None = None, slow: int | None = None, name: Callable[[Any], str] | None = None
) -> list[Any]:
    """Rows as parameters, each with its marks. A row that is a plain tuple is several parameters."""
    return [
        pytest.param(*(row if type(row) is tuple else (row,)), marks=marks(place, fast, slow), id=name and name(row))
        for place, row in enumerate(rows)
    ]


def selection(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """The values of a parameter with which tests of the fixture's module are run."""
    items = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    given = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return {params[parameter] for params in given if parameter in params}
