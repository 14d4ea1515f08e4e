"""What a wrapper does not write is that of what it goes around: every public name, without a list of them.

A wrapper whose ``nests`` names states holds the inner object's in the field ``inner`` of each: where such a state is
given, the inner object gets that field of it.
"""

from __future__ import annotations

from abc import update_abstractmethods
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from .config import Config

C = TypeVar("C", bound=type)


class Inner:
    """An attribute that is the inner object's."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, around: Any, owner: type | None = None) -> Any:
        return self if around is None else getattr(around.inner, self.name)


def public(kind: type) -> list[str]:
    """The names of a kind of object that others may ask for: methods, properties, attributes, of its base classes too.

    What every configuration has, such as ``example``, says something of a class and of nothing that is in it.
    """
    names = dict.fromkeys(name for c in kind.__mro__ for name in (*vars(c), *vars(c).get("__annotations__", {})))
    return [name for name in names if not name.startswith("_") and not hasattr(Config, name)]


def pass_on(kind: type, **made_of: Sequence[str]) -> Callable[[C], C]:
    """A class decorator for what goes around one of a ``kind``: it passes on what the class does not write itself.

    ``made_of`` names methods that ``kind`` makes of others: where a subclass writes one of these others, such a method
    is made of them as in ``kind``.
    """

    def decorate(cls: C) -> C:
        for name in public(kind):
            if name not in vars(cls):
                setattr(cls, name, _delegate(cls, kind, name, made_of.get(name, ())))
        update_abstractmethods(cls)
        return cls

    return decorate


def _delegate(cls: type, kind: Any, name: str, parts: Sequence[str]) -> Any:
    """The attribute ``name`` of a wrapper: the inner object's, or made of ``parts`` where a subclass writes them."""
    default = getattr(kind, name, None)
    if not callable(default):
        return Inner(name)

    names = tuple(signature(default).parameters)[1:]

    @wraps(default)
    def delegate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(getattr(type(self), part) is not getattr(cls, part) for part in parts):
            return default(self, *args, **kwargs)
        if nests := getattr(self, "nests", ()):
            args = tuple(x.inner if of in nests else x for of, x in zip(names, args, strict=False))
            kwargs = {of: x.inner if of in nests else x for of, x in kwargs.items()}
        return getattr(self.inner, name)(*args, **kwargs)

    delegate.__isabstractmethod__ = False  # type: ignore[attr-defined]  # which `wraps` takes from an abstract method
    return delegate
