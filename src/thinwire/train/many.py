"""Many small clients trained as one: in C where :mod:`thinwire.train.compiled` knows the model, else side by side.

For small models a step is mostly overhead. Side by side, their models are stacked and a
hundred clients in one batched product cost little more than one; unequal clients are padded
and masked, and one that has done its steps stands still. Model i of a stack sees examples i of the
batch. The draws are those of
:mod:`thinwire.train.one`, so the results are the same to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import NonFinite
from ..key import Key
from ..local import Local, Memory, Trained
from ..losses import LossOf, Ratio
from ..params import Layout, Params, call_with
from ..task import Supervised, Task
from .batches import order
from .compiled import Chain, chain, train_chains
from .one import bend, explain_divergence
from .slot import Slot

ALONE = 4  # examples whose losses are looked at


class Apart(RuntimeError):
    """Why the clients of a model are not trained side by side, though :func:`batchable` knew nothing against it."""


def batchable(slot: Slot, tasks: Sequence[Task], requests: Sequence[Local]) -> bool:
    """Whether these can be trained as one: one data set, one trainer, a model without buffers or dice.

    Nor with modules that torch.func does not batch (sparse gradients of words), or that do more with an example which
    only fills up a batch than to compute its loss: norms over a batch, words that are shortened when they are read.
    """
    first, trainer = tasks[0], requests[0].trainer
    if type(first) is not Supervised or first.augment:
        return False  # a task of one's own may have its own loss; augmentation draws client by client
    if slot.random or slot.begins != torch.float32 or slot.rounded or any(True for _ in slot.module.buffers()):
        return False  # of bfloat16 every client would need a stack of its own, and masks and sums are 32-bit floats
    narrowed = first.inputs.is_floating_point() and first.inputs.dtype != slot.begins
    if narrowed or not first.counts_all:
        return False  # inputs become what the first layer is, and losses are weighed, batch by batch
    if any(map(_unfit, slot.module.modules())):
        return False
    same = all(isinstance(task, Supervised) and task.kin(first) for task in tasks)
    alike = len({tuple(field is None for field in request) for request in requests}) == 1  # stacks have no holes
    clocks = {r.memory.steps for r in requests if r.memory is not None}  # warm-up and Adam go by the step
    if not (same and alike) or len(clocks) > 1:
        return False
    return all(r.trainer == trainer and r.basis is None and r.loss is None for r in requests)


def _unfit(module: nn.Module) -> bool:
    """Whether a module is one of those that :func:`batchable` leaves out."""
    sparse, shortens = getattr(module, "sparse", False) is True, getattr(module, "max_norm", None) is not None
    return isinstance(module, _BatchNorm) or sparse or shortens


def chain_of(slot: Slot, task: Task) -> Chain | None:
    """The model as the loops in C take it, where they know it and the task."""
    plain = slot.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    known = chain(slot.module, slot.layout) if plain else None
    return known if known is not None and isinstance(task, Supervised) and known.takes(task) else None


def train_many(slot: Slot, tasks: Sequence[Task], requests: Sequence[Local], keys: Sequence[Key]) -> Iterator[Trained]:
    """:func:`thinwire.train.one.train` for clients that are :func:`batchable`; in C each when it is asked for.

    Raises :class:`NonFinite`, and :class:`Apart` where torch.func cannot take the model, or an example's loss depends
    on the others of its batch.
    """
    own = [task for task in tasks if isinstance(task, Supervised)]  # all of them are
    known = chain_of(slot, own[0])
    if known is not None and known.trains(requests[0].trainer):
        return train_chains(known, own, requests, keys)
    results = _side_by_side(slot, own, requests, keys)
    for trained, task, key in zip(results, own, keys, strict=True):
        if not math.isfinite(trained.loss) or not trained.x.finite():
            raise NonFinite(explain_divergence(task, requests[0].trainer, trained.loss, key))
    return iter(results)


def _side_by_side(
    slot: Slot, tasks: Sequence[Supervised], requests: Sequence[Local], keys: Sequence[Key]
) -> list[Trained]:
    """Every step of all clients is one."""
    trainer, device, num = requests[0].trainer, slot.device, len(tasks)
    w = torch.stack([request.x.flat for request in requests]).to(device)  # [clients, d]
    g = torch.empty_like(w)
    layers, slopes = _stack_views(w, slot.layout), _stack_views(g, slot.layout)
    offset = _stack([request.offset for request in requests], device)
    anchor = _stack([request.anchor or request.x for request in requests], device) if trainer.prox else None
    begun = [request.memory or trainer.begin(slot.layout) for request in requests]
    vectors = [torch.stack([v.flat for v in one]).to(device) for one in zip(*(b.vectors for b in begun), strict=True)]
    taken, shares = begun[0].steps, [0.0]
    kept = _stack([request.mask for request in requests], device)
    part = _stack([request.shift for request in requests], device)
    lr = trainer.rate(keys[0])
    everyone = tasks[0].whole()
    slot.training()

    slopes_of = gradients(slot.module, everyone.loss_of)
    places = _places(tasks, requests, keys)  # [steps, clients, batch], -1 where there is no example
    steps, active = (places[:, :, 0] >= 0).sum(0).tolist(), (places[:, :, 0] >= 0).all(1).tolist()
    if part is not None:
        part /= torch.tensor(steps, device=device)[:, None]
    if bool((places[:, :, :1] >= 0).logical_and(places < 0).any()):  # batches that others fill up
        _check_alone(slot.module, everyone, places, {name: layer[0] for name, layer in layers.items()}, device)
    total, seen = torch.zeros(num, device=device, dtype=torch.float32), (places >= 0).sum((0, 2)).tolist()
    for done, (indices, all_active) in enumerate(zip(places, active, strict=True), taken + 1):
        mask = (indices >= 0).to(device).float()
        inputs, targets = everyone.batch(indices.clamp_min(0).view(-1))
        inputs, targets = (t.to(device).view(*indices.shape, *t.shape[1:]) for t in (inputs, targets))
        try:
            total += slopes_of(layers, inputs, targets, mask, slopes)
        except Exception as error:  # torch.func's own, of as many kinds as there are operations it does not know
            raise Apart(str(error)) from error
        before = [] if all_active else [v.clone() for v in vectors]
        step = bend(g, w, trainer, kept, offset, anchor, vectors, done)
        for v, old in zip(vectors, before, strict=False):
            torch.where(mask[:, :1] > 0, v, old, out=v)  # it ended with the client's last step
        if kept is not None:
            step = step * kept
        if not all_active:
            step = step * mask[:, :1]  # who has done all its steps stands still
        w.add_(step, alpha=-lr * trainer.warmed(done))
        shares.append(shares[-1] + trainer.warmed(done))
        if part is not None:
            w.add_(part * mask[:, :1])
    w, means = w.cpu(), (total.cpu() / torch.tensor(seen, device="cpu")).tolist()
    results = []
    for i in range(num):
        ended = Memory(tuple(Params(slot.layout, v[i].cpu()) for v in vectors), taken + steps[i])
        results.append(Trained(Params(slot.layout, w[i]), steps[i], means[i], ended, lr * shares[steps[i]]))
    return results


def _check_alone(module: nn.Module, task: Supervised, places: Tensor, layers: Layers, device: torch.device) -> None:
    """Raise :class:`Apart` unless examples have the same losses one by one as beside others.

    Of one example alone the losses may be alike by chance.
    """
    some = torch.unique(places[places >= 0])[:ALONE]
    with torch.no_grad():
        try:
            batches = [[t.to(device) for t in task.batch(rows)] for rows in (some, *some.split(1))]
            whole, *alone = (losses_of(task.loss_of, call_with(module, layers, (x,)), y) for x, y in batches)
        except Exception as error:  # norms over a batch refuse a single example
            raise Apart(str(error)) from error
    if not torch.allclose(torch.cat(alone), whole, rtol=1e-3, atol=1e-5):
        raise Apart("the loss of an example depends on the other examples of its batch")


def losses_of(loss_of: LossOf, outputs: Tensor, targets: Tensor) -> Tensor:
    """One value an example. Raises ``ValueError`` for a ratio."""
    values = loss_of(outputs, targets)
    if isinstance(values, Ratio):
        raise ValueError("a loss that is a Ratio is trained client by client: plan='each'")
    return values


def _stack_views(flat: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Every layer of all clients, as a view."""
    spans = layout.spans.items()
    return {name: flat[:, start : start + size].view(len(flat), *shape) for name, (start, size, shape) in spans}


def _places(tasks: Sequence[Supervised], requests: Sequence[Local], keys: Sequence[Key]) -> Tensor:
    """Positions in the common data set of every client's every mini-batch."""
    rows = []
    for task, request, key in zip(tasks, requests, keys, strict=True):
        row = order(task, request, key, key.generator("batches"))
        rows.append(row if task.indices is None else torch.where(row < 0, row, task.indices[row]))
    steps, size = max(len(r) for r in rows), max(r.shape[1] for r in rows)
    places = torch.full((steps, len(rows), size), -1, device="cpu")
    for i, row in enumerate(rows):
        places[: len(row), i, : row.shape[1]] = row
    return places


def _stack(params: Sequence[Params | None], device: torch.device) -> Tensor | None:
    given = [p.flat for p in params if p is not None]
    return torch.stack(given).to(device) if given else None


Layers = dict[str, Tensor]  # each [models, *shape]
Gradients = Callable[[Layers, Tensor, Tensor, Tensor, Layers], Tensor]
"""(layers, inputs, targets, mask, into) -> the summed loss of every model, [models].

``inputs``, ``targets`` and ``mask`` are [models, batch, ...]; the gradients of the mean over
a model's unmasked examples are written ``into``.
"""


def gradients(module: nn.Module, loss_of: LossOf) -> Gradients:
    """By ``torch.func``, which takes any module without buffers or dice."""
    from torch.func import grad_and_value, vmap  # a second of imports

    def loss(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        losses = losses_of(loss_of, call_with(module, layers, (inputs,)), targets) * mask
        return losses.sum() / mask.sum().clamp_min(1), losses.detach().sum()

    # The gradient inside of vmap, not around it: so it comes out in the order of the weights.
    slopes_of = vmap(grad_and_value(loss, has_aux=True))

    def run(layers: Layers, inputs: Tensor, targets: Tensor, mask: Tensor, into: Layers) -> Tensor:
        slopes, (_, lost) = slopes_of(layers, inputs, targets, mask)
        for name, slope in slopes.items():
            into[name].copy_(slope)
        summed: Tensor = lost
        return summed

    return run
