"""DEF and its kin in a live training loop: what is sent is the optimiser's step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CombinationError, require
from .loop import exchange, output, place, start
from .methods import Feedback
from .training import Compressed, Named, frozen, mean, thawed
from .vector import Vector


class AtOptimizer(Compressed):
    """Between steps the parameters hold x (of ``PSync`` the rank's own model), in a forward pass the detached point.

    A forward pass in training mode puts them there, one in evaluation mode back. Whoever asks for the model's
    ``state_dict`` gets x, and what somebody writes into the parameters between steps becomes x. Gradients are local:
    torch's ``clip_grad_norm_`` clips each rank's own, :meth:`clip_grad_norm_` all by one factor.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Feedback,
        named: Named,
        group: dist.ProcessGroup,
        seed: int,
        debug: bool,
    ) -> None:
        super().__init__(model, optimizer, method, named, group, seed, debug)
        self.method = method
        self.vector = Vector(named)
        self.rank = start(method, self.vector.layout, self.vector.flat)
        self.at: float | None = method.applied  # the parameters hold x - at * e; None: something else
        self.version = self.vector.version()
        self.hidden: list[Tensor | None] = []  # gradients put away while a step is skipped
        self.scaling = getattr(optimizer, "_step_supports_amp_scaling", None)
        # A GradScaler then calls every step and says whether there was an infinity, in place of not calling it.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        self.handles = [
            model.register_forward_pre_hook(self._forward, prepend=True),
            self.inner.register_state_dict_pre_hook(self._saving),
            self.inner.register_load_state_dict_pre_hook(self._loading),
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @torch.no_grad()
    def move(self, lam: float) -> None:
        """Put x - lam * e into the parameters."""
        if self.at is None:
            raise CombinationError("inside averaged() the model is only looked at: train, and load states, outside")
        between = self.at in (0.0, self.method.applied)
        if between and self.vector.version() != self.version:  # somebody wrote to them
            self.vector.pull()
            torch.add(self.vector.flat, self.rank.e, alpha=self.at, out=self.rank.x)
            self.version = self.vector.version()
        if lam != self.at:
            self._put(lam)

    def _put(self, lam: float) -> None:
        if self.at == 0:  # it is there, and may be in a cache
            self.vector.flat.sub_(self.rank.e, alpha=lam)
        else:
            place(self.rank, lam, self.vector.flat)
        self.vector.push()
        self.at, self.version = lam, self.vector.version()

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        training = module.training and torch.is_grad_enabled()
        if training or self.at is not None:
            self.move(self.method.detach if training else self.method.applied)

    def _saving(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        if self.at is not None:
            self.move(0.0)

    def _loading(self, *args: Any) -> None:
        self.move(0.0)

    def bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.move(self.method.detach)
        found = getattr(optimizer, "found_inf", None)
        if found is None:
            return
        # A rank that skipped its step alone would leave the others waiting, or pair its next step with their last.
        flag = (found > 0).float().reshape(1)
        self.drive(mean(flag), "agreeing on infinities")
        parameters = self.optimised()
        if float(flag) > 0:
            self.hidden = [p.grad for p in parameters]
            for p in parameters:
                p.grad = None  # an optimiser leaves such alone
        elif (scale := optimizer.grad_scale) is not None:  # type: ignore[attr-defined]
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], float(scale.double().reciprocal()))
        # The optimiser finds everything done; the scaler deletes both when it is back.
        optimizer.found_inf = optimizer.grad_scale = None  # type: ignore[attr-defined]

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.hidden:
            for p, grad in zip(self.optimised(), self.hidden, strict=True):
                p.grad = grad
            self.hidden = []
            self._put(self.method.applied)
        else:
            self.vector.pull()
            self.drive(exchange(self.method, self.rank, self.vector.flat, self.key(), self.debug), "sending")
            self.vector.push()
            self.at, self.version = self.method.applied, self.vector.version()
            self.count()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        with torch.no_grad():
            self.move(self.method.applied)
            self.vector.flat.copy_(self.drive(output(self.method, self.rank), "averaging residuals"))
            self.vector.push()
        self.at = None
        try:
            yield
        finally:
            with torch.no_grad():
                self._put(self.method.applied)

    def kept(self) -> dict[str, Any]:
        total = None if self.rank.total is None else self.rank.total.clone()
        return {"residual": self.rank.e.clone(), "total": total, "link": frozen(self.rank.sender)}

    def take(self, state: dict[str, Any]) -> None:
        sender = thawed(state["link"], self.rank.sender)
        self._residual(state["residual"], state["total"])
        self.rank.sender = sender

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        require(
            self.rank.sender is None,
            f"{self.name} keeps a link's state on every rank, which has no meaning for {self.group.size} ranks where "
            f"there were {len(states)}: compress anew without a state",
        )
        self._residual(torch.stack([s["residual"] for s in states]).mean(0), states[0]["total"])

    def _residual(self, e: Tensor, total: Tensor | None) -> None:
        """Another residual, for the same x."""
        n = self.vector.layout.size
        require(e.numel() == n, f"this state is of another model: of {e.numel()} trained parameters, not {n}")
        self.move(0.0)
        self.rank.e.copy_(e)
        if self.rank.total is not None and total is not None:
            self.rank.total.copy_(total)
        self.move(self.method.applied)

    def remove(self) -> None:
        self.move(0.0)
        if self.scaling is None:
            del self.optimizer._step_supports_amp_scaling  # type: ignore[attr-defined]
        else:
            self.optimizer._step_supports_amp_scaling = self.scaling  # type: ignore[attr-defined]
        for handle in self.handles:
            handle.remove()
        super().remove()
