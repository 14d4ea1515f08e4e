"""Columns as rows of token ids, and what of each row counts as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    require(
        not (text in columns and "input_ids" in columns),
        f"{who} has texts ({text!r}) and token ids ('input_ids'), which may differ: leave out one of the two",
    )
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
            labels = [_whole(row, i, who, "labels", IGNORED) for i, row in enumerate(columns["labels"])]
            for i, (row, own) in enumerate(zip(ids, labels, strict=True)):
                require(
                    len(row) == len(own),
                    f"{who}: example {i} has {len(own)} labels for {len(row)} tokens: give one for each, {IGNORED} "
                    f"where a token does not count",
                )
        _check_types(columns, who)
        if "attention_mask" in columns:
            masks = [_zeros_and_ones(row, i, who, "attention_mask") for i, row in enumerate(columns["attention_mask"])]
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


def _numbers(row: Any) -> Tensor | None:
    """A row of numbers; None for anything else."""
    if not isinstance(row, Sequence) or isinstance(row, str):
        return None
    try:
        numbers = torch.as_tensor(row, device="cpu")
    except (TypeError, ValueError, RuntimeError):  # of texts, of nothing, of rows
        return None
    return numbers if numbers.ndim == 1 else None


def _whole(row: Any, i: int, who: str, name: str, least: int = 0) -> list[int]:
    """A row of whole numbers from 0, or ``least``."""
    numbers = _numbers(row)
    fits = numbers is not None and not (len(numbers) and (numbers.is_floating_point() or numbers.dtype == torch.bool))
    require(fits, f"{who}: {name!r} of example {i} is no row of whole numbers")
    assert numbers is not None
    strange = numbers[(numbers < 0) & (numbers != least)]
    beside = f", and {least} is for one that does not count" if least else ""
    require(
        not len(strange),
        f"{who}: {name!r} of example {i} has {strange[0] if len(strange) else 0}: tokens count from 0{beside}",
    )
    plain: list[int] = numbers.tolist()
    return plain


def _zeros_and_ones(row: Any, i: int, who: str, name: str) -> list[int]:
    numbers = _numbers(row)
    fits = numbers is not None and bool(((numbers == 0) | (numbers == 1)).all())
    require(fits, f"{who}: {name!r} of example {i} is no row of 0 and 1")
    assert numbers is not None
    plain: list[int] = numbers.long().tolist()
    return plain


def _check_types(columns: Columns, who: str) -> None:
    """Raise ``ValueError`` for types of tokens: they are not given to the model."""
    for i, row in enumerate(columns.get("token_type_ids", ())):
        require(
            not any(row),
            f"{who}: example {i} has token_type_ids, of a pair of texts, and a model is given input_ids alone: write a "
            f"Task that gives it both (docs/own-task.md), or leave the column out",
        )


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
