"""The data of ``retina.py``: a client a site, or labels apart, and a part of each kept aside for choosing a rate."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from nets import small_cnn

import thinwire as tw
from thinwire.data import DataSet, Dirichlet, Flip, Rotate90, holdout
from thinwire.data import load as load_set
from thinwire.data.retina import retina
from thinwire.key import Key
from thinwire.models.unet import unet
from thinwire.problem import Problem, standard


@cache
def data_of(name: str, size: int, examples: int | None) -> DataSet:
    """A set, or so many of its training examples, drawn at random."""
    data = retina(size=size) if name == "retina" else load_set(name)
    if examples is None or examples >= len(data.inputs):
        return data
    rows = torch.randperm(len(data.inputs), generator=Key(0).generator("examples"))[:examples].sort().values
    groups = None if data.groups is None else data.groups[rows]
    return replace(data, inputs=data.inputs[rows], targets=data.targets[rows], groups=groups)


def problem_of(
    o: argparse.Namespace, seed: int, sites: bool = True, tune: bool = False, unseen: int | None = None
) -> Problem:
    """Model, clients and tests; ``tune`` keeps a quarter of each client's training examples aside as its test."""
    pictures, label_shift = o.data == "retina", o.data == "fashion_mnist"
    made = standard(
        data_of(o.data, o.size, o.examples),
        "unet" if pictures else "lbgm_cnn",
        clients=20 if label_shift else None,
        split=Dirichlet(0.1, min_examples=8) if label_shift else None,
        seed=seed,
        holdout=0.25 if label_shift else 0.0,
        augment=(Flip(), Rotate90()) if pictures else (),
        unseen=unseen,
    )
    if pictures:
        made = replace(made, model=partial(unet, (3, o.size, o.size), widths=tuple(o.width * 2**i for i in range(5))))
    elif not label_shift:
        made = replace(made, model=small_cnn)
    tasks: list[tw.Supervised] = list(made.tasks)
    if tune:
        draws = [Key(seed, client=k).number("tune") for k in range(len(tasks))]
        cut = [holdout(task.indices, 0.25, draw) for task, draw in zip(tasks, draws, strict=True)]
        kept = [replace(task, indices=rows, augment=()) for task, (_, rows) in zip(tasks, cut, strict=True)]
        tasks = [replace(task, indices=rows) for task, (rows, _) in zip(tasks, cut, strict=True)]
        made = replace(made, client_tests=[test for test in kept if len(test)])
    if not sites:
        tasks = [replace(tasks[0], indices=torch.cat([task.indices for task in tasks]))]
    return replace(made, tasks=tasks)
