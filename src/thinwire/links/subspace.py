"""Random subspaces: a D×d matrix A that both ends draw from a seed and never store.

``expand`` is A s, ``project`` is Aᵀx. All are scaled so that E[A Aᵀ] = I: what is projected
and expanded again is right on average, and AᵀA is near (D/d) I.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..config import Config
from ..kernels.fastfood import fastfood, fastfood_transpose
from ..key import Key
from ..params import Layout, Params

CHUNK = 1 << 16  # entries of a Gaussian matrix drawn at a time, the same for everyone: it is part of the matrix


class Basis(Config, ABC):
    """How the matrix is made. The key says which one of its kind it is."""

    example = "Fastfood()"

    @abstractmethod
    def expand(self, s: Float[Tensor, " d"], size: int, key: Key) -> Float[Tensor, " size"]:
        """A s, for a matrix of ``size`` rows."""

    @abstractmethod
    def project(self, x: Float[Tensor, " size"], dim: int, key: Key) -> Float[Tensor, " dim"]:
        """Aᵀ x, for a matrix of ``dim`` columns."""

    def expand_model(self, s: Float[Tensor, " d"], layout: Layout, key: Key) -> Params:
        """A s for a model: by default one matrix over the whole vector."""
        return Params(layout, self.expand(s, layout.size, key))

    def project_model(self, x: Params, dim: int, key: Key) -> Float[Tensor, " dim"]:
        """Aᵀ x for a model."""
        return self.project(x.flat, dim, key)


@dataclass(frozen=True)
class Fastfood(Basis):
    """A = (n d)^(-1/2) U_D B H Π G H P_d, in O(D log D) time and little more than one vector of memory.

    H is the unnormalised Hadamard matrix of n rows, n the power of two from D on; P_d pads d
    to n, U_D keeps D of n; B are random signs, G Gaussian, Π a permutation. Le, Sarlós, Smola,
    "Fastfood", ICML 2013, as used by Melas-Kyriazi and Wang, 2021.

    Differences from the papers: the constant (public code has unit columns, which is the
    same path at a learning rate D/d times as large); Π is computed and not stored, and Π G is
    drawn as G Π, which has the same distribution; G takes 8,192 values. Of the inner H only the first
    d columns matter, and they repeat: it is a transform of d entries, not of n. All of it is
    drawn by counter as it is used: :mod:`thinwire.kernels.fastfood`.
    """

    paper = "Le, Sarlós, Smola, ICML 2013"

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        return fastfood(s, size, key.everyone().number("fastfood"))

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        return fastfood_transpose(x, dim, key.everyone().number("fastfood"))


@dataclass(frozen=True)
class Gaussian(Basis):
    """A dense matrix of independent entries, N(0, 1/d): O(D d) time, for small models."""

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        return torch.cat([rows @ s for rows in self._rows(size, s.numel(), key)])

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        total, start = torch.zeros(dim, dtype=torch.float32, device="cpu"), 0
        for rows in self._rows(x.numel(), dim, key):
            total += x[start : start + len(rows)] @ rows
            start += len(rows)
        return total

    def _rows(self, size: int, dim: int, key: Key) -> Iterator[Tensor]:
        generator = key.everyone().generator("gaussian")
        step = max(1, CHUNK // dim)
        for start in range(0, size, step):
            yield torch.randn(
                min(step, size - start), dim, generator=generator, dtype=torch.float32, device="cpu"
            ).mul_(1 / math.sqrt(dim))


@dataclass(frozen=True)
class PerTensor(Basis):
    """A matrix of its own for every tensor of a model, all of them times the same d coefficients.

    A is these matrices one below the other, so E[A Aᵀ] = I as for each of them. Memory is that of
    the largest tensor and not of the model, and of no tensor more than a few rows are padding;
    but each takes the time of at least d entries: for small models, or few coefficients. A vector
    (``Flat(Projection(...))``) is one tensor. An option beside the one matrix over the whole vector
    of Melas-Kyriazi and Wang, 2021, as public code for the intrinsic dimensions of Li, Farkhoor,
    Liu, Yosinski, ICLR 2018, arXiv:1804.08838, has it.

    Differences from the papers: the constant, see :class:`Fastfood`.
    """

    paper = "Li et al., ICLR 2018, arXiv:1804.08838"

    inner: Basis = Fastfood()

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        return self.inner.expand(s, size, key)

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        return self.inner.project(x, dim, key)

    def expand_model(self, s: Tensor, layout: Layout, key: Key) -> Params:
        x = layout.zeros()
        for name, (start, size, _) in layout.spans.items():
            x.flat[start : start + size] = self.inner.expand(s, size, key.at(name)) if size else 0.0
        return x

    def project_model(self, x: Params, dim: int, key: Key) -> Tensor:
        total = torch.zeros(dim, dtype=torch.float32, device="cpu")
        for name, layer in x.items():
            if layer.numel():
                total += self.inner.project(layer.reshape(-1), dim, key.at(name))
        return total
