"""The loss along one random direction from the final model of each method.

Li, Xu, Taylor, Studer, Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018, Section 4.

Differences from the paper: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import require
from ..ranges import AboveZero, Count
from ..studies.read import Arm, comparable
from .base import OWN_TASK, Look, Odd, Row, Table, option
from .drawing import COLOURS, plain, plt, save
from .final import final, losses
from .surface import CLIENT, EXAMPLES, random_direction, steps, surface

Curves = list[tuple[str, list[float]]]  # a method, and the loss at each step from its model


@dataclass(frozen=True)
class Line(Look[Curves]):
    """Needs complete runs of federated methods, of a study or with --task; of several seeds the first finished is drawn."""  # noqa: E501

    subject = "study"

    points: Odd = option(31, "Points of each curve, odd: the middle one is the model.")
    reach: AboveZero = option(1.0, "How far to go to either side, in lengths of the direction's filters.")
    examples: Count = option(1000, EXAMPLES)
    client: int | None = option(None, CLIENT)
    own: bool = option(False, "Of --client's own model, of methods that have some; of others the shared one.")
    seed: int = option(0, "Of the direction.")
    task: str | None = option(None, OWN_TASK)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.own or self.client is not None, "--own is the model of a client: name it with --client")

    def read(self, arms: list[Arm]) -> Curves:
        ends = [(arm.label, final(comparable(arm).runs[0], self.task)) for arm in arms]
        having = [self.own and end.loaded.own_module is not None for _, end in ends]
        if self.own and not any(having):
            ends[0][1].module(self.client)  # says that clients have none
        curves: Curves = []
        for (label, end), mine in zip(ends, having, strict=True):
            x, loss = losses(end.module(self.client if mine else None), end.test(self.client), self.examples)
            along = random_direction(x, self.seed)
            name = f"{label}, client {self.client}'s own" if mine else label
            curves.append((name, surface(x, along, along, steps(self.points, self.reach), [0.0], loss)[0].tolist()))
        return curves

    def rows(self, reading: Curves) -> Iterable[Row]:
        cells = [[name, f"{values[self.points // 2]:.4g}", f"{max(values):.4g}"] for name, values in reading]
        yield Table(f"within {self.reach:g} of each model", ("method", "loss", "largest"), cells)

    def draw(self, reading: Curves, folder: Path) -> list[Path]:
        """A loss along a direction from each of several models, which lie at 0 (paper 002's Figure 12)."""
        figure, place = plt.subplots(figsize=(6.5, 4 + 0.22 * len(reading)), layout="constrained")
        for i, (label, values) in enumerate(reading):
            colour, style = COLOURS[i % len(COLOURS)], ("-", "--", ":")[i // len(COLOURS) % 3]
            place.plot(steps(self.points, self.reach), values, style, color=colour, label=label)
        place.axvline(0, color="black", linewidth=0.6, alpha=0.5)
        figure.legend(loc="outside lower center", frameon=False, fontsize=8)
        whose = "the test" if self.client is None else f"client {self.client}"
        plain(place, "along a random direction, in lengths of its filters", f"loss on {whose}")
        return [save(figure, folder / "line.png")]

    def values(self, reading: Curves) -> dict[str, Any]:
        curves = [{"method": name, "loss": values} for name, values in reading]
        return {"along": steps(self.points, self.reach), "curves": curves}
