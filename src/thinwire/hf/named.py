"""A set of texts that thinwire loads, and a pretrained model by its name, as a problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ..data import Split
from ..data.ag_news import ag_news_texts
from ..data.personachat import personachat_texts
from ..data.shakespeare import shakespeare_texts
from ..data.sst2 import sst2_texts
from ..data.texts import Texts
from ..dice import seeded
from ..errors import nearest, require, require_whole
from ..key import Key
from ..problem import Problem, call
from .build import problem
from .pretrained import PRETRAINED, Numbers, load_tokenizer, make_adapted, pretrained_names

TEXTS: dict[str, Callable[..., Texts]] = {
    "ag_news": ag_news_texts,
    "personachat": personachat_texts,
    "shakespeare": shakespeare_texts,
    "sst2": sst2_texts,
}
"""A set's loader of texts by its name."""

LENGTH = 64  # tokens of a row
RANK = 32  # of adapters


def load_texts(name: str, data_dir: str | Path | None = None, download: bool = True) -> Texts:
    """The set of this name as texts. Raises ``ValueError`` for an unknown one, :class:`DataError` for its files."""
    require(name in TEXTS, f"no set of texts {name!r}{nearest(name, TEXTS)}; known are {', '.join(sorted(TEXTS))}")
    return TEXTS[name](data_dir, download)


def from_typed(typed: str, data: str, **about: Any) -> Problem:
    """What ``thinwire run --hf`` names: ``minilm``, ``smollm2``, or ``my_module:make_model`` of the user's own.

    That function returns a model, or a function that makes it, and its tokenizer. It is called with ``classes``, the
    number of classes or None for texts to continue, if it takes that. What it draws begins at the seed, as what a
    function that makes a model draws. Raises ``ValueError``, naming the option.
    """
    require(
        data in TEXTS,
        f"--hf {typed}: --data {data} has no texts{nearest(data, TEXTS)}; take one of {', '.join(sorted(TEXTS))}",
    )
    if ":" not in typed:
        return standard(data, typed, **about)
    given = load_texts(data, about["data_dir"])
    with seeded(Key(about["seed"]).number("model")):
        made = call(typed, f"--hf {typed}", {"classes": given.num_classes})
    require(
        isinstance(made, tuple) and len(made) == 2,
        f"--hf {typed}: it returned {type(made).__name__}, not (model, tokenizer)",
    )
    return standard(given, made[0], tokenizer=made[1], **about)


def standard(
    data: str | Texts,
    model: str | Callable[[], nn.Module] | nn.Module,
    *,
    tokenizer: Any = None,
    clients: int | None = None,
    split: Split | None = None,
    seed: int = 0,
    holdout: float = 0.0,
    rank: int = RANK,
    length: int = LENGTH,
    dtype: Numbers | str = "float32",
    data_dir: str | Path | None = None,
) -> Problem:
    """A set of texts dealt to clients, with a pretrained model and adapters on its queries and values.

    ``data`` is one of ``ag_news``, ``sst2`` (to classify), ``personachat`` and ``shakespeare`` (to continue, packed
    into rows of ``length`` tokens), or such a set. ``model`` is ``minilm`` or ``smollm2`` with adapters of ``rank``
    on a base in ``dtype`` ("float32", or "bfloat16" of half the memory), or a model of the caller's own, or a function
    that makes it, with its ``tokenizer``. Other arguments are those of
    :func:`thinwire.hf.problem`: owners of texts are clients where ``split`` does not say otherwise.

    Raises ``ValueError`` for an unknown name, and for texts to continue with ``minilm``, which continues none.
    """
    require_whole(rank=rank)
    given = load_texts(data, data_dir) if isinstance(data, str) else data
    causal = given.labels is None
    if isinstance(model, str):
        known = ", ".join(pretrained_names())
        require(
            model in PRETRAINED,
            f"model={model!r}{nearest(model, PRETRAINED)}: by name there are {known}, and no hub is asked; give the "
            f"model itself, or a function that makes it",
        )
        require(
            not causal or model != "minilm",
            f"model='minilm' is an encoder, and {given.name} has texts to continue: take 'smollm2', or ag_news or sst2",
        )
        tokenizer = tokenizer or load_tokenizer(model)
        model = make_adapted(model, given.num_classes, rank, dtype)
    else:
        require(dtype == "float32", f"dtype={dtype!r} is of a model by name: give your own model in it")
        require(rank == RANK, f"rank={rank} is of a model by name: give your own model with its adapters")
    columns, test = ({"text": texts} for texts in (given.texts, given.test_texts))
    labels = {} if causal else {"label": given.labels}, {} if causal else {"label": given.test_labels}
    return problem(
        model,
        columns | labels[0],
        test=test | labels[1],
        task="causal-lm" if causal else "classification",
        tokenizer=tokenizer,
        clients=clients,
        split=split,
        seed=seed,
        holdout=holdout,
        groups=given.owners,
        length=length,
        packed=causal,
    )
