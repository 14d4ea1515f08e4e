"""What makes a run this run and no other: digests of its model and its data."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..algorithms.base import Algorithm
from ..config import complete
from ..dice import seeded
from ..losses import IGNORED
from ..task import Supervised, Task
from ..train.adapter import scales
from ..train.device import to_device
from ..version import code_version
from ..wire import dumps
from .folder import Folder

log = logging.getLogger("thinwire")


def model_digest(module: nn.Module) -> str:
    """Names, shapes and values of everything in a model, frozen parameters too, and by what an adapter is scaled."""
    digest = hashlib.sha256(
        json.dumps(scaled, sort_keys=True, default=str).encode() if (scaled := scales(module)) else b""
    )
    for name, tensor in module.state_dict().items():
        digest.update(f"{name}{_tensor_digest(tensor)}".encode())
    return digest.hexdigest()[:16]


def run_digest(algorithm: Algorithm, model: str, seed: int, clients: int, known: bool = False) -> str:
    """What server and clients must agree on; ``model`` is its digest. ``known``: whether clients begin with it."""
    text = json.dumps([complete(algorithm), model, seed, clients, *(["known"] if known else [])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def data_digest(tasks: Sequence[Task]) -> str:
    """What everyone has: all examples of :class:`Supervised` tasks and of those with ``data_tensors``, of others their
    number and some of them.
    """
    digest, known = hashlib.sha256(), dict[int, str]()  # tensors that many tasks share are read once
    for task in tasks:
        digest.update(f"{type(task).__qualname__} {len(task)},".encode())
        for tensor in task.data_tensors() if hasattr(task, "data_tensors") else ():
            known[id(tensor)] = known.get(id(tensor)) or _tensor_digest(tensor)
            digest.update(known[id(tensor)].encode())
        if isinstance(task, Supervised):
            for tensor in (task.inputs, task.targets):
                known[id(tensor)] = known.get(id(tensor)) or _tensor_digest(tensor)
                digest.update(known[id(tensor)].encode())
            if task.indices is not None:
                digest.update(task.indices.contiguous().numpy().data)
            functions = [name_of(task.loss_of), *((name, name_of(of)) for name, of in task.metrics_of.items())]
            digest.update(repr([task.mean, task.std, task.augment, functions]).encode())
            if task.ignore_index != IGNORED:
                digest.update(f"ignore_index={task.ignore_index}".encode())
        if (order := getattr(task, "order", None)) is not None:
            digest.update(repr([[torch.as_tensor(b, device="cpu").tolist() for b in of] for of in order]).encode())
    with seeded(0):  # a task may draw from the generators that a process shares
        for task in tasks[:: max(1, len(tasks) // 10)]:
            with contextlib.suppress(TypeError):  # a batch of something else than tensors
                digest.update(dumps(to_device(task.batch(torch.arange(1, device="cpu")), torch.device("cpu"))))
    return digest.hexdigest()[:16]


def _tensor_digest(x: torch.Tensor) -> str:
    data = x.detach().reshape(-1).cpu().contiguous().view(torch.uint8).numpy().data
    return f"{tuple(x.shape)}{x.dtype}{hashlib.sha256(data).hexdigest()}"


def versions(folder: Folder, about: Mapping[str, Any]) -> list[str]:
    """The versions that a run was made with; ``about`` is its ``run.json``. A warning says where they change."""
    now, known = f"thinwire {code_version()}, torch {torch.__version__}", list(about.get("versions", ()))
    if not known or known[-1] == now:
        return known or [now]
    if folder.writes:
        text = "%s was made with %s and goes on with %s: its numbers may differ from those of a run by one of them"
        log.warning(text, folder.path, known[-1], now)
    return [*known, now]


def name_of(function: object) -> str:
    """Of a function, as far as it can be told in another process."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
