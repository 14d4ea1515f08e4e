"""VGG-11 and VGG-16 for small pictures, and a small one for CPUs.

K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
ICLR 2015, arXiv:1409.1556, configurations A and D. VGG-11 selects among models in FedSM (A. Xu et al.,
CVPR 2022; thesis, chapter 3).

Differences from the paper: those usual for CIFAR-10, one dense layer instead of three, which
takes the mean of what the last pool leaves (one pixel at 32 x 32, 8 x 8 at 256 x 256). A norm may follow each
convolution, whose bias is left out then, being undone by the norm.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import require
from .norm import check_size, normalise
from .pool import ChannelMean

# Convolutions of 3 x 3 by their channels; 0 is a pool of 2 x 2.
_VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
_SMALL = (32, 0, 64, 0, 128, 128, 0)


def vgg11(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, norm: str = "batch") -> nn.Module:
    """9,228,362 parameters at 3 channels and 10 classes, 9,225,610 without norms; 32 x 32 pixels or more.

    ``norm`` is "batch", "group" or "none". Raises ValueError for another one, or smaller pictures.
    """
    return VGG("vgg11", _VGG11, shape, classes, norm)


def vgg16(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, norm: str = "batch") -> nn.Module:
    """14,724,042 parameters at 3 channels and 10 classes, 14,719,818 without norms; 32 x 32 pixels or more.

    ``norm`` is "batch", "group" or "none". Raises ValueError for another one, or smaller pictures.
    """
    return VGG("vgg16", _VGG16, shape, classes, norm)


def vgg_small(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, norm: str = "group") -> nn.Module:
    """Four convolutions: 242,474 parameters at 3 channels and 10 classes; 8 x 8 pixels or more.

    ``norm`` is "batch", "group" or "none". Raises ValueError for another one, or smaller pictures.
    """
    return VGG("vgg_small", _SMALL, shape, classes, norm)


class VGG(nn.Module):
    """Convolutions and pools as ``plan`` says, the mean of each channel, a dense layer."""

    def __init__(self, name: str, plan: tuple[int, ...], shape: tuple[int, int, int], classes: int, norm: str) -> None:
        require(norm in ("batch", "group", "none"), f'norm must be "batch", "group" or "none", not {norm!r}')
        check_size(name, shape, 2 ** plan.count(0))
        super().__init__()
        channels = shape[0]
        layers: list[nn.Module] = []
        for outputs in plan:
            if outputs == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            conv = nn.Conv2d(channels, outputs, 3, padding=1, bias=norm == "none")
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
            layers += [conv] if norm == "none" else [conv, normalise(norm, outputs)]
            layers.append(nn.ReLU())
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.dense = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.features(x).mean(dim=(2, 3)))
        return out

    def chain(self) -> list[nn.Module]:
        """The modules in order, each of which takes what the one before gives: where a pipeline may cut."""
        return [*self.features, ChannelMean(), self.dense]
