"""The space of a run's gradients: how many directions it has, in all layers and in each.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are Gradient Subspaces Low-Rank?",
ICLR 2022, Section 2. What look-back recycling needs of them is in :mod:`~thinwire.look.recycling`.

The T gradients of D entries are rows of G. Everything here follows from their inner products G G^T, [T, T], which are
summed up block by block, a layer at a time. Nothing of size D x D or T x D is made.

Differences from the paper: a gradient is the mean change of the model over a round's clients, whose sign and length no
figure here depends on; with one client and one local epoch that is Algorithm 2's accumulated gradient times the
learning rate. Algorithm 2 decomposes anew after each epoch, here at most 100 times a run. The paper's "explained
variance" is, in its Appendix D.1, a share of the sum of singular values; ``of="variance"`` takes their squares instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..algorithms.flss import gram
from ..errors import RunError, require
from ..federated.changes import load_rows
from ..params import Layout
from ..ranges import Decay
from ..report.curves import NAMES, Curve, count, curve, judgement
from ..studies.read import Arm, RecordedRun, lacks
from .base import Look, Note, Row, Table, option
from .components import (
    FEW,
    POINTS,
    Count,
    Kind,
    LayerCount,
    both_counts,
    components,
    draw_by_layer,
    ladder,
    ladder_table,
    moments,
    of_layer,
    progression,
    spectrum,
)
from .drawing import COLOURS, heat_map, panels, plain, plt, save
from .recycling import (
    WHOLE,
    Recycling,
    Step,
    beyond_sgd,
    draw_bounds,
    draw_recycling,
    look_backs,
    recycling,
    steps,
)

MOST = 12  # heat maps side by side: of all layers as one, and of those with the most entries
SHOWN = 400  # rounds and directions on an axis of a heat map, at most
HELD = 1 << 23  # numbers in memory at a time, in double precision


def overlap(products: Float[Tensor, "t t"], share: float = 0.99, of: Kind = "values") -> Float[Tensor, "t n"]:
    """The cosine of each gradient with each principal gradient direction, up to the direction's sign.

    Direction j is G^T v_j / sigma_j, so its product with gradient i is sigma_j v_ij. As many as have ``share``.
    """
    values, vectors = torch.linalg.eigh(products)
    sigma, v = values.flip(0).clamp_min(0).sqrt(), vectors.flip(1)
    n = components(sigma, share, of)
    cosine: Tensor = (v * sigma)[:, :n] / _lengths(products)[:, None]
    return cosine


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
        """The space of vectors [d], one a gradient: those of rounds 1, 2 and so on where none are given."""
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

    def positions(self) -> list[int]:
        """The positions of the gradients that heat maps show."""
        return [i for i, number in enumerate(self.rounds) if (number - self.rounds[0]) % self.every() == 0]


def space_of(run: RecordedRun) -> Space:
    """The gradients of a run that was trained with ``record="gradients"``. Raises :class:`RunError` for any other."""
    rounds = [line["round"] for line in run.rounds if "change" in line]
    if not rounds:
        raise lacks(run, "recorded gradients", "federated", "train it with --record gradients or all")
    layout, rows = load_rows(run.path, rounds)
    return Space.of(rows, layout, rounds)


class LayerSpectrum(NamedTuple):
    """A layer's gradients in figures."""

    layer: str
    entries: int
    n95: int
    n99: int
    consecutive: float  # the mean cosine of each gradient with the next
    nearest: float  # the mean over gradients of the largest |cosine| with a principal direction


class Seen(NamedTuple):
    """The figures that are kept of a layer's inner products."""

    line: LayerSpectrum
    progression: list[tuple[int, tuple[int, ...]]]
    overlap: Float[Tensor, "n s"] | None  # |cosine| of principal directions with gradients that heat maps show
    cosines: Float[Tensor, "s s"] | None  # of these with one another; None of a layer that has no heat map


class Geometry(NamedTuple):
    """The figures of a run's gradients: of all layers as one (*), and of each."""

    layers: dict[str, Seen]
    whole: Float[Tensor, "t t"]  # the inner products of all layers as one
    by_layer: dict[str, LayerCount]  # the count of the published figures, where it is asked for


def looked_at(space: Space, of: Kind = "values", momentum: float | None = None) -> Geometry:
    """All layers, one after another: the matrices of a layer are dropped before those of the next are made.

    ``momentum`` is that of the count by layer; None: layers are not counted so.
    """
    sizes = {WHOLE: space.layout.size, **dict(zip(space.layout.names, space.layout.sizes, strict=True))}
    layers, drawn, at = dict[str, Seen](), space.largest(), space.positions()
    by_layer = dict[str, LayerCount]()
    whole = torch.zeros(0, 0, dtype=torch.float64)
    for name, products in space.products():
        sigma, near, alike = spectrum(products), overlap(products, of=of), cosines(products)
        next_one = alike.diag(1)
        line = LayerSpectrum(
            name,
            sizes[name],
            components(sigma, 0.95, of),
            components(sigma, 0.99, of),
            float(next_one.mean()) if len(next_one) else 1.0,
            float(near.abs().amax(1).mean()) if near.numel() else 0.0,
        )
        counted = progression(products, of=of, points=POINTS if name == WHOLE else FEW)
        maps = (near[at, :SHOWN].abs().T.float(), alike[at][:, at].float()) if name in drawn else (None, None)
        layers[name], whole = Seen(line, counted, *maps), products
        if momentum is not None and name != WHOLE:
            by_layer[name] = of_layer(products, momentum)
    return Geometry({WHOLE: layers.pop(WHOLE), **layers}, whole, by_layer)


def by_the_server(run: RecordedRun) -> list[Note]:
    """A note on a run whose recorded changes are not its clients' but the server's; none on any other."""
    if not any(line.get("change", {}).get("of") == "server" for line in run.rounds):
        return []
    return [
        Note(
            "note: clients of this method move the model otherwise than by one training. The changes that are shown "
            "are those of the server's model"
        )
    ]


class Reading(NamedTuple):
    """The gradients that a run recorded (else ``space`` is None), and its tests of LBGM."""

    run: RecordedRun
    tests: list[Recycling]
    space: Space | None = None
    geometry: Geometry | None = None
    value: str = ""  # what the model is judged by
    reached: Curve | None = None  # of that
    bounds: Sequence[Step] = ()
    counts: Sequence[Count] = ()  # the text's count, that of the published figures, and the steps between them


@dataclass(frozen=True)
class Gradients(Look[Reading]):
    """Needs a run with --record gradients (components), looks (LBGM's tests), or all."""

    momentum: Decay | None = option(None, "With --by-layer: a momentum over the gradients first; the paper's is 0.9.")
    by_layer: bool = option(
        False,
        "Count also as the paper's published figures do: layer by layer, centred, by squares; mean and deviation.",
    )
    squares: bool = option(False, "Shares of the squared singular values, in place of the paper's values.")

    def __post_init__(self) -> None:
        super().__post_init__()
        needs = f"--momentum {self.momentum}: it belongs to the count by layer; give --by-layer too"
        require(self.momentum is None or self.by_layer, needs)

    def read(self, run: RecordedRun) -> Reading:
        tests = recycling(run.rounds)
        there = any("change" in line for line in run.rounds) and (run.path / "gradients.f32").exists()
        if not tests and not there:
            how = "train it with --record gradients (LBGM's looks: looks) or all"
            raise lacks(run, "recorded gradients", "federated", how)
        if not there:
            return Reading(run, tests)
        space = space_of(run)
        momentum = (self.momentum or 0.0) if self.by_layer else None
        geometry = looked_at(space, "variance" if self.squares else "values", momentum)
        counts = [] if momentum is None else ladder(geometry.whole, geometry.by_layer, momentum)
        alone = Arm(run.expression, run.expression, [run])
        value, _ = judgement([alone])
        bounds = steps(space.rounds, geometry.whole, run.rounds)
        return Reading(run, tests, space, geometry, value, curve(alone, count, value), bounds, counts)

    def rows(self, reading: Reading) -> Iterable[Row]:
        if reading.space is not None and reading.geometry is not None:
            yield from by_the_server(reading.run)
            lines = [layer.line for layer in reading.geometry.layers.values()]
            yield Table(
                f"{len(reading.space.rounds)} gradients",
                ("layer", "entries", "N95", "N99", "cosine to the next", "to the nearest direction"),
                [[e.layer, f"{e.entries:,}", e.n95, e.n99, f"{e.consecutive:.3f}", f"{e.nearest:.3f}"] for e in lines],
            )
        if reading.counts and reading.space is not None:
            yield from ladder_table(reading.counts, len(reading.space.rounds))
        if reading.bounds:
            last = reading.bounds[-1]
            yield (
                f"Equation 45, with a smoothness of {last.beta:.3g} and a dissimilarity of {last.upsilon2:.3g} as "
                f"seen between rounds: a learning rate of at most {last.bound:.3g}; it is {last.rate:.3g}. Noise "
                "of batches and of sampled clients counts as curvature there: trust it of full batches alone"
            )
            yield from beyond_sgd(reading.run)
        if tests := reading.tests:
            losses = [(e.error, e.allowed) for e in tests if e.error is not None]
            yield (
                f"look-back tests: {100 * sum(e.recycled for e in tests) / len(tests):.1f} % recycled; ||d||^2 sin^2 "
                f"was within 1/sqrt(tau T) for every client in {sum(error <= allowed for error, allowed in losses)} of "
                f"{len(losses)} rounds"
            )

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        space, geometry, files = reading.space, reading.geometry, list[Path]()
        if space is not None and geometry is not None:
            files = [
                draw_components(space, geometry, folder / "components.png", reading.reached, reading.value),
                draw_overlap(space, geometry, folder / "overlap.png"),
                draw_cosines(space, geometry, folder / "cosines.png"),
            ]
            if reading.counts:
                text, curve = progression(geometry.whole), moments(geometry.by_layer)
                files.append(draw_by_layer(space.rounds, text, curve, folder / "by_layer.png"))
        if reading.bounds:
            files.append(draw_bounds(reading.bounds, folder / "bounds.png"))
        if reading.tests:
            files.append(draw_recycling(reading.tests, reading.run.rounds, folder / "look_back.png"))
        return files

    def values(self, reading: Reading) -> dict[str, Any]:
        space, geometry, reached, lines = reading.space, reading.geometry, reading.reached, reading.run.rounds
        numbers: dict[str, Any] = {}
        if space is not None and geometry is not None:
            judgement = reached and {
                "value": reading.value,
                "rounds": reached.x.tolist(),
                "values": reached.middle.tolist(),
            }
            numbers |= {
                "layers": [layer.line._asdict() for layer in geometry.layers.values()],
                "progression": geometry.layers[WHOLE].progression,
                "progressions": {name: layer.progression for name, layer in geometry.layers.items()},
                "reached": judgement,
                "heat_maps": _maps(space, geometry),
                "steps": [e._asdict() for e in reading.bounds],
                **(both_counts(geometry.by_layer, reading.counts) if reading.counts else {}),
            }
        if reading.tests:
            numbers["recycling"] = [e._asdict() for e in reading.tests]
            by: Literal["client", "layer"]
            for by in ("client", "layer"):
                names, *means = look_backs(lines, by)
                numbers[f"by_{by}"] = {f"{by}s": names, **dict(zip(("rounds", "sin2", "rho"), means, strict=True))}
            numbers["looks"] = [{"round": line["round"], **look} for line in lines for look in line.get("looks", ())]
        return numbers


def _maps(space: Space, geometry: Geometry) -> dict[str, Any]:
    """The heat maps of overlaps and cosines, by layer, with four digits; the rounds of their columns."""
    maps: dict[str, dict[str, list[list[float]]]] = {"overlap": {}, "cosines": {}}
    for kind, by_layer in maps.items():
        for name, layer in geometry.layers.items():
            if (values := getattr(layer, kind)) is not None:
                by_layer[name] = [[round(x, 4) for x in row] for row in values.tolist()]
    return {"rounds": [space.rounds[i] for i in space.positions()], **maps}


def draw_components(
    space: Space, geometry: Geometry, path: Path, reached: Curve | None = None, value: str = "accuracy"
) -> Path:
    """N95- and N99-PCA after each round, and below what the model is judged by (paper 000's Figure 1).

    ``value`` is what that is: a name of :mod:`thinwire.report.curves`.
    """
    rows = 1 if reached is None else 2
    figure, grid = plt.subplots(rows, 1, figsize=(6, 3.4 * rows), layout="constrained", squeeze=False, sharex=True)
    progress = geometry.layers[WHOLE].progression
    x = [space.rounds[t - 1] for t, _ in progress]
    top = grid[0, 0]
    for i, (name, colour) in enumerate((("N95-PCA", COLOURS[1]), ("N99-PCA", COLOURS[0]))):
        top.plot(x, [counts[i] for _, counts in progress], color=colour, label=name)
    top.plot(x, [t for t, _ in progress], ":", color=COLOURS[6], label="gradients so far")
    top.legend(frameon=False)
    plain(top, "round" if reached is None else "", "principal components")
    if reached is not None:
        grid[1, 0].plot(reached.x, reached.middle, color=COLOURS[0])
        plain(grid[1, 0], "round", NAMES[value])
    return save(figure, path)


def _draw_heat(space: Space, maps: Mapping[str, Tensor], path: Path, y: str, low: float, title: str) -> Path:
    """A heat map of each layer, whose columns are the rounds that are shown; so are its rows unless these are ``y``."""
    maps = {name: values for name, values in maps.items() if values.numel()}  # a layer without gradients has no space
    if not maps:
        raise RunError("all gradients are zero: there is nothing to draw")
    sizes = {WHOLE: space.layout.size, **dict(zip(space.layout.names, space.layout.sizes, strict=True))}
    figure, places = panels(len(maps))
    rounds, by = [space.rounds[i] for i in space.positions()], space.every()
    x = "round" if by == 1 else f"round, one of {by}"
    shown = None
    for place, (name, values) in zip(places, maps.items(), strict=True):
        kind = "viridis" if low == 0 else "RdBu_r"
        down, each = (range(1, len(values) + 1), 1) if y else (rounds, by)
        shown = heat_map(place, values.numpy(), rounds, down, (by, each), vmin=low, vmax=1, cmap=kind)
        place.set_title(f"{'all layers' if name == WHOLE else name}, {sizes[name]:,}", fontsize=8)
        place.set_xlabel(x)
        place.set_ylabel(y or x)
    figure.colorbar(shown, ax=places, shrink=0.7, label=title)
    return save(figure, path)


def draw_overlap(space: Space, geometry: Geometry, path: Path) -> Path:
    """Heat maps of |cosine| of gradients with principal directions, by layer (Figure 2)."""
    maps = {name: seen.overlap for name, seen in geometry.layers.items() if seen.overlap is not None}
    return _draw_heat(space, maps, path, "principal direction", 0, "|cosine|")


def draw_cosines(space: Space, geometry: Geometry, path: Path) -> Path:
    """Heat maps of the cosine of each gradient with each other, by layer (Figure 3)."""
    maps = {name: seen.cosines for name, seen in geometry.layers.items() if seen.cosines is not None}
    return _draw_heat(space, maps, path, "", -1, "cosine")
