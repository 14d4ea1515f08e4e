"""The problem: points of three classes that a line separates, dealt to three clients of different size."""

from __future__ import annotations

import torch
from torch import nn

import thinwire as tw

SIZES = (24, 40, 32)
SEED = 5


def tasks(clients: int = 3) -> list[tw.Supervised]:
    """Those of three clients, or of more, whose sizes are these again and again."""
    sizes = [SIZES[client % 3] for client in range(clients)]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(sizes), 6, generator=generator)
    targets = (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)
    return [tw.Supervised(inputs, targets, part) for part in torch.arange(sum(sizes)).split(sizes)]


def model(width: int = 8, norm: bool = True, depth: int = 0) -> nn.Module:
    between = [nn.BatchNorm1d(width)] if norm else []
    wide = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, width), *between, nn.ReLU(), *wide, nn.Linear(width, 3))


def method(expression: str) -> tw.Algorithm:
    return tw.parse(expression, {"lr": 0.2, "batch": 8})
