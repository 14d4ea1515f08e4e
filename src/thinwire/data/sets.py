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
from .feature_shift import fashion_sites
from .mnist import fashion_mnist, mnist
from .personachat import personachat, personachat_words
from .retina import retina, retina_256
from .shakespeare import shakespeare
from .sst2 import sst2

LOADERS: dict[str, Callable[[str | Path | None, bool], DataSet]] = {
    "ag_news": ag_news,
    "cifar10": cifar10,
    "digits": digits,
    "emnist_letters": emnist_letters,
    "fashion_mnist": fashion_mnist,
    "fashion_sites": fashion_sites,
    "mnist": mnist,
    "personachat": personachat,
    "personachat_words": personachat_words,
    "retina": retina,
    "retina_256": retina_256,
    "shakespeare": shakespeare,
    "sst2": sst2,
}
"""A set's loader by its name. A loader takes the folder of files, or None, and whether it may download."""


def names() -> list[str]:
    """The names that :func:`load` knows, sorted."""
    return sorted(LOADERS)


def load(name: str, data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """The data set of this name, in memory.

    Its files are looked for in ``data_dir``, in the folder named by ``THINWIRE_DATA`` and in
    the user's cache, and are otherwise downloaded into the cache, where a set can be (see
    :mod:`thinwire.data.files`). Raises ValueError for an unknown name, DataError for a file
    that is missing, truncated or of another kind, ImportError where a package is missing.
    """
    if name not in LOADERS:
        raise ValueError(f"no data set {name!r}{nearest(name, names())}; known are {', '.join(names())}")
    return LOADERS[name](data_dir, download)
