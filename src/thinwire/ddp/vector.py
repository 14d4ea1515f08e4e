"""The trained parameters of a live module as one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from ..errors import CombinationError
from ..params import Layout
from .rounds import deal
from .shards import is_shard, local


class Vector:
    """Parameters and one flat vector of them.

    Of a replicated model the parameters become views of the vector, so that neither need be copied to the other;
    one that somebody puts elsewhere (``p.data = ...``) is brought back by :meth:`pull`. Shards (``DTensor``) lie where
    FSDP put them: :meth:`pull` and :meth:`push` copy. Of several ``fragments`` the vector has one after another, and
    ``parts`` are their layouts. Raises ``ValueError`` for parameters that are not 32-bit
    floats, or not all on one device.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], fragments: int = 1) -> None:
        fragment = deal([name for name, _ in named], fragments)
        order = sorted(range(len(named)), key=fragment.__getitem__)
        named = [named[i] for i in order]
        self.parameters = [p for _, p in named]
        self.sharded = any(map(is_shard, self.parameters))
        shapes = [(name, _in_memory(t)) for (name, _), t in zip(named, self.tensors(), strict=True)]
        self.layout = Layout.of(shapes)
        members = [[self.layout.names[n] for n, i in enumerate(order) if fragment[i] == f] for f in range(fragments)]
        self.parts = [self.layout.only(names) for names in members]
        device = shapes[0][1].device
        for name, tensor in shapes:
            if tensor.dtype != torch.float32:
                kind = str(tensor.dtype).removeprefix("torch.")
                check_real(name, tensor)
                raise ValueError(
                    f"parameter {name!r} is {kind}: keep parameters in float32 and compute in less under autocast"
                )
            if tensor.device != device:
                raise ValueError(f"parameter {name!r} is on {tensor.device}, others on {device}: one device a rank")
        self.last = [_channels_last(tensor) for tensor in self.tensors()]
        self.flat: Float[Tensor, " d"] = torch.empty(self.layout.size, dtype=torch.float32, device=device)
        self.views = [_alone(view) for view in self.cut(self.flat)]
        self.places = [_place(view) for view in self.views]
        with torch.no_grad():
            for view, tensor in zip(self.views, self.tensors(), strict=True):
                view.copy_(tensor)
        if not self.sharded:
            for p, view in zip(self.parameters, self.views, strict=True):
                p.data = view

    def cut(self, flat: Float[Tensor, " d"]) -> list[Tensor]:
        """A vector like this one, seen as what this rank holds of each parameter."""
        parts = [flat[start : start + size].view(shape) for start, size, shape in self.layout.spans.values()]
        return [part.permute(0, 3, 1, 2) if last else part for part, last in zip(parts, self.last, strict=True)]

    def tensors(self) -> list[Tensor]:
        """What this rank holds of each parameter."""
        with torch.no_grad():
            return [local(p) for p in self.parameters]

    @property
    def still(self) -> list[tuple[int, int]]:
        """The runs of entries of parameters that are not trained now: they do not move, and what is owed stays owed."""
        spans = zip(self.parameters, self.layout.spans.values(), strict=True)
        return [(first, first + size) for p, (first, size, _) in spans if not p.requires_grad]

    def pull(self) -> None:
        """The vector from the parameters, wherever they are by now.

        Raises ``ValueError`` where one is no longer what it was but for its values.
        """
        if self.sharded:
            torch._foreach_copy_(self.views, self.tensors())
            return
        for number, p in enumerate(self.parameters):
            if _place(p) != self.places[number]:
                self._bring_back(number, p)

    def push(self) -> None:
        """The parameters from the vector. Autograd is told: a graph that needs what they were must not go on."""
        if self.sharded:
            torch._foreach_copy_(self.tensors(), self.views)
        else:
            torch.autograd.graph.increment_version(self.parameters)

    def replace(self, state: dict[str, Any], flat: Float[Tensor, " d"]) -> None:
        """In a module's state put copies of ``flat`` in place of what parameters hold, but for parameters."""
        where = {mine.data_ptr(): part.clone() for mine, part in zip(self.tensors(), self.cut(flat), strict=True)}
        for name, value in state.items():
            if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
                continue
            mine = local(value)
            part = where.get(mine.data_ptr())
            if part is None or part.shape != mine.shape:
                continue
            if is_shard(value):
                part = type(value).from_local(
                    part, value.device_mesh, value.placements, shape=value.shape, stride=value.stride()
                )
            state[name] = part

    def _bring_back(self, number: int, p: nn.Parameter) -> None:
        view, name = self.views[number], self.layout.names[number]
        kind = (p.shape, p.dtype, p.device, _channels_last(p))
        if kind != (view.shape, view.dtype, view.device, self.last[number]):
            raise ValueError(
                f"parameter {name!r} was given another shape, type, device or memory format after compress(): "
                "convert the model before"
            )
        view.copy_(p.detach())
        p.data = view


def check_real(name: str, x: Tensor) -> None:
    """``CombinationError`` for a complex parameter."""
    if x.is_complex():
        raise CombinationError(
            f"parameter {name!r} is {str(x.dtype).removeprefix('torch.')}, and what is sent is real: keep its real and "
            "imaginary parts in a real parameter, and see it through torch.view_as_complex in forward()"
        )


def _alone(view: Tensor) -> Tensor:
    """A part of a tensor, seen as one that has a storage of its own, in the same memory.

    Whoever saves a model takes parameters of one storage for one parameter: safetensors and accelerate do.
    """
    return from_dlpack(view) if view.numel() and view.device.type in ("cpu", "cuda") else view


def _in_memory(x: Tensor) -> Tensor:
    """A tensor with its dimensions in the order in which they lie in memory: filters may have channels last."""
    return x.detach().permute(0, 2, 3, 1) if _channels_last(x) else x.detach()


def _place(x: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()


def _channels_last(x: Tensor) -> bool:
    last = x.ndim == 4 and not x.is_contiguous()
    return last and x.is_contiguous(memory_format=torch.channels_last)
