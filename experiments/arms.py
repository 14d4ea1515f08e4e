"""The arms of a group of claims: a row of a table in one setting, and how it is trained into one JSON line.

:class:`Federated` is a row of the simulator, :class:`Ranks` one of logical workers. ``units.py`` says which
trainings of an arm are needed, with which rates and seeds, and makes them.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Literal

import record
import torch
from record import Line
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import thinwire as tw
from thinwire.config import complete
from thinwire.data import Split
from thinwire.ddp import Method
from thinwire.errors import NonFinite, RunError
from thinwire.problem import Problem
from thinwire.studies import DataParallel
from thinwire.studies.study import StudyRun

TUNING = 100  # the seed by which rates are chosen
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Arm(ABC):
    """A row in one setting. ``setting`` is what lines say of it, and all that distinguishes it from other settings.

    ``minutes`` are those of one training on one core, as measured. ``paper`` is the paper's figure. With ``follows``
    the learning rate is the one that was chosen for that arm. With ``best_of`` it is whichever of these arms does best
    on the seed ``by``, trained with the seeds given here; an arm among them may have ``best_of`` too. ``further`` is
    how many rates beyond those given may be tried.
    """

    setting: Line
    row: str
    minutes: float
    rates: Sequence[float] = ()
    follows: Arm | None = None
    seeds: Sequence[int] = SEEDS
    paper: Any = None
    tuning: float = 0.4  # of the rounds, for each rate
    best_of: Sequence[Arm] = ()
    by: int = TUNING
    further: int = 3

    @abstractmethod
    def key(self, rate: float, seed: int) -> Line:
        """The fields by which its line is found."""

    @abstractmethod
    def train(self, rate: float, seed: int, into: Path, folder: Path, device: str = "cpu") -> Line | None:
        """Train, with checkpoints in ``folder``, and write the line into ``into``. None where it diverged."""

    @abstractmethod
    def tiny(self) -> Arm:
        """The same at a size that says nothing about methods."""

    def followed(self) -> dict[str, Any]:
        """What it needs of others, in tiny."""
        follows = {} if self.follows is None else {"follows": self.follows.tiny()}
        return {**follows, "best_of": [one.tiny() for one in self.best_of], "further": 0}

    def about(self, rate: float, seed: int) -> Line:
        """What every key has."""
        kind = "rate" if seed == TUNING else "run"
        return {"setting": self.setting, "row": self.row, "kind": kind, "rate": rate, "seed": seed}

    def share(self, seed: int) -> float:
        """Of the rounds."""
        return self.tuning if seed == TUNING else 1.0


@dataclass(frozen=True, kw_only=True)
class Federated(Arm):
    """``method`` makes one of a learning rate and of the number of rounds, ``problem`` one of a seed.

    With ``narrow`` models compute in bfloat16, which is faster on a processor that knows it. Parameters, updates and
    what is sent have 32 bits all the same. A run is evaluated ``looks`` times at least.
    """

    method: Callable[[float, int], tw.Algorithm | tw.Auto]
    problem: Callable[[int], Problem]
    rounds: int
    sample: int | None = None
    evaluate_every: int = 5
    start: Literal["sent", "known"] = "sent"
    narrow: bool = False
    small: bool = False
    looks: int = 10
    checkpoint_every: int = 25

    def length(self, seed: int) -> int:
        return max(1, round(self.rounds * self.share(seed)))

    def key(self, rate: float, seed: int) -> Line:
        rounds = self.length(seed)
        expression = complete(self.method(rate, rounds))
        tiny = {"tiny": True} if self.small else {}
        known = {} if self.start == "sent" else {"start": self.start}
        return {**self.about(rate, seed), "rounds": rounds, "expression": expression, **known, **tiny}

    def train(self, rate: float, seed: int, into: Path, folder: Path, device: str = "cpu") -> Line | None:
        problem = self.problem(seed)
        if self.narrow:
            problem = replace(problem, model=partial(_narrow, problem.model))
        if self.small:
            few = [
                replace(task, indices=task.indices[:40])
                if isinstance(task, tw.Supervised) and task.indices is not None
                else task
                for task in problem.tasks[: self.sample or 3]
            ]
            problem = replace(problem, tasks=few, test=replace(problem.test, indices=torch.arange(50)))
        row = {**self.key(rate, seed), "paper": self.paper}
        every = min(self.evaluate_every, max(1, row["rounds"] // self.looks))  # trials are looked at as often
        options: dict[str, Any] = {"sample": self.sample, "seed": seed, "evaluate_every": every}
        options |= {"start": self.start, "device": device}
        options |= {"workers": 1, "checkpoint_every": self.checkpoint_every}
        options |= {"out": folder, "resume": (folder / "run.json").exists()}
        measure = partial(_measured, each=seed != TUNING)
        arguments = (self.method(rate, row["rounds"]), problem, row["rounds"], into, row, measure)
        try:
            return record.run(*arguments, **options)
        except RunError:  # checkpoints of other code
            _emptied(folder)
            return record.run(*arguments, **{**options, "resume": False})

    def tiny(self) -> Federated:
        sample = None if self.sample is None else 2
        return replace(self, rounds=3, sample=sample, seeds=(0,), tuning=0.3, small=True, **self.followed())


def _measured(result: tw.Result, each: bool = True) -> Line:
    """The bytes of each round; of a method that serves an average, what that reaches; what Auto chose; of texts to
    continue the perplexities, of the model and of what is served.

    ``round_bytes`` has two lists, "up" and "down", of bytes and in how many rounds in a row they were sent. Trials of
    rates are without it: files of results stay below 1 MB.
    """
    served = [[r["round"], r["served_accuracy"]] for r in result.rounds if r.get("served_accuracy") is not None]
    sent = {way: _repeated(r[f"{way}_bytes"] for r in result.rounds) for way in ("up", "down")}
    texts = [[r["round"], r["perplexity"], r.get("served_perplexity")] for r in result.rounds if "perplexity" in r]
    return {
        **({"perplexity_mean_of_last_5": _mean([p for _, p, _ in texts[-5:]])} if texts else {}),
        **({"perplexities": texts} if texts else {}),
        **({"round_bytes": sent} if each else {}),
        **({"served": served} if served else {}),
        **({"chosen": result.chosen} if result.chosen else {}),
    }


@dataclass(frozen=True, kw_only=True)
class Ranks(Arm):
    """``method`` by logical workers; ``study`` has everything but the learning rate."""

    method: Method
    study: DataParallel
    model: Callable[[], nn.Module] | None = None  # in place of the study's
    narrow: bool = False  # within torch.autocast, in bfloat16; what is sent has 32 bits
    tested: int = 10_000
    small: bool = False

    def planned(self, rate: float, seed: int, device: str = "cpu") -> DataParallel:
        steps = max(1, round(self.study.steps * self.share(seed)))
        every = min(self.study.evaluate_every, max(1, steps // 10))  # a trial is looked at as often as a run
        given = {"methods": (complete(self.method),), "lr": rate, "steps": steps, "evaluate_every": every}
        return replace(self.study, device=device, **given)

    def key(self, rate: float, seed: int) -> Line:
        steps, tiny = self.planned(rate, seed).steps, {"tiny": True} if self.small else {}
        return {**self.about(rate, seed), "steps": steps, "expression": complete(self.method), **tiny}

    def train(self, rate: float, seed: int, into: Path, folder: Path, device: str = "cpu") -> Line | None:
        began, study, key = time.time(), self.planned(rate, seed, device), self.key(rate, seed)
        problem = study.problem(seed)
        build, tested = self.model or problem.model, torch.arange(min(self.tested, len(problem.test)))

        def faster() -> nn.Module:
            module = build().to(memory_format=torch.channels_last)  # by a fifth on a CPU
            return Narrow(module) if self.narrow else module

        problem = replace(problem, model=faster, test=replace(problem.test, indices=tested))
        told = {"name": repr(self.method), "workers": study.workers, "batch": study.batch, "paper": self.paper}
        try:
            study.train(StudyRun(self.method, seed, problem), folder)
        except NonFinite as error:
            line = {**key, **told, "diverged": str(error), **record.about(key["expression"], began)}
            record.replace(into, line, key)
            return record.said(line)
        except RunError:  # checkpoints of other code
            _emptied(folder)
            return self.train(rate, seed, into, folder, device)
        looks = record.read(folder / "rounds.jsonl")
        up, down = (list(accumulate(r[f"{way}_bytes"] for r in looks)) for way in ("up", "down"))
        of = {name: [r[name] for r in looks if r.get(name) is not None] for name in ("accuracy", "accuracy_x")}
        line = {
            **key,
            **told,
            "accuracy": of["accuracy"][-1],
            "best_accuracy": max(of["accuracy"]),
            "accuracy_mean_of_last_5": _mean(of["accuracy"][-5:]),
            "accuracy_x": of["accuracy_x"][-1] if of["accuracy_x"] else None,
            "accuracy_x_mean_of_last_5": _mean(of["accuracy_x"][-5:]),
            "bytes_up": up[-1],
            "bytes_down": down[-1],
            **record.about(key["expression"], began),
            "curve": [
                [r["step"], r["train_loss"], r["accuracy"], r.get("accuracy_x"), sent, received]
                for r, sent, received in zip(looks, up, down, strict=True)
            ],
            "lam": [[r["step"], r["lam"], r["lam_star"]] for r in looks if r.get("lam_star") is not None],
        }
        record.replace(into, line, key)
        return record.said(line)

    def tiny(self) -> Ranks:
        study = replace(self.study, steps=2, batch=4, evaluate_every=1, checkpoint_every=1)
        return replace(self, study=study, tested=50, seeds=(0,), tuning=0.5, small=True, **self.followed())


class Narrow(nn.Module):
    """A model that computes in bfloat16, by ``torch.autocast``, with parameters in 32 bits.

    Convolutions and linear layers are several times slower in bfloat16 than in 32 bits on a processor without AVX-512.
    There they are those of :class:`Widened`.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slow = x.device.type == "cpu" and not torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        with (
            torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False),
            Widened() if slow else contextlib.nullcontext(),
        ):
            found: torch.Tensor = self.whole(x)
            return found


class Widened(TorchFunctionMode):
    """Convolutions and linear layers of numbers in bfloat16, computed in 32 bits and rounded to bfloat16.

    So are their gradients. Processors that know bfloat16 sum within a product in 32 bits too, in another order.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function not in (functional.conv2d, functional.linear):
            return function(*args, **(kwargs or {}))
        wide, named = [_widened(x) for x in args], {name: _widened(x) for name, x in (kwargs or {}).items()}
        with torch.autocast("cpu", enabled=False):
            return function(*wide, **named).bfloat16()


def _widened(x: Any) -> Any:
    return x.bfloat16().float() if isinstance(x, torch.Tensor) else x


def _narrow(build: Callable[[], nn.Module]) -> nn.Module:
    return Narrow(build())


@dataclass(frozen=True)
class patient(Split):
    """The split by the first seed, from the one that it is given on, that leaves no client without enough examples."""

    split: Split
    tries: int = 100

    def deal(
        self, labels: torch.Tensor, groups: torch.Tensor | None, num_clients: int, seed: int
    ) -> list[torch.Tensor]:
        for more in range(self.tries):
            with contextlib.suppress(ValueError):
                return self.split(labels, groups, num_clients, (seed + more) % 2**31)
        return self.split(labels, groups, num_clients, seed)


def _repeated(values: Iterable[int]) -> list[tuple[int, int]]:
    """Each value and how often it comes in a row."""
    return [(value, len(list(same))) for value, same in groupby(values)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
