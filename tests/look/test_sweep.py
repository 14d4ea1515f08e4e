"""What a study reached by a setting, or by what was sent."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from thinwire.look import sweep
from thinwire.studies.read import Arm, arms


def lying(folder: Path, method: str, size: int, *reached: dict[str, float | None]) -> None:
    """A run in which clients sent ``size`` bytes a round, with what each round reached."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"method": method, "seed": 0}))
    sent = {"up_bytes": size, "down_bytes": 1000, "slowest_bytes": size, "up_floats": size / 4}
    lines = [{"round": n, **sent, "seconds": 1.0, "clock": 0.0, **each} for n, each in enumerate(reached, 1)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "summary.json").write_text("{}")


@pytest.fixture
def study(tmp_path: Path) -> list[Arm]:
    """Two methods, three rounds each. A client sent 20 bytes a round by the first method, and 60 by the second."""
    for share, size in ((0.1, 20), (0.5, 60)):
        reached: list[dict[str, float | None]] = [
            {"accuracy": share, "test_loss": math.log(n) + share} for n in (2, 4, 6)
        ]
        lying(tmp_path / str(share), f"FedAvg(up=TopK({share}))", size, *reached)
    return arms([tmp_path])


def test_perplexity_is_the_mean_over_evaluations_of_e_to_the_loss(study: list[Arm]) -> None:
    name, value, (line,) = sweep.sweep(study, of="perplexity")
    assert (name, value, sweep.NAMES[value]) == ("up.share", "perplexity", "test perplexity, e to the test loss")
    e = {share: math.exp(share) for share in (0.1, 0.5)}
    assert [(p.at, p.mean) for p in line.points] == [(share, pytest.approx(4 * e[share])) for share in e]


def test_what_was_reached_is_any_value_that_the_runs_have(study: list[Arm]) -> None:
    assert sweep.sweep(study)[1] == "accuracy"
    _, value, (line,) = sweep.sweep(study, of="loss")
    assert value == "test_loss"
    assert line.points[0].mean == pytest.approx(math.log(48) / 3 + 0.1)
    with pytest.raises(ValueError, match=r"--of dice: these runs have accuracy, test_loss, perplexity$"):
        sweep.sweep(study, of="dice")


@pytest.mark.parametrize(
    ("across", "name", "at"),
    [
        ("bytes", "MB sent, both directions", [3060e-6, 3180e-6]),
        ("bytes_up", "MB sent by clients", [60e-6, 180e-6]),
        ("floats_up", "millions of floats sent by clients", [15e-6, 45e-6]),
    ],
)
def test_methods_are_drawn_by_what_they_sent(study: list[Arm], across: str, name: str, at: list[float]) -> None:
    called, _, (line,) = sweep.sweep(study, across)
    assert called == name
    assert [point.at for point in line.points] == pytest.approx(at)


@pytest.mark.parametrize("across", [None, "bytes_up"])
def test_of_methods_that_differ_in_what_was_tuned_the_best_is_drawn(across: str | None, tmp_path: Path) -> None:
    """Two shares at two rates each. What a method sends differs a little by its rate, as entropy codes do."""
    for share, lr, size, accuracy in (
        (0.1, 0.1, 20, 0.3),
        (0.1, 0.2, 21, 0.4),
        (0.5, 0.1, 60, 0.6),
        (0.5, 0.2, 63, 0.5),
    ):
        text = f"FedAvg(LocalSGD({lr}), up=TopK({share}))"
        lying(tmp_path / f"{share} {lr}", text, size, {"accuracy": accuracy})
    _, _, (line,) = sweep.sweep(arms([tmp_path]), across, "local.lr")
    at = [0.1, 0.5] if across is None else [21e-6, 60e-6]
    assert [(p.at, p.mean) for p in line.points] == [(at[0], pytest.approx(40)), (at[1], pytest.approx(60))]


def test_a_line_of_one_method_is_named_as_that(tmp_path: Path) -> None:
    methods = ("FedAvg()", "FedAvg(up=LBGM(threshold=0.4))", "LUAR(FedAvg(), recycle=1)", "LUAR(FedAvg(), recycle=2)")
    for number, method in enumerate(methods):
        lying(tmp_path / str(number), method, number + 1, {"accuracy": 0.5})
    _, _, lines = sweep.sweep(arms([tmp_path]), "bytes")
    assert [line.name for line in lines] == [*methods[:2], "LUAR, FedAvg"]
    assert [len(line.points) for line in lines] == [1, 1, 2]


def test_a_method_that_diverged_is_nan_and_never_the_best_of_what_was_tuned(tmp_path: Path) -> None:
    """Its loss was the lowest, before it overflowed."""
    for share in (0.1, 0.5):
        for name, lr, losses in (("a", 9.0, (1.0, None)), ("b", 0.1, (4.0, 3.0))):
            method = f"FedAvg(local=LocalSGD({lr}), up=TopK({share}))"
            lying(tmp_path / f"{name}{share}", method, 20, *({"test_loss": loss} for loss in losses))
    _, value, (line,) = sweep.sweep(arms([tmp_path]), "up.share", "local.lr")
    assert (value, [(p.at, p.mean) for p in line.points]) == ("test_loss", [(0.1, 3.5), (0.5, 3.5)])
    for of in ("test_loss", "perplexity"):
        _, _, lines = sweep.sweep(arms([tmp_path / "a0.1", tmp_path / "a0.5"]), of=of)
        assert all(math.isnan(point.mean) for point in lines[0].points)
