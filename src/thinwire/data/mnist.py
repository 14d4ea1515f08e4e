"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey pictures of 28 x 28 in 10 classes.

MNIST: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document
recognition", 1998. Fashion-MNIST: Xiao, Rasul, Vollgraf, arXiv:1708.07747.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..errors import DataError
from .dataset import DataSet
from .files import Official, obtain
from .idx import read_idx

MNIST_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # no https there: the sha256 vouches

# train images, train labels, test images, test labels
_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)


def mnist(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """Handwritten digits. Raises DataError for a missing or wrong file."""
    return _load("mnist", MNIST_ADDRESS, _MNIST_SHA256, data_dir, download, mean=0.1307, std=0.3081)


def fashion_mnist(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """Articles of clothing. Raises DataError for a missing or wrong file."""
    return _load("fashion_mnist", FASHION_ADDRESS, _FASHION_SHA256, data_dir, download, mean=0.2860, std=0.3530)


def _load(
    name: str,
    address: str,
    sha256: tuple[str, ...],
    data_dir: str | Path | None,
    download: bool,
    mean: float,
    std: float,
) -> DataSet:
    paths = [
        obtain(name, Official(file, address + file, digest), data_dir, download)
        for file, digest in zip(_FILES, sha256, strict=True)
    ]
    return DataSet(
        name=name,
        inputs=read_idx(paths[0], (60_000, 28, 28)).unsqueeze(1),
        targets=_labels(paths[1], 60_000),
        test_inputs=read_idx(paths[2], (10_000, 28, 28)).unsqueeze(1),
        test_targets=_labels(paths[3], 10_000),
        num_classes=10,
        mean=(mean,),
        std=(std,),
    )


def _labels(path: Path, count: int) -> Tensor:
    labels = read_idx(path, (count,)).long()
    if int(labels.max()) > 9:
        raise DataError(f"{path}: holds the label {int(labels.max())}; the classes are 0 to 9")
    return labels
