"""A kind of study that thinwire does not have: one worker, of whose update a share is sent after every epoch.

Its class is all that table, curves, report and command line know of it; :mod:`tests.test_kinds` registers it.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from thinwire.config import Config, complete
from thinwire.data import IID
from thinwire.errors import ExpressionError, require
from thinwire.expression import parse
from thinwire.key import Key
from thinwire.problem import Problem, standard
from thinwire.run.folder import Folder
from thinwire.studies.axes import UP, Axis
from thinwire.studies.cells import Column, Row, mean, percent_text
from thinwire.studies.expressions import of_another_kind, vocabulary_with
from thinwire.studies.read import Arm, Record, RecordedRun
from thinwire.studies.study import Numbers, Study, StudyRun, option_field
from thinwire.train.slot import make_module

LINE = ("epoch", "up_bytes", "down_bytes", "seconds", "kept")


@dataclass(frozen=True)
class Share(Config):
    """The largest numbers of an update, a ``part`` of them."""

    part: float = 0.5


@dataclass(frozen=True)
class Toy(Study):
    """A study of shares."""

    kind: ClassVar[str] = "toy"
    example: ClassVar[str] = "Share(0.5)"
    noun: ClassVar[str] = "a share of a toy"
    outermost: ClassVar[Mapping[str, type]] = {"Share": Share}

    asks: ClassVar[tuple[str, str]] = "shares", "Shares."
    out: ClassVar[str] = "runs/toys"
    lists: ClassVar[Mapping[str, Numbers]] = {"rates": Numbers("a rate an epoch", "0.1,0.2", float, "Rates.")}

    epochs: int = option_field(3, "Epochs to train.")
    lr: float = option_field(0.1, "Learning rate.")
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epochs > 0, f"--epochs {self.epochs}: it must be at least 1")

    @staticmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Share:
        name, names = text.partition("(")[0].strip(), vocabulary_with(use)
        if other := of_another_kind("toy", name, names):
            raise ExpressionError(other)
        made: Share = parse(text, names={**names, "Share": Share})
        return made

    def problem(self, seed: int) -> Problem:
        return standard(self.data, self.model, 1, IID(), seed, data_dir=self.data_dir, augment=self.augments())

    def hints(self) -> Iterator[str]:
        yield "toys are small"

    def rehearse(self, method: Share, problem: Problem) -> None:
        require(0 < method.part <= 1, f"part={method.part}: it must be in (0, 1]")

    def train(self, job: StudyRun, folder: Path) -> None:
        given, task = job.problem.model, job.problem.tasks[0]
        model = copy.deepcopy(given) if isinstance(given, nn.Module) else make_module(given, job.seed)
        files = Folder(folder)
        about = {"kind": self.kind, "name": repr(job.method), "method": complete(job.method), "seed": job.seed}
        files.describe({**about, "epochs": self.epochs, "lr": self.lr})
        files.write("rounds.jsonl", b"")
        for epoch in range(1, self.epochs + 1):
            began = time.monotonic()
            x, y = task.batch(torch.arange(len(task)), Key(job.seed, epoch).generator("batch"))
            loss = nn.functional.cross_entropy(model(x), y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            count = 0
            for p, g in zip(model.parameters(), gradients, strict=True):
                kept = max(1, int(job.method.part * g.numel()))
                chosen = torch.topk(g.abs().flatten(), kept).indices
                p.data.view(-1)[chosen] -= self.lr * g.flatten()[chosen]
                count += kept
            line = {"epoch": epoch, "up_bytes": 8 * count, "down_bytes": 0, "kept": count}
            line |= {"train_loss": loss.item(), "accuracy": float((model(x).argmax(1) == y).float().mean())}
            line["seconds"] = time.monotonic() - began
            files.add("rounds.jsonl", json.dumps(line) + "\n")
            if job.on_record is not None:
                job.on_record(line)
        files.summary({**about, "epochs": self.epochs})

    def title(self, about: Record) -> str:
        return f"{self.data}, {self.epochs} epochs of a toy"

    # -- what table, curves and report show ------------------------------------

    axes: ClassVar[Mapping[str, Axis]] = {"bytes_up": Axis(UP, "MB of shares")}
    ways: ClassVar[Mapping[str, str]] = {"up_bytes": "values and positions"}
    ways_said: ClassVar[str] = "All bytes of a toy."
    notes: ClassVar[Mapping[str, str]] = {"numbers": "Numbers: those of updates that were sent."}
    least: ClassVar[tuple[str, ...]] = ("s here",)

    @staticmethod
    def plain(expression: str) -> bool:
        return expression == complete(Share(1.0))

    @staticmethod
    def row(arm: Arm) -> Row:
        return {"kept": mean(arm, "kept")}

    @staticmethod
    def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
        return (
            ("numbers", lambda row: f"{row['kept']:,.0f}"),
            ("up / all", lambda row: percent_text(row["share_up"])),
        )

    @staticmethod
    def words(about: Record, study: Record) -> list[tuple[str, str | None]]:
        return [("Rate", f"{about['lr']:g}"), ("Decay", None)]

    @staticmethod
    def scale(runs: Sequence[RecordedRun], study: Record) -> list[str]:
        return [f"{runs[0].about['epochs']} toy epochs"]
