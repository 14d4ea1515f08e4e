"""ResNet-9 without norms, for clients of a few pictures.

D. Page, "How to train your ResNet", 2018 (myrtle.ai; github.com/davidcpage/cifar10-fast), in
the form of FetchSGD (Rothchild et al., arXiv:2007.07682) and of intrinsic gradient compression
(paper 003: "6,570,880 trainable parameters", "does not have batch normalization").

What gives that number: Page's eight convolutions of 3 x 3, and his dense layer without a bias,
have 6,568,640 weights. The 2,240 that are missing are the number of the convolutions' outputs,
64 + 3 * 128 + 256 + 3 * 512: one number for each. Without norms these are the biases of the
convolutions. (Norms with a bias alone or a weight alone would give the same sum.)

Differences from Page's network: no norms, so biases, and He's initialisation, by which the
signal keeps its size through the layers without norms (torch's own lets it shrink). His fixed
factor of 0.125 on the outputs stays.
"""

from __future__ import annotations

from torch import Tensor, nn

from .norm import check_size

_SMALLEST = 8  # pixels a side: three pools leave one
_SCALE = 0.125  # of the outputs


def resnet9(shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """6,570,880 parameters at 3 channels and 10 classes.

    Raises ValueError for pictures below 8 x 8.
    """
    check_size("resnet9", shape, _SMALLEST)
    return ResNet9(shape[0], classes)


class ResNet9(nn.Module):
    """Convolutions of 64, 128, 256 and 512 channels; two residual branches; the largest of each channel; dense."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.prep = _conv(channels, 64)
        self.layer1 = nn.Sequential(_conv(64, 128), nn.MaxPool2d(2), _Residual(128))
        self.layer2 = nn.Sequential(_conv(128, 256), nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(_conv(256, 512), nn.MaxPool2d(2), _Residual(512))
        self.dense = nn.Linear(512, classes, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # all of them have one

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.prep(x))))  # [n, 512, height / 8, width / 8]
        out: Tensor = self.dense(x.amax(dim=(2, 3)))
        return out * _SCALE


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _conv(channels, channels)
        self.second = _conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(self.first(x))
        return out


def _conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())
