"""The measured intrinsic dimension of a task: the smallest whose training reaches a share of what the whole model does.

Melas-Kyriazi, Wang, "Intrinsic Gradient Compression for Federated Learning", 2021, Section 2.1.

Differences from the paper: the dimension that :func:`smallest` measures is that of one learning rate and one training
length, found by doubling and halving: accuracy need not grow with the dimension, so a smaller one may do as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..algorithms import FedAvg
from ..errors import require
from ..federated.setting import Setting
from ..federated.simulate import simulate
from ..ranges import Count
from ..report.curves import SHARES
from ..studies.federated import Federated
from .base import DATA_DIR, Look, Portion, Row, Table, option
from .drawing import COLOURS, plain, plt, save
from .final import build


class Tried(NamedTuple):
    """A training in a space of so many dimensions."""

    dim: int
    reached: float
    enough: bool


def smallest(
    reach: Callable[[int], float], goal: float, low: int, high: int, precision: float = 0.1
) -> tuple[int | None, list[Tried]]:
    """The smallest dimension from ``low`` to ``high`` whose training reaches ``goal``, and all that were tried.

    The dimension is doubled until one is enough, then the step from the last that was not is halved until the two are
    within ``precision`` of each other. None where ``high`` is not enough either. Raises ``ValueError`` unless
    1 <= low <= high.
    """
    require(1 <= low <= high, f"dimensions {low} to {high}: the lowest is at least 1, and at most the highest")
    tried: list[Tried] = []

    def enough(dim: int) -> bool:
        reached = reach(dim)
        tried.append(Tried(dim, reached, reached >= goal))
        return reached >= goal

    below, dim = 0, low
    while not enough(dim):
        if dim == high:
            return None, tried
        below, dim = dim, min(2 * dim, high)
    while below and dim - below > max(1.0, precision * dim):
        middle = (below + dim) // 2
        below, dim = (below, middle) if enough(middle) else (middle, dim)
    return dim, tried


class Reading(NamedTuple):
    """The dimension, None where none up to the largest is enough, and how it came to it; what is reached is 0 to 1."""

    dimension: int | None
    most: int
    goal: float
    whole: float  # what the whole model reached
    tried: list[Tried]


@dataclass(frozen=True)
class Dimension(Look[Reading]):
    """It reads no run."""

    subject = "nothing"
    out = ("A folder for the figure (default: none is drawn).", None)

    method: str = option("Intrinsic(100)", 'A method with a field `dim`, e.g. "Intrinsic(100)".', metavar="EXPR")
    data: str = option("digits", "A data set of `thinwire run`.")
    model: str | None = option(None, "A model of `thinwire run`.")
    clients: int = option(20, "How many clients there are.")
    sample: int | None = option(None, "How many take part in a round (default: all).")
    rounds: int = option(50, "Rounds of each training.")
    lr: float | None = option(None, "Local learning rate, where the expression leaves it open.")
    target: Portion | None = option(
        None, "An accuracy or a Dice coefficient, 0 to 1 (default: the best of FedAvg trained the same way)."
    )
    share: Portion = option(0.9, "The share of the target that has to be reached.")
    low: Count = option(10, "The smallest dimension to try.")
    high: int | None = option(None, "The largest (default: all of the model's).")
    seed: int = option(0, "Seed of split, model, sampling and batches.")
    data_dir: str | None = option(None, DATA_DIR)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.high is None or self.high >= self.low
        require(fits, f"--high {self.high}: it must be at least --low {self.low}")

    def read(self, _: None) -> Reading:
        setting = Setting(sample=self.sample, seed=self.seed)
        study = Federated(
            Federated.resolve([self.method], (), {"lr": self.lr}),
            data=self.data,
            model=self.model,
            clients=self.clients,
            rounds=self.rounds,
            data_dir=self.data_dir,
            setting=setting,
        )
        (method,) = study.parse_methods()
        how = "name a method with a field `dim`, such as Intrinsic(100)"
        require(hasattr(method, "dim"), f"{method!r} has no dimension: {how}")
        problem = study.problem(self.seed)

        def best(algorithm: Any) -> float:
            result = simulate(algorithm, problem.model, problem.tasks, self.rounds, setting, test=problem.test)
            shares = [line[name] for name in SHARES for line in result.rounds if line.get(name) is not None]
            require(bool(shares), "this task is judged by neither accuracy nor Dice: there is no share of it to reach")
            print(f"{algorithm!r}: at best {100 * max(shares):.1f} %", file=sys.stderr)
            return float(max(shares))

        whole = best(FedAvg(method.local)) if self.target is None else self.target
        goal = self.share * whole
        most = self.high or sum(p.numel() for p in build(problem.model, self.seed).parameters() if p.requires_grad)
        dimension, tried = smallest(lambda dim: best(replace(method, dim=dim)), goal, min(self.low, most), most)
        return Reading(dimension, most, goal, whole, sorted(tried))

    def rows(self, reading: Reading) -> Iterable[Row]:
        yield Table(
            f"at least {100 * reading.goal:.1f} %",
            ("dimension", "at best", "enough"),
            [[e.dim, f"{100 * e.reached:.1f} %", "yes" if e.enough else "no"] for e in reading.tried],
        )
        if reading.dimension is None:
            yield f"no dimension up to {reading.most} is enough"
        else:
            yield f"measured intrinsic dimension: {reading.dimension}"

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """The best accuracy by the dimension that was trained in."""
        tried, goal = reading.tried, reading.goal
        figure, place = plt.subplots(figsize=(6, 3.6), layout="constrained")
        place.semilogx([e.dim for e in tried], [100 * e.reached for e in tried], "o-", color=COLOURS[0])
        place.axhline(100 * goal, linestyle="--", color=COLOURS[1], label=f"{100 * goal:.1f} %")
        place.legend(frameon=False)
        plain(place, "dimension", "best test accuracy, %")
        return [save(figure, folder / "dimension.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        numbers = {"dimension": reading.dimension, "goal": reading.goal, "whole": reading.whole}
        return {**numbers, "tried": [e._asdict() for e in reading.tried]}
