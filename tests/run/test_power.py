"""Whenever the power fails, what is on disk goes on to the bits of a run that was never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from power import recorded, restored
from test_federation import Parties
from test_train import linear, tasks
from thinwire.studies import DataParallel, Pipelined, Study
from tiers import tiers

METHOD = "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)))"


def contents(folder: Path) -> dict[str, Any]:
    """What a run left, but for the time it took and what says where it was."""
    found = dict[str, Any]()
    for path in sorted(folder.rglob("*.*")):
        name = f"{path.relative_to(folder)}"
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
        elif path.suffix in (".safetensors", ".f32"):
            found[name] = path.read_bytes()
    return found


def simulated(out: Path, states: str) -> None:
    options: dict[str, Any] = {"states": states, "record": "all", "checkpoint_every": 2, "workers": 1, "plan": "each"}
    method, test = tw.parse(METHOD, {"lr": 0.2, "batch": 8}), tasks((40,), 1)[0]
    tw.simulate(method, linear, tasks(), 3, test=test, client_tests=tasks(), out=out, resume=True, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("states", tiers(["disk", "memory"], slow=1))
def test_a_simulation_goes_on_whenever_the_power_fails(
    states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(tmp_path / "whole", monkeypatch) as pictures:
        simulated(tmp_path / "whole" / "run", states)
        found = pictures()
    expected = contents(tmp_path / "whole" / "run")
    assert {"rounds.jsonl", "ledger.jsonl", "clients.jsonl", "gradients.f32", "model.safetensors"} <= set(expected)
    assert any("/run/checkpoint/state.thinwire" in picture and "/run/summary.json" not in picture for picture in found)
    for number, picture in enumerate(found):
        out = restored(picture, tmp_path / str(number)) / "run"
        simulated(out, states)
        assert contents(out) == expected, sorted(picture)


STUDIES: dict[str, Study] = {
    "data-parallel": DataParallel(
        ("Hook(ErrorFeedback(TopK(0.1)))",), workers=2, steps=5, batch=4, evaluate_every=1, checkpoint_every=2
    ),
    "pipelined": Pipelined(
        ("BPK()",),
        ("01-BPK",),
        parts=2,
        cut=(2,),
        forward=(0.01, 0.02),
        backward=(0.01, 0.02),
        steps=5,
        batch=4,
        evaluate_every=1,
        checkpoint_every=2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STUDIES)
def test_a_study_of_steps_goes_on_whenever_the_power_fails(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = STUDIES[kind]
    problems = {0: study.problem(0)}

    def go_on(out: Path) -> None:
        study.claim(out, resume=(out / "study.json").exists())
        assert study.run(out, problems=problems) == []

    with recorded(tmp_path / "whole", monkeypatch) as pictures:
        go_on(tmp_path / "whole" / "study")
        found = pictures()
    expected = contents(tmp_path / "whole" / "study")
    assert len(expected) == 2
    for number, picture in enumerate(found):
        out = restored(picture, tmp_path / str(number)) / "study"
        go_on(out)
        assert contents(out) == expected, sorted(picture)


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression", tiers([METHOD, "FedAvg(up=ErrorFeedback(TopK(0.2)), down=PerClient(TopK(0.3)))"], slow=1)
)
def test_a_deployment_goes_on_whenever_the_power_fails_everywhere(
    expression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(folder: Path, rounds: int) -> list[bytes]:
        parties = Parties(expression, folder, sample=2)
        while parties.server.round < rounds:
            parties.round()
        return parties.held()

    with recorded(tmp_path / "whole", monkeypatch) as pictures:
        expected = play(tmp_path / "whole", 2)
        found = pictures()
    assert any("/server/checkpoint/state.thinwire" in picture for picture in found)
    for number, picture in enumerate(found):
        assert play(restored(picture, tmp_path / str(number)), 2) == expected, sorted(picture)
