"""What the theorems of a run's method speak of, in numbers: constants, conditions on the rate, bounds beside values.

The theorems are in :mod:`.theorems`. What they need of losses and gradients is measured by :mod:`.constants`. The row
of a method in :data:`THEORIES` says how its theorem is filled in.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms.base import Algorithm
from ..algorithms.domo import DOMO
from ..algorithms.flss import FLSS
from ..algorithms.intrinsic import Intrinsic
from ..algorithms.luar import LUAR
from ..config import Config
from ..ddp import DEF
from ..dice import seeded
from ..errors import RunError
from ..federated.changes import load_rows
from ..key import Key
from ..links import LBGM
from ..local import LocalSGD
from ..params import Params
from ..problem import Problem
from ..ranges import Count, at_least
from ..studies import KINDS
from ..studies.loading import study_of
from ..studies.read import RecordedRun, lacks
from ..task import as_task
from ..train.slot import Slot, floats
from .base import OWN_TASK, Look, Row, Table, option, short
from .components import spectrum
from .constants import Constants, PathSlot, descend, losses_of, measure, ways
from .drawing import COLOURS, plt, save
from .final import Final, build, final
from .gradients import space_of
from .layers import kappas
from .path import models_of
from .recycling import beyond_sgd
from .subspace import left_out
from .theorems import (
    Apart,
    Quantity,
    Steps,
    def_,
    domo,
    domo_round,
    errors_of,
    flss,
    intrinsic,
    largest_loss,
    lbgm,
    luar,
    recycled_noise,
    steps_of,
)


class Federated:
    """A federated run with its data: what the theorems of its method are filled in with."""

    def __init__(self, look: Theory, run: RecordedRun) -> None:
        self.look, self.run = look, run
        self.end: Final = final(run, look.task)
        self.method: Algorithm = self.end.loaded.algorithm
        self.tasks = self.end.tasks
        weights = [self.method.weigh(len(task)) for task in self.tasks]
        self.weights = [w / sum(weights) for w in weights]
        self.slot = PathSlot(self.end.assemble())
        self.layout, self.rows, self.rounds = models_of(run)
        if self.layout.shapes != self.slot.layout.shapes or self.layout.names != self.slot.layout.names:
            raise RunError(f"{run.path}: its method's model is no model that its clients train, so nothing is measured")
        given = build(self.end.problem.model, run.seed)
        self.first = Slot(self.method.assemble(given, len(self.tasks))).params()

    def model(self, round: int) -> Params:
        """The model after a round, 0: the start. Raises :class:`RunError` where it was not recorded."""
        if not round:
            return self.first
        if round not in self.rounds:
            raise RunError(f"{self.run.path} has no model of round {round}: train it with --evaluate-every 1")
        return Params(self.slot.layout, self.rows[self.rounds.index(round)].to(self.slot.layout.dtype, copy=True))

    @cached_property
    def chosen_rounds(self) -> list[int]:
        """The rounds that are measured: the start, and others as far apart as can be, the last among them."""
        count = min(self.look.points - 1, len(self.rounds))
        return [0, *(self.rounds[round((i + 1) * len(self.rounds) / count) - 1] for i in range(count))]

    def measure(self, sketch: Callable[[Params], Tensor] | None = None) -> Constants:
        """Losses and gradients at these rounds."""
        models = [(number, self.model(number)) for number in self.chosen_rounds]
        how = self.look.batches, self.run.seed, sketch
        return Constants(measure(self.slot, self.tasks, self.weights, self.method.local, models, *how), self.weights)

    @property
    def steps(self) -> Steps:
        """Rounds, local steps, rate. Raises :class:`RunError` of a run that recorded no changes of its clients."""
        if (steps := steps_of(self.run.rounds)) is None:
            raise lacks(self.run, "recorded changes of clients", "federated", "train it with --record all")
        return steps

    def trajectories(self, x: Params, round: int) -> list[list[Tensor]]:
        """Clients' models after each step of a round's training from ``x``."""
        return ways(self.slot, self.tasks, x, self.method.local, self.run.seed, round)

    def least(self, clients: Iterable[int], x: Params, rate: float) -> float:
        """The least mean loss of some clients that descent from ``x`` finds."""
        chosen = list(clients)
        whole = sum(self.weights[k] for k in chosen)
        weights = [self.weights[k] / whole for k in chosen]
        loss = losses_of(self.slot, [self.tasks[k] for k in chosen], weights, self.method.local)
        return descend(loss, x.flat.double(), self.look.descent, rate)


def _lbgm(run: Federated, _: LBGM) -> list[Quantity]:
    if not any("looks" in line for line in run.run.rounds):
        raise lacks(run.run, "recorded tests of LBGM", "federated", "train it with --record all")
    return lbgm(run.measure(), run.steps, largest_loss(run.run.rounds))


def _luar(run: Federated, _: LUAR) -> list[Quantity]:
    lines = [line for line in run.run.rounds if "change" in line]
    layout, rows = load_rows(run.run.path, [line["round"] for line in lines])
    each = [one.kappa for one in kappas(lines) if one.unsent and one.kappa is not None]
    strayed = [
        statistics.fmean(float((x - path[0]).square().sum()) for x in path[:-1])
        for number in run.chosen_rounds[:-1]
        for path in run.trajectories(run.model(number), number + 1)
    ]
    return luar(run.measure(), run.steps, recycled_noise(lines, layout, rows), each, statistics.fmean(strayed))


def _flss(run: Federated, method: FLSS) -> list[Quantity]:
    sigma = spectrum(space_of(run.run).whole())
    rho = float(left_out(sigma)[min(method.rank, len(sigma)) - 1])
    steps, x = run.steps, run.model(run.rounds[-1])
    own = [run.least([k], x, steps.eta) for k in range(len(run.tasks))]
    gamma = run.least(range(len(run.tasks)), x, steps.eta) - sum(w * f for w, f in zip(run.weights, own, strict=True))
    return flss(run.measure(), steps, max(0.0, gamma), rho, int(run.run.about["sample"]))


def _domo(run: Federated, method: DOMO) -> list[Quantity]:
    local, opt = method.local, method.opt
    if method.intra or not isinstance(local, LocalSGD) or local.keep or opt.past:
        raise RunError(f"{run.run.path}: Lemma 4.4.2 is of DOMO over SGD whose momentum begins at zero in each round")
    counts = {local.num_steps(len(task)) for task in run.tasks}
    if len(counts) > 1:
        raise RunError(
            f"{run.run.path}: its clients take {min(counts)} to {max(counts)} steps a round, and Lemma 4.4.2 has one "
            f"number for all: LocalSGD(steps=...)"
        )
    rounds = list[Apart]()
    for number in run.chosen_rounds[:-1]:
        x = run.model(number)
        momentum = (x - run.model(number - 1)) / opt.lr if number else x.zeros()
        paths = run.trajectories(x + momentum * method.beta, number + 1)
        rounds.append(domo_round(paths, momentum.flat.double(), opt.lr, method.beta, opt.beta, local.momentum))
    both = method.beta, opt.lr * opt.beta / (1 - opt.beta)
    return domo(run.measure(), run.steps.eta, counts.pop(), local.momentum, both, rounds)


def _intrinsic(run: Federated, method: Intrinsic) -> list[Quantity]:
    start, loss = run.first, losses_of(run.slot, run.tasks, run.weights, method.local)
    key = method._matrix(run.run.seed, 0, "subspace0")
    seen = run.measure(lambda g: method.basis.project_model(g, method.dim, key))
    reached = []
    for draw in range(run.look.draws):
        own = Key(draw, 0, None, "look/theory")

        def inside(s: Tensor, own: Key = own) -> Any:
            x = start + method.basis.expand_model(s.float(), start.layout, own).to(start.layout.dtype)
            at = loss(x.flat.double())
            g = Params(start.layout, at.gradient.to(start.layout.dtype))
            return at._replace(gradient=method.basis.project_model(g, method.dim, own).double())

        rate = run.steps.eta * method.dim / start.layout.size  # the curvature within is D / d times as large
        reached.append(descend(inside, torch.zeros(method.dim, dtype=torch.float64), run.look.descent, rate))
    epochs = len(run.run.rounds) // method.epoch if method.varying else 1
    return intrinsic(seen, reached, seen.loss(seen.points[-1]), epochs, method.subspaces)


def _def(run: RecordedRun, look: Theory) -> list[Quantity]:
    """Of a data-parallel run: at its first and at its last model."""
    from safetensors.torch import load_file

    study, file = study_of(run.path), run.path / "model.safetensors"
    if study is None or not file.exists():
        raise RunError(f"{run.path} has no complete run of a study: let it end first")
    if (errors := errors_of(run.rounds)) is None:
        raise lacks(run, "residuals", "data-parallel", "its method keeps none; look at one such as DEF(64)")
    method: Any = KINDS[run.kind].method(run.expression)
    if method.length > 1 or method.delay or method.decay != 1:
        raise RunError(f"{run.path}: Theorem 2.4.1 is of DEF that sends every step at once: no steps, delay or decay")
    problem: Problem = study.problem(run.seed)
    with seeded(Key(run.seed).number("model") % (1 << 32)):
        module = build(problem.model, run.seed) if isinstance(problem.model, torch.nn.Module) else problem.model()
    slot = Slot(module)
    first = slot.params()
    module.load_state_dict(load_file(file))
    models = [(0, first), (run.rounds[-1]["step"], Slot(module).params())]
    about, task = run.about, as_task(problem.tasks[0], "task 0", floats(module))
    trainer = LocalSGD(about["lr"], batch=about["batch"], weight_decay=about["weight_decay"])
    seen = Constants(measure(slot, [task], [1.0], trainer, models, look.batches, run.seed), [1.0])
    lams = [line["lam"] for line in run.rounds if line.get("lam") is not None]
    ratio = None if isinstance(method.ratio, Config) else float(method.ratio)
    return def_(seen, errors, about["workers"], statistics.fmean(lams or [method.detach or 0.0]), about["lr"], ratio)


THEORIES: dict[type, Callable[[Federated, Any], list[Quantity]]] = {
    LBGM: _lbgm,
    LUAR: _luar,
    FLSS: _flss,
    DOMO: _domo,
    Intrinsic: _intrinsic,
}
"""How the theorem of a federated method, or of a link of its replies, is filled in."""


def parts(x: Any) -> Iterator[Any]:
    """A configuration, and all that it holds."""
    if isinstance(x, Config):
        yield x
        for value in vars(x).values():
            yield from parts(value)
    elif isinstance(x, tuple | list | dict):
        for value in x.values() if isinstance(x, dict) else x:
            yield from parts(value)


class Reading(NamedTuple):
    """The rows of a run."""

    run: RecordedRun
    method: str
    rows: list[Quantity]


@dataclass(frozen=True)
class Theory(Look[Reading]):
    """Needs a complete run of LBGM, LUAR, FLSS, DOMO or Intrinsic, of a study or with --task, with --record all; or one
    of `thinwire ddp-sim` of DEF.
    """

    points: Annotated[int, at_least(2)] = option(
        5, "Models of the run that are measured, the first and last among them."
    )
    batches: Count = option(8, "Mini-batches of each client at each of them.")
    descent: Count = option(100, "Steps towards a minimum that a theorem speaks of: FLSS's Gamma, Intrinsic's rho.")
    draws: Count = option(4, "Subspaces that are drawn for Intrinsic's rho.")
    task: str | None = option(None, OWN_TASK)

    def read(self, run: RecordedRun) -> Reading:
        if run.kind == "data-parallel":
            if not isinstance(KINDS[run.kind].method(run.expression), DEF):
                raise RunError(
                    f"{run.path} is a run of {run.expression}: of data-parallel methods DEF has a theorem here"
                )
            return Reading(run, run.about["name"], _def(run, self))
        if run.kind != "federated":
            raise RunError(f"{run.path} is {run.kind}: there is no theorem of it here")
        there = Federated(self, run)
        rows = [
            row
            for part in parts(there.method)
            for kind, theory in THEORIES.items()
            if isinstance(part, kind)
            for row in theory(there, part)
        ]
        if not rows:
            known = ", ".join(kind.__name__ for kind in THEORIES)
            raise RunError(f"{run.path} is a run of {there.method!r}: there are theorems of {known} and DEF here")
        return Reading(run, repr(there.method), rows)

    def rows(self, reading: Reading) -> Iterable[Row]:
        cells = [
            [r.theorem, r.name, r.meaning, short(r.value), "" if r.beside is None else f"{r.how} {short(r.beside)}"]
            for r in reading.rows
        ]
        yield Table(reading.method, ("of", "what", "meaning", "value", "beside"), cells)
        yield (
            "Constants are the largest that were seen at a few models, so they are no more than those of the theorems. "
            "A minimum that nobody knows counts as 0"
        )
        if not any(row.theorem.startswith("DOMO") for row in reading.rows):  # its clients have momentum
            yield from beyond_sgd(reading.run)

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """Each quantity that is compared, by what it is compared with: 1 is where the two are equal."""
        pairs = [(r, r.value / r.beside) for r in reading.rows if r.value is not None and r.beside]
        figure, place = plt.subplots(figsize=(8, 1 + 0.4 * len(pairs)), layout="constrained")
        shown = [(f"{r.name}, by {r.how}", ratio) for r, ratio in pairs if ratio > 0]
        place.barh([name for name, _ in shown], [ratio for _, ratio in shown], color=COLOURS[0])
        place.axvline(1, linestyle="--", color=COLOURS[1])
        place.set_xscale("log")
        place.invert_yaxis()
        place.set_xlabel("value by what is beside it")
        return [save(figure, folder / "theory.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        return {"quantities": [row._asdict() for row in reading.rows]}
