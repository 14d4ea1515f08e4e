"""A live module that models are loaded into, trained in and evaluated in.

Its trainable parameters and their gradients are views of two flat vectors, so a model is loaded by one copy and a step
is a few operations on whole vectors.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..dice import put_back, seeded
from ..errors import require
from ..key import Key
from ..losses import Ratio, mean_loss
from ..params import Layout, Params, is_finite
from ..task import Batch, Supervised, Task
from .convnet import Rooms
from .device import to_device
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

LARGE = 1 << 26  # bytes of a model, from which on what a step takes and frees is worth giving back


class Slot:
    """A module that any model of its layout can be loaded into. One a worker.

    ``flat`` and ``grad`` are float64 if any parameter is, else float32. Parameters of their type are views of ``flat``.
    Narrower ones (bfloat16, and float32 beside float64) are copies of it, rounded to the nearest: ``flat`` is their
    master copy, which is trained, sent and kept.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu", ours: bool = False) -> None:
        """``ours``: nobody but thinwire holds the module, so that what is frozen in it may stay where it is."""
        refuse_module(module)
        self.module = copy_module(module, beside=ours).to(device)
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
        self.large = sum(p.nbytes for p in self.module.parameters()) > LARGE
        self.begins = next(p.dtype for p in self.module.parameters() if p.is_floating_point())  # of the first layer
        self.fewest = 1  # examples that it trains on: batch norm needs two values a channel
        self.first = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        self.moving: tuple[str, ...] = ()  # buffers that training changes: the statistics of norm layers, counters
        self.still: tuple[str, ...] = ()  # buffers that nobody is to write to, but for norm layers to theirs
        self.spares: list[Slot] = []
        self.random = False  # whether training draws from the generators that a process shares
        self.attributes = Attributes(self.module)
        self.rooms = Rooms()

    def twin(self) -> Slot:
        """Another slot for the same module, for another worker."""
        left = self.attributes.now()  # a client may be in the middle of its training
        self.attributes.restore()
        mode = self.module.training
        self.modes.train()
        try:
            other = Slot(self.module, self.device, ours=True)
        finally:
            self.module.train(mode) if not mode else None
            self.attributes.resume(left)
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
        """Raise ``ValueError`` unless a gradient of the loss reaches a trained parameter of this slot.

        The nearest one is asked first: a whole backward pass of a large model with adapters takes long.
        """
        parameters = [p for p, _ in self.slopes]
        for p in parameters:
            p.grad = None
        nearest = nearest_leaf(loss, parameters)
        if nearest is not None:
            with contextlib.suppress(RuntimeError):  # what recomputes its graph may refuse to be asked for a part
                loss.backward(inputs=[nearest], retain_graph=True)  # type: ignore[no-untyped-call]
        if loss.requires_grad and (nearest is None or nearest.grad is None):
            loss.backward()  # type: ignore[no-untyped-call]
        reached = any(p.grad is not None for p in parameters)
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


def nearest_leaf(loss: Tensor, leaves: Sequence[Tensor]) -> Tensor | None:
    """Of some leaves of a graph the one that is fewest operations away from its end; None where none is in it."""
    own, waiting = {id(leaf): leaf for leaf in leaves}, deque([loss.grad_fn])
    seen = set(waiting)
    while waiting:
        node: Any = waiting.popleft()
        leaf = own.get(id(getattr(node, "variable", None)))
        if leaf is not None:
            return leaf
        after = [step for step, _ in (node.next_functions if node is not None else ()) if step not in seen]
        seen.update(after)
        waiting.extend(after)
    return None


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
