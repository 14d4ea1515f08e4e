"""A transformers or PEFT model and texts, as a problem that every method trains."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..data import IID, Natural, Split
from ..errors import nearest, require, require_whole
from ..losses import IGNORED
from ..problem import CLIENTS, Problem, deal, hold_out
from .columns import Columns, as_columns, class_labels, column
from .encode import encode, ending, padding
from .models import Needs, check_model
from .rows import Rows, pack
from .tasks import CausalLM, TextClassification

Kind = Literal["causal-lm", "classification"]


def problem(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    *,
    clients: int | None = None,
    split: Split | None = None,
    task: Kind | str,
    tokenizer: Any = None,
    seed: int = 0,
    length: int | None = None,
    groups: str | Sequence[Hashable] | None = None,
    packed: bool = False,
    test: Any = None,
    holdout: float = 0.0,
    text: str = "text",
    label: str = "label",
) -> Problem:
    """A :class:`thinwire.problem.Problem` of texts dealt to clients, for a model that gives ``logits``.

    ``model`` is a transformers model, a PEFT model around one, or a function that makes it. Parameters that require
    gradients are trained and sent, and no others: of a LoRA model its adapters and what ``modules_to_save`` names.

    ``data`` is a ``datasets.Dataset``, a dict of columns, a list of dicts (``{"text": ..., "label": ...}``), or a pair
    of texts, or token ids, and labels; texts to continue may be a list of texts. ``text`` and ``label`` name the
    columns. A column ``input_ids`` in place of texts has token ids, of which those are left out where a column
    ``attention_mask`` is 0.

    - ``task="classification"``: labels are whole numbers from 0, one a text; a text of -100 does not count.
    - ``task="causal-lm"``: each token from those before it. Beside ``input_ids`` a column ``labels`` has one for each
      token, -100 where it does not count; else all tokens count.

    ``tokenizer`` is the model's. ``length`` is how many tokens of a text are kept; None keeps all. Rows of a batch are
    filled up on the right to its longest, with the padding token, which is masked. ``packed`` joins a client's texts,
    each ended by ``eos_token``, and cuts them into rows of ``length`` (of ``causal-lm`` only); attention goes across
    the texts of a row, and a client's last row may be shorter.

    ``groups`` are the owners of texts: a column's name, or a value a text. ``split`` deals by label or owner; it is
    ``Natural()`` where there are groups, else ``IID()``. ``clients`` is the number of groups where there are any, else
    20. ``test`` is data of the same form, for everyone; ``holdout`` is the share of each client's texts that are kept
    for its own test. ``seed`` decides who has what.

    Raises ``ValueError`` for a model without trainable parameters, for one that sees what it is to foretell, and for
    data or a tokenizer that do not fit.
    """
    known = get_args(Kind)
    require(task in known, f"task={task!r}: {' and '.join(map(repr, known))} are known{nearest(str(task), known)}")
    causal = task == "causal-lm"
    require_whole(clients=clients, seed=seed, length=length)
    require(clients is None or clients > 0, f"clients={clients}: it must be at least 1")
    require(0 <= holdout < 1, f"holdout={holdout}: it is a share below 1")
    require(length is None or length > 1, f"length={length}: a row has at least 2 tokens")
    require(causal or not packed, "packed=True joins texts, and a class belongs to one: it is of task='causal-lm'")
    require(not packed or length is not None, "packed=True cuts rows of `length` tokens: give length=, such as 128")
    _check_given(model)

    def encode_rows(data: Any, who: str) -> tuple[Columns, list[list[int]], list[list[int]] | None]:
        columns = as_columns(data, who, "labels" if causal else label)
        ids, labels = encode(columns, who, text, tokenizer, length, packed, causal)
        require(not (packed and labels), f"packed=True: {who} has labels of tokens; pack the rows beforehand")
        return columns, ids, labels

    columns, ids, token_labels = encode_rows(data, "data")
    there = None if test is None else encode_rows(test, "test")
    fill = padding(tokenizer, ids + (there[1] if there else []), packed)
    owners = None if groups is None else _owners(groups, columns, len(ids))

    def classes(columns: Columns, who: str) -> Tensor:
        name = label if label in columns or "labels" not in columns else "labels"
        return class_labels(column(columns, name, who, "label"), f"{who}: labels")

    def task_of(
        columns: Columns, ids: list[list[int]], labels: list[list[int]] | None, who: str
    ) -> Callable[[Tensor], CausalLM | TextClassification]:
        """Rows that all share, as the task of some of them."""
        if not causal:
            rows, each = Rows.of(ids), classes(columns, who)
            return lambda part: TextClassification(rows, each, part, fill)
        if packed:
            assert length is not None
            size, end = length, ending(tokenizer)

            def join_part(part: Tensor) -> CausalLM:
                rows = Rows.of(pack([ids[i] for i in part.tolist()], size, end))
                return CausalLM(rows, rows, torch.arange(len(rows), device="cpu"), fill)

            return join_part
        rows = Rows.of(ids)
        targets = rows if labels is None else Rows.of(labels)
        return lambda part: CausalLM(rows, targets, part, fill)

    make = task_of(columns, ids, token_labels, "data")
    number = clients or (CLIENTS if owners is None else int(owners.max()) + 1)
    # Texts to continue have no label to be dealt by.
    by = torch.zeros(len(ids), 1, dtype=torch.int64, device="cpu") if causal else classes(columns, "data")
    parts = deal(split or (IID() if owners is None else Natural()), by, owners, number, seed)
    parts, kept = hold_out(parts, holdout, seed)
    tasks, tests = [make(part) for part in parts], [make(part) for part in kept] or None
    shared = None if there is None else task_of(*there, "test")(_all(there[1]))
    everything = [*tasks, *(tests or []), *([] if shared is None else [shared])]
    for who, some in ("data", tasks), ("test", [] if shared is None else [shared]):
        require(
            not some or any(map(_counts, some)),
            f"{who}: nothing counts: every label is {IGNORED}, a row's first token is no target, and length= may have "
            f"cut the others away",
        )
    return Problem(_checked(model, everything, fill, tokenizer), tasks, shared, tests)


def _all(ids: Sequence[Any]) -> Tensor:
    return torch.arange(len(ids), device="cpu")


def _counts(task: CausalLM | TextClassification) -> bool:
    """Whether any target of a client's counts."""
    if isinstance(task, TextClassification):
        return bool((task.labels[task.indices] != IGNORED).any())
    counts = task.labels.flat != IGNORED
    counts[task.labels.edges[:-1]] = False
    return bool(counts.any())


def _owners(groups: str | Sequence[Hashable], columns: Columns, examples: int) -> Tensor:
    """The owner of each text, numbered in the order in which they come."""
    each = column(columns, groups, "data", "groups") if isinstance(groups, str) else _values(groups)
    require(len(each) == examples, f"groups has {len(each)} owners for {examples} texts: give one for each")
    for i, owner in enumerate(each):
        fits = owner is not None and isinstance(owner, Hashable) and owner == owner
        require(fits, f"the owner of example {i} is {owner!r}: groups are names or numbers, one for each text")
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(owner, len(numbers)) for owner in each], device="cpu")


def _values(groups: Any) -> Sequence[Hashable]:
    plain: Sequence[Hashable] = groups.tolist() if hasattr(groups, "tolist") else groups
    return plain


def _check_given(model: Any) -> None:
    """Raise ``ValueError`` unless a model is a module, or makes one."""
    if isinstance(model, str):
        raise ValueError(
            f"model={model!r} is a name, and nothing is fetched here: give the model, "
            f"AutoModelFor....from_pretrained({model!r}), or a function that makes it"
        )
    fits = isinstance(model, nn.Module) or callable(model)
    require(fits, f"model is of type {type(model).__name__}: give a model, or a function that makes one")


def _checked(model: Any, tasks: Sequence[Any], fill: int, tokenizer: Any) -> Any:
    """The model, or a function that makes it, once it is known to fit these tasks."""
    needs = Needs.of(tasks, fill, ragged=tokenizer is not None)
    if isinstance(model, nn.Module):
        check_model(model, needs)
        return model

    @wraps(model)
    def make() -> nn.Module:
        made: nn.Module = model()
        if isinstance(made, nn.Module):  # whoever calls says what else it is
            check_model(made, needs)
        return made

    return make
