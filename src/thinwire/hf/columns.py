"""Data as people have it, as columns: a ``datasets.Dataset``, dicts, texts, or a pair of inputs and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import require
from ..losses import IGNORED

Columns = dict[str, Sequence[Any]]


def as_columns(data: Any, who: str, labelled: str) -> Columns:
    """The columns of ``data`` by name, all of one length.

    ``labelled`` is the name of the second of a pair. The first, and what is given alone, is ``text`` if it is of
    texts, else ``input_ids``. Raises ``ValueError``, beginning with ``who``, for what is none of these.
    """
    kinds = "a datasets.Dataset, a list of dicts, a list of texts, or a pair (texts, labels)"
    if isinstance(data, str):
        raise ValueError(f"{who} is the text {data!r:.40}, and nothing is looked up by name here: give {kinds}")
    names: Any = getattr(data, "column_names", list(data) if isinstance(data, Mapping) else None)
    if isinstance(names, Mapping) or (isinstance(data, Mapping) and any(_is_table(v) for v in data.values())):
        parts = ", ".join(map(repr, names))
        raise ValueError(f"{who} is several data sets ({parts}): give one of them, data[{next(iter(names))!r}]")
    if isinstance(data, Mapping):
        single = next((n for n, v in data.items() if isinstance(v, str) or not hasattr(v, "__iter__")), None)
        require(single is None, f"{who}: column {single!r} has no list of values, one an example")
    if names is not None:
        columns = {str(name): _plain(data[name]) for name in names}
    elif isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | dict):
        columns = {_name(data[0]): _plain(data[0]), labelled: _plain(data[1])}
    elif isinstance(data, Sequence | Tensor | np.ndarray) and len(data) and isinstance(data[0], dict):
        columns = _of_dicts(list(data), who)
    elif isinstance(data, Sequence | Tensor | np.ndarray):
        columns = {_name(data): _plain(data)}
    else:
        raise ValueError(f"{who} is of type {type(data).__name__}: give {kinds}")
    sizes = {name: len(values) for name, values in columns.items()}
    require(len(set(sizes.values())) <= 1, f"{who} has columns of different lengths: {sizes}")
    require(bool(sizes) and min(sizes.values()) > 0, f"{who} has no examples")
    return columns


def column(columns: Columns, name: str, who: str, option: str) -> Sequence[Any]:
    """The column of that name. Raises ``ValueError`` with those that there are; ``option`` is what names another."""
    there = ", ".join(map(repr, columns))
    require(name in columns, f"{who} has no column {name!r}: it has {there}; {option}= names the one that is meant")
    return columns[name]


def class_labels(values: Sequence[Any], who: str) -> Tensor:
    """A column of classes as int64. Raises ``ValueError`` for anything but whole numbers from 0, or -100."""
    kinds = {type(value) for value in values}
    odd = next((kind for kind in kinds if not issubclass(kind, int | np.integer)), None)
    require(
        odd is None,
        f"{who} are of type {odd.__name__ if odd else ''}: classes are whole numbers from 0, one a text; number them "
        f"by sorted(set(labels)).index",
    )
    labels = torch.tensor([int(value) for value in values], dtype=torch.int64, device="cpu")
    strange = labels[(labels < 0) & (labels != IGNORED)]
    require(not len(strange), f"{who} have the class {int(strange[0]) if len(strange) else 0}: classes count from 0")
    return labels


def _is_table(value: Any) -> bool:
    return hasattr(value, "column_names")


def _name(values: Any) -> str:
    return "text" if len(values) and isinstance(values[0], str) else "input_ids"


def _plain(values: Any) -> Sequence[Any]:
    """Tensors and arrays as lists, and the same of their rows."""
    if isinstance(values, Tensor | np.ndarray):
        plain: list[Any] = values.tolist()
        return plain
    return [v.tolist() if isinstance(v, Tensor | np.ndarray) else v for v in values]


def _of_dicts(rows: Sequence[Any], who: str) -> Columns:
    names = list(rows[0])
    for i, row in enumerate(rows):
        short = [name for name in names if name not in row]
        require(not short, f"{who}: example {i} has no {short[:1]}, which example 0 has")
    return {name: _plain([row[name] for row in rows]) for name in names}
