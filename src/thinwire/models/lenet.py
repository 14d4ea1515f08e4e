"""The network that gradients are inverted on."""

from __future__ import annotations

from torch import nn


def dlg_lenet(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Sequential:
    """The LeNet of Deep Leakage from Gradients (Zhu, Liu, Han, NeurIPS 2019): sigmoids, strides in place of pooling.

    Three convolutions 5 x 5 of 12 channels, the first two with stride 2, and a linear layer. Weights and biases are
    drawn from -0.5 to 0.5, as in the authors' code. 15,826 parameters at (3, 32, 32) with 10 classes. It is smooth, so
    a picture can be found from its gradient (``thinwire look leakage``); it is a poor classifier.
    """
    channels, *sides = shape
    layers: list[nn.Module] = []
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, 12, 5, stride=stride, padding=2), nn.Sigmoid()]
        channels, sides = 12, [-(-side // stride) for side in sides]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * sides[0] * sides[1], classes))
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return module
