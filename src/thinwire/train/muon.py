"""Muon for matrices, and AdamW for the rest of a model's parameters, as one optimiser.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import require

__all__ = ["Muon"]


class Muon(Optimizer):
    """torch's ``Muon`` where it can be, ``AdamW`` elsewhere, with one learning rate.

    - ``parameters``: those of a model or a part of one, or groups of them, as torch's optimisers take them. Kernels of
      convolutions are matrices [out, in * height * width].
    - ``lr``, ``weight_decay``: as AdamW's. Muon's updates are scaled to the size of AdamW's
      (``adjust_lr_fn="match_rms_adamw"``: Liu et al., arXiv:2502.16982).
    - ``momentum``: of Muon, Nesterov's. AdamW has its own 0.9 and 0.999.
    - ``plain``: parameters that AdamW has though they are matrices: embeddings, and the last layer.

    ``param_groups`` are the given groups cut in two, a group's matrices and its others. Raises ``ValueError`` where
    torch has no ``Muon``, which came with 2.9.

    Differences from the note: the scale of an update and the choice of ``plain``, which is the caller's.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        plain: Iterable[nn.Parameter] = (),
    ) -> None:
        require(hasattr(torch.optim, "Muon"), f"Muon needs torch 2.9 or newer, and this is {torch.__version__}")
        self.plain = {id(p) for p in plain}
        own = {"momentum": momentum, "weight_decay": weight_decay, "adjust_lr_fn": "match_rms_adamw"}
        some = nn.Parameter(torch.zeros(1, 1))
        # They make the steps; their groups and states are this optimiser's.
        self.muon: Optimizer = torch.optim.Muon([some], lr, **own)  # type: ignore[arg-type]
        self.adamw: Optimizer = torch.optim.AdamW([some], lr, weight_decay=weight_decay)
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, matrices and others each as a group."""
        given = param_group["params"]
        every = [given] if isinstance(given, Tensor) else list(given)
        split: dict[bool, list[Any]] = {True: [], False: []}
        for one in every:
            p = one[1] if isinstance(one, tuple) else one  # of named_parameters()
            split[p.ndim > 1 and id(p) not in self.plain].append(one)
        for matrices, some in split.items():
            if some:
                defaults = (self.muon if matrices else self.adamw).defaults
                super().add_param_group({**defaults, **param_group, "params": some, "matrices": matrices})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step of both. What ``closure`` gives, the loss, is given back."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner, matrices in ((self.muon, True), (self.adamw, False)):
            inner.state = self.state
            inner.param_groups = [group for group in self.param_groups if group["matrices"] == matrices]
            with _matrices(p for group in inner.param_groups for p in group["params"] if p.ndim > 2):
                inner.step()
        return loss


@contextmanager
def _matrices(kernels: Iterable[nn.Parameter]) -> Iterator[None]:
    """Kernels are matrices within, and so are their gradients."""
    whole = [(p, p.data, p.grad) for p in kernels]
    for p, data, grad in whole:
        p.grad, p.data = None, data.reshape(len(data), -1)
        p.grad = None if grad is None else grad.reshape(len(data), -1)
    try:
        yield
    finally:
        for p, data, grad in whole:
            moved, p.grad = p.data, None
            p.data = data
            p.grad = grad
            if moved.data_ptr() != data.data_ptr():  # of channels-last kernels the matrix is a copy
                data.copy_(moved.view(data.shape))
