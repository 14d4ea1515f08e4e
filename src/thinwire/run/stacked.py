"""Gradients of many models at once: model i of the stack sees examples i of the batch.

Two ways to the same numbers (to rounding). ``torch.func`` takes any module. For chains of
linear layers and functions of each example, which are what small models mostly are, the
layers of all models are one batched product each, and its gradient is added where it is
wanted: none is ever allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Layers = dict[str, Tensor]  # each [models, *shape]
LossOf = Callable[[Tensor, Tensor], Tensor]  # one value an example
Gradients = Callable[[Layers, Tensor, Tensor, Tensor, Layers, float, float], Tensor]
"""(layers, inputs, targets, mask, into, keep, by) -> the summed loss of every model, [models].

``inputs``, ``targets`` and ``mask`` are [models, batch, ...]. ``into`` becomes
``keep * into + by * gradient``, the gradient of the mean over a model's unmasked examples;
``keep`` is 0 or 1, and ``into`` may be ``layers`` themselves: that is a step.
"""

EXAMPLEWISE = (nn.ELU, nn.GELU, nn.Identity, nn.LeakyReLU, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.Tanh)


def gradients(module: nn.Module, loss_of: LossOf) -> Gradients:
    """The faster way for this module."""
    chain = _chain(module)
    return _general(module, loss_of) if chain is None else _products(chain, loss_of)


def _general(module: nn.Module, loss_of: LossOf) -> Gradients:
    from torch.func import functional_call, grad_and_value, vmap  # a second of imports

    frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}

    def loss(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        losses = loss_of(functional_call(module, {**layers, **frozen}, (inputs,)), targets) * mask
        return losses.sum() / mask.sum().clamp_min(1), losses.detach().sum()

    # The gradient inside of vmap, not around it: so it comes out in the order of the weights.
    slopes_of = vmap(grad_and_value(loss, has_aux=True))

    def run(
        layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor, into: Layers, keep: float, by: float
    ) -> Tensor:
        slopes, (_, lost) = slopes_of(layers, inputs, targets, mask)
        for name, slope in slopes.items():
            _put(into[name], slope, keep, by)
        summed: Tensor = lost
        return summed

    return run


def _products(chain: list[tuple[str, nn.Module]], loss_of: LossOf) -> Gradients:
    def run(
        layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor, into: Layers, keep: float, by: float
    ) -> Tensor:
        x, wanted = inputs.flatten(0, 1), torch.ones((), requires_grad=True)  # so that the first layer has a backward
        for name, stage in chain:
            if isinstance(stage, nn.Linear):
                layer, slope = (_layer(ls, name) for ls in (layers, into))
                x = _Product.apply(x, wanted, layer, slope, keep, by)  # type: ignore[no-untyped-call]
            else:
                x = stage(x)
        losses = loss_of(x, targets.flatten(0, 1)).view(mask.shape) * mask
        (losses.sum(1) / mask.sum(1).clamp_min(1)).sum().backward()  # type: ignore[no-untyped-call]
        return losses.detach().sum(1)

    return run


class _Product(torch.autograd.Function):
    """y = x Wᵀ + b of every model; the backward pass leaves the gradients where it was told to."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, wanted: Tensor, layer: list[Tensor], slope: list[Tensor], keep: float, by: float
    ) -> Tensor:
        weight = layer[0]
        flat = x.reshape(len(weight), -1, x.shape[-1])  # [models, examples, inputs]
        ctx.save_for_backward(flat)
        ctx.told = layer, slope, keep, by
        turned = weight.transpose(1, 2)
        y = torch.baddbmm(layer[1][:, None], flat, turned) if len(layer) > 1 else torch.bmm(flat, turned)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (flat,) = ctx.saved_tensors
        layer, slope, keep, by = ctx.told
        dy = slopes[0].reshape(*flat.shape[:2], -1)
        # First what the layers before need: `slope` may be the weights themselves.
        dx = torch.bmm(dy, layer[0]).view(*slopes[0].shape[:-1], -1) if ctx.needs_input_grad[0] else None
        slope[0].baddbmm_(dy.transpose(1, 2), flat, beta=keep, alpha=by)
        if len(slope) > 1:
            _put(slope[1], dy.sum(1), keep, by)
        return dx, *[None] * 5


def _put(into: Tensor, slope: Tensor, keep: float, by: float) -> None:
    if keep:
        into.add_(slope, alpha=by)
    else:
        torch.mul(slope, by, out=into)  # whatever is there, NaN perhaps


def _layer(layers: Layers, name: str) -> list[Tensor]:
    return [layers[f"{name}{part}"] for part in ("weight", "bias") if f"{name}{part}" in layers]


def _chain(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The stages of a chain that :func:`_products` can take, with the prefix of their parameters; else None."""
    stages = list(_stages(module))
    linear = [stage for _, stage in stages if type(stage) is nn.Linear]
    known = all(type(stage) in (nn.Linear, *EXAMPLEWISE) or _flattens(stage) for _, stage in stages)
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules())
    apart = len({id(p) for m in linear for p in m.parameters()}) == sum(1 for m in linear for _ in m.parameters())
    trained = all(p.requires_grad for p in module.parameters())
    return stages if known and linear and apart and trained and not hooked else None


def _flattens(stage: nn.Module) -> bool:
    return type(stage) is nn.Flatten and stage.start_dim >= 1


def _stages(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module._modules.items():  # named_children would say a layer used twice but once
        assert child is not None
        yield from _stages(child, f"{prefix}{name}.")
