"""AG News: short English news in 4 classes: world, sports, business, science and technology.

X. Zhang, J. Zhao, Y. LeCun, "Character-level Convolutional Networks for Text
Classification", NIPS 2015, arXiv:1509.01626; the corpus is A. Gulli's. For research, not for
commercial use.

Two forms of the training texts are read. ``train.csv`` as published (120,000 texts) gives the
set ``ag_news``. A subset of 14,504 (``train_subset.tsv.gz``: label, form, text; two thirds
of the texts without their titles) gives the set ``ag_news_subset``: another name, since
accuracies come out lower. In one folder the whole set is preferred. The 7,600 test texts
are the published ones for both.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import torch

from ..errors import DataError, require
from .dataset import DataSet
from .files import Official, obtain, read_text
from .texts import Texts
from .words import FIRST, bags, frequent

_ADDRESS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
TRAIN = Official(
    "train.csv", f"{_ADDRESS}train.csv", "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"
)
TEST = Official("test.csv", f"{_ADDRESS}test.csv", "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699")
_SUBSET = "train_subset.tsv.gz"
_COUNT, _SUBSET_COUNT, _TEST_COUNT = 120_000, 14_504, 7_600
_MOST_BYTES = 32 << 20  # of one file; the largest has 29,470,338
_CLASSES = 4
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_APOSTROPHE = re.compile(r" ?#39;")  # what is left of &#39; in this corpus, often with a blank before it

_Rows = tuple[list[str], list[int]]  # every text, and its class


def ag_news(
    data_dir: str | Path | None = None,
    download: bool = True,
    words: int = 20_000,
    length: int = 64,
    buckets: int = 0,
) -> DataSet:
    """Title and description as ids of their words: int64 [n, length], filled up with 0.

    A word is a run of the letters a to z and digits, in lower case, with what follows an
    apostrophe; everything else is left out. The vocabulary is the ``words`` most frequent in
    the training texts, and ``length`` words of a text are kept. ``buckets`` above 0 adds
    hashed bigrams, as another ``length`` columns (see :mod:`thinwire.data.words`). The subset
    lies sorted by its sources; it is given in a fixed shuffled order. Raises DataError for a
    missing or wrong file.
    """
    require(words >= 1 and length >= 1 and buckets >= 0, "words and length must be at least 1, buckets at least 0")
    given = ag_news_texts(data_dir, download)
    texts, test_texts = ([tokens(text) for text in part] for part in (given.texts, given.test_texts))
    known = frequent(texts, words)
    return DataSet(
        name=given.name,
        inputs=bags(texts, known, length, buckets),
        targets=torch.tensor(given.labels, device="cpu"),
        test_inputs=bags(test_texts, known, length, buckets),
        test_targets=torch.tensor(given.test_labels, device="cpu"),
        num_classes=_CLASSES,
        vocabulary=FIRST + len(known) + buckets,
    )


def ag_news_texts(data_dir: str | Path | None = None, download: bool = True) -> Texts:
    """Title and description as they are printed, in the order of :func:`ag_news`."""
    path = obtain("ag_news", TRAIN, data_dir, download, forms=("train.csv.gz", _SUBSET))
    test_path = obtain("ag_news", TEST, data_dir, download, forms=("test.csv.gz",))
    whole = path.name != _SUBSET
    texts, labels = _read_published(path, _COUNT) if whole else _subset(path)
    if not whole:
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(labels), generator=generator, device="cpu").tolist()
        texts, labels = [texts[i] for i in order], [labels[i] for i in order]
    test_texts, test_labels = _read_published(test_path, _TEST_COUNT)
    return Texts("ag_news" if whole else "ag_news_subset", texts, test_texts, labels, test_labels, _CLASSES)


def tokens(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def _read_published(path: Path, count: int) -> _Rows:
    """Rows of class 1 to 4, title, description; all quoted, no header."""
    try:
        rows = list(csv.reader(io.StringIO(read_text(path, _MOST_BYTES), newline="")))
    except csv.Error as error:
        raise DataError(f"{path}: not a readable csv file ({error})") from error
    return _rows(path, rows, count)


def _subset(path: Path) -> _Rows:
    """Lines of class 1 to 4, form, text, below a header."""
    header, *lines = read_text(path, _MOST_BYTES).removesuffix("\n").split("\n")
    if header != "label\tform\ttext":
        raise DataError(f"{path}: begins with {header[:40]!r} instead of the header label, form, text")
    rows = [[label, "", text] for label, _, text in (_three(path, line) for line in lines)]
    return _rows(path, rows, _SUBSET_COUNT)


def _three(path: Path, line: str) -> list[str]:
    cells = line.split("\t")
    if len(cells) != 3:
        raise DataError(f"{path}: a line has {len(cells)} columns instead of 3: {line[:60]!r}")
    return cells


def _rows(path: Path, rows: list[list[str]], count: int) -> _Rows:
    if len(rows) != count:
        raise DataError(f"{path}: holds {len(rows):,} texts instead of {count:,}; it is truncated or another file")
    for row in rows:
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise DataError(f"{path}: a row is not a class from 1 to 4, a title and a description: {row!r:.80}")
    texts = [_APOSTROPHE.sub("'", f"{title} {text}".strip()) for _, title, text in rows]
    return texts, [int(label) - 1 for label, _, _ in rows]
