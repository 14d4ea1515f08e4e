"""How many principal components gradients have: as the paper's text counts them, and as its published figures do.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are Gradient Subspaces Low-Rank?",
ICLR 2022, Section 2, Appendix D.1 and Figures 1 and 9 to 13.

The text counts singular values of all layers as one vector. The authors' code puts a momentum of .9 over the gradients
of epochs, takes a layer at a time, centres its vectors, counts the squares of their singular values, and draws the mean
over layers in a band of one standard deviation. :func:`ladder` goes from the one count to the other, a step at a time.

All of it follows from inner products. Momentum P = L G has the products L (G G^T) L^T, where L is lower triangular and
holds powers of the momentum. Centring takes the mean off both sides.

Differences from the paper: a layer is a tensor of parameters, as in the authors' code; deviations are of all layers,
and not of a sample of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from .base import Row, Table
from .drawing import COLOURS, plain, plt, save

Kind = Literal["values", "variance"]
POINTS = 100  # of a progression
FEW = 20  # of that of one layer
SHARES = (0.95, 0.99)


def spectrum(products: Float[Tensor, "t t"]) -> Float[Tensor, " t"]:
    """The singular values of the rows whose inner products are given, falling."""
    sigma: Tensor = torch.linalg.eigvalsh(products).flip(0).clamp_min(0).sqrt()
    return sigma


def centre(products: Float[Tensor, "t t"]) -> Float[Tensor, "t t"]:
    """The inner products of the rows less their mean: what PCA as statistics has it decomposes."""
    return products - products.mean(0) - products.mean(1, keepdim=True) + products.mean()


def accumulate(products: Float[Tensor, "t t"], momentum: float) -> Float[Tensor, "t t"]:
    """The inner products of p_t = momentum p_(t-1) + g_t, from those of the rows g_t."""
    steps = torch.arange(len(products), dtype=torch.float64)
    powers = (momentum ** (steps[:, None] - steps).clamp_min(0)).tril()
    return powers @ products.double() @ powers.T


def earlier(products: Float[Tensor, "t t"]) -> float:
    """The mean over rows, from the second on, of the largest cosine with a row before; 1 where there is no second."""
    if len(products) < 2:
        return 1.0
    lengths = products.diag().clamp_min(0).sqrt()
    scale = torch.where(lengths > 0, 1 / lengths, 0.0)
    cosine = products * scale[:, None] * scale
    return statistics.fmean(float(cosine[t, :t].max()) for t in range(1, len(products)))


def components(sigma: Float[Tensor, " t"], share: float = 0.99, of: Kind = "values") -> int:
    """N-PCA: the fewest of the falling singular values that add up to ``share`` of them all.

    With ``of="variance"`` their squares. 0 where all are zero. Raises ``ValueError`` unless 0 < share < 1.
    """
    require(0 < share < 1, f"share={share}: it must be between 0 and 1")
    sums = (sigma if of == "values" else sigma.square()).cumsum(0)
    return 0 if float(sums[-1]) == 0 else int((sums < share * sums[-1]).sum()) + 1


def count_components(
    products: Float[Tensor, "t t"], of: Kind = "values", centred: bool = False, shares: Sequence[float] = SHARES
) -> tuple[int, ...]:
    """N-PCA for each share. ``centred`` counts what the rows have besides their mean, and not its rounding."""
    sigma = spectrum(centre(products) if centred else products)
    if centred:
        least = products.diag().max() * len(products) * torch.finfo(torch.float64).eps
        sigma = sigma.where(sigma.square() > least, 0.0)
    return tuple(components(sigma, share, of) for share in shares)


def progression(
    products: Float[Tensor, "t t"],
    shares: Sequence[float] = SHARES,
    of: Kind = "values",
    points: int = POINTS,
    centred: bool = False,
) -> list[tuple[int, tuple[int, ...]]]:
    """After how many gradients (``points`` moments at most, the last among them) how many components have a share."""
    total = len(products)
    moments = sorted({round((i + 1) * total / min(total, points)) for i in range(min(total, points))})
    return [(t, count_components(products[:t, :t], of, centred, shares)) for t in moments]


class LayerCount(NamedTuple):
    """One layer, counted as the published figures count it."""

    progression: list[tuple[int, tuple[int, ...]]]  # gradients so far; N95 and N99
    earlier: float  # the mean over gradients of the largest cosine with one before, momentum over both


def of_layer(products: Float[Tensor, "t t"], momentum: float) -> LayerCount:
    """The count of a layer whose gradients have these inner products."""
    smooth = accumulate(products, momentum)
    return LayerCount(progression(smooth, of="variance", points=FEW, centred=True), earlier(smooth))


class Count(NamedTuple):
    """A way to count, and what it finds after the last gradient: means over layers, and their standard deviations."""

    of: str
    counts: Sequence[float]  # N95 and N99
    earlier: float
    deviations: list[float] | None = None  # of N95 and N99; None of all layers as one


class Moment(NamedTuple):
    """N95 and N99 of layers after some gradients: means over layers, and their standard deviations."""

    gradients: int
    means: list[float]
    deviations: list[float]


def moments(layers: Mapping[str, LayerCount]) -> list[Moment]:
    """The published figures' curve, and its band."""
    lines = []
    for same in zip(*(layer.progression for layer in layers.values()), strict=True):
        both = list(zip(*(counts for _, counts in same), strict=True))
        lines.append(Moment(same[0][0], [statistics.fmean(n) for n in both], [statistics.pstdev(n) for n in both]))
    return lines


def ladder(whole: Float[Tensor, "t t"], layers: Mapping[str, LayerCount], momentum: float) -> list[Count]:
    """From the text's count to that of the published figures, a step at a time.

    The last is the same count of as many gradients that are orthogonal and of one length: what of the published count
    the momentum alone does.
    """
    smooth = accumulate(whole, momentum)
    names = "the paper's text: all layers as one, singular values", "their squares", "centred", f"momentum {momentum:g}"
    as_one = [
        Count(names[0], list(count_components(whole)), earlier(whole)),
        Count(names[1], list(count_components(whole, "variance")), earlier(whole)),
        Count(f"{names[1]}, {names[2]}", list(count_components(whole, "variance", True)), earlier(whole)),
        Count(f"{names[1]}, {names[2]}, {names[3]}", list(count_components(smooth, "variance", True)), earlier(smooth)),
    ]
    last, near = moments(layers)[-1], statistics.fmean(layer.earlier for layer in layers.values())
    alone = accumulate(torch.eye(len(whole), dtype=torch.float64), momentum)
    return [
        *as_one,
        Count("the paper's figures: all of these, mean over layers", last.means, near, last.deviations),
        Count("the same of orthogonal gradients", list(count_components(alone, "variance", True)), earlier(alone)),
    ]


def ladder_table(counts: Sequence[Count], gradients: int) -> Iterable[Row]:
    """Both counts, and the steps between them."""

    def cell(mean: float, band: float | None) -> str:
        return f"{mean:g}" if band is None else f"{mean:.1f} ± {band:.1f}"

    cells = []
    for count in counts:
        bands = count.deviations or (None, None)
        numbers = [cell(mean, band) for mean, band in zip(count.counts, bands, strict=True)]
        cells.append([count.of, *numbers, f"{count.earlier:.3f}"])
    yield Table(f"two counts of {gradients} gradients", ("count", "N95", "N99", "cosine to the nearest before"), cells)


def draw_by_layer(
    rounds: Sequence[int], text: Sequence[tuple[int, tuple[int, ...]]], curve: Sequence[Moment], path: Path
) -> Path:
    """Both counts by round: the text's on the left, the published figures' and their band on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for i, (name, colour) in enumerate((("N95-PCA", COLOURS[1]), ("N99-PCA", COLOURS[0]))):
        left.plot([rounds[t - 1] for t, _ in text], [n[i] for _, n in text], color=colour, label=name)
        x, means = [rounds[m.gradients - 1] for m in curve], [m.means[i] for m in curve]
        bands = [m.deviations[i] for m in curve]
        right.plot(x, means, color=colour, label=name)
        low, high = ([mean + sign * band for mean, band in zip(means, bands, strict=True)] for sign in (-1, 1))
        right.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    left.plot([rounds[t - 1] for t, _ in text], [t for t, _ in text], ":", color=COLOURS[6], label="gradients so far")
    for place, title in ((left, "the text: all layers as one"), (right, "the figures: mean over layers")):
        place.set_title(title, fontsize=9)
        place.set_ylim(bottom=0)
        place.legend(frameon=False)
        plain(place, "round", "principal components")
    return save(figure, path)


def both_counts(layers: Mapping[str, LayerCount], counts: Sequence[Count]) -> dict[str, Any]:
    """What ``--json`` has of both counts."""
    return {
        "counts": [count._asdict() for count in counts],
        "counted_by_layer": {name: layer._asdict() for name, layer in layers.items()},
        "moments": [moment._asdict() for moment in moments(layers)],
    }
