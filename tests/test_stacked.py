"""Gradients of many models at once: the fast way and the general one say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from thinwire.run.stacked import _chain, _general, gradients
from thinwire.task import cross_entropy


def chain() -> nn.Sequential:
    hidden = nn.Sequential(nn.Linear(6, 5, bias=False), nn.GELU(), nn.Linear(5, 4), nn.Tanh())
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), hidden, nn.Linear(4, 3))


def stack(module: nn.Module, models: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(models, *p.shape) for name, p in module.named_parameters()}


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Four models, five examples each; one has but two, one has none."""
    g = torch.Generator().manual_seed(1)
    mask = torch.ones(4, 5)
    mask[2, 2:] = 0
    mask[3] = 0
    return torch.randn(4, 5, 3, 2, 2, generator=g), torch.randint(3, (4, 5), generator=g), mask


@pytest.mark.parametrize(("keep", "by"), [(0.0, 1.0), (1.0, -0.25)])
def test_the_gradients_of_every_model_are_those_it_has_alone(keep: float, by: float) -> None:
    module = chain()
    assert _chain(module) is not None
    layers, (inputs, targets, mask) = stack(module, 4), batch()
    start = {name: torch.full_like(layer, float("nan") if keep == 0 else 2.0) for name, layer in layers.items()}
    for way in (gradients(module, cross_entropy), _general(module, cross_entropy)):
        into = {name: layer.clone() for name, layer in start.items()}
        lost = way(layers, inputs, targets, mask, into, keep, by)
        for i, count in enumerate((5, 5, 2, 0)):
            alone = {name: layer[i].clone().requires_grad_() for name, layer in layers.items()}
            outputs = torch.func.functional_call(module, alone, (inputs[i, :count],))
            losses = cross_entropy(outputs, targets[i, :count])
            (losses.sum() / max(count, 1)).backward()
            torch.testing.assert_close(lost[i], losses.sum())
            for name, own in alone.items():
                assert own.grad is not None
                torch.testing.assert_close(into[name][i], (2.0 if keep else 0.0) + by * own.grad, atol=1e-6, rtol=1e-5)


def test_a_step_is_a_gradient_added_to_the_layers_themselves() -> None:
    module = chain()
    layers, (inputs, targets, mask) = stack(module, 4), batch()
    slopes = {name: torch.empty_like(layer) for name, layer in layers.items()}
    push = gradients(module, cross_entropy)
    push(layers, inputs, targets, mask, slopes, 0.0, 1.0)
    expected = {name: layer - 0.5 * slopes[name] for name, layer in layers.items()}
    push(layers, inputs, targets, mask, layers, 1.0, -0.5)
    torch.testing.assert_close(layers, expected)


class Crossing(nn.Module):
    """Looks at other examples of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, layer)


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    return module


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), Crossing()),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Conv2d(3, 3, 3),
        Doubled(4, 4),
        nn.ReLU(),
        shared(),
        hooked(),
        frozen(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_only_chains_that_treat_each_example_alone_take_the_short_way(module: Any) -> None:
    assert _chain(module) is None


def test_linear_layers_over_sequences_are_chains_too() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    layers = stack(module, 2)
    g = torch.Generator().manual_seed(2)
    given = torch.randn(2, 3, 7, 3, generator=g), torch.randint(5, (2, 3, 7), generator=g), torch.ones(2, 3)
    found = []
    for way in (gradients(module, cross_entropy), _general(module, cross_entropy)):
        into = {name: torch.zeros_like(layer) for name, layer in layers.items()}
        way(layers, *given, into, 0.0, 1.0)
        found.append(into)
    torch.testing.assert_close(*found)
