"""Which layers of a module train: what its user said, kept through training and evaluation."""

from __future__ import annotations

from torch import nn


class Modes:
    """The modes that a module was given in. A layer that was in evaluation mode then stays in it while others train.

    So norm layers that were frozen by ``eval()`` keep their statistics. Of a module that is in evaluation mode as a
    whole, as one is after ``from_pretrained``, nobody said anything: all of it trains.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.still = [part for part in module.modules() if not part.training] if module.training else []

    def train(self) -> None:
        """Into training mode, but for what is to stay in evaluation mode."""
        self.module.train()
        for part in self.still:
            part.training = False

    def eval(self) -> None:
        """All of it into evaluation mode."""
        self.module.eval()
