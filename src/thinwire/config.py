"""The frozen object is the configuration, and its ``repr`` is the run's name.

Links, algorithms, optimisers, schedules and splits are frozen dataclasses that
inherit :class:`Config`. Their ``repr`` leaves out what is at its default
(``LBGM(TopK(0.1), threshold=0.4)``); :func:`complete` leaves out nothing, so that a
recorded run keeps its meaning when a default changes. Both can be typed back
(see :mod:`thinwire.expression`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any, ClassVar


class Config:
    """A frozen dataclass whose ``repr`` is short and can be typed back."""

    paper: ClassVar[str] = ""
    """Where it comes from, in one line; ``thinwire methods`` shows it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__repr__ = _short  # type: ignore[method-assign]  # set on every class: @dataclass keeps a repr it finds there


def complete(x: Any) -> str:
    """The expression of ``x`` with every field written out."""
    if isinstance(x, Config):
        inside = ", ".join(f"{name}={complete(value)}" for name, value, _ in _items(x))
        return f"{type(x).__name__}({inside})"
    return _container(x, complete)


def _short(self: Any) -> str:
    words, positional = [], True
    for name, value, default in _items(self):
        if default is not MISSING and type(value) is type(default) and value == default:
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
