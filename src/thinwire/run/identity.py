"""What makes a run this run and no other: digests of its model and its data."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from ..task import Supervised, Task
from ..wire import dumps
from .train import to_device


def model_digest(module: nn.Module) -> str:
    """Names, shapes and values of everything in a model, frozen parameters too."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().reshape(-1).cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def data_digest(tasks: Sequence[Task]) -> str:
    """Everyone's number of examples and, where they are known, which; and what some of them are."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{len(task)},".encode())
        if isinstance(task, Supervised) and task.indices is not None:
            digest.update(task.indices.contiguous().numpy().data)
        if isinstance(task, Supervised) and task.augment:
            digest.update(repr(task.augment).encode())
    for task in tasks[:: max(1, len(tasks) // 10)]:
        with contextlib.suppress(TypeError):  # a batch of something else than tensors
            digest.update(dumps(to_device(task.batch(torch.arange(1)), torch.device("cpu"))))
    return digest.hexdigest()[:16]
