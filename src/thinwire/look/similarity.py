"""How alike two pictures are: the peak signal-to-noise ratio, and the structural similarity.

Wang, Bovik, Sheikh, Simoncelli, "Image Quality Assessment: From Error Visibility to Structural Similarity", IEEE
Transactions on Image Processing 2004, of which :func:`ssim` is the form with windows of equal weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..errors import require


def psnr(x: Float[Tensor, "..."], y: Float[Tensor, "..."], most: float = 1.0) -> float:
    """The peak signal-to-noise ratio in dB, 10 log10(most^2 / mean (x - y)^2); infinite where they are the same."""
    error = (x.double() - y.double()).square().mean()
    return float(10 * torch.log10(most**2 / error))


def ssim(x: Float[Tensor, "c h w"], y: Float[Tensor, "c h w"], most: float = 1.0) -> float:
    """The structural similarity, 1 for equal pictures: its mean over channels and over windows of 7 x 7 pixels.

    Windows lie wholly in the picture, count all pixels alike and have unbiased variances, with K1 = .01 and K2 = .03:
    the defaults of ``skimage.metrics.structural_similarity``. Smaller pictures have the largest odd window that fits.
    """
    side = min(7, *(s - (s + 1) % 2 for s in x.shape[1:]))
    require(side > 1, f"pictures of {x.shape[1]} x {x.shape[2]} pixels are too small for SSIM: 3 x 3 at least")
    unbiased = side**2 / (side**2 - 1)

    def mean(z: Tensor) -> Tensor:
        return F.avg_pool2d(z[None].double(), side, stride=1)[0]

    mx, my = mean(x), mean(y)
    xx, yy, xy = (unbiased * (mean(a * b) - ma * mb) for a, b, ma, mb in _pairs(x.double(), y.double(), mx, my))
    c1, c2 = (0.01 * most) ** 2, (0.03 * most) ** 2
    value = (2 * mx * my + c1) * (2 * xy + c2) / ((mx**2 + my**2 + c1) * (xx + yy + c2))
    return float(value.mean())


def _pairs(x: Tensor, y: Tensor, mx: Tensor, my: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    return [(x, x, mx, mx), (y, y, my, my), (x, y, mx, my)]
