"""One client's training in C, where the loops there know its model, its task and what is asked for; else in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..key import Key
from ..local import Local, Trained
from ..task import Supervised, Task
from . import one
from .compiled import Chain, train_chains
from .many import chain_of
from .slot import Slot

RUNNING = ("running_mean", "running_var")
COUNTER = "num_batches_tracked"  # of norms with a momentum nobody reads it


def chain_for(slot: Slot, task: Task, request: Local) -> Chain | None:
    """The model as the loops take it, where they know it, the task and the request."""
    if type(task) is not Supervised or task.augment or request.basis is not None or request.loss is not None:
        return None
    if slot.random or slot.rounded or slot.begins != torch.float32 or slot.fewest > 1:
        return None
    slot.training()  # a layer that stays in evaluation mode is none that they know
    known = chain_of(slot, task)
    if known is None or not known.trains(request.trainer):
        return None
    buffers = {f"{name}.{part}" for name in known.convs.norms for part in (*RUNNING, COUNTER)}
    return known if buffers == set(slot.first) else None


def train(slot: Slot, task: Task, request: Local, key: Key, spent: Tensor | None = None) -> Trained:
    """:func:`thinwire.train.one.train`, to rounding. Raises :class:`NonFinite`.

    In C the seconds of each of :data:`thinwire.train.compiled.PARTS` are added to ``spent``, 64-bit floats.
    """
    known = chain_for(slot, task, request)
    if known is None:
        return one.train(slot, task, request, key)
    assert isinstance(task, Supervised)
    if request.buffers is not None:
        slot.load_buffers(request.buffers)
    there = dict(slot.module.named_buffers())
    places = [there[f"{name}.{part}"] for name in known.convs.norms for part in RUNNING]
    statistics = torch.cat(places) if places else None
    trained = next(train_chains(known, [task], [request], [key], spent, statistics, slot.rooms))
    if statistics is not None:
        moved = torch.split(statistics, [len(place) for place in places])
        for place, value in zip(places, moved, strict=True):
            place.copy_(value)
    return trained._replace(buffers=slot.buffers())
