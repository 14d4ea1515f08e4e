"""A plan for adapters: its rehearsals train as the clients will, or say that nothing was learnt."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from thinwire import hf
from thinwire.cli import main
from thinwire.studies import Federated
from thinwire.studies.plan_federated import FederatedPlan, plan
from tiny import small_news

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
ADAMW = tw.LocalAdamW(0.01, batch=8, steps=10)


def planned(tmp_path: Path, auto: tw.Auto, **about: Any) -> FederatedPlan:
    with small_news(tmp_path):
        problem = hf.standard("ag_news", "minilm", clients=4, rank=4)
        study = Federated(("FedAvg(LocalSGD(0.0001, steps=1))",), rounds=4, setting=tw.Setting(sample=2))
        return plan(study, problem, auto=auto, rehearse=2, **about)


@pytest.mark.slow
def test_the_rows_of_a_plan_train_by_the_trainer_that_is_given_and_others_by_their_own(tmp_path: Path) -> None:
    found = planned(tmp_path, tw.Auto(0.2), local=ADAMW)
    trainers = [tw.parse(row.expression).local for row in found.rows]
    assert trainers.count(tw.LocalSGD(0.0001, steps=1)) == 1
    assert set(trainers) == {ADAMW, tw.LocalSGD(0.0001, steps=1)}
    dense, still = found.rows[0], found.rows[trainers.index(tw.LocalSGD(0.0001, steps=1))]
    assert still.accuracy == 0.25  # of four classes: one step of SGD moves nothing
    assert dense.accuracy is not None
    assert dense.accuracy > 0.5
    assert tw.parse(found.best).local == ADAMW
    assert "tells nothing" not in found.why


@pytest.mark.soak
def test_a_plan_whose_rehearsals_move_nothing_says_so_and_what_to_give(tmp_path: Path) -> None:
    found = planned(tmp_path, replace(tw.Auto(0.2), local=tw.LocalSGD(0.0001, steps=1)))
    assert {row.accuracy for row in found.rows} == {0.25}
    assert "All are at 25.0%, so the rehearsal tells nothing: --rehearse takes more rounds, and --local" in found.why


@pytest.mark.soak
@pytest.mark.parametrize("typed", [["--local", "LocalAdamW(0.003, steps=2)"], ["FedAvg(LocalAdamW(0.003, steps=2))"]])
def test_the_command_takes_a_trainer_by_its_option_or_from_the_first_expression(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--hf minilm --data ag_news --clients 4 --sample 2 --rounds 2 --rehearse 1 --batch 8 --budget 0.2 --json"
    monkeypatch.setattr(sys, "argv", ["thinwire", "plan", *typed, *words.split()])
    with small_news(tmp_path), pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    found = json.loads(capsys.readouterr().out)
    expected = tw.LocalAdamW(0.003, steps=2, batch=8)
    assert {repr(tw.parse(row["expression"]).local) for row in found["rows"]} == {repr(expected)}
    assert "--hf minilm --data ag_news" in found["command"] or "--data ag_news --hf minilm" in found["command"]


def test_what_is_no_trainer_is_refused_by_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire", "plan", "--local", "TopK(0.1)", "--clients", "4"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "Trainer" in capsys.readouterr().err
