"""What an attack is: hostile clients of a simulation, and where what they do differs from what honest ones do.

Hostile clients are drawn once, from the run's seed. They train, keep states and encode as honest ones do but for one of
three things: the examples that they train on (``poison``), the message before it is sent (``bend``), or the sender of
a link that remembers (``link``). What the server is sent has the form of an honest reply, byte for byte.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple

import torch

from ..config import Config
from ..errors import require
from ..key import Key
from ..links import Link
from ..params import Params
from ..ranges import Share
from ..task import Task


class Others(NamedTuple):
    """What hostile clients know of a field of the honest replies of their round, as the server decodes these."""

    mean: Params
    deviation: Params  # the standard deviation of each entry, of the replies as they are, not of a sample
    replies: int  # honest ones
    hostile: int


class Attack(Config, ABC):
    """``attack=`` of a simulation: a ``share`` of the clients is hostile."""

    example = "SignFlip(0.2, scale=10)"

    omniscient: ClassVar[bool] = False
    """Whether hostile clients are told of the honest replies of their round, and reply after these."""

    share: Share

    def hostile(self, clients: int, seed: int) -> frozenset[int]:
        """The hostile ones of so many clients. Raises ``ValueError`` where the share is less than one client."""
        count = math.floor(self.share * clients + 1e-9)  # 0.3 of ten are three
        require(count > 0, f"{self!r}: {self.share:g} of {clients} clients is less than one; give a larger share")
        order = torch.randperm(clients, generator=Key(seed).generator("attack"), device="cpu")
        return frozenset(order[:count].tolist())

    def check(self, links: Iterable[Link]) -> None:
        """Raise :class:`~thinwire.errors.CombinationError` where it means nothing for replies by these links."""

    def poison(self, task: Task, tasks: Iterable[Task]) -> Task:
        """What a hostile client trains on, given its examples and those of all clients."""
        return task

    def bend(self, x: Params, others: Others | None, key: Key) -> Params:
        """What a hostile client sends as a field of its reply, in place of ``x``; norm statistics aside."""
        return x

    def link(self, link: Link) -> Link:
        """The sender of a hostile client's field, whose packets and states are those of ``link``."""
        return link


def swap(link: Link, kind: type[Link], make: Callable[[Any], Link]) -> Link:
    """A link, or the links in it, with what ``make`` makes of each of a kind; itself where there is none."""
    if isinstance(link, kind):
        return make(link)
    changed = {}
    for field in fields(link):  # type: ignore[arg-type]  # a dataclass
        value = getattr(link, field.name)
        if isinstance(value, Link):
            new: Any = swap(value, kind, make)
        elif isinstance(value, dict) and any(isinstance(one, Link) for one in value.values()):
            new = {name: swap(one, kind, make) for name, one in value.items()}
            new = value if all(new[name] is value[name] for name in value) else new
        else:
            continue
        if new is not value:
            changed[field.name] = new
    return replace(link, **changed) if changed else link  # type: ignore[type-var]
