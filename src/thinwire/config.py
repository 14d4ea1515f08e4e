"""The frozen object is the configuration, and its ``repr`` is the run's name.

Links, algorithms, optimisers, schedules and splits are frozen dataclasses that
inherit :class:`Config`. Their ``repr`` leaves out what is at its default
(``LBGM(TopK(0.1), threshold=0.4)``); :func:`complete` leaves out nothing, so that a
recorded run keeps its meaning when a default changes. Both can be typed back
(see :mod:`thinwire.expression`).

Fields are of the types they are annotated with: :func:`fit` sees to that before a class checks
their values in its ``__post_init__``, and so for what is typed and what is read from a file. A range that is part of
an annotation (:mod:`thinwire.ranges`) is looked at there too. A
whole number may stand for a float and becomes one. A float never stands for a whole number, and True
stands for no number. Scalars of numpy become Python's own, because their ``repr`` cannot be typed back.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from .errors import ExpressionError
from .ranges import Beginning, check_ranges, of_call


class Config:
    """A frozen dataclass whose ``repr`` is short and can be typed back."""

    paper: ClassVar[str] = ""
    """Where it comes from, in one line; ``thinwire methods`` shows it."""
    example: ClassVar[str] = ""
    """How one of this kind is written, for errors: of a kind that others hold."""
    refusal: ClassVar[Beginning] = staticmethod(of_call)
    """How the refusal of a value outside its range begins."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Set on every class: @dataclass keeps what it finds there. A field may be a dict, which has no hash.
        cls.__repr__ = _short  # type: ignore[method-assign]
        cls.__hash__ = _hash  # type: ignore[method-assign]
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _fit_first(cls.__post_init__)  # type: ignore[method-assign, assignment]

    def __post_init__(self) -> None:
        """Fields become what their annotations say.

        Raises :class:`ExpressionError`, naming the first that cannot, and ``ValueError`` for one outside its range.
        """
        _fit(self)

    @classmethod
    def _in_order(cls) -> Sequence[Field[Any]]:
        """The fields in the order of an expression."""
        return _fields_of(cls)


LATER = {"later": True}
"""The metadata of a field that came after results and runs were recorded: at its default ``complete`` leaves it out."""


def complete(x: Any) -> str:
    """The expression of ``x`` with every field written out."""
    if isinstance(x, Config):
        # A field that a class got later is left out at its default: what was recorded before names the same object.
        later = {field.name for field in _fields_of(type(x)) if field.metadata.get("later")}
        items = [(name, value) for name, value, default in _items(x) if name not in later or value != default]
        inside = ", ".join(f"{name}={complete(value)}" for name, value in items)
        return f"{type(x).__name__}({inside})"
    return _container(x, complete)


def _fields_of(cls: type) -> Sequence[Field[Any]]:
    """The fields of a class. Raises ``TypeError`` where neither it nor a class below it is a dataclass."""
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__}: write @dataclass(frozen=True) before the class")
    return fields(cls)


def _check_decorated(cls: type) -> None:
    """Raise ``TypeError`` for a class whose own fields are none, because @dataclass is missing."""
    if "__dataclass_fields__" in vars(cls):
        return
    for name, kind in inspect.get_annotations(cls).items():
        if "ClassVar" not in str(kind):
            raise TypeError(
                f"{cls.__name__}: write @dataclass(frozen=True) before the class, or {name} is no field of it"
            )


def _fit(self: Any) -> None:
    _check_decorated(type(self))
    values = fit(type(self), {field.name: getattr(self, field.name) for field in fields(self)})
    for name, value in values.items():
        object.__setattr__(self, name, value)
    check_ranges(type(self), values, type(self).refusal)


def _fit_first(check: Callable[[Any], None]) -> Callable[[Any], None]:
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
    numbers, positional = 0, not any(field.kw_only for field in self._in_order()[:1])
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
    for field in x._in_order():
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


NO_FIT = object()
MEANT = {  # what a value that does not fit an argument may have meant
    ("down", "auto"): "PerClient(TopK(0.1), auto=True) chooses between one stream and messages of each client's own",
    (
        "clip",
        "auto",
    ): "'auto' is the clip of a run without Privacy, whose noise needs one that depends on no client's data",
}


def fit(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a configuration, each as its field's annotation asks for it. Raises :class:`ExpressionError`."""
    try:
        kinds = _kinds(cls)
    except NameError:  # an annotation that only a function knows, or a module that is not read to its end
        return dict(arguments)
    values = {name: fit_value(value, kinds[name]) for name, value in arguments.items()}
    for name, value in values.items():
        if value is NO_FIT:
            expected = f"{hint(kinds[name])} is expected"
            given = repr(arguments[name])
            given = given if len(given) <= 200 else f"{given[:60]}..."
            if isinstance(value := arguments[name], type):
                given, expected = value.__name__, f"{value.__name__} is a class, not {value.__name__}(); {expected}"
            meant = MEANT.get((name, value), "") if isinstance(value, str) else ""
            raise ExpressionError(f"{cls.__name__}({name}={given}): {expected}{meant and '; ' + meant}")
    return values


def fit_value(value: Any, expected: Any) -> Any:
    """The value as a type asks for it (1 where a float is expected becomes 1.0, in tuples too), or ``NO_FIT``."""
    origin, inside = get_origin(expected), get_args(expected)
    if expected is Any:
        return value
    if origin in (Union, UnionType):
        fitting = [fit_value(value, kind) for kind in inside]
        return value if any(f is value for f in fitting) else next((f for f in fitting if f is not NO_FIT), NO_FIT)
    if origin is Literal:
        return next((known for known in inside if isinstance(value, type(known)) and value == known), NO_FIT)
    if inside and origin in (tuple, list) and isinstance(value, origin):
        kinds = inside[:1] * len(value) if origin is list or inside[1:] == (...,) else inside
        items = [fit_value(item, kind) for item, kind in zip(value, kinds, strict=False)]
        return NO_FIT if len(kinds) != len(value) or any(item is NO_FIT for item in items) else origin(items)
    if inside and origin is Sequence and isinstance(value, Sequence):  # kept as it is: it may be long
        fits = not isinstance(value, str) and all(fit_value(item, inside[0]) is not NO_FIT for item in value)
        return value if fits else NO_FIT
    if inside and origin is Mapping and isinstance(value, Mapping):
        parts = [(key, inside[0]) for key in value] + [(item, inside[1]) for item in value.values()]
        return NO_FIT if any(fit_value(part, kind) is NO_FIT for part, kind in parts) else value
    if inside and origin is dict and isinstance(value, dict):
        pairs = [(fit_value(k, inside[0]), fit_value(v, inside[1])) for k, v in value.items()]
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


def differing(name: str, one: Any, other: Any) -> str:
    """What differs between two recorded values, in words: of two complete expressions the innermost field.

    ``method.inner.local.lr is 0.05, not 0.1``.
    """
    try:
        a, b = (ast.parse(value, mode="eval").body for value in (one, other))
    except (TypeError, ValueError, SyntaxError):  # no texts, or no expressions
        return f"{name} is {one}, not {other}"
    while pair := _first_other(a, b):
        name, a, b = f"{name}.{pair[0].arg}", pair[0].value, pair[1].value
        one, other = ast.unparse(a), ast.unparse(b)
    return f"{name} is {one}, not {other}"


def _first_other(a: ast.expr, b: ast.expr) -> tuple[ast.keyword, ast.keyword] | None:
    """The first fields that differ, of two calls of one name."""
    if not (isinstance(a, ast.Call) and isinstance(b, ast.Call) and ast.dump(a.func) == ast.dump(b.func)):
        return None
    pairs = zip(a.keywords, b.keywords, strict=False)
    return next(((x, y) for x, y in pairs if x.arg == y.arg and ast.dump(x.value) != ast.dump(y.value)), None)
