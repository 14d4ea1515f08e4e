"""The generators that a whole process shares: torch's, numpy's and Python's.

A user's module, loss or ``batch`` may draw from them. What they draw must be a function of the key, and not of what
was drawn before, so they are seeded around a client's work and put back afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch


class Dice(NamedTuple):
    """The states of the three generators."""

    torch: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    @staticmethod
    def now() -> Dice:
        """As they are."""
        numpy = np.random.get_state(legacy=False)  # noqa: NPY002  what users draw from
        assert isinstance(numpy, dict)
        return Dice(torch.get_rng_state(), numpy, random.getstate())

    def differs(self) -> bool:
        """Whether anything was drawn, or seeded, since."""
        now = Dice.now()
        if self.python != now.python or not torch.equal(self.torch, now.torch):
            return True
        mine, theirs = self.numpy["state"], now.numpy["state"]
        same = mine["pos"] == theirs["pos"] and np.array_equal(mine["key"], theirs["key"])
        return not same or self.numpy["has_gauss"] != now.numpy["has_gauss"]

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)


@contextlib.contextmanager
def seeded(number: int, enabled: bool = True) -> Iterator[None]:
    """All three begin at ``number`` (63 bits) and are as they were when the block ends; nothing if not ``enabled``.

    Whatever else draws in this process at the same time draws from them too: one block at a time.
    """
    if not enabled:
        yield
        return
    before = Dice.now()
    seed(number)
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def put_back() -> Iterator[Dice]:
    """All three are put back as they were when the block ends. Gives them as they were."""
    before = Dice.now()
    try:
        yield before
    finally:
        before.restore()


def seed(number: int) -> None:
    """Let all three begin at ``number``."""
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002
    random.seed(number)
