"""What a report reads from folders of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thinwire.errors import RunError
from thinwire.report.heat import taking_part
from thinwire.studies.read import EVERY_LINE, arms, labels


def written(folder: Path, rounds: list[str], ended: int | None = None) -> Path:
    """A run with these lines of ``rounds.jsonl``, complete after so many rounds."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text('{"method": "FedAvg()", "seed": 0}')
    (folder / "rounds.jsonl").write_text("\n".join(rounds))
    if ended is not None:
        (folder / "summary.json").write_text(json.dumps({"rounds": ended}))
    return folder


WHOLE = [json.dumps({**dict.fromkeys(EVERY_LINE["federated"], 1), "round": number}) for number in (1, 2, 3)]


@pytest.mark.parametrize("torn", ['{"round": 4, "up', '{"round": 4, "up\n', ""])
def test_a_last_line_that_a_kill_cut_short_is_left_out(tmp_path: Path, torn: str) -> None:
    (arm,) = arms([written(tmp_path, [*WHOLE, torn])])
    assert [line["round"] for line in arm.runs[0].rounds] == [1, 2, 3]


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([WHOLE[0], "{bad", WHOLE[2]], "line 2 is no JSON"),
        ([WHOLE[0], "", WHOLE[2]], "line 2 is no JSON"),
        ([*WHOLE[:2], "{bad"], "it ends after round 2, and summary.json says that 3 were made"),
        ([*WHOLE, *WHOLE], "after round 3 stands round 1"),
        (WHOLE[:1], "it ends after round 1, and summary.json says that 3 were made"),
    ],
)
def test_another_line_that_cannot_be_read_is_an_error_and_no_shorter_run(
    tmp_path: Path, rounds: list[str], said: str
) -> None:
    written(tmp_path, rounds, ended=3)
    with pytest.raises(
        RunError, match=rf"rounds\.jsonl is damaged: {said}; put it back as it was, or delete the run's"
    ):
        arms([tmp_path])


def test_a_line_of_a_ledger_without_its_client_is_named(tmp_path: Path) -> None:
    entries = [{"round": 1, "client": 0, "direction": "up"}, {"round": 1}]
    (written(tmp_path, WHOLE) / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(RunError, match=r"ledger\.jsonl is damaged: line 2 has no client; put it back"):
        taking_part(arms([tmp_path]))


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (
            ["FedAvg(LocalSGD(0.1), up=MySign())", "Halved(LocalSGD(0.1), most=2.0)", "Mine(0.9, local=LocalSGD(0.1))"],
            ["FedAvg(up=MySign())", "Halved(most=2.0)", "Mine(0.9)"],
        ),
        (["Halved(LocalSGD(0.1))", "Halved(LocalSGD(0.2))"], ["Halved(LocalSGD(0.1))", "Halved(LocalSGD(0.2))"]),
        (["Mine(LocalSGD(0.1))", "Mine()"], ["Mine(LocalSGD(0.1))", "Mine()"]),  # short, both would be Mine()
        (["Mine(LocalSGD(0.1))", "two words"], ["Mine(LocalSGD(0.1))", "two words"]),
    ],
)
def test_training_that_all_share_is_left_out_beside_a_method_of_the_users_own(
    names: list[str], short: list[str]
) -> None:
    assert list(labels({f"Unknown({n})": name for n, name in enumerate(names)}).values()) == short


@pytest.mark.parametrize("name", ["forward", "backward", "device", "staleness", "evaluate_every", "data", "test"])
def test_runs_that_differ_in_what_was_measured_or_drawn_are_seeds_of_one(name: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        written(tmp_path / str(seed), WHOLE)
        about = {"method": "FedAvg()", "seed": seed, name: [seed]}
        (tmp_path / str(seed) / "run.json").write_text(json.dumps(about))
    assert [len(arm.runs) for arm in arms([tmp_path])] == [2]
