"""Federated methods on one problem: ``thinwire run``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..config import Config
from ..data import Split
from ..ddp.methods import METHODS
from ..errors import ExpressionError, require
from ..expression import settings
from ..federated.auto_run import without_noise
from ..federated.setting import Setting
from ..federated.simulate import simulate
from ..federated.simulation import Simulation
from ..pipeline.schedule import SCHEDULES
from ..problem import CLIENTS, Problem, custom, standard
from .read import Record
from .study import Job, Study, asked, known, option, typed


@dataclass(frozen=True)
class Federated(Study):
    """A study of federated methods.

    - ``task``: ``my_module:make_task`` in place of data and model.
    - ``clients``, ``split``, ``holdout``, ``unseen``: who has what of the data.
    - ``rounds``: of each run. They may become more when the study goes on.
    - ``setting``: how a run goes. ``seeds`` take the place of its seed, which is that of the first run.
    """

    kind: ClassVar[str] = "federated"
    example: ClassVar[str] = "FedAvg()"
    may_change: ClassVar[tuple[str, ...]] = (*Study.may_change, "rounds")

    task: str | None = asked(None, "my_module:make_task instead of --data and --model.")
    clients: int | None = asked(None, f"How many clients there are (default: {CLIENTS}, or one a site).")
    split: str | None = asked(None, "IID(), Dirichlet(0.1), Shards(2), Natural()...")
    rounds: int = asked(50, "Rounds to train.")
    holdout: float = asked(0.0, "Share of each client's examples kept for its own test.")
    unseen: int | None = asked(None, "A site that does not train: the test is then its own (retina, fashion_sites).")
    setting: Setting = Setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clients is None or self.clients > 0, f"--clients {self.clients}: it must be at least 1")
        require(self.rounds > 0, f"--rounds {self.rounds}: it must be at least 1")
        require(0 <= self.holdout < 1, f"--holdout {self.holdout:g}: it is a share below 1")
        for seed in self.seeds:
            replace(self.setting, seed=seed)  # which checks it
        object.__setattr__(self, "setting", replace(self.setting, seed=self.seeds[0]))
        require(self.unseen is None or self.unseen >= 0, f"--unseen {self.unseen}: sites are counted from 0")
        if self.task is None and self.clients is not None:
            self.setting.cohort(self.clients)
        self._split()

    @staticmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Algorithm | Auto:
        """A method of :mod:`thinwire.algorithms`, or one of the user's own; ``defaults`` are those of its training."""
        names, outer = known(use), text.partition("(")[0].strip()
        if outer in SCHEDULES and outer not in names:
            raise ExpressionError(f"{outer} is a schedule of pipelined training, for `thinwire pipeline run`")
        if outer in METHODS and outer not in names:
            raise ExpressionError(f"{outer} is a data-parallel method, for `thinwire ddp-sim`")
        found = typed(text, names, defaults)
        if isinstance(found, tuple):
            raise ExpressionError(f"{text} is several methods: put each into quotes of its own")
        if not isinstance(found, Algorithm | Auto):
            raise ExpressionError(f"{text} is not a method; try FedAvg(up={text})")
        return found

    def problem(self, seed: int) -> Problem:
        if self.task is not None:
            return custom(self.task, self.clients or CLIENTS, seed)
        held, augments = self.holdout, self.augments()
        return standard(
            self.data, self.model, self.clients, self._split(), seed, held, self.data_dir, augments, self.unseen
        )

    def rehearse(self, method: Algorithm | Auto, problem: Problem) -> None:
        if isinstance(method, Auto):  # it is chosen when the run begins
            fits = method.seconds is None or self.setting.network is not None
            require(fits, f'{method!r}: seconds need the rates of links; give --network "Network(mbit=1)"')
            without_noise(method, self.setting)
            method = method.plain()
        setting, tests = replace(self.setting, workers=1, plan=None, states="memory", record=None), problem.client_tests
        run = Simulation(method, problem.model, problem.tasks, setting, test=problem.test, client_tests=tests)
        run.pool.close()

    def train(self, job: Job, folder: Path) -> None:
        problem = job.problem
        simulate(
            job.method,
            problem.model,
            problem.tasks,
            self.rounds,
            replace(self.setting, seed=job.seed),
            test=problem.test,
            client_tests=problem.client_tests,
            out=folder,
            resume=True,
            on_round=job.on_record,
            progress=job.progress,
        )

    def title(self, about: Record) -> str:
        # A user's task may have made more clients, or fewer.
        return f"{self.task or self.data}, {about.get('clients', self.clients)} clients, {self.rounds} rounds"

    def but(self, **changed: Any) -> Study:
        """As :meth:`Study.but`; ``rounds`` can only grow, and ``workers`` are the setting's."""
        rounds, workers = changed.get("rounds"), changed.pop("workers", None)
        require(
            rounds is None or rounds >= self.rounds,
            f"--rounds {rounds}: this study has {self.rounds} already; it can only grow",
        )
        study = self if workers is None else replace(self, setting=self.setting.but({"workers": workers}))
        return Study.but(study, **changed)

    def _split(self) -> Split | None:
        return None if self.split is None else option("--split", self.split, Split, settings(Split), "Dirichlet(0.1)")


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
    if values.get("clip") not in (None, "auto"):  # a word or a number
        with contextlib.suppress(ValueError):
            made["clip"] = float(values["clip"])
    return Setting().but({**values, **made})
