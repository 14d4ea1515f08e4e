"""The trained parameters of a live module as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..params import Layout


class Vector:
    """Parameters and one flat vector of them.

    Of a replicated model the parameters become views of the vector, so that neither is ever copied
    to the other. Shards (``DTensor``) lie where FSDP put them: :meth:`pull` and :meth:`push` copy. Raises
    ``ValueError`` for parameters that are not 32-bit floats, or not all on one device.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.parameters = [p for _, p in named]
        self.sharded = any(isinstance(p, DTensor) for p in self.parameters)
        shapes = [(name, _in_memory(t)) for (name, _), t in zip(named, self.tensors(), strict=True)]
        self.layout = Layout.of(shapes)
        device = shapes[0][1].device
        for name, tensor in shapes:
            if tensor.dtype != torch.float32:
                kind = str(tensor.dtype).removeprefix("torch.")
                raise ValueError(
                    f"parameter {name!r} is {kind}: keep parameters in float32 and compute in less under autocast"
                )
            if tensor.device != device:
                raise ValueError(f"parameter {name!r} is on {tensor.device}, others on {device}: one device a rank")
        self.flat: Float[Tensor, " d"] = torch.empty(self.layout.size, device=device)
        spans = self.layout.spans.values()
        self.views = [
            _as(self.flat[start : start + size].view(shape), t)
            for (start, size, shape), t in zip(spans, self.tensors(), strict=True)
        ]
        with torch.no_grad():
            for view, tensor in zip(self.views, self.tensors(), strict=True):
                view.copy_(tensor)
        if not self.sharded:
            for p, view in zip(self.parameters, self.views, strict=True):
                p.data = view

    def tensors(self) -> list[Tensor]:
        """What this rank holds of each parameter."""
        with torch.no_grad():
            return [p.to_local() if isinstance(p, DTensor) else p for p in self.parameters]

    def pull(self) -> None:
        """The vector from the parameters."""
        if self.sharded:
            torch._foreach_copy_(self.views, self.tensors())

    def push(self) -> None:
        """The parameters from the vector."""
        if self.sharded:
            torch._foreach_copy_(self.tensors(), self.views)

    def version(self) -> int:
        """A number that changes whenever somebody else writes to a parameter."""
        return sum(t._version for t in self.tensors())


def _in_memory(x: Tensor) -> Tensor:
    """A tensor with its dimensions in the order in which they lie in memory: filters may have channels last."""
    return x.detach().permute(0, 2, 3, 1) if _channels_last(x) else x.detach()


def _as(view: Tensor, like: Tensor) -> Tensor:
    return view.permute(0, 3, 1, 2) if _channels_last(like) else view


def _channels_last(x: Tensor) -> bool:
    last = x.ndim == 4 and not x.is_contiguous()
    return last and x.is_contiguous(memory_format=torch.channels_last)
