"""The loop of every run, by a run that counts; and the settings whose fields are keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.ddp import Hook
from thinwire.ddp.simulation import simulate
from thinwire.deploy import setting as deploy
from thinwire.deploy.server import Deployment
from thinwire.errors import RunError
from thinwire.run.folder import CHECKPOINT, Folder
from thinwire.run.loop import Record, Run


class Counting(Run[int]):
    """Adds its steps up, and records the sum where it is to evaluate."""

    def __init__(self, seed: int = 0) -> None:
        self.number, self.sum, self.seed, self.records, self.saved = 0, 0, seed, list[Record](), list[int]()

    def step(self, evaluate: bool) -> Record | None:
        self.number += 1
        self.sum += self.number
        if not evaluate:
            return None
        self.records.append({"step": self.number, "sum": self.sum})
        return self.records[-1]

    def fingerprint(self) -> Record:
        return {"seed": self.seed}

    def state(self) -> Any:
        self.saved.append(self.number)
        return {"number": self.number, "sum": self.sum, "records": self.records}

    def restore(self, packet: Any) -> None:
        self.number, self.sum, self.records = packet["number"], packet["sum"], packet["records"]

    def result(self) -> int:
        return self.sum

    def write(self, folder: Folder, result: int) -> None:
        folder.summary({"sum": result})


class Extending(Counting):
    extends = True


def lines(folder: Path) -> list[Record]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_records_come_every_so_many_steps_and_at_the_end() -> None:
    run, told = Counting(), list[Record]()
    assert run.until(7, run.step, evaluate_every=3, listeners=(told.append, None)) == 28
    assert told == run.records == [{"step": 3, "sum": 6}, {"step": 6, "sum": 21}, {"step": 7, "sum": 28}]


@pytest.mark.parametrize(("kind", "saved"), [(Counting, [4, 8]), (Extending, [4, 8, 9])])
def test_checkpoints_follow_records_and_stay_where_a_run_may_go_on(
    kind: Callable[[], Counting], saved: list[int], tmp_path: Path
) -> None:
    run = kind()
    run.open(Folder(tmp_path), resume=False)
    run.until(9, run.step, evaluate_every=2, checkpoint_every=3)
    assert run.saved == saved
    assert (tmp_path / CHECKPOINT).exists() is run.extends
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 6, 8, 9]
    assert json.loads((tmp_path / "summary.json").read_text()) == {"sum": 45}


def test_a_run_that_is_stopped_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def stop(record: Record) -> None:
        if record["step"] == 6:
            raise KeyboardInterrupt

    first, again = Counting(), Counting()
    first.open(Folder(tmp_path), resume=False)
    with pytest.raises(KeyboardInterrupt):
        first.until(9, first.step, evaluate_every=2, checkpoint_every=4, listeners=(stop,))
    again.open(Folder(tmp_path), resume=True)
    assert (again.number, again.sum) == (4, 10)
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]
    assert again.until(9, again.step, evaluate_every=2, checkpoint_every=4) == 45
    assert lines(tmp_path) == again.records


def test_another_run_and_a_state_that_does_not_fit_are_refused(tmp_path: Path) -> None:
    run = Extending()
    run.open(Folder(tmp_path), resume=False)
    run.until(4, run.step)
    with pytest.raises(RunError, match=r"has 4 steps already: steps=3 would be fewer$"):
        run.until(3, run.step)
    with pytest.raises(RunError, match=r"holds a run already: resume it, or choose another folder$"):
        Extending().open(Folder(tmp_path), resume=False)
    with pytest.raises(RunError, match=r"is another run: its seed is 0, not 1$"):
        Extending(seed=1).open(Folder(tmp_path), resume=True)
    Folder(tmp_path).save({"number": 4})
    with pytest.raises(RunError, match=r"^the checkpoint in .* does not fit this version \('sum'\)$"):
        Extending().open(Folder(tmp_path), resume=True)


def trained(**fields: Any) -> object:
    data = tw.Supervised(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    return simulate(Hook(tw.Dense()), nn.Linear(2, 2), data, optimizer=lambda p: torch.optim.SGD(p, 0.1), **fields)


def served(**fields: Any) -> object:
    return Deployment(tw.FedAvg(), lambda: nn.Linear(2, 2), 3, **fields)


def of_setting(setting: Any) -> object:
    """What a deployment makes of its ``setting``, where annotations are not checked first."""
    return deploy.Setting.of(setting, {})


@pytest.mark.parametrize(
    ("call", "fields", "kind", "said"),
    [
        (trained, {"workers": 0}, ValueError, "workers=0: it must be at least 1"),
        (trained, {"device": "tpu9"}, ValueError, "device='tpu9': no such device here; use cpu or cuda"),
        (trained, {"step": 1}, TypeError, "a run has no setting 'step' (did you mean steps?)"),
        (served, {"sample": 0}, ValueError, "sample=0: it must be at least 1"),
        (served, {"sample": 4}, ValueError, "sample=4: it must be between 1 and the 3 clients"),
        (served, {"take": 4}, ValueError, "take=4: it must be between 1 and the 3 sampled"),
        (served, {"clip": 0}, ValueError, "clip=0.0: a norm is positive, or 'auto'"),
        (served, {"seed": -1}, ValueError, "seed=-1: it must not be negative, and fit 63 bits"),
        (of_setting, {"setting": 3}, ValueError, "setting=3: give a Setting, such as Setting(sample=10)"),
    ],
)
def test_what_no_setting_may_have_is_refused_as_the_argument_that_it_is(
    call: Callable[..., object], fields: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as refused:
        call(**fields)
    assert str(refused.value).startswith(said)
