"""Any link in a live training loop, in the place where DistributedDataParallel averages gradients."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import CombinationError, require
from ..params import Params
from ..wire import dumps, loads
from .average import LinkEnds, Since, alike, average, ends
from .collectives import Gather, Talk, agree
from .frozen import freeze, thaw
from .given import Given
from .handle import Compressed, Named, parameters
from .methods import Hook
from .tie import Tie

UNUSED = 3  # backward passes without a step after which it is asked whether somebody else makes steps


class AtGradient(Compressed):
    """After a backward pass every rank's gradients are the mean of what all links delivered.

    NaN or infinity in the gradients of any rank becomes infinity in those of all, so every rank's GradScaler skips
    the step. The links keep nothing of it.

    What a link remembers has two phases. ``ends`` is what it remembers of gradients that an optimiser has used.
    ``ahead`` is what it will remember if those that were given since are used too. A step moves ``ends`` to ``ahead``,
    for the layers that it used; a gradient that is thrown away moves ``ahead`` back to ``ends``, for its layers. So
    what was applied and what is owed add up to what plain DistributedDataParallel would have applied.
    """

    local = False

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        method: Hook,
        named: Named,
        group: dist.ProcessGroup,
        seed: int,
        debug: bool,
    ) -> None:
        assert isinstance(model, DistributedDataParallel)
        super().__init__(model, optimizers, method, named, group, seed, debug)
        self.method = method
        self.names = [name for name, _ in named]
        self.gradient = Params.of((n, torch.zeros_like(p, device="cpu")) for n, p in named)
        self.places = [layer for _, layer in self.gradient.items()]
        self.ends = self.ahead = ends(method.link, self.gradient.layout, self.group.size)
        self.memory = remembers([self.ends.sender, self.ends.receivers])
        if self.memory and (strange := self.trained.keys() - set(self.parameters_of_optimizers())):
            name = self.names[min(self.trained[p] for p in strange)]
            raise ValueError(
                f"{name!r} would be trained, and by no optimiser given to compress(): {self.name} has to know when a "
                "gradient is used. Give it all optimisers, compress(model, [first, second], ...), or freeze such "
                "parameters before DistributedDataParallel"
            )
        self.buckets: list[tuple[torch.futures.Future[Tensor], Tensor, list[int], list[Tensor]]] = []
        # What DistributedDataParallel does. It leaves a gradient alone that no rank has used, where it can be unused.
        self.dynamic = model.find_unused_parameters and not model.static_graph
        self.awaited = False  # whether it averages at the end of the next backward pass
        self.used: set[int] = set()  # in the passes that it averages at the end of
        self.always: set[int] | None = None if self.dynamic or model.static_graph else set(range(len(named)))
        # What the script does.
        self.given = Given([p for _, p in named], self.places)
        self.task: int | None = None  # of the backward pass that is made, or was last
        self.unaveraged: set[int] = set()  # gradients that have a part of this rank's own
        self.unused: set[int] = set()  # thrown away since the last message
        self.steps = dict.fromkeys(self.optimizers, 0)  # since the last message
        self.messages = 0
        self.asked = False  # whether a closure has had a gradient in the step that is being made
        # What a GradScaler does: the link works at the scale that was first.
        self.scaler: ref[GradScaler] | None = None
        self.first_scale = self.scale = 1.0
        self.stepped = self.resumed = False
        self.hooks += [optimizer.register_state_dict_post_hook(self.stamp) for optimizer in optimizers]
        for number, (_, p) in enumerate(named):
            self.hooks.append(p.register_post_accumulate_grad_hook(partial(self._came, number)))  # type: ignore[no-untyped-call]
            if self.memory:
                self.hooks.append(p.register_hook(self._coming))  # type: ignore[no-untyped-call]
        self.hooks.append(model.register_forward_hook(Tie(self._forward)))
        for optimizer in optimizers:
            self.hooks.append(optimizer.register_step_pre_hook(self._before))
            self.hooks.append(optimizer.register_step_post_hook(self._after))

    @property
    def heedful(self) -> bool:
        return self.memory

    # -- a backward pass ------------------------------------------------------

    def _forward(self, module: Any, inputs: Any, outputs: Any) -> None:
        """DistributedDataParallel decides in the forward pass whether it averages."""
        if torch.is_grad_enabled() and module.require_backward_grad_sync:
            self.awaited = True

    def _coming(self, gradient: Tensor) -> None:
        """A parameter's gradient is known, and may be added to ``p.grad``: before the first of a pass one can look."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task = task
            Variable._execution_engine.queue_callback(self._ending)
            self._look()

    def _came(self, number: int, parameter: nn.Parameter) -> None:
        """It has been added."""
        if self.awaited:
            self.used.add(number)
        else:
            self.unaveraged.add(number)
        if number in self.given.spent:
            self._fresh([number])
        if self.memory and self.asked and self.inside is not None:
            raise CombinationError(
                f"{type(self.inside).__name__} takes several gradients in one step, and {self.name} cannot know which "
                "of them the step is made of: take an optimiser of one gradient a step, a link without a memory, or "
                "DEF or one of its kin"
            )

    def _ending(self) -> None:
        """The pass has ended, but for what DistributedDataParallel asked to be called for after this."""
        Variable._execution_engine.queue_callback(self.given.mark)

    def _look(self) -> None:
        """What has become of the gradients that were given before."""
        there = self.given.there(self.given.waiting | self.given.spent)
        self.given.drop(self.given.spent - there)
        self._throw_away(self.given.waiting - there)

    def _throw_away(self, numbers: Iterable[int]) -> None:
        if not (gone := set(numbers)):
            return
        kept = self.given.waiting - gone
        self.ahead = self.ends.take(self.ahead, self._names_of(kept), self.names) if kept else self.ends
        self.given.drop(gone)
        self.unused |= gone

    def _fresh(self, numbers: Iterable[int]) -> None:
        """``ValueError`` for gradients that an optimiser has used and that are added to."""
        if stale := self.given.spent & set(numbers):
            raise ValueError(
                f"the gradient of {self.names[min(stale)]!r} was used by an optimiser's step, and another is added to "
                f"it: {self.name} would owe a part of it twice. Call optimizer.zero_grad() between a step and the next "
                "backward pass"
            )

    def bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Into its place; when the last one is there, all are sent, and the means go back into the buckets.

        By parameter and not by bucket: DDP rebuilds its buckets after the first step.
        """
        if bucket.index() == 0:
            self.buckets = []  # a backward pass may have raised half-way
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        numbers, gradients = [self.trained[p] for p in bucket.parameters()], bucket.gradients()
        self.buckets.append((future, bucket.buffer(), numbers, gradients))
        if self.always is not None:  # before the others have come; else it is not known yet what is sent
            torch._foreach_copy_([self.places[n] for n in numbers], gradients)
        if bucket.is_last():
            buckets, self.buckets = self.buckets, []
            self._all_there(buckets)
            for future, buffer, _, _ in buckets:
                future.set_result(buffer)
        return future

    @torch.no_grad()
    def _all_there(self, buckets: list[tuple[Any, Tensor, list[int], list[Tensor]]]) -> None:
        self.remember()
        since, self.awaited = self._since(), False
        sent = self.always
        if sent is None:
            sent = self.drive(self._in_use(since), "agreeing on what was used")
        self.messages += 1
        self.used.clear()
        self.unaveraged -= sent
        self._fresh(sent)
        pairs = [(n, g) for _, _, numbers, grads in buckets for n, g in zip(numbers, grads, strict=True) if n in sent]
        if not pairs:
            return
        places, gradients = [self.places[n] for n, _ in pairs], [g for _, g in pairs]
        if self.debug:
            finite = all(bool(g.isfinite().all()) for g in gradients)
            self.drive(agree([self.step, [], finite], fatal=False), "comparing what is to be sent")
        told = self.always is None  # what happened is compared already
        if told:
            torch._foreach_copy_(places, gradients)
            self.always = None if self.dynamic else sent
        arrived = self._average(self.gradient.only(self._names_of(sent)), None if told else since)
        if arrived is None:
            for gradient in gradients:
                gradient.fill_(torch.inf)
            return
        if self.memory:
            self.given.give(sent)
            self.asked = self.inside is not None
        if arrived.layout is self.gradient.layout:
            self.gradient.flat.copy_(arrived.flat)
        else:
            for name, layer in arrived.items():
                self.gradient[name].copy_(layer)
        torch._foreach_copy_(gradients, places)

    def _average(self, gradient: Params, since: Since | None) -> Params | None:
        """The mean of what the links deliver, and what they remember if it is used."""
        factor = self._factor()
        sent = gradient if factor == 1 else gradient * factor
        later = replace(self.ahead)
        arrived: Params | None = self.drive(average(self.method.link, later, sent, self.key(), since), "sending")
        self.count()
        if arrived is None:
            return None
        self.ahead = later
        return arrived if factor == 1 else arrived / factor

    def _in_use(self, since: Since) -> Talk[set[int]]:
        """The parameters that any rank has used. All that happened is compared with it."""
        mine = torch.zeros(len(self.names), dtype=torch.bool, device="cpu")
        mine[list(self.used)] = True
        answers = yield Gather(dumps([[] if since.usual else list(since), mine]))
        told = [loads(data, max_values=None) for data in answers]
        alike([Since(*words) if words else None for words, _ in told], self.key())
        used = torch.stack([theirs for _, theirs in told]).any(0)
        return set(used.nonzero().view(-1).tolist())

    def _since(self) -> Since:
        """What happened since the last message; from now on it is told anew."""
        steps = list(self.steps.values())
        self.steps = dict.fromkeys(self.optimizers, 0)
        unused, self.unused = self.unused, set()
        if not self.messages:
            return Since([1] * len(steps), [], [])
        if self.messages == UNUSED and unused and not self.stepped:
            warnings.warn(
                f"the gradients of {UNUSED} backward passes were thrown away, and no optimiser given to compress() has "
                f"made a step: if something else applies gradients, {self.name} takes them for unused, and forgets "
                "what was not sent of them. Give compress() the optimiser whose step() is called",
                stacklevel=2,
            )
        return Since(steps, self._names_of(unused), self._names_of(self.given.waiting))

    def _names_of(self, numbers: Iterable[int]) -> list[str]:
        return [self.names[number] for number in sorted(numbers)]

    # -- a step ---------------------------------------------------------------

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.enter(optimizer):
            return
        self.check_trained(optimizer)
        self.asked = False
        if not any(map(callable, (*args[1:], *kwargs.values()))):  # a closure clears gradients first
            self._usable(optimizer)

    def _usable(self, optimizer: Optimizer) -> None:
        """``ValueError`` for gradients that are not the same on all ranks, or that were used before."""
        mine = {self.trained[p] for p in parameters(optimizer) if p in self.trained}
        for number in self.given.there(mine & self.unaveraged):
            raise ValueError(
                f"the gradient of {self.names[number]!r} is this rank's own, in whole or in part, and a step with it "
                "would let ranks drift apart: the last backward pass before a step belongs outside no_sync(), and the "
                "forward pass is of the DistributedDataParallel model, not of the module in it"
            )
        if self.memory and (again := self.given.there(mine & self.given.spent)):
            raise ValueError(
                f"the gradient of {self.names[min(again)]!r} was used by a step already: {self.name} would apply it "
                "twice, and owe the rest of it once. Call optimizer.zero_grad() after a step"
            )

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.leave_step():
            return
        self.steps[optimizer] += 1
        if not self.memory:
            return
        self._meet_scaler()
        if (infinite := getattr(optimizer, "found_inf", None)) is not None and float(infinite) > 0:
            return  # an optimiser that skips steps itself
        mine = {self.trained[p] for p in parameters(optimizer) if p in self.trained}
        used = self.given.there(mine & self.given.waiting)
        if used:
            all_used = used == self.given.waiting
            self.ends = self.ahead if all_used else self.ends.take(self.ahead, self._names_of(used), self.names)
            self.given.use(used)

    # -- a scaled loss ----------------------------------------------------------

    def _factor(self) -> float:
        """What a gradient is multiplied by for the link, which remembers gradients of the scale that was first."""
        if not self.memory:
            return 1.0
        scaler = self.scaler() if self.scaler is not None else None
        if scaler is not None:
            self.scale = scaler.get_scale()
        return self.first_scale / self.scale

    def _meet_scaler(self) -> None:
        """Know the GradScaler that called this step, at the first one."""
        scaler, known = calling(), self.scaler() if self.scaler is not None else None
        if scaler is known and self.stepped:
            return
        require(
            not self.stepped,
            f"gradients are scaled by another GradScaler than in the step before, or by none, and {self.name} "
            "remembers gradients of one: let one GradScaler make all steps, or none",
        )
        self.stepped, self.scaler = True, None if scaler is None else ref(scaler)
        scale = 1.0 if scaler is None else scaler.get_scale()
        if not self.resumed:
            self.first_scale = self.scale = scale
        require(
            self.scale == scale,
            f"gradients come at a scale of {scale:g}, and what {self.name} remembers is to be used at {self.scale:g}: "
            "load the GradScaler's state where that of compress() is loaded",
        )

    # -- checkpoints ------------------------------------------------------------

    def memory_of_method(self) -> dict[str, Any]:
        self._factor()
        scale = torch.tensor([self.first_scale, self.scale], dtype=torch.float64, device="cpu")
        return {"link": freeze([self.ends.sender, self.ends.receivers]), "scale": scale}

    def take(self, state: dict[str, Any]) -> None:
        self.ends = self.ahead = LinkEnds(*thaw(state["link"], [self.ends.sender, self.ends.receivers]))
        if "scale" in state:
            self.first_scale, self.scale = state["scale"].tolist()
            self.stepped, self.resumed = False, True
        self.given = Given(self.given.parameters, self.places)
        self.unused.clear()

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        self.check_merge(self.ends.sender is None and self.ends.receivers is None, states)


def remembers(state: Any) -> bool:
    """Whether a link's state has anything in it."""
    if isinstance(state, dict):
        state = list(state.values())
    return any(map(remembers, state)) if isinstance(state, list) else state is not None


def calling() -> GradScaler | None:
    """The GradScaler whose ``step`` called what is being done. Optimisers are not told."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(scaler := frame.f_locals.get("self"), GradScaler):
            return scaler if scaler.is_enabled() else None
        frame = frame.f_back
    return None
