"""Where tensors are computed: devices that can be used, and batches put on them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Batch


def usable(device: str) -> bool:
    """Whether tensors can be put on a device."""
    try:
        torch.empty(0, device=device, dtype=torch.float32)
    except (RuntimeError, AssertionError):  # torch raises the latter where it was built without CUDA
        return False
    return True


def unusable(device: str) -> str:
    """Why :func:`usable` says no, and what to use."""
    if device.partition(":")[0] == "cuda":
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if number:
            return f"this machine has {number} CUDA devices, counted from cuda:0"
        return "this machine has no CUDA device that torch can use; use cpu"
    return "no such device here; use cpu or cuda"


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A batch of tensors, in tuples, lists or dicts, where the module is; pictures with channels last."""
    if isinstance(batch, Tensor):
        if batch.ndim == 4 and batch.is_floating_point():
            return batch.to(device, memory_format=torch.channels_last)
        return batch.to(device)
    if isinstance(batch, tuple | list):
        parts = [to_device(b, device) for b in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, dict):
        return {name: to_device(b, device) for name, b in batch.items()}
    return batch
