"""The figures of ``thinwire look``, as files. What they show is computed in the other modules of this package."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import patheffects
from matplotlib import pyplot as plt
from torch import Tensor

from ..errors import RunError
from ..report.curves import NAMES, Curve
from ..report.plots import COLOURS, logarithmic
from . import feedback as residuals
from . import gradients, layers, leakage, pictures, staleness, sweep
from . import subspace as spectra
from . import surface as surfaces
from .gradients import WHOLE, Look, Space

FIRST = 50  # principal directions that are drawn


def _save(figure: Any, path: Path, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, **how)
    plt.close(figure)
    return path


def _plain(place: Any, x: str, y: str) -> None:
    place.set_xlabel(x)
    place.set_ylabel(y)
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def _panels(count: int, width: float = 3.2, height: float = 3.0) -> tuple[Any, list[Any]]:
    """A figure of so many panels, in rows of four."""
    columns = min(4, count)
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(width * columns + 0.6, height * rows), layout="constrained", squeeze=False
    )
    places = list(grid.flat)
    for place in places[count:]:
        place.set_visible(False)
    return figure, places[:count]


def _map(
    place: Any, values: Any, across: Sequence[int], down: Sequence[int], by: tuple[int, int] = (1, 1), **how: Any
) -> Any:
    """A heat map whose columns and rows have these numbers, in order. Numbers that are left out have empty cells.

    ``by`` says how far apart neighbours are, across and down: of a map that shows one of so many.
    """
    for axis, (numbers, each) in enumerate(((down, by[1]), (across, by[0]))):
        if (length := (numbers[-1] - numbers[0]) // each + 1) > len(numbers):
            shape = [length if i == axis else size for i, size in enumerate(np.shape(values))]
            whole, at = np.full(shape, np.nan), [(n - numbers[0]) // each for n in numbers]
            np.moveaxis(whole, axis, 0)[at] = np.moveaxis(np.asarray(values), axis, 0)
            values = whole
    x, y = (each / 2 for each in by)
    sides = (across[0] - x, across[-1] + x, down[-1] + y, down[0] - y)
    return place.imshow(values, aspect="auto", interpolation="nearest", extent=sides, **how)


def components(space: Space, look: Look, path: Path, reached: Curve | None = None, value: str = "accuracy") -> Path:
    """N95- and N99-PCA after each round, and below what the model is judged by (paper 000's Figure 1).

    ``value`` is what that is: a name of :mod:`thinwire.report.curves`.
    """
    rows = 1 if reached is None else 2
    figure, grid = plt.subplots(rows, 1, figsize=(6, 3.4 * rows), layout="constrained", squeeze=False, sharex=True)
    found = look.layers[WHOLE].progression
    x = [space.rounds[t - 1] for t, _ in found]
    top = grid[0, 0]
    for i, (name, colour) in enumerate((("N95-PCA", COLOURS[1]), ("N99-PCA", COLOURS[0]))):
        top.plot(x, [counts[i] for _, counts in found], color=colour, label=name)
    top.plot(x, [t for t, _ in found], ":", color=COLOURS[6], label="gradients so far")
    top.legend(frameon=False)
    _plain(top, "round" if reached is None else "", "principal components")
    if reached is not None:
        grid[1, 0].plot(reached.x, reached.middle, color=COLOURS[0])
        _plain(grid[1, 0], "round", NAMES[value])
    return _save(figure, path)


def _heat(space: Space, found: Mapping[str, Tensor], path: Path, y: str, low: float, title: str) -> Path:
    """A heat map of each layer, whose columns are the rounds that are shown; so are its rows unless these are ``y``."""
    found = {name: values for name, values in found.items() if values.numel()}  # a layer without gradients has no space
    if not found:
        raise RunError("all gradients are zero: there is nothing to draw")
    sizes = {WHOLE: space.layout.size, **dict(zip(space.layout.names, space.layout.sizes, strict=True))}
    figure, places = _panels(len(found))
    rounds, by = [space.rounds[i] for i in space.shown()], space.every()
    x = "round" if by == 1 else f"round, one of {by}"
    shown = None
    for place, (name, values) in zip(places, found.items(), strict=True):
        kind = "viridis" if low == 0 else "RdBu_r"
        down, each = (range(1, len(values) + 1), 1) if y else (rounds, by)
        shown = _map(place, values.numpy(), rounds, down, (by, each), vmin=low, vmax=1, cmap=kind)
        place.set_title(f"{'all layers' if name == WHOLE else name}, {sizes[name]:,}", fontsize=8)
        place.set_xlabel(x)
        place.set_ylabel(y or x)
    figure.colorbar(shown, ax=places, shrink=0.7, label=title)
    return _save(figure, path)


def overlap(space: Space, look: Look, path: Path) -> Path:
    """Heat maps of |cosine| of gradients with principal directions, by layer (Figure 2)."""
    found = {name: seen.overlap for name, seen in look.layers.items() if seen.overlap is not None}
    return _heat(space, found, path, "principal direction", 0, "|cosine|")


def cosines(space: Space, look: Look, path: Path) -> Path:
    """Heat maps of the cosine of each gradient with each other, by layer (Figure 3)."""
    found = {name: seen.cosines for name, seen in look.layers.items() if seen.cosines is not None}
    return _heat(space, found, path, "", -1, "cosine")


def recycling(found: Sequence[gradients.Recycling], lines: Sequence[Any], path: Path) -> Path:
    """The look-back test by round: sin^2 and rho of each client and of each layer, their medians, and what is lost.

    What recycling would lose is beside what Corollary 1 allows.
    """
    clients, layers = (gradients.look_backs(lines, by) for by in ("client", "layer"))
    figure, grid = plt.subplots(
        2,
        3,
        figsize=(15, 7.6),
        height_ratios=[1, 1 if len(layers.rows) > 8 else 0.6],
        layout="constrained",
    )
    seen = [x for each in (*clients.rho, *layers.rho) for x in each if x is not None] or [0.0, 1.0]
    few = [float(x) for x in np.quantile(seen, (0.02, 0.98))]  # a few far ones are not to hide the others
    for places, tests, name, over in ((grid[0], clients, "client", "layers"), (grid[1], layers, "layer", "clients")):
        for place, value, label in zip(places, ("sin2", "rho"), ("sin²", "rho"), strict=False):
            heat = np.array(getattr(tests, value), dtype=float)  # None is no number
            least, most = few if value == "rho" else (0, 1)
            shown = _map(place, heat, tests.rounds, range(len(tests.rows)), vmin=least, vmax=most, cmap="viridis")
            ticks = range(0, len(tests.rows), -(-len(tests.rows) // 30))
            place.set_yticks(ticks, [_row(tests.rows[i]) for i in ticks], fontsize=7)
            place.set_xlabel("round")
            place.set_ylabel(name)
            beyond = "both" if value == "rho" else "neither"
            figure.colorbar(shown, ax=place, label=f"{label}, mean over {over}", extend=beyond)
    x, nothing = [each.round for each in found], float("nan")
    medians, lost = grid[0, 2], grid[1, 2]
    medians.plot(x, [nothing if e.sin2 is None else e.sin2 for e in found], color=COLOURS[0], label="sin², median")
    medians.plot(x, [nothing if e.rho is None else e.rho for e in found], color=COLOURS[2], label="rho, median")
    medians.plot(x, [e.recycled for e in found], ":", color=COLOURS[1], label="share recycled")
    lost.semilogy(x, [e.error or nothing for e in found], color=COLOURS[0], label="largest ‖d‖² sin²")
    lost.semilogy(x, [e.allowed for e in found], "--", color=COLOURS[1], label="1 / √(τT)")
    for place in (medians, lost):
        place.legend(frameon=False)
        _plain(place, "round", "")
    return _save(figure, path)


def _row(name: object) -> str:
    """What stands at a row: a client's number or a layer's name, shortened from the left."""
    text = "all layers" if name == WHOLE else str(name)
    return text if len(text) <= 24 else f"…{text[-23:]}"


def bounds(found: Sequence[gradients.Step], path: Path) -> Path:
    """The learning rate beside Equation 45."""
    figure, place = plt.subplots(figsize=(6, 3.6), layout="constrained")
    x = [each.round for each in found]
    place.semilogy(x, [e.rate for e in found], color=COLOURS[0], label="learning rate")
    place.semilogy(x, [e.bound for e in found], "--", color=COLOURS[1], label="Equation 45, at most")
    place.legend(frameon=False)
    _plain(place, "round", "")
    return _save(figure, path)


def scores(found: Sequence[layers.Layer], kappas: Sequence[layers.Kappa], path: Path) -> Path:
    """Norms and scores of layers (paper 001's Figure 1), which were recycled when, and kappa by round."""
    names = [layer.layer for layer in found]
    figure, grid = plt.subplots(2, 2, figsize=(13, 2.6 + 0.5 * min(30, len(names)) ** 0.9 + 3.4), layout="constrained")
    places = np.arange(len(names))
    norms = grid[0, 0]
    norms.barh(places - 0.2, [e.weights for e in found], 0.4, color=COLOURS[6], label="‖x‖")
    norms.barh(places + 0.2, [e.change for e in found], 0.4, color=COLOURS[0], label="‖Δ‖")
    logarithmic(norms)
    norms.legend(frameon=False)
    own = grid[0, 1]
    own.barh(places, [e.score for e in found], color=COLOURS[1])
    for place, title in ((norms, "norm, mean over rounds"), (own, "s = ‖Δ‖ / ‖x‖, mean over rounds")):
        place.set_yticks(places, names, fontsize=7)
        place.invert_yaxis()
        _plain(place, title, "")
    heat = np.array([[name in e.unsent for e in kappas] for name in names], dtype=float)
    _map(grid[1, 0], heat, [e.round for e in kappas], range(len(names)), vmin=0, vmax=1, cmap="Greys")
    grid[1, 0].set_yticks(places, names, fontsize=7)
    grid[1, 0].set_xlabel("round (black: recycled)")
    line = grid[1, 1]
    share = [math.nan if e.kappa is None else e.kappa for e in kappas]
    line.plot([e.round for e in kappas], share, color=COLOURS[0], label="kappa")
    line.axhline(layers.KAPPA, linestyle="--", color=COLOURS[1], label="1/16")
    line.legend(frameon=False)
    _plain(line, "round", "recycled layers' share of ‖g‖²")
    return _save(figure, path)


def spectrum(found: spectra.Subspace, path: Path) -> Path:
    """Singular values, rho_R, and the cosine of each gradient to the basis that was there before it."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
    sigma = found.sigma.numpy()
    x = np.arange(1, len(sigma) + 1)
    left.semilogy(x, np.maximum(sigma / sigma[0], 1e-8), color=COLOURS[0], label="recorded gradients")
    if found.kept is not None:
        own = found.kept.numpy()
        left.semilogy(
            np.arange(1, len(own) + 1), np.maximum(own / own[0], 1e-8), ".", color=COLOURS[1], label="server.sigma"
        )
    left.legend(frameon=False)
    _plain(left, "direction", "singular value, by the largest")
    middle.semilogy(x, np.maximum(found.rho.numpy(), 1e-12), color=COLOURS[0])
    _plain(middle, "R", "rho: share of σ² after the first R")
    there = [each for each in found.followed if each.cosine > 0]
    right.plot([e.round for e in there], [e.cosine for e in there], color=COLOURS[0])
    right.set_ylim(0, 1.02)
    _plain(right, "round", f"‖Pᵀg‖ / ‖g‖, {found.rank} directions")
    return _save(figure, path)


def dimension(tried: Sequence[spectra.Tried], goal: float, path: Path) -> Path:
    """What trainings in spaces of some dimensions reached."""
    figure, place = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ordered = sorted(tried)
    place.semilogx([e.dim for e in ordered], [100 * e.reached for e in ordered], "o-", color=COLOURS[0])
    place.axhline(100 * goal, linestyle="--", color=COLOURS[1], label=f"{100 * goal:.1f} %")
    place.legend(frameon=False)
    _plain(place, "dimension", "best test accuracy, %")
    return _save(figure, path)


def owed(found: Sequence[residuals.Owed], path: Path) -> Path:
    """Residuals and the distance of x and y by step, lambda* beside the lambda in use, and what x and y reach."""
    averaged = any(e.accuracy_x is not None for e in found)
    figure, places = _panels(2 + averaged, 5.2, 3.8)
    x, nothing = [e.step for e in found], float("nan")
    left, right = places[:2]
    left.plot(x, [e.residual for e in found], color=COLOURS[0], label="residual, root of mean ‖e‖²")
    left.plot(x, [e.distance for e in found], color=COLOURS[1], label="‖x - y‖ = ‖mean e‖")
    right.plot(x, [nothing if e.best is None else e.best for e in found], color=COLOURS[0], label="λ*")
    if any(e.lam is not None for e in found):
        right.plot(x, [nothing if e.lam is None else e.lam for e in found], "--", color=COLOURS[1], label="λ in use")
    if averaged:  # paper 002's Figure 8
        for name, colour, label in (("accuracy", 0, "y (DEF)"), ("accuracy_x", 1, "x (DEF-A)")):
            reached = [getattr(e, name) for e in found]
            places[2].plot(x, [nothing if a is None else 100 * a for a in reached], color=COLOURS[colour], label=label)
    for place, label in zip(places, ("", "", "test accuracy, %"), strict=False):
        place.legend(frameon=False)
        place.set_ylim(bottom=None if label else 0)
        _plain(place, "step", label)
    return _save(figure, path)


def leaked(found: Sequence[leakage.Leak], path: Path) -> Path:
    """The picture, and what was rebuilt of it from what each method sends."""
    titles = ["the client's picture"]
    for one in found:
        alike = "" if one.ssim is None else f", SSIM {one.ssim:.2f}"
        name = textwrap.wrap(one.method, 36, break_long_words=False)[:3]
        titles.append("\n".join([*name, f"PSNR {one.psnr:.1f} dB{alike}"]))
    figure, places = _panels(1 + len(found), 2.6, 3.05 + 0.12 * max(title.count("\n") for title in titles))
    for place, title, picture in zip(places, titles, [found[0].original, *(one.rebuilt for one in found)], strict=True):
        _picture(place, picture, title)
    return _save(figure, path, bbox_inches="tight")  # the layout leaves too little for titles over square pictures


def _picture(place: Any, picture: Tensor, title: str) -> None:
    image = picture.numpy()
    if image.ndim == 3:
        image = image[0] if len(image) == 1 else image[:3].transpose(1, 2, 0)
    elif image.ndim == 1:
        image = image[None]
    place.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    place.set_title(title, fontsize=7)
    place.set_axis_off()


def surface(
    values: Tensor,
    across: Sequence[float],
    up: Sequence[float],
    path: Path,
    x: str,
    y: str,
    way: surfaces.Way | None = None,
) -> Path:
    """A loss [up, across] as levels, even in their logarithm, with the model at (0, 0) or the way of a run to it."""
    figure, place = plt.subplots(figsize=(6, 5), layout="constrained")
    loss = values.nan_to_num(1e8).clamp(1e-8, 1e8).log10().numpy()
    bar = figure.colorbar(place.contourf(across, up, loss, levels=20, cmap="viridis"))
    bar.set_label("test loss")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{10**value:.3g}")
    drawn: dict[str, Any] = {"color": "white", "markeredgecolor": "black", "linewidth": 1}
    if way is None:
        place.plot([0], [0], "o", **drawn)
    else:
        place.plot(*way.places.T.tolist(), ".-", **drawn)
        for t in (0, len(way.rounds) - 1):
            beside: dict[str, Any] = {"xytext": (5, 5), "textcoords": "offset points"}
            at = float(way.places[t, 0]), float(way.places[t, 1])
            seen = place.annotate(f"round {way.rounds[t]}", at, color="white", **beside)
            seen.set_path_effects([patheffects.withStroke(linewidth=2, foreground="black")])
    _plain(place, x, y)
    return _save(figure, path)


def shares(found: Sequence[float], path: Path) -> Path:
    """The share of a trajectory's variance in each of its first principal directions, and in all up to each (paper
    004's Figure 2).
    """
    figure, place = plt.subplots(figsize=(6.5, 4), layout="constrained")
    some = [100 * share for share in found[:FIRST]]
    whole, numbers = list(accumulate(some)), range(1, len(some) + 1)
    place.bar(numbers, some, color=COLOURS[0], label="of this direction")
    place.plot(numbers, whole, ".-", color=COLOURS[1], label="of all up to it")
    place.annotate(f"{whole[-1]:.2f} %", (len(some), whole[-1]), xytext=(0, 5), textcoords="offset points", ha="right")
    place.set_ylim(0, 108)
    place.legend(frameon=False, loc="center right")
    _plain(place, "principal direction", "share of the models' variance, %")
    return _save(figure, path)


def lines(curves: Sequence[tuple[str, Sequence[float]]], along: Sequence[float], path: Path, name: str) -> Path:
    """A loss along a direction from each of several models, which lie at 0 (paper 002's Figure 12)."""
    figure, place = plt.subplots(figsize=(6.5, 4 + 0.22 * len(curves)), layout="constrained")
    for i, (label, values) in enumerate(curves):
        colour, style = COLOURS[i % len(COLOURS)], ("-", "--", ":")[i // len(COLOURS) % 3]
        place.plot(along, values, style, color=colour, label=label)
    place.axvline(0, color="black", linewidth=0.6, alpha=0.5)
    figure.legend(loc="outside lower center", frameon=False, fontsize=8)
    _plain(place, "along a random direction, in lengths of its filters", name)
    return _save(figure, path)


def embedding(panels: Sequence[tuple[str, Tensor]], groups: Sequence[int], by: str, path: Path) -> Path:
    """Places on planes, a colour for each client or label (paper 002's Figure 11, paper 004's Figure 6)."""
    figure, places = _panels(len(panels), 4.4 if len(panels) > 1 else 5.4, 4.4)
    of, colours = torch.tensor(groups), plt.get_cmap("tab20")
    for place, (title, where) in zip(places, panels, strict=True):
        for i, group in enumerate(sorted(set(groups))):
            x, y = where[of == group].T.tolist()
            place.scatter(x, y, s=8, color=colours(i % 20), label=f"{by} {group}")
        place.set_xticks([])
        place.set_yticks([])
        place.set_title(title or f"t-SNE of features, by {by}", fontsize=10)
    places[-1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return _save(figure, path)


def segmented(found: Sequence[pictures.Segmented], names: Sequence[str], path: Path) -> Path:
    """A row a client: picture, mask, and every method's (paper 002's Figures 16 to 19)."""
    figure, grid = plt.subplots(
        len(found),
        2 + len(names),
        figsize=(1.9 * (2 + len(names)), 2 * len(found)),
        layout="constrained",
        squeeze=False,
    )
    for places, one in zip(grid, found, strict=True):
        cells = [(one.truth, "by hand")]
        for name, mask, value in zip(names, one.found, one.dice, strict=True):
            short = "\n".join(textwrap.wrap(name, 28, break_long_words=False)[:2])
            cells.append((mask, f"{short}\n{value:.3f}"))
        _picture(places[0], one.picture, f"client {one.client}")
        for place, (mask, title) in zip(places[1:], cells, strict=True):
            place.imshow(mask.numpy(), interpolation="nearest")
            place.set_title(title, fontsize=7)
            place.set_axis_off()
    return _save(figure, path)


def stale(found: Sequence[staleness.Stale], path: Path) -> Path:
    """By part: how far parameters moved, and the difference from backpropagation (paper 002's Figure 4)."""
    drawn = [("moved", "weights", "‖x - x_old‖ / ‖x‖ while a batch is on its way")]
    if any(e.difference is not None for e in found):
        drawn.append(("difference", "gradient", "‖g - g of backpropagation‖ / ‖the latter‖"))
        if any(e.parameters for e in found):
            drawn.append(("difference", "parameters", "‖g - g of backpropagation‖ by parameters"))
    figure, grid = plt.subplots(1, len(drawn), figsize=(5.5 * len(drawn), 3.8), layout="constrained", squeeze=False)
    for place, (name, whole, label) in zip(grid[0], drawn, strict=True):
        for part in sorted({e.part for e in found}):
            own = [(e.step, getattr(e, name), getattr(e, whole)) for e in found if e.part == part]
            points = [(step, value / by) for step, value, by in own if value is not None and by]
            if points:
                place.plot(*zip(*points, strict=True), color=COLOURS[part % len(COLOURS)], label=f"part {part}")
        place.legend(frameon=False)
        place.set_ylim(bottom=0)
        _plain(place, "step", label)
    return _save(figure, path)


def swept(found: Sequence[sweep.Line], across: str, value: str, path: Path) -> Path:
    """What was reached by a setting, a curve for each of the others; bars are from the lowest seed to the highest."""
    figure, place = plt.subplots(figsize=(6.5, 4 + 0.22 * len(found)), layout="constrained")
    for i, line in enumerate(found):
        middle = [point.mean for point in line.points]
        spread = [[p.mean - p.low for p in line.points], [p.high - p.mean for p in line.points]]
        x = [point.at for point in line.points]
        style = ("o-", "s--", "^:")[i // len(COLOURS) % 3]
        place.errorbar(x, middle, spread, fmt=style, color=COLOURS[i % len(COLOURS)], capsize=3, label=line.name)
    positive = [point.at for line in found for point in line.points]
    if min(positive) > 0 and max(positive) / min(positive) > 20:
        logarithmic(place)
    if len(found) > 1 or found[0].name:
        figure.legend(loc="outside lower center", frameon=False, fontsize=8)
    _plain(place, across, value)
    return _save(figure, path)
