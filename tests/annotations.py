"""A plugin of pytest: thinwire's annotations are checked as it runs, shapes and dtypes included.

Every function is checked at its calls number 1, 2, 4, 8 and so on: at the first ones, and then ever more rarely. Calls
are counted anew in each test, all its parameters together: a link's own methods are checked with the first parameters
that reach them. To check all calls makes a test take three times as long; ``--every-call`` does.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from dataclasses import is_dataclass
from typing import Any

import jaxtyping
import pytest
from beartype._check.code import codemain

from places import SOURCE

UNCHECKED = {"__init__", "errors", "wire"}  # of the last two small functions are called a million times a run

# Of this test, by the function's code: those that are defined in another function are made anew at each of its calls.
calls: dict[int, int] = {}
test = ""  # without its parameters
checked_at_every_call = jaxtyping.jaxtyped
every_call = False


def checked(of: Any = None, *, typechecker: Any) -> Any:
    """``jaxtyping.jaxtyped``, which the import hook puts before all functions and classes, for some calls."""
    if of is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(of):
        if is_dataclass(of) and "__init__" in vars(of):
            of.__init__ = checked(of.__init__, typechecker=typechecker)
        return of
    number, check = id(of.__code__), None

    @functools.wraps(of)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal check
        n = calls[number] = calls.get(number, 0) + 1
        if n & (n - 1) and not every_call:
            return of(*arguments, **named)
        if check is None:
            check = checked_at_every_call(of, typechecker=typechecker)
        return check(*arguments, **named)

    call.__code__ = call.__code__.replace(co_filename="<annotations>")  # a file would be taken for a user's own
    return call


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-call", action="store_true", help="check the annotations of thinwire at every call")


def pytest_configure(config: pytest.Config) -> None:
    global every_call
    every_call = config.getoption("--every-call")


def pytest_runtest_setup(item: pytest.Item) -> None:
    global test
    if (now := item.nodeid.partition("[")[0]) != test:
        test = now
        calls.clear()


def install() -> None:
    """Import modules of thinwire with checks from here on. The tower lets an int stand for a float, as mypy does."""
    assert "thinwire" not in sys.modules, "thinwire was imported before its annotations could be checked"
    jaxtyping.jaxtyped = checked
    # What of a list is checked is drawn: from a generator of its own, since thinwire looks after the shared one.
    codemain.getrandbits = random.Random(0).getrandbits
    stems = {path.stem for path in SOURCE.iterdir() if path.name != "__pycache__"} - UNCHECKED
    jaxtyping.install_import_hook(
        [f"thinwire.{stem}" for stem in sorted(stems)],
        "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
    )
