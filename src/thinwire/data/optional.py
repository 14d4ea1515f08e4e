"""Packages that only some parts need: data sets and splits, the command line, plots."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def optional(module: str, purpose: str, extra: str = "data") -> Any:
    """The module, imported now.

    Raises ImportError, with the command that installs it, where it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f'{purpose} needs {package} ({error}): pip install "thinwire[{extra}]"') from error


def check_there(package: str, purpose: str, extra: str = "data") -> None:
    """Raise what :func:`optional` raises where a package is missing; one that is there is not imported yet."""
    if importlib.util.find_spec(package) is None:
        optional(package, purpose, extra)
