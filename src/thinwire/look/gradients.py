"""The space of a run's gradients: how many directions it has, and what look-back recycling needs of it.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are Gradient Subspaces Low-Rank?",
ICLR 2022, Section 2, Algorithm 2, Theorem 1, Corollary 1 and Equation 45.

The T gradients of D entries are rows of G. Everything here follows from their inner products G G^T, [T, T], which are
summed up block by block, a layer at a time. Nothing of size D x D or T x D is made.

Differences from the paper: a gradient is the mean change of the model over a round's clients, whose sign and length no
figure here depends on; with one client and one local epoch that is Algorithm 2's accumulated gradient times the
learning rate. Algorithm 2 decomposes anew after each epoch, here at most 100 times a run. The paper's "explained
variance" is, in its Appendix D.1, a share of the sum of singular values; ``of="variance"`` takes their squares instead.
Beta and Upsilon of Equation 45 are constants that nobody knows: here they are estimates from below, from what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..algorithms.flss import gram
from ..errors import require
from ..federated.changes import load_rows
from ..params import Layout
from ..studies.read import Run, lacks

Kind = Literal["values", "variance"]
WHOLE = "*"  # all layers as one vector
POINTS = 100  # of a progression
FEW = 20  # of that of one layer
MOST = 12  # heat maps side by side: of all layers as one, and of those with the most entries
SHOWN = 400  # rounds and directions on an axis of a heat map, at most
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
    products: Float[Tensor, "t t"], shares: Sequence[float] = (0.95, 0.99), of: Kind = "values", points: int = POINTS
) -> list[tuple[int, tuple[int, ...]]]:
    """After how many gradients (``points`` moments at most, the last among them) how many components have a share."""
    total = len(products)
    moments = sorted({round((i + 1) * total / min(total, points)) for i in range(min(total, points))})
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
    """The gradients of a run, from which inner products are made."""

    rounds: list[int]
    layout: Layout
    rows: Sequence[Float[Tensor, " d"]]  # one a round, read from the disk where they are used

    @staticmethod
    def of(rows: Sequence[Tensor], layout: Layout, rounds: Sequence[int] | None = None) -> Space:
        """Of vectors [d], one a gradient: those of rounds 1, 2 and so on where none are given."""
        return Space(list(range(1, len(rows) + 1)) if rounds is None else list(rounds), layout, rows)

    def products(self) -> Iterator[tuple[str, Float[Tensor, "t t"]]]:
        """The inner products of each layer, and at the end those of all layers as one (*), which are their sum.

        Rows are read once, and 64 MB of them are in memory at a time. So are the products of one layer, and the sum.
        """
        whole = torch.zeros(len(self.rows), len(self.rows), dtype=torch.float64)
        piece = max(1, HELD // max(1, len(self.rows)))
        for name, (start, size, _) in self.layout.spans.items():
            own = torch.zeros_like(whole)
            for begin in range(start, start + size, piece):
                own += gram([row[begin : min(begin + piece, start + size)] for row in self.rows])
            whole += own
            yield name, own
        yield WHOLE, whole

    def whole(self) -> Float[Tensor, "t t"]:
        """The inner products of all layers as one."""
        for name, products in self.products():
            if name == WHOLE:
                return products
        raise AssertionError  # they are the last

    def largest(self) -> list[str]:
        """The layers that have heat maps: all as one, and those with the most entries, in the model's order."""
        sizes = dict(zip(self.layout.names, self.layout.sizes, strict=True))
        keep = set(sorted(sizes, key=lambda name: sizes[name], reverse=True)[: MOST - 1])
        return [WHOLE, *(name for name in sizes if name in keep)]

    def every(self) -> int:
        """A heat map shows one of so many rounds, counted from the first."""
        return max(1, math.ceil((self.rounds[-1] - self.rounds[0] + 1) / SHOWN)) if self.rounds else 1

    def shown(self) -> list[int]:
        """The positions of the gradients that heat maps show."""
        return [i for i, number in enumerate(self.rounds) if (number - self.rounds[0]) % self.every() == 0]


def recorded(run: Run) -> Space:
    """Of a run that was trained with ``record="gradients"``. Raises :class:`RunError` for any other."""
    rounds = [line["round"] for line in run.rounds if "change" in line]
    if not rounds:
        raise lacks(run, "recorded gradients", "federated", "train it with --record gradients or all")
    layout, rows = load_rows(run.path, rounds)
    return Space.of(rows, layout, rounds)


class Layer(NamedTuple):
    """A layer's gradients in figures."""

    layer: str
    entries: int
    n95: int
    n99: int
    consecutive: float  # the mean cosine of each gradient with the next
    nearest: float  # the mean over gradients of the largest |cosine| with a principal direction


class Seen(NamedTuple):
    """What is kept of a layer's inner products."""

    line: Layer
    progression: list[tuple[int, tuple[int, ...]]]
    overlap: Float[Tensor, "n s"] | None  # |cosine| of principal directions with gradients that heat maps show
    cosines: Float[Tensor, "s s"] | None  # of these with one another; None of a layer that has no heat map


class Look(NamedTuple):
    """What is seen of a run's gradients: of all layers as one (*), and of each."""

    layers: dict[str, Seen]
    whole: Float[Tensor, "t t"]  # the inner products of all layers as one


def looked_at(space: Space, of: Kind = "values") -> Look:
    """All layers, one after another: the matrices of a layer are dropped before those of the next are made."""
    sizes = {WHOLE: space.layout.size, **dict(zip(space.layout.names, space.layout.sizes, strict=True))}
    found, drawn, at = dict[str, Seen](), space.largest(), space.shown()
    whole = torch.zeros(0, 0, dtype=torch.float64)
    for name, products in space.products():
        sigma, near, alike = spectrum(products), overlap(products, of=of), cosines(products)
        next_one = alike.diag(1)
        line = Layer(
            name,
            sizes[name],
            components(sigma, 0.95, of),
            components(sigma, 0.99, of),
            float(next_one.mean()) if len(next_one) else 1.0,
            float(near.abs().amax(1).mean()) if near.numel() else 0.0,
        )
        counted = progression(products, of=of, points=POINTS if name == WHOLE else FEW)
        maps = (near[at, :SHOWN].abs().T.float(), alike[at][:, at].float()) if name in drawn else (None, None)
        found[name], whole = Seen(line, counted, *maps), products
    return Look({WHOLE: found.pop(WHOLE), **found}, whole)


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


class LookBacks(NamedTuple):
    """Look-back tests by client, or by layer: means over all of a row's in a round, None where it had none."""

    rows: list[Any]  # numbers of clients, or names of layers
    rounds: list[int]  # those that tested
    sin2: list[list[float | None]]  # [rows, rounds]
    rho: list[list[float | None]]


def look_backs(lines: Sequence[Mapping[str, Any]], by: Literal["client", "layer"]) -> LookBacks:
    """Of rounds with ``looks``: a client's over its fields and layers, or a layer's over clients.

    Clients are in order, layers in the model's. Where replies have several fields, a layer's name has its field's too.
    """
    looks = [(line["round"], look) for line in lines for look in line.get("looks", ())]
    rounds = list(dict.fromkeys(round for round, _ in looks))
    several = len({look["field"] for _, look in looks}) > 1

    def row(look: Mapping[str, Any]) -> Any:
        return f"{look['field']}, {look['layer']}" if by == "layer" and several else look[by]

    rows = list(dict.fromkeys(row(look) for _, look in looks))
    rows = sorted(rows) if by == "client" else rows
    found: dict[tuple[Any, int], list[Mapping[str, Any]]] = {}
    for round, look in looks:
        if look["sin2"] is not None:
            found.setdefault((row(look), round), []).append(look)

    def means(value: str) -> list[list[float | None]]:
        each = {where: sum(look[value] for look in some) / len(some) for where, some in found.items()}
        return [[each.get((row, round)) for round in rounds] for row in rows]

    return LookBacks(rows, rounds, means("sin2"), means("rho"))


def _median(values: Sequence[float]) -> float | None:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5)) if values else None


class Step(NamedTuple):
    """Equation 45, with what a run shows in place of what cannot be seen: the rate should be at most ``bound``."""

    round: int
    beta: float  # the largest ||d_t+1 - d_t|| / ||x_t+1 - x_t|| so far, in place of the smoothness
    upsilon2: float  # the largest mean ||d_k||^2 / ||mean d_k||^2 so far, at least 1, in place of Upsilon^2
    rate: float  # the mean learning rate of a local step
    bound: float  # min(1 / (2 tau), 1 / (tau sqrt(2 (1 + 4 Upsilon^2)))) / beta


def steps(rounds: Sequence[int], products: Float[Tensor, "t t"], lines: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Of rounds with recorded gradients, whose inner products of all layers are given, from the second on.

    None of rounds whose change is the server's: clients' rates are not known of these.

    Where all clients take one step a round along gradients of all of their examples, ``beta`` is the smoothness along
    the path: no more than the loss's. Else gradients of two rounds differ by their noise and by who was sampled too.
    That counts as curvature, the more the shorter the steps are, so that ``beta`` goes as 1 / rate and ``bound`` as
    the rate itself. It then says nothing of which rates are too high.
    """
    found, beta, upsilon2 = [], 0.0, 1.0
    changes = {line["round"]: line["change"] for line in lines if "change" in line and "of" not in line["change"]}
    for i, number in enumerate(rounds):
        own = changes.get(number)
        if own is None:
            continue
        if own["norm"] > 0:
            upsilon2 = max(upsilon2, own["square"] / own["norm"] ** 2)
        before = changes.get(number - 1)
        if i == 0 or before is None or rounds[i - 1] != number - 1:
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
