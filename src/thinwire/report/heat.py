"""Heat maps of clients and rounds: who took part, which layers were not sent, which updates LBGM recycled.

A cell is a character of ``LEVELS``. Where there are many clients, rounds or runs neighbours share one (``CELLS``), so
that a page stays below 5 MB.
"""

from __future__ import annotations

import statistics
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..studies.read import Arm, Record, RecordedRun, damage, read_lines

CELLS = 240, 400  # rows and columns of a heat map
FULL = 4  # runs whose heat maps have as many; more runs share the cells of so many
FEWEST = 40  # columns, however many runs there are: from then on heat maps have fewer rows
LEVELS = string.digits + string.ascii_letters  # of a cell; where there is nothing "."
WHOLE = 60  # the level of a share of 1
NOT_CALLED, ANSWERED, LOST, LATE = range(4)


def taking_part(arms: Sequence[Arm]) -> list[Record] | None:
    """The calls of clients by round, and what became of each call, for each seed of each method."""
    made = []
    for number, run in _runs(arms):
        states = _states(run.path / "ledger.jsonl")
        if not states:
            continue
        clients = run.about.get("clients") or 1 + max(client for _, client in states)
        rounds = max(round for round, _ in states)
        grid = np.full((clients, rounds), NOT_CALLED, dtype=np.int8)
        for (round, client), state in states.items():
            if client >= clients:
                raise damage(run.path / "ledger.jsonl", f"it has client {client}, and the run has {clients}")
            grid[client, round - 1] = state
        said = {
            name: int((grid == state).sum()) for name, state in (("answered", ANSWERED), ("lost", LOST), ("late", LATE))
        }
        made.append({"method": number, "seed": run.seed, **_heat(grid, arms), **said})
    return made or None


def _states(path: Path) -> dict[tuple[int, int], int]:
    """By round and client, of those that were called: whether they answered."""
    states: dict[tuple[int, int], int] = {}
    for entry in read_lines(path, ("round", "client", "direction")) if path.exists() else ():
        where = entry["round"], entry["client"]
        if entry["direction"] == "up":
            states[where] = ANSWERED if entry.get("used", True) else LATE
        else:
            states.setdefault(where, LOST)
    return states


def _runs(arms: Sequence[Arm]) -> list[tuple[int, RecordedRun]]:
    """Every run, with the number of its method."""
    return [(number, run) for number, arm in enumerate(arms) for run in arm.runs]


def _heat(grid: Any, arms: Sequence[Arm]) -> Record:
    """Cells of a heat map, a text by row, how many rows and rounds share one, and how many there are of both.

    Below 0 there is nothing.
    """
    cells, by = coarse(grid, most(len(_runs(arms))))
    text = ["".join("." if x < 0 else LEVELS[x] for x in row) for row in cells.tolist()]
    return {"cells": text, "by": by, "size": list(grid.shape)}


def most(runs: int) -> tuple[int, int]:
    """Rows and columns of a heat map: of many runs fewer columns, and of very many fewer rows."""
    rows, columns = CELLS
    share = rows * columns * min(1.0, FULL / runs)  # of the cells of all runs
    columns = max(FEWEST, int(share / rows))
    return max(1, int(share / columns)), columns


def coarse(grid: Any, limits: tuple[int, int] = CELLS) -> tuple[Any, list[int]]:
    """A grid of at most so many rows and columns. Neighbours share a cell, their highest: so many each way."""
    by = [-(-size // limit) for size, limit in zip(grid.shape, limits, strict=True)]
    if by != [1, 1]:
        pads = [(0, -size % one) for size, one in zip(grid.shape, by, strict=True)]
        grid = np.pad(grid, pads, constant_values=grid.min())
        rows, columns = (size // one for size, one in zip(grid.shape, by, strict=True))
        grid = grid.reshape(rows, by[0], columns, by[1]).max((1, 3))
    return grid, by


def unsent(arms: Sequence[Arm]) -> list[Record] | None:
    """The layers that no reply carried, by round, for each seed of methods that leave layers out."""
    made = []
    for number, run in _runs(arms):
        left = {line["round"]: names for line in run.rounds if (names := left_out(line)) is not None}
        order = dict.fromkeys(name for line in run.rounds for name in _layers(line))
        names = [*order, *(name for out in left.values() for name in out if name not in order)]
        names = [name for name in dict.fromkeys(names) if any(name in out for out in left.values())]
        if not names:
            continue
        grid = np.full((len(names), run.length), -1, dtype=np.int8)
        for round, out in left.items():
            grid[:, round - 1] = [WHOLE * (name in out) for name in names]
        drawn = _heat(grid, arms)
        rows = [names[i : i + drawn["by"][0]] for i in range(0, len(names), drawn["by"][0])]
        made.append({"method": number, "seed": run.seed, "rows": [_together(row) for row in rows], **drawn})
    return made or None


def _together(names: Sequence[str]) -> str:
    """The name of layers that share a row: the first, and how many others."""
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"


def left_out(line: Record) -> list[str] | None:
    """The layers that no reply of a round carried, as ``--record bytes`` or ``layers`` has them; None with neither."""
    out: list[str] | None = line.get("layer_bytes", line).get("unsent")
    return out


def _layers(line: Record) -> Iterable[str]:
    """The layers of a round, in the model's order, by the names that :func:`left_out` has."""
    layers: Record = line["layer_bytes"]["up"] if "layer_bytes" in line else line.get("layers", {})
    return layers


def recycling(arms: Sequence[Arm]) -> list[Record] | None:
    """The share of layers that a client's reply recycled, by round, for each seed of methods whose links look back."""
    made = []
    for number, run in _runs(arms):
        shares: dict[tuple[int, int], list[bool]] = {}
        for line in run.rounds:
            for look in line.get("looks") or ():
                shares.setdefault((look["client"], line["round"]), []).append(look["recycled"])
        if not shares:
            continue
        clients = run.about.get("clients") or 1 + max(client for client, _ in shares)
        grid = np.full((clients, run.length), -1, dtype=np.int8)
        for (client, round), each in shares.items():
            grid[client, round - 1] = np.rint(WHOLE * statistics.fmean(each))
        made.append({"method": number, "seed": run.seed, "rows": None, **_heat(grid, arms)})
    return made or None
