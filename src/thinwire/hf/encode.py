"""Columns as rows of token ids, and what of each row counts as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..errors import require
from ..losses import IGNORED
from .columns import Columns, column

Ids = list[list[int]]


class Encoded(NamedTuple):
    """Token ids of each example, and a label for each token where the data has them (-100: it does not count)."""

    ids: Ids
    labels: Ids | None


def encode(
    columns: Columns, who: str, text: str, tokenizer: Any, length: int | None, packed: bool, tokens: bool
) -> Encoded:
    """Texts through the tokenizer, at most ``length`` tokens each, or the column ``input_ids`` as it is.

    Of ``input_ids`` those are left out where the column ``attention_mask`` is 0, and without one the padding tokens at
    both ends. ``tokens``: whether a column ``labels`` has one for each token. A text that is to be packed is not cut.
    Raises ``ValueError``.
    """
    cut = None if packed else length
    if text in columns or "input_ids" not in columns:
        texts = column(columns, text, who, "text")
        odd = next((i for i, t in enumerate(texts) if not isinstance(t, str)), None)
        require(odd is None, f"{who}: {text!r} of example {odd} is no text")
        require(tokenizer is not None, f"{who} has texts: give the model's tokenizer, tokenizer=AutoTokenizer.from_...")
        about = {} if cut is None else {"truncation": True, "max_length": cut}
        ids, labels = [list(row) for row in tokenizer(list(texts), verbose=False, **about)["input_ids"]], None
        require(
            not (tokens and "labels" in columns),
            f"{who} has texts and labels of tokens: give the tokens that the labels belong to, in a column 'input_ids'",
        )
    else:
        ids = [_whole(row, i, who, "input_ids") for i, row in enumerate(columns["input_ids"])]
        labels = None
        if tokens and "labels" in columns:
            labels = [_whole(row, i, who, "labels") for i, row in enumerate(columns["labels"])]
            for i, (row, own) in enumerate(zip(ids, labels, strict=True)):
                require(
                    len(row) == len(own),
                    f"{who}: example {i} has {len(own)} labels for {len(row)} tokens: give one for each, {IGNORED} "
                    f"where a token does not count",
                )
        if "attention_mask" in columns:
            masks = columns["attention_mask"]
            odd = next((i for i, row in enumerate(ids) if len(masks[i]) != len(row)), None)
            require(odd is None, f"{who}: example {odd} has an attention_mask of another length than its input_ids")
        else:
            masks = [_mask(row, tokenizer) for row in ids]
        labels = None if labels is None else [_under(row, mask) for row, mask in zip(labels, masks, strict=True)]
        ids = [_under(row, mask) for row, mask in zip(ids, masks, strict=True)]
        ids = [row[:cut] for row in ids]
        labels = None if labels is None else [row[:cut] for row in labels]
    empty = [i for i, row in enumerate(ids) if not row]
    require(packed or not empty, f"{who}: example {empty[0] if empty else 0} has no tokens: leave it out")
    return Encoded(ids, labels)


def padding(tokenizer: Any, ids: Ids, packed: bool) -> int:
    """The id that rows are filled up with. Raises ``ValueError`` where rows have to be, and there is none."""
    fill = getattr(tokenizer, "pad_token_id", None)
    ragged = len({len(row) for row in ids}) > 1
    require(
        tokenizer is None or fill is not None or packed,
        "the tokenizer has no padding token: set one, tokenizer.pad_token = tokenizer.eos_token",
    )
    require(
        tokenizer is not None or packed or not ragged,
        "rows of different lengths have to be filled up: give the model's tokenizer, whose padding token is known",
    )
    return 0 if fill is None else int(fill)


def ending(tokenizer: Any) -> int:
    """The id that ends a text among packed ones. Raises ``ValueError`` where there is none."""
    end = getattr(tokenizer, "eos_token_id", None)
    require(
        end is not None,
        "packed=True ends each text by the tokenizer's eos_token, and there is none: set tokenizer.eos_token",
    )
    assert end is not None
    return int(end)


def _whole(row: Any, i: int, who: str, name: str) -> list[int]:
    """A row of whole numbers."""
    numbers = torch.as_tensor(row, device="cpu") if isinstance(row, Sequence) and not isinstance(row, str) else None
    fits = numbers is not None and numbers.ndim == 1 and (not numbers.is_floating_point() or not len(numbers))
    require(fits, f"{who}: {name!r} of example {i} is no row of whole numbers")
    assert numbers is not None
    plain: list[int] = numbers.tolist()
    return plain


def _mask(row: list[int], tokenizer: Any) -> list[int]:
    """0 for the padding tokens at the ends of a row; where padding is ``eos_token``, the one that ends it stays."""
    fill = getattr(tokenizer, "pad_token_id", None)
    there = [i for i, token in enumerate(row) if token != fill]
    if fill is None or not there:
        return [1] * len(row)
    last = there[-1] + (fill == getattr(tokenizer, "eos_token_id", None))
    return [int(there[0] <= i <= last) for i in range(len(row))]


def _under(row: list[int], mask: Sequence[int]) -> list[int]:
    return [token for token, there in zip(row, mask, strict=True) if there]
