"""EMNIST Letters: grey pictures of 28 x 28, 26 letters, capital and small ones in one class.

G. Cohen, S. Afshar, J. Tapson, A. van Schaik, "EMNIST: an extension of MNIST to handwritten
letters", 2017, arXiv:1702.05373.

Two forms are read, told apart by the names of their files, the counts in these, and the
range of their labels. The official files (``emnist-letters-train-images-idx3-ubyte.gz``
and so on, 124,800 + 20,800 pictures, each transposed, labels from 1) give the set
``emnist_letters``. A subset with upright pictures and labels from 0
(``train-images-idx3-ubyte.gz`` and so on, 52,000 + 20,800) gives the set
``emnist_letters_subset``: another name, since accuracies come out lower. In one folder the
official files are preferred. Writers are not noted: this is not FEMNIST.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..errors import DataError
from .dataset import DataSet
from .files import ByHand, obtain
from .idx import read_idx

_ORIGIN = (
    "take the folder gzip of https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip "
    "(https://www.nist.gov/itl/products-and-services/emnist-dataset), the four files emnist-letters-*"
)
_OFFICIAL = "emnist-letters-"  # before the names of the official files
_CLASSES = 26


def emnist_letters(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """The letters, upright, A = 0. Raises DataError for a missing or wrong file; nothing is downloaded."""
    images = "train-images-idx3-ubyte.gz"
    path = obtain("emnist_letters", ByHand(f"{_OFFICIAL}{images}", _ORIGIN), data_dir, download, forms=(images,))
    official = path.name.startswith(_OFFICIAL)
    count, first = (124_800, 1) if official else (52_000, 0)
    prefix = _OFFICIAL if official else ""

    def beside(name: str) -> Path:
        other = path.with_name(f"{prefix}{name}-ubyte.gz")
        if not other.exists():
            raise DataError(f"emnist_letters: {other.name} is missing beside {path.name}; put it at {other}")
        return other

    return DataSet(
        name="emnist_letters" if official else "emnist_letters_subset",
        inputs=_images(path, count, transposed=official),
        targets=_labels(beside("train-labels-idx1"), count, first),
        test_inputs=_images(beside("test-images-idx3"), 20_800, transposed=official),
        test_targets=_labels(beside("test-labels-idx1"), 20_800, first),
        num_classes=_CLASSES,
        mean=(0.1723,),
        std=(0.3311,),
    )


def _images(path: Path, count: int, transposed: bool) -> Tensor:
    images = read_idx(path, (count, 28, 28))
    return (images.transpose(1, 2).contiguous() if transposed else images).unsqueeze(1)


def _labels(path: Path, count: int, first: int) -> Tensor:
    labels = read_idx(path, (count,)).long()
    if (int(labels.min()), int(labels.max())) != (first, first + _CLASSES - 1):
        # Labels of the other form would train without an error, one class off.
        raise DataError(
            f"{path}: holds labels from {int(labels.min())} to {int(labels.max())} "
            f"instead of {first} to {first + _CLASSES - 1}"
        )
    return labels - first
