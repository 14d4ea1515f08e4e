"""The final model of a run, with the data of its study: what pictures of a trained model are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import RunError, require
from ..params import Params
from ..problem import Problem, custom
from ..run.identity import data_digest
from ..studies.loading import Loaded, load, study_of
from ..studies.read import RecordedRun
from ..task import Task, as_task, as_tasks
from ..train.evaluation import evaluate
from ..train.slot import Slot, floats, make_module


@dataclass(frozen=True)
class Final:
    """``loaded`` has the models, ``problem`` the tasks. Modules are on the CPU and in evaluation mode."""

    run: RecordedRun
    loaded: Loaded
    problem: Problem

    @property
    def tasks(self) -> Sequence[Task]:
        """The clients' tasks, one each, to train on."""
        return as_tasks(self.problem.tasks, floats(self.loaded.module))

    def test(self, client: int | None = None) -> Task:
        """The test that all share, or a client's: its own test where clients have one, else what it trains on."""
        here = floats(self.loaded.module)
        if client is None:
            if self.problem.test is None:
                raise RunError(f"{self.run.path}: its problem has no test set, so there is no loss to look at")
            return as_task(self.problem.test, "test", here)
        there = len(self.problem.tasks)
        require(0 <= client < there, f"--client {client}: the run has clients 0 to {there - 1}")
        tests = self.problem.client_tests
        return self.tasks[client] if tests is None else as_task(tests[client], f"client {client}'s test", here)

    def module(self, client: int | None = None) -> nn.Module:
        """The model that all share, or a client's own. Raises :class:`RunError` where clients have none."""
        if client is None:
            return self.loaded.module
        if self.loaded.own_module is None:
            raise RunError(f"{self.run.path}: its clients have no models of their own; leave --own out")
        return self.loaded.personal(client)

    def assemble(self, x: Params | None = None) -> nn.Module:
        """The module that a recorded model is of, with the model ``x``; norm statistics are the final ones.

        Most methods train the user's module. FedPara trains another, of factors.
        """
        given, there = build(self.problem.model, self.run.seed), self.loaded.module.state_dict()
        statistics = {name for name, _ in given.named_buffers()} & there.keys()
        given.load_state_dict({name: there[name] for name in statistics}, strict=False)  # FedSM gives them other names
        module = self.loaded.algorithm.assemble(given, len(self.problem.tasks))
        own = module.state_dict()
        module.load_state_dict({n: t for n, t in there.items() if n in own and own[n].shape == t.shape}, strict=False)
        if x is not None:
            slot = Slot(module)
            slot.load(x)
            module = slot.module
        return module.eval()

    def by_name(self, model: str | None) -> nn.Module:
        """The model that all share, or one that was trained beside it. Raises :class:`RunError` for another name."""
        if model is None:
            return self.loaded.module
        if model not in self.loaded.beside:
            known = f"there is {', '.join(self.loaded.beside)}" if self.loaded.beside else "there is none"
            raise RunError(f"{self.run.path}: no model called {model} was trained beside the shared one; {known}")
        return self.loaded.beside[model]


def losses(module: nn.Module, task: Task, examples: int) -> tuple[Params, Callable[[Params], float]]:
    """The parameters of a module, and its mean loss on the first examples of a task as a function of them."""
    slot, count = Slot(module), min(examples, len(task))

    def loss(x: Params) -> float:
        slot.load(x)
        return evaluate(slot, task, 0, count)["loss"].mean

    return Params(slot.layout, slot.flat.clone()), loss


def build(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module, or the one that a function makes under a seed."""
    return copy.deepcopy(model) if isinstance(model, nn.Module) else make_module(model, seed)


def final(run: RecordedRun, task: str | None = None) -> Final:
    """The final model of a complete federated run. Model and data are what its study says.

    A run of no study, as ``simulate(..., out=folder)`` leaves it, says neither: then ``task`` names them, as
    ``my_module:make_task``. Raises :class:`RunError` for any other run, and for a task that makes other data.
    """
    if run.kind != "federated":
        raise RunError(f"{run.path} is {run.kind}: final models are looked at of federated runs alone")
    if run.summary is None:
        raise RunError(f"{run.path} has no complete run: let it end first")
    study = study_of(run.path)
    if study is not None and task is not None:
        raise RunError(f"{run.path} is in a study, which says its model and data: leave --task out")
    if study is not None:
        return Final(run, load(run.path), study.problem(run.seed))
    if task is None:
        raise RunError(f"{run.path} is in no study that says its model and data: name them, --task my_module:make_task")
    problem = custom(task, int(run.about["clients"]), run.seed)
    end = Final(run, load(run.path, problem.model), problem)
    if data_digest(end.tasks) != run.about["data"]:
        raise RunError(f"{run.path} was trained on other data than --task {task} makes of its clients and seed")
    return end


def labels(task: Task, indices: torch.Tensor) -> list[int]:
    """The class of each example. Raises ``ValueError`` for targets that are no classes."""
    batch: Any = task.batch(indices)
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    require(pair, "a batch of this task is no pair of inputs and targets")
    targets = batch[1]
    fits = isinstance(targets, torch.Tensor) and targets.ndim == 1 and not targets.is_floating_point()
    require(fits, "--by label: the targets are no classes, a whole number for each example")
    classes: list[int] = targets.tolist()
    return classes
