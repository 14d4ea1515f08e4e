"""What a client has: examples, a loss, metrics. The only thing a user writes; it never leaves the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from .data.augment import Augment
from .dice import seeded
from .errors import require
from .losses import (
    IGNORED,
    MEASURE,
    LossOf,
    Ratio,
    cross_entropy,
    each_mask,
    ignores,
    loss_by_type,
    loss_for,
    masks,
    squared_error,
    weigh,
)

__all__ = ["Supervised", "Task"]

LOOKED = 100  # examples evaluated at once: what a convolution makes of more lies in no cache
MOST_LOOKED = 1 << 21  # bytes of examples evaluated at once: a U-Net holds many times as much between its layers
Batch = Any  # whatever `batch` returns and `loss` understands; moved to the device by the runner


@runtime_checkable
class Task(Protocol):
    """A client's examples and what to do with a batch of them.

    ``loss`` gives one value an example, so that unequal clients can be masked and trained
    together. ``metrics`` gives one value an example too, by name. Where examples count unequally both give a
    :class:`Ratio`.

    A task may have an attribute ``order``, the batches that its client trains on in place of those that are drawn: see
    :class:`Supervised`.

    It may have a method ``at_once(module)``: how many examples are evaluated at once, 100 where it has none. A model
    whose outputs are large, such as logits of every word for every token, takes fewer.
    """

    def __len__(self) -> int:
        """Training examples."""

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The examples at these positions; ``generator`` is there for augmentation, None when evaluating."""

    def loss(self, module: nn.Module, batch: Batch) -> Tensor | Ratio:
        """One value an example, shape [b]; or a ratio."""

    def metrics(self, module: nn.Module, batch: Batch) -> Mapping[str, Tensor | Ratio]:
        """Values an example, each of shape [b]: ``accuracy``, ``loss``...; or ratios."""


if TYPE_CHECKING:  # what the fields are, once the object is made
    Array: TypeAlias = Tensor
    Positions: TypeAlias = Tensor | None
else:  # and what they may be given as
    Array, Positions = Tensor | np.ndarray, Any


@dataclass(frozen=True)
class Supervised:
    """Inputs and targets in memory, shared by all clients; ``indices`` are this client's.

    Targets of whole numbers (int64) are classes: the loss is :func:`cross_entropy`, the metric ``accuracy``. Targets of
    floats are values: the loss is :func:`squared_error`, the metric ``mae``, the mean absolute error. Targets of bytes
    with three or four dimensions (uint8 [n, height, width], or [n, masks, height, width]) are masks of pictures: the
    loss is :func:`dice_loss`, the metric ``dice``. ``loss_of`` and ``metrics_of`` are others; for probabilities of
    classes as targets write ``loss_of=cross_entropy``.

    ``inputs`` of type uint8 with four dimensions are images: they become floats in [0, 1]
    and are normalised by ``mean`` and ``std`` (per channel) batch by batch. ``augment`` changes
    the pictures of training batches, before they are normalised, and masks with their pictures.

    ``order``, where given, has the batches of each round, round 1 first: lists of positions among this client's
    examples, in place of the batches that are drawn. ``order=[[[0, 1], [2]], [[2, 1]]]`` is two steps in round 1 and
    one in round 2, whatever the trainer's ``batch``, ``epochs`` and ``steps`` are. A position may come more than once.
    A round in which the client does not take part has a list as well, which may be empty. A method's look at a
    gradient aside from training (:func:`look`) draws as before, and so does what adapts a model to a client (FT). A
    method that asks for several trainings in a round (pFedMe, Per-FedAvg, FedRep) refuses it.

    Classes that are ``ignore_index`` do not count: losses and metrics are means over the others, of a batch or a test
    over all that count in it (:class:`Ratio`). A loss of one's own in ``loss_of`` gets them as -100.

    ``inputs`` and ``targets`` may be numpy arrays; ``indices`` a list, a range, an array, or a mask of truth values
    over all examples. Raises ``ValueError`` for positions that there are not.
    """

    inputs: Array
    targets: Array
    indices: Positions = None
    loss_of: LossOf = loss_by_type
    metrics_of: Mapping[str, LossOf] = field(default_factory=lambda: {"": loss_by_type})  # by type, too
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    augment: tuple[Augment, ...] = ()
    order: Sequence[Sequence[Sequence[int] | Tensor]] | None = None
    ignore_index: int = IGNORED

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            if not isinstance(given := getattr(self, name), Tensor):
                object.__setattr__(self, name, _numbers(given, f"the {name}"))
        if self.indices is not None:
            object.__setattr__(self, "indices", positions(self.indices, len(self.inputs)))
        _check_pairs(self.inputs, self.targets)
        loss = loss_for(self.targets)
        if self.loss_of is loss_by_type:
            object.__setattr__(self, "loss_of", loss)
        if self.metrics_of == {"": loss_by_type}:
            soft = loss is squared_error and self.loss_of is cross_entropy
            object.__setattr__(self, "metrics_of", MEASURE[cross_entropy if soft else loss])
        require(
            not self.augment or self.inputs.ndim == 4,
            f"augment={list(self.augment)} changes pictures, [examples, channels, height, width]; these inputs are "
            f"{list(self.inputs.shape)}",
        )

    def __len__(self) -> int:
        return (self.inputs if self.indices is None else self.indices).shape[0]

    def at_once(self, module: nn.Module) -> int:
        """Examples that are evaluated at once: 100, and of large ones as many as fill 2 MiB as 32-bit floats."""
        size = 4 * max(1, self.inputs.shape[1:].numel())
        return min(LOOKED, max(1, MOST_LOOKED // size))

    def whole(self) -> Supervised:
        """The same task over all the examples there are."""
        return replace(self, indices=None)

    def kin(self, other: Supervised) -> bool:
        """Whether only the indices differ."""
        same = (
            type(self) is type(other),
            _same_memory(self.inputs, other.inputs),
            _same_memory(self.targets, other.targets),
            self.loss_of is other.loss_of,
            self.ignore_index == other.ignore_index,
        )
        return all(same) and (self.mean, self.std, self.augment) == (other.mean, other.std, other.augment)

    @property
    def counts_all(self) -> bool:
        """Whether every target counts: none is ``ignore_index``, nor -100."""
        return not (ignores(self.targets, self.ignore_index) or ignores(self.targets))

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        where = indices if self.indices is None else self.indices[indices]
        inputs, targets = self.inputs[where], self._classes(self.targets[where])
        if generator is not None and self.augment:
            inputs, targets = self._augment(inputs, targets, generator)
        return self.normalised(inputs), targets

    def _classes(self, targets: Tensor) -> Tensor:
        """Whole numbers as torch's losses take them: int64, and those that do not count -100."""
        if targets.is_floating_point() or masks(targets):
            return targets
        targets = targets.long()
        if self.ignore_index == IGNORED or self.counts_all:
            return targets
        return targets.masked_fill(targets == self.ignore_index, IGNORED)

    def _augment(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        own = inputs.shape[1]
        if masks(targets):  # as more channels; VOID + 1 is 0 in a byte, so the zeros of a padding do not count
            inputs = torch.cat([inputs, (each_mask(targets) + 1).to(inputs.dtype)], dim=1)
        for change in self.augment:
            inputs = change(inputs, generator)
        if masks(targets):
            targets = (inputs[:, own:].to(torch.uint8) - 1).reshape(targets.shape)
        return inputs[:, :own], targets

    def normalised(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them: pictures of bytes as floats."""
        if x.dtype != torch.uint8 or x.ndim != 4:
            return x
        if self.mean is None or self.std is None:
            return x.float().div_(255)
        about = (self.mean, self.std)
        mean, std = (torch.tensor(x, dtype=torch.float32, device="cpu").view(-1, 1, 1) for x in about)
        return x.float().div_(255).sub_(mean).div_(std)

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor | Ratio:
        inputs, targets = batch
        return self._weigh(self.loss_of(module(inputs), targets), targets)

    def metrics(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor | Ratio]:
        inputs, targets = batch
        outputs = module(inputs)
        named = {name: self._weigh(of(outputs, targets), targets) for name, of in self.metrics_of.items()}
        return {"loss": self._weigh(self.loss_of(outputs, targets), targets), **named}

    def _weigh(self, values: Tensor | Ratio, targets: Tensor) -> Tensor | Ratio:
        """Values an example, each as good as what of its targets counts."""
        return values if self.counts_all else weigh(values, targets)


def positions(indices: Any, examples: int) -> Tensor:
    """Positions among so many examples as int64: of a tensor, an array, a list, a range, or a mask of truth values.

    Raises ``ValueError`` for what is none of these, and for a position that there is not.
    """
    given = indices if isinstance(indices, Tensor) else torch.from_numpy(np.array(indices, order="C"))
    who = f"indices of {len(given) if given.ndim else 0}"
    require(given.ndim == 1, f"indices are of shape {list(given.shape)}: positions are one list, [n]")
    if given.dtype == torch.bool:
        require(len(given) == examples, f"{who} truth values for {examples} examples: a mask has one for each")
        return given.nonzero()[:, 0]
    whole = not given.is_floating_point() and not given.is_complex()
    require(whole or not len(given), f"indices are of type {given.dtype}: positions are whole numbers, or a mask")
    where = given if given.dtype == torch.int64 else given.long()
    if len(where):
        low, high = (int(end) for end in torch.aminmax(where))
        require(
            -examples <= low and high < examples,
            f"{who} go from {low} to {high}: there are {examples} examples, at 0 to {examples - 1}",
        )
    return where


def _check_pairs(inputs: Tensor, targets: Tensor, said: str = "") -> None:
    """Raise ``ValueError``, beginning with ``said``, unless there are as many inputs as targets."""
    one, other = (len(x) if x.ndim else 0 for x in (inputs, targets))
    require(one == other, f"{said}{one} inputs and {other} targets are no pairs: give a target for each input")


def _same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers at the same place."""
    if one is other:
        return True
    about = [(x.data_ptr(), x.shape, x.stride(), x.dtype, x.device) for x in (one, other)]
    return about[0] == about[1]


def labels(batch: Batch, who: str) -> Tensor:
    """The targets of a batch of (inputs, targets), for a method that must know which output is the right one.

    Raises ``ValueError``, naming the method, for any other batch.
    """
    targets = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if isinstance(batch, dict) and isinstance(given := batch.get("labels"), Tensor) and given.ndim == 1:
        targets = given  # one class a text; labels of tokens are not yet beside the outputs that they belong to
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        raise ValueError(
            f"{who} needs batches of (inputs, targets) with whole numbers (int64) as targets: classification; this "
            f"task's batch is {_describe(batch)}"
        )
    if (targets < 0).any():
        raise ValueError(f"{who} needs a class for every example, and some targets do not count ({IGNORED})")
    return targets


def _describe(batch: Batch) -> str:
    if isinstance(batch, Tensor):
        return f"a {str(batch.dtype).removeprefix('torch.')} tensor"
    if isinstance(batch, tuple | list):
        return f"({', '.join(map(_describe, batch))})"
    return f"a {type(batch).__name__}"


def as_tasks(tasks: Any, floats: torch.dtype = torch.float32) -> list[Task]:
    """A task for each client. Raises ``ValueError`` for what is no list, naming what to write."""
    if isinstance(tasks, dict):
        raise ValueError("tasks is a dict: give a list with one task a client, list(tasks.values())")
    if isinstance(tasks, tuple | list) and len(tasks) == 2 and all(isinstance(t, Tensor | np.ndarray) for t in tasks):
        raise ValueError(
            "tasks is one pair of inputs and targets: give a list with one task a client, [(inputs, targets), ...]"
        )
    if isinstance(tasks, Task) or not isinstance(tasks, Sequence):
        raise ValueError(
            f"tasks is one {type(tasks).__name__}: give a list with one task a client; Supervised(inputs, targets, "
            f"part) for each part of a split, or torch.utils.data.Subset(dataset, part), deals one data set to many"
        )
    return [as_task(task, f"client {client}", floats) for client, task in enumerate(tasks)]


def as_task(x: Any, who: str = "", floats: torch.dtype = torch.float32) -> Task:
    """A task as it is; a torch ``Dataset`` of (input, target) pairs, or two tensors or arrays.

    Whole numbers as targets are classes, floats are values to predict (:class:`Supervised`). Numbers become what models
    take: floats of the type ``floats``, whole numbers int64, but for pictures of bytes (uint8 with four dimensions) as
    inputs, and for masks of bytes or truth values with three or four dimensions as targets of pictures, which become
    uint8.

    A Dataset is read here, once: a random transform in it is drawn once too, and alike in every run that draws
    from torch's generator. Pictures that change from epoch to epoch are ``augment`` of :class:`Supervised`, or a
    task of one's own. Clients whose tasks do not share their tensors are never trained as one.

    Raises ``ValueError`` for anything else; its text begins with ``who``.
    """
    said = f"{who}: " if who else ""
    if isinstance(x, Task) and not isinstance(x, type):
        return x
    if isinstance(x, tuple | list) and len(x) == 2 and isinstance(x[0], Tensor | np.ndarray):
        inputs, targets = (_numbers(part, f"{said}the {name}") for part, name in zip(x, PARTS, strict=True))
        return _pair(inputs, targets, said, floats)
    if hasattr(x, "__len__") and hasattr(x, "__getitem__") and not isinstance(x, tuple | type):
        with seeded(0):
            pairs = [x[i] for i in range(len(x))]
        require(len(pairs) > 0, f"{said}the data set has no examples: leave it out, or give it some")
        if all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            inputs, targets = (_stack([pair[i] for pair in pairs], f"{said}the {n}") for i, n in enumerate(PARTS))
            return _pair(inputs, targets, said, floats)
        if isinstance(pairs[0], dict):
            keys = ", ".join(map(str, list(pairs[0])[:4]))
            raise ValueError(
                f"{said}its examples are dicts ({keys}), of which nobody says what is lost: write a Task, a class with "
                f"__len__, batch, loss and metrics; {OWN_TASK} has one for dicts in twenty lines"
            )
    if isinstance(x, type):
        raise ValueError(f"{said}{x.__name__} is a class: give one of its objects, {x.__name__}(...)")
    raise ValueError(
        f"{said}{type(x).__name__} is not a task: give a Task, a Dataset of (input, target) pairs, or two tensors or "
        f"arrays; {OWN_TASK} says how to write a Task"
    )


PARTS = ("inputs", "targets")
OWN_TASK = "docs/own-task.md"  # of this repository


def _pair(inputs: Tensor, targets: Tensor, said: str, floats: torch.dtype) -> Supervised:
    _check_pairs(inputs, targets, said)
    if inputs.ndim == 4 and targets.ndim in (3, 4) and targets.dtype in (torch.uint8, torch.bool):
        targets = targets.to(torch.uint8)
    else:
        targets = _wide(targets, floats, torch.int64)
    if not (inputs.dtype == torch.uint8 and inputs.ndim == 4):  # pictures become floats batch by batch
        inputs = _wide(inputs, floats, floats)
    return Supervised(inputs, targets)


def _wide(x: Tensor, floats: torch.dtype, truth: torch.dtype) -> Tensor:
    """Floats as ``floats``, whole numbers as int64, truth values as ``truth``."""
    return x.to(floats if x.is_floating_point() else truth if x.dtype == torch.bool else torch.int64)


def _numbers(x: Any, what: str) -> Tensor:
    """A tensor, an array or a number as a tensor. Raises ``ValueError``, beginning with ``what``."""
    if not isinstance(x, Tensor):
        known = isinstance(x, np.ndarray | np.generic | int | float | list | tuple)
        require(known, f"{what} are of type {type(x).__name__}: tensors, arrays or numbers are expected")
        array = np.asarray(x)
        require(array.dtype.kind in "biuf", f"{what} are an array of {array.dtype}: numbers are expected")
        real = np.float64 if array.dtype.itemsize >= 8 else np.float32
        kind = {"f": real, "b": np.bool_}.get(array.dtype.kind, np.int64)
        x = torch.from_numpy(np.require(array, np.uint8 if array.dtype == np.uint8 else kind, ["C", "W"]))
    require(not x.is_complex(), f"{what} are complex: real numbers are expected")
    numbers: Tensor = x.detach()
    return numbers


def _stack(items: Sequence[Any], what: str) -> Tensor:
    """Items of one shape as one tensor."""
    tensors = [_numbers(item, what) for item in items]
    for i, tensor in enumerate(tensors):
        require(
            tensor.shape == tensors[0].shape,
            f"{what} have different shapes: {list(tensors[0].shape)} in example 0, {list(tensor.shape)} in example "
            f"{i}; pad them to one shape, or write a Task of your own",
        )
    return torch.stack(tensors)
