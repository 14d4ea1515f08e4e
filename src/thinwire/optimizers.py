"""What a server does with the mean update of a round.

``delta`` points downhill: plain averaging is ``SGD(1.0)``. The adaptive ones are those of
Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295, Algorithm 2.

Differences from the paper, for these: its ``delta`` is the plain mean over the clients sampled;
here it is that of those who replied, by examples unless the method's ``weights`` are uniform. v
starts at tau^2 exactly, the least that the listing allows. ``tau`` and the server's ``lr`` have
one default for all problems, where the paper tunes both for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .config import Config
from .errors import CombinationError
from .params import Params
from .ranges import AboveZero, Decay, Rate
from .wire import State

__all__ = ["SGD", "Adagrad", "Adam", "MajorityVote", "Momentum", "Nesterov", "Optimizer", "Yogi"]


class Optimizer(Config, ABC):
    """``init`` gives the state for a model like ``x``; ``step`` the next model and state."""

    example = "Adam(0.03)"

    past: ClassVar[tuple[str, ...]] = ()
    """The layers that go past it: those that LUAR recycles in a round (:class:`Past`)."""

    @property
    def rate(self) -> float:
        """What multiplies the mean update of a layer that goes past it: ``lr``.

        Raises :class:`~thinwire.errors.CombinationError` where there is none: an optimiser without ``lr`` says its rate
        here.
        """
        lr = getattr(self, "lr", None)
        if not isinstance(lr, int | float):
            raise CombinationError(
                f"{self!r} does not say at which rate a layer steps that goes past it, as LUAR has it: give the class "
                f"a field lr, or a property rate"
            )
        return lr

    def init(self, x: Params) -> State:
        return None

    @abstractmethod
    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        """One step along ``delta``."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """x + lr * delta. With lr = 1 the model becomes the mean of the clients' models."""

    lr: Rate = 1.0

    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        return x + delta * self.lr, None


@dataclass(frozen=True)
class MajorityVote(Optimizer):
    """x + lr * sign(delta): over signs from every client, what most of them voted for, entry by entry.

    The sign of the mean of signs is that of the majority, so ``FedAvg(up=SignSGD(),
    opt=MajorityVote(0.001), weights="uniform")`` is signSGD with majority vote; with
    ``weights="examples"`` votes count by examples. A tie moves nothing: sign(0) = 0 here.
    Bernstein et al., ICML 2018, arXiv:1802.04434, Algorithm 1, and ICLR 2019,
    arXiv:1810.05291.

    Differences from the paper: clients get the model and step by themselves
    (``down=EF21(ScaledSign())`` makes that a bit an entry) instead of the votes.
    """

    paper = "Bernstein et al., ICML 2018, arXiv:1802.04434"

    lr: Rate = 0.001

    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        return x + delta.map(torch.sign) * self.lr, None


@dataclass(frozen=True)
class Momentum(Optimizer):
    """FedAvgM: m <- beta m + delta, x + lr m. Hsu, Qi, Brown, 2019, arXiv:1909.06335.

    Differences from the paper: ``lr``, which is 1 there. ``delta`` is the mean update of the
    clients that replied, by examples unless the method's ``weights`` are uniform.
    """

    paper = "Hsu, Qi, Brown, 2019, arXiv:1909.06335"

    lr: Rate = 1.0
    beta: Decay = 0.9

    def init(self, x: Params) -> State:
        return x.zeros()

    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        m = state * self.beta + delta
        return x + m * self.lr, m


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """v <- momentum v + delta, x + lr (delta + momentum v): a step as of ``torch.optim.SGD(nesterov=True)``.

    The outer optimiser of DiLoCo: Douillard et al., 2023, arXiv:2311.08105, Algorithm 1 line 14, with the rate and the
    momentum that section 3 finds. The look-ahead is that of Sutskever et al., ICML 2013, as torch rewrites it.

    Differences from the paper: none. ``delta`` points downhill, where the paper's outer gradient is its negative.
    """

    paper = "Douillard et al., 2023, arXiv:2311.08105"

    lr: Rate = 0.7
    momentum: Decay = 0.9

    def init(self, x: Params) -> State:
        return x.zeros()

    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        v = state * self.momentum + delta
        return x + (delta + v * self.momentum) * self.lr, v


class Moments(NamedTuple):
    """First and second moment."""

    m: Params
    v: Params


@dataclass(frozen=True)
class _Adaptive(Optimizer):
    """m <- beta1 m + (1 - beta1) delta; v as the method says; x + lr m / (sqrt(v) + tau).

    v starts at tau squared, as the paper's experiments have it; there is no bias correction.
    """

    paper = "Reddi et al., ICLR 2021, arXiv:2003.00295"

    lr: Rate = 0.03
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: AboveZero = 1e-3

    def init(self, x: Params) -> State:
        return Moments(x.zeros(), x.map(lambda f: f.new_full(f.shape, self.tau**2)))

    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        m = state.m * self.beta1 + delta * (1 - self.beta1)
        v = self._second(state.v, delta * delta)
        return x + m * self.lr / v.map(lambda f: f.sqrt().add_(self.tau)), Moments(m, v)

    def _second(self, v: Params, square: Params) -> Params:
        raise TypeError("an adaptive optimizer says how its second moment moves")


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) delta^2.

    Differences from the paper: those of this module.
    """

    def _second(self, v: Params, square: Params) -> Params:
        return v * self.beta2 + square * (1 - self.beta2)


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) delta^2 sign(v - delta^2).

    Differences from the paper: those of this module.
    """

    def _second(self, v: Params, square: Params) -> Params:
        return v - square * (v - square).map(lambda f: f.sign()) * (1 - self.beta2)


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v <- v + delta^2 (beta2 is not used).

    Differences from the paper: those of this module.
    """

    beta1: float = 0.0

    def _second(self, v: Params, square: Params) -> Params:
        return v + square


@dataclass(frozen=True)
class Past(Optimizer):
    """``inner`` for all layers but some, which go past it: x + rate * delta, and what it keeps of them stays as it is.

    So the authors of LUAR have it for layers that are recycled. An optimiser without a state has nothing to go past:
    all layers take its step. It is made for one round
    (:meth:`Algorithm.bypass <thinwire.algorithms.base.Algorithm.bypass>`), and is no configuration of a run.
    """

    inner: Optimizer
    past: tuple[str, ...]  # type: ignore[misc]  # a field here alone

    @property
    def rate(self) -> float:
        return self.inner.rate

    def init(self, x: Params) -> State:
        return self.inner.init(x)

    def step(self, x: Params, delta: Params, state: State) -> tuple[Params, State]:
        layers = [name for name in self.past if name in x.layout.spans]
        if state is None or not layers:
            return self.inner.step(x, delta, state)
        rest = _parts(self.inner, x, state, lambda one: one.drop(layers))
        y, end = self.inner.step(x.drop(layers), delta.drop(layers), rest)
        raw = x.only(layers) + delta.only(layers) * self.rate
        return x.replace(y).replace(raw), _parts(self.inner, x, state, Params.replace, end)


def keep(optimizer: Optimizer, x: Params, before: State, after: State, layers: Sequence[str]) -> State:
    """The state ``after`` a step with that from ``before`` it for some layers of ``x``, which have not moved."""
    if before is None:
        return after
    return _parts(optimizer, x, after, lambda new, old: new.replace(old.only(layers)), before)


def passable(optimizer: Optimizer, x: Params) -> None:
    """Raise :class:`~thinwire.errors.CombinationError` where layers of ``x`` cannot go past an optimiser."""
    if (state := optimizer.init(x)) is not None:
        _parts(optimizer, x, state, lambda one: one)
        _ = optimizer.rate  # which raises


def _parts(optimizer: Optimizer, x: Params, state: State, make: Callable[..., Params], *new: State) -> State:
    """An optimiser's state with what ``make`` makes of its vectors of the model; of all else that of ``new``, if given.

    Raises :class:`~thinwire.errors.CombinationError` for a tensor of which nothing says what belongs to which layer.
    """

    def walk(part: Any, *others: Any) -> Any:
        if isinstance(part, Params) and part.layout == x.layout:
            return make(part, *others)
        if isinstance(part, dict):
            return {name: walk(one, *(other[name] for other in others)) for name, one in part.items()}
        if isinstance(part, tuple | list):
            inside = [walk(*row) for row in zip(part, *others, strict=True)]
            return type(part)(*inside) if hasattr(part, "_fields") else type(part)(inside)
        if isinstance(part, Params) or (isinstance(part, Tensor) and part.ndim):
            raise CombinationError(
                f"{optimizer!r} keeps a tensor, and nothing says what of it belongs to a layer that goes past it, as "
                f"LUAR has it: keep Params like the model, or write LUAR(..., past=False)"
            )
        return others[0] if others else part

    return walk(state, *new)
