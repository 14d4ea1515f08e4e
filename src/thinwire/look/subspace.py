"""The subspace that updates lie in: its spectrum, what a basis of R directions leaves out, and how many a task needs.

"Federated Learning in Streaming Subspace", anonymous submission, Proposition 3.4.1 and Figure 5; Melas-Kyriazi, Wang,
"Intrinsic Gradient Compression for Federated Learning", 2021, Section 2.1.

:func:`streaming` follows the basis of FLSS through recorded gradients. It needs their inner products alone: a basis is
kept as the weights with which it is made of them. So it says of a run of any method how well FLSS would have done.

Differences from the papers: rho_R is of the gradients that were recorded, which are the mean changes of a round's
clients; the first paper has the changes of the model. The dimension that :func:`smallest` measures is that of one
learning rate and one training length, found by doubling and halving: accuracy need not grow with the dimension, so a
smaller one may do as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..algorithms.base import Around
from ..algorithms.flss import FLSS, orthonormal
from ..errors import require
from ..expression import parse
from ..run.folder import CHECKPOINT, read_state
from ..studies.read import Run
from .gradients import Space, spectrum


def left_out(sigma: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
    """rho_R for R = 1, 2, ...: the share of the squared singular values that come after the first R."""
    squares = sigma.double().square()
    whole = squares.sum()
    return ((whole - squares.cumsum(0)) / whole).clamp_min(0) if float(whole) else torch.zeros_like(squares)


ROUNDING = 1e-6  # the share of a gradient's length outside the basis that may be rounding, as of FLSS


class Followed(NamedTuple):
    """A round's gradient beside the basis that was there before it."""

    round: int  # of the run, from 1
    cosine: float  # ||P^T g|| / ||g||; 0 where there is no basis yet
    full: bool  # whether the round is a full one, after which the basis moves


def streaming(
    products: Float[Tensor, "t t"], rank: int = 50, start: int = 200, every: int | None = 5, decay: float = 1.0
) -> tuple[list[Followed], Float[Tensor, " r"]]:
    """FLSS's basis, followed through gradients whose inner products are given, and its singular values at the end.

    The arguments are those of :class:`~thinwire.FLSS`. Where fewer than ``start`` gradients are given there is never a
    basis, and no singular value.
    """
    require(0 < rank <= start, f"rank={rank}, start={start}: rank is at least 1, and start at least rank")
    found, sigma, total = [], products.new_zeros(0), len(products)
    weights = products.new_zeros(total, 0)  # a column a direction: P = G^T weights
    for t in range(total):
        full = t < start or (every is not None and (t - start) % every == 0)
        length = float(products[t, t].clamp_min(0).sqrt())
        inside = float((weights.T @ products[:, t]).norm())
        found.append(Followed(t + 1, min(1.0, inside / length) if length else 0.0, full))
        if not full or t + 1 < start:
            continue
        newest = torch.eye(total, dtype=products.dtype)[:, (0 if t + 1 == start else t) : t + 1]
        made = torch.cat([weights, newest], 1)  # [P, g], or the first gradients
        lengths = torch.cat([decay * sigma, torch.ones(newest.shape[1], dtype=products.dtype)])
        mix, parts, _ = orthonormal(made.T @ products @ made, ROUNDING)
        _, sigma, right = torch.linalg.svd(lengths[:, None] * parts, full_matrices=False)  # [decay P Sigma, g]
        sigma, weights = sigma[:rank], (made @ mix @ right.T)[:, :rank]
    return found, sigma


class Subspace(NamedTuple):
    """What ``thinwire look subspace`` shows of a run."""

    sigma: Float[Tensor, " t"]  # of all recorded gradients
    rho: Float[Tensor, " t"]  # rho_R, R from 1
    followed: list[Followed]
    rank: int  # of the basis that was followed
    kept: Float[Tensor, " r"] | None  # server.sigma at the last checkpoint, of a run of FLSS


def basis(rank: int | None, start: int | None, decay: float | None) -> None:
    """Raise ``ValueError`` for options of a basis that mean nothing, whatever the run."""
    for name, given in (("rank", rank), ("start", start)):
        require(given is None or given >= 1, f"--{name} {given}: it must be at least 1")
    require(decay is None or 0 < decay <= 1, f"--decay {decay}: it must be above 0, and 1 at most")
    fits = rank is None or start is None or rank <= start
    require(fits, f"--rank {rank}: at most --start {start}, the rounds whose updates the basis is first made of")


def recorded(run: Run, rank: int | None = None, start: int | None = None, decay: float | None = None) -> Subspace:
    """Of a run that was trained with ``record="gradients"``.

    Without arguments the basis is that of the run's own FLSS. Of another method's run it is made of the first 20
    rounds, or of half of them where there are fewer than 40. It has half as many directions, and moves in every round.
    """
    from .gradients import recorded as space

    basis(rank, start, decay)
    found: Space = space(run)
    products, own = found.whole(), flss(run)
    total = len(products)
    first = start or (own.start if own else max(1, min(20, total // 2)))
    size = rank or (min(own.rank, first) if own else max(1, min(10, first // 2)))
    basis(size, first, None)
    every = own.every if own else 1
    followed, _ = streaming(products, size, first, every, (own.decay if own else 1.0) if decay is None else decay)
    followed = [one._replace(round=number) for one, number in zip(followed, found.rounds, strict=True)]
    sigma = spectrum(products)
    return Subspace(sigma, left_out(sigma), followed, size, kept(run) if own else None)


def flss(run: Run) -> FLSS | None:
    """The FLSS of a run's method; None where it has none, or is the user's own."""
    try:
        method = parse(run.expression)
    except ValueError:
        return None
    while isinstance(method, Around) and not isinstance(method, FLSS):
        method = method.inner
    return method if isinstance(method, FLSS) else None


def kept(run: Run) -> Float[Tensor, " r"] | None:
    """``server.sigma`` in a run's last checkpoint; None where the run has no checkpoint, or FLSS is not outermost."""
    path = run.path / CHECKPOINT
    if not path.exists() or not isinstance(parse(run.expression), FLSS):
        return None
    server = read_state(path)["server"]
    sigma: Tensor = server[2]  # FLSS's Server: inner, rows, sigma
    return sigma


class Tried(NamedTuple):
    """A training in a space of so many dimensions."""

    dim: int
    reached: float
    enough: bool


def smallest(
    reach: Callable[[int], float], goal: float, low: int, high: int, precision: float = 0.1
) -> tuple[int | None, list[Tried]]:
    """The smallest dimension from ``low`` to ``high`` whose training reaches ``goal``, and all that were tried.

    The dimension is doubled until one is enough, then the step from the last that was not is halved until the two are
    within ``precision`` of each other. None where ``high`` is not enough either. Raises ``ValueError`` unless
    1 <= low <= high.
    """
    require(1 <= low <= high, f"dimensions {low} to {high}: the lowest is at least 1, and at most the highest")
    tried: list[Tried] = []

    def enough(dim: int) -> bool:
        reached = reach(dim)
        tried.append(Tried(dim, reached, reached >= goal))
        return reached >= goal

    below, dim = 0, low
    while not enough(dim):
        if dim == high:
            return None, tried
        below, dim = dim, min(2 * dim, high)
    while below and dim - below > max(1.0, precision * dim):
        middle = (below + dim) // 2
        below, dim = (below, middle) if enough(middle) else (middle, dim)
    return dim, tried


def shown(tried: list[Tried]) -> list[dict[str, Any]]:
    """As JSON has them, by dimension."""
    return [found._asdict() for found in sorted(tried)]
