"""Runs in other tools while they train: TensorBoard, Weights & Biases, MLflow (``--log``).

A :class:`Log` is told each line of ``rounds.jsonl`` once it is there, and hands its numbers to some of ``TOOLS``, each
of which is one small class. Nothing leaves this machine unless the tool was set up for that. Weights & Biases is
offline unless ``WANDB_MODE`` says otherwise. MLflow writes into the study's folder unless ``MLFLOW_TRACKING_URI`` is
set.

A run that goes on from a checkpoint makes the rounds after it once more, to the same bits. A tool shows each round once
all the same: TensorBoard drops what it had of these, and the others keep that and are not told again. They mark a run
that an error or Ctrl-C ended as such.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ..errors import nearest, require
from ..run.folder import write_atomic
from ..studies.read import EVERY_LINE, Record, number_of, read, read_lines, unit_of

Outcome = Literal["finished", "failed", "killed"]  # "killed" is Ctrl-C's


class Tool(ABC):
    """A tool, for the runs below the folder ``out``. Its constructor raises ``ImportError`` where it is missing."""

    @abstractmethod
    def __init__(self, out: Path) -> None: ...

    @abstractmethod
    def begin(self, name: str, about: Record, first: int) -> int:
        """A run begins, or goes on: ``about`` is its ``run.json``, ``first`` the round or step of its next line.

        Returns the last round or step that the tool has of it and keeps. It is told those after it.
        """

    @abstractmethod
    def line(self, at: int, values: dict[str, float]) -> None:
        """The numbers of a round, or of an evaluation of steps."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """The run is over, or another one begins."""


class TensorBoard(Tool):
    """Event files in ``tensorboard/`` of the study, a folder a run: ``tensorboard --logdir runs/mine``."""

    def __init__(self, out: Path) -> None:
        import_module("tensorboard")  # torch's own message does not say what to install
        self.out, self.writer = out / "tensorboard", import_module("torch.utils.tensorboard").SummaryWriter

    def begin(self, name: str, about: Record, first: int) -> int:
        # What was written beyond the checkpoint that a run goes on from is not to be shown.
        self.file = self.writer(str(self.out / name), purge_step=first)
        self.file.add_text("method", f"`{about.get('method')}`", first)
        return 0

    def line(self, at: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.file.add_scalar(name, value, at)
        self.file.flush()  # whoever looks on sees it now

    def end(self, outcome: Outcome) -> None:
        self.file.close()


class Wandb(Tool):
    """A run of Weights & Biases each, in the project "thinwire"; offline ones lie in ``wandb/`` of the study.

    Offline there is nobody to ask for what a run has: its last round is beside it, in a file named as the run, once W&B
    has written it. After a kill rounds are told again: one may be there twice, none is lost.
    """

    def __init__(self, out: Path) -> None:
        self.out, self.wandb = out, import_module("wandb")
        self.mode = os.environ.get("WANDB_MODE", "offline")

    def begin(self, name: str, about: Record, first: int) -> int:
        online = {"resume": "allow"} if self.mode == "online" else {}  # offline it is refused with a warning
        own = identity(self.out / name, about)
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "thinwire"),
            dir=str(self.out),
            group=self.out.resolve().name,
            name=name,
            id=own,
            config=about,
            mode=self.mode,
            **online,
        )
        self.last = self.out / "wandb" / f"{own}.last"
        self.at = 0
        return int(self.run.step) - 1 if online else int(self.last.read_text()) if self.last.exists() else 0

    def line(self, at: int, values: dict[str, float]) -> None:
        self.run.log(values, step=at)
        self.at = at

    def end(self, outcome: Outcome) -> None:
        self.run.finish(exit_code=0 if outcome == "finished" else 1)
        if self.mode == "offline" and self.at:
            write_atomic(self.last, str(self.at).encode())


class MLflow(Tool):
    """A run of MLflow each, in an experiment named as the study's folder; they lie in ``mlruns/`` of the study."""

    def __init__(self, out: Path) -> None:
        self.out, self.made = out.resolve(), import_module("mlflow.tracking").MlflowClient
        self.metric = import_module("mlflow.entities").Metric

    def begin(self, name: str, about: Record, first: int) -> int:
        where = os.environ.get("MLFLOW_TRACKING_URI")
        if where is None:
            where = (self.out / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the store beside it is a database
        self.client = client = self.made(where)
        known = client.get_experiment_by_name(self.out.name)
        number = known.experiment_id if known is not None else client.create_experiment(self.out.name)
        tags = {"thinwire": identity(self.out / name, about)}
        known_runs = client.search_runs([number], f"tags.thinwire = '{tags['thinwire']}'")
        if known_runs:
            self.run = known_runs[0].info.run_id
            client.update_run(self.run, status="RUNNING")
            had = [each.step for key in known_runs[0].data.metrics for each in client.get_metric_history(self.run, key)]
            return max(had, default=0)
        self.run = client.create_run(number, run_name=name, tags=tags).info.run_id
        for key, value in about.items():
            client.log_param(self.run, key, str(value)[:500])
        return 0

    def line(self, at: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.run, [self.metric(name, value, now, at) for name, value in values.items()])

    def end(self, outcome: Outcome) -> None:
        self.client.set_terminated(self.run, outcome.upper())


def identity(folder: Path, about: Record) -> str:
    """The name by which a run is found when it goes on, made of where it lies and of what it is.

    So a study that replaces another in its folder has runs of its own, where its methods, data or seeds differ. Of all
    versions of the code the first counts.
    """
    said = {**about, "versions": about.get("versions", [])[:1]}
    return hashlib.sha256(f"{folder.resolve()} {json.dumps(said, sort_keys=True)}".encode()).hexdigest()[:16]


TOOLS: dict[str, type[Tool]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


class Log:
    """A listener of a study's runs, as a context: ``with Log(["tensorboard"], out) as log: study.run(out, log)``.

    ``study.run(out, log, on_failure=log.fail)`` has runs that diverge marked as failed too.

    ``log(name, record)`` hands on the numbers of a line of ``rounds.jsonl`` of the run in ``out / name``. Lists, such
    as what ``--record`` adds, stay in the file. No file is written before the first line. Raises ``ValueError`` for a
    tool that is not known and ``ImportError``, with the command that installs it, for one that is missing.
    """

    def __init__(self, tools: Sequence[str], out: Path) -> None:
        self.out, self.name, self.at = out, "", 0
        self.tools, self.had = list[Tool](), list[int]()  # and the last round that each has
        for tool in dict.fromkeys(tools):
            require(tool in TOOLS, f"--log {tool}{nearest(tool, TOOLS)}: it is one of {', '.join(TOOLS)}")
            try:
                self.tools.append(TOOLS[tool](out))
            except ImportError as error:
                raise ImportError(
                    f'--log {tool} needs it installed: pip install "thinwire[{tool}]" ({error})'
                ) from error

    def __call__(self, name: str, record: Record) -> None:
        unit, at = number_of(record)
        self._open(name, at)
        self.at = at
        values = {key: float(value) for key, value in record.items() if _number(value) and key != unit}
        for tool, had in zip(self.tools, self.had, strict=True):
            if at > had:
                tool.line(at, values)

    def fail(self, name: str) -> None:
        """The run in ``out / name`` ended with an error, maybe before its first line, and others may follow."""
        folder = self.out / name
        if not self.tools or not (folder / "run.json").exists():
            return
        lines = list(read_lines(folder / "rounds.jsonl")) if (folder / "rounds.jsonl").exists() else []
        done = max((number_of(line)[1] for line in lines), default=0)
        self._open(name, done + 1)  # what a tool has of the rounds before stays
        self.end("failed")

    def _open(self, name: str, at: int) -> None:
        """Begin a run at its round or step ``at``, if another one is open or none."""
        if name != self.name:
            self.end()
            about = read(self.out / name / "run.json")
            self.had = [tool.begin(name, about, at) for tool in self.tools]
            self.name, self.at = name, 0

    def end(self, outcome: Outcome = "finished") -> None:
        """Close the run that is open, if any. One that is complete is finished, whatever happened after it."""
        if self.name:
            ended = self.out / self.name / "summary.json"
            said = read(ended) if ended.exists() else {}
            complete = self.at in [said.get(f"{unit_of(kind)}s") for kind in EVERY_LINE]
            self.name = ""
            for tool in self.tools:
                tool.end("finished" if complete else outcome)

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.end("finished" if kind is None else "killed" if interrupted else "failed")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
