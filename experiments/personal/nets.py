"""Networks of the tables of personal models: selectors that see smaller pictures, and a small network with batch norm.

A method names a selector by ``selector="nets:vgg_small_at_32"``, which is looked for beside the script that is run.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from thinwire.models import vgg11, vgg_small


def vgg_small_at_32(outputs: int) -> nn.Module:
    """Pictures [n, 3, side, side], shrunk to 32 x 32 pixels by means, to logits [n, outputs]."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(32), vgg_small((3, 32, 32), outputs))


def vgg11_at_64(outputs: int) -> nn.Module:
    """The thesis' selector, with group norm, of pictures shrunk to 64 x 64 pixels by means."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(64), vgg11((3, 64, 64), outputs, norm="group"))


def small_cnn() -> nn.Module:
    """Pictures [n, 1, 28, 28] to logits [n, 10]: three convolutions with batch norm, 24,058 parameters."""
    layers: dict[str, nn.Module] = {}
    inputs = 1
    for number, outputs in enumerate((16, 32, 64)):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2) if number < 2 else nn.AdaptiveAvgPool2d(1)
        inputs = outputs
    return nn.Sequential(OrderedDict(layers, flat=nn.Flatten(), dense=nn.Linear(inputs, 10)))
