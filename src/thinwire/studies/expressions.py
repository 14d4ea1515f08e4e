"""Typed text as objects: expressions of methods and options, with a user's own modules, and their kind of study."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import signature
from typing import Any, get_args, get_type_hints

from ..config import Config
from ..errors import ExpressionError, require
from ..expression import configurations, parse, vocabulary
from ..federated.setting import Setting
from ..problem import import_module


def of_another_kind(kind: str, name: str, names: Mapping[str, type]) -> str | None:
    """The kind, and its command, of an expression that begins with ``name`` and is of another kind than this."""
    from . import KINDS

    if KINDS[kind].knows(name, names):
        return None  # the others, which are not imported yet, know no name of it
    other = next((one for one, cls in KINDS.items() if one != kind and cls.knows(name, names)), None)
    return None if other is None else f"{name} is {KINDS[other].noun}, for `thinwire {KINDS.places[other].command}`"


def vocabulary_with(use: Sequence[str]) -> dict[str, type]:
    """The names that a method may be written with: thinwire's, and those of a user's modules."""
    return vocabulary() | own(use)


def own(use: Sequence[str]) -> dict[str, type]:
    """The classes of a user's modules that can be written in an expression.

    Raises ``ValueError`` for a class that is written there and cannot be, and for one with a name of thinwire's own.
    """
    names: dict[str, type] = {}
    for module in use:
        there = vars(import_module(module, f"--use {module}"))
        written = {name: x for name, x in there.items() if isinstance(x, type) and x.__module__ == module}
        for name, cls in written.items():
            if why := _unusable(name, cls, written.values()):
                raise ValueError(f"--use {module}: {why}")
        classes = configurations(there)
        require(bool(classes), f"--use {module}: it has no method or link, which are frozen dataclasses")
        names |= classes
    return names


def _unusable(name: str, cls: Any, beside: Iterable[type]) -> str:
    """Why a class of a user's module cannot be written in an expression, and what to change; nothing if it can."""
    if not issubclass(cls, Config) or name.startswith("_") or any(cls in other.__mro__[1:] for other in beside):
        return ""  # the base of another
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        return f"{name} has no {' and no '.join(missing)}: write it, or begin the name of a base with _"
    if not is_dataclass(cls):
        return f"{name} is no dataclass: put @dataclass(frozen=True) above it"
    if vocabulary().get(name, cls) is not cls:
        return f"thinwire has a {name} already: give the class another name"
    return ""


def parse_typed(text: str, names: dict[str, type], defaults: Mapping[str, Any] | None = None) -> Any:
    """The object of an expression. Raises :class:`ExpressionError`, for what a user's own class does not take too."""
    try:
        return parse(text, defaults, names)
    except ValueError as error:
        raise ExpressionError(str(error)) from None


def resolve(
    make: Callable[[Mapping[str, Any]], tuple[str, ...]], defaults: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Complete expressions of ``defaults``, numbers. Raises ``ValueError`` for a number that makes no difference."""
    given = {name: value for name, value in (defaults or {}).items() if value is not None}
    made = make(given)
    for name, value in given.items():
        used = not made or made != make({**given, name: value + 1})
        require(used, f"--{name} {value}: no method here leaves it open; leave it out")
    return made


def option(name: str, text: str, kind: type, names: dict[str, type], example: str) -> Any:
    """The object of an option's expression. Raises :class:`ExpressionError` where it is of another kind."""
    value = parse_typed(text, names)
    if not isinstance(value, kind):
        raise ExpressionError(f"{name} {text}: it is written like {example}")
    return value


def _of_kind(part: type) -> dict[str, type]:
    """The classes of thinwire's that are of a kind, and those of the kinds that their fields have, by name."""
    classes = {name: cls for name, cls in vocabulary().items() if issubclass(cls, part)}
    for cls in list(classes.values()):
        for held in _kinds_of_fields(cls) - {part}:
            classes |= _of_kind(held)
    return classes


def _kinds_of_fields(cls: type) -> set[type]:
    """The kinds of configurations that a class's fields have."""
    kinds = {name: kind for name, kind in get_type_hints(cls).items() if name in signature(cls).parameters}
    return {part for kind in kinds.values() for part in configurations_of(kind)}


def configurations_of(kind: Any) -> list[type[Config]]:
    """The configurations among the alternatives of a type: of ``Network | None`` it is ``Network``."""
    return [part for part in get_args(kind) or (kind,) if isinstance(part, type) and issubclass(part, Config)]


def setting_of(values: Mapping[str, Any]) -> Setting:
    """The setting of fields as they are typed: those that are configurations are expressions, parsed here."""
    parts = {name: part for name, kinds in get_type_hints(Setting).items() for part in configurations_of(kinds)}
    made = {
        name: option(f"--{name}", values[name], part, _of_kind(part), part.example)
        for name, part in parts.items()
        if values.get(name) is not None
    }
    if values.get("clip") not in (None, "auto"):  # a word or a number
        with contextlib.suppress(ValueError):
            made["clip"] = float(values["clip"])
    return Setting().but({**values, **made})
