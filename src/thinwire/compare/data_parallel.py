"""Several data-parallel methods by logical workers on one problem: ``thinwire ddp-sim``.

A folder holds ``ddp.json`` (all there is to know), and for each method and seed ``records.jsonl``
and ``summary.json``; what has a summary is not trained again.
"""

from __future__ import annotations

import copy
import json
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..algorithms import Algorithm
from ..config import complete, differing
from ..data import Augment
from ..ddp.methods import DEF, DEFA, EF, EF21, SAEF, Hook, Method, PSync
from ..ddp.simulate import Record, Result, Worker, enough, simulate
from ..errors import ExpressionError, NonFinite, RunError, WireError, nearest, require
from ..expression import parse, settings, vocabulary
from ..links import Link
from ..problem import Problem, standard
from ..report.table import draw
from ..run.folder import locked, write_atomic
from ..train.one import unusable, usable
from ..version import code_version
from .federated import own

FORMAT = 2  # of ddp.json
METHODS: dict[str, type[Method]] = {cls.__name__: cls for cls in (DEF, DEFA, EF, SAEF, PSync, EF21, Hook)}


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
class Study:
    """Everything a comparison is made from. Methods are complete expressions; ``decay`` is in shares of the steps."""

    methods: tuple[str, ...]
    use: tuple[str, ...] = ()  # modules of the user's own methods and links
    data: str = "digits"
    model: str | None = None
    workers: int = 16
    steps: int = 1000
    batch: int = 8
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    adamw: bool = False
    decay: tuple[float, ...] = ()
    augment: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    evaluate_every: int = 100
    device: str = "cpu"
    data_dir: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        require(len(self.methods) > 0, "name at least one method, such as DEF(ratio=64)")
        require(len(set(self.methods)) == len(self.methods), "a method is named twice")
        for name in ("workers", "steps", "batch", "evaluate_every"):
            value = getattr(self, name)
            require(value > 0, f"--{name.replace('_', '-')} {value}: it must be at least 1")
        require(self.lr > 0, f"--lr {self.lr}: it must be positive")
        require(0 <= self.momentum < 1, f"--momentum {self.momentum}: it must be in [0, 1)")
        nesterov = not self.nesterov or (self.momentum > 0 and not self.adamw)
        require(nesterov, "--nesterov is SGD's, with a momentum: give --momentum more than 0, and no --adamw")
        require(self.weight_decay >= 0, f"--weight-decay {self.weight_decay}: it must not be negative")
        require(all(0 < at < 1 for at in self.decay), "--decay: shares of the steps, such as 0.5,0.75")
        require(len(set(self.seeds)) == len(self.seeds) > 0, "--seeds: different numbers, at least one")
        for text in self.methods:
            method(text, self.use)
        require(usable(self.device), f"--device {self.device}: {unusable(self.device)}")

    @cached_property
    def first(self) -> Problem:
        """That of the first seed."""
        return self.problem(self.seeds[0])

    def check(self) -> None:
        """Make a worker for every method without training it: what is wrong comes to light before a folder is taken."""
        enough(len(self.first.tasks[0]), self.workers, self.batch)
        for text in self.methods:
            model = self.first.model
            module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
            Worker(module.to(self.device), self.optimizer, method(text, self.use), self.workers)

    def problem(self, seed: int) -> Problem:
        """Model, one task of all examples, and the test."""
        augment = tuple(parse(change, names=settings(Augment)) for change in self.augment)
        return standard(self.data, self.model, 1, seed=seed, data_dir=self.data_dir, augment=augment)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A worker's."""
        if self.adamw:
            return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )

    def rate(self, step: int) -> float:
        """A tenth after each decay."""
        return 0.1 ** sum(step >= at * self.steps for at in self.decay)

    def runs(self) -> list[tuple[str, int, str]]:
        """Every expression, seed, and folder."""
        return [
            (text, seed, f"{number:02d}-{_slug(method(text, self.use))}/seed-{seed}")
            for seed in self.seeds
            for number, text in enumerate(self.methods, 1)
        ]

    def claim(self, out: Path, resume: bool = False) -> None:
        """Take a folder: a new one, after a :meth:`check`, or with ``resume`` one of the same study."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"
        if not resume:
            require(
                not out.exists() or not any(out.iterdir()),
                f"{out} is not empty: choose another --out, or --resume it",
            )
            self.check()
            write_atomic(out / "ddp.json", text.encode())
            return
        try:
            found = json.loads((out / "ddp.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{out} holds nothing to resume: there is no ddp.json in it") from None
        except ValueError as error:
            raise RunError(f"{out / 'ddp.json'} is damaged: {error}") from error
        for name, value in json.loads(text).items():
            if name not in ("data_dir",) and found.get(name) != value:
                raise RunError(f"{out} is another study: {differing(name, found.get(name), value)}")

    def run(self, out: Path, on_record: Callable[[str, Record], None] | None = None) -> list[str]:
        """Train what has no summary yet; a line for each method that failed."""
        failures: list[str] = []
        with locked(out):
            problems: dict[int, Problem] = {}
            for text, seed, name in self.runs():
                if (out / name / "summary.json").exists():
                    continue
                if seed not in problems:
                    problems = {seed: self.first if seed == self.seeds[0] else self.problem(seed)}
                try:
                    self.one(text, seed, problems[seed], out / name, on_record)
                except (NonFinite, WireError) as error:
                    failures.append(f"{method(text, self.use)!r}, seed {seed}: {error}")
        return failures

    def one(
        self, text: str, seed: int, problem: Problem, folder: Path, on_record: Callable[[str, Record], None] | None
    ) -> Result:
        """One method and seed, and what it leaves in its folder."""
        chosen = method(text, self.use)
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with open(folder / "records.jsonl", "w") as file:

            def record(line: Record) -> None:
                file.write(json.dumps(line) + "\n")
                file.flush()
                if on_record is not None:
                    on_record(repr(chosen), line)

            result = simulate(
                chosen,
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
                on_record=record,
            )
        summary = {
            "name": repr(chosen),
            "expression": complete(chosen),
            "seed": seed,
            "accuracy": result.accuracy,
            "best_accuracy": result.best_accuracy,
            "accuracy_x": result.records[-1].get("accuracy_x"),
            "bytes": result.traffic.bytes,
            "bytes_reduced": result.traffic.reduced,
            "bytes_gathered": result.traffic.gathered,
            "steps": self.steps,
            "parameters": sum(p.numel() for p in result.module.parameters() if p.requires_grad),
            "seconds": time.monotonic() - began,
            "version": code_version(),
        }
        write_atomic(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        return result

    def rows(self, out: Path) -> list[dict[str, Any]]:
        """One row a method, from what is on disk: means over seeds, and the deviation where there are several."""
        found = []
        for text in self.methods:
            folders = [out / name for expression, _, name in self.runs() if expression == text]
            paths = [folder / "summary.json" for folder in folders if (folder / "summary.json").exists()]
            summaries = [json.loads(path.read_text()) for path in paths]
            if summaries:
                found.append(_row(summaries))
        dense = next((row for row in found if row["expression"] == "Hook(link=Dense())"), None)
        for row in found:
            row["share"] = row["bytes_per_step"] / dense["bytes_per_step"] if dense else None
        return found


def _row(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        values = [s[name] for s in summaries if s[name] is not None]
        return statistics.fmean(values) if values else None

    first = summaries[0]
    accuracies = [s["accuracy"] for s in summaries if s["accuracy"] is not None]
    return {
        "method": first["name"],
        "expression": first["expression"],
        "seeds": [s["seed"] for s in summaries],
        "steps": first["steps"],
        "accuracy": mean("accuracy"),
        "accuracy_deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "best_accuracy": mean("best_accuracy"),
        "accuracy_x": mean("accuracy_x"),
        "bytes": mean("bytes"),
        "bytes_per_step": statistics.fmean(s["bytes"] / s["steps"] for s in summaries),
        "seconds": mean("seconds"),
    }


HEAD = ("method", "accuracy", "best", "of x", "kB a step", "MB in all", "/ Dense", "s here")
LEAST = ("s here", "best", "of x", "MB in all")
NOTE = (
    "kB are 10^3 bytes that one worker gives to collectives in a step: of an all-reduce among W workers 2 (W - 1) / W "
    "times that crosses each link, of an all-gather W - 1 times. 'of x': where y is judged."
)


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """The table on the terminal."""
    draw(title, HEAD, [_cells(row) for row in rows], LEAST, NOTE)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table as a page."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" + " ---: |" * (len(HEAD) - 1)]
    lines += ["| " + " | ".join([f"`{first}`", *rest]) + " |" for first, *rest in map(_cells, rows)]
    return "\n".join([*lines, "", NOTE, ""])


def _cells(row: dict[str, Any]) -> list[str]:
    accuracy = _percent(row["accuracy"])
    if row["accuracy_deviation"] is not None:
        accuracy += f" ± {100 * row['accuracy_deviation']:.1f}"
    return [
        row["method"],
        accuracy,
        _percent(row["best_accuracy"]),
        _percent(row["accuracy_x"]),
        f"{row['bytes_per_step'] / 1e3:,.2f}",
        f"{row['bytes'] / 1e6:,.2f}",
        _percent(row["share"]),
        f"{row['seconds']:,.1f}",
    ]


def _percent(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:.1f} %"


def _slug(chosen: Method) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", repr(chosen)).strip("-")[:60]
