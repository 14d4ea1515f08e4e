"""The text classifier fastText: the mean of a text's words, and one dense layer.

A. Joulin, E. Grave, P. Bojanowski, T. Mikolov, "Bag of Tricks for Efficient Text
Classification", EACL 2017, arXiv:1607.01759.

Differences from the paper: a full softmax (its hierarchical one is for many classes), the
dense layer has a bias, and 16 units rather than 10.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import require

FILL = 0  # the id that fills texts up


def fasttext(vocabulary: int, classes: int, width: int = 16) -> nn.Module:
    """Ids int64 [n, length] below ``vocabulary``, 0 where there is no word, to logits [n, classes].

    vocabulary * width + (width + 1) * classes parameters. A text without a word has the bias as
    its logits. Raises ValueError for a vocabulary of no word.
    """
    require(vocabulary >= 2, f"vocabulary={vocabulary}: id 0 is no word, so that there must be 2 ids or more")
    return FastText(vocabulary, classes, width)


class FastText(nn.Module):
    """An embedding and a dense layer. The row of id 0 is there and stays 0."""

    def __init__(self, vocabulary: int, classes: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=FILL)
        self.dense = nn.Linear(width, classes)
        # As in the paper's code. torch's own N(0, 1) drowns the mean in noise: SST-2 stays below 61 %.
        nn.init.uniform_(self.words.weight, -1 / width, 1 / width)
        nn.init.zeros_(self.words.weight[FILL].detach())

    def forward(self, words: Tensor) -> Tensor:
        counts = (words != FILL).sum(dim=1, keepdim=True).clamp(min=1)  # [n, 1]
        out: Tensor = self.dense(self.words(words).sum(dim=1) / counts)  # the row of id 0 adds nothing
        return out
