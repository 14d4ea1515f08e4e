"""Gradients of many models at once: model i of the stack sees examples i of the batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Layers = dict[str, Tensor]  # each [models, *shape]
LossOf = Callable[[Tensor, Tensor], Tensor]  # one value an example
Gradients = Callable[[Layers, Tensor, Tensor, Tensor, Layers], Tensor]
"""(layers, inputs, targets, mask, into) -> the summed loss of every model, [models].

``inputs``, ``targets`` and ``mask`` are [models, batch, ...]; the gradients of the mean over
a model's unmasked examples are written ``into``.
"""


def gradients(module: nn.Module, loss_of: LossOf) -> Gradients:
    """By ``torch.func``, which takes any module without buffers or dice."""
    from torch.func import functional_call, grad_and_value, vmap  # a second of imports

    frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}

    def loss(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        losses = loss_of(functional_call(module, {**layers, **frozen}, (inputs,)), targets) * mask
        return losses.sum() / mask.sum().clamp_min(1), losses.detach().sum()

    # The gradient inside of vmap, not around it: so it comes out in the order of the weights.
    slopes_of = vmap(grad_and_value(loss, has_aux=True))

    def run(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor, into: Layers) -> Tensor:
        slopes, (_, lost) = slopes_of(layers, inputs, targets, mask)
        for name, slope in slopes.items():
            into[name].copy_(slope)
        summed: Tensor = lost
        return summed

    return run
