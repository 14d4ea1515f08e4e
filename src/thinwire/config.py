"""The frozen object is the configuration, and its ``repr`` is the run's name.

Links, algorithms, optimisers, schedules and splits are frozen dataclasses that
inherit :class:`Config`. Their ``repr`` leaves out what is at its default
(``LBGM(TopK(0.1), threshold=0.4)``); :func:`complete` leaves out nothing, so that a
recorded run keeps its meaning when a default changes. Both can be typed back
(see :mod:`thinwire.expression`).

Fields are of the types they are annotated with: that is seen to before a class checks
their values in its ``__post_init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, ClassVar

from .fit import fit


class Config:
    """A frozen dataclass whose ``repr`` is short and can be typed back."""

    paper: ClassVar[str] = ""
    """Where it comes from, in one line; ``thinwire methods`` shows it."""
    example: ClassVar[str] = ""
    """How one of this kind is written, for errors: of a kind that others hold."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Set on every class: @dataclass keeps what it finds there. A field may be a dict, which has no hash.
        cls.__repr__ = _short  # type: ignore[method-assign]
        cls.__hash__ = _hash  # type: ignore[method-assign]
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _fitted_first(cls.__post_init__)  # type: ignore[method-assign, assignment]

    def __post_init__(self) -> None:
        """Fields become what their annotations say. Raises :class:`ExpressionError`, naming the first that cannot."""
        _fit(self)


def complete(x: Any) -> str:
    """The expression of ``x`` with every field written out."""
    if isinstance(x, Config):
        inside = ", ".join(f"{name}={complete(value)}" for name, value, _ in _items(x))
        return f"{type(x).__name__}({inside})"
    return _container(x, complete)


def _fit(self: Any) -> None:
    for name, value in fit(type(self), {field.name: getattr(self, field.name) for field in fields(self)}).items():
        object.__setattr__(self, name, value)


def _fitted_first(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """A class's own check of its values, after that of their types: it need not fear a text where it compares."""

    @wraps(check)
    def checked(self):  # type: ignore[no-untyped-def]
        _fit(self)
        check(self)

    return checked


def _hash(self: Any) -> int:
    return hash(complete(self))


def _short(self: Any) -> str:
    """Fields at their default are left out, but the first number is always there: ``TopK(0.01)``."""
    words: list[str] = []
    numbers, positional = 0, True
    for name, value, default in _items(self):
        number = type(value) in (int, float) or type(default) in (int, float)
        numbers += number
        if default is not MISSING and value == default and not (number and numbers == 1):
            positional = False  # everything after a gap needs its name
            continue
        words.append((f"{name}=" if not positional else "") + _container(value, repr))
        positional = False  # only the first field reads well without its name
    return f"{type(self).__name__}({', '.join(words)})"


def _items(x: Any) -> Iterator[tuple[str, Any, Any]]:
    for field in fields(x):
        if field.init and field.repr:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            yield field.name, getattr(x, field.name), default


def _container(x: Any, show: Any) -> str:
    """Lists, tuples and dicts of configurations; everything else by its own repr."""
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {show(v)}" for k, v in x.items()) + "}"
    if isinstance(x, tuple):
        return "(" + ", ".join(show(v) for v in x) + (",)" if len(x) == 1 else ")")
    if isinstance(x, list):
        return "[" + ", ".join(show(v) for v in x) + "]"
    return repr(x)
