"""The way of a run's models on the plane of their two principal directions, and the loss around it.

Li, Xu, Taylor, Studer, Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018, Section 7.

Differences from the paper: principal directions are those of the models less their mean, as in the code of Li et al.,
where the text subtracts the last model. They follow from inner products, so nothing of size D x D is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from ..federated.changes import MODELS, load_rows
from ..params import Layout, Params
from ..ranges import Count, at_least
from ..studies.read import RecordedRun, lacks
from .base import OWN_TASK, Look, Row, option
from .components import centre
from .drawing import COLOURS, plain, plt, save
from .final import final, losses
from .gradients import Space
from .surface import CLIENT, EXAMPLES, draw_surface, surface

FIRST = 50  # principal directions that are drawn


class Way(NamedTuple):
    """Where a run's models lie on the plane of their two principal directions."""

    rounds: list[int]
    directions: tuple[Params, Params]  # of length 1
    places: Float[Tensor, "t 2"]  # from the last model, which lies at (0, 0)
    shares: list[float]  # of the models' variance, that of each principal direction, the largest first


def way(rows: Sequence[Tensor], layout: Layout, rounds: Sequence[int]) -> Way:
    """The way of models [d], the last of which is the end. Raises ``ValueError`` for fewer than three.

    The first model has no negative coordinate: a principal direction has no sign of its own.
    """
    require(len(rows) >= 3, f"{len(rows)} models: three at least make a plane")
    products = centre(Space.of(rows, layout).whole())
    values, vectors = torch.linalg.eigh(products)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    places = (vectors * values.sqrt())[:, :2]
    places = places - places[-1]
    signs = torch.where(places[0] < 0, -1.0, 1.0).double()
    mean = torch.zeros(layout.size, dtype=torch.float64)
    for row in rows:
        mean.add_(row.double(), alpha=1 / len(rows))
    directions = []
    for j in range(2):
        flat = torch.zeros(layout.size, dtype=torch.float64)
        for t, row in enumerate(rows):
            flat.add_(row.double() - mean, alpha=float(vectors[t, j]))
        length = float(flat.norm()) or 1.0
        directions.append(Params(layout, (flat * float(signs[j]) / length).to(layout.dtype)))
    total = float(values.sum()) or 1.0
    shares = (values[: len(rows) - 1] / total).tolist()  # n models differ in at most n - 1 directions
    return Way(list(rounds), (directions[0], directions[1]), places * signs, shares)


def span(places: Float[Tensor, " t"], points: int, margin: float = 0.25) -> list[float]:
    """So many values from the least to the largest place and a share of the distance beyond."""
    low, high = float(places.min()), float(places.max())
    beyond = margin * ((high - low) or 1.0)
    values: list[float] = torch.linspace(low - beyond, high + beyond, points, dtype=torch.float64).tolist()
    return values


def models_of(run: RecordedRun) -> tuple[Layout, list[Tensor], list[int]]:
    """The models that a run recorded, and their rounds. Raises :class:`RunError` where there are none."""
    rounds = [line["round"] for line in run.rounds if line.get("model")]
    if not rounds:
        raise lacks(run, "recorded models", "federated", "train it with --record models or all")
    layout, rows = load_rows(run.path, rounds, MODELS)
    return layout, rows, rounds


class Reading(NamedTuple):
    """The way of a run, and the loss on its plane."""

    way: Way
    across: list[float]
    up: list[float]
    loss: Float[Tensor, "up across"]


@dataclass(frozen=True)
class Trajectory(Look[Reading]):
    """A second figure has the share of the models' variance in each of their first 50 principal directions.

    Needs a complete run, of a study or with --task, with --record models or all, evaluated three times or more.
    """

    points: Annotated[int, at_least(3)] = option(15, "Points along each direction.")
    examples: Count = option(1000, EXAMPLES)
    client: int | None = option(None, CLIENT)
    task: str | None = option(None, OWN_TASK)

    def read(self, run: RecordedRun) -> Reading:
        layout, models, rounds = models_of(run)
        plane, end = way(models, layout, rounds), final(run, self.task)
        _, loss = losses(end.assemble(), end.test(self.client), self.examples)
        across, up = (span(plane.places[:, j], self.points) for j in range(2))
        return Reading(
            plane, across, up, surface(Params(layout, models[-1].clone()), *plane.directions, across, up, loss)
        )

    def rows(self, reading: Reading) -> Iterable[Row]:
        shares = reading.way.shares
        first, second = (100 * share for share in shares[:2])
        number = len(reading.way.rounds)
        yield f"{number} models; two directions have {first:.1f} % and {second:.1f} % of their variance"
        if len(shares) > 2:
            yield f"the first {min(len(shares), FIRST)} have {100 * sum(shares[:FIRST]):.2f} %"

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        rounds, _, places, shares = reading.way
        first, second = (100 * share for share in shares[:2])
        names = f"first principal direction, {first:.0f} % of the variance", f"second, {second:.0f} %"
        levels = reading.loss, reading.across, reading.up
        return [
            draw_surface(*levels, folder / "path.png", *names, rounds, places),
            draw_shares(shares, folder / "shares.png"),
        ]

    def values(self, reading: Reading) -> dict[str, Any]:
        rounds, _, places, shares = reading.way
        plane = {"rounds": rounds, "places": places.tolist(), "shares": shares}
        return {**plane, "across": reading.across, "up": reading.up, "loss": reading.loss.tolist()}


def draw_shares(shares: Sequence[float], path: Path) -> Path:
    """The share of a trajectory's variance in each of its first principal directions, and in all up to each (paper
    004's Figure 2).
    """
    figure, place = plt.subplots(figsize=(6.5, 4), layout="constrained")
    some = [100 * share for share in shares[:FIRST]]
    whole, numbers = list(accumulate(some)), range(1, len(some) + 1)
    place.bar(numbers, some, color=COLOURS[0], label="of this direction")
    place.plot(numbers, whole, ".-", color=COLOURS[1], label="of all up to it")
    place.annotate(f"{whole[-1]:.2f} %", (len(some), whole[-1]), xytext=(0, 5), textcoords="offset points", ha="right")
    place.set_ylim(0, 108)
    place.legend(frameon=False, loc="center right")
    plain(place, "principal direction", "share of the models' variance, %")
    return save(figure, path)
