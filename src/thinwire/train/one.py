"""One client's training on a live module, at the cost of a bare loop.

torch.optim is not used: its first optimiser costs a second of imports.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor, nn

from ..errors import NonFinite
from ..key import Key
from ..local import Local, Memory, Trained, Trainer
from ..losses import Ratio, mean_loss
from ..params import Params, is_finite
from ..task import Batch, Task
from .allocator import give_back_freed_memory
from .batches import order
from .precision import without_cache
from .slot import Slot


def train(slot: Slot, task: Task, request: Local, key: Key) -> Trained:
    """Local training from ``request.x``, as its :class:`Trainer` says. Raises :class:`NonFinite`."""
    with without_cache(slot.device):
        return _train(slot, task, request, key)


def _train(slot: Slot, task: Task, request: Local, key: Key) -> Trained:
    trainer, w, g = request.trainer, slot.flat, slot.grad
    if slot.large:
        give_back_freed_memory()  # what others left behind lies scattered, and the first step would take more beside it
    slot.load(request.x)
    if request.buffers is not None:
        slot.load_buffers(request.buffers)
    slot.training()
    check = slot.watch()
    fewest = slot.fewest
    if len(task) < fewest:
        raise ValueError(f"client {key.client} has {len(task)} example: batch norm needs {fewest} to train on")
    if trainer.batch is not None and trainer.batch < fewest:
        raise ValueError(f"client {key.client}: batch norm needs {fewest} examples at a time, not {trainer.batch}")
    generator = key.generator("batches")
    rows = order(task, request, key, generator, fewest)
    if request.gradient:
        return _look(slot, task, request, key, slot.batch(task, rows[0], generator))
    offset = None if request.offset is None else request.offset.flat.to(slot.device)
    anchor = (request.anchor or request.x).flat.to(slot.device) if trainer.prox else None
    begun = request.memory or trainer.begin(slot.layout)
    vectors, taken = [v.flat.to(slot.device, copy=True) for v in begun.vectors], begun.steps
    loss_of: Callable[[Batch], Tensor | Ratio] = partial(task.loss, slot.module)
    if request.loss is not None:
        loss_of = partial(request.loss, _Net(slot, key), task)
    lr, total, steps, seen, shares = trainer.rate(key), w.new_zeros(()), 0, 0.0, 0.0
    mask = None if request.mask is None else request.mask.flat.to(slot.device)
    part = None
    if request.shift is not None:
        part = request.shift.flat.to(slot.device) / len(rows)
    still = [] if request.mask is None or request.loss is not None else masked_parameters(slot, request.mask)
    for row in rows:
        indices = row if row[-1] >= 0 else row[row >= 0]
        g.zero_()
        with without_gradients(still):
            losses = loss_of(slot.batch(task, indices, generator))
            mean_loss(losses).backward()  # type: ignore[no-untyped-call]  # adds into g
        slot.collect()
        total += (losses.totals if isinstance(losses, Ratio) else losses).detach().sum()
        steps += 1
        seen += float(losses.counts.sum()) if isinstance(losses, Ratio) else len(losses)
        del losses  # its graph, small as it is by now, would part the memory that the next step takes whole
        step = bend(g, w, trainer, mask, offset, anchor, vectors, taken + steps)
        if request.basis is not None:
            step = project(step, request.basis)
        if mask is not None:
            step = step * mask
        share = trainer.warmed(taken + steps)
        w.add_(step, alpha=-lr * share)
        shares += share
        if part is not None:
            w.add_(part)
        slot.round()
    check()
    loss = float(total) / max(seen, 1)  # of examples that all do not count it is 0
    x = slot.params()
    if not math.isfinite(loss) or not x.finite():
        raise NonFinite(explain_divergence(task, trainer, loss, key))
    ended = Memory(tuple(Params(slot.layout, v.to("cpu", copy=True)) for v in vectors), taken + steps)
    return Trained(x, steps, loss, ended, lr * shares, slot.buffers())


def _look(slot: Slot, task: Task, request: Local, key: Key, batch: Batch) -> Trained:
    """The gradient of a batch at the model that the slot holds, with weight decay: :func:`thinwire.local.look`."""
    slot.grad.zero_()
    mean = mean_loss(task.loss(slot.module, batch))
    mean.backward()  # type: ignore[no-untyped-call]
    slot.collect()
    if request.trainer.coupled:
        slot.grad.add_(slot.flat, alpha=request.trainer.coupled)
    loss, g = float(mean.detach()), Params(slot.layout, slot.grad.to("cpu", copy=True))
    if not math.isfinite(loss) or not g.finite():
        raise NonFinite(explain_divergence(task, request.trainer, loss, key))
    return Trained(request.x, 1, loss, Memory((g,), 1), request.trainer.rate(key), slot.buffers())


def masked_parameters(slot: Slot, mask: Params) -> list[nn.Parameter]:
    """The parameters that a mask holds where they are, whole: their gradients need not be computed (FedRep's body)."""
    moved = {name for name, part in mask.items() if part.any()}
    pairs = zip(slot.layout.names, slot.slopes, strict=True)
    return [p for name, (p, _) in pairs if name not in moved] if moved else []


@contextlib.contextmanager
def without_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Compute no gradients for these parameters."""
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


def explain_divergence(task: Task, trainer: Trainer, loss: float, key: Key) -> str:
    """What to change where training ended in NaN or infinity: the examples, if they hold any, or the trainer."""
    who = f"round {key.round}, client {key.client}"
    for start in range(0, len(task), CHUNK):
        batch = task.batch(torch.arange(start, min(start + CHUNK, len(task)), device="cpu"))
        if what := _flaw(batch):
            return f"{who}: {what}; take these examples out, or mend them"
    advice = "" if trainer.clip is not None else f" or clip the gradients: {type(trainer).__name__}(clip=1.0)"
    return f"{who}: the loss became {loss:.3g}; lower lr={trainer.rate(key):g}{advice}"


CHUNK = 500  # examples looked at together


def _flaw(batch: Batch) -> str:
    """Which part of a batch has NaN or infinity; nothing where all numbers are finite."""
    if isinstance(batch, Tensor):
        return "" if is_finite(batch) else "the examples have NaN or infinity in them"
    if isinstance(batch, tuple | list):
        names = ("inputs", "targets") if len(batch) == 2 else ()
        for part, name in zip_longest(batch, names):
            if flaw := _flaw(part):
                return f"the {name} have NaN or infinity in them" if name else flaw
    if isinstance(batch, dict):
        return next((f"{k!r} of the batch has NaN or infinity in it" for k, v in batch.items() if _flaw(v)), "")
    return ""


class _Net:
    """The module of a slot, and others that hold other models."""

    def __init__(self, slot: Slot, key: Key) -> None:
        self.slot, self.module, self.generator = slot, slot.module, key.generator("loss")
        self.others: dict[int, nn.Module] = {}

    def other(self, x: Params, buffers: Params | None = None) -> nn.Module:
        if id(x) not in self.others:  # the request holds it: no other takes its place
            self.others[id(x)] = self.slot.spare(len(self.others), x, buffers)
        return self.others[id(x)]


def bend(
    g: Tensor,
    w: Tensor,
    trainer: Trainer,
    mask: Tensor | None,
    offset: Tensor | None,
    anchor: Tensor | None,
    vectors: Sequence[Tensor],
    step: int,
) -> Tensor:
    """The step to take for gradients ``g`` at ``w``, one model's or many's: what the trainer and the request add.

    Gradients of what stays where it is do not count: of some nobody computes any (:func:`masked_parameters`).
    """
    if mask is not None:
        g.mul_(mask)
    if trainer.clip is not None:
        clip(g, trainer.clip)
    if trainer.coupled:
        g.add_(w, alpha=trainer.coupled)
    if anchor is not None:
        g.add_(w - anchor, alpha=trainer.prox)
    if offset is not None:
        g.add_(offset)
    return trainer.direction(g, w, vectors, step)


def clip(g: Tensor, most: float) -> Tensor:
    """``g``, each model's row scaled down to the Euclidean norm ``most`` where it is longer, in place.

    The formula is that of ``torch.nn.utils.clip_grad_norm_``.
    """
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    return g.mul_((most / (norm + 1e-6)).clamp_(max=1.0))


def project(step: Tensor, rows: Sequence[Tensor]) -> Tensor:
    """The part of a step that lies in the space of orthonormal rows."""
    part = torch.zeros_like(step)
    for row in rows:
        own = row.to(step)
        part.add_(own * torch.dot(own, step))
    return part
