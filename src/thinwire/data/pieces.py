"""Texts to continue, by owner: pieces that do not overlap, each with the one unit that follows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import require
from .dataset import DataSet


def cut(ids: Sequence[int], context: int) -> Tensor:
    """[n, context + 1]: the pieces of a text, and of each the id after it."""
    if len(ids) <= context:
        return torch.empty(0, context + 1, dtype=torch.int64, device="cpu")
    return torch.tensor(ids, device="cpu").unfold(0, context + 1, context)


def set_of_pieces(name: str, train: Sequence[Tensor], test: Sequence[Tensor], ids: int, short: str) -> DataSet:
    """The set of what :func:`cut` made of each owner's texts, with ids below ``ids``.

    Raises ValueError, whose text is ``short``, where no piece is left.
    """
    require(sum(map(len, train)) > 0 and sum(map(len, test)) > 0, short)
    pieces, test_pieces = torch.cat(list(train)), torch.cat(list(test))
    sizes = torch.tensor([len(part) for part in train], device="cpu")
    return DataSet(
        name=name,
        inputs=pieces[:, :-1].contiguous(),
        targets=pieces[:, 1:].contiguous(),
        test_inputs=test_pieces[:, :-1].contiguous(),
        test_targets=test_pieces[:, 1:].contiguous(),
        num_classes=ids,
        groups=torch.arange(len(train), device="cpu").repeat_interleave(sizes),
        vocabulary=ids,
    )
