"""``thinwire plan``: what alternatives cost and reach, which one is proposed, and the command for it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import thinwire as tw
from thinwire.cli import main
from thinwire.data import Dirichlet
from thinwire.problem import standard
from thinwire.studies import plan_federated as alternatives
from thinwire.studies.plan_federated import Alternative, Reached, _best
from thinwire.studies.predict import Rehearsal

SIX_NUMBERS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from thinwire.problem import Problem


def made(clients, seed):
    x = torch.randn(clients, 8, 2, generator=torch.Generator().manual_seed(seed))
    y = (x.sum(-1) > 0).long()
    return Problem(lambda: nn.Linear(2, 2), [TensorDataset(x[k], y[k]) for k in range(clients)], test=(x[0], y[0]))
"""
SMALL = "plan --data digits --model mlp --clients 6 --sample 2 --rounds 4 --lr 0.3 --rehearse 1 --mbit 1 --mbit-up 0.5"


@pytest.fixture(scope="module")
def planned() -> tuple[str, alternatives.FederatedPlan]:
    """What a command prints, and the plan that it printed."""
    kept = list[alternatives.FederatedPlan]()
    with pytest.MonkeyPatch.context() as patch:
        real = alternatives.plan
        patch.setattr(alternatives, "plan", lambda *a, **k: kept.append(real(*a, **k)) or kept[0])
        patch.setattr(sys, "argv", ["thinwire", *SMALL.split(), "--budget", "0.1", "--target", "0.2"])
        written = list[str]()
        patch.setattr(sys.stdout, "write", lambda text: written.append(text) or len(text))
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    return "".join(written), kept[0]


@pytest.mark.slow
def test_the_table_has_all_alternatives_and_the_command_trains_the_one_that_is_proposed(
    planned: tuple[str, alternatives.FederatedPlan],
) -> None:
    shown, found = planned
    names = [row.name for row in found.rows]
    assert [name.partition("(")[0] for name in names] == ["FedAvg"] * 3 + ["LUAR"] + ["FedAvg"] * 3 + ["Auto"]
    assert names[7].startswith("Auto(0.1): Averaged(FedAvg(LocalSGD(0.3), up=ErrorFeedback(TransformCoding(")
    assert all(row.accuracy is not None and 0 < row.accuracy < 1 for row in found.rows)
    assert [row.served is not None for row in found.rows] == 7 * [False] + [True]
    dense = found.rows[0]
    assert sum(found.rows[7].bytes_up + found.rows[7].bytes_down) <= 0.1 * sum(dense.bytes_up + dense.bytes_down)
    assert tw.expression.parse(found.best)
    assert found.command.startswith("thinwire run '")
    assert found.command.endswith("--start known --data digits --model mlp --clients 6 --rounds 4 --sample 2")
    assert found.command in shown
    assert "A visit may take" in shown
    assert json.loads(json.dumps(found.values()))["rows"][7]["why"]


@pytest.mark.slow
def test_what_is_predicted_of_a_chosen_method_is_what_it_sends() -> None:
    problem = standard("digits", "mlp", 6, Dirichlet(0.3), 0)
    problem = replace(problem, tasks=[replace(task, indices=task.indices[:16]) for task in problem.tasks])
    auto = tw.Auto(0.1, tw.LocalSGD(0.05, batch=8))
    found = Rehearsal(problem, 3, 2, mbit=1.0, mbit_up=0.5).predict(auto)
    sent = tw.simulate(auto, problem.model, problem.tasks, 3, sample=2, workers=1)
    assert found.method == repr(auto)
    assert sum(found.bytes_up) / 2 == pytest.approx(sent.bytes_up, rel=0.02)  # a packet fills its bytes nearly
    dense = Rehearsal(problem, 3, 2, mbit=1.0, mbit_up=0.5).predict(tw.FedAvg())
    # Three rounds, each of a client with 4 x 4,810 bytes and a header both ways: 8 bits at 1 Mbit/s down, 0.5 up.
    assert dense.seconds[0] == pytest.approx(3 * 4 * 4_810 * 8 * (1 + 2) / 1e6, rel=0.02)


def test_for_a_model_that_is_smaller_than_headers_the_rest_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.py").write_text(SIX_NUMBERS)
    monkeypatch.chdir(tmp_path)
    typed = "plan --task small:made --clients 4 --rounds 3 --lr 0.3 --rehearse 1"
    monkeypatch.setattr(sys, "argv", ["thinwire", *typed.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    shown = capsys.readouterr().out
    assert "TransformCoding" not in shown
    assert "LBGM" in shown
    assert "Left out: Auto(0.01, local=LocalSGD(0.3)): a visit may take" in shown
    assert "give bytes=" in shown
    assert "\nthinwire run " in shown


@pytest.mark.slow
def test_expressions_after_plan_are_rows_and_of_auto_what_it_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.py").write_text(SIX_NUMBERS)
    monkeypatch.chdir(tmp_path)
    said = ["--task", "small:made", "--clients", "4", "--rounds", "3", "--lr", "0.3", "--rehearse", "1"]
    monkeypatch.setattr(sys, "argv", ["thinwire", "plan", *said])
    with pytest.raises(SystemExit):
        main()
    enough = re.search(r"give (bytes=\d+) in place of the budget", capsys.readouterr().out)
    assert enough is not None
    monkeypatch.setattr(sys, "argv", ["thinwire", "plan", f"Auto({enough[1]})", "FedAvg(up=STC(0.5))", *said, "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert any(row["expression"] == "FedAvg(LocalSGD(0.3), up=STC(0.5))" for row in rows)
    assert rows[-1]["name"].startswith(f"Auto({enough[1]}): Averaged(FedAvg(LocalSGD(0.3)")
    assert rows[-1]["why"]


def row(name: str, seconds: float, accuracy: float | None, reached: Reached | None = None) -> Alternative:
    return Alternative(name, name, (1, 1), (1, 1), (seconds, seconds), accuracy, None, reached)


def test_the_first_at_the_target_is_proposed_else_the_fastest_of_the_best() -> None:
    rows = [row("a", 100, 0.50), row("b", 10, 0.49), row("c", 1, 0.30)]
    best, why = _best(rows, None, 3)
    assert best.name == "b"
    assert why.startswith("It has the least seconds of transfer of those that are at most 2 points below the best ")
    assert _best(rows, 0.9, 3)[1].startswith("None is at 90.0% after 3 rounds: --rehearse takes more. ")
    there = [*rows, row("d", 50, 0.1, Reached(2, 1000, 4.0)), row("e", 50, 0.1, Reached(1, 9000, 5.0))]
    best, why = _best(there, 0.9, 3)
    assert (best.name, why) == ("d", "It is at 90.0% first: after 2 rounds and 4.0 s of transfer.")
    assert _best([row("a", 2, None), row("b", 1, None)], None, 3)[0].name == "b"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mbit 0", "error: --mbit 0.0: a rate must be finite, and at least 1e-06"),
        ("--mbit inf", "error: --mbit inf: a rate must be finite, and at least 1e-06"),
        ("--mbit-up -1", "error: --mbit-up -1.0: a rate must be finite, and at least 1e-06"),
        ("--target 2", "error: --target 2.0: an accuracy above 0 and at most 1"),
        ("--rehearse 0", "error: --rehearse 0: it must be at least 1 round"),
        ("--budget 3", "--budget 3.0: it is a share of FedAvg's bytes, above 0 and at most 1"),
        ("--budget nan", "--budget nan: it is a share of FedAvg's bytes, above 0 and at most 1"),
        ("--budget 0.0001", "raise budget to 0.00"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["thinwire", *SMALL.split(), *words.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert said in error
    assert error.count("\n") == 1
