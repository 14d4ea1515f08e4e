"""SST-2: English film reviews, phrases and sentences, negative (0) or positive (1).

R. Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment
Treebank", EMNLP 2013, in the form of GLUE (Wang et al., arXiv:1804.07461): 67,349 training
phrases and 872 sentences for development. GLUE keeps the labels of its test sentences, so
that those who report SST-2, the papers of this project among them, report the development
sentences: they are the test part here. Files with the labels of the 1,821 test sentences,
as the treebank has them, are read too, on request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from ..errors import DataError, require
from .dataset import DataSet
from .files import ByHand, obtain, read_text
from .texts import Texts
from .words import FIRST, bags, frequent

_ORIGIN = "take it out of https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
_COUNTS = {"train": 67_349, "dev": 872, "test": 1_821}
_MOST_BYTES = 8 << 20  # of one file; the largest has 3.7 MB


def sst2(
    data_dir: str | Path | None = None,
    download: bool = True,
    words: int = 20_000,
    length: int = 48,
    buckets: int = 0,
    part: Literal["dev", "test"] = "dev",
) -> DataSet:
    """Phrases as ids of their words: int64 [n, length], filled up with 0.

    The texts come in lower case with blanks between words and signs (``it 's``, ``does n't``)
    and are cut there. The vocabulary is the ``words`` most frequent in the training texts (it
    has 14,817 in all), and ``length`` words of a text are kept; 48 hold every sentence of the
    development part. ``buckets`` above 0 adds hashed bigrams, as another ``length`` columns
    (see :mod:`thinwire.data.words`). ``part`` says which sentences the set is tested on.
    Raises DataError for a missing or wrong file; nothing is downloaded.
    """
    require(words >= 1 and length >= 1 and buckets >= 0, "words and length must be at least 1, buckets at least 0")
    given = sst2_texts(data_dir, download, part)
    texts, test_texts = ([text.split() for text in part] for part in (given.texts, given.test_texts))
    known = frequent(texts, words)
    return DataSet(
        name=given.name,
        inputs=bags(texts, known, length, buckets),
        targets=torch.tensor(given.labels, device="cpu"),
        test_inputs=bags(test_texts, known, length, buckets),
        test_targets=torch.tensor(given.test_labels, device="cpu"),
        num_classes=2,
        vocabulary=FIRST + len(known) + buckets,
    )


def sst2_texts(
    data_dir: str | Path | None = None, download: bool = True, part: Literal["dev", "test"] = "dev"
) -> Texts:
    """The phrases as they are in the files, in the order of :func:`sst2`."""
    texts, labels = _read("train", data_dir, download)
    test_texts, test_labels = _read(part, data_dir, download)
    return Texts("sst2" if part == "dev" else "sst2_test", texts, test_texts, labels, test_labels, 2)


def _read(part: str, data_dir: str | Path | None, download: bool) -> tuple[list[str], list[int]]:
    """Every text, and its label; the header says which column is which."""
    path = obtain("sst2", ByHand(f"{part}.tsv", _ORIGIN), data_dir, download, forms=(f"{part}.tsv.gz",))
    header, *lines = read_text(path, _MOST_BYTES).replace("\r\n", "\n").removesuffix("\n").split("\n")
    names = header.split("\t")
    if sorted(names) != ["label", "sentence"]:
        hint = "; GLUE's test file has no labels" if names == ["index", "sentence"] else ""
        raise DataError(f"{path}: begins with {header[:40]!r} instead of the header label, sentence{hint}")
    if len(lines) != _COUNTS[part]:
        raise DataError(
            f"{path}: holds {len(lines):,} texts instead of {_COUNTS[part]:,}; it is truncated or another file"
        )
    where = names.index("label")
    rows = [line.split("\t") for line in lines]
    for row in rows:
        if len(row) != 2 or row[where] not in ("0", "1"):
            raise DataError(f"{path}: a line is not a label 0 or 1 and a sentence: {row!r:.80}")
    return [row[1 - where].strip() for row in rows], [int(row[where]) for row in rows]
