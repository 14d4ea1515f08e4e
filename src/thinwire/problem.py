"""What is trained, and who has what of it: a model, tasks for clients, a test set."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from . import data as sets
from . import models
from .data import Augment, DataSet, Split
from .dice import seeded
from .errors import nearest, require, require_whole
from .key import Key
from .losses import each_mask, masks
from .models.cnn import SMALLEST
from .task import Supervised, positions

CLIENTS = 20  # of a set without sites, where no number is given


@dataclass(frozen=True)
class Problem:
    """Everything of a run but the method: what a user's ``make_task`` returns.

    ``model`` is a function that makes the module (called under the run's seed) or a module;
    ``tasks`` one a client, ``test`` for everyone, ``client_tests`` one a client. A task is
    a :class:`thinwire.Task`, a Dataset of pairs, or a pair of tensors.
    """

    model: nn.Module | Callable[[], nn.Module]
    tasks: Sequence[Any]
    test: Any = None
    client_tests: Sequence[Any] | None = None


def standard(
    data: str | DataSet,
    model: str | None = None,
    clients: int | None = None,
    split: Split | None = None,
    seed: int = 0,
    holdout: float = 0.0,
    data_dir: str | Path | None = None,
    augment: Sequence[Augment] = (),
    unseen: int | None = None,
) -> Problem:
    """A data set that thinwire loads, dealt to clients, with one of its models.

    ``model`` defaults to ``unet`` for pictures with masks, ``fedavg_cnn`` for other pictures of 16 x 16 pixels and
    more, ``fasttext`` for texts to classify, ``char_transformer`` for texts to continue and ``mlp`` for anything else.
    ``clients`` defaults to the number of sites of a set that has sites (:class:`thinwire.data.DataSet`), else to 20.
    ``split`` defaults to the owners the data came with, else IID. ``holdout`` is the share
    of each client's examples that are kept for its own test. Without it a client that is a site has the site's test
    examples as its own test. ``augment`` changes the pictures of every training batch.

    ``unseen`` is a site that takes no part: its training examples are left out, and the shared test is its own test
    alone. Raises ``ValueError`` for it where the set has no sites.
    """
    require_whole(clients=clients, seed=seed, unseen=unseen)
    require(clients is None or clients > 0, f"clients={clients}: it must be at least 1")
    require(0 <= holdout < 1, f"holdout={holdout}: it is a share below 1")
    require(
        split is None or (callable(split) and not isinstance(split, type)),
        f"split={split!r}: give an object such as IID() or Dirichlet(0.3), from thinwire.data",
    )
    loaded = sets.load(data, data_dir) if isinstance(data, str) else data
    shape, classes, vocabulary = tuple(loaded.inputs.shape[1:]), loaded.num_classes, loaded.vocabulary
    model, number = model or _model_for(loaded), each_mask(loaded.targets).shape[1] if masks(loaded.targets) else 1
    sites, targets, groups, there = loaded.sites, loaded.targets, loaded.groups, None
    if unseen is not None:
        require(
            sites is not None and sites > 1,
            f"unseen={unseen}: {loaded.name} has no sites with tests of their own, as retina has",
        )
        assert groups is not None
        assert sites is not None
        require(0 <= unseen < sites, f"unseen={unseen}: {loaded.name} has the sites 0 to {sites - 1}")
        there, sites = (groups != unseen).nonzero().flatten(), sites - 1
        targets, groups = targets[there], groups[there]
    clients = clients or sites or CLIENTS

    def build() -> nn.Module:
        return models.build(model, shape, classes, vocabulary=vocabulary, masks=number)

    split = split or (sets.Natural() if loaded.groups is not None else sets.IID())
    parts = deal(split, targets, groups, clients, seed)
    if there is not None:
        parts = [there[part] for part in parts]

    def task(indices: Tensor, augment: Sequence[Augment] = ()) -> Supervised:
        return Supervised(
            loaded.inputs, loaded.targets, indices, mean=loaded.mean, std=loaded.std, augment=tuple(augment)
        )

    owners = torch.empty(0, dtype=torch.float32, device="cpu") if loaded.test_groups is None else loaded.test_groups

    def test_of(site: int | None) -> Supervised:
        rows = None if site is None else torch.eq(owners, site).nonzero().flatten()
        return Supervised(loaded.test_inputs, loaded.test_targets, rows, mean=loaded.mean, std=loaded.std)

    tests = None
    if sites is not None and isinstance(split, sets.Natural) and loaded.groups is not None:
        tests = [test_of(int(loaded.groups[part[0]])) for part in parts]
    parts, kept = hold_out(parts, holdout, seed)
    tests = [task(part) for part in kept] or tests
    return Problem(build, [task(part, augment) for part in parts], test_of(unseen), tests)


def deal(split: Split, labels: Tensor, groups: Tensor | None, clients: int, seed: int) -> list[Tensor]:
    """The positions of each client's examples, int64.

    Raises ``ValueError`` where a split of the user's own makes anything else, or too many or too few of them.
    """
    made = split(labels, groups, clients, Key(seed).number("split") % 2**31)
    several = isinstance(made, Iterable) and not isinstance(made, Mapping)
    require(several, f"split={split!r} makes {type(made).__name__}: return a list of positions for each client")
    parts = list(made)
    count = f"makes {len(parts)} lists of positions for {clients} clients"
    require(len(parts) == clients, f"split={split!r} {count}: return one for each client")
    return [positions(part, len(labels)) for part in parts]


def hold_out(parts: Sequence[Tensor], share: float, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's examples without the ``share`` that is kept for its own test, and what is kept; none for 0.

    Raises ``ValueError`` where a client would have no test example.
    """
    if not share:
        return list(parts), []
    draws = [Key(seed, client=k).number("holdout") for k in range(len(parts))]
    cut = [sets.holdout(part, share, draw) for part, draw in zip(parts, draws, strict=True)]
    short = [k for k, (_, test) in enumerate(cut) if len(test) == 0]
    require(not short, f"holdout={share} leaves client {short[:1]} without a test example: take more")
    return [train for train, _ in cut], [test for _, test in cut]


def _model_for(loaded: DataSet) -> str:
    """The model where none is named. It follows from what the examples are, whatever the name of the set."""
    if loaded.vocabulary is not None:
        return "fasttext" if loaded.targets.ndim == 1 else "char_transformer"
    if masks(loaded.targets):
        return "unet"
    _, *shape = loaded.inputs.shape
    return "fedavg_cnn" if len(shape) == 3 and min(shape[1:]) >= SMALLEST else "mlp"


SUITED = {
    **dict.fromkeys(("cifar10", "emnist_letters", "fashion_mnist", "fashion_sites", "mnist"), "fedavg_cnn"),
    **dict.fromkeys(("personachat", "personachat_words", "shakespeare"), "char_transformer"),
    **dict.fromkeys(("ag_news", "sst2"), "fasttext"),
    **dict.fromkeys(("retina", "retina_256"), "unet"),
    "digits": "mlp",
}
"""The model that :func:`standard` finds suited, by the name of the set: known without the data."""


def custom(where: str, clients: int, seed: int) -> Problem:
    """What a user's function makes: ``my_module:make_task``, called with ``clients`` and ``seed`` if it takes them.

    It returns a :class:`Problem`, or (model, tasks) or (model, tasks, test). What it draws from the generators of
    torch, numpy and Python begins at the seed.
    """
    with seeded(Key(seed).number("model")):
        made = call(where, f"--task {where}", {"clients": clients, "seed": seed})
    pair = isinstance(made, tuple) and 2 <= len(made) <= 4
    problem = made if isinstance(made, Problem) else Problem(*made) if pair else None
    if isinstance(made, tuple) and not pair:
        raise ValueError(f"--task {where}: it returned {len(made)} values, not (model, tasks) or (model, tasks, test)")
    if problem is None:
        raise ValueError(f"--task {where}: it returned {type(made).__name__}, not a thinwire.Problem")
    return problem


def call(where: str, asked: str, known: Mapping[str, Any]) -> Any:
    """What a user's function returns, ``my_module:make``, called with those of ``known`` that it takes.

    ``asked`` is the option that names it. Raises ``ValueError`` for what is none, or needs something else.
    """
    module_name, _, name = where.partition(":")
    example = "my_module:make_task" if asked.startswith("--task") else "my_module:make_model"
    require(bool(module_name and name), f"{asked}: write it as {example}")
    module = import_module(module_name, asked)
    function = getattr(module, name, None)
    near = nearest(name, (known for known, value in vars(module).items() if inspect.isfunction(value)))
    require(callable(function), f"{asked}: {module_name} has no function {name}{near}")
    assert function is not None
    taken = inspect.signature(function).parameters
    needed = [
        n for n, p in taken.items() if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    other, names = [n for n in needed if n not in known], " and ".join(known)
    arguments = "argument" if len(known) == 1 else "arguments"
    require(
        not other,
        f"{asked}: it needs {', '.join(other)}, and is called with {names} alone: name its {arguments} {names}, or "
        f"give the others defaults",
    )
    return function(**{k: v for k, v in known.items() if k in taken})


def import_module(name: str, asked: str) -> ModuleType:
    """A user's module, from here or the Python path; ``asked`` is the option that names it."""
    require(not name.endswith(".py"), f"{asked}: write the module without .py, as {name.removesuffix('.py')}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise ValueError(
            f"{asked}: there is no module {name} in this folder or on the Python path; "
            f"type the command where {name} is, or put its folder into PYTHONPATH"
        ) from error
