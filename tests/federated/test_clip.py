"""How long a reply may be: what was recorded, what "auto" makes of it, and what a minority can do to that."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from blobs import blobs, mlp, normed
from problems import handwriting
from problems import mlp as digits
from test_every_method import FIRST, LEFT_OPEN, options
from test_federation import METHODS, Parties, PerStep, Still, held, method, pulls
from thinwire import Privacy, Simulation
from thinwire.algorithms.around import Around
from thinwire.deploy.server import Deployment
from thinwire.errors import CombinationError, RunError
from thinwire.federated import clip
from thinwire.report import html

norms = st.floats(0, 1e6)


@given(honest=st.lists(st.lists(norms, min_size=6, max_size=6), min_size=1, max_size=8), hostile=st.data())
def test_four_hostile_clients_of_ten_keep_the_bound_within_that_of_the_honest_norms(honest: Any, hostile: Any) -> None:
    past: clip.Past = {}
    for number, own in enumerate(honest):
        others = hostile.draw(st.lists(st.one_of(norms, st.sampled_from([0.0, 1e28])), min_size=4, max_size=4))
        replies = [{"update": norm} for norm in [*others[:2], *own, *others[2:]]]
        (bound,) = clip.bounds(past, replies).values()
        newest = [norm for norms in honest[max(0, number - 4) : number + 1] for norm in norms]
        assert 1.99 * min(newest) <= bound <= 2.01 * max(newest)
        past = clip.following(past, replies)
        assert [len(rounds) for rounds in past.values()] == [min(5, number + 1)]


def test_the_bound_is_two_lower_medians_of_the_newest_five_rounds() -> None:
    replies = [{"a": 1.0, "b": 8.0}, {"a": 2.0}, {"a": 4.0, "b": 2.0}, {"a": 100.0}]
    assert clip.bounds({}, replies) == {"a": 4.0, "b": 4.0}
    past = {"a": [[9.0], [9.0], [9.0], [9.0], [9.0]], "c": [[2.0]]}
    assert clip.bounds(past, replies) == {"a": 18.0, "c": 4.0, "b": 4.0}  # 1, 2, 4, 9, 9, 9, 9, 100
    assert clip.following(past, replies)["a"] == [[9.0], [9.0], [9.0], [9.0], [1.0, 2.0, 4.0, 100.0]]
    assert clip.quantiles(replies) == {"a": [1.0, 1.0, 2.0, 4.0, 100.0], "b": [2.0, 2.0, 2.0, 2.0, 8.0]}


@pytest.mark.parametrize("up", ["Dense()", "TopK(1.0)", "LBGM()", "EF21(TopK(1.0))"])
def test_replies_count_as_if_they_were_as_long_as_the_bound_and_the_record_says_so(up: str) -> None:
    algorithm = tw.parse(f"FedAvg(LocalSGD(1.0), up={up}, weights='uniform')")
    result = tw.simulate(algorithm, Still, pulls(3.0, 1.0, -50.0), 1, clip="auto", workers=1)
    assert result.params.flat.tolist() == [pytest.approx((3 + 1 - 6) / 3)]
    record = {name: result.rounds[0][name] for name in ("norms", "clip", "clipped")}
    assert record == {"norms": {"update": [1.0, 1.0, 3.0, 3.0, 50.0]}, "clip": {"update": 6.0}, "clipped": 1}


def test_a_number_is_the_clip_of_a_simulation_and_without_one_norms_are_recorded_alone() -> None:
    algorithm = tw.parse("FedAvg(LocalSGD(1.0), weights='uniform')")
    plain, bound = (tw.simulate(algorithm, Still, pulls(3.0, 1.0, -50.0), 1, clip=c, workers=1) for c in (None, 2.0))
    assert plain.params.flat.tolist() == [pytest.approx(-46 / 3)]
    assert bound.params.flat.tolist() == [pytest.approx((2 + 1 - 2) / 3)]
    norms = {"update": [1.0, 1.0, 3.0, 3.0, 50.0]}
    assert (plain.rounds[0]["norms"], bound.rounds[0]["norms"]) == (norms, norms)
    assert {"clip", "clipped"} & set(plain.rounds[0]) == set()
    assert (bound.rounds[0]["clip"], bound.rounds[0]["clipped"]) == (2.0, 2)


@pytest.mark.parametrize("expression", METHODS)
def test_a_deployment_bounds_as_a_simulation_does(expression: str, tmp_path: Path) -> None:
    parties = Parties(expression, tmp_path, normed, sample=3, clip="auto")
    for _ in range(3):
        parties.round()
    options: dict[str, Any] = {"sample": 3, "test": blobs((60,))[0], "seed": 5, "workers": 1, "plan": "each"}
    run = Simulation(method(expression), normed, blobs(), clip="auto", **options)
    with run.pool:
        for _ in range(3):
            run.step()
    assert parties.held() == held(run)
    for left, right in zip(parties.server.records, run.records, strict=True):
        assert {"norms", "clip", "clipped"} <= set(right)
        for name in right.keys() - {"seconds"}:
            assert left[name] == right[name], name


@dataclass(frozen=True)
class Hostile(Around):
    """The first clients send ten times the opposite."""

    inner: tw.Algorithm
    clients: int = 4

    def client(self, view: Any, state: Any, task: Any, key: tw.Key) -> Any:
        reply, state = yield from self.inner.client(view, state, task, key)
        return (reply._replace(update=reply.update * -10.0) if key.client < self.clients else reply), state


def hostile(rounds: int, hostile: int = 4, **options: Any) -> tw.Result:
    algorithm = Hostile(tw.parse("FedAvg(LocalSGD(0.2, batch=8))"), hostile)
    *tasks, test = blobs((12,) * 10 + (60,))
    options = {"seed": 5, "test": test, "workers": 1, "plan": "each"} | options
    return tw.simulate(algorithm, mlp, tasks, rounds, **options)


def test_ten_times_the_opposite_ruins_a_run_without_a_bound_and_not_one_with_auto() -> None:
    honest, ruined, bound = hostile(8, 0), hostile(8, 1), hostile(8, 1, clip="auto")
    assert honest.accuracy is not None
    assert ruined.accuracy is not None
    assert bound.accuracy is not None
    assert ruined.accuracy < honest.accuracy - 0.2
    assert bound.accuracy > honest.accuracy - 0.1
    assert [record["clipped"] for record in bound.rounds] == [1] * 8


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_run_that_is_resumed_has_the_bounds_of_one_that_is_not(states: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"clip": "auto", "sample": 4, "states": states}
    whole = hostile(6, out=tmp_path / "whole", **options)
    hostile(3, out=tmp_path / "parts", **options)
    parts = hostile(6, out=tmp_path / "parts", resume=True, **options)
    assert whole.params.flat.equal(parts.params.flat)
    names = ("norms", "clip", "clipped", "accuracy")
    assert [[r[n] for n in names] for r in whole.rounds] == [[r[n] for n in names] for r in parts.rounds]
    for other in (None, 1.0):
        with pytest.raises(RunError, match=re.escape(f"is another run: its clip is auto, not {other}")):
            hostile(7, out=tmp_path / "parts", resume=True, **{**options, "clip": other})


@pytest.mark.parametrize("expression", FIRST, ids=str)
def test_every_method_is_bound_by_the_medians_of_its_fields(expression: str) -> None:
    algorithm = tw.parse(expression, LEFT_OPEN)
    asked = options(algorithm) | {"dropout": 0.0, "workers": 1}
    first, second = tw.simulate(algorithm, digits, handwriting()[0], 2, clip="auto", **asked).rounds
    assert first["norms"]
    assert first["clip"] == {name: pytest.approx(2 * found[2], rel=1e-3) for name, found in first["norms"].items()}
    for name, found in second["norms"].items():
        ends = [found, *([first["norms"][name]] if name in first["norms"] else [])]
        lowest, highest = min(end[0] for end in ends), max(end[-1] for end in ends)
        assert 1.99 * lowest <= second["clip"][name] <= 2.01 * highest
    assert 0 <= second["clipped"] <= second["clients"]


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 3e18, 1e25])
def test_a_norm_that_is_recorded_alone_is_right_to_four_digits_however_long(scale: float) -> None:
    algorithm = tw.parse("FedAvg(LocalSGD(1.0), weights='uniform')")
    result = tw.simulate(algorithm, Still, pulls(3 * scale, scale), 1, workers=1)
    assert result.rounds[0]["norms"]["update"] == [pytest.approx(x * scale, rel=1e-3) for x in (1, 1, 1, 1, 3)]


def test_the_report_counts_replies_that_arrived_as_the_longer_ones_are_of_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clip": "auto", "workers": 1, "dropout": 0.5, "seed": 3}
    result = tw.simulate(tw.FedAvg(tw.LocalSGD(1.0)), Still, pulls(3.0, 1.0, -50.0, 2.0), 3, out=tmp_path, **options)
    assert sum(record["lost_replies"] for record in result.rounds) > 0
    arrived = len({(e.round, e.client) for e in result.ledger if e.direction == "up"})
    (said,) = [text for name, text in html.gather([tmp_path])["setting"] if name.startswith("Clipped")]
    assert f" of {arrived} were longer" in said


def test_the_report_says_how_long_replies_were_and_how_many_were_longer(tmp_path: Path) -> None:
    algorithm = tw.parse("FedAvg(LocalSGD(1.0), weights='uniform')")
    tw.simulate(algorithm, Still, pulls(3.0, 1.0, -50.0), 2, clip="auto", workers=1, out=tmp_path)
    found = html.gather([tmp_path])
    said = dict(found["setting"])
    assert said["Clipping"] == "replies to twice their median norm of five rounds"
    norms = "1 to 50, half of them 1 to 3, median 3, at most 6 counts"
    own = {name: text for name, text in said.items() if name.startswith(("Norms of replies", "Clipped"))}
    assert list(own.values()) == [
        f"round 1: {norms}; round 2: {norms}",
        "2 of 6 were longer than the bound, and counted as if they were as long",
    ]
    assert all("seed 0" in name for name in own)


def test_a_deployment_that_is_started_again_has_the_bounds_of_one_that_is_not(tmp_path: Path) -> None:
    whole, parts = (Parties("FedAvg()", tmp_path / name, sample=3, clip="auto") for name in ("whole", "parts"))
    for number in range(4):
        whole.round()
        parts.round()
        if number == 1:
            parts.serve()
    assert [r["clip"] for r in whole.server.records] == [r["clip"] for r in parts.server.records]
    assert whole.held() == parts.held()
    lines = [json.loads(line) for line in (tmp_path / "parts/server/rounds.jsonl").read_text().splitlines()]
    assert [line["norms"] for line in lines] == [record["norms"] for record in whole.server.records]


def test_what_has_no_bound_or_another_is_refused_with_the_reason() -> None:
    private = Privacy(1.0, 1.0)
    for call in (
        lambda **k: Simulation(method("FedAvg(weights='uniform')"), mlp, blobs(), **k),
        lambda **k: Deployment(method("FedAvg(weights='uniform')"), mlp, 6, **k),
    ):
        with pytest.raises(ValueError, match=re.escape(f"clip=auto: {private!r} has a clip of its own")):
            call(clip="auto", privacy=private)
        for bad in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"^clip={bad}: a norm is positive, or 'auto'$"):
                call(clip=bad)
    for noise in (0.0, 1.0):
        said = "'auto' is the clip of a run without Privacy, whose noise needs one that depends on no client's data"
        with pytest.raises(ValueError, match=said):
            tw.parse(f"Privacy(clip='auto', noise={noise})")
    with pytest.raises(CombinationError, match="clip= bounds fields of layers"):
        Simulation(PerStep(), Still, pulls(1.0, 2.0), clip="auto")
    with pytest.raises(CombinationError, match="clip= bounds fields of layers"):
        Deployment(PerStep(), Still, 2, clip="auto")


def test_layers_that_no_reply_has_leave_their_field_without_a_norm() -> None:
    expression = "FLSS(FedAvg(up=ErrorFeedback(ScaledSign())), rank=1, start=1, every=2)"
    options: dict[str, Any] = {"seed": 5, "workers": 1, "plan": "each", "clip": "auto"}
    result = tw.simulate(method(expression), mlp, blobs(), 4, **options)
    assert [sorted(record["norms"]) for record in result.rounds] != [sorted(result.rounds[0]["norms"])] * 4
    assert all(torch.isfinite(result.params.flat))
