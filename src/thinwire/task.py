"""What a client has: examples, a loss, metrics. The only thing a user writes; it never leaves the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data.augment import Augment
from .errors import require

Batch = Any  # whatever `batch` returns and `loss` understands; moved to the device by the runner


@runtime_checkable
class Task(Protocol):
    """A client's examples and what to do with a batch of them.

    ``loss`` gives one value an example, so that unequal clients can be masked and trained
    together. ``metrics`` gives one value an example too, by name.
    """

    def __len__(self) -> int:
        """Training examples."""

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The examples at these positions; ``generator`` is there for augmentation, None when evaluating."""

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """One value an example, shape [b]."""

    def metrics(self, module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Values an example, each of shape [b]: ``accuracy``, ``loss``..."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value an example; a sequence counts as one example, the mean over its tokens."""
    if outputs.ndim == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(len(targets), -1).mean(1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the target; for a sequence the share of its tokens."""
    right = (outputs.argmax(-1) == targets).float()
    return right if right.ndim == 1 else right.flatten(1).mean(1)


@dataclass(frozen=True)
class Supervised:
    """Inputs and targets in memory, shared by all clients; ``indices`` are this client's.

    ``inputs`` of type uint8 with four dimensions are images: they become floats in [0, 1]
    and are normalised by ``mean`` and ``std`` (per channel) batch by batch. ``augment`` changes
    the pictures of training batches, before they are normalised.
    """

    inputs: Tensor
    targets: Tensor
    indices: Tensor | None = None
    loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    metrics_of: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=lambda: {"accuracy": accuracy})
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    augment: tuple[Augment, ...] = ()

    def __post_init__(self) -> None:
        require(
            not self.augment or self.inputs.ndim == 4,
            f"augment={list(self.augment)} changes pictures, [examples, channels, height, width]; these inputs are "
            f"{list(self.inputs.shape)}",
        )

    def __len__(self) -> int:
        return len(self.inputs if self.indices is None else self.indices)

    def whole(self) -> Supervised:
        """The same task over all the examples there are."""
        return replace(self, indices=None)

    def kin(self, other: Supervised) -> bool:
        """Whether only the indices differ."""
        same = (
            type(self) is type(other),
            self.inputs is other.inputs,
            self.targets is other.targets,
            self.loss_of is other.loss_of,
        )
        return all(same) and (self.mean, self.std, self.augment) == (other.mean, other.std, other.augment)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        where = indices if self.indices is None else self.indices[indices]
        inputs = self.inputs[where]
        if generator is not None:
            for change in self.augment:
                inputs = change(inputs, generator)
        return self.normalised(inputs), self.targets[where]

    def normalised(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them: pictures of bytes as floats."""
        if x.dtype != torch.uint8 or x.ndim != 4:
            return x
        if self.mean is None or self.std is None:
            return x.float().div_(255)
        mean, std = torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)
        return x.float().div_(255).sub_(mean).div_(std)

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return self.loss_of(module(inputs), targets)

    def metrics(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        inputs, targets = batch
        outputs = module(inputs)
        named = {name: of(outputs, targets) for name, of in self.metrics_of.items()}
        return {"loss": self.loss_of(outputs, targets), **named}


def labels(batch: Batch, who: str) -> Tensor:
    """The targets of a batch of (inputs, targets), for a method that must know which output is the right one.

    Raises ``ValueError``, naming the method, for any other batch.
    """
    targets = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        raise ValueError(
            f"{who} needs batches of (inputs, targets) with whole numbers (int64) as targets: classification; this "
            f"task's batch is {_described(batch)}"
        )
    return targets


def _described(batch: Batch) -> str:
    if isinstance(batch, Tensor):
        return f"a {str(batch.dtype).removeprefix('torch.')} tensor"
    if isinstance(batch, tuple | list):
        return f"({', '.join(map(_described, batch))})"
    return f"a {type(batch).__name__}"


def as_task(x: Any) -> Task:
    """A task as it is; a torch ``Dataset`` of (input, target) pairs, or two tensors or arrays, as classification.

    A Dataset is read here, once: a random transform in it is drawn once too, and alike in every run that draws
    from torch's generator. Pictures that change from epoch to epoch are ``augment`` of :class:`Supervised`, or a
    task of one's own. Clients whose tasks do not share their tensors are never trained as one.
    """
    if isinstance(x, Task):
        return x
    if isinstance(x, tuple | list) and len(x) == 2 and isinstance(x[0], Tensor | np.ndarray):
        require(len(x[0]) == len(x[1]), f"{len(x[0])} inputs and {len(x[1])} targets are no pairs")
        return Supervised(torch.as_tensor(x[0]), torch.as_tensor(x[1]))
    if hasattr(x, "__len__") and hasattr(x, "__getitem__") and not isinstance(x, tuple):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            pairs = [x[i] for i in range(len(x))]
        if pairs and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            inputs, targets = (torch.stack([torch.as_tensor(pair[i]) for pair in pairs]) for i in (0, 1))
            return Supervised(inputs, targets)
    raise ValueError(
        f"{type(x).__name__} is not a task: give a Task, a Dataset of (input, target) pairs, or two tensors or arrays"
    )
