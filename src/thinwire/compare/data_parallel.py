"""Data-parallel methods by logical workers on one problem: ``thinwire ddp-sim``."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from ..algorithms import Algorithm
from ..config import complete, differing
from ..data import IID
from ..ddp.methods import METHODS, Method
from ..ddp.simulate import Record, Result, Worker, enough, simulate
from ..errors import ExpressionError, RunError, nearest, require
from ..expression import parse, vocabulary
from ..links import Link
from ..problem import Problem, standard
from ..run.folder import CHECKPOINT, Folder
from ..run.identity import data_digest
from ..run.progress import live
from ..run.ranks import size
from ..train.one import unusable, usable
from ..version import code_version
from ..wire import Packet, State
from .study import Study, asked, own


def method(text: str, use: Sequence[str] = ()) -> Method:
    """A data-parallel method from its expression; inside it names are those of links: ``Hook(EF21(TopK(0.1)))``.

    ``use`` are modules with methods or links of the user's own.
    """
    methods, names = dict(METHODS), vocabulary()
    for name, cls in own(use).items():
        (methods if issubclass(cls, Method) else names)[name] = cls
    outer = text.strip().partition("(")[0].strip()
    if outer in methods:
        made: Method = parse(text, names={**names, outer: methods[outer]})
        return made
    cls = names.get(outer, Method)
    if issubclass(cls, Algorithm):
        raise ExpressionError(f"{outer} is a federated method, for `thinwire run`; here are {', '.join(methods)}")
    raise ExpressionError(
        f"no data-parallel method {outer!r}{nearest(outer, methods)}; known are {', '.join(methods)}, and any link "
        f"as Hook({text.strip() if issubclass(cls, Link) else 'TopK(0.01)'})"
    )


@dataclass(frozen=True)
class DataParallel(Study):
    """A study of data-parallel methods.

    ``decay`` is in shares of the steps: after each the learning rate is a tenth of what it was. Without ``adamw``
    workers have SGD. ``checkpoint_every`` changes no result; a checkpoint has the parameters, momentum and residual of
    every worker, about four models each.
    """

    kind: ClassVar[str] = "data-parallel"
    example: ClassVar[str] = "DEF(ratio=64)"
    may_change: ClassVar[tuple[str, ...]] = (*Study.may_change, "checkpoint_every")

    workers: int = asked(16, "Logical workers.")
    batch: int = asked(8, "Examples a worker takes in a step.")
    steps: int = asked(1000, "Steps to train.")
    lr: float = asked(0.1, "Learning rate.")
    momentum: float = asked(0.9, "Of each worker's SGD.")
    nesterov: bool = asked(False, "Nesterov's momentum.")
    adamw: bool = asked(False, "AdamW in place of SGD.")
    weight_decay: float = asked(0.0, "Weight decay.")
    decay: tuple[float, ...] = ()
    evaluate_every: int = asked(100, "Steps between evaluations.")
    checkpoint_every: int = asked(100, "Steps between checkpoints, which are made after evaluations.")
    device: str = asked("cpu", "Where models train: cpu, cuda, cuda:1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("workers", "steps", "batch", "evaluate_every", "checkpoint_every"):
            value = getattr(self, name)
            require(value > 0, f"--{name.replace('_', '-')} {value}: it must be at least 1")
        require(self.lr > 0, f"--lr {self.lr}: it must be positive")
        require(0 <= self.momentum < 1, f"--momentum {self.momentum}: it must be in [0, 1)")
        nesterov = not self.nesterov or (self.momentum > 0 and not self.adamw)
        require(nesterov, "--nesterov is SGD's, with a momentum: give --momentum more than 0, and no --adamw")
        require(self.weight_decay >= 0, f"--weight-decay {self.weight_decay}: it must not be negative")
        require(all(0 < at < 1 for at in self.decay), "--decay: shares of the steps, such as 0.5,0.75")
        require(usable(self.device), f"--device {self.device}: {unusable(self.device)}")
        require(size() == 1, "logical workers are of one process: start it without torchrun")

    @staticmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Method:
        return method(text, use)

    def problem(self, seed: int) -> Problem:
        """Model, one task of all examples, and the test."""
        return standard(self.data, self.model, 1, IID(), seed, data_dir=self.data_dir, augment=self.augments())

    def rehearse(self, method: Method, problem: Problem) -> None:
        enough(len(problem.tasks[0]), self.workers, self.batch)
        model = problem.model
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        Worker(module.to(self.device), self.optimizer, method, self.workers)

    def train(
        self,
        method: Method,
        seed: int,
        problem: Problem,
        folder: Path,
        on_record: Callable[[Record], None] | None,
        progress: bool,
    ) -> None:
        files = Folder(folder)
        state = _opened(files, self.about(method, seed, problem))
        lines, saved = ([], 0) if state is None else (state["records"], state["step"])
        files.write("rounds.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())

        def record(line: Record) -> None:
            with open(folder / "rounds.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            if on_record is not None:
                on_record(line)
            if shown is not None:
                shown(repr(method), {**line, "round": line["step"]})

        def keep(state: State) -> None:
            nonlocal saved
            if saved + self.checkpoint_every <= state["step"] < self.steps:
                files.save(state)
                saved = state["step"]

        with live(self.steps) if progress else nullcontext() as shown:
            result = self.simulate(method, seed, problem, on_record=record, on_state=keep, resume=state)
        files.model(result.module.state_dict(), {"expression": complete(method), "seed": str(seed)})
        files.summary(self.summary(files, result))
        shutil.rmtree((folder / CHECKPOINT).parent, ignore_errors=True)  # which is large, and of no use any more

    def simulate(self, method: Method, seed: int, problem: Problem, **more: Any) -> Result:
        """Train one method; ``more`` are further arguments of :func:`thinwire.ddp.simulate.simulate`."""
        return simulate(
            method,
            problem.model,
            problem.tasks[0],
            problem.test,
            workers=self.workers,
            steps=self.steps,
            batch=self.batch,
            optimizer=self.optimizer,
            rate=self.rate,
            seed=seed,
            evaluate_every=self.evaluate_every,
            device=self.device,
            **more,
        )

    def title(self, about: Record) -> str:
        return f"{self.data}, {self.workers} workers of {self.batch} examples, {self.steps} steps"

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A worker's."""
        if self.adamw:
            return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )

    def rate(self, step: int) -> float:
        """The factor of the learning rate at a step: a tenth after each decay."""
        return 0.1 ** sum(step >= at * self.steps for at in self.decay)

    def about(self, method: Method, seed: int, problem: Problem) -> Record:
        """What ``run.json`` says of a run, and what a run that goes on must agree on."""
        shared = {f.name for f in fields(Study)} | set(self.may_change)
        fixed = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared}
        found: Record = {
            "kind": self.kind,
            "name": repr(method),
            "method": complete(method),
            "seed": seed,
            **fixed,
            "model": self.model,
            "augment": self.augment,
            "data": data_digest(problem.tasks),
            "test": data_digest([problem.test]),
        }
        return dict(json.loads(json.dumps(found)))

    def summary(self, files: Folder, result: Result) -> Record:
        """What ``summary.json`` says of a complete run."""
        records, traffic = result.records, result.traffic
        return {
            **(files.about() or {}),
            "expression": result.expression,
            "version": code_version(),
            "parameters": sum(p.numel() for p in result.module.parameters() if p.requires_grad),
            "accuracy": result.accuracy,
            "best_accuracy": result.best_accuracy,
            "accuracy_x": records[-1].get("accuracy_x"),
            "test_loss": records[-1].get("test_loss"),
            "train_loss": records[-1]["train_loss"],
            "bytes_up": traffic.bytes,
            "bytes_down": traffic.received(self.workers),
            "bytes_reduced": traffic.reduced,
            "bytes_gathered": traffic.gathered,
            "seconds": sum(line["seconds"] for line in records),
        }


def _opened(files: Folder, about: Record) -> Packet:
    """The state that a run goes on from; None where it begins. Raises :class:`RunError` for the folder of another."""
    found = files.about()
    for name, value in about.items():
        if found is not None and found.get(name) != value:
            raise RunError(f"{files.path} is another run: its {differing(name, found.get(name), value)}")
    files.describe(about)
    return files.load()
