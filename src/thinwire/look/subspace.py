"""The subspace that updates lie in: its spectrum, and what a basis of R directions leaves out.

"Federated Learning in Streaming Subspace", anonymous submission, Proposition 3.4.1 and Figure 5.

:func:`streaming` follows the basis of FLSS through recorded gradients. It needs their inner products alone: a basis is
kept as the weights with which it is made of them. So it says of a run of any method how well FLSS would have done.

Differences from the paper: rho_R is of the gradients that were recorded, which are the mean changes of a round's
clients; the paper has the changes of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..algorithms.around import Around
from ..algorithms.flss import FLSS, orthonormal
from ..errors import require
from ..expression import parse
from ..ranges import Count
from ..run.folder import CHECKPOINT, read_state
from ..studies.read import RecordedRun
from .base import Look, Portion, Row, Table, option
from .components import spectrum
from .drawing import COLOURS, plain, plt, save
from .gradients import by_the_server, space_of


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
    rounds, sigma, total = [], products.new_zeros(0), len(products)
    weights = products.new_zeros(total, 0)  # a column a direction: P = G^T weights
    for t in range(total):
        full = t < start or (every is not None and (t - start) % every == 0)
        length = float(products[t, t].clamp_min(0).sqrt())
        inside = float((weights.T @ products[:, t]).norm())
        rounds.append(Followed(t + 1, min(1.0, inside / length) if length else 0.0, full))
        if not full or t + 1 < start:
            continue
        newest = torch.eye(total, dtype=products.dtype)[:, (0 if t + 1 == start else t) : t + 1]
        made = torch.cat([weights, newest], 1)  # [P, g], or the first gradients
        lengths = torch.cat([decay * sigma, torch.ones(newest.shape[1], dtype=products.dtype)])
        mix, parts, _ = orthonormal(made.T @ products @ made, ROUNDING)
        _, sigma, right = torch.linalg.svd(lengths[:, None] * parts, full_matrices=False)  # [decay P Sigma, g]
        sigma, weights = sigma[:rank], (made @ mix @ right.T)[:, :rank]
    return rounds, sigma


class Spectrum(NamedTuple):
    """The spectrum of a run's updates, and how well a basis follows them."""

    run: RecordedRun
    sigma: Float[Tensor, " t"]  # of all recorded gradients
    rho: Float[Tensor, " t"]  # rho_R, R from 1
    followed: list[Followed]
    rank: int  # of the basis that was followed
    kept: Float[Tensor, " r"] | None  # server.sigma at the last checkpoint, of a run of FLSS


@dataclass(frozen=True)
class Subspace(Look[Spectrum]):
    """Needs a run with --record gradients or all, of any method."""

    rank: Count | None = option(None, "Directions of the basis (FLSS's R).")
    start: Count | None = option(None, "Rounds that it is first made of (FLSS's L).")
    decay: Portion | None = option(None, "What its singular values are multiplied by (lambda).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank is not None and self.start is not None:
            _fit(self.rank, self.start)

    def read(self, run: RecordedRun) -> Spectrum:
        gradients = space_of(run)
        products, own = gradients.whole(), flss(run)
        total = len(products)
        # Of another method's run: made of the first 20 rounds, or of half of them, with half as many directions.
        first = self.start or (own.start if own else max(1, min(20, total // 2)))
        size = self.rank or (min(own.rank, first) if own else max(1, min(10, first // 2)))
        _fit(size, first)
        every = own.every if own else 1
        decay = (own.decay if own else 1.0) if self.decay is None else self.decay
        steps, _ = streaming(products, size, first, every, decay)
        steps = [one._replace(round=number) for one, number in zip(steps, gradients.rounds, strict=True)]
        sigma = spectrum(products)
        return Spectrum(run, sigma, left_out(sigma), steps, size, residual_share(run) if own else None)

    def rows(self, reading: Spectrum) -> Iterable[Row]:
        yield from by_the_server(reading.run)
        sigma, rho = reading.sigma, reading.rho
        yield Table(
            f"{len(sigma)} updates",
            ("R", "sigma_R / sigma_1", "rho_R"),
            [
                [r, f"{sigma[r - 1] / sigma[0]:.2e}", f"{rho[r - 1]:.2e}"]
                for r in (1, 2, 5, 10, 20, 50, 100, 200)
                if r <= len(rho)
            ],
        )
        there = [e.cosine for e in reading.followed if e.cosine > 0]
        if there:
            yield f"cosine to {reading.rank} directions: mean {sum(there) / len(there):.3f}, last {there[-1]:.3f}"

    def draw(self, reading: Spectrum, folder: Path) -> list[Path]:
        """Singular values, rho_R, and the cosine of each gradient to the basis that was there before it."""
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
        sigma = reading.sigma.numpy()
        x = np.arange(1, len(sigma) + 1)
        left.semilogy(x, np.maximum(sigma / sigma[0], 1e-8), color=COLOURS[0], label="recorded gradients")
        if reading.kept is not None:
            own = reading.kept.numpy()
            left.semilogy(
                np.arange(1, len(own) + 1), np.maximum(own / own[0], 1e-8), ".", color=COLOURS[1], label="server.sigma"
            )
        left.legend(frameon=False)
        plain(left, "direction", "singular value, by the largest")
        middle.semilogy(x, np.maximum(reading.rho.numpy(), 1e-12), color=COLOURS[0])
        plain(middle, "R", "rho: share of σ² after the first R")
        there = [each for each in reading.followed if each.cosine > 0]
        right.plot([e.round for e in there], [e.cosine for e in there], color=COLOURS[0])
        right.set_ylim(0, 1.02)
        plain(right, "round", f"‖Pᵀg‖ / ‖g‖, {reading.rank} directions")
        return [save(figure, folder / "subspace.png")]

    def values(self, reading: Spectrum) -> dict[str, Any]:
        return {
            "sigma": reading.sigma.tolist(),
            "rho": reading.rho.tolist(),
            "followed": [e._asdict() for e in reading.followed],
            "server_sigma": None if reading.kept is None else reading.kept.tolist(),
        }


def _fit(rank: int, start: int) -> None:
    fits = rank <= start
    require(fits, f"--rank {rank}: at most --start {start}, the rounds whose updates the basis is first made of")


def flss(run: RecordedRun) -> FLSS | None:
    """The FLSS of a run's method; None where it has none, or is the user's own."""
    try:
        method = parse(run.expression)
    except ValueError:
        return None
    while isinstance(method, Around) and not isinstance(method, FLSS):
        method = method.inner
    return method if isinstance(method, FLSS) else None


def residual_share(run: RecordedRun) -> Float[Tensor, " r"] | None:
    """``server.sigma`` in a run's last checkpoint; None where the run has no checkpoint, or FLSS is not outermost."""
    path = run.path / CHECKPOINT
    if not path.exists() or not isinstance(parse(run.expression), FLSS):
        return None
    server = read_state(path)["server"]
    sigma: Tensor = server[2]  # FLSS's Server: inner, rows, sigma
    return sigma
