"""FedPara: every large weight is a product of small ones, and those are what is trained and sent.

Hyeon-Woo, Ye-Bin, Oh, "FedPara: Low-Rank Hadamard Product for Communication-Efficient Federated Learning", ICLR 2022,
arXiv:2108.06098. Linear layers by Proposition 1, W = (X1 Y1^T) * (X2 Y2^T) entry by entry, whose rank may be up to
R^2; convolutions by Proposition 3, each factor being a kernel T [R, R, ...] times X [outputs, R] and Y [inputs, R].

Differences from the paper: ``ratio`` is the share of a layer's entries that its factors may have. The paper has gamma,
a position between the smallest and the largest useful rank. R is never below the smallest with
R^2 >= min(outputs, inputs), which Corollary 1 asks for. A layer stays as it is if it would not get smaller, if its
weight is frozen or shared by two layers, or if it is neither linear nor a convolution. Factors begin as normal numbers
of one scale, chosen so that the product has the mean square of the weight that the module was given. The paper's
additions are left out: tanh, a penalty on the Jacobian, and pFedPara, which keeps one of two halves with the client.
``start="weights"`` is an addition of ours.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Size, Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from ..errors import CombinationError, require
from ..ranges import CountOrNone, Share
from .around import Around


class Product(nn.Module):
    """A weight as (X1 Y1^T) * (X2 Y2^T), with a kernel between X and Y where it is that of a convolution.

    In torch's terms a parametrization: ``layer.weight = w`` makes the factors those of ``w``, as near as the rank
    allows.
    """

    def __init__(self, shape: Size, rank: int) -> None:
        super().__init__()
        self.shape, self.rank = shape, rank

    def forward(self, x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, *kernels: Tensor) -> Tensor:
        if not kernels:
            return (x1 @ y1.T) * (x2 @ y2.T)
        first, second = (
            torch.einsum("ar...,oa->or...", kernel, x) for kernel, x in zip(kernels, (x1, x2), strict=True)
        )
        return torch.einsum("or...,ir->oi...", first, y1) * torch.einsum("or...,ir->oi...", second, y2)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Factors of ``weight``: its leading directions in the first pair, ones from the second.

        What the rank leaves over begins as random numbers times zeros, so that it can be trained.
        """
        drawn = self.draw(root_mean_square(weight) or 1.0, generator_of(weight))
        x1, y1, x2, y2, *kernels = (factor.to(weight.dtype) for factor in drawn)
        outwards, inwards = directions(weight, self.rank), directions(weight.transpose(0, 1), self.rank)
        o, i = outwards.shape[1], inwards.shape[1]
        x1[:, :o], x2[:, 0] = outwards, 1.0
        if kernels:
            y1[:, :i], y2[:, 0] = inwards, 1.0
            core, ones = (kernel.zero_() for kernel in kernels)
            core[:o, :i] = torch.einsum("oi...,oa,ib->ab...", weight, outwards, inwards)
            ones[0, 0] = 1.0
        else:
            y1.zero_()
            y2.zero_()
            y1[:, :o], y2[:, 0] = weight.T @ outwards, 1.0
        return x1, y1, x2, y2, *kernels

    def draw(self, scale: float, generator: torch.Generator) -> list[Tensor]:
        """Normal numbers of one scale, such that the root mean square of their product is ``scale``."""
        (outputs, inputs, *window), rank = self.shape, self.rank
        shapes = [(outputs, rank), (inputs, rank)] * 2 + [(rank, rank, *window)] * (2 if window else 0)
        factors = [torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu") for shape in shapes]
        # The scale of a product varies from draw to draw, which would add up over layers: it is set, not hoped for.
        by = (scale / root_mean_square(self(*factors))) ** (1 / len(factors))
        return [factor * by for factor in factors]


@dataclass(frozen=True)
class FedPara(Around):
    """Train and send products of small matrices in place of the weights of linear layers and convolutions.

    ``ratio`` is the share of a layer's entries that its factors may have; ``rank``, where given, is R of every layer
    whatever it costs. ``start`` says how factors begin: "random", for training from scratch, or "weights", as near to
    the module's own weights as the rank allows. The model of a run's result has its dense weights again
    (:func:`fold`); ``result.params`` are the factors. Raises ``ValueError`` where no layer of the model would get
    smaller, for a ``ratio`` outside (0, 1] and for a ``rank`` below 1, and :class:`~thinwire.errors.CombinationError`
    for FedPara inside FedPara.
    """

    ratio: Share = 0.5
    rank: CountOrNone = None
    start: Literal["random", "weights"] = "random"

    paper = "Hyeon-Woo, Ye-Bin, Oh, ICLR 2022, arXiv:2108.06098"

    def __post_init__(self) -> None:
        inner = self.inner
        while isinstance(inner, Around):
            if isinstance(inner, FedPara):
                raise CombinationError("FedPara over FedPara: the weights are products already")
            inner = inner.inner

    def prepare(self, module: nn.Module) -> nn.Module:
        return self.factorise(self.inner.prepare(module))

    def assemble(self, module: nn.Module, num_clients: int) -> nn.Module:
        return self.factorise(self.inner.assemble(module, num_clients))

    def factorise(self, module: nn.Module) -> nn.Module:
        """A copy whose large weights are products."""
        module = copy.deepcopy(module)
        owners = Counter(id(p) for m in module.modules() for p in m.parameters(recurse=False))
        changed = 0
        for layer in list(module.modules()):
            if not isinstance(layer, nn.Linear | _ConvNd) or parametrize.is_parametrized(layer):
                continue
            weight, rank = layer.weight.detach(), self.rank_of(layer.weight.shape)
            if rank is None or not layer.weight.requires_grad or owners[id(layer.weight)] > 1:
                continue
            require(
                weight.dtype in (torch.float32, torch.float64),
                f"FedPara: a weight is {weight.dtype}; factors are float32 or float64: give model.float()",
            )
            product, generator = Product(weight.shape, rank), generator_of(weight)
            parametrize.register_parametrization(layer, "weight", product, unsafe=True)  # it is not checked: it is ours
            scale = root_mean_square(weight)
            if self.start == "random" and scale:
                with torch.no_grad():
                    for factor, value in zip(_factors(layer), product.draw(scale, generator), strict=True):
                        factor.copy_(value)
            changed += 1
        require(
            changed > 0, f"FedPara(ratio={self.ratio}): no layer of the model would get smaller; use a plain method"
        )
        return module

    def rank_of(self, shape: Size) -> int | None:
        """R for a weight of this shape; None where it stays as it is."""
        if self.rank is not None:
            return self.rank
        outputs, inputs, *window = shape
        pairs, area = outputs + inputs, math.prod(window) if window else 0
        least = math.isqrt(min(outputs, inputs) - 1) + 1
        most, entries = least, self.ratio * shape.numel()
        while 2 * (most + 1) * pairs + 2 * (most + 1) ** 2 * area <= entries:
            most += 1
        return most if 2 * most * pairs + 2 * most**2 * area < shape.numel() else None

    def finish(self, module: nn.Module) -> nn.Module:
        return self.inner.finish(fold(module))


def fold(module: nn.Module) -> nn.Module:
    """The module with dense weights in place of their factors: the same function, the names its user knows."""
    for layer in list(module.modules()):
        if not parametrize.is_parametrized(layer, "weight") or not _factors(layer):
            continue
        others = list(layer.named_parameters(recurse=False))
        weight = nn.Parameter(torch.as_tensor(layer.weight).detach().clone())
        # Not remove_parametrizations: it takes the weight from the class, which copies of the module share.
        delattr(layer, "parametrizations")
        layer.__class__ = type(layer).__bases__[0]
        for name, parameter in [("weight", weight), *others]:  # in the order they had
            layer._parameters.pop(name, None)
            layer.register_parameter(name, parameter)
    return module


def _factors(layer: nn.Module) -> list[nn.Parameter]:
    """X1, Y1, X2, Y2 and the kernels of a layer whose weight is a product."""
    made = layer.get_submodule("parametrizations.weight")
    return list(made.parameters()) if any(isinstance(part, Product) for part in made.children()) else []


def factors(layer: nn.Linear) -> list[str] | None:
    """The names of X1, Y1, X2 and Y2 of a linear layer whose weight is their product and nothing else is; else None."""
    if type(layer).__bases__ != (nn.Linear,) or not parametrize.is_parametrized(layer):
        return None  # a class of someone's own may have its own forward
    made = layer.get_submodule("parametrizations")
    if [name for name, _ in made.named_children()] != ["weight"]:
        return None
    if [type(part) for part in made.get_submodule("weight").children()] != [Product]:
        return None
    return [f"parametrizations.weight.original{number}" for number in range(4)]


def directions(weight: Tensor, rank: int) -> Tensor:
    """At most ``rank`` orthonormal columns that span the most of a weight's first dimension, [outputs, columns]."""
    rows = weight.flatten(1).double()
    vectors: Tensor = torch.linalg.eigh(rows @ rows.T).eigenvectors  # by rising eigenvalue
    return vectors.flip(1)[:, :rank].to(weight.dtype)


def root_mean_square(x: Tensor) -> float:
    """The scale of its entries."""
    return float(x.double().square().mean().sqrt())


def generator_of(x: Tensor) -> torch.Generator:
    """A generator whose seed is a digest of ``x``: the same draws for the same initial weights."""
    digest = hashlib.blake2b(x.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
