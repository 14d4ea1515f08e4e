"""The tools that figures of several looks are made with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..report.plots import COLOURS, logarithmic, plt, save  # type: ignore[attr-defined]  # files only: it has set the backend

__all__ = ["COLOURS", "draw_picture", "heat_map", "logarithmic", "panels", "plain", "plt", "save"]


def plain(place: Any, x: str, y: str) -> None:
    """Name the axes of a panel, and draw a grid in place of its frame."""
    place.set_xlabel(x)
    place.set_ylabel(y)
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def panels(count: int, width: float = 3.2, height: float = 3.0) -> tuple[Any, list[Any]]:
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


def heat_map(
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


def draw_picture(place: Any, picture: Tensor, title: str) -> None:
    """Draw a picture [c, h, w], from 0 to 1, under its title."""
    image = picture.numpy()
    if image.ndim == 3:
        image = image[0] if len(image) == 1 else image[:3].transpose(1, 2, 0)
    elif image.ndim == 1:
        image = image[None]
    place.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    place.set_title(title, fontsize=7)
    place.set_axis_off()
