"""The loss around a run's final model, on the plane of two random directions.

Li, Xu, Taylor, Studer, Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018, Section 4.

Differences from the paper: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from matplotlib import patheffects
from torch import Tensor

from ..key import Key
from ..params import Params
from ..ranges import AboveZero, Count
from ..studies.read import RecordedRun
from .base import OWN_TASK, Look, Odd, Row, option
from .drawing import plain, plt, save
from .final import final, losses

CLIENT = "On this client's own test, or what it trains on (default: the shared test)."
EXAMPLES = "Examples, the first ones, at each point."


def filter_normalise(direction: Params, x: Params) -> Params:
    """The direction, each of whose filters is as long as that of ``x``: the network's scale makes no difference then.

    A filter is what stands at one place of a tensor's first dimension. Tensors of one dimension, which are biases and
    the parameters of norms, become zero. A filter of zeros stays one.
    """

    def scale(d: Tensor, w: Tensor) -> Tensor:
        if w.ndim < 2:
            return torch.zeros_like(d)
        ours, theirs = (t.flatten(1).norm(dim=1) for t in (d, w))
        ratio = torch.where(ours > 0, theirs / ours.clamp_min(torch.finfo(ours.dtype).tiny), torch.zeros_like(ours))
        return d * ratio.view(-1, *(1,) * (d.ndim - 1))

    return Params.of((name, scale(d, x[name])) for name, d in direction.items())


def random_direction(x: Params, seed: int, number: int = 0) -> Params:
    """A filter-normalised Gaussian direction, of those that belong to a seed."""
    flat = torch.randn(
        x.layout.size, dtype=torch.float32, device="cpu", generator=Key(seed, number).generator("direction")
    ).to(x.layout.dtype)
    return filter_normalise(Params(x.layout, flat), x)


def surface(
    centre: Params,
    first: Params,
    second: Params,
    across: Sequence[float],
    up: Sequence[float],
    loss: Callable[[Params], float],
) -> Float[Tensor, "up across"]:
    """``loss`` at centre + a * first + b * second, for each a of ``across`` and each b of ``up``."""
    return torch.tensor([[loss(centre + first * a + second * b) for a in across] for b in up], dtype=torch.float64)


def steps(points: int, reach: float) -> list[float]:
    """So many places from -reach to reach, the middle one of which is 0."""
    return [reach * (2 * i / (points - 1) - 1) for i in range(points)]


Levels = Float[Tensor, "up across"]  # a loss around a model


@dataclass(frozen=True)
class Surface(Look[Levels]):
    """Needs a complete run of any federated method, of a study or with --task."""

    points: Odd = option(15, "Points along each direction, odd: the middle one is the model.")
    reach: AboveZero = option(1.0, "How far to go along each direction, in lengths of its filters.")
    examples: Count = option(1000, EXAMPLES)
    client: int | None = option(None, CLIENT)
    seed: int = option(0, "Of the two directions.")
    task: str | None = option(None, OWN_TASK)

    def read(self, run: RecordedRun) -> Levels:
        end = final(run, self.task)
        x, loss = losses(end.module(), end.test(self.client), self.examples)
        a, b = (random_direction(x, self.seed, number) for number in range(2))
        places = steps(self.points, self.reach)
        return surface(x, a, b, places, places, loss)

    def rows(self, reading: Levels) -> Iterable[Row]:
        middle = self.points // 2
        at, most = float(reading[middle, middle]), float(reading.max())
        yield f"loss {at:.4g} at the model, {most:.4g} at most within {self.reach:g}"

    def draw(self, reading: Levels, folder: Path) -> list[Path]:
        places = steps(self.points, self.reach)
        return [draw_surface(reading, places, places, folder / "surface.png", "first direction", "second direction")]

    def values(self, reading: Levels) -> dict[str, Any]:
        places = steps(self.points, self.reach)
        return {"across": places, "up": places, "loss": reading.tolist()}


def draw_surface(
    values: Tensor,
    across: Sequence[float],
    up: Sequence[float],
    path: Path,
    x: str,
    y: str,
    rounds: Sequence[int] = (),
    places: Tensor | None = None,
) -> Path:
    """A loss [up, across] as levels, even in their logarithm, with the model at (0, 0).

    Of a run's way to it there are the rounds and ``places`` [round, 2] of its models.
    """
    figure, place = plt.subplots(figsize=(6, 5), layout="constrained")
    loss = values.nan_to_num(1e8).clamp(1e-8, 1e8).log10().numpy()
    bar = figure.colorbar(place.contourf(across, up, loss, levels=20, cmap="viridis"))
    bar.set_label("test loss")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{10**value:.3g}")
    marks: dict[str, Any] = {"color": "white", "markeredgecolor": "black", "linewidth": 1}
    if places is None:
        place.plot([0], [0], "o", **marks)
    else:
        place.plot(*places.T.tolist(), ".-", **marks)
        for t in (0, len(rounds) - 1):
            beside: dict[str, Any] = {"xytext": (5, 5), "textcoords": "offset points"}
            at = float(places[t, 0]), float(places[t, 1])
            label = place.annotate(f"round {rounds[t]}", at, color="white", **beside)
            label.set_path_effects([patheffects.withStroke(linewidth=2, foreground="black")])
    plain(place, x, y)
    return save(figure, path)
