"""Copies for checkpoints, and the order in which pictures lie in memory.

Sums over pictures in another order in memory have other bits.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
from torch import Tensor


def is_channels_last(x: Tensor | None) -> bool:
    """True for pictures that lie in memory by pixel, as a copy for a checkpoint does not."""
    if x is None or x.ndim != 4 or x.is_contiguous():
        return False
    return x.is_contiguous(memory_format=torch.channels_last)


def in_order(x: Tensor, channels_last: bool | None) -> Tensor:
    """A tensor in the order in memory that :func:`is_channels_last` said."""
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def copy_state(x: Any) -> Any:
    """A copy of a state on the CPU, tensors without their graphs."""
    if isinstance(x, Tensor):
        return x.detach().to("cpu", copy=True).contiguous()
    if isinstance(x, dict):
        return {name: copy_state(value) for name, value in x.items()}
    if isinstance(x, list | tuple | deque):
        return [copy_state(value) for value in x]
    return copy.copy(x)
