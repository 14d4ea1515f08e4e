"""Feature shift: pictures of one set at six sites, each of which sees them through a camera of its own.

The same classes everywhere, other pixels: what differs between hospitals with different machines (X. Li et al.,
"FedBN", ICLR 2021, arXiv:2102.07623, call it feature shift). Site by site:

- 0, contrast: two fifths of a value of 0 to 255, 76 added.
- 1, blur: the mean of 9 x 9 pixels by binomial weights, a deviation of 1.4 pixels.
- 2, rotation: turned by 30 degrees around the middle, black at the corners.
- 3, noise: noise of standard deviation 50 added, cut at 0 and 255.
- 4, background: at least 120 in every other square of 4 x 4 pixels.
- 5, inversion: 255 less the value.

All of it is computed in whole numbers, or in 64-bit floats before it is rounded, so every machine has the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import require
from .dataset import DataSet
from .mnist import fashion_mnist

Camera = Callable[[Tensor, torch.Generator], Tensor]  # int32 [n, channels, height, width] of 0 to 255, and of the same


def fashion_sites(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """Fashion-MNIST at six sites of 10,000 training and 1,666 or 1,667 test pictures. Raises DataError."""
    return replace(feature_shifted(fashion_mnist(data_dir, download)), name="fashion_sites")


def feature_shifted(data: DataSet, seed: int = 0) -> DataSet:
    """A set of pictures, dealt at random to six sites with cameras of their own; ``groups`` are the sites.

    The order of examples and their targets stay. ``mean`` and ``std`` become those of the new training pictures.
    Raises ValueError for a set that is no set of uint8 pictures with a label each.
    """
    pictures = data.inputs.dtype == torch.uint8 and data.inputs.ndim == 4 and data.targets.ndim == 1
    require(pictures, f"feature_shifted: {data.name} is no set of uint8 pictures with a label each")
    generator = torch.Generator().manual_seed(seed)
    inputs, groups = _see(data.inputs, generator)
    test_inputs, test_groups = _see(data.test_inputs, generator)
    mean, std = _moments(inputs)
    return replace(
        data,
        name=f"{data.name}_sites",
        inputs=inputs,
        test_inputs=test_inputs,
        groups=groups,
        test_groups=test_groups,
        mean=mean,
        std=std,
    )


def contrast(x: Tensor, generator: torch.Generator) -> Tensor:
    """Site 0."""
    return x * 2 // 5 + 76


def blur(x: Tensor, generator: torch.Generator) -> Tensor:
    """Site 1: the binomial filter (1, 4, 6, 4, 1) twice along rows and twice along columns."""
    for shape in ((0, 0, 2, 2), (2, 2, 0, 0)) * 2:
        padded = F.pad(x.float(), shape, mode="replicate").to(torch.int32)
        axis = 2 if shape[3] else 3
        size = x.shape[axis]
        parts = [weight * padded.narrow(axis, i, size) for i, weight in enumerate((1, 4, 6, 4, 1))]
        x = (sum(parts, torch.zeros_like(x)) + 8) // 16
    return x


def rotation(x: Tensor, generator: torch.Generator) -> Tensor:
    """Site 2: bilinear between the four pixels around the place from which a pixel comes."""
    cos, sin = 0.75**0.5, 0.5
    h, w = x.shape[2:]
    rows = torch.arange(h, dtype=torch.float64, device="cpu").view(-1, 1) - (h - 1) / 2
    columns = torch.arange(w, dtype=torch.float64, device="cpu") - (w - 1) / 2
    top = cos * rows - sin * columns + (h - 1) / 2 + 1  # 1: into the black frame
    left = sin * rows + cos * columns + (w - 1) / 2 + 1
    top, left = top.clamp(0, h + 0.999), left.clamp(0, w + 0.999)
    framed, (i, j) = F.pad(x, (1, 1, 1, 1)), (top.long(), left.long())
    down, right = top - i, left - j
    upper = framed[..., i, j] * (1 - right) + framed[..., i, j + 1] * right
    lower = framed[..., i + 1, j] * (1 - right) + framed[..., i + 1, j + 1] * right
    turned: Tensor = upper * (1 - down) + lower * down
    return turned.round().to(torch.int32)


def noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Site 3: the sum of four draws of -43 to 43, which is nearly normal."""
    draws = torch.randint(-43, 44, (4, *x.shape), generator=generator, dtype=torch.int32, device="cpu")
    return (x + draws.sum(0, dtype=torch.int32)).clamp(0, 255)


def background(x: Tensor, generator: torch.Generator) -> Tensor:
    """Site 4."""
    h, w = x.shape[2:]
    squares = (
        torch.arange(h, dtype=torch.int32, device="cpu").view(-1, 1) // 4
        + torch.arange(w, dtype=torch.int32, device="cpu") // 4
    ) % 2
    return torch.maximum(x, 120 * squares)


def inversion(x: Tensor, generator: torch.Generator) -> Tensor:
    """Site 5."""
    return 255 - x


CAMERAS: tuple[Camera, ...] = (contrast, blur, rotation, noise, background, inversion)
"""By site."""


def _see(inputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The pictures as their sites see them, and each one's site, int64 [n]."""
    require(len(inputs) >= len(CAMERAS), f"{len(inputs)} pictures are too few for {len(CAMERAS)} sites")
    out, groups = inputs.clone(), torch.empty(len(inputs), dtype=torch.int64, device="cpu")
    order = torch.randperm(len(inputs), generator=generator, device="cpu")
    for site, (camera, rows) in enumerate(zip(CAMERAS, order.tensor_split(len(CAMERAS)), strict=True)):
        groups[rows] = site
        for start in range(0, len(rows), 2000):  # pictures at a time: the whole numbers take four times the bytes
            part = rows[start : start + 2000]
            out[part] = camera(inputs[part].to(torch.int32), generator).to(torch.uint8)
    return out, groups


def _moments(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of values from 0 to 1."""
    values = torch.arange(256, dtype=torch.float64, device="cpu") / 255
    counts = [inputs[:, c].flatten().bincount(minlength=256).double() for c in range(inputs.shape[1])]
    means = [float(n @ values / n.sum()) for n in counts]
    deviations = [float((n @ (values - m) ** 2 / n.sum()).sqrt()) for n, m in zip(counts, means, strict=True)]
    return tuple(round(m, 4) for m in means), tuple(round(d, 4) for d in deviations)
