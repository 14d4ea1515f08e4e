"""Layer by layer: how far each one moves beside how large it is, and what recycling leaves out.

Kim, Kang, Lee, "Layer-wise Update Aggregation with Recycling for Communication-Efficient Federated Learning", NeurIPS
2025, arXiv:2503.11146, Figure 1, Equation 1 and Theorem 3.2.

Differences from the paper: kappa is the share of the recycled layers in the squared norm of the full gradient. Here the
gradient is the mean change of the model over the round's clients, all layers of which are trained and recorded, those
too that are not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..studies.read import RecordedRun, lacks
from .base import Look, Row, Table
from .drawing import COLOURS, heat_map, logarithmic, plain, plt, save
from .gradients import by_the_server

KAPPA = 1 / 16  # Theorem 3.2 asks for less


class LayerScore(NamedTuple):
    """A layer, the means over rounds."""

    layer: str
    change: float  # ||Delta_l||
    weights: float  # ||x_l||
    score: float  # s_l = ||Delta_l|| / ||x_l||, the mean of the rounds' own
    share: float  # of the squared norm of the whole change
    recycled: int  # rounds in which it was not sent


class Kappa(NamedTuple):
    """A round's recycled layers."""

    round: int
    unsent: list[str]
    kappa: float | None  # their share of the squared norm of the change; None where the change is the server's


def layers(lines: Sequence[Mapping[str, Any]]) -> list[LayerScore]:
    """The layers of rounds with ``layers``, in the model's order. s_l is 0 where a layer's weights are all zero."""
    own = [line for line in lines if "layers" in line]
    rows = []
    for name in own[0]["layers"] if own else ():
        pairs = [line["layers"][name] for line in own]
        scores = [change / weights if weights else 0.0 for change, weights in pairs]
        shares = [
            change**2 / line["change"]["norm"] ** 2 for (change, _), line in zip(pairs, own, strict=True) if change
        ]
        times = sum(name in line["unsent"] for line in own)
        changes, weights = zip(*pairs, strict=True)
        change, weight, score, share = (sum(values) / len(own) for values in (changes, weights, scores, shares))
        rows.append(LayerScore(name, change, weight, score, share, times))
    return rows


def kappas(lines: Sequence[Mapping[str, Any]]) -> list[Kappa]:
    """Kappa of rounds with ``layers``: 0 in rounds that recycled nothing.

    Where the change is the server's, recycled layers are in it as the server has them: kappa is not known.
    """
    rounds = []
    for line in lines:
        if "layers" in line:
            left = sum(line["layers"][name][0] ** 2 for name in line["unsent"])
            whole = line["change"]["norm"] ** 2
            kappa = left / whole if whole else 0.0
            unknown = line["unsent"] and line["change"].get("of") == "server"
            rounds.append(Kappa(line["round"], list(line["unsent"]), None if unknown else kappa))
    return rounds


class Reading(NamedTuple):
    """The layers of a run, as its records have them."""

    run: RecordedRun
    layers: list[LayerScore]
    kappas: list[Kappa]


@dataclass(frozen=True)
class Layers(Look[Reading]):
    """Needs a run with --record layers, gradients or all."""

    def read(self, run: RecordedRun) -> Reading:
        if not (means := layers(run.rounds)):
            raise lacks(run, "recorded layers", "federated", "train it with --record layers")
        return Reading(run, means, kappas(run.rounds))

    def rows(self, reading: Reading) -> Iterable[Row]:
        yield from by_the_server(reading.run)
        yield Table(
            f"{len(reading.kappas)} rounds, means",
            ("layer", "||change||", "||weights||", "s", "share of ||g||^2", "recycled"),
            [
                [e.layer, f"{e.change:.4g}", f"{e.weights:.4g}", f"{e.score:.3g}", f"{e.share:.3f}", e.recycled]
                for e in reading.layers
            ],
        )
        shares = [e.kappa for e in reading.kappas if e.unsent and e.kappa is not None]
        if shares:
            yield (
                f"kappa: mean {sum(shares) / len(shares):.3f}, largest {max(shares):.3f}; below 1/16 in "
                f"{sum(k < KAPPA for k in shares)} of {len(shares)} rounds that recycled"
            )

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """Norms and scores of layers (paper 001's Figure 1), which were recycled when, and kappa by round."""
        layers, kappas = reading.layers, reading.kappas
        names = [layer.layer for layer in layers]
        figure, grid = plt.subplots(
            2, 2, figsize=(13, 2.6 + 0.5 * min(30, len(names)) ** 0.9 + 3.4), layout="constrained"
        )
        places = np.arange(len(names))
        norms = grid[0, 0]
        norms.barh(places - 0.2, [e.weights for e in layers], 0.4, color=COLOURS[6], label="‖x‖")
        norms.barh(places + 0.2, [e.change for e in layers], 0.4, color=COLOURS[0], label="‖Δ‖")
        logarithmic(norms)
        norms.legend(frameon=False)
        own = grid[0, 1]
        own.barh(places, [e.score for e in layers], color=COLOURS[1])
        for place, title in ((norms, "norm, mean over rounds"), (own, "s = ‖Δ‖ / ‖x‖, mean over rounds")):
            place.set_yticks(places, names, fontsize=7)
            place.invert_yaxis()
            plain(place, title, "")
        heat = np.array([[name in e.unsent for e in kappas] for name in names], dtype=float)
        heat_map(grid[1, 0], heat, [e.round for e in kappas], range(len(names)), vmin=0, vmax=1, cmap="Greys")
        grid[1, 0].set_yticks(places, names, fontsize=7)
        grid[1, 0].set_xlabel("round (black: recycled)")
        line = grid[1, 1]
        line.plot([e.round for e in kappas], [e.kappa for e in kappas], color=COLOURS[0], label="kappa")
        line.axhline(KAPPA, linestyle="--", color=COLOURS[1], label="1/16")
        line.legend(frameon=False)
        plain(line, "round", "recycled layers' share of ‖g‖²")
        return [save(figure, folder / "layers.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        return {"layers": [e._asdict() for e in reading.layers], "kappa": [e._asdict() for e in reading.kappas]}
