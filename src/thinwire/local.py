"""What a client is asked to do between two messages: train from here.

An algorithm *requests* its training and does not call it, so that a runner may train many
clients at once. A request is data only. How a client trains is a :class:`Trainer`: SGD, Adam or AdamW.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import Config
from .key import Key
from .losses import Ratio
from .params import Layout, Params
from .ranges import AboveZero, Decay, Range, Rate
from .schedules import Schedule, at
from .task import Batch, Task

__all__ = ["Local", "LocalAdam", "LocalAdamW", "LocalSGD", "Memory", "Trained", "Trainer"]


class Memory(NamedTuple):
    """What a trainer carries from step to step. Its structure is fixed by the trainer and the model."""

    vectors: tuple[Params, ...]  # SGD: its momentum, if it has any; Adam: the first and the second moment
    steps: int  # taken since the vectors were zero


class Trainer(Config, ABC):
    """How a client trains: a frozen dataclass of numbers, data only, so that a runner may train many clients at once.

    Every trainer has these fields. What differs between trainers is :meth:`direction`.

    ``lr`` is a number or a schedule by round. ``epochs`` may be a fraction; ``steps``, where given, counts mini-batches
    instead. ``batch`` None takes all examples at once. Gradients are means over the batch. A last batch of one example
    is left out for models with batch norm, which cannot be trained on it.

    ``clip``, where given, is the greatest Euclidean norm of the gradient of the loss, all layers together: a longer one
    is scaled down, as ``torch.nn.utils.clip_grad_norm_`` does it. What a method holds where it is, such as FedRep the
    body while the head is trained, has no part in the norm. What is added to the gradient comes after:
    ``weight_decay``, ``prox`` (FedProx's mu, towards the broadcast model), and the method's own corrections.

    ``warmup`` is a number of steps: step t, counted from 1, has min(1, t / warmup) times the learning rate. It
    multiplies what a schedule says for the round: ``lr=Warmup(Cosine(...), rounds=5)`` warms up by rounds,
    ``warmup=20`` by steps within them, and both together multiply.

    By default a trainer begins anew in each round: its momentum or its moments are zero, and the warm-up starts over.
    With ``keep=True`` they go on where the client's last reply left them, and steps count from the client's first.
    They are part of the client's state, as one vector of the model's size for each momentum or moment; they are never
    sent. A round whose reply was lost leaves them as they were.
    """

    example = "LocalSGD(0.1)"

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # each trainer is a dataclass: ``replace`` takes it

    lr: Rate | Schedule
    epochs: AboveZero
    batch: Annotated[int, Range(lambda x: x > 0, "must be positive or None")] | None
    weight_decay: Annotated[float, Range(lambda x: x >= 0, "it must not be negative")]
    prox: Annotated[float, Range(lambda x: x >= 0, "must not be negative")]
    steps: Annotated[int, Range(lambda x: x > 0, "must be positive or None")] | None
    warmup: Annotated[int, Range(lambda x: x >= 0, "is a number of steps, 0 or more")]
    clip: Annotated[float, Range(lambda x: x > 0, "must be positive or None")] | None
    keep: bool

    @property
    @abstractmethod
    def num_vectors(self) -> int:
        """Vectors of the model's size that go from step to step."""

    @property
    def coupled(self) -> float:
        """The weight decay that is added to the gradient; one that is decoupled is in :meth:`direction`."""
        return self.weight_decay

    @abstractmethod
    def direction(self, g: Tensor, w: Tensor, vectors: Sequence[Tensor], step: int) -> Tensor:
        """What the learning rate multiplies and the step subtracts from the model ``w``.

        ``g`` is the gradient, with all that is added to it; it may be overwritten, and returned. ``vectors`` are
        overwritten with what the next step needs. ``step`` counts from 1, since the vectors were zero. All are [d], or
        [clients, d] for clients that are trained side by side.
        """

    def begin(self, layout: Layout) -> Memory:
        """The memory before the first step."""
        return Memory(tuple(layout.zeros() for _ in range(self.num_vectors)), 0)

    def rate(self, key: Key) -> float:
        """The learning rate of the key's round, after the warm-up."""
        return at(self.lr, key.round)

    def warmed(self, step: int) -> float:
        """The share of the learning rate that a step has, counted from 1."""
        return 1.0 if step >= self.warmup else step / self.warmup

    def num_steps(self, examples: int, at_least: int = 1) -> int:
        """Mini-batches that a client with so many examples takes; those of fewer than ``at_least`` are left out."""
        return self.steps or max(1, round(self.epochs * self.per_epoch(examples, at_least)))

    def per_epoch(self, examples: int, at_least: int = 1) -> int:
        """Mini-batches of one pass over so many examples."""
        size = examples if self.batch is None else min(self.batch, examples)
        full, rest = divmod(examples, size)
        return full + (rest >= at_least)


@dataclass(frozen=True)
class LocalSGD(Trainer):
    """Mini-batch SGD on the client's own examples; the fields are those of :class:`Trainer`.

    m <- momentum m + g, w <- w - lr m, where g has weight decay, ``prox`` and the method's corrections in it.
    """

    lr: float | Schedule = 0.05
    epochs: float = 1.0
    batch: int | None = 32
    momentum: Decay = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    steps: int | None = None
    warmup: int = 0
    clip: float | None = None
    keep: bool = False

    @property
    def num_vectors(self) -> int:
        return 1 if self.momentum else 0

    def direction(self, g: Tensor, w: Tensor, vectors: Sequence[Tensor], step: int) -> Tensor:
        return vectors[0].mul_(self.momentum).add_(g) if self.momentum else g


@dataclass(frozen=True)
class LocalAdam(Trainer):
    """Adam on the client's own examples; the fields beside Adam's own are those of :class:`Trainer`.

    Kingma, Ba, ICLR 2015, arXiv:1412.6980, Algorithm 1. ``weight_decay`` is added to the gradient, as in
    ``torch.optim.Adam``; :class:`LocalAdamW` has it decoupled. The moments of ``keep=True`` are two models of float32 a
    client.

    Differences from the paper: none but ``weight_decay``.
    """

    paper = "Kingma, Ba, ICLR 2015, arXiv:1412.6980"

    lr: float | Schedule = 0.001
    epochs: float = 1.0
    batch: int | None = 32
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: AboveZero = 1e-8
    weight_decay: float = 0.0
    prox: float = 0.0
    steps: int | None = None
    warmup: int = 0
    clip: float | None = None
    keep: bool = False

    @property
    def num_vectors(self) -> int:
        return 2

    def direction(self, g: Tensor, w: Tensor, vectors: Sequence[Tensor], step: int) -> Tensor:
        m, v = vectors
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        first, second = 1 - self.beta1**step, 1 - self.beta2**step  # the corrections of m and v for their start at zero
        root = torch.clamp_min(v, torch.finfo(v.dtype).tiny, out=g).sqrt_()  # the root of 0 is slow
        root.mul_(first / math.sqrt(second)).add_(self.eps * first)
        return torch.div(m, root, out=root)  # (m / first) / (sqrt(v / second) + eps)


@dataclass(frozen=True)
class LocalAdamW(LocalAdam):
    """:class:`LocalAdam` with decoupled weight decay: w <- w - lr (m / (sqrt(v) + eps) + weight_decay w).

    Loshchilov, Hutter, ICLR 2019, arXiv:1711.05101, Algorithm 2.

    Differences from the paper: weight decay is multiplied by the learning rate, warm-up and schedule included, as in
    ``torch.optim.AdamW``.
    """

    paper = "Loshchilov, Hutter, ICLR 2019, arXiv:1711.05101"

    weight_decay: float = 0.01

    @property
    def coupled(self) -> float:
        return 0.0

    def direction(self, g: Tensor, w: Tensor, vectors: Sequence[Tensor], step: int) -> Tensor:
        return super().direction(g, w, vectors, step).add_(w, alpha=self.weight_decay)


class Local(NamedTuple):
    """Train from ``x``. Most of the other fields bend every step; None leaves it alone.

    A client's own model (``own``) has norm statistics of its own, which stay with the client. With ``aside`` training
    begins with them, and those of the shared model stay as they are. Without it, training begins with those of the
    round and moves them too.
    """

    x: Params
    trainer: Trainer
    offset: Params | None = None  # added to every gradient (SCAFFOLD)
    anchor: Params | None = None  # trainer.prox pulls towards this; None: towards x
    basis: Sequence[Tensor] | None = None  # every step is projected on these orthonormal rows (FLSS)
    mask: Params | None = None  # gradients and steps are multiplied by this (PruneFL)
    shift: Params | None = None  # added to the model, an equal part of it after every step (DOMO-S)
    memory: Memory | None = None  # where the trainer begins; None: at rest (FedAvgLM begins at the mean momentum)
    loss: Loss | None = None  # minimised in place of the task's own (MOON, FedNTD, FedGen)
    gradient: bool = False  # :func:`look`: the gradient of its first mini-batch is asked for, and the model stays
    aside: bool = False  # no training of the client's model: norm statistics and the client's loss stay as they are
    buffers: Params | None = None  # norm statistics to begin with; None: those the client has (SoftPull)
    own: bool = False  # ``x`` is the client's own model: the norm statistics that come of it are kept as that model's
    again: int = 0  # on the mini-batches (aside: and dropout) of the request so many before this one; 0: on its own


def look(x: Params, trainer: Trainer, batch: int | None = None) -> Local:
    """A request for the mean gradient at ``x`` of ``batch`` of a client's examples; None: of all, in memory at once.

    It comes back as ``Trained.gradient``, with the weight decay that ``trainer`` adds to gradients, and not clipped;
    ``Trained.x`` is of no use. Nothing else of the client moves.
    """
    return Local(x, _from_rest(trainer.lr, batch, trainer.coupled), gradient=True, aside=True)


@cache
def _from_rest(lr: float | Schedule, batch: int | None, weight_decay: float) -> LocalSGD:
    """One step from rest, after which the momentum is the gradient, for runners that know nothing else than steps.

    Made once: some methods ask at every step.
    """
    return LocalSGD(lr, batch=batch, steps=1, momentum=0.5, weight_decay=weight_decay)


@runtime_checkable
class Net(Protocol):
    """What a :class:`Loss` is given: the module in training, and the same module at other models."""

    module: nn.Module
    generator: torch.Generator  # of this client's training, on the CPU: for what a loss draws

    def other(self, x: Params, buffers: Params | None = None) -> nn.Module:
        """The module holding ``x``, in evaluation mode: it is not trained. Loaded once a training.

        ``buffers`` are its norm statistics; None: those that training begins with.
        """


class Loss(ABC):
    """What is minimised in place of the task's own loss: a frozen dataclass of numbers and Params, data only."""

    @abstractmethod
    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"] | Ratio:
        """One value an example, or a ratio."""


class Trained(NamedTuple):
    """What came of it."""

    x: Params
    steps: int
    loss: float  # what was minimised, its mean over the examples seen, before each step
    memory: Memory | None = None  # where the trainer ended
    rates: float = 0.0  # the learning rates of its steps, added up
    buffers: Params | None = None  # the norm statistics where it ended; None: the model has none, or nobody looked

    @property
    def momentum(self) -> Params | None:
        """Where the momentum of SGD ended."""
        return self.memory.vectors[0] if self.memory is not None and self.memory.vectors else None

    @property
    def gradient(self) -> Params:
        """What :func:`look` asked for. Raises ``ValueError`` after training that had no momentum."""
        if self.momentum is None:
            raise ValueError("this training has no gradient to show: ask for one by look(x, trainer)")
        return self.momentum
