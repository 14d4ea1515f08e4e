"""One client's training on a live module, at the cost of a bare loop.

The module's trainable parameters and their gradients are views of two flat vectors, so a
model is loaded by one copy and a step is a few operations on whole vectors. torch.optim
is not used: its first optimiser costs a second of imports.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import NonFinite, require
from ..key import Key
from ..local import Local, Memory, Trained, Trainer
from ..params import Layout, Params, is_finite
from ..task import Batch, Supervised, Task


class Slot:
    """A module that any model of its layout can be loaded into. One a worker.

    ``flat`` and ``grad`` are float64 if any parameter is, else float32. Parameters of their type are views of ``flat``.
    Narrower ones (bfloat16, and float32 beside float64) are copies of it, rounded to the nearest: ``flat`` is their
    master copy, which is trained, sent and kept.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = copy.deepcopy(module).to(device).train()
        self.device = torch.device(device)
        trained = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise ValueError("the model has no trainable parameters: nothing would be sent")
        for name, p in trained:
            if p.dtype not in (torch.float64, torch.float32, torch.bfloat16):
                raise ValueError(
                    f"parameter {name!r} is {p.dtype}: models are trained and sent in float32, in float64, or in "
                    f"bfloat16 with a float32 copy: module.float(), module.double() or module.bfloat16()"
                )
        self.layout = Layout.of(trained)
        self.flat = self.layout.zeros(device).flat
        self.grad = torch.zeros_like(self.flat)
        self.slopes: list[tuple[nn.Parameter, Tensor]] = []  # every parameter, and where its gradient lies
        self.rounded: list[Tensor] = []  # the parameters of a narrower type than flat, and
        self.masters: list[Tensor] = []  # what they are rounded from
        for name, p in trained:
            start, size, shape = self.layout.spans[name]
            self.flat[start : start + size] = p.detach().reshape(-1)
            own, home = (v[start : start + size].view(shape) for v in (self.flat, self.grad))
            if p.dtype == self.layout.dtype:
                p.data, p.grad = own, home
            else:
                self.rounded.append(p.data)
                self.masters.append(own)
                p.grad = None
            self.slopes.append((p, home))
        self.begins = next(self.module.parameters()).dtype  # of the first layer
        self.batch_norm = any(isinstance(m, _BatchNorm) for m in self.module.modules())
        self.first = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        self.moving: tuple[str, ...] = ()  # float buffers that training changes: the statistics of norm layers
        self.spares: list[Slot] = []
        self.random = False  # whether training draws from torch's global generator

    def twin(self) -> Slot:
        """Another slot for the same module, for another worker."""
        other = Slot(self.module, self.device)
        other.first, other.moving, other.random = self.first, self.moving, self.random
        return other

    def spare(self, number: int, x: Params, buffers: Params | None = None) -> nn.Module:
        """A module beside this one that holds another model, to look at: it is not training. Its buffers are these,
        or those of this one.
        """
        while len(self.spares) <= number:
            self.spares.append(self.twin())
        spare = self.spares[number]
        spare.load(x)
        spare.load_buffers(self.buffers() if buffers is None else buffers)
        spare.module.requires_grad_(False).eval()
        return spare.module

    def load(self, x: Params) -> None:
        """Put a model into the module: one copy."""
        if x.layout != self.layout:
            raise ValueError("these parameters are of another model: names or shapes of layers differ")
        self.flat.copy_(x.flat)
        self.round()

    def round(self) -> None:
        """Give the module's narrower parameters, where it has any, what their master copy has become."""
        if self.rounded:
            torch._foreach_copy_(self.rounded, self.masters)

    def training(self) -> None:
        """Put the module into training mode, all of it, unless it is: a walk through every layer."""
        if not self.module.training:
            self.module.train()

    def load_buffers(self, buffers: Params | None) -> None:
        """Put norm statistics into the module; every other buffer is as at the start, whoever trained here before."""
        if not self.first:
            return
        there = dict(self.module.named_buffers())
        for name, value in self.first.items():
            there[name].copy_(value)
        for name, value in buffers.items() if buffers is not None else ():
            there[name].copy_(value)

    def collect(self) -> None:
        """Bring gradients home that lie elsewhere: narrower ones, and all where a loss has called ``zero_grad``."""
        for p, home in self.slopes:
            if p.grad is not home:
                home.zero_() if p.grad is None else home.copy_(p.grad)
                p.grad = home if p.dtype == home.dtype else None

    def batch(self, task: Task, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """A task's examples where the module is. Inputs in float32 become what the first layer is."""
        batch = to_device(task.batch(indices, generator), self.device)
        if self.begins != torch.float32 and isinstance(task, Supervised) and type(batch) is tuple:
            inputs, *rest = batch
            batch = (inputs.to(self.begins) if inputs.dtype == torch.float32 else inputs, *rest)
        return batch

    def params(self) -> Params:
        """A copy of what is in the module."""
        return Params(self.layout, self.flat.detach().to("cpu", copy=True))

    def buffers(self) -> Params | None:
        """A copy of the norm statistics, as they are now; None for a model without."""
        if not self.moving:
            return None
        there = dict(self.module.named_buffers())  # by name: a forward pass may have put another tensor there
        return Params.of((name, there[name].cpu()) for name in self.moving)

    def probe(self, task: Task) -> None:
        """Find out, by one forward pass in training mode, which buffers move and whether dice are thrown."""
        before = torch.get_rng_state()
        try:
            self.module.train()
            with torch.no_grad():
                losses = task.loss(self.module, self.batch(task, torch.arange(min(2, len(task)), device="cpu")))
            self.random = not torch.equal(before, torch.get_rng_state())
        finally:
            torch.set_rng_state(before)
        if not isinstance(losses, Tensor) or losses.ndim != 1:
            raise ValueError(f"{type(task).__name__}.loss must give one value an example, of shape [b]: do not average")
        if self.device.type != "cpu":  # whose generator was not looked at
            layers = self.module.modules()
            self.random = any(getattr(m, "p", 0.0) or getattr(m, "dropout", 0.0) for m in layers)
        there = dict(self.module.named_buffers())
        floats = [name for name, b in self.first.items() if b.is_floating_point()]
        self.moving = tuple(name for name in floats if not torch.equal(there[name], self.first[name]))
        self.load_buffers(None)


def made(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module initialised under ``seed``; torch's own generator is left as it was.

    Raises ``ValueError`` where ``factory`` needs arguments, or makes no module.
    """
    name = getattr(factory, "__name__", type(factory).__name__)
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ValueError(
            f"model={name}: it cannot be called without arguments ({error}); give a module, {name}(...), or a function "
            f"that makes one, lambda: {name}(...)"
        ) from None
    except ValueError:  # there is no signature to be had
        pass
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key(seed).number("model"))
        module = factory()
    require(isinstance(module, nn.Module), f"model={name}: it made {module!r}, which is no module")
    return module


def floats(module: nn.Module) -> torch.dtype:
    """The type of a model's vector: 64-bit floats if any of its trainable parameters is one, else 32-bit floats."""
    return Layout.of((name, p) for name, p in module.named_parameters() if p.requires_grad).dtype


def train(slot: Slot, task: Task, request: Local, key: Key) -> Trained:
    """Local training from ``request.x``, as its :class:`Trainer` says. Raises :class:`NonFinite`."""
    trainer, w, g = request.trainer, slot.flat, slot.grad
    slot.load(request.x)
    if request.buffers is not None:
        slot.load_buffers(request.buffers)
    slot.training()
    fewest = 2 if slot.batch_norm else 1
    if len(task) < fewest:
        raise ValueError(f"client {key.client} has {len(task)} example: batch norm needs {fewest} to train on")
    if trainer.batch is not None and trainer.batch < fewest:
        raise ValueError(f"client {key.client}: batch norm needs {fewest} examples at a time, not {trainer.batch}")
    generator = key.generator("batches")
    rows = order(task, request, key, generator, fewest)
    if request.gradient:
        return _looked(slot, task, request, key, slot.batch(task, rows[0], generator))
    offset = None if request.offset is None else request.offset.flat.to(slot.device)
    anchor = (request.anchor or request.x).flat.to(slot.device) if trainer.prox else None
    begun = request.memory or trainer.begin(slot.layout)
    vectors, taken = [v.flat.to(slot.device, copy=True) for v in begun.vectors], begun.steps
    loss_of = partial(task.loss, slot.module)
    if request.loss is not None:
        loss_of = partial(request.loss, _Net(slot, key), task)
    lr, total, steps, seen, shares = trainer.rate(key), w.new_zeros(()), 0, 0, 0.0
    mask = None if request.mask is None else request.mask.flat.to(slot.device)
    part = None
    if request.shift is not None:
        part = request.shift.flat.to(slot.device) / len(rows)
    still = [] if request.mask is None or request.loss is not None else held(slot, request.mask)
    for row in rows:
        indices = row if row[-1] >= 0 else row[row >= 0]
        g.zero_()
        with without_gradients(still):
            losses = loss_of(slot.batch(task, indices, generator))
            losses.mean().backward()  # type: ignore[no-untyped-call]  # adds into g
        slot.collect()
        total += losses.detach().sum()
        steps += 1
        seen += len(losses)
        step = bent(g, w, trainer, offset, anchor, vectors, taken + steps)
        if request.basis is not None:
            step = projected(step, request.basis)
        if mask is not None:
            step = step * mask
        share = trainer.warmed(taken + steps)
        w.add_(step, alpha=-lr * share)
        shares += share
        if part is not None:
            w.add_(part)
        slot.round()
    loss = float(total) / seen
    x = slot.params()
    if not math.isfinite(loss) or not x.finite():
        raise NonFinite(diverged(task, trainer, loss, key))
    ended = Memory(tuple(Params(slot.layout, v.to("cpu", copy=True)) for v in vectors), taken + steps)
    return Trained(x, steps, loss, ended, lr * shares, slot.buffers())


def _looked(slot: Slot, task: Task, request: Local, key: Key, batch: Batch) -> Trained:
    """The gradient of a batch at the model that the slot holds, with weight decay: :func:`thinwire.local.look`."""
    slot.grad.zero_()
    losses = task.loss(slot.module, batch)
    losses.mean().backward()  # type: ignore[no-untyped-call]
    slot.collect()
    if request.trainer.coupled:
        slot.grad.add_(slot.flat, alpha=request.trainer.coupled)
    loss, g = float(losses.detach().mean()), Params(slot.layout, slot.grad.to("cpu", copy=True))
    if not math.isfinite(loss) or not g.finite():
        raise NonFinite(diverged(task, request.trainer, loss, key))
    return Trained(request.x, 1, loss, Memory((g,), 1), request.trainer.rate(key), slot.buffers())


def held(slot: Slot, mask: Params) -> list[nn.Parameter]:
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


def diverged(task: Task, trainer: Trainer, loss: float, key: Key) -> str:
    """What to change where training ended in NaN or infinity: the examples, if they hold any, or the trainer."""
    who = f"round {key.round}, client {key.client}"
    for start in range(0, len(task), CHUNK):
        batch = task.batch(torch.arange(start, min(start + CHUNK, len(task)), device="cpu"))
        if what := _flaw(batch):
            return f"{who}: {what}; take these examples out, or mend them"
    advice = "" if trainer.clip is not None else f" or clip the gradients: {type(trainer).__name__}(clip=1.0)"
    return f"{who}: the loss became {loss:.3g}; lower lr={trainer.rate(key):g}{advice}"


CHUNK = 500  # examples looked at together
LOOKED = 100  # examples evaluated at once: what a convolution makes of more lies in no cache


def _flaw(batch: Batch) -> str:
    """Which part of a batch has NaN or infinity; nothing where all numbers are finite."""
    if isinstance(batch, Tensor):
        return "" if is_finite(batch) else "the examples have NaN or infinity in them"
    if isinstance(batch, tuple | list):
        names = ("inputs", "targets") if len(batch) == 2 else ()
        for part, name in zip_longest(batch, names):
            if found := _flaw(part):
                return f"the {name} have NaN or infinity in them" if name else found
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


def bent(
    g: Tensor,
    w: Tensor,
    trainer: Trainer,
    offset: Tensor | None,
    anchor: Tensor | None,
    vectors: Sequence[Tensor],
    step: int,
) -> Tensor:
    """The step to take for gradients ``g`` at ``w``, one model's or many's: what the trainer and the request add."""
    if trainer.clip is not None:
        clipped(g, trainer.clip)
    if trainer.coupled:
        g.add_(w, alpha=trainer.coupled)
    if anchor is not None:
        g.add_(w - anchor, alpha=trainer.prox)
    if offset is not None:
        g.add_(offset)
    return trainer.direction(g, w, vectors, step)


def clipped(g: Tensor, most: float) -> Tensor:
    """``g``, each model's row scaled down to the Euclidean norm ``most`` where it is longer, in place.

    The formula is that of ``torch.nn.utils.clip_grad_norm_``.
    """
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    return g.mul_((most / (norm + 1e-6)).clamp_(max=1.0))


def projected(step: Tensor, rows: Sequence[Tensor]) -> Tensor:
    """The part of a step that lies in the space of orthonormal rows."""
    part = torch.zeros_like(step)
    for row in rows:
        own = row.to(step)
        part.add_(own * torch.dot(own, step))
    return part


def order(task: Task, request: Local, key: Key, generator: torch.Generator, at_least: int = 1) -> Tensor:
    """Positions of every mini-batch, [steps, batch], -1 where a batch has no more examples.

    They are those of the task's ``order``, if it has one, else drawn: of training aside too, where it is on the
    mini-batches of an earlier request. Raises ``ValueError`` for an order without
    batches for this round, or with a batch that cannot be trained on.
    """
    rounds = None if request.aside and not request.again else getattr(task, "order", None)
    if rounds is None:
        return drawn(len(task), request.trainer, generator, at_least)
    who = f"round {key.round}, client {key.client}: the task's order"
    given = [torch.as_tensor(batch) for batch in (rounds[key.round - 1] if key.round <= len(rounds) else ())]
    require(len(given) > 0, f"{who} has no batches for this round")
    for number, batch in enumerate(given):
        fits = batch.ndim == 1 and not batch.is_floating_point() and len(batch) >= at_least
        fits = fits and int(batch.min()) >= 0 and int(batch.max()) < len(task)
        require(fits, f"{who} has at {number} {batch.tolist()}: at least {at_least} positions below {len(task)}")
    return nn.utils.rnn.pad_sequence([batch.long() for batch in given], batch_first=True, padding_value=-1)


def drawn(n: int, trainer: Trainer, generator: torch.Generator, at_least: int = 1) -> Tensor:
    """:func:`order` as it is drawn: a fresh permutation an epoch, batches of fewer than ``at_least`` left out."""
    size = n if trainer.batch is None else min(trainer.batch, n)
    epoch, steps = trainer.per_epoch(n, at_least), trainer.num_steps(n, at_least)
    orders = torch.full((-(-steps // epoch), epoch * size), -1, device="cpu")
    for order in orders:
        order[:n] = torch.randperm(n, generator=generator, device="cpu")[: epoch * size]
    return orders.view(-1, size)[:steps]


def evaluate(slot: Slot, task: Task, start: int = 0, stop: int | None = None) -> dict[str, float]:
    """The sum of every metric over examples ``start`` to ``stop`` of a task."""
    return sums(slot.module, task, partial(slot.batch, task), start, len(task) if stop is None else stop)


def means(module: nn.Module, task: Task, device: torch.device | str) -> dict[str, float]:
    """The mean of every metric (``loss`` as ``test_loss``) over a task. The module is in training mode afterwards."""
    found = sums(module, task, lambda rows: to_device(task.batch(rows), torch.device(device)), 0, len(task))
    module.train()
    return {("test_loss" if name == "loss" else name): total / len(task) for name, total in found.items()}


@torch.no_grad()
def sums(module: nn.Module, task: Task, batch: Callable[[Tensor], Batch], start: int, stop: int) -> dict[str, float]:
    """The sum of every metric over examples ``start`` to ``stop``, of which ``batch`` gives those at some positions."""
    module.eval()
    found: dict[str, float] = {}
    for first in range(start, stop, LOOKED):
        values: Mapping[str, Tensor] = task.metrics(
            module, batch(torch.arange(first, min(first + LOOKED, stop), device="cpu"))
        )
        for name, value in values.items():
            found[name] = found.get(name, 0.0) + float(value.double().sum())
    return found


def usable(device: str) -> bool:
    """Whether tensors can be put on a device."""
    try:
        torch.empty(0, device=device, dtype=torch.float32)
    except (RuntimeError, AssertionError):  # torch raises the latter where it was built without CUDA
        return False
    return True


def unusable(device: str) -> str:
    """Why :func:`usable` says no, and what to use."""
    if device.partition(":")[0] == "cuda":
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if number:
            return f"this machine has {number} CUDA devices, counted from cuda:0"
        return "this machine has no CUDA device that torch can use; use cpu"
    return "no such device here; use cpu or cuda"


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A batch of tensors, in tuples, lists or dicts, where the module is; pictures with channels last."""
    if isinstance(batch, Tensor):
        if batch.ndim == 4 and batch.is_floating_point():
            return batch.to(device, memory_format=torch.channels_last)
        return batch.to(device)
    if isinstance(batch, tuple | list):
        parts = [to_device(b, device) for b in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, dict):
        return {name: to_device(b, device) for name, b in batch.items()}
    return batch
