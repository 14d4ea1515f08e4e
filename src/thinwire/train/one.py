"""One client's training on a live module, at the cost of a bare loop.

The module's trainable parameters and their gradients are views of two flat vectors, so a
model is loaded by one copy and a step is a few operations on whole vectors. torch.optim
is not used: its first optimiser costs a second of imports.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..dice import put_back, seeded
from ..errors import NonFinite, require
from ..key import Key
from ..local import Local, Memory, Trained, Trainer
from ..params import Layout, Params, is_finite
from ..task import Batch, Perplexity, Ratio, Supervised, Task, mean_loss
from .given import (
    Attributes,
    Written,
    aliases,
    by_batch,
    copy_module,
    moving_buffers,
    norm_buffers,
    refuse_module,
    values_a_channel,
)
from .modes import Modes
from .precision import without_cache


class Slot:
    """A module that any model of its layout can be loaded into. One a worker.

    ``flat`` and ``grad`` are float64 if any parameter is, else float32. Parameters of their type are views of ``flat``.
    Narrower ones (bfloat16, and float32 beside float64) are copies of it, rounded to the nearest: ``flat`` is their
    master copy, which is trained, sent and kept.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        refuse_module(module)
        self.module = copy_module(module).to(device)
        self.aliases = aliases(module)  # a copy has them no more
        self.modes = Modes(self.module)  # a layer that its user froze stays so
        self.modes.train()
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
        self.places: list[tuple[nn.Parameter, int]] = []  # every parameter, and where it lies
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
            self.places.append((p, p.data_ptr()))
        self.begins = next(p.dtype for p in self.module.parameters() if p.is_floating_point())  # of the first layer
        self.fewest = 1  # examples that it trains on: batch norm needs two values a channel
        self.first = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        self.moving: tuple[str, ...] = ()  # buffers that training changes: the statistics of norm layers, counters
        self.still: tuple[str, ...] = ()  # buffers that nobody is to write to, but for norm layers to theirs
        self.spares: list[Slot] = []
        self.random = False  # whether training draws from the generators that a process shares
        self.attributes = Attributes(self.module)

    def twin(self) -> Slot:
        """Another slot for the same module, for another worker."""
        left = self.attributes.now()  # a client may be in the middle of its training
        self.attributes.restore()
        mode = self.module.training
        self.modes.train()
        try:
            other = Slot(self.module, self.device)
        finally:
            self.module.train(mode) if not mode else None
            self.attributes.put(left)
        other.first, other.moving, other.still = self.first, self.moving, self.still
        other.random, other.fewest = self.random, self.fewest
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
        """Put a model into the module, whose attributes are as they were given, whoever trained here: one copy."""
        if x.layout != self.layout:
            raise ValueError("these parameters are of another model: names or shapes of layers differ")
        self.attributes.restore()
        self.flat.copy_(x.flat)
        self.round()

    def round(self) -> None:
        """Give the module's narrower parameters, where it has any, what their master copy has become."""
        if self.rounded:
            torch._foreach_copy_(self.rounded, self.masters)

    def training(self) -> None:
        """Put the module into training mode, as it was given, unless it is: a walk through every layer."""
        if not self.module.training:
            self.modes.train()

    @torch.no_grad()
    def load_buffers(self, buffers: Params | None) -> None:
        """Put norm statistics into the module; every other buffer is as at the start, whoever trained here before.

        Whole numbers travel among the statistics as floats, whose mean over clients is rounded to the nearest.
        """
        if not self.first:
            return
        there = dict(self.module.named_buffers())
        for name, value in self.first.items():
            there[name].copy_(value)
        for name, value in buffers.items() if buffers is not None else ():
            there[name].copy_(value if there[name].is_floating_point() else value.round())

    def collect(self) -> None:
        """Bring gradients home that lie elsewhere: narrower ones, and all where a loss has called ``zero_grad``."""
        for p, home in self.slopes:
            if p.grad is not home:
                home.zero_() if p.grad is None else home.copy_(p.grad)
                p.grad = home if p.dtype == home.dtype else None

    def batch(self, task: Task, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """A task's examples where the module is. Inputs in floats become what the first layer is."""
        batch = to_device(task.batch(indices, generator), self.device)
        if isinstance(task, Supervised) and type(batch) is tuple:
            inputs, *rest = batch
            batch = (inputs.to(self.begins) if inputs.is_floating_point() else inputs, *rest)
        return batch

    def params(self) -> Params:
        """A copy of what is in the module."""
        return Params(self.layout, self.flat.detach().to("cpu", copy=True))

    def buffers(self) -> Params | None:
        """A copy of the buffers that move, as they are now; None for a model without. Raises ``ValueError`` for a
        counter that has become too large.
        """
        if not self.moving:
            return None
        there = dict(self.module.named_buffers())  # by name: a forward pass may have put another tensor there
        for name in self.moving:
            self._travels(name, there[name])
        return Params.of((name, there[name].cpu()) for name in self.moving)

    def _travels(self, name: str, value: Tensor) -> None:
        """Raise ``ValueError`` for a buffer that cannot be averaged and sent, naming it."""
        first, advice = self.first[name], "freeze its layer (eval()), or keep it out of the module"
        require(
            value.shape == first.shape,
            f"buffer {name!r} grew from {list(first.shape)} to {list(value.shape)} in training: statistics keep their "
            f"shape from round to round; let the module see a batch before, or {advice}",
        )
        require(not value.is_complex(), f"buffer {name!r} moves in training and is complex: {advice}")
        if not value.is_floating_point() and value.dtype != torch.bool:
            require(
                value.numel() == 0 or int(value.abs().max()) <= EXACT,
                f"buffer {name!r} counted beyond {EXACT}, above which whole numbers do not travel exactly: {advice}",
            )

    def probe(self, tasks: Sequence[Task] = (), trains: bool = True) -> None:
        """Find out, by a forward pass in training mode for each kind of task, which buffers move, whether dice are
        thrown, and how few examples can be trained on.

        What the module says of its buffers counts, and what a pass writes to, whatever the examples are. Raises
        ``ValueError`` where no gradient reaches a trained parameter, unless the module is not to train here
        (``trains``), and for a moving buffer that cannot be sent.
        """
        self.modes.train()
        moving, largest = moving_buffers(self.module), dict[type, Task]()
        for task in tasks:
            kind = type(task)
            largest[kind] = max(largest.get(kind, task), task, key=len)
        for task in largest.values():
            moving |= self._pass(task, trains)
        self.moving = tuple(name for name in self.first if name in moving)
        self.still = tuple(name for name in self.first if name not in moving | norm_buffers(self.module))
        for name in self.moving:
            first = self.first[name]
            require(
                not first.is_floating_point() or is_finite(first),
                f"buffer {name!r} moves in training and begins at NaN or infinity, which has no mean over clients: let "
                f"the module see a batch before, or freeze its layer (eval())",
            )
            self._travels(name, first)

    def _pass(self, task: Task, trains: bool) -> set[str]:
        """One forward and backward pass over two examples; returns the buffers that it wrote to."""
        hooks = [m.register_forward_pre_hook(self._narrow) for m in self.module.modules() if by_batch(m)]
        rows, written = torch.arange(2, device="cpu") % len(task), Written(self.module)
        views = [(layer, key, getattr(self.module.get_submodule(layer), key)) for layer, key in self.aliases]
        try:
            with put_back() as dice:
                losses = task.loss(self.module, self.batch(task, rows, Key(0).generator("probe")))
                check_loss(losses, task, len(rows))
                self._in_place()
                self.random = self.random or dice.differs()
                names = written.names() - norm_buffers(self.module)
                for layer, key, view in views:
                    require(
                        getattr(self.module.get_submodule(layer), key) is not view,
                        f"attribute {key!r} of layer {layer!r} is a tensor in the memory of a trained parameter, which "
                        f"moves to other memory: keep no view of it, or make it anew in every forward pass",
                    )
                if trains:
                    self._check_gradient(mean_loss(losses))
            if self.device.type != "cpu":  # whose generator was not looked at
                layers = self.module.modules()
                self.random = self.random or any(getattr(m, "p", 0.0) or getattr(m, "dropout", 0.0) for m in layers)
            there = dict(self.module.named_buffers())
            strange = sorted(names - self.first.keys())
            require(
                not strange,
                f"buffer {strange[0] if strange else ''!r} appears in training: register it when the module is made",
            )
            for name in sorted(names):
                self._travels(name, there[name])
        finally:
            for hook in hooks:
                hook.remove()
            self.grad.zero_()
            self.attributes.restore()
            self.load_buffers(None)
        return names

    def watch(self) -> Callable[[], None]:
        """A check for the end of a training that begins now: what is taken to stay where it is has stayed.

        It raises ``ValueError`` with the name of a buffer that moved, or of a parameter that was put elsewhere.
        """
        written = Written(self.module) if self.still else None

        def check() -> None:
            moved = sorted(written.names() & set(self.still)) if written is not None else []
            require(
                not moved,
                f"buffer {moved[0] if moved else ''!r} moved in training, which nothing said before, so that it would "
                f"be lost between rounds: write to it in every forward pass in training, or in the module's own class",
            )
            self._in_place()

        return check

    def _in_place(self) -> None:
        """Raise ``ValueError`` where a forward pass gave a parameter other memory."""
        away = [n for n, (p, at) in zip(self.layout.names, self.places, strict=True) if p.data_ptr() != at]
        require(
            not away,
            f"parameter {away[0] if away else ''!r} was given other memory in training (p.data = ...), where it is "
            f"not trained: write into it, p.data.copy_(...)",
        )

    def _check_gradient(self, loss: Tensor) -> None:
        """Raise ``ValueError`` unless a gradient of the loss reaches a trained parameter of this slot."""
        for p, _ in self.slopes:
            p.grad = None
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        reached = any(p.grad is not None for p, _ in self.slopes)
        for p, home in self.slopes:
            p.grad = home if p.dtype == home.dtype else None
        require(
            reached,
            "no gradient of the loss reaches a parameter that is trained: the model would stay as it is. Does its "
            "forward pass compute with the parameters that named_parameters() gives, and under no_grad nowhere?",
        )

    def _narrow(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A batch-norm layer is about to see two examples: with one value a channel of each, fewer are not enough."""
        if values_a_channel(layer, inputs) < 2:
            self.fewest = 2


EXACT = 1 << 24  # whole numbers up to this are 32-bit floats


def check_loss(losses: Any, task: Task, examples: int) -> None:
    """Raise ``ValueError`` unless a loss is one value an example, or a :class:`Ratio` of them."""
    if isinstance(losses, Ratio):
        losses.check(f"{type(task).__name__}.loss")
        return
    who = f"{type(task).__name__}.loss must give one value an example, of shape [b]"
    require(isinstance(losses, Tensor) and losses.ndim == 1, f"{who}: do not average")
    require(
        len(losses) == examples,
        f"{who}, and gives {len(losses)} for {examples} examples: average over what an example is made of, or give "
        f"Ratio(totals, counts) where some count more than others",
    )


def make_module(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
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
    with seeded(Key(seed).number("model")):
        module = factory()
    require(isinstance(module, nn.Module), f"model={name}: it made {module!r}, which is no module")
    return module


def floats(module: nn.Module) -> torch.dtype:
    """The type of a model's vector: 64-bit floats if any of its trainable parameters is one, else 32-bit floats.

    Raises ``ValueError`` for a module that cannot be trained here.
    """
    refuse_module(module)
    return Layout.of((name, p) for name, p in module.named_parameters() if p.requires_grad).dtype


def train(slot: Slot, task: Task, request: Local, key: Key) -> Trained:
    """Local training from ``request.x``, as its :class:`Trainer` says. Raises :class:`NonFinite`."""
    with without_cache(slot.device):
        return _train(slot, task, request, key)


def _train(slot: Slot, task: Task, request: Local, key: Key) -> Trained:
    trainer, w, g = request.trainer, slot.flat, slot.grad
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
        step = bend(g, w, trainer, offset, anchor, vectors, taken + steps)
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


def bend(
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


def order(task: Task, request: Local, key: Key, generator: torch.Generator, at_least: int = 1) -> Tensor:
    """Positions of every mini-batch, [steps, batch], -1 where a batch has no more examples.

    They are those of the task's ``order``, if it has one, else drawn: of training aside too, where it is on the
    mini-batches of an earlier request. Raises ``ValueError`` for an order without
    batches for this round, or with a batch that cannot be trained on.
    """
    rounds = None if request.aside and not request.again else getattr(task, "order", None)
    if rounds is None:
        return draw_batches(len(task), request.trainer, generator, at_least)
    who = f"round {key.round}, client {key.client}: the task's order"
    batches = rounds[key.round - 1] if key.round <= len(rounds) else ()
    given = [torch.as_tensor(batch, device="cpu") for batch in batches]
    require(len(given) > 0, f"{who} has no batches for this round")
    for number, batch in enumerate(given):
        fits = batch.ndim == 1 and not batch.is_floating_point() and len(batch) >= at_least
        fits = fits and int(batch.min()) >= 0 and int(batch.max()) < len(task)
        require(fits, f"{who} has at {number} {batch.tolist()}: at least {at_least} positions below {len(task)}")
    return nn.utils.rnn.pad_sequence([batch.long() for batch in given], batch_first=True, padding_value=-1)


def draw_batches(n: int, trainer: Trainer, generator: torch.Generator, at_least: int = 1) -> Tensor:
    """:func:`order` as it is drawn: a fresh permutation an epoch, batches of fewer than ``at_least`` left out."""
    size = n if trainer.batch is None else min(trainer.batch, n)
    epoch, steps = trainer.per_epoch(n, at_least), trainer.num_steps(n, at_least)
    orders = torch.full((-(-steps // epoch), epoch * size), -1, device="cpu")
    for order in orders:
        order[:n] = torch.randperm(n, generator=generator, device="cpu")[: epoch * size]
    return orders.view(-1, size)[:steps]


class Part(NamedTuple):
    """A metric over some examples: what it adds up to, and over how much. 64-bit floats."""

    total: float
    weight: float
    exp: bool = False  # whether the mean's exponential is shown (perplexity)

    def plus(self, other: Part) -> Part:
        """Over the examples of both."""
        return Part(self.total + other.total, self.weight + other.weight, self.exp)

    @property
    def mean(self) -> float:
        """NaN where nothing was counted."""
        mean = self.total / self.weight if self.weight else math.nan
        if not self.exp:
            return mean
        return math.exp(mean) if mean < 700 else math.inf


def evaluate(slot: Slot, task: Task, start: int = 0, stop: int | None = None) -> dict[str, Part]:
    """Every metric over examples ``start`` to ``stop`` of a task, in parts that can be added."""
    with without_cache(slot.device):
        return sums(slot.module, task, partial(slot.batch, task), start, len(task) if stop is None else stop)


def means(module: nn.Module, task: Task, device: torch.device | str) -> dict[str, float]:
    """The mean of every metric (``loss`` as ``test_loss``) over a task. The module's layers keep their modes."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        parts = sums(module, task, lambda rows: to_device(task.batch(rows), torch.device(device)), 0, len(task))
    finally:
        for part, training in modes:
            part.training = training
    return {("test_loss" if name == "loss" else name): part.mean for name, part in parts.items()}


def mean_metrics(parts: Iterable[Mapping[str, Part]]) -> dict[str, float]:
    """The means of metrics over several parts of a task."""
    return {name: part.mean for name, part in add_parts(parts).items()}


def add_parts(parts: Iterable[Mapping[str, Part]]) -> dict[str, Part]:
    """Metrics over the examples of all parts."""
    whole: dict[str, Part] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = whole[name].plus(value) if name in whole else value
    return whole


@torch.no_grad()
def sums(module: nn.Module, task: Task, batch: Callable[[Tensor], Batch], start: int, stop: int) -> dict[str, Part]:
    """Every metric over examples ``start`` to ``stop``, of which ``batch`` gives those at some positions.

    Raises ``ValueError`` for a metric that is a mean already.
    """
    module.eval()
    fewest = 2 if any(map(by_batch, module.modules())) else 1  # batch norm without running statistics
    rows = [torch.arange(*chunk, device="cpu") for chunk in portions(start, stop, LOOKED, fewest)]
    return add_parts(tally(task, module, batch(chunk), len(chunk)) for chunk in rows)


def tally(task: Task, module: nn.Module, batch: Batch, examples: int) -> dict[str, Part]:
    """Every metric of a batch of so many examples. Raises ``ValueError`` for one that is a mean already."""
    metrics: Mapping[str, Tensor | Ratio] = task.metrics(module, batch)
    who = type(task).__name__
    return {name: _part(value, f"metric {name!r} of {who}", examples) for name, value in metrics.items()}


def portions(start: int, stop: int, size: int, fewest: int = 1) -> Iterator[tuple[int, int]]:
    """``start`` to ``stop`` in portions of ``size``; a last one of fewer than ``fewest`` goes with the one before."""
    edges = [*range(start, stop, size), stop]
    if len(edges) > 2 and edges[-1] - edges[-2] < fewest:
        del edges[-2]
    yield from pairwise(edges)


def _part(value: Any, who: str, examples: int) -> Part:
    """A metric of a batch as what it adds up to. Raises ``ValueError`` unless it is a value an example, or a ratio."""
    if isinstance(value, Ratio):
        value.check(who)
        exp = isinstance(value, Perplexity)
        return Part(float(value.totals.double().sum()), float(value.counts.double().sum()), exp)
    fits = isinstance(value, Tensor) and value.ndim == 1 and len(value) == examples
    shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    require(
        fits,
        f"{who} gives {shape} for {examples} examples: a metric is one value an example, of shape [b], whose mean is "
        f"reported; do not average. Where examples count unequally give Ratio(totals, counts)",
    )
    return Part(float(value.double().sum()), examples)


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
