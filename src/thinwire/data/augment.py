"""Pictures changed at random, a batch at a time, every example by a draw of its own.

The draws come from the generator given, so that a batch can be made again; uint8 and float
pictures are taken alike. ``Crop(padding=4)`` and ``Flip()`` together are the usual training
of CIFAR-10 (He et al., CVPR 2016, Section 4.2). ``Flip()`` and ``Rotate90()`` together are the
usual training of pictures without an upright, as those of an eye. A mask is changed with its
picture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional as F

from ..config import Config
from ..errors import require
from ..ranges import Range


@dataclass(frozen=True)
class Augment(Config, ABC):
    """A random change of pictures; calling it changes a batch."""

    @abstractmethod
    def __call__(self, x: Shaped[Tensor, "b c h w"], generator: torch.Generator) -> Shaped[Tensor, "b c h w"]:
        """The changed pictures, as a new tensor of the same type."""


@dataclass(frozen=True)
class Crop(Augment):
    """Zeros added at every side, then a window of the old size cut out at random.

    A zero is black in pictures of 0 to 1 or 0 to 255, the mean in normalised ones.
    """

    padding: Annotated[int, Range(lambda x: x >= 1, "must be at least one pixel")] = 4

    def __call__(self, x: Shaped[Tensor, "b c h w"], generator: torch.Generator) -> Shaped[Tensor, "b c h w"]:
        b, _, h, w = x.shape
        draws = torch.randint(2 * self.padding + 1, (2, b), generator=generator, device=generator.device)
        down, right = draws.to(x.device)
        padded = F.pad(x, (self.padding,) * 4)
        windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # [b, c, down, right, h, w], a view
        return windows[torch.arange(b, device=x.device), :, down, right]


@dataclass(frozen=True)
class Flip(Augment):
    """Mirrored left to right, every second picture on average."""

    def __call__(self, x: Shaped[Tensor, "b c h w"], generator: torch.Generator) -> Shaped[Tensor, "b c h w"]:
        draws = torch.randint(2, (len(x), 1, 1, 1), generator=generator, device=generator.device)
        return torch.where(draws.to(x.device) == 1, x.flip(3), x)


@dataclass(frozen=True)
class Rotate90(Augment):
    """Turned to the left by 0, 90, 180 or 270 degrees, each as likely. Raises ValueError for pictures not square."""

    def __call__(self, x: Shaped[Tensor, "b c h w"], generator: torch.Generator) -> Shaped[Tensor, "b c h w"]:
        *_, h, w = x.shape
        require(h == w, f"Rotate90() turns square pictures, not {h} x {w}: leave it out")
        turns = torch.randint(4, (len(x),), generator=generator, device=generator.device).to(x.device)
        out = x.clone()
        for quarter in (1, 2, 3):
            which = turns == quarter
            out[which] = x[which].rot90(quarter, (2, 3))
        return out
