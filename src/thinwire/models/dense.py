"""Networks of dense layers; inputs of any shape are made flat first."""

from __future__ import annotations

from torch import nn


def linear(inputs: int = 784, classes: int = 10) -> nn.Sequential:
    """One linear layer (the "FCN" of LBGM's experiments): 7,850 parameters by default."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int = 784, hidden: tuple[int, ...] = (64,), classes: int = 10) -> nn.Sequential:
    """ReLU layers of the sizes ``hidden``, then a linear one: 50,890 parameters by default."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
