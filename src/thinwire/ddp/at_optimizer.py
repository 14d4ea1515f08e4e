"""DEF and its kin in a live training loop: what is sent is the optimiser's step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ..errors import CombinationError, require
from .clock import advance_by, begin
from .collectives import mean
from .elastic import Elastic
from .exchange import advance, leave, output, place, settle, start
from .feedback import Feedback
from .frozen import freeze, thaw
from .handle import Named, parameters
from .overlap import Line
from .tie import Tie
from .vector import Vector


class AtOptimizer(Elastic):
    """Where the parameters are between steps and in them, and what moves them there.

    ========  ===================================  ===============================  ===============================
    state     the parameters hold                  begins with                      ends with
    ========  ===================================  ===============================  ===============================
    at rest   x (PSync: the rank's own, x - e)     ``compress``, a step             a forward pass with a gradient
    away      x - lam * e                          a forward pass with a gradient   the optimiser's step
    within    w, a model of the rank's own         a step that ends no round        the end of the round
    averaged  y = x - at_output * mean e           ``averaged()`` is entered        ``averaged()`` is left
    ========  ===================================  ===============================  ===============================

    At rest the parameters belong to the script. Whatever it writes there becomes x (of PSync: the rank's own model).
    While the parameters are away, what is written to them is a part of the step. They do not move while a graph still
    has its backward pass to come: an evaluation then sees the detached point, and ``state_dict`` gives x all the
    same. Once no backward pass is to come, a forward pass without gradient (``torch.no_grad``) brings them to rest. In
    which mode the module is does not matter: one with frozen norm layers may train in evaluation mode. If they have to
    move before a backward pass, autograd raises in it. Gradients are local: torch's ``clip_grad_norm_`` clips each
    rank's own, :meth:`clip_grad_norm_` all by one factor.

    Within a round of several steps the parameters stay away, and w is what an evaluation sees. Where x has to be in
    them (``load_state_dict``, ``averaged()``), w is put aside until the next forward pass. With fragments or a delay
    all of a training is within a round.

    With several optimisers a step is one of each. With a delay a thread sends (:class:`~thinwire.ddp.overlap.Line`):
    until ``settle`` e and the link's state are its own. The parameters, x and the outer state never are.
    """

    local = True

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        method: Feedback,
        named: Named,
        group: dist.ProcessGroup,
        seed: int,
        debug: bool,
    ) -> None:
        super().__init__(model, optimizers, method, named, group, seed, debug)
        self.method = method
        self.vector = Vector(named, method.fragments)
        self.rank = start(method, self.vector.layout, self.vector.flat, self.group.size, self.vector.parts)
        self.rounds = method.rounds
        self.clock = begin(method, model)
        self.line = Line(group, self.vector.flat.device) if method.delay else None
        self.group.behind = self.line
        self.aside: Tensor | None = None  # w, while the parameters rest within a round
        self.cut = False
        self.at: float | None = method.at_rest  # the parameters hold x - at * e; None: something else
        self.away = False
        self.led = False  # whether a forward pass since the last step was where gradients are taken
        self.pending: WeakSet[_Graph] = WeakSet()
        self.stepped: dict[Optimizer, bool] = {}  # since the last exchange; False: skipped
        self.hidden: list[Tensor | None] = []  # gradients put away while a step is skipped
        self.scaling = [getattr(optimizer, "_step_supports_amp_scaling", None) for optimizer in optimizers]
        self.hooks += [
            model.register_forward_pre_hook(Tie(self._forward), prepend=True),
            model.register_forward_hook(Tie(self._watch)),
            self.inner.register_state_dict_post_hook(Tie(self._save)),
            self.inner.register_load_state_dict_pre_hook(Tie(self._loading)),
        ]
        for optimizer in optimizers:
            # A GradScaler then calls every step and says whether there was an infinity, in place of not calling it.
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
            self.hooks += [
                optimizer.register_state_dict_post_hook(self.stamp),
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]

    @torch.no_grad()
    def leave(self) -> None:
        """From rest to where the gradient is taken."""
        at, lam = self._where(), self.rank.lam
        if self.away:
            return
        self.vector.pull()
        self.away = True
        if self.aside is not None:
            self._take_written(at)
            self.vector.flat.copy_(self.aside)
            self.aside, self.at, self.anew, self.restored = None, lam, False, False
            self.vector.push()
            return
        if at == 0:
            leave(self.rank, lam, self.vector.flat)
        # Else it is a model of the rank's own, and the gradient is taken there: the step begins at what it holds.
        if at != lam:
            self.at = lam
            self.vector.push()

    @torch.no_grad()
    def rest(self) -> None:
        """To rest, with what was written there taken in."""
        at, rank, flat = self._where(), self.rank, self.vector.flat
        settle(self.rank)
        require(not self.stepped, "of several optimisers one has made its step, and another not yet: wait for all")
        self.vector.pull()
        if self.away and self._within:
            self.aside = flat.clone()
        elif self.away and at != self.method.at_rest:
            off = (rank.x - at * rank.e).sub_(flat).abs_()
            require(
                not bool((off > 1e-6 * (rank.x.abs() + rank.e.abs())).any()),  # but for a rounding
                "parameters were written to after a forward pass in training, and are asked for before the optimiser's "
                "step, of which that is a part: write to them after the step, or before the forward pass",
            )
        else:
            self._take_written(at)
        self.away = False
        if at != self.method.at_rest or self.aside is not None:
            self._move_to(self.method.at_rest)

    @property
    def lam(self) -> float:
        return self.rank.lam

    @property
    def lam_star(self) -> float | None:
        return self.rank.lam_star

    def _where(self) -> float:
        if self.at is None:
            raise CombinationError("inside averaged() the model is only looked at: train, and load states, outside")
        return self.at

    @property
    def _live(self) -> bool:
        """Whether what the parameters hold is what others are to see: x, or inside ``averaged()`` y."""
        return self.at is None or (self.at == 0 and not self.away)

    @torch.no_grad()
    def _move_to(self, lam: float) -> None:
        place(self.rank, lam, self.vector.flat)
        self.vector.push()
        self.at = lam

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled():
            require(
                not self.stepped or self.inside is not None,
                "of several optimisers one has made its step, and another not yet, and a gradient is to be taken: "
                "ranks hold models of their own now. Let all make their steps after the backward pass",
            )
            # In evaluation mode too: norm layers may be frozen. It may also be a look, which must not hide a write.
            if self.away and not (module.training or self.pending or self.inside or self._within):
                self.rest()
            self.leave()
            self.led = True
        elif self.aside is not None and self.at is not None:
            self.vector.pull()
            self._take_written(self.at)
            if not self.anew:
                self.leave()  # what is looked at is w, whether or not x was asked for before
        elif self.at not in (None, self.method.at_rest) and not (self.pending or self.stepped or self._within):
            self.rest()

    def _watch(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Know of a graph until it dies, or its backward pass begins."""
        if not (self.away and torch.is_grad_enabled()):
            return
        graph = _Graph()
        self.pending.add(graph)
        for part in tree_leaves(outputs):
            if isinstance(part, Tensor) and part.requires_grad:
                # The graph has the function, and that the only reference: with the one goes the other.
                part.register_hook(partial(self._begin, graph))  # type: ignore[no-untyped-call]

    def _begin(self, graph: _Graph, gradient: Tensor) -> None:
        """A graph's backward pass has begun."""
        self.pending.discard(graph)

    @torch.no_grad()
    def _save(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """x in place of what the parameters hold; with ``keep_vars`` the parameters themselves."""
        if not self._live:
            self.vector.replace(state, self.rank.x)

    def _loading(self, *args: Any) -> None:
        self.rest()
        self._move_to(0.0)

    def on_copy(self, memo: dict[int, Any]) -> None:
        """The model is being copied: let the copy hold x."""
        if not self._live:
            for p, part in zip(self.vector.parameters, self.vector.cut(self.rank.x), strict=True):
                copy.deepcopy(p, memo).data.copy_(part)

    def on_pickle(self) -> None:
        """The model is being pickled, which takes what the parameters hold."""
        if not self._live:
            raise CombinationError(
                "the parameters do not hold the shared model now: pickle it between a step and the next forward pass "
                "(of PSync inside averaged()), or save its state_dict()"
            )

    def bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.enter(optimizer):
            return
        self.check_trained(optimizer)
        require(
            optimizer not in self.stepped,
            f"{type(optimizer).__name__} steps again before every optimiser that compress() was given has made its "
            "step: what is sent is one step of each",
        )
        self.remember()
        self._check_place(args, kwargs)
        self.leave()
        overflow = getattr(optimizer, "found_inf", None)
        if overflow is None:
            return
        # A rank that skipped its step alone would leave the others waiting, or pair its next step with their last.
        # One that is skipped within a round of several steps, or before what is late in any case, is a part of it.
        flag = (overflow > 0).float().reshape(1)
        if self.rounds.single:
            self.drive(mean(flag), "agreeing on infinities")
        mine = parameters(optimizer)
        if float(flag) > 0:
            self.hidden = [p.grad for p in mine]
            for p in mine:
                p.grad = None  # an optimiser leaves such alone
        elif (scale := optimizer.grad_scale) is not None:  # type: ignore[attr-defined]
            torch._foreach_mul_([p.grad for p in mine if p.grad is not None], float(scale.double().reciprocal()))
        # The optimiser finds everything done; the scaler deletes both when it is back.
        optimizer.found_inf = optimizer.grad_scale = None  # type: ignore[attr-defined]

    def _check_place(self, args: Any, kwargs: Any) -> None:
        """``ValueError`` for gradients that were not taken where the method takes them."""
        closure = any(map(callable, (*args[1:], *kwargs.values())))  # which takes them in the step
        if self.led or closure or self.at == self.rank.lam:
            return
        require(
            all(p.grad is None for p in self.vector.parameters) or not bool(self.rank.e.any()),
            f"{self.name} takes gradients at another point than the parameters hold between steps, and no forward pass "
            "of the model has led there since the last step: call the model that compress() was given, and not the "
            "module in it or a part of it",
        )

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.leave_step():
            return
        self.stepped[optimizer] = not self.hidden
        for p, grad in zip(parameters(optimizer), self.hidden, strict=False):
            p.grad = grad
        self.hidden = []
        if len(self.stepped) < len(self.optimizers):
            return
        moved = any(self.stepped.values())
        self.stepped, self.away, self.led = {}, False, False
        self.pending.clear()
        self.vector.pull()
        if not moved and self.rounds.single:
            self._move_to(self.method.at_rest)
            return
        rates = [float(group["lr"]) for one in self.optimizers for group in one.param_groups if "lr" in group]
        step = (self.method, self.rank, self.vector.flat, self.key(), rates, self.debug, self.vector.still)
        talk = advance_by(self.clock, moved, *step) if self.clock else advance(*step)
        self.cut = True  # until it has come to its end
        try:
            with closing(talk):  # so that what could not be sent is owed, whatever stops it
                self.drive(talk, "sending")
            self.count()
            self.cut = False
        finally:
            self.vector.push()
            self.away = self._within
            self.at = self.rank.lam if self.away else self.method.at_rest

    @contextmanager
    def averaged(self) -> Iterator[None]:
        self.alive()
        with torch.no_grad():
            self.rest()
            self.vector.flat.copy_(self.drive(output(self.method, self.rank), "averaging residuals"))
            self.vector.push()
        self.at = None
        try:
            yield
        finally:
            with torch.no_grad():
                self.vector.pull()
                self._move_to(self.method.at_rest)
                if self.aside is not None:
                    self.leave()

    def memory_of_method(self) -> dict[str, Any]:
        settle(self.rank)
        if self.at is not None and not self.away:
            self.rest()
        rank = self.rank
        total, seen = (None if x is None else x.clone() for x in (rank.total, rank.seen))
        state: dict[str, Any] = {"residual": rank.e.clone() if self.method.owes else None}
        state |= {"total": total, "link": freeze(rank.sender), "lam": rank.lam, "seen": seen}
        if any(v is not None for v in rank.v):
            state["outer"] = freeze(rank.v)
        if self._within:
            own = self.vector.flat if self.aside is None else self.aside
            flying = None if rank.flying is None else [x.clone() for x in rank.flying]
            state |= {"within": own.clone(), "flying": flying}
        return state

    def take(self, state: dict[str, Any]) -> None:
        settle(self.rank)
        rank = self.rank
        sender, v = thaw(state["link"], rank.sender), thaw(state["outer"], rank.v) if "outer" in state else rank.v
        self._residual(state["residual"], state["total"])
        own = state.get("within")
        rank.sender, rank.lam, rank.v, self.aside = sender, state["lam"], v, None if own is None else own.clone()
        self.anew, self.restored = False, own is not None
        if rank.seen is not None:
            rank.seen.copy_(state["seen"])
        for number, value in enumerate(rank.flying or ()):
            value.copy_(state["flying"][number]) if "flying" in state else value.zero_()

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        self.check_merge(self.rank.sender is None, states)
        require(
            not any("within" in state for state in states),
            f"{self.name}: these states are within a round, where each rank has a model of its own: for another number "
            f"of ranks save them where one has ended, {self._ends}",
        )
        owed = [s["residual"] for s in states]
        self._residual(torch.stack(owed).mean(0) if self.method.owes else None, states[0]["total"])
        self.aside, self.anew = None, False
        if "outer" in states[0]:
            self.rank.v = thaw(states[0]["outer"], self.rank.v)
        # The best lambda hangs on the number of ranks: it is measured anew.
        self.rank.lam = self.method.first(self.group.size)
        if self.rank.seen is not None:
            self.rank.seen.zero_()

    def _residual(self, e: Tensor | None, total: Tensor | None) -> None:
        """Another residual, for the same x; None where nothing is owed."""
        n = self.vector.layout.size
        fits = e is None or e.numel() == n
        require(fits, f"this state is of another model: of {0 if e is None else e.numel()} trained parameters, not {n}")
        self.rest()
        if e is not None:
            self.rank.e.copy_(e)
        if self.rank.total is not None and total is not None:
            self.rank.total.copy_(total)
        self._move_to(self.method.at_rest)

    @torch.no_grad()
    def remove(self) -> None:
        if self.removed:
            return
        if self.line is not None:
            self.line.close()
            self.rank.flight = None  # it is not applied, nor is an error in it raised
        self.rest()
        self._move_to(0.0)
        for optimizer, scaling in zip(self.optimizers, self.scaling, strict=True):
            if scaling is None:
                del optimizer._step_supports_amp_scaling  # type: ignore[attr-defined]
            else:
                optimizer._step_supports_amp_scaling = scaling  # type: ignore[attr-defined]
        super().remove()


class _Graph:
    """One that autograd keeps for a backward pass."""
