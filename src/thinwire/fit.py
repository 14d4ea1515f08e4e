"""Values as annotations ask for them: one check for what is typed, what is called and what is read from a file.

A whole number may stand for a float, and becomes one; a float never stands for a whole number, nor does True. Scalars
of numpy, and whatever else calls itself a number, become Python's own: their ``repr`` could not be typed back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from .errors import ExpressionError

NO_FIT = object()


def fit(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a configuration, each as its field's annotation asks for it. Raises :class:`ExpressionError`."""
    try:
        kinds = _kinds(cls)
    except NameError:  # an annotation that only a function knows, or a module that is not read to its end
        return dict(arguments)
    found = {name: fitted(value, kinds[name]) for name, value in arguments.items()}
    for name, value in found.items():
        if value is NO_FIT:
            expected = f"{hint(kinds[name])} is expected"
            given = repr(arguments[name])
            given = given if len(given) <= 200 else f"{given[:60]}..."
            raise ExpressionError(f"{cls.__name__}({name}={given}): {expected}")
    return found


def fitted(value: Any, expected: Any) -> Any:
    """The value as a type asks for it (1 where a float is expected becomes 1.0, in tuples too), or ``NO_FIT``."""
    origin, inside = get_origin(expected), get_args(expected)
    if expected is Any:
        return value
    if origin in (Union, UnionType):
        found = [fitted(value, kind) for kind in inside]
        return value if any(f is value for f in found) else next((f for f in found if f is not NO_FIT), NO_FIT)
    if origin is Literal:
        return next((known for known in inside if isinstance(value, type(known)) and value == known), NO_FIT)
    if inside and origin in (tuple, list) and isinstance(value, origin):
        kinds = inside[:1] * len(value) if origin is list or inside[1:] == (...,) else inside
        items = [fitted(item, kind) for item, kind in zip(value, kinds, strict=False)]
        return NO_FIT if len(kinds) != len(value) or any(item is NO_FIT for item in items) else origin(items)
    if inside and origin is dict and isinstance(value, dict):
        pairs = [(fitted(k, inside[0]), fitted(v, inside[1])) for k, v in value.items()]
        return NO_FIT if any(part is NO_FIT for pair in pairs for part in pair) else dict(pairs)
    if expected in SCALARS:
        kind = SCALARS[expected]
        fits = isinstance(value, kind) and (expected is bool or not isinstance(value, bool))
        return expected(value) if fits else NO_FIT
    kind = NoneType if expected is None else origin or expected
    return NO_FIT if isinstance(kind, type) and not isinstance(value, kind) else value


SCALARS: dict[Any, Any] = {bool: (bool, np.bool_), int: Integral, float: Real, str: str}


def hint(expected: Any) -> str:
    """A type as a user would say it."""
    if get_origin(expected) is Literal:
        return f"one of {', '.join(map(repr, get_args(expected)))}"
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(map(hint, get_args(expected)))
    example = vars(expected).get("example") if isinstance(expected, type) else None
    return f"{_name(expected)} such as {example}" if example else _name(expected)


def _name(expected: Any) -> str:
    if expected in (None, NoneType):
        return "None"
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(map(_name, get_args(expected)))
    if get_origin(expected) is not None:
        inside = ", ".join("..." if a is Ellipsis else _name(a) for a in get_args(expected))
        return f"{get_origin(expected).__name__}[{inside}]"
    return str(getattr(expected, "__name__", expected))


@cache
def _kinds(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)
