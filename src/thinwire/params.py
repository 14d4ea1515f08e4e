"""A model, or anything shaped like one: a flat vector with named layers as views of it.

``Params`` are values: every operation returns new ones, and nothing writes into the
vector of another. Only trainable parameters are in them; norm statistics travel apart.
Numbers are 32-bit floats, or 64-bit floats where any parameter of the model is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Size, Tensor, nn

from .kernels.magnitude import magnitude

__all__ = ["Layout", "Params"]


@dataclass(frozen=True)
class Layout:
    """The names and shapes of the layers, in the order in which they lie in the vector, and the type of its numbers."""

    names: tuple[str, ...]
    shapes: tuple[Size, ...]
    dtype: torch.dtype = torch.float32

    @staticmethod
    def of(named: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None) -> Layout:
        """The layout of named tensors. ``dtype`` None: 64-bit floats if any of them is, else 32-bit floats."""
        pairs = list(named)
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("two layers have the same name")
        if dtype is None:
            dtype = torch.float64 if any(tensor.dtype == torch.float64 for _, tensor in pairs) else torch.float32
        return Layout(tuple(name for name, _ in pairs), tuple(tensor.shape for _, tensor in pairs), dtype)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Entries in each layer."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """Entries in all."""
        return sum(self.sizes)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int, Size]]:
        """Where each layer lies: name -> (start, length, shape)."""
        spans, start = {}, 0
        for name, size, shape in zip(self.names, self.sizes, self.shapes, strict=True):
            spans[name] = (start, size, shape)
            start += size
        return spans

    def only(self, names: Iterable[str]) -> Layout:
        """These layers, in this layout's order."""
        keep = set(names)
        if unknown := keep - set(self.names):
            raise ValueError(f"no layer named {sorted(unknown)[0]!r}; the layers are {', '.join(self.names)}")
        if len(keep) == len(self.names):
            return self
        pairs = [(n, s) for n, s in zip(self.names, self.shapes, strict=True) if n in keep]
        return Layout(tuple(n for n, _ in pairs), tuple(s for _, s in pairs), self.dtype)

    def mask(self, names: Iterable[str]) -> Bool[Tensor, " layers"]:
        """One bit a layer: true where the layer is among ``names``."""
        keep = set(names)
        return torch.tensor([n in keep for n in self.names], dtype=torch.bool, device="cpu")

    def named(self, mask: Bool[Tensor, " layers"]) -> tuple[str, ...]:
        """The names whose bit is set."""
        return tuple(n for n, bit in zip(self.names, mask.tolist(), strict=True) if bit)

    def zeros(self, device: torch.device | str = "cpu") -> Params:
        return Params(self, torch.zeros(self.size, dtype=self.dtype, device=device))

    def __repr__(self) -> str:
        return f"Layout({len(self.names)} layers, {self.size} entries)"


@dataclass(frozen=True, eq=False)
class Params:
    """``flat`` holds every layer of ``layout`` one after the other."""

    layout: Layout
    flat: Float[Tensor, " d"]

    def __post_init__(self) -> None:
        if self.flat.numel() != self.layout.size:
            raise ValueError(f"{self.flat.numel()} entries do not fill a layout of {self.layout.size}")

    @staticmethod
    def of(named: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None) -> Params:
        """A copy of named tensors, joined into one vector. ``dtype`` is that of :meth:`Layout.of`."""
        pairs = list(named)
        layout = Layout.of(pairs, dtype)
        parts = [tensor.detach().reshape(-1).to(layout.dtype) for _, tensor in pairs]
        return Params(layout, torch.cat(parts) if parts else torch.zeros(0, dtype=layout.dtype, device="cpu"))

    @staticmethod
    def trainable(module: nn.Module) -> Params:
        """The parameters of a module that are trained (``requires_grad``), each once."""
        return Params.of((n, p) for n, p in module.named_parameters() if p.requires_grad)

    @staticmethod
    def statistics(module: nn.Module) -> Params:
        """The float buffers of a module: running means and variances of its norm layers."""
        return Params.of((n, b) for n, b in module.named_buffers() if b.is_floating_point())

    # -- layers ---------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return self.layout.names

    def __getitem__(self, name: str) -> Tensor:
        """One layer in its own shape: a view."""
        try:
            start, size, shape = self.layout.spans[name]
        except KeyError:
            raise KeyError(f"no layer named {name!r}; the layers are {', '.join(self.names)}") from None
        return self.flat[start : start + size].view(shape)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        for name in self.names:
            yield name, self[name]

    def only(self, names: Iterable[str]) -> Params:
        """These layers alone. All of them are these very ``Params``: to be read, or cloned to be kept."""
        layout = self.layout.only(names)
        if layout is self.layout:
            return self
        parts = [self.flat[start : start + size] for start, size, _ in map(self.layout.spans.__getitem__, layout.names)]
        return Params(layout, torch.cat(parts) if parts else self.flat[:0].clone())

    def drop(self, names: Iterable[str]) -> Params:
        """All layers but these."""
        gone = set(self.layout.only(names).names)
        return self.only(n for n in self.names if n not in gone)

    def replace(self, other: Params, copy: bool = True) -> Params:
        """These layers, with those that ``other`` has taken from it, in memory of their own.

        With ``copy=False`` it is ``other`` itself where that has all layers: for one that nobody else holds.
        """
        if other.layout == self.layout:
            return other.clone() if copy else other
        flat = self.flat.clone()
        for name, tensor in other.items():
            if name not in self.layout.spans:
                raise ValueError(f"cannot replace {name!r}: there is no such layer here")
            start, size, shape = self.layout.spans[name]
            if tensor.shape != shape:
                raise ValueError(f"cannot replace {name!r}: {tuple(tensor.shape)} is not {tuple(shape)}")
            flat[start : start + size] = tensor.reshape(-1)
        return Params(self.layout, flat)

    # -- arithmetic -----------------------------------------------------------

    def map(self, function: Callable[..., Tensor], *others: Params) -> Params:
        """An elementwise function of the vectors."""
        return Params(self.layout, function(self.flat, *(self._same(o) for o in others)))

    def _same(self, other: Params) -> Tensor:
        if other.layout is not self.layout and other.layout != self.layout:
            raise ValueError("different layers: use .only(), .drop() or .replace()")
        return other.flat

    def _value(self, other: Params | Tensor | float) -> Tensor | float:
        return self._same(other) if isinstance(other, Params) else other

    def __add__(self, other: Params) -> Params:
        return Params(self.layout, self.flat + self._same(other))

    def __sub__(self, other: Params) -> Params:
        return Params(self.layout, self.flat - self._same(other))

    def __mul__(self, other: Params | Tensor | float) -> Params:
        return Params(self.layout, self.flat * self._value(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Params | Tensor | float) -> Params:
        return Params(self.layout, self.flat / self._value(other))

    def __neg__(self) -> Params:
        return Params(self.layout, -self.flat)

    def __matmul__(self, other: Params) -> float:
        """The inner product, accumulated in double precision."""
        return float(torch.dot(self.flat.double(), self._same(other).double()))

    def norm(self) -> float:
        """The Euclidean norm, accumulated in double precision."""
        return float(torch.linalg.vector_norm(self.flat, dtype=torch.float64))

    def zeros(self) -> Params:
        return Params(self.layout, torch.zeros_like(self.flat))

    def to(self, dtype: torch.dtype) -> Params:
        """The same numbers as floats of another type; itself where they are of that type."""
        if self.flat.dtype == dtype:
            return self
        return Params(Layout(self.layout.names, self.layout.shapes, dtype), self.flat.to(dtype))

    def clone(self) -> Params:
        return Params(self.layout, self.flat.clone())

    def finite(self) -> bool:
        return is_finite(self.flat)

    def __repr__(self) -> str:
        return f"Params({len(self.names)} layers, {self.layout.size} entries)"


def is_finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one pass, nothing allocated."""
    return not x.dtype.is_floating_point or math.isfinite(magnitude(x))


def fold(total: Tensor | None, x: Tensor, weight: float) -> Tensor:
    """``total + weight * x``, into ``total``. With :func:`mean` the one formula of every average here.

    Anything but 64-bit floats is summed as 32-bit floats. ``None`` starts a new total.
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    return wide * weight if total is None else total.add_(wide, alpha=weight)


def mean(tensors: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    """``(Σ w·t) / Σ w``, summed in the order given."""
    total, whole = None, 0.0
    for tensor, weight in zip(tensors, weights, strict=True):
        total, whole = fold(total, tensor, weight), whole + weight
    if total is None or whole == 0:
        raise ValueError("the mean of nothing: there are no values, or their weights add up to zero")
    return total.div_(whole)


def call_with(
    module: nn.Module, tensors: Mapping[str, Tensor], inputs: Sequence[Any], named: Mapping[str, Any] | None = None
) -> Any:
    """What a module makes of its inputs with these tensors in place of its own parameters and buffers.

    ``tensors`` are by the names of ``named_parameters()`` and ``named_buffers()``; those that are not there are the
    module's own. ``torch.func.functional_call`` by itself gives a layer that stands at two places of the module its
    tensors twice, and afterwards leaves it with the second ones. Here each layer is given them once.
    """
    from torch.func import functional_call  # a second of imports

    names = {id(own): name for name, own in (*module.named_parameters(), *module.named_buffers())}
    places: dict[str, Tensor] = {}
    for at, part in module.named_modules():  # each of them once
        for name, own in (*part._parameters.items(), *part._buffers.items()):
            if (known := names.get(id(own), "")) in tensors:
                places[f"{at}.{name}" if at else name] = tensors[known]
    return functional_call(module, places, tuple(inputs), dict(named or {}), tie_weights=False)
