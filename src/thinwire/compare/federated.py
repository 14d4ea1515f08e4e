"""Several methods on the same problem: the main job.

A comparison is a folder: ``run.json`` says all there is to know, each method and seed has a
folder of its own inside, and the table and plots are made from what is on disk.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from .. import data as sets
from .. import models
from ..algorithms.base import Algorithm
from ..config import NO_FIT, Config, complete, fitted, hint
from ..data import Augment, Split
from ..errors import ExpressionError, NonFinite, RunError, WireError, nearest, require
from ..expression import configurations, parse, settings, vocabulary
from ..problem import Problem, custom, imported, standard
from ..run.folder import locked, write_atomic
from ..run.ranks import rank
from ..run.result import Record, Result
from ..run.setting import Setting
from ..run.simulate import Simulation, simulate

FORMAT = 2  # of run.json


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison is made from; what ``run.json`` holds. Methods are complete expressions.

    ``seeds`` take the place of the setting's seed, which is that of the first run.
    """

    methods: tuple[str, ...]
    folders: tuple[str, ...] = ()  # of the methods, chosen when the comparison begins
    use: tuple[str, ...] = ()  # modules of the user's own methods and links
    data: str = "digits"
    model: str | None = None
    task: str | None = None
    clients: int = 20
    split: str | None = None
    augment: tuple[str, ...] = ()
    rounds: int = 50
    seeds: tuple[int, ...] = (0,)
    holdout: float = 0.0
    setting: Setting = Setting()
    data_dir: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """All that can be seen without data is looked at here. Raises ``ValueError``, naming the option or field."""
        algorithms = self.algorithms()
        if not self.folders:
            names = tuple(f"{i:02d}-{slug(x)}" for i, x in enumerate(algorithms, 1))
            object.__setattr__(self, "folders", names)
        require(len(self.methods) > 0, "name at least one method, such as FedAvg()")
        require(len(set(self.methods)) == len(self.methods), "a method is named twice")
        require(self.clients > 0, f"--clients {self.clients}: it must be at least 1")
        require(self.rounds > 0, f"--rounds {self.rounds}: it must be at least 1")
        require(len(self.seeds) > 0, "--seeds names no seed")
        require(len(set(self.seeds)) == len(self.seeds), "--seeds names a seed twice")
        require(0 <= self.holdout < 1, f"--holdout {self.holdout:g}: it is a share below 1")
        for seed in self.seeds:
            replace(self.setting, seed=seed)  # which checks it
        object.__setattr__(self, "setting", replace(self.setting, seed=self.seeds[0]))
        if self.task is None:
            self.setting.cohort(self.clients)
        for what, asked, known in (("data set", self.data, sets.names()), ("model", self.model, models.names())):
            fits = asked is None or asked in known
            require(fits, f"no {what} {asked!r}{nearest(str(asked), known)}; known are {', '.join(known)}")
        self._split(), self._augment()

    def algorithms(self) -> list[Algorithm]:
        """The methods as objects."""
        names = known(self.use)
        found = [typed(method, names) for method in self.methods]
        for algorithm, method in zip(found, self.methods, strict=True):
            require(isinstance(algorithm, Algorithm), f"{method} is not a method such as FedAvg(up={method})")
        return found

    def problem(self, seed: int) -> Problem:
        """Model, tasks and tests: the same for all methods of a seed."""
        if self.task is not None:
            return custom(self.task, self.clients, seed)
        return standard(
            self.data, self.model, self.clients, self._split(), seed, self.holdout, self.data_dir, self._augment()
        )

    def runs(self) -> Iterator[tuple[Algorithm, int, str]]:
        """Every run: its method, seed and folder within the comparison."""
        for seed in self.seeds:
            for algorithm, folder in zip(self.algorithms(), self.folders, strict=True):
                yield algorithm, seed, f"{folder}/seed-{seed}"

    # -- to disk and back -----------------------------------------------------

    def save(self, out: Path) -> None:
        """Write ``run.json``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} | {"setting": complete(self.setting)}
        write_atomic(out / "run.json", (json.dumps({"format": FORMAT, **values}, indent=2) + "\n").encode())

    @staticmethod
    def load(out: Path) -> Comparison:
        """Read ``run.json``; :class:`RunError` where there is none."""
        try:
            values = json.loads((out / "run.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{out} holds no comparison: there is no run.json in it") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{out / 'run.json'} is damaged: {error}") from error
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise RunError(f"{out / 'run.json'} was written by another version of thinwire")
        hints = get_type_hints(Comparison)
        if unknown := [name for name in values if name not in hints]:
            raise RunError(f"{out / 'run.json'} holds {unknown[0]!r}, which this version of thinwire does not know")
        if isinstance(values.get("setting"), str):
            values["setting"] = typed(values["setting"], vocabulary())
        made = {k: fitted(tuple(v) if isinstance(v, list) else v, hints[k]) for k, v in values.items()}
        if odd := [name for name in ("methods", *made) if made.get(name, NO_FIT) is NO_FIT]:
            found = repr(values[odd[0]]) if odd[0] in values else "missing"
            raise RunError(f"{out / 'run.json'} is damaged: {odd[0]} is {found}, not {hint(hints[odd[0]])}")
        return Comparison(**made)

    # -- running --------------------------------------------------------------

    def check(self) -> Problem:
        """Build every run without training: what is wrong comes to light before the first round."""
        problem = self.problem(self.seeds[0])
        for algorithm in self.algorithms():
            setting, tests = replace(self.setting, workers=1, plan=None, states="memory"), problem.client_tests
            run = Simulation(algorithm, problem.model, problem.tasks, setting, test=problem.test, client_tests=tests)
            run.pool.close()
        return problem

    def _split(self) -> Split | None:
        return None if self.split is None else option("--split", self.split, Split, settings(Split), "Dirichlet(0.1)")

    def _augment(self) -> tuple[Augment, ...]:
        return tuple(option("--augment", x, Augment, settings(Augment), "Crop(4)") for x in self.augment)

    def start(self, out: Path, overwrite: bool = False) -> None:
        """Claim a folder for this comparison."""
        if out.exists() and any(out.iterdir()):
            if not (out / "run.json").exists():
                raise RunError(f"{out} is not empty and holds no comparison: choose another --out")
            if not overwrite:
                raise RunError(f"{out} holds a comparison: `thinwire resume {out}`, another --out, or --overwrite")
            with locked(out):
                for entry in out.iterdir():
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    elif entry.name != ".lock":
                        entry.unlink()
        out.mkdir(parents=True, exist_ok=True)
        self.save(out)

    def run(
        self,
        out: Path,
        progress: bool = False,
        on_round: Callable[[str, Record], None] | None = None,
        problems: dict[int, Problem] | None = None,
    ) -> tuple[list[Result], list[str]]:
        """Run what is not yet complete; the results of now, and a line for each method that failed.

        ``problems`` may hold those of some seeds, built already.
        """
        results, failures, problems = [], [], problems or {}
        with contextlib.ExitStack() as stack:
            if rank() == 0:
                stack.enter_context(locked(out))
                self.save(out)  # with the number of rounds that is now asked for
            for algorithm, seed, name in self.runs():
                if self._complete(out / name):
                    continue
                if seed not in problems:
                    problems = {seed: self.problem(seed)}  # one at a time in memory
                problem = problems[seed]
                listen = None if on_round is None else (lambda r, name=name: on_round(name, r))
                try:
                    result = simulate(
                        algorithm,
                        problem.model,
                        problem.tasks,
                        self.rounds,
                        replace(self.setting, seed=seed),
                        test=problem.test,
                        client_tests=problem.client_tests,
                        out=out / name,
                        resume=True,
                        on_round=listen,
                        progress=progress,
                    )
                except (NonFinite, WireError) as error:
                    failures.append(f"{algorithm!r}, seed {seed}: {error}")
                    continue
                results.append(result)
        return results, failures

    def _complete(self, folder: Path) -> bool:
        path = folder / "summary.json"
        return path.exists() and json.loads(path.read_text())["rounds"] >= self.rounds


def slug(algorithm: Algorithm) -> str:
    """A method's name as part of a folder's: letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"LocalSGD\([^()]*\)", "", repr(algorithm))).strip("-")[:60]


def known(use: Sequence[str]) -> dict[str, type]:
    """What a method may be written with: thinwire's names, and those of a user's modules."""
    return vocabulary() | own(use)


def own(use: Sequence[str]) -> dict[str, type]:
    """What a user's modules have that can be written in an expression."""
    names: dict[str, type] = {}
    for module in use:
        found = configurations(vars(imported(module, f"--use {module}")))
        require(bool(found), f"--use {module}: it has no method or link, which are frozen dataclasses")
        names |= found
    return names


def typed(text: str, names: dict[str, type], defaults: dict[str, Any] | None = None) -> Any:
    """What an expression makes. Raises :class:`ExpressionError`, for what a user's own class does not take too."""
    try:
        return parse(text, defaults, names)
    except ValueError as error:
        raise ExpressionError(str(error)) from None


def option(name: str, text: str, kind: type, names: dict[str, type], example: str) -> Any:
    """What an option's expression makes. Raises :class:`ExpressionError` where that is of another kind."""
    found = typed(text, names)
    if not isinstance(found, kind):
        raise ExpressionError(f"{name} {text}: it is written like {example}")
    return found


def settled(values: Mapping[str, Any]) -> Setting:
    """The setting of fields as they are typed: those that are configurations are expressions, parsed here."""
    parts = {
        name: part
        for name, kinds in get_type_hints(Setting).items()
        for part in get_args(kinds)
        if isinstance(part, type) and issubclass(part, Config)
    }
    made = {
        name: option(f"--{name}", values[name], part, {part.__name__: part}, part.example)
        for name, part in parts.items()
        if values.get(name) is not None
    }
    return Setting().but({**values, **made})


def resolved(expressions: list[str], defaults: dict[str, Any], use: Sequence[str] = ()) -> tuple[str, ...]:
    """Typed methods as complete expressions, with ``defaults`` filled in."""
    names = known(use)
    found = [typed(text, names, defaults) for text in expressions]
    for algorithm, text in zip(found, expressions, strict=True):
        require(isinstance(algorithm, Algorithm), f"{text} is not a method; try FedAvg(up={text})")
    return tuple(complete(algorithm) for algorithm in found)
