"""A model beside the one that is trained: the selector, which says whose data an example looks like.

Both are one module to the runner, so that both are sent, averaged and resumed like any other layers: those of the model
are named ``model.*``, those of the selector ``selector.*``.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from .. import models
from ..errors import require
from ..local import Loss, Net
from ..losses import Ratio, per_example, wide_enough
from ..params import Layout, Params
from ..problem import import_module
from ..task import Batch, Task
from ..wire import dumps

MODEL, SELECTOR = "model.", "selector."


class Super(nn.Module):
    """A model with a selector of so many outputs beside it: called, it is the model."""

    def __init__(self, model: nn.Module, selector: nn.Module, outputs: int) -> None:
        super().__init__()
        self.model, self.selector, self.outputs = model, selector, outputs

    def forward(self, *inputs: Any, **more: Any) -> Any:
        return self.model(*inputs, **more)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":
                raise
            return getattr(self.model, name)  # what a task of the user's own looks for


def join_selector(module: nn.Module, selector: str, shape: tuple[int, ...] | None, outputs: int) -> Super:
    """The module with a selector of so many outputs, whose weights follow from the module's, in its type of floats.

    Raises ``ValueError`` for a selector that cannot be made, or that has norm statistics.
    """
    require(
        shape is None or (bool(selector) and ":" not in selector),
        f"shape={shape} is that of examples for a selector of thinwire.models: name one, such as selector='mlp'",
    )
    seed = hashlib.blake2b(dumps(Params.trainable(module)), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(seed, "little") >> 1)
        made = _selector(module, selector, shape, outputs)
    moving = [name for name, buffer in made.named_buffers() if buffer.is_floating_point()]
    require(
        not moving,
        f"selector={selector!r} has norm statistics ({', '.join(moving[:2])}), which nobody would average: use a model "
        f"with group norm, or without norms",
    )
    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    return Super(copy.deepcopy(module), made.to(kind), outputs)


def _selector(module: nn.Module, name: str, shape: tuple[int, ...] | None, outputs: int) -> nn.Module:
    if ":" in name:
        where, _, function = name.partition(":")
        make = getattr(import_module(where, f"selector={name!r}"), function, None)
        require(callable(make), f"selector={name!r}: {where} has no function {function}")
        assert make is not None
        made = make(outputs)
        require(isinstance(made, nn.Module), f"selector={name!r}: it made {made!r}, which is no module")
        return made  # type: ignore[no-any-return]  # it has just been looked at
    first = next((m for m in module.modules() if any(True for _ in m.parameters(recurse=False))), None)
    if name:
        words = first.num_embeddings if isinstance(first, nn.Embedding) else None
        if shape is None:
            shape = _input_shape(first)
        require(
            shape is not None,
            f"selector={name!r}: give the shape of an example, shape=(3, 256, 256), or a function of the number of "
            f"outputs, selector='my_module:make_selector'",
        )
        assert shape is not None
        return models.build(name, shape, outputs, vocabulary=words)
    if isinstance(first, nn.Conv2d):
        return models.vgg_small((first.in_channels, 32, 32), outputs)
    if isinstance(first, nn.Linear):
        return models.mlp(first.in_features, (64,), outputs)
    if isinstance(first, nn.Embedding):
        return models.fasttext(first.num_embeddings, outputs)
    raise ValueError(
        f"the model begins with {type(first).__name__}, for which there is no selector: give a function of the number "
        f"of outputs, selector='my_module:make_selector'"
    )


def _input_shape(first: nn.Module | None) -> tuple[int, ...] | None:
    """The shape of an example as far as the first layer says it; pictures of any size are taken for small ones."""
    if isinstance(first, nn.Conv2d):
        return (first.in_channels, 32, 32)
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    return None


def part(layout: Layout, prefix: str) -> tuple[str, ...]:
    """The names of the model's layers, or of the selector's."""
    return tuple(name for name in layout.names if name.startswith(prefix))


def inputs_of(batch: Batch) -> Any:
    """What a batch gives the model: of (inputs, targets) the inputs."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def scores(selector: nn.Module, inputs: Any) -> Float[Tensor, "b c"]:
    """The selector's logits. Raises ``ValueError`` for examples that it cannot take."""
    require(
        isinstance(inputs, Tensor),
        f"a selector looks at examples in one tensor, not in a {type(inputs).__name__}: give FedSM's model one input",
    )
    try:
        return wide_enough(selector(inputs))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ValueError(
            f"the selector cannot take examples of {list(inputs.shape[1:])} ({str(error).partition(chr(10))[0]}); name "
            f"another one, or its shape: selector='mlp', shape={tuple(inputs.shape[1:])}"
        ) from error


def logits(module: Super, inputs: Any) -> Float[Tensor, "b c"]:
    """The logits of the selector beside a model. Raises ``ValueError`` where they are not as many as were asked for."""
    out, outputs = scores(module.selector, inputs), module.outputs
    require(
        out.ndim == 2 and out.shape[1] == outputs,
        f"the selector gives {list(out.shape[1:])} numbers an example, and {outputs} are needed: make it with as "
        f"many outputs as its function is given",
    )
    return out


def logits_of(net: Net, batch: Batch) -> Float[Tensor, "b c"]:
    """:func:`logits` of the selector in training."""
    return logits(cast("Super", net.module), inputs_of(batch))


@dataclass(frozen=True)
class Labelled(Loss):
    """Cross-entropy of the selector, every example's label being ``label`` (3-2)."""

    label: int

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        out = logits_of(net, batch)
        return F.cross_entropy(out, out.new_full((len(out),), self.label, dtype=torch.int64), reduction="none")


@dataclass(frozen=True, eq=False)
class Nearest(Loss):
    """Cross-entropy of the selector, an example's label being the model with the smallest loss on it (3-1)."""

    models: Sequence[Params]
    buffers: Sequence[Params | None]

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        with torch.no_grad():
            others = [net.other(x, b) for x, b in zip(self.models, self.buffers, strict=True)]
            losses = torch.stack([per_example(task.loss(other, batch)) for other in others])
        return F.cross_entropy(logits_of(net, batch), losses.argmin(0), reduction="none")


@dataclass(frozen=True, eq=False)
class Mixed(Loss):
    """The task's loss of the models' outputs, weighted by the selector (thesis, 3.3.1.1)."""

    models: Sequence[Params]
    buffers: Sequence[Params | None]

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"] | Ratio:
        others = [net.other(x, b) for x, b in zip(self.models, self.buffers, strict=True)]
        return task.loss(Mixture(others, net.module.get_submodule("selector")), batch)


class Mixture(nn.Module):
    """h = the sum of the models' outputs h_k, weighted by the selector's shares."""

    def __init__(self, others: Sequence[nn.Module], selector: nn.Module) -> None:
        super().__init__()
        self.others, self.selector = list(others), selector

    def forward(self, *inputs: Any, **more: Any) -> Tensor:
        shares = scores(self.selector, inputs[0]).softmax(-1)  # [b, models]
        whole: Tensor | None = None
        for k, other in enumerate(self.others):
            with torch.no_grad():
                out = other(*inputs, **more)
            own = out * shares[:, k].to(out.dtype).view(-1, *[1] * (out.ndim - 1))
            whole = own if whole is None else whole + own
        assert whole is not None
        return whole
