"""Layers of any module, by name, and what goes in and out of them: forward hooks that are gone after one pass."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..errors import nearest
from ..losses import per_example
from ..task import Batch, Task


def layer(module: nn.Module, name: str, where: str) -> nn.Module:
    """The layer called ``name``; "" is the module itself. Raises ``ValueError`` with the names there are."""
    named: dict[str, nn.Module] = dict(module.named_modules())
    if name not in named:
        names = [known for known in named if known]
        raise ValueError(f"{where}: no layer is called that{nearest(name, names)}; the layers are {', '.join(names)}")
    return named[name]


def last_linear(module: nn.Module) -> str | None:
    """The name of the ``nn.Linear`` that was defined last, usually the classifier; None where there is none."""
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return names[-1] if names else None


def pass_through(
    module: nn.Module, task: Task, batch: Batch, name: str, side: str
) -> tuple[Float[Tensor, " b"], Float[Tensor, "..."]]:
    """The task's loss of a batch, and on its way the ``side`` ("input" or "output") of a layer: one forward pass.

    Of a layer that is called several times it is the last call's. Raises ``ValueError`` for one that is never called.
    """
    seen: list[Tensor] = []
    hook = module.get_submodule(name).register_forward_hook(
        lambda _, inputs, output: seen.append(_first(inputs if side == "input" else output))
    )
    try:
        losses = per_example(task.loss(module, batch))
    finally:
        hook.remove()
    if not seen:
        raise ValueError(f"layer {name!r} takes no part in the forward pass: name another")
    return losses, seen[-1]


def _first(value: Any) -> Tensor:
    """Of several tensors the first: of what an LSTM gives the sequence, not its state."""
    return value if isinstance(value, Tensor) else value[0]
