"""CIFAR-10: 50,000 + 10,000 colour pictures of 32 x 32 in 10 classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

Two forms are read. The original Python batches, as a folder ``cifar-10-batches-py`` or the
archive ``cifar-10-python.tar.gz``, give the set ``cifar10``. JPEG copies of all pictures
(``cifar10_train_jpeg.npz`` and ``cifar10_test_jpeg.npz``: arrays ``jpeg``, ``offset``,
``label``) give the set ``cifar10_jpeg``: another name, since they lose some detail and
accuracies come out lower. In one folder the original pixels are preferred.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .cifar_pickle import read_batch
from .dataset import DataSet
from .files import DAMAGED, Official, obtain
from .optional import optional

ARCHIVE = Official(
    "cifar-10-python.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
_FOLDER = "cifar-10-batches-py"
_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_PER_BATCH = 10_000
_MOST_BYTES = 64 << 20  # of one batch; the real ones have 31 MB
_TRAIN_JPEG, _TEST_JPEG = "cifar10_train_jpeg.npz", "cifar10_test_jpeg.npz"


def cifar10(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """The pictures, from whichever form is found first. Raises DataError for a wrong file.

    The JPEG copies lie sorted by class; they are given in a fixed shuffled order, so that
    the first n pictures are a fair sample, as in the original.
    """
    path = obtain("cifar10", ARCHIVE, data_dir, download, forms=(_FOLDER, _TRAIN_JPEG))
    if path.name == _TRAIN_JPEG:
        return _from_jpeg(path, path.with_name(_TEST_JPEG))
    return _from_batches(path)


def _from_batches(path: Path) -> DataSet:
    parts = [
        read_batch(data, _PER_BATCH, source=f"{path} ({name})")
        for name, data in zip(_BATCHES, _contents(path), strict=True)
    ]
    images, labels = [images for images, _ in parts], [labels for _, labels in parts]
    return DataSet(
        name="cifar10",
        inputs=torch.cat(images[:5]),
        targets=torch.cat(labels[:5]),
        test_inputs=images[5],
        test_targets=labels[5],
        num_classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )


def _contents(path: Path) -> list[bytes]:
    """The bytes of the six batches, out of the folder or straight out of the archive."""
    if path.is_dir():
        try:
            return [(path / name).read_bytes() for name in _BATCHES]
        except OSError as error:
            raise DataError(f"{path}: a batch cannot be read ({error})") from error
    batches = {}
    try:
        with tarfile.open(path, "r:gz") as archive:  # nothing is unpacked to disk
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(f"{_FOLDER}/")
                if name in _BATCHES and member.isfile() and member.size <= _MOST_BYTES:
                    file = archive.extractfile(member)
                    assert file is not None  # isfile() was true
                    batches[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a readable tar.gz archive ({error}); copy or download it again") from error
    missing = [name for name in _BATCHES if name not in batches]
    if missing:
        raise DataError(f"{path}: does not hold {', '.join(missing)} of at most {_MOST_BYTES:,} bytes each")
    return [batches[name] for name in _BATCHES]


def _from_jpeg(train: Path, test: Path) -> DataSet:
    if not test.exists():
        raise DataError(f"cifar10: {test.name} is missing beside {train.name}; put it at {test}")
    inputs, targets = _shuffle(*read_jpegs(train, 5 * _PER_BATCH))
    test_inputs, test_targets = _shuffle(*read_jpegs(test, _PER_BATCH))
    return DataSet(
        name="cifar10_jpeg",
        inputs=inputs,
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        num_classes=10,
        mean=(0.4913, 0.4821, 0.4465),
        std=(0.2452, 0.2428, 0.2606),
    )


def _shuffle(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0), device="cpu")
    return images[order], labels[order]


def read_jpegs(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """uint8 [count, 3, 32, 32] and int64 [count] of an npz file of JPEG pictures, in its order.

    Raises DataError that names the file, ImportError where Pillow is missing.
    """
    image = optional("PIL.Image", "reading the JPEG copies of cifar10")
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            jpeg, offset, label = file["jpeg"], file["offset"], file["label"]
    except (*DAMAGED, KeyError) as error:
        raise DataError(f"{path}: not a readable npz file with jpeg, offset and label ({error})") from error
    if offset.shape != (count + 1,) or label.shape != (count,):
        raise DataError(f"{path}: holds {label.size:,} labels and {offset.size - 1:,} pictures instead of {count:,}")
    if jpeg.dtype != np.uint8 or offset.dtype != np.int64 or label.dtype != np.uint8 or label.max() > 9:
        raise DataError(f"{path}: needs jpeg uint8, offset int64 and label uint8 from 0 to 9")
    if offset[0] != 0 or offset[-1] != jpeg.size or (np.diff(offset) <= 0).any():
        raise DataError(f"{path}: its offsets do not cut its {jpeg.size:,} bytes of pictures")
    data = jpeg.tobytes()
    images = np.empty((count, 32, 32, 3), dtype=np.uint8)
    for i in range(count):
        try:
            images[i] = _picture(image, data[offset[i] : offset[i + 1]])
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:  # SyntaxError: Pillow's own
            raise DataError(f"{path}: picture {i} cannot be read ({error})") from error
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(label).long()


def _picture(image: Any, data: bytes) -> Any:
    with image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
        if picture.size != (32, 32) or picture.mode != "RGB":  # looked at before a pixel is decoded
            raise ValueError(f"{picture.size} {picture.mode} instead of (32, 32) RGB")
        return np.asarray(picture)
