"""Many small clients trained as one: their models stacked, their steps taken together.

For small models a step is mostly overhead, and a hundred clients in one batched product
cost little more than one. Unequal clients are padded and masked; one that has done its
steps stands still. The draws are those of :mod:`thinwire.run.train`, so the results are
the same to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from ..errors import NonFinite
from ..key import Key
from ..local import Local, LocalSGD, Trained
from ..params import Layout, Params
from ..task import Supervised, Task
from .train import Slot, batches, bent


def batchable(slot: Slot, tasks: Sequence[Task], requests: Sequence[Local]) -> bool:
    """Whether these can be trained as one: one data set, one trainer, a model without buffers or dice."""
    first, trainer = tasks[0], requests[0].trainer
    if type(first) is not Supervised or slot.random or any(True for _ in slot.module.buffers()):
        return False  # a task of one's own may have its own loss
    same = all(isinstance(task, Supervised) and task.kin(first) for task in tasks)
    return same and all(r.trainer == trainer and r.basis is None for r in requests)


def train_many(slot: Slot, tasks: Sequence[Task], requests: Sequence[Local], keys: Sequence[Key]) -> list[Trained]:
    """:func:`thinwire.run.train.train` for clients that are :func:`batchable`. Raises :class:`NonFinite`."""
    trainer, device, num = requests[0].trainer, slot.device, len(tasks)
    w = torch.stack([request.x.flat for request in requests]).to(device)  # [clients, d]
    g = torch.empty_like(w)
    layers, slopes = _stacked(w, slot.layout), _stacked(g, slot.layout)
    frozen = {n: p for n, p in slot.module.named_parameters() if not p.requires_grad}
    offset = _stack([request.offset for request in requests], device)
    anchor = _stack([request.anchor or request.x for request in requests], device) if trainer.prox else None
    momentum = torch.zeros_like(w) if trainer.momentum else None
    plain = offset is None and anchor is None and momentum is None and not trainer.weight_decay
    lr = trainer.rate(keys[0])
    own = [task for task in tasks if isinstance(task, Supervised)]  # all of them are
    everyone = own[0].whole()
    slot.module.train()

    def loss(layers: dict[str, Tensor], inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        outputs = functional_call(slot.module, {**layers, **frozen}, (inputs,))
        masked = everyone.loss_of(outputs, targets) * mask
        return masked.sum() / mask.sum().clamp_min(1), masked.detach().sum()

    # The gradient inside of vmap, not around it: so it comes out in the order of the weights.
    slopes_of = vmap(grad_and_value(loss, has_aux=True))
    table = _table(own, trainer, keys)  # [steps, clients, batch], -1 where there is no example
    steps, active = (table[:, :, 0] >= 0).sum(0).tolist(), (table[:, :, 0] >= 0).all(1).tolist()
    total, seen = torch.zeros(num, device=device), (table >= 0).sum((0, 2)).tolist()
    for indices, all_active in zip(table, active, strict=True):
        mask = (indices >= 0).to(device).float()
        inputs, targets = everyone.batch(indices.clamp_min(0).view(-1))
        inputs, targets = (t.to(device).view(*indices.shape, *t.shape[1:]) for t in (inputs, targets))
        slope, (_, lost) = slopes_of(layers, inputs, targets, mask)
        total += lost
        if plain and all_active:
            for name, layer in layers.items():
                layer.add_(slope[name], alpha=-lr)  # nothing bends the step: the gradients need not be joined
            continue
        for name, into in slopes.items():
            into.copy_(slope[name])
        step = bent(g, w, trainer, offset, anchor, momentum)
        if not all_active:
            step = step * mask[:, :1]  # who has done all its steps stands still
        w.add_(step, alpha=-lr)
    w, means = w.cpu(), (total.cpu() / torch.tensor(seen)).tolist()
    results = []
    for i, key in enumerate(keys):
        x = Params(slot.layout, w[i])
        if not math.isfinite(means[i]) or not x.finite():
            raise NonFinite(f"round {key.round}, client {key.client}: the loss became {means[i]:.3g}; lower lr={lr:g}")
        results.append(Trained(x, steps[i], means[i]))
    return results


def _stacked(flat: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Every layer of all clients, as a view."""
    spans = layout.spans.items()
    return {name: flat[:, start : start + size].view(-1, *shape) for name, (start, size, shape) in spans}


def _table(tasks: Sequence[Supervised], trainer: LocalSGD, keys: Sequence[Key]) -> Tensor:
    """Positions in the common data set of every client's every mini-batch."""
    rows = []
    for task, key in zip(tasks, keys, strict=True):
        own = list(batches(len(task), trainer, key.generator("batches")))
        size = max(map(len, own))
        padded = torch.full((len(own), size), -1)
        for row, indices in zip(padded, own, strict=True):
            row[: len(indices)] = indices if task.indices is None else task.indices[indices]
        rows.append(padded)
    steps, size = max(len(r) for r in rows), max(r.shape[1] for r in rows)
    table = torch.full((steps, len(rows), size), -1)
    for i, row in enumerate(rows):
        table[: len(row), i, : row.shape[1]] = row
    return table


def _stack(params: Sequence[Params | None], device: torch.device) -> Tensor | None:
    given = [p.flat for p in params if p is not None]
    return torch.stack(given).to(device) if given else None
