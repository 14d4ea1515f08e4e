"""The space of a run's gradients: how many directions it has, and what look-back recycling needs of it.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are Gradient Subspaces Low-Rank?",
ICLR 2022, Section 2, Algorithm 2, Theorem 1, Corollary 1 and Equation 45.

The T gradients of D entries are rows of G. Everything here follows from their inner products G G^T, [T, T], which are
summed up block by block. Nothing of size D x D or T x D is made.

Differences from the paper: a gradient is the mean change of the model over a round's clients, whose sign and length no
figure here depends on; with one client and one local epoch that is Algorithm 2's accumulated gradient times the
learning rate. Algorithm 2 decomposes anew after each epoch, here at most 100 times a run. The paper's "explained
variance" is, in its Appendix D.1, a share of the sum of singular values; ``of="variance"`` takes their squares instead.
Beta and Upsilon of Equation 45 are constants that nobody knows: here they are estimates from below, from what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..algorithms.flss import gram
from ..errors import require
from ..params import Layout
from ..report.read import Run, lacks
from ..run.changes import kept

Kind = Literal["values", "variance"]
WHOLE = "*"  # all layers as one vector
POINTS = 100  # of a progression
HELD = 1 << 23  # numbers in memory at a time, in double precision


def spectrum(products: Float[Tensor, "t t"]) -> Float[Tensor, " t"]:
    """The singular values of the rows whose inner products are given, falling."""
    sigma: Tensor = torch.linalg.eigvalsh(products).flip(0).clamp_min(0).sqrt()
    return sigma


def centred(products: Float[Tensor, "t t"]) -> Float[Tensor, "t t"]:
    """The inner products of the rows less their mean: what PCA as statistics has it decomposes."""
    return products - products.mean(0) - products.mean(1, keepdim=True) + products.mean()


def components(sigma: Float[Tensor, " t"], share: float = 0.99, of: Kind = "values") -> int:
    """N-PCA: the fewest of the falling singular values that add up to ``share`` of them all.

    With ``of="variance"`` their squares. 0 where all are zero. Raises ``ValueError`` unless 0 < share < 1.
    """
    require(0 < share < 1, f"share={share}: it must be between 0 and 1")
    sums = (sigma if of == "values" else sigma.square()).cumsum(0)
    return 0 if float(sums[-1]) == 0 else int((sums < share * sums[-1]).sum()) + 1


def progression(
    products: Float[Tensor, "t t"], shares: Sequence[float] = (0.95, 0.99), of: Kind = "values"
) -> list[tuple[int, tuple[int, ...]]]:
    """After how many gradients (at most 100 moments, the last among them) how many components have these shares."""
    total = len(products)
    moments = sorted({round((i + 1) * total / min(total, POINTS)) for i in range(min(total, POINTS))})
    found = []
    for t in moments:
        sigma = spectrum(products[:t, :t])
        found.append((t, tuple(components(sigma, share, of) for share in shares)))
    return found


def overlap(products: Float[Tensor, "t t"], share: float = 0.99, of: Kind = "values") -> Float[Tensor, "t n"]:
    """The cosine of each gradient with each principal gradient direction, up to the direction's sign.

    Direction j is G^T v_j / sigma_j, so its product with gradient i is sigma_j v_ij. As many as have ``share``.
    """
    values, vectors = torch.linalg.eigh(products)
    sigma, v = values.flip(0).clamp_min(0).sqrt(), vectors.flip(1)
    n = components(sigma, share, of)
    found: Tensor = (v * sigma)[:, :n] / _lengths(products)[:, None]
    return found


def cosines(products: Float[Tensor, "t t"]) -> Float[Tensor, "t t"]:
    """The cosine of each gradient with each other; 0 with one that is zero."""
    lengths = _lengths(products)
    return (products / lengths[:, None] / lengths).clamp(-1, 1)


def _lengths(products: Tensor) -> Tensor:
    lengths = products.diag().clamp_min(0).sqrt()
    return lengths.where(lengths > 0, torch.ones_like(lengths))


class Space(NamedTuple):
    """The inner products of a run's gradients."""

    rounds: list[int]
    sizes: dict[str, int]  # entries of each layer, and of all of them (*)
    products: dict[str, Float[Tensor, "t t"]]  # of each layer, and of all of them (*): their sum

    @staticmethod
    def of(rows: Sequence[Tensor], layout: Layout, rounds: Sequence[int] | None = None) -> Space:
        """Of vectors [d], one a gradient. They are read once, and 64 MB of them are in memory at a time."""
        products: dict[str, Tensor] = {}
        piece = max(1, HELD // max(1, len(rows)))
        for name, (start, size, _) in layout.spans.items():
            for begin in range(start, start + size, piece):
                part = gram([row[begin : min(begin + piece, start + size)] for row in rows])
                products[name] = products[name] + part if name in products else part
        whole = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for each in products.values():
            whole += each
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        numbers = list(range(1, len(rows) + 1)) if rounds is None else list(rounds)
        return Space(numbers, {WHOLE: layout.size, **sizes}, {WHOLE: whole, **products})


def recorded(run: Run) -> Space:
    """Of a run that was trained with ``record="gradients"``. Raises :class:`RunError` for any other."""
    rounds = [line["round"] for line in run.rounds if "change" in line]
    if not rounds:
        raise lacks(run, "recorded gradients", "federated", "train it with --record gradients or all")
    layout, rows = kept(run.path, rounds)
    return Space.of(rows, layout, rounds)


class Layer(NamedTuple):
    """A layer's gradients in figures."""

    layer: str
    entries: int
    n95: int
    n99: int
    consecutive: float  # the mean cosine of each gradient with the next
    nearest: float  # the mean over gradients of the largest |cosine| with a principal direction


def table(space: Space, of: Kind = "values") -> list[Layer]:
    """A line for all layers as one vector, and one for each."""
    lines = []
    for name, products in space.products.items():
        sigma, near = spectrum(products), overlap(products, of=of)
        next_one = cosines(products).diag(1)
        lines.append(
            Layer(
                name,
                space.sizes[name],
                components(sigma, 0.95, of),
                components(sigma, 0.99, of),
                float(next_one.mean()) if len(next_one) else 1.0,
                float(near.abs().amax(1).mean()) if near.numel() else 0.0,
            )
        )
    return lines


# -- what recycling needs -----------------------------------------------------


class Recycling(NamedTuple):
    """A round's look-back tests, over its clients, fields and layers."""

    round: int
    sin2: float | None  # the median of those that there were
    rho: float | None  # the median
    recycled: float  # the share of tests that ended in a scalar
    error: float | None  # the largest ||d||^2 sin^2 of all clients, d the mean gradient of a local step
    allowed: float  # 1 / sqrt(tau T), what Corollary 1 allows for it


def recycling(lines: Sequence[Mapping[str, Any]]) -> list[Recycling]:
    """Of rounds with ``looks``. ||d||^2 sin^2 is what a scalar loses of a client's gradient, all its layers together.

    A layer's loss counts whether it was recycled or sent: it says what recycling would have cost.
    """
    found, total = [], len(lines)
    for line in lines:
        tests = [look for look in line.get("looks", ()) if look["sin2"] is not None]
        if not line.get("looks"):
            continue
        lost: dict[tuple[int, str], float] = {}
        for look in tests:
            if look.get("rates"):
                d = look["norm"] / look["rates"]  # change / (lr tau)
                own = look["client"], look["field"]
                lost[own] = lost.get(own, 0.0) + d * d * look["sin2"]
        steps = [look["steps"] for look in line["looks"] if "steps" in look] or [1]
        tau = sum(steps) / len(steps)
        found.append(
            Recycling(
                line["round"],
                _median([look["sin2"] for look in tests]),
                _median([look["rho"] for look in tests]),
                sum(look["recycled"] for look in line["looks"]) / len(line["looks"]),
                max(lost.values(), default=None),
                1 / math.sqrt(max(1.0, tau) * total),
            )
        )
    return found


def _median(values: Sequence[float]) -> float | None:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5)) if values else None


class Step(NamedTuple):
    """Equation 45, with what a run shows in place of what cannot be seen: the rate should be at most ``bound``."""

    round: int
    beta: float  # the largest ||d_t+1 - d_t|| / ||x_t+1 - x_t|| so far, in place of the smoothness
    upsilon2: float  # the largest mean ||d_k||^2 / ||mean d_k||^2 so far, at least 1, in place of Upsilon^2
    rate: float  # the mean learning rate of a local step
    bound: float  # min(1 / (2 tau), 1 / (tau sqrt(2 (1 + 4 Upsilon^2)))) / beta


def steps(space: Space, lines: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Of rounds with recorded gradients, from the second on.

    Where all clients take one step a round along gradients of all of their examples, ``beta`` is the smoothness along
    the path: no more than the loss's. Else gradients of two rounds differ by their noise and by who was sampled too.
    That counts as curvature, the more the shorter the steps are, so that ``beta`` goes as 1 / rate and ``bound`` as
    the rate itself. It then says nothing of which rates are too high.
    """
    found, beta, upsilon2 = [], 0.0, 1.0
    changes = {line["round"]: line["change"] for line in lines if "change" in line}
    products = space.products[WHOLE]
    for i, number in enumerate(space.rounds):
        own = changes[number]
        if own["norm"] > 0:
            upsilon2 = max(upsilon2, own["square"] / own["norm"] ** 2)
        before = changes.get(number - 1)
        if i == 0 or before is None or space.rounds[i - 1] != number - 1:
            continue
        a, b = 1 / before["rates"], 1 / own["rates"]  # d = change / (lr tau)
        apart = a * a * products[i - 1, i - 1] - 2 * a * b * products[i - 1, i] + b * b * products[i, i]
        if before["moved"] > 0:
            beta = max(beta, math.sqrt(max(0.0, float(apart))) / before["moved"])
        tau = own["steps"]
        most = min(1 / (2 * tau), 1 / (tau * math.sqrt(2 * (1 + 4 * upsilon2))))
        found.append(Step(number, beta, upsilon2, own["rates"] / tau, most / beta if beta else math.inf))
    return found


def looked(run: Run) -> list[Recycling]:
    """Of a run that was trained with ``record="looks"``. Raises :class:`RunError` for any other."""
    found = recycling(run.rounds)
    if not found:
        raise lacks(run, "looks", "federated", "train a method over LBGM with --record looks")
    return found
