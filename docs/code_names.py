"""What a name on a page stands for.

A name is a public one: ``FedAvg`` of thinwire, ``DEF`` or ``ddp.EF21`` of thinwire.ddp, or the whole path of something
else, ``thinwire.links.sparse.count_of``.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from typing import Any

KINDS = {  # the headings of methods/index.md, and the kinds of the catalogue under each
    "federated": (*("algorithm", "server optimiser", "local training", "learning rate", "random subspace", "privacy"),),
    "links": ("link",),
    "data-parallel": ("data-parallel",),
}
PAGED = ("algorithm", "link", "data-parallel")  # the kinds of which everything has a page


class Wrong(Exception):
    """A macro that cannot be expanded; the message names the page and the macro."""


def find(name: str) -> Any:
    """What a name stands for: a class, a function, a member. Raises :class:`Wrong`."""
    return resolve(name)[-1]


def owner(name: str) -> tuple[str, Any]:
    """The first part of a name that is no module, in full (``thinwire.ddp.EF21``), and what it stands for."""
    whole, first, _ = resolve(name)
    return whole, first


@cache
def resolve(name: str) -> tuple[str, Any, Any]:
    """Its first part that is no module, in full, what that is, and what the whole name is. Raises :class:`Wrong`."""
    import thinwire
    import thinwire.ddp

    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise Wrong(f"{name} is no name such as FedAvg or FedAvg.client")
    parts = name.removeprefix("thinwire.").split(".")
    if parts[0] in thinwire.__all__:
        return _members(f"thinwire.{parts[0]}", getattr(thinwire, parts[0]), parts[1:], name)
    inside = parts[1:] if parts[0] == "ddp" else parts
    if inside and inside[0] in thinwire.ddp.__all__ and isinstance(getattr(thinwire.ddp, inside[0]), type):
        return _members(f"thinwire.ddp.{inside[0]}", getattr(thinwire.ddp, inside[0]), inside[1:], name)
    for cut in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(["thinwire", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        if hasattr(module, parts[cut]):
            whole = ".".join(["thinwire", *parts[: cut + 1]])
            return _members(whole, getattr(module, parts[cut]), parts[cut + 1 :], name)
    raise Wrong(f"{name} is neither a public name of thinwire or thinwire.ddp nor the path of something in them")


def _members(whole: str, first: Any, rest: list[str], name: str) -> tuple[str, Any, Any]:
    value = first
    for word in rest:
        try:
            value = inspect.getattr_static(value, word)
        except AttributeError:
            raise Wrong(f"{name}: {whole} has no member {word}") from None
    return whole, first, value


def catalogued() -> dict[str, str]:
    """The name in full of everything that has a page -> its kind in the catalogue."""
    return {whole: kind for whole, kind, _ in _catalogue()}


@cache
def _catalogue() -> list[tuple[str, str, Any]]:
    from thinwire.studies.catalogue import catalogue

    found = []
    for entry in catalogue():
        if entry.kind in sum(KINDS.values(), ()):
            whole, cls = owner(f"ddp.{entry.name}" if entry.kind == "data-parallel" else entry.name)
            found.append((whole, entry.kind, cls))
    return found


def paper_of(name: str) -> str:
    """The paper of a class; of one without, nothing."""
    return str(getattr(owner(name)[1], "paper", ""))


def short(name: str) -> str:
    """A name without its package."""
    return name.removeprefix("thinwire.").removeprefix("ddp.")
