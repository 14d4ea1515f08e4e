"""Texts as ids of their words, all of one length.

0 fills up, 1 stands for every word outside the vocabulary, then come the words of the
vocabulary, the most frequent first, then the buckets of the bigrams. A bigram, two words
that follow one another, has the bucket ``(116049371 * crc32(first) + crc32(second)) mod
buckets``, as in fastText (Joulin et al., arXiv:1607.01759; its hash of a word is another
one). The words themselves are hashed, also those outside the vocabulary.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

FILL, UNKNOWN, FIRST = 0, 1, 2  # ids: no word, a word outside the vocabulary, the most frequent word
_FACTOR = 116049371


def frequent(texts: Sequence[Sequence[str]], most: int) -> list[str]:
    """The ``most`` frequent words, the most frequent first; those equally frequent in the order of their characters."""
    counts = Counter(word for text in texts for word in text)
    return sorted(counts, key=lambda word: (-counts[word], word))[:most]


def bags(texts: Sequence[Sequence[str]], words: Sequence[str], length: int, buckets: int = 0) -> Tensor:
    """The first ``length`` words of each text as ids: int64 [n, length].

    With ``buckets`` the bigrams among these words follow, in columns of their own: int64
    [n, 2 * length]. The last of these is always empty: n words have n - 1 bigrams.
    """
    kept = [text[:length] for text in texts]
    flat = [word for text in kept for word in text]
    filled = np.arange(length) < np.array([len(text) for text in kept])[:, None]  # [n, length]
    index = {word: FIRST + i for i, word in enumerate(words)}
    ids = np.full(filled.shape, FILL, np.int64)
    ids[filled] = np.fromiter((index.get(word, UNKNOWN) for word in flat), np.int64, len(flat))
    if not buckets:
        return torch.from_numpy(ids)
    crc = {word: zlib.crc32(word.encode()) for word in set(flat)}
    hashes = np.zeros(filled.shape, np.uint64)
    hashes[filled] = np.fromiter((crc[word] for word in flat), np.uint64, len(flat))
    both = filled[:, 1:]  # a word with one before it
    hashed = (hashes[:, :-1] * np.uint64(_FACTOR) + hashes[:, 1:]) % np.uint64(buckets)  # below 2^59 before mod
    pairs = np.full(filled.shape, FILL, np.int64)
    pairs[:, :-1][both] = FIRST + len(words) + hashed[both].astype(np.int64)
    return torch.from_numpy(np.concatenate([ids, pairs], axis=1))
