"""Masks that models make of pictures, beside the true ones, in colours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from ..data.dataset import VOID
from ..errors import RunError
from ..losses import dice, each_mask, masks
from ..ranges import Count, Natural
from ..studies.read import Arm, comparable
from ..task import Supervised, Task
from .base import OWN_TASK, Look, Row, Table, option
from .drawing import draw_picture, plt, save
from .final import final

WHITE, RED, BLUE, GREY = (255, 255, 255), (230, 40, 40), (60, 110, 255), (90, 90, 90)
GAP = 190


class Segmented(NamedTuple):
    """A test picture, its mask, and what models made of it."""

    client: int
    picture: Float[Tensor, "c h w"]  # as the data has it: 0 to 1
    truth: UInt8[Tensor, "h mw 3"]  # several masks side by side
    made: list[UInt8[Tensor, "h mw 3"]]
    dice: list[float]  # 0 to 1, a number each


def compare(made: Bool[Tensor, "m h w"], truth: UInt8[Tensor, "m h w"]) -> UInt8[Tensor, "h mw 3"]:
    """Masks that a model ``made``, and the true ones: white is right, red was missed, blue is none, grey not labelled.

    Several are side by side, with a gap between them.
    """
    right, seen = truth == 1, truth != VOID
    out = torch.zeros(*truth.shape, 3, dtype=torch.uint8)
    for where, colour in ((made & right, WHITE), (~made & right, RED), (made & ~right & seen, BLUE), (~seen, GREY)):
        out[where] = torch.tensor(colour, dtype=torch.uint8)
    gap = torch.full((truth.shape[1], max(1, truth.shape[2] // 32), 3), GAP, dtype=torch.uint8)
    return torch.cat([part for mask in out for part in (gap, mask)][1:], dim=1)


@torch.no_grad()
def segment(client: int, task: Task, example: int, modules: list[nn.Module]) -> Segmented:
    """A test picture of a client by each module. Raises :class:`RunError` for a task that is no segmentation."""
    if not (isinstance(task, Supervised) and masks(task.targets)):
        raise RunError(f"client {client}'s test has no masks: look at a run such as --data retina")
    rows = torch.tensor([example % len(task)])
    inputs, targets = task.batch(rows)
    truth = each_mask(targets)[0]
    outputs = [module.eval()(inputs) for module in modules]
    picture = task.inputs[rows[0] if task.indices is None else task.indices[rows[0]]]
    return Segmented(
        client,
        picture.float() / 255 if picture.dtype == torch.uint8 else picture.float(),
        compare(truth == 1, truth),
        [compare(out[0] > 0, truth) for out in outputs],
        [float(dice(out, targets)) for out in outputs],
    )


class Reading(NamedTuple):
    """The methods, and a picture of each client by all of them."""

    methods: list[str]
    pictures: list[Segmented]


@dataclass(frozen=True)
class Pictures(Look[Reading]):
    """Needs complete runs, of a study or with --task, that segment pictures, such as --data retina. Where clients have
    models of their own, it is the client's. Of several seeds the first finished one is drawn.
    """

    subject = "study"

    example: Natural = option(0, "The position of the picture in each client's test.")
    clients: Count = option(6, "Clients, the first ones: a row each.")
    task: str | None = option(None, OWN_TASK)

    def read(self, arms: list[Arm]) -> Reading:
        ends = [final(comparable(arm).runs[0], self.task) for arm in arms]
        pictures = []
        for client in range(min(self.clients, len(ends[0].problem.tasks))):
            modules = [end.module(None if end.loaded.own_module is None else client) for end in ends]
            pictures.append(segment(client, ends[0].test(client), self.example, modules))
        return Reading([arm.label for arm in arms], pictures)

    def rows(self, reading: Reading) -> Iterable[Row]:
        cells = [[one.client, *(f"{value:.3f}" for value in one.dice)] for one in reading.pictures]
        yield Table("Dice", ("client", *reading.methods), cells)

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """A row a client: picture, mask, and every method's (paper 002's Figures 16 to 19)."""
        pictures, names = reading.pictures, reading.methods
        figure, grid = plt.subplots(
            len(pictures),
            2 + len(names),
            figsize=(1.9 * (2 + len(names)), 2 * len(pictures)),
            layout="constrained",
            squeeze=False,
        )
        for places, one in zip(grid, pictures, strict=True):
            cells = [(one.truth, "by hand")]
            for name, mask, value in zip(names, one.made, one.dice, strict=True):
                short = "\n".join(textwrap.wrap(name, 28, break_long_words=False)[:2])
                cells.append((mask, f"{short}\n{value:.3f}"))
            draw_picture(places[0], one.picture, f"client {one.client}")
            for place, (mask, title) in zip(places[1:], cells, strict=True):
                place.imshow(mask.numpy(), interpolation="nearest")
                place.set_title(title, fontsize=7)
                place.set_axis_off()
        return [save(figure, folder / "pictures.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        pictures = reading.pictures
        numbers = {"clients": [one.client for one in pictures], "dice": [one.dice for one in pictures]}
        return {"methods": reading.methods, **numbers}
