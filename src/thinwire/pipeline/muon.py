"""Muon for matrices, and AdamW for the rest of a part's parameters, as one optimiser.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import require

__all__ = ["Muon"]


class Muon(Optimizer):
    """torch's ``Muon`` where it can be, ``AdamW`` elsewhere, with one learning rate.

    - ``parameters``: those of a part. Kernels of convolutions are matrices [out, in * height * width].
    - ``lr``, ``weight_decay``: as AdamW's. Muon's updates are scaled to the size of AdamW's
      (``adjust_lr_fn="match_rms_adamw"``: Liu et al., arXiv:2502.16982).
    - ``momentum``: of Muon, Nesterov's. AdamW has its own 0.9 and 0.999.
    - ``plain``: parameters that AdamW has though they are matrices: embeddings, and the last layer.

    Raises ``ValueError`` where torch has no ``Muon``, which came with 2.9.

    Differences from the note: the scale of an update and the choice of ``plain``, which is the caller's.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        plain: Iterable[nn.Parameter] = (),
    ) -> None:
        require(hasattr(torch.optim, "Muon"), f"Muon needs torch 2.9 or newer, and this is {torch.__version__}")
        every, apart = list(parameters), {id(p) for p in plain}
        super().__init__(every, {"lr": lr})
        matrices = [p for p in every if p.ndim > 1 and id(p) not in apart]
        others = [p for p in every if p.ndim < 2 or id(p) in apart]
        self.flat = [(p, nn.Parameter(p.detach().reshape(len(p), -1).clone())) for p in matrices]
        self.inner: list[Optimizer] = []
        if matrices:
            flat = [f for _, f in self.flat]
            own = {"momentum": momentum, "weight_decay": weight_decay, "adjust_lr_fn": "match_rms_adamw"}
            self.inner.append(torch.optim.Muon(flat, lr, **own))  # type: ignore[arg-type]
        if others:
            self.inner.append(torch.optim.AdamW(others, lr, weight_decay=weight_decay))
        self.every = every
        self.param_groups = [group for inner in self.inner for group in inner.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Make a step of both."""
        for p, flat in self.flat:
            flat.copy_(p.reshape(flat.shape))
            flat.grad = None if p.grad is None else p.grad.reshape(flat.shape)
        for inner in self.inner:
            inner.step()
        for p, flat in self.flat:
            p.copy_(flat.view(p.shape))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters."""
        for p in self.every:
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {"inner": [inner.state_dict() for inner in self.inner]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave. Raises ``KeyError`` and ``ValueError`` for another optimiser's."""
        for inner, state in zip(self.inner, state_dict["inner"], strict=True):
            inner.load_state_dict(state)
        self.param_groups = [group for inner in self.inner for group in inner.param_groups]
