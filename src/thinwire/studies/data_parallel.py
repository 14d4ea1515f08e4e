"""Data-parallel methods by logical workers on one problem: ``thinwire ddp-sim``."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from ..config import complete
from ..ddp.feedback import Feedback, Method
from ..ddp.methods import METHODS, Hook
from ..ddp.rounds import Seconds
from ..ddp.simulation import Setting, Simulation
from ..ddp.worker import Worker, enough
from ..errors import ExpressionError, nearest, require
from ..expression import parse, vocabulary
from ..links import Dense, Link
from ..problem import Problem
from ..ranges import Count
from ..run.ranks import size
from .axes import BOTH, UP, WALL, Axis
from .cells import Column, Row, average, last_value, mean, megabytes_text, percent_text, seconds_text
from .expressions import of_another_kind, own
from .read import Arm, Record, RecordedRun
from .steps import StepStudy
from .study import StudyRun, option_field


def method(text: str, use: Sequence[str] = ()) -> Method:
    """A data-parallel method from its expression; inside it names are those of links: ``Hook(EF21(TopK(0.1)))``.

    ``use`` are modules with methods or links of the user's own.
    """
    methods, names = dict(METHODS), {**vocabulary(), "Seconds": Seconds}
    for name, cls in own(use).items():
        (methods if issubclass(cls, Method) else names)[name] = cls
    outer = text.strip().partition("(")[0].strip()
    if outer in methods:
        made: Method = parse(text, names={**names, outer: methods[outer]})
        return made
    if other := of_another_kind(DataParallel.kind, outer, names):
        raise ExpressionError(other + (f"; here are {', '.join(methods)}" if outer in names else ""))
    cls = names.get(outer, Method)
    raise ExpressionError(
        f"no data-parallel method {outer!r}{nearest(outer, methods)}; known are {', '.join(methods)}, and any link "
        f"as Hook({text.strip() if issubclass(cls, Link) else 'TopK(0.01)'})"
    )


@dataclass(frozen=True)
class DataParallel(StepStudy):
    """A study of data-parallel methods.

    ``decay`` is in shares of the steps: after each the learning rate is a tenth of what it was. Without ``adamw``
    workers have SGD. ``momentum`` is SGD's, and the first beta of AdamW. ``checkpoint_every`` changes no result; a
    checkpoint has the parameters, momentum and residual of every worker, about four models each.
    """

    kind: ClassVar[str] = "data-parallel"
    example: ClassVar[str] = "DEF(ratio=64)"
    noun: ClassVar[str] = "a data-parallel method"
    outermost: ClassVar[Mapping[str, type]] = METHODS
    asks: ClassVar[tuple[str, str]] = "methods", 'Methods, an argument each, e.g. "DEF(ratio=64)" "Hook(Dense())".'
    out: ClassVar[str] = "runs/ddp"
    resumes: ClassVar[bool] = True

    workers: Count = option_field(16, "Logical workers.")
    nesterov: bool = option_field(False, "Nesterov's momentum.")
    adamw: bool = option_field(False, "AdamW in place of SGD.")

    def __post_init__(self) -> None:
        super().__post_init__()
        nesterov = not self.nesterov or (self.momentum > 0 and not self.adamw)
        require(nesterov, "--nesterov is SGD's, with a momentum: give --momentum more than 0, and no --adamw")
        require(size() == 1, "logical workers are of one process: start it without torchrun")

    @staticmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Method:
        return method(text, use)

    def rehearse(self, method: Method, problem: Problem) -> None:
        enough(len(problem.tasks[0]), self.workers, self.batch)
        model = problem.model
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        Worker(module.to(self.device), self.optimizer, method, self.workers)

    def start(self, job: StudyRun) -> Simulation:
        problem = job.problem
        if isinstance(job.method, Feedback):
            job.method.warn(self.workers)
        return Simulation(
            job.method,
            problem.model,
            problem.tasks[0],
            problem.test,
            Setting(self.workers, self.steps, self.batch, job.seed, self.evaluate_every, self.device),
            optimizer=self.optimizer,
            rate=self.rate,
            facts=self.about(job),
        )

    def title(self, about: Record) -> str:
        return f"{self.task or self.data}, {self.workers} workers of {self.batch} examples, {self.steps} steps"

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A worker's."""
        if self.adamw:
            return torch.optim.AdamW(parameters, self.lr, (self.momentum, 0.999), weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )

    # -- what table, curves and report show ------------------------------------

    # There is no simulated clock: a collective's time hangs on how it is done.
    axes: ClassVar[Mapping[str, Axis]] = {
        "bytes_up": Axis(UP, "MB sent by a worker"),
        "bytes_total": Axis(BOTH, "MB sent and received by a worker"),
        "wall_seconds": Axis(WALL, "wall-clock seconds, all workers on this machine"),
    }
    ways: ClassVar[Mapping[str, str]] = {
        "reduced_bytes": "up, in all-reduces",
        "gathered_bytes": "up, in all-gathers",
        "down_bytes": "down",
    }
    ways_said: ClassVar[str] = "All bytes of one worker's run, in the mean over seeds."
    least: ClassVar[tuple[str, ...]] = ("s here", "best", "of x", "MB down", "MB up")
    notes: ClassVar[Mapping[str, str]] = {
        "kB a step": "kB (10^3 bytes) a step and MB (10^6) up are what one worker gives to collectives: of an "
        "all-reduce among W workers 2 (W - 1) / W times that crosses each link, of an all-gather W - 1 times.",
        "MB down": "MB down is what it gets back.",
        "of x": "'of x': the accuracy of x, where y is judged.",
    }

    @staticmethod
    def plain(expression: str) -> bool:
        return expression == complete(Hook(Dense()))

    @staticmethod
    def row(arm: Arm) -> Row:
        return {
            "accuracy_x": average(last_value(run, "accuracy_x") for run in arm.runs),
            "bytes_reduced": mean(arm, "reduced_bytes"),
            "bytes_gathered": mean(arm, "gathered_bytes"),
            "bytes_per_step": statistics.fmean(
                sum(r["up_bytes"] for r in run.rounds) / max(1, run.length) for run in arm.runs
            ),
        }

    @staticmethod
    def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
        return (
            ("of x", lambda row: percent_text(row["accuracy_x"])),
            ("kB a step", lambda row: f"{row['bytes_per_step'] / 1e3:,.2f}"),
            ("MB up", lambda row: megabytes_text(row["bytes_up"])),
            ("MB down", lambda row: megabytes_text(row["bytes_down"])),
            ("up / Dense", lambda row: percent_text(row["share_up"])),
            ("s here", lambda row: seconds_text(row["seconds"])),
        )

    @staticmethod
    def words(about: Record, study: Record) -> list[tuple[str, str | None]]:
        kind = "AdamW" if about.get("adamw") else "SGD"
        more = f", momentum {about.get('momentum', 0):g}"
        more += " (Nesterov's)" if about.get("nesterov") else ""
        more += f", weight decay {about['weight_decay']:g}" if about.get("weight_decay") else ""
        decay = ", ".join(f"{100 * share:g} %" for share in about.get("decay") or ())
        return [
            ("Workers", f"{about['workers']}, each of which takes {about['batch']} examples in a step"),
            ("Steps", f"{about['steps']:,}"),
            ("Optimiser", f"{kind}, learning rate {about['lr']:g}{more}"),
            ("Decay", f"to a tenth of the rate after {decay} of the steps" if decay else None),
        ]

    @staticmethod
    def scale(runs: Sequence[RecordedRun], study: Record) -> list[str]:
        about = runs[0].about
        return [f"{about['workers']} workers", f"{about['steps']} steps"]
