"""A link's state in a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import check
from ..wire import dumps, loads, restore


def freeze(kept: Any) -> Tensor:
    """A link's state as a tensor of bytes, which torch saves without pickling classes."""
    return torch.frombuffer(bytearray(dumps(kept)), dtype=torch.uint8)


def thaw(data: Any, like: Any) -> Any:
    """What :func:`freeze` froze, with the types of ``like``."""
    check(isinstance(data, Tensor) and data.dtype == torch.uint8, "a link's state")
    return restore(loads(data.numpy().tobytes(), max_depth=100, max_values=None, finite=False), like)
