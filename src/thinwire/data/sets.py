"""Every data set by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import nearest
from .ag_news import ag_news
from .cifar import cifar10
from .dataset import DataSet
from .digits import digits
from .emnist import emnist_letters
from .mnist import fashion_mnist, mnist
from .personachat import personachat, personachat_words
from .shakespeare import shakespeare
from .sst2 import sst2

# What is read from files takes where they are, and whether they may be downloaded.
_FROM_FILES: dict[str, Callable[[str | Path | None, bool], DataSet]] = {
    "ag_news": ag_news,
    "cifar10": cifar10,
    "emnist_letters": emnist_letters,
    "fashion_mnist": fashion_mnist,
    "mnist": mnist,
    "personachat": personachat,
    "personachat_words": personachat_words,
    "shakespeare": shakespeare,
    "sst2": sst2,
}


def names() -> list[str]:
    """The names that :func:`load` knows, sorted."""
    return sorted([*_FROM_FILES, "digits"])


def load(name: str, data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """The data set of this name, in memory.

    Its files are looked for in ``data_dir``, in the folder named by ``THINWIRE_DATA`` and in
    the user's cache, and are otherwise downloaded into the cache, where a set can be (see
    :mod:`thinwire.data.files`). Raises ValueError for an unknown name, DataError for a file
    that is missing, truncated or of another kind, ImportError where a package is missing.
    """
    if name == "digits":
        return digits()
    if name not in _FROM_FILES:
        raise ValueError(f"no data set {name!r}{nearest(name, names())}; known are {', '.join(names())}")
    return _FROM_FILES[name](data_dir, download)
