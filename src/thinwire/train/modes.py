"""Which parts of a module train, and which its user put into evaluation mode for good (a frozen norm layer)."""

from __future__ import annotations

from torch import nn


class Modes:
    """The modes that a module was given in: :meth:`train` restores them, where ``module.train()`` forgets them.

    A layer that was in evaluation mode within a module in training mode stays in evaluation mode: its running
    statistics are used, and do not move. Of a module that is in evaluation mode itself, as a pretrained one comes,
    nobody said which layers are to train: all do.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.given = [(part, part.training) for part in module.modules()] if module.training else []
        self.given = [] if all(training for _, training in self.given) else self.given

    def train(self) -> None:
        """Put every layer into the mode of its training."""
        self.module.train()
        for part, training in self.given:  # an outer layer before those within it
            if part.training is not training:
                part.train(training)

    def eval(self) -> None:
        """Put every layer into evaluation mode."""
        self.module.eval()
