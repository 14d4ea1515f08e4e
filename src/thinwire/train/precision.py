"""``torch.autocast`` as the script has it, for the threads and processes that compute on its behalf."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Precision(NamedTuple):
    """In what type operations compute on a kind of device; None: in that of their inputs."""

    device: str
    dtype: torch.dtype | None

    @staticmethod
    def now(device: str) -> Precision:
        """As this thread has it. Threads begin without."""
        return Precision(device, torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)

    def hold(self) -> AbstractContextManager[Any]:
        """Compute so until the block ends; parameters are narrowed at each forward pass anew.

        Torch keeps narrowed copies until the script leaves its ``with``. Within one those would be of parameters
        before the optimiser moved them, or without a graph, of a forward pass without one.
        """
        return nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype, cache_enabled=False)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """A function, computed so."""
        with self.hold():
            return function(*arguments)


def without_cache(device: torch.device) -> AbstractContextManager[Any]:
    """``torch.autocast`` as the script has it, if it does, but without its copies of parameters."""
    return Precision.now(device.type).hold()
