"""Attacks of clients that know nothing but what is theirs.

:class:`SignFlip`: Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
Learning from Heterogeneous Datasets", AAAI 2019, arXiv:1811.03761, section 5. :class:`GaussianNoise`: Blanchard, El
Mhamdi, Guerraoui, Stainer, NeurIPS 2017, arXiv:1703.02757, section 5.

Differences from the papers: what is bent is a change of the model by local training. The noise is in units of the
change that an honest client would have sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..key import Key
from ..params import Params
from ..ranges import Positive, Share
from .attack import Attack, Others


@dataclass(frozen=True)
class SignFlip(Attack):
    """Hostile clients send ``scale`` times the opposite of their updates."""

    paper = "Li et al., AAAI 2019, arXiv:1811.03761"

    share: Share = 0.2
    scale: Positive = 1.0

    def bend(self, x: Params, others: Others | None, key: Key) -> Params:
        return x * -self.scale


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Hostile clients send normally distributed noise whose norm is about ``scale`` times that of their updates."""

    paper = "Blanchard et al., NeurIPS 2017, arXiv:1703.02757"

    share: Share = 0.2
    scale: Positive = 10.0

    def bend(self, x: Params, others: Others | None, key: Key) -> Params:
        generator = key.generator("attack")
        noise = torch.randn(x.flat.shape, generator=generator, dtype=torch.float32, device="cpu").to(x.flat)
        return Params(x.layout, noise * (self.scale * x.norm() / max(1, x.layout.size) ** 0.5))
