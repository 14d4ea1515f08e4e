"""A part of a pipeline: it executes the operations of its schedule, and asks for what it needs of its neighbours.

A stage is driven as the generators of :mod:`thinwire.ddp.collectives` are. It yields :class:`~.talk.Take` and
:class:`~.talk.Give`, and is answered by whoever carries messages: a queue in memory, or a process group. So simulator
and processes compute with the same lines. A part that has replicas yields ``Mean`` and ``Gather`` too, which all
replicas of the part answer.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..ddp.worker import Worker, make_optimizer
from ..errors import NonFinite, check, require
from ..key import Key
from ..params import call_with
from ..train.precision import without_cache
from .auxiliary import Auxiliary
from .base import Op
from .losses import scale, share
from .memory import copy_state
from .messages import Messages, open_plain, plain
from .settings import Settings
from .talk import Give, Take, Talk
from .watch import Watch


@dataclass
class Kept:
    """A micro-batch that went forward and not back yet: an entry of the queue M."""

    batch: int
    micro: int
    x: Tensor | None  # the input; a leaf with a gradient where a graph is kept
    y: Tensor | None  # the targets, at the last part
    out: Tensor | None  # the output with its graph, or the loss; None: it is computed again
    version: int | None = None  # of the parameters that the graph is of; None: those of the module itself
    share: float = 1.0  # of what counts in its batch, at the last part


@dataclass
class Batch:
    """The batch that a script gives to a step."""

    x: Tensor | None = None
    y: Tensor | None = None
    examples: list[int] | None = None


@dataclass
class Stage:
    """A part: its module, optimiser, queue, and stashed parameters. ``replica`` says of which pipeline."""

    module: nn.Module
    part: int
    settings: Settings
    replica: int = 0
    steps: int = 0  # of the optimiser
    first: int = 0  # batch since the pipeline was empty
    given: int = 0  # batches
    owed: int = 0  # messages back that the next part has sent, or will without hearing more from here
    most: int = 0  # micro-batches that were in the queue at once
    queue: deque[Kept] = field(default_factory=deque)
    versions: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    losses: dict[int, list[Tensor]] = field(default_factory=dict)
    watch: Watch | None = None  # where staleness is measured

    def __post_init__(self) -> None:
        s = self.settings
        self.schedule, self.parts = s.schedule, s.parts
        self.last = self.part == self.parts - 1
        self.trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        # What replicas average, and what each keeps of it, is data-parallel training's, part by part.
        self.worker = Worker(self.module, s.optimizer, s.average, s.replicas) if s.replicas > 1 else None
        self.optimizer = self.worker.optimizer if self.worker else make_optimizer(s.optimizer, [*self.trained.values()])
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        require(
            closure is None or closure.default is not inspect.Parameter.empty,
            f"optimizer={type(self.optimizer).__name__}: its step computes gradients itself, and those of a part come "
            "from its neighbours: take one such as SGD, AdamW or NAdam",
        )
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.device = next(iter(self.trained.values())).device
        # What writes over its input must not write over what is kept of it, or over a script's batch.
        self.fresh = self.part == 0 or any(getattr(m, "inplace", False) for m in self.module.modules())
        self.statistics = any(True for _ in self.module.buffers())
        self.number = self.replica * s.parts + self.part  # among all parts of all replicas: no two draw alike
        self.auxiliary = Auxiliary(s.optimizer, Key(s.seed, client=self.part, where="pipeline"), self.device)
        self.messages = Messages(s.schedule, s.seed, self.replica, self.part, s.parts)

    # -- what a script asks for -----------------------------------------------

    def tick(self, batch: Batch) -> Talk[Tensor | None]:
        """Train with one batch more; returns the loss, at the last part, of the batch that went back."""
        number = self.given
        yield from self._do(self.schedule.tick(self.part, self.parts, number, self.first), batch)
        if not self.last:
            after = self.schedule.tick(self.part + 1, self.parts, number, self.first)
            self.owed += sum(op.do in ("backward", "guess") for op in after)
        self.given += 1
        return self._loss()

    def drain(self) -> Talk[Tensor | None]:
        """Everything that is on its way comes home; returns the mean loss of what went back."""
        yield from self._do(self.schedule.drain(self.part, self.parts, self.first, self.given), Batch())
        self.owed, self.first = 0, self.given
        self.versions = {}
        return self._loss()

    def look(self, x: Tensor | None, number: int) -> Talk[Tensor | None]:
        """Outputs, at the last part, in evaluation mode; nothing changes."""
        if self.part:
            x = open_plain((yield Take("look", number, 0)))
        elif x is None:
            raise ValueError("predict(x): the first part needs the inputs")
        judged = yield from self._judge()
        modes = [(module, module.training) for module in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad(), self._holding(judged):
                out = self._call(x.to(self.device, copy=self.fresh), {})
        finally:
            for module, training in modes:
                module.training = training
        if self.last:
            return out
        yield Give("look", number, 0, plain(out))
        return None

    def whole(self) -> Talk[dict[str, Tensor]]:
        """The part's ``state_dict()``, copied: of replicas the model that their method is judged by."""
        judged = yield from self._judge()
        with self._holding(judged):
            state: dict[str, Tensor] = copy_state(self.module.state_dict())
        return state

    def _judge(self) -> Talk[Tensor | None]:
        return None if self.worker is None else (yield from self.worker.output()).clone()

    @contextmanager
    def _holding(self, flat: Tensor | None) -> Iterator[None]:
        """Other parameters, until the block ends."""
        if self.worker is None or flat is None:
            yield
            return
        before = self.worker.vector.flat.clone()
        self.worker.vector.flat.copy_(flat)
        try:
            yield
        finally:
            self.worker.vector.flat.copy_(before)

    def _do(self, ops: Sequence[Op], batch: Batch) -> Talk[None]:
        for op in ops:
            if op.do == "forward":
                yield from self._forward(op, batch)
            elif op.do in ("backward", "guess"):
                yield from self._backward(op)
            elif op.do == "teach":
                error = yield from self._error(op)
                self.auxiliary.teach(op.batch, error)
            else:
                yield from self._step(op)

    def _loss(self) -> Tensor | None:
        """The mean loss of the batches that went back entirely."""
        done = [b for b, losses in self.losses.items() if len(losses) == self.schedule.pieces]
        losses = [loss for b in done for loss in self.losses.pop(b)]
        if not losses:
            return None
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    # -- operations -----------------------------------------------------------

    def _forward(self, op: Op, batch: Batch) -> Talk[None]:
        y = self._piece(batch.y, op, "targets y", "last") if self.last else None
        examples = self._examples(batch, op)
        if self.part == 0:
            x = self._piece(batch.x, op, "inputs x", "first")
            if op.keep != "graph":  # it may go back in a later step, and a script may reuse its batch
                x = x.clone()
        else:
            packet = yield Take("forward", op.batch, op.micro)
            x = self.messages.unpack(packet, "activations", op, examples)
        if y is not None:
            y = y.to(self.device)
            y = y.clone() if op.keep != "graph" else y
        kept = Kept(op.batch, op.micro, x.to(self.device), y, None)
        if y is not None and batch.y is not None:
            kept.share = share(y, batch.y, self.schedule.pieces)
        if op.keep == "input":
            # The last part has nothing to hand on, and computes when it goes back.
            out = None if self.last else self._apart(kept)
        else:
            if op.keep == "weights":
                kept.version = self.steps if op.version is None else op.version
                self._stash(kept.version)
            self.graph(kept)
            out = kept.out
        if self.watch is not None:
            self.watch.forward(op.batch, self.steps if kept.version is None else kept.version, self._weights(kept))
        self.queue.append(kept)
        self.most = max(self.most, len(self.queue))
        if not self.last:
            assert out is not None
            self._check_output(out)
            packet, usual = self.messages.pack(out, "activations", op, examples)
            yield Give("forward", op.batch, op.micro, packet, usual)

    def _backward(self, op: Op) -> Talk[None]:
        kept = self.queue.popleft()
        assert (kept.batch, kept.micro) == (op.batch, op.micro), "a schedule whose queue is not first in, first out"
        error = None
        if op.do == "guess":
            assert kept.out is not None
            error = self.auxiliary.guess(op.batch, kept.out)
        elif not self.last:
            error = yield from self._error(op)
        if kept.out is None:
            self.graph(kept)
        out = kept.out
        assert out is not None
        assert kept.x is not None
        if error is not None:
            fits = error.shape == out.shape
            check(fits, f"an error gradient of {list(out.shape)} for batch {op.batch}, not {list(error.shape)}")
        else:
            if not math.isfinite(loss := float(out.detach())):  # before a neighbour makes a step of it
                raise NonFinite(f"batch {op.batch}: the loss became {loss:.3g}; lower the learning rate, or clip")
            self.losses.setdefault(op.batch, []).append(out.detach())
            if self.schedule.pieces > 1:
                out = out / self.schedule.pieces
        if self.watch is not None:
            self.watch.backward(self.trained)
        torch.autograd.backward(out, None if error is None else error.to(out.dtype))
        if kept.version is not None:
            self._harvest(self.versions[kept.version])
            if all(other.version != kept.version for other in self.queue):
                self._forget()
        if self.part:
            slope = kept.x.grad if kept.x.grad is not None else torch.zeros_like(kept.x)
            yield Give("backward", op.batch, op.micro, *self.messages.pack(slope, "gradients", op))

    def _error(self, op: Op) -> Talk[Tensor]:
        """The error gradient of this part's output, from the part after."""
        packet = yield Take("backward", op.batch, op.micro)
        error = self.messages.unpack(packet, "gradients", op).to(self.device)
        self.owed -= 1
        return error

    def _step(self, op: Op) -> Talk[None]:
        s = self.settings
        if s.rate is not None:
            factor = s.rate(op.batch, self.part)
            fits = 0 <= factor < math.inf
            require(fits, f"rate({op.batch}, {self.part}) is {factor}: a factor of the learning rate, at least 0")
            for group, lr in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = lr * factor
        if self.schedule.lookback:
            self._stash(self.steps)  # a batch to come may ask for the parameters as they were
        if self.watch is not None:
            self.watch.step(op.batch, self.trained)
        if self.worker is None:
            self._clip()
            self.optimizer.step()
        else:
            yield from self.worker.step(Key(s.seed, self.steps, self.replica, f"pipeline/{self.part}"), self._clip)
            self.worker.leave()
        self.optimizer.zero_grad()
        self.steps += 1
        self._forget()

    def _clip(self) -> None:
        if self.settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.trained.values()), self.settings.clip)

    # -- forward passes -------------------------------------------------------

    def _apart(self, kept: Kept) -> Tensor:
        """The output with the current parameters and no graph; running statistics stay as they are."""
        assert kept.x is not None
        with torch.no_grad(), self._dice(kept):
            return self._call(kept.x.clone() if self.fresh else kept.x, self._buffers())

    def graph(self, kept: Kept, still: bool = False) -> None:
        """The output, or the loss, with a graph; ``still``: running statistics stay as they are."""
        assert kept.x is not None
        x = kept.x.detach()
        if self.part:
            x.requires_grad_()
        kept.x = x
        weights = {} if kept.version is None else self.versions[kept.version]
        with torch.enable_grad(), self._dice(kept):
            out = self._call(x.clone() if self.fresh else x, {**weights, **(self._buffers() if still else {})})
            if self.last:
                assert kept.y is not None
                out = scale(self.settings.loss, out, kept.y, kept.share, self.schedule.pieces)
        kept.out = out

    def plain(self, x: Tensor, batch: int, micro: int) -> Tensor:
        """The output for a micro-batch, with a graph, at the parameters as they are; nothing changes."""
        with torch.enable_grad(), self._dice(Kept(batch, micro, None, None, None)):
            return self._call(x.clone() if self.fresh else x, self._buffers())

    def _weights(self, kept: Kept) -> Mapping[str, Tensor]:
        """The parameters that its forward pass has."""
        return self.trained if kept.version is None else self.versions[kept.version]

    def _call(self, x: Tensor, others: dict[str, Tensor]) -> Tensor:
        with without_cache(self.device):
            out: Tensor = call_with(self.module, others, (x,)) if others else self.module(x)
        return out

    def _buffers(self) -> dict[str, Tensor]:
        """Copies for a forward pass to write over."""
        return {n: b.clone() for n, b in self.module.named_buffers()} if self.statistics else {}

    @contextmanager
    def _dice(self, kept: Kept) -> Iterator[None]:
        """Random layers draw what this part, batch and micro-batch always draw; torch's generators stay as they are."""
        generators = [torch.default_generator]
        if self.device.type == "cuda":
            generators.append(torch.cuda.default_generators[self.device.index or 0])
        before = [g.get_state() for g in generators]
        number = Key(self.settings.seed, kept.batch, self.number, f"pipeline/{kept.micro}").number("dice")
        for g in generators:
            g.manual_seed(number)
        try:
            yield
        finally:
            for g, state in zip(generators, before, strict=True):
                g.set_state(state)

    def _check_output(self, out: Any) -> None:
        fits = isinstance(out, Tensor) and out.is_floating_point()
        what = f"a tensor of {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        require(fits, f"part {self.part} gives {what}: the parts of a chain hand on one tensor of floats")

    # -- stashed parameters ---------------------------------------------------

    def _stash(self, version: int) -> None:
        if version not in self.versions:
            assert version == self.steps, "a schedule that asks for parameters that are gone"
            self.versions[version] = {n: p.detach().clone().requires_grad_() for n, p in self.trained.items()}

    def _harvest(self, weights: dict[str, Tensor]) -> None:
        """The gradients of a copy become those of the parameters."""
        for name, p in self.trained.items():
            grad, weights[name].grad = weights[name].grad, None
            if grad is not None:
                p.grad = grad if p.grad is None else p.grad.add_(grad)

    def _forget(self) -> None:
        """Let go of copies that nobody will ask for."""
        used = {kept.version for kept in self.queue}
        oldest = self.steps - self.schedule.lookback
        self.versions = {v: w for v, w in self.versions.items() if v in used or v >= oldest}

    # -- what a script gives --------------------------------------------------

    def _piece(self, whole: Tensor | None, op: Op, what: str, which: str) -> Tensor:
        if whole is None:
            raise ValueError(f"step(x, y): the {which} part needs the {what}")
        pieces = self.schedule.pieces
        require(
            len(whole) % pieces == 0,
            f"batch {op.batch} has {len(whole)} examples, which are not {pieces} micro-batches of equal size: "
            "drop the last batch of an epoch where it is smaller (drop_last=True)",
        )
        return whole if pieces == 1 else whole.chunk(pieces)[op.micro]

    def _examples(self, batch: Batch, op: Op) -> list[int] | None:
        if batch.examples is None or self.schedule.pieces == 1:
            return batch.examples
        size = len(batch.examples) // self.schedule.pieces
        return batch.examples[op.micro * size : (op.micro + 1) * size]
