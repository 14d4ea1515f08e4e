"""Look-back recycling as it was tested: LBGM's tests by round, client and layer, and Equation 45's bound.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are Gradient Subspaces Low-Rank?",
ICLR 2022, Algorithm 2, Theorem 1, Corollary 1 and Equation 45.

Differences from the paper: beta and Upsilon of Equation 45 are constants that nobody knows. Here they are estimates
from below, from what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..expression import parse
from ..local import LocalSGD
from ..studies.read import RecordedRun, trainers
from .base import Note
from .drawing import COLOURS, heat_map, plain, plt, save

WHOLE = "*"  # all layers as one vector


class Recycling(NamedTuple):
    """A round's look-back tests, over its clients, fields and layers."""

    round: int
    sin2: float | None  # the median of those that there were
    rho: float | None  # the median
    recycled: float  # the share of tests that ended in a scalar
    error: float | None  # the largest ||d||^2 sin^2 of all clients, d the mean gradient of a local step
    allowed: float  # 1 / sqrt(tau T), what Corollary 1 allows for it


def recycling(lines: Sequence[Mapping[str, Any]]) -> list[Recycling]:
    """The tests of rounds with ``looks``. ||d||^2 sin^2 is what a scalar loses of a client's gradient, of all layers.

    A layer's loss counts whether it was recycled or sent: it says what recycling would have cost.
    """
    rounds, total = [], len(lines)
    for line in lines:
        tests = [look for look in line.get("looks", ()) if look["sin2"] is not None]
        if not line.get("looks"):
            continue
        lost: dict[tuple[int, str], float] = {}
        for look in tests:
            if look.get("rates"):
                d = look["norm"] / look["rates"]  # change / (lr tau)
                own = look["client"], look["field"]
                lost[own] = lost.get(own, 0.0) + d * d * look["sin2"]
        steps = [look["steps"] for look in line["looks"] if "steps" in look] or [1]
        tau = sum(steps) / len(steps)
        rounds.append(
            Recycling(
                line["round"],
                _median([look["sin2"] for look in tests]),
                _median([look["rho"] for look in tests]),
                sum(look["recycled"] for look in line["looks"]) / len(line["looks"]),
                max(lost.values(), default=None),
                1 / math.sqrt(max(1.0, tau) * total),
            )
        )
    return rounds


class LookBacks(NamedTuple):
    """Look-back tests by client, or by layer: means over all of a row's in a round, None where it had none."""

    rows: list[Any]  # numbers of clients, or names of layers
    rounds: list[int]  # those that tested
    sin2: list[list[float | None]]  # [rows, rounds]
    rho: list[list[float | None]]


def look_backs(lines: Sequence[Mapping[str, Any]], by: Literal["client", "layer"]) -> LookBacks:
    """The tests of rounds with ``looks``: a client's over its fields and layers, or a layer's over clients.

    Clients are in order, layers in the model's. Where replies have several fields, a layer's name has its field's too.
    """
    looks = [(line["round"], look) for line in lines for look in line.get("looks", ())]
    rounds = list(dict.fromkeys(round for round, _ in looks))
    several = len({look["field"] for _, look in looks}) > 1

    def row(look: Mapping[str, Any]) -> Any:
        return f"{look['field']}, {look['layer']}" if by == "layer" and several else look[by]

    rows = list(dict.fromkeys(row(look) for _, look in looks))
    rows = sorted(rows) if by == "client" else rows
    tests: dict[tuple[Any, int], list[Mapping[str, Any]]] = {}
    for round, look in looks:
        if look["sin2"] is not None:
            tests.setdefault((row(look), round), []).append(look)

    def means(value: str) -> list[list[float | None]]:
        each = {where: sum(look[value] for look in some) / len(some) for where, some in tests.items()}
        return [[each.get((row, round)) for round in rounds] for row in rows]

    return LookBacks(rows, rounds, means("sin2"), means("rho"))


def _median(values: Sequence[float]) -> float | None:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5)) if values else None


class Step(NamedTuple):
    """Equation 45, with what a run shows in place of what cannot be seen: the rate should be at most ``bound``."""

    round: int
    beta: float  # the largest ||d_t+1 - d_t|| / ||x_t+1 - x_t|| so far, in place of the smoothness
    upsilon2: float  # the largest mean ||d_k||^2 / ||mean d_k||^2 so far, at least 1, in place of Upsilon^2
    rate: float  # the mean learning rate of a local step
    bound: float  # min(1 / (2 tau), 1 / (tau sqrt(2 (1 + 4 Upsilon^2)))) / beta


def steps(rounds: Sequence[int], products: Float[Tensor, "t t"], lines: Sequence[Mapping[str, Any]]) -> list[Step]:
    """The bound of rounds with recorded gradients, from the second on. Inner products are those of all layers.

    None of rounds whose change is the server's: clients' rates are not known of these.

    Where all clients take one step a round along gradients of all of their examples, ``beta`` is the smoothness along
    the path: no more than the loss's. Else gradients of two rounds differ by their noise and by who was sampled too.
    That counts as curvature, the more the shorter the steps are, so that ``beta`` goes as 1 / rate and ``bound`` as
    the rate itself. It then says nothing of which rates are too high.
    """
    bounds, beta, upsilon2 = [], 0.0, 1.0
    changes = {line["round"]: line["change"] for line in lines if "change" in line and "of" not in line["change"]}
    for i, number in enumerate(rounds):
        own = changes.get(number)
        if own is None:
            continue
        if own["norm"] > 0:
            upsilon2 = max(upsilon2, own["square"] / own["norm"] ** 2)
        before = changes.get(number - 1)
        if i == 0 or before is None or rounds[i - 1] != number - 1:
            continue
        a, b = 1 / before["rates"], 1 / own["rates"]  # d = change / (lr tau)
        apart = a * a * products[i - 1, i - 1] - 2 * a * b * products[i - 1, i] + b * b * products[i, i]
        if before["moved"] > 0:
            beta = max(beta, math.sqrt(max(0.0, float(apart))) / before["moved"])
        tau = own["steps"]
        most = min(1 / (2 * tau), 1 / (tau * math.sqrt(2 * (1 + 4 * upsilon2))))
        bounds.append(Step(number, beta, upsilon2, own["rates"] / tau, most / beta if beta else math.inf))
    return bounds


def beyond_sgd(run: RecordedRun) -> list[Note]:
    """A note on a run that was trained otherwise than by plain SGD, which is what bounds of a rate are of."""
    if run.kind == "data-parallel":
        about = run.about
        momentum = f"SGD with a momentum of {about['momentum']:g}" if about.get("momentum") else ""
        kinds = ["AdamW" if about.get("adamw") else momentum]
    else:
        try:
            each = trainers(parse(run.expression))
        except ValueError:  # of a user's own module
            return []
        kinds = [repr(one) for one in each if not isinstance(one, LocalSGD) or one.momentum]
    by = " and ".join(filter(None, dict.fromkeys(kinds)))
    return [Note(f"note: the bounds are those of plain SGD, and this run was trained by {by}")] if by else []


def draw_recycling(rounds: Sequence[Recycling], lines: Sequence[Any], path: Path) -> Path:
    """The look-back test by round: sin^2 and rho of each client and of each layer, their medians, and what is lost.

    What recycling would lose is beside what Corollary 1 allows.
    """
    clients, layers = look_backs(lines, "client"), look_backs(lines, "layer")
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
            shown = heat_map(place, heat, tests.rounds, range(len(tests.rows)), vmin=least, vmax=most, cmap="viridis")
            ticks = range(0, len(tests.rows), -(-len(tests.rows) // 30))
            place.set_yticks(ticks, [_row(tests.rows[i]) for i in ticks], fontsize=7)
            place.set_xlabel("round")
            place.set_ylabel(name)
            beyond = "both" if value == "rho" else "neither"
            figure.colorbar(shown, ax=place, label=f"{label}, mean over {over}", extend=beyond)
    x = [each.round for each in rounds]
    medians, lost = grid[0, 2], grid[1, 2]
    medians.plot(x, [e.sin2 for e in rounds], color=COLOURS[0], label="sin², median")
    medians.plot(x, [e.rho for e in rounds], color=COLOURS[2], label="rho, median")
    medians.plot(x, [e.recycled for e in rounds], ":", color=COLOURS[1], label="share recycled")
    lost.semilogy(x, [e.error or None for e in rounds], color=COLOURS[0], label="largest ‖d‖² sin²")
    lost.semilogy(x, [e.allowed for e in rounds], "--", color=COLOURS[1], label="1 / √(τT)")
    for place in (medians, lost):
        place.legend(frameon=False)
        plain(place, "round", "")
    return save(figure, path)


def _row(name: object) -> str:
    """The label of a row: a client's number or a layer's name, shortened from the left."""
    text = "all layers" if name == WHOLE else str(name)
    return text if len(text) <= 24 else f"…{text[-23:]}"


def draw_bounds(steps: Sequence[Step], path: Path) -> Path:
    """The learning rate beside Equation 45."""
    figure, place = plt.subplots(figsize=(6, 3.6), layout="constrained")
    x = [each.round for each in steps]
    place.semilogy(x, [e.rate for e in steps], color=COLOURS[0], label="learning rate")
    place.semilogy(x, [e.bound for e in steps], "--", color=COLOURS[1], label="Equation 45, at most")
    place.legend(frameon=False)
    plain(place, "round", "")
    return save(figure, path)
