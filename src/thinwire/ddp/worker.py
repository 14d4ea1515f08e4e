"""One logical worker of data-parallel training: a module, an optimiser, its batches, and what its method keeps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import NonFinite, require
from ..key import Key
from ..losses import mean_loss
from ..params import Params
from ..task import Task
from ..train.device import to_device
from ..train.given import refuse_moving
from ..train.precision import without_cache
from ..wire import Packet, State, restore
from .average import LinkEnds, average, ends
from .clock import refuse
from .collectives import Talk
from .exchange import advance, output, place, settle, start
from .feedback import Feedback, Method
from .methods import Hook
from .vector import Vector


def batches(examples: int, workers: int, size: int, seed: int) -> Iterator[list[Tensor]]:
    """Positions of one mini-batch a worker, for ever: every epoch's order is dealt to the workers in turn.

    What is left of an epoch after as many whole steps as there are is not used.
    """
    enough(examples, workers, size)
    epoch = 0
    while True:
        order = torch.randperm(examples, generator=Key(seed, epoch).generator("order"), device="cpu")
        for row in order[: examples - examples % (workers * size)].view(-1, size, workers):
            yield list(row.T)
        epoch += 1


def enough(examples: int, workers: int, size: int) -> None:
    """``ValueError`` unless there is a batch for everyone."""
    for_each = "" if workers == 1 else f" for each of {workers} workers"
    fewer = "" if workers == 1 else ", or fewer workers"
    require(
        examples >= workers * size,
        f"{examples} examples are not one batch of {size}{for_each}: take smaller batches (--batch){fewer}",
    )


def make_optimizer(
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer], parameters: list[nn.Parameter]
) -> Optimizer:
    """The optimiser that a function makes of parameters.

    Raises ``ValueError`` for what is none, and for one of other parameters: it would train nothing.
    """
    made = optimizer(parameters)  # a list, which may be read twice
    groups: Any = getattr(made, "param_groups", None)
    require(
        groups is not None,
        f"optimizer: the function gives {type(made).__name__}, and an optimiser is expected, such as that of "
        "lambda p: torch.optim.SGD(p, 0.1)",
    )
    own = set(map(id, parameters))
    require(
        any(id(p) in own for group in groups for p in group["params"]),
        f"optimizer={type(made).__name__}: it has none of the parameters that are trained: make it of those that the "
        "function is given, lambda p: torch.optim.SGD(p, 0.1)",
    )
    return made


class Worker:
    """One of them: a module, an optimiser, and what its method keeps."""

    def __init__(
        self, module: nn.Module, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer], method: Method, workers: int
    ) -> None:
        self.module, self.method = module, method
        refuse_moving(module)
        refuse(method, "workers of one process make a number of steps")
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        require(bool(named), "the model has no trainable parameters: nothing would be sent")
        fragments = method.fragments if isinstance(method, Feedback) else 1
        self.vector = Vector(named, fragments)
        self.optimizer = make_optimizer(optimizer, [p for _, p in named])
        self.loss = 0.0
        if isinstance(method, Feedback):
            self.rank = start(method, self.vector.layout, self.vector.flat, workers, self.vector.parts)
        else:
            assert isinstance(method, Hook)
            # A link sees layers in their own shapes, whatever their order in memory.
            self.gradient = Params.of((n, torch.zeros_like(p, device="cpu")) for n, p in named)
            self.ends = ends(method.link, self.gradient.layout, workers)

    def grads(self, unused: Collection[str] = ()) -> dict[str, Tensor]:
        """A gradient a parameter, zero for one that was not used here; none for those that nobody has used."""
        named = zip(self.vector.layout.names, self.vector.parameters, strict=True)
        used = {name: p for name, p in named if name not in unused}
        for p in used.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        return {name: p.grad for name, p in used.items() if p.grad is not None}

    @property
    def without_gradient(self) -> list[str]:
        """The parameters that have no gradient."""
        named = zip(self.vector.layout.names, self.vector.parameters, strict=True)
        return [name for name, p in named if p.grad is None]

    def backward(self, task: Task, indices: Tensor, key: Key) -> None:
        """The gradient of a mini-batch, at the point where the method takes it."""
        self.leave(key.round)
        self.optimizer.zero_grad()
        device = self.vector.flat.device
        with without_cache(device):
            loss = mean_loss(task.loss(self.module, to_device(task.batch(indices, key.generator("augment")), device)))
            loss.backward()  # type: ignore[no-untyped-call]
        self.loss = float(loss.detach())
        if not math.isfinite(self.loss):
            raise NonFinite(f"step {key.round}: the loss became {self.loss:.3g}; lower the learning rate")

    @torch.no_grad()
    def leave(self, made: int = 0) -> None:
        """The parameters become the point where the method takes gradients, unless they are within a round.

        ``made`` is how many steps were made.
        """
        if isinstance(self.method, Feedback) and self.rank.lam and self.method.rounds.rest(made):
            place(self.rank, self.rank.lam, self.vector.flat)

    @torch.no_grad()
    def step(self, key: Key, clip: Callable[[], object] = lambda: None, unused: Collection[str] = ()) -> Talk[None]:
        """From a gradient to the next model. ``clip`` is called before the optimiser's step, to change gradients.

        ``unused`` are the parameters that no worker has used. As under DistributedDataParallel they have no gradient,
        nothing of them is sent over a ``Hook``, and what is owed of them stays owed. Raises ``NonFinite`` where a
        ``Hook`` would average a gradient that is not finite.
        """
        grads = self.grads(unused)
        if isinstance(self.method, Feedback):
            clip()
            self.optimizer.step()
            rates = [float(group["lr"]) for group in self.optimizer.param_groups if "lr" in group]
            yield from advance(self.method, self.rank, self.vector.flat, key, rates)
            return
        assert isinstance(self.method, Hook)
        torch._foreach_copy_([self.gradient[name] for name in grads], list(grads.values()))
        arrived = yield from average(self.method.link, self.ends, self.gradient.only(grads), key)
        if arrived is None:
            raise NonFinite(f"step {key.round}: a gradient became NaN or infinite; lower the learning rate")
        torch._foreach_copy_(list(grads.values()), [layer for _, layer in arrived.items()])
        clip()
        self.optimizer.step()

    def output(self) -> Talk[Tensor]:
        """The parameters, as one vector, that the method is judged by. All workers ask for them together."""
        if isinstance(self.method, Feedback):
            return (yield from output(self.method, self.rank))
        return self.vector.flat

    @property
    def memory(self) -> dict[str, State]:
        """What the method keeps between steps."""
        known = {"layout", "ranks", "parts"}
        if not isinstance(self.method, Feedback):
            return {name: value for name, value in vars(self.ends).items() if name not in known}
        settle(self.rank)
        known |= {"flight"} if self.method.owes else {"flight", "e"}
        return {name: value for name, value in vars(self.rank).items() if name not in known}

    @memory.setter
    def memory(self, memory: dict[str, Any]) -> None:
        if isinstance(self.method, Feedback):
            self.rank = replace(self.rank, **memory)
        else:
            self.ends = LinkEnds(**memory)

    def state(self) -> dict[str, State]:
        """All of it that the next step depends on. Tensors are the worker's own, not copies."""
        return {
            "parameters": self.vector.flat,
            "buffers": list(self.module.buffers()),
            "optimizer": self.optimizer.state_dict(),
            "kept": self.memory,
        }

    @torch.no_grad()
    def restore(self, packet: Packet) -> None:
        """Go on from what :meth:`state` gave, after bytes and back. Raises ``WireError`` where it does not fit."""
        mine = self.state()
        names = ("parameters", "buffers", "kept")
        state = restore({name: packet[name] for name in names}, {name: mine[name] for name in names})
        self.vector.flat.copy_(state["parameters"])
        for buffer, value in zip(self.module.buffers(), state["buffers"], strict=True):
            buffer.copy_(value)
        self.optimizer.load_state_dict(copy.deepcopy(packet["optimizer"]))  # what is loaded must not be written to
        self.memory = state["kept"]
