"""Clients of a module, trained once in torch and once in C: a slot, a model at random, and trainers of every kind."""

from __future__ import annotations

import torch
from torch import nn

from thinwire import Key, LocalSGD
from thinwire.params import Params
from thinwire.train.compiled import Chain, chain
from thinwire.train.slot import Slot

KEY = Key(3, 2, 1)


def made(module: nn.Module, std: float = 0.5) -> tuple[Slot, Chain, Params]:
    torch.manual_seed(0)
    slot = Slot(module)
    slot.flat.normal_(std=std)
    known = chain(slot.module, slot.layout)
    assert known is not None
    return slot, known, slot.params()


def some(x: Params, seed: int, scale: float = 0.1) -> Params:
    return Params(x.layout, scale * torch.randn(x.layout.size, generator=torch.Generator().manual_seed(seed)))


TRAINERS = {
    "a few": LocalSGD(0.2, batch=4, epochs=2),
    "five": LocalSGD(0.2, batch=5),
    "one by one": LocalSGD(0.1, batch=1),
    "all at once": LocalSGD(0.3, batch=None, epochs=3),
    "part of an epoch": LocalSGD(0.2, batch=7, epochs=0.5),
    "steps": LocalSGD(0.2, batch=16, steps=5),
    "bent": LocalSGD(0.1, batch=8, epochs=2, momentum=0.8, weight_decay=0.01, prox=0.1),
}
