"""Every data set by its name."""

from __future__ import annotations

from pathlib import Path

from ..errors import nearest
from .cifar import cifar10
from .dataset import DataSet
from .digits import digits
from .mnist import fashion_mnist, mnist
from .shakespeare import shakespeare

# What is read from files takes where they are, and whether they may be downloaded.
_FROM_FILES = {"cifar10": cifar10, "fashion_mnist": fashion_mnist, "mnist": mnist, "shakespeare": shakespeare}


def names() -> list[str]:
    """The names that :func:`load` knows, sorted."""
    return sorted([*_FROM_FILES, "digits"])


def load(name: str, data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """The data set of this name, in memory.

    Its files are looked for in ``data_dir``, in the folder named by ``THINWIRE_DATA`` and in
    the user's cache, and are otherwise downloaded into the cache (see
    :mod:`thinwire.data.files`). Raises ValueError for an unknown name, DataError for a file
    that is missing, truncated or of another kind, ImportError where a package is missing.
    """
    if name == "digits":
        return digits()
    if name not in _FROM_FILES:
        raise ValueError(f"no data set {name!r}{nearest(name, names())}; known are {', '.join(names())}")
    return _FROM_FILES[name](data_dir, download)
