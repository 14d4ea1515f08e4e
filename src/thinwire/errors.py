"""Everything thinwire raises on purpose.

::

    ThinwireError
    ├── WireError           bytes that are not a message (or not the one expected)
    ├── ExpressionError     a method with a name or an argument that is none  (also a ValueError)
    ├── DataError           a data file that is missing, cut or of another kind  (also a ValueError)
    ├── CombinationError    two parts that have no meaning together       (also a ValueError)
    ├── NonFinite           a loss, an update or a model became NaN or infinite
    ├── OutOfSync           a message refers to a base its receiver does not hold
    ├── RankLost            another process of a group died, stalled, or does something else
    └── RunError            a run folder that is in use, of another run, or not a run

A plain ``ValueError`` is an argument out of its range; its text says what to change.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import resolve_name
from numbers import Integral
from typing import Any


class ThinwireError(Exception):
    """The root of the tree."""


class WireError(ThinwireError):
    """Bytes that are not a message, or a message of another shape than expected."""


class ExpressionError(ThinwireError, ValueError):
    """An expression, typed or in Python, with an unknown name, or an argument of another type than is asked for."""


class DataError(ThinwireError, ValueError):
    """A data file that is missing, truncated or of the wrong kind."""


class CombinationError(ThinwireError, ValueError):
    """Two parts that do not go together; the text gives the reason."""


class NonFinite(ThinwireError, ArithmeticError):
    """NaN or infinity in a loss, an update or a model."""


class OutOfSync(ThinwireError):
    """A message refers to a version that its receiver does not hold."""


class RankLost(ThinwireError):
    """A collective of several processes failed: one of the others is not there, or not where it should be."""


class RunError(ThinwireError):
    """A run folder that cannot be used as asked."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` for the known name closest to ``word``, or nothing."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return f" (did you mean {lowered[close[0]]}?)" if close else ""


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_whole(**numbers: object) -> None:
    """Raise ``ValueError``, naming it, for one that is neither a whole number nor None."""
    for name, number in numbers.items():
        fits = number is None or (isinstance(number, Integral) and not isinstance(number, bool))
        require(fits, f"{name}={number!r}: a whole number is expected")


def find_class(module: str, package: str, name: str, row: str) -> Any:
    """The class of a row of a table of thinwire's. Raises ``ValueError``, naming the row, where there is none."""
    whole = resolve_name(module, package)
    try:
        there = import_module(whole)
    except ModuleNotFoundError as error:
        if error.name != whole:  # another's, which the module needs
            raise
        raise ValueError(f"{row}: there is no module {whole}") from None
    require(hasattr(there, name), f"{row}: {whole} has no class {name}")
    return getattr(there, name)


def check(condition: object, expected: str) -> None:
    """Raise :class:`WireError` unless a packet is as ``expected``."""
    if not condition:
        raise WireError(f"a packet of another shape: {expected} expected")
