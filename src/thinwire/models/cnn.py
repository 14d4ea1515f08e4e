"""The two small convolutional networks of the federated papers.

Both are conv 5x5, pool 2, conv 5x5, pool 2, dense, dense; convolutions without padding.
"""

from __future__ import annotations

from torch import nn

from .norm import check_size

SMALLEST = 16  # pixels a side: 16 -> 12 -> 6 -> 2 -> 1


def lbgm_cnn(shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """The CNN of LBGM (Azam et al., ICLR 2022): 20 and 50 channels, 500 units.

    431,080 parameters at (1, 28, 28), 657,080 at (3, 32, 32), with 10 classes. Raises
    ValueError for pictures below 16 x 16.
    """
    return _cnn("lbgm_cnn", shape, classes, first=20, second=50, units=500)


def fedavg_cnn(shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """The CNN of FedAvg (McMahan et al., AISTATS 2017): 32 and 64 channels, 512 units.

    582,026 parameters at (1, 28, 28) with 10 classes. The paper names 1,663,370, the same
    network with padded convolutions; without padding is what most later work trains.
    Raises ValueError for pictures below 16 x 16.
    """
    return _cnn("fedavg_cnn", shape, classes, first=32, second=64, units=512)


def _cnn(name: str, shape: tuple[int, int, int], classes: int, first: int, second: int, units: int) -> nn.Sequential:
    channels, height, width = shape
    check_size(name, shape, SMALLEST, "; linear, mlp and resnet20 take smaller ones")
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]  # pixels a side after both pools
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * left[0] * left[1], units),
        nn.ReLU(),
        nn.Linear(units, classes),
    )
