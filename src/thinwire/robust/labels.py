"""Hostile clients that train as asked, on wrong labels.

Fang, Cao, Jia, Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020,
arXiv:1911.11815, section 4 (the label flipping attack).

Differences from the paper: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor

from ..errors import CombinationError
from ..ranges import Share
from ..task import Supervised, Task
from .attack import Attack


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Hostile clients train on class C - 1 - y in place of y, of C classes in all.

    Raises :class:`~thinwire.errors.CombinationError` for tasks that are no :class:`~thinwire.Supervised` ones with
    classes as targets.
    """

    paper = "Fang et al., USENIX Security 2020, arXiv:1911.11815"

    share: Share = 0.2

    def poison(self, task: Task, tasks: Iterable[Task]) -> Task:
        last = -1
        for one in tasks:
            if not isinstance(one, Supervised) or one.targets.is_floating_point() or one.targets.ndim != 1:
                raise CombinationError(f"{self!r} changes classes, one an example: these tasks have no such targets")
            last = max(last, int(one.targets.long().where(_is_class(one), -1).max()))
        assert isinstance(task, Supervised)
        return replace(task, targets=task.targets.where(~_is_class(task), last - task.targets))


def _is_class(task: Supervised) -> Tensor:
    """Which targets are classes."""
    return (task.targets != task.ignore_index) & (task.targets >= 0)
