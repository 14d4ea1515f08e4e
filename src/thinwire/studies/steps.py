"""Studies whose runs are steps on batches, data-parallel and pipelined ones: options, files, checkpoints."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..config import complete
from ..data import IID
from ..errors import require
from ..problem import Problem, custom, standard
from ..run.folder import Folder
from ..run.identity import data_digest
from ..run.loop import Run
from ..run.progress import live
from ..run.ranks import rank
from ..task import as_task, as_tasks
from ..train.device import unusable, usable
from ..train.slot import floats, make_module
from .read import Record
from .study import Numbers, Study, StudyRun, option_field


@dataclass(frozen=True)
class StepStudy(Study):
    """What studies of steps have in common.

    ``decay`` is in shares of the steps: after each the learning rate is a tenth of what it was. ``checkpoint_every``
    changes no result. ``task``, ``my_module:make_task``, is in place of data and model, and makes one data set.
    """

    may_change: ClassVar[tuple[str, ...]] = (*Study.may_change, "checkpoint_every")
    lists: ClassVar[Mapping[str, Numbers]] = {
        "decay": Numbers(
            "shares of the steps", "0.5,0.75", float, "A tenth of the rate after these shares, e.g. 0.5,0.75."
        )
    }

    task: str | None = option_field(None, "my_module:make_task instead of --data and --model. Its clients is 1.")
    batch: int = option_field(8, "Examples a worker takes in a step.")
    steps: int = option_field(1000, "Steps to train.")
    lr: float = option_field(0.1, "Learning rate.")
    momentum: float = option_field(0.9, "Of each worker's SGD; the first beta of AdamW.")
    weight_decay: float = option_field(0.0, "Weight decay.")
    decay: tuple[float, ...] = ()
    evaluate_every: int = option_field(100, "Steps between evaluations.")
    checkpoint_every: int = option_field(100, "Steps between checkpoints, which are made after evaluations.")
    device: str = option_field("cpu", "Where models train: cpu, cuda, cuda:1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "batch", "evaluate_every", "checkpoint_every"):
            value = getattr(self, name)
            require(value > 0, f"--{name.replace('_', '-')} {value}: it must be at least 1")
        require(self.lr > 0, f"--lr {self.lr}: it must be positive")
        require(0 <= self.momentum < 1, f"--momentum {self.momentum}: it must be in [0, 1)")
        require(self.weight_decay >= 0, f"--weight-decay {self.weight_decay}: it must not be negative")
        require(all(0 < at < 1 for at in self.decay), "--decay: shares of the steps, such as 0.5,0.75")
        require(usable(self.device), f"--device {self.device}: {unusable(self.device)}")

    @abstractmethod
    def start(self, job: StudyRun) -> Run[Any]:
        """A training that begins."""

    def problem(self, seed: int) -> Problem:
        """Model, one task of all examples, and the test."""
        if self.task is None:
            return standard(self.data, self.model, 1, IID(), seed, data_dir=self.data_dir, augment=self.augments())
        problem, where = custom(self.task, 1, seed), f"--task {self.task}"
        count, has = len(problem.tasks), problem.test is not None
        require(count == 1, f"{where} made {count} data sets: let its function take `clients`, which is 1 here")
        require(has, f"{where} made no test set: let its function return (model, tasks, test)")
        model = problem.model if isinstance(problem.model, nn.Module) else make_module(problem.model, seed)
        tasks, test = as_tasks(problem.tasks, floats(model)), as_task(problem.test, "test", floats(model))
        return replace(problem, tasks=tasks, test=test)

    def train(self, job: StudyRun, folder: Path) -> None:
        files, name = Folder(folder, writes=rank() == 0), repr(job.method)
        with self.start(job) as run, live(name, self.steps, "step") if job.progress else nullcontext() as shown:
            run.open(files, resume=True)
            self.finish(run, job.on_record, shown)

    def finish(self, run: Run[Any], *listeners: Callable[[Record], object] | None) -> Any:
        """Make the steps that a training misses, and return what it came to. Listeners are called with each record."""
        every, saved = self.evaluate_every, self.checkpoint_every
        return run.until(self.steps, run.step, evaluate_every=every, checkpoint_every=saved, listeners=listeners)

    def rate(self, step: int) -> float:
        """The factor of the learning rate at a step: a tenth after each decay."""
        return 0.1 ** sum(step >= at * self.steps for at in self.decay)

    def about(self, job: StudyRun) -> Record:
        """What ``run.json`` says of a run, and what a run that goes on must agree on."""
        shared = {f.name for f in fields(Study)} | set(self.may_change)
        fixed = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared}
        facts: Record = {
            "kind": self.kind,
            "name": repr(job.method),
            "method": complete(job.method),
            "seed": job.seed,
            **fixed,
            "model": self.model,
            "augment": self.augment,
            "data": data_digest(job.problem.tasks),
            "test": data_digest([job.problem.test]),
        }
        return dict(json.loads(json.dumps(facts)))
