"""A method that a run chooses: within its budget, the same when written out, and gone on with bit for bit."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import processes
import thinwire as tw
from thinwire import Auto, FedAvg, LocalSGD, Params, PerClient, Setting, TransformCoding
from thinwire.algorithms import auto
from thinwire.algorithms.auto import SPLITS, Verdict
from thinwire.algorithms.choice import CODECS, Choice, Coding, Measured, best_codec, distance_off
from thinwire.algorithms.runnable import check_runnable
from thinwire.data import Dirichlet
from thinwire.errors import CombinationError, RunError
from thinwire.federated.auto_run import Chosen
from thinwire.problem import Problem, standard
from thinwire.report import html
from thinwire.studies import Federated
from thinwire.studies.predict import Rehearsal
from thinwire.wire import length

LOCAL = LocalSGD(0.05, batch=8)
METHOD = Auto(0.05, LOCAL)
ROUNDS = 12  # the split is chosen anew after 10


def small() -> Problem:
    whole = standard("digits", "mlp", 6, Dirichlet(0.3), 0)
    return replace(whole, tasks=[replace(task, indices=task.indices[:24]) for task in whole.tasks])


PROBLEM = small()


def trained(method: Any, rounds: int = ROUNDS, **own: Any) -> tw.Result:
    own = {"sample": 2, "workers": 1, "evaluate_every": 6, "seed": 1} | own
    return tw.simulate(method, PROBLEM.model, PROBLEM.tasks, rounds, **own)


def moved(rounds: int = ROUNDS, **own: Any) -> tw.Result:
    """A run that begins with a fifth of its bytes upwards, four times as far off as the split that it goes on with."""

    def choose(self: Auto, found: Measured, key: tw.Key, before: Choice | None = None) -> Verdict:
        with patch.object(auto, "SPLITS", SPLITS if before else (0.2,)):
            return chosen(self, found, key, before)

    chosen = Auto.choose
    with patch.object(Auto, "choose", choose):
        return trained(METHOD, rounds, **own)


def plain(result: tw.Result) -> list[dict[str, Any]]:
    """The records, without seconds of this machine and without what was chosen; no test set is evaluated."""
    return [{name: x for name, x in r.items() if name not in ("seconds", "chosen")} for r in result.rounds]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tw.Result:
    return moved(out=tmp_path_factory.mktemp("auto") / "run", checkpoint_every=5)


@pytest.mark.slow
def test_all_bytes_stay_within_the_share_of_fedavgs(whole: tw.Result) -> None:
    dense = trained(FedAvg(LOCAL), evaluate_every=ROUNDS)
    assert 0.045 * dense.ledger.bytes() < whole.ledger.bytes() <= 0.05 * dense.ledger.bytes()
    assert whole.ledger.bytes() == whole.bytes_up + whole.bytes_down
    assert {entry.direction for entry in whole.ledger.of(round=1)} == {"up", "down"}  # first contacts are in it


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "sample"), [(0.02, 1), (0.3, 6)])
def test_other_budgets_and_cohorts_hold_too(budget: float, sample: int) -> None:
    rounds = 2
    dense = trained(FedAvg(LOCAL), rounds, sample=sample, evaluate_every=rounds)
    spent = trained(Auto(budget, LOCAL), rounds, sample=sample, evaluate_every=rounds)
    assert spent.ledger.bytes() <= budget * dense.ledger.bytes()


@pytest.mark.slow
def test_bytes_of_a_visit_are_a_budget() -> None:
    result = trained(Auto(local=LOCAL, bytes=900), 3)
    visits = [(entry.round, entry.client) for entry in result.ledger.of("up")]
    assert len(visits) == 6
    for number, client in visits:
        sums = [entry.total for entry in result.ledger.of(round=number) if entry.client == client]
        assert sum(sums) <= 900


@pytest.mark.slow
def test_seconds_of_a_visit_are_a_budget_at_the_slowest_clients_rates() -> None:
    rates = tw.Network(mbit=(0.3, 0.3, 0.3, 0.2, 0.3, 0.3), down=1.0)
    result = trained(Auto(local=LOCAL, seconds=0.1), 3, network=rates, sample=3)
    clocks = [0.0, *(r["clock"] for r in result.rounds)]
    assert max(after - before for before, after in pairwise(clocks)) <= 0.1
    with pytest.raises(ValueError, match=r"seconds need the rates of links; give the run a network"):
        trained(Auto(local=LOCAL, seconds=0.1), 3)


@pytest.mark.slow
def test_the_expression_of_a_run_trains_the_same_bits_and_that_of_its_first_choice_until_the_second(
    whole: tw.Result,
) -> None:
    first, second = whole.chosen
    assert (first["round"], second["round"]) == (1, 11)
    assert first["expression"] != second["expression"]
    for made, rounds in ((first, 10), (second, ROUNDS)):
        assert made["start"] == "known"
        alone = trained(tw.expression.parse(made["expression"]), rounds, start="known")
        assert plain(alone) == plain(whole)[:rounds]
        entries = [[e for e in result.ledger if e.round <= rounds] for result in (alone, whole)]
        assert entries[0] == entries[1]
    assert torch.equal(alone.params.flat, whole.params.flat)


def test_a_second_choice_moves_bytes_between_directions_and_nothing_else(whole: tw.Result) -> None:
    one, other = (tw.expression.parse(made["expression"]).inner for made in whole.chosen)
    switches = [other.up.inner, other.down.inner]
    assert [switch.rounds for switch in switches] == [10, 10]
    assert [switch.first for switch in switches] == [one.up.inner, one.down.inner]
    ways = [[getattr(switch, name) for switch in switches] for name in ("first", "then")]
    assert {type(link) for way in ways for link in way} == {TransformCoding}
    assert abs(sum(link.bytes for link in ways[0]) - sum(link.bytes for link in ways[1])) <= 1
    ups = [max(e.payload for e in whole.ledger.of("up", number)) for number in (10, 11)]
    assert ups[0] != ups[1]


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "states"), [(10, "memory"), (11, "disk")])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(
    whole: tw.Result, stop: int, states: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    moved(stop, out=out, checkpoint_every=4, states=states)
    again = moved(out=out, resume=True, checkpoint_every=5, states=states)
    assert torch.equal(again.params.flat, whole.params.flat)
    assert list(again.ledger) == list(whole.ledger)
    assert again.chosen == whole.chosen


def test_another_budget_is_another_run(whole: tw.Result) -> None:
    with pytest.raises(RunError, match=r"its method.budget is 0.05, not 0.2"):
        trained(Auto(0.2, LOCAL), out=whole.path, resume=True)


@pytest.mark.slow
def test_records_summary_and_report_say_what_was_chosen_and_why(
    whole: tw.Result, caplog: pytest.LogCaptureFixture
) -> None:
    assert whole.path is not None
    summary = json.loads((whole.path / "summary.json").read_text())
    assert (summary["name"], summary["start"]) == ("Auto(0.05, local=LocalSGD(0.05, batch=8))", "known")
    assert summary["chosen"] == whole.chosen
    assert [r["round"] for r in whole.rounds if "chosen" in r] == [1, 11]
    assert whole.chosen[0]["why"][0].startswith("A visit may take 1,933.")
    assert whole.chosen[0]["why"][-1] == "Error feedback: what a client has left out it adds to its next update."
    page = html.gather([whole.path])
    assert [one["label"] for one in page["expressions"]] == ["Auto(0.05)"] + 2 * ["Auto(0.05), seed 1"]
    assert [method["label"] for method in page["methods"]] == ["Auto(0.05)"]
    assert [name for name, _ in page["setting"]][-2:] == ["Auto(0.05), seed 1, round 1", "Auto(0.05), seed 1, round 11"]
    with caplog.at_level(logging.INFO, "thinwire"):
        Chosen(METHOD, PROBLEM.model, PROBLEM.tasks, Setting(sample=2, workers=1)).close()
    assert "round 1: Auto(0.05, local=LocalSGD(0.05, batch=8)) is Averaged(FedAvg(" in caplog.text
    assert "A rehearsal of 2 clients took" in caplog.text


def test_a_run_is_read_back_from_its_folder(whole: tw.Result) -> None:
    assert whole.path is not None
    assert whole.served is not None
    found = tw.load(whole.path, PROBLEM.model)
    inputs = PROBLEM.tasks[0].batch(torch.arange(3))[0]
    assert found.served is not None
    assert torch.equal(found.module(inputs), whole.module(inputs))
    assert torch.equal(found.served(inputs), whole.served(inputs))


def test_a_study_takes_it_as_a_method() -> None:
    method = Federated.method("Auto(0.05)", (), {"lr": 0.3})
    assert method == Auto(0.05, LocalSGD(0.3))
    assert Federated.resolve(["Auto(0.05)"])[0].startswith("Auto(budget=0.05, local=LocalSGD(")
    study = Federated(Federated.resolve(["Auto(seconds=2)"]), clients=3)
    with pytest.raises(ValueError, match=r'seconds need the rates of links; give --network "Network\(mbit=1\)"'):
        study.check()


def doubles() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)).double()  # 387 parameters of 8 bytes


class Three(nn.Module):
    """Three parameters: a message of them is shorter than its header."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3] * self.w


def shares(dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    each = [(torch.randn(16, 20, generator=g), torch.randint(0, 3, (16,), generator=g)) for _ in range(4)]
    return [(x.to(dtype), y) for x, y in each]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.15, 0.6])
def test_the_budget_of_a_model_in_64_bits_is_a_share_of_its_own_bytes(budget: float) -> None:
    sums = [
        tw.simulate(method, doubles, shares(torch.float64), 2, sample=2, workers=1).ledger.bytes()
        for method in (Auto(budget, LOCAL), FedAvg(LOCAL))
    ]
    assert sums[0] <= budget * sums[1]
    assert sums[0] > (0.5 if budget < 0.5 else 0.1) * budget * sums[1]


def test_a_model_smaller_than_its_headers_is_told_how_many_bytes_a_visit_takes() -> None:
    with pytest.raises(
        ValueError, match=r"FedAvg itself sends little more: give bytes=\d+ in place of the budget$"
    ) as error:
        tw.simulate(Auto(0.9, LOCAL), Three, shares(), 1, sample=2, workers=1)
    enough = int(str(error.value).partition("bytes=")[2].split()[0])
    for most in (enough, 10**6):
        found = tw.simulate(Auto(bytes=most, local=LOCAL), Three, shares(), 1, sample=2, workers=1)
        assert (
            max(up.total + down.total for up, down in zip(*map(found.ledger.of, ("up", "down")), strict=True)) <= most
        )


def test_noise_that_would_not_hide_what_a_rehearsal_saw_is_refused() -> None:
    with pytest.raises(CombinationError, match=r"Auto\(0.1.*updates of clients to which no noise was added") as error:
        trained(Auto(0.1, LOCAL), 1, privacy=tw.Privacy(clip=1, noise=1))
    instead = tw.parse(str(error.value).partition("such as ")[2])
    assert trained(instead, 1, privacy=tw.Privacy(clip=1, noise=1)).ledger.bytes() > 0
    study = Federated(Federated.resolve(["Auto(0.05)"]), clients=3, setting=Setting(privacy=tw.Privacy(1, 1)))
    with pytest.raises(CombinationError, match="no noise was added"):
        study.check()


@pytest.mark.deployment
def test_where_no_examples_are_it_says_to_type_the_method_that_was_chosen(tmp_path: Path) -> None:
    lines = [
        "import thinwire as tw",
        "from torch import nn",
        "from thinwire.deploy.client import Node",
        "from thinwire.deploy.server import Deployment",
        "auto, model, task = tw.Auto(0.1), nn.Linear(2, 2), ([[0.0, 1.0]], [0])",
        "calls = [lambda: Deployment(auto, model, 3), lambda: Node(auto, model, task, 'x')]",
        "for call in (*calls, lambda: tw.start(auto, model, [task])):",
        "    try:",
        "        call()",
        "    except ValueError as error:",
        "        print(error)",
    ]
    said = processes.program("\n".join(lines), cwd=tmp_path).stdout.splitlines()  # where annotations are not checked
    assert len(said) == 3
    assert set(said) == {
        "Auto(0.1) is chosen with the clients' examples, by simulate() and `thinwire run`; here give the method "
        "written out: `thinwire plan` prints it, and the summary of a simulation has it as `chosen`"
    }


def test_it_is_no_method_that_a_server_or_a_client_can_run() -> None:
    with pytest.raises(ValueError, match="is chosen with the clients' examples, by simulate"):
        check_runnable(Auto(0.1))


@pytest.mark.slow
def test_a_prediction_spends_seconds_at_the_rates_that_it_was_given() -> None:
    sums = []
    for up in (1.0, 0.25):
        found = Rehearsal(PROBLEM, 2, 2, mbit=1.0, mbit_up=up).predict(Auto(local=LOCAL, seconds=0.06))
        sums.append(found.message_up[1] + found.message_down[1])
        assert found.seconds[1] <= 2 * 0.06
    assert sums[0] > sums[1]


@pytest.mark.slow
def test_what_answers_in_place_of_training_rehearses_too() -> None:
    asked = []

    def train(request: tw.Local, task: tw.Task, key: tw.Key) -> tw.Trained:
        asked.append(key.round)
        return tw.Trained(request.x + request.x * 0.01, 1, 0.0)

    result = trained(Auto(0.1, LOCAL), 1, train=train)
    assert len(asked) > 2  # two of them are the run's
    assert result.ledger.bytes() > 0


@pytest.mark.slow
def test_too_small_a_budget_is_refused_with_one_that_is_enough() -> None:
    with pytest.raises(ValueError, match=r"Auto\(0.001.*raise budget to 0\.0\d+$") as error:
        trained(Auto(0.001, LOCAL), 1)
    enough = float(str(error.value).rpartition(" ")[2])
    assert trained(Auto(enough, LOCAL), 1).ledger.bytes() > 0
    with pytest.raises(ValueError, match=r"raise bytes to \d+$") as error:
        trained(Auto(bytes=100, local=LOCAL), 1)
    assert trained(Auto(bytes=int(str(error.value).rpartition(" ")[2]), local=LOCAL), 1).ledger.bytes() > 0


def test_it_is_typed_and_shown() -> None:
    assert (repr(Auto()), repr(Auto(0.02)), repr(Auto(bytes=900))) == ("Auto(0.01)", "Auto(0.02)", "Auto(bytes=900)")
    for method in (Auto(), Auto(bytes=900, local=LOCAL), Auto(seconds=2)):
        assert tw.expression.parse(repr(method)) == method
        assert tw.expression.parse(tw.config.complete(method)) == method
    with pytest.raises(ValueError, match="give one of budget"):
        Auto(0.01, bytes=900)
    with pytest.raises(ValueError, match="at most 1"):
        Auto(2.0)
    with pytest.raises(ValueError, match="must be positive"):
        Auto(bytes=0)


# -- the choice, of values that were made up --------------------------------------------


def layers(matrix: torch.Tensor) -> Params:
    return Params.of([("w", matrix)])


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))


def measured(rank: int | None, **own: Any) -> Measured:
    """Two clients' updates of a layer of 64 x 64, of a rank or full of noise."""

    def update(seed: int) -> Params:
        a = drawn(seed)
        return layers(a if rank is None else a[:, :rank] @ drawn(9)[:rank] + 0.01 * drawn(seed + 20))

    changes = [update(0), update(1)]
    given: dict[str, Any] = {"clients": 10, "sample": 2, "dense": (16_500, 16_500), "fixed": (100, 100), "rates": None}
    given |= {"replies": 1.0, "lost": False, "movement": changes[0] + changes[1]}
    return Measured(changes=changes, **(given | own))


@pytest.mark.slow
def test_low_rank_gets_low_rank_and_a_large_budget_gets_plain_floats() -> None:
    thin = Auto(0.05, LOCAL).choose(measured(4), tw.Key(0)).choice
    assert (thin.up.codec, thin.down.codec, thin.feedback, thin.stream) == ("transform", "transform", True, False)
    assert thin.up.bytes + thin.down.bytes <= 1_650 - 200
    every = Auto(0.05, LOCAL).choose(measured(4, sample=10), tw.Key(0)).choice
    assert (every.feedback, every.stream) == (True, True)
    lost = Auto(0.05, LOCAL).choose(measured(4, sample=10, lost=True), tw.Key(0)).choice
    assert (lost.feedback, lost.stream) == (True, False)
    # 4 x 4,096 bytes and a header fit in both directions.
    wide = Auto(1.0, LOCAL).choose(measured(None, dense=(17_000, 17_000)), tw.Key(0)).choice
    assert (wide.up.codec, wide.down.codec) == ("dense", "dense")
    assert Auto(1.0, LOCAL).method(wide) == tw.Averaged(FedAvg(LOCAL), 0.8)


@pytest.mark.slow
def test_the_downlink_gets_more_where_the_model_moves_further_while_a_client_is_away() -> None:
    found = measured(None)
    far = found._replace(movement=found.movement * 10.0)
    method = Auto(0.1, LOCAL)
    near, wide = (method.choose(each, tw.Key(0)).choice for each in (found, far))
    assert near.down.bytes < wide.down.bytes
    assert near.up.bytes > wide.up.bytes


@pytest.mark.slow
def test_the_uplink_gets_more_where_updates_have_in_common_what_a_codec_leaves_out() -> None:
    found = measured(None)
    alike = found._replace(changes=[found.changes[0]] * 2)
    method = Auto(0.1, LOCAL)
    apart, same = (method.choose(each, tw.Key(0)).choice for each in (found, alike))
    assert same.up.bytes > apart.up.bytes


@pytest.mark.parametrize(("other", "expected"), [((4.0, -1.0), 11.0), ((4.0, 1.0), 101.0), ((4.0, 0.0), 6.0)])
def test_how_far_models_are_off(other: tuple[float, float], expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # A codec that keeps the larger of two entries. (4, 1) leaves (0, 1), then of (4, 2) leaves (0, 2): 4. Movement
    # (3, 1) leaves 1. Of 10 clients 2 take part.
    #   (4, 1), (4, -1): nothing in common, 10 / 2^2 x 4 + 1 = 11
    #   (4, 1) twice: all in common, (10 / 2)^2 x 4 + 1 = 101
    #   (4, 1), (4, 0): nothing in common by (2 x 1 - 2) / 1, 10 / 2^2 x (4 + 0) / 2 + 1 = 6
    monkeypatch.setitem(CODECS, "larger", lambda bytes: tw.TopK(0.5))
    changes = [layers(torch.tensor(values)) for values in ((4.0, 1.0), other)]
    found = measured(None)._replace(changes=changes, movement=layers(torch.tensor([3.0, 1.0])))
    way = Coding("larger", 0)
    assert distance_off(found, Choice(way, way, True, False), tw.Key(0)) == expected


@pytest.mark.parametrize(
    ("asked", "ahead"),
    [
        # A reply and a broadcast of FedAvg are 330,000 bytes, half a percent of which are 1,650.
        (Auto(0.004, LOCAL), 0.5),
        (Auto(0.0051, LOCAL), 0.0),
        (Auto(local=LOCAL, bytes=1_600), 0.5),
        (Auto(local=LOCAL, bytes=1_700), 0.0),
        # At 1 Mbit/s up and 10 down they take 1.452 s, half a percent of which are 7.26 ms.
        (Auto(local=LOCAL, seconds=0.0072), 0.5),
        (Auto(local=LOCAL, seconds=0.0073), 0.0),
        (Auto(0.004, LOCAL, detach=0.0), 0.0),
        (Auto(0.05, LOCAL, detach=0.25), 0.25),
    ],
    ids=repr,
)
def test_clients_begin_ahead_where_bytes_are_few_or_by_what_is_asked(asked: Auto, ahead: float) -> None:
    found = measured(4, dense=(165_000, 165_000), rates=(1.0, 10.0))
    first = asked.choose(found, tw.Key(0)).choice
    assert first.feedback
    assert ("Detached" in repr(asked.method(first)), first.ahead) == (ahead > 0, ahead)
    assert asked.choose(found._replace(movement=found.movement * 20.0), tw.Key(0), first).choice.ahead == ahead


def test_nobody_begins_ahead_of_what_all_owe_alike() -> None:
    found = measured(4, dense=(165_000, 165_000))
    alike = found._replace(changes=[found.changes[0]] * 2)
    choose = [Auto(0.004, LOCAL, **given).choose for given in ({}, {"detach": 0.5})]
    for some, ahead in ((found, [0.5, 0.5]), (alike, [0.0, 0.5])):
        assert [one(some, tw.Key(0)).choice.ahead for one in choose] == ahead


def test_seconds_are_spent_at_the_rate_of_each_direction() -> None:
    # At 1 Mbit/s up 8e-6 s a byte, at 10 Mbit/s down 0.8e-6 s a byte.
    found = measured(4, rates=(1.0, 10.0))
    way = Auto(local=LOCAL, seconds=0.02).choose(found, tw.Key(0)).choice
    assert 0.0199 < 8e-6 * (way.up.bytes + 100) + 0.8e-6 * (way.down.bytes + 100) <= 0.02
    with pytest.raises(ValueError, match=r"a visit may take 0.001 s.*raise seconds to 0.00\d+$"):
        Auto(local=LOCAL, seconds=0.001).choose(found, tw.Key(0))


@pytest.mark.slow
def test_of_splits_that_are_about_as_good_the_fastest_at_the_slowest_clients_rates_is_taken() -> None:
    # Updates that any split codes without error, so all are as good: what is left to choose by is time.
    zero = layers(torch.zeros(64, 64))
    found = measured(4)._replace(changes=[zero, zero], movement=zero)
    method = Auto(0.1, LOCAL)
    slow_up, slow_down = (method.choose(found._replace(rates=r), tw.Key(0)) for r in ((0.3, 1.0), (1.0, 0.3)))
    assert slow_up.choice.up.bytes < slow_up.choice.down.bytes
    assert slow_down.choice.up.bytes > slow_down.choice.down.bytes
    assert any("the fastest for the slowest client is taken" in why for why in slow_up.why)
    # Where one split is better by far, rates change nothing.
    found = measured(None)
    far = found._replace(movement=found.movement * 10.0)
    choices = [method.choose(far._replace(rates=r), tw.Key(0)).choice for r in (None, (1.0, 0.01))]
    assert choices[0] == choices[1]


@pytest.mark.slow
def test_a_run_with_dropouts_spends_the_share_of_what_fedavg_sends_with_the_same() -> None:
    about: dict[str, Any] = {"dropout": 0.6, "sample": 4, "evaluate_every": 9}
    dense, spent = (trained(method, 9, **about).ledger.bytes() for method in (FedAvg(LOCAL), Auto(0.1, LOCAL)))
    assert 0.085 * dense < spent < 0.105 * dense  # the average holds: of 36 replies some more or less are lost


@pytest.mark.slow
def test_a_split_stays_unless_another_is_better_by_a_twentieth() -> None:
    method, found = Auto(0.1, LOCAL), measured(2)
    first = method.choose(found, tw.Key(0)).choice
    again = method.choose(found, tw.Key(0), first)
    assert again.choice == first
    assert again.why[-1] == "The split stays: no other is better by a twentieth."
    odd = Choice(Coding("transform", 64), Coding("transform", 64), False, False)
    after = method.choose(measured(None), tw.Key(0), odd).choice
    assert after.up.bytes > 64


@pytest.mark.slow
def test_a_second_choice_stays_with_the_first_where_headers_have_grown_beyond_the_budget() -> None:
    method, found = Auto(0.1, LOCAL), measured(2)
    first = method.choose(found, tw.Key(0)).choice
    assert method.choose(found._replace(fixed=(3_200, 100)), tw.Key(0), first).choice == first


@pytest.mark.parametrize("codec", ["half", "dense"])
def test_a_second_choice_leaves_room_for_a_codec_whose_packets_have_one_length(codec: str) -> None:
    near, whole = measured(None), {"half": 8_400, "dense": 16_400}[codec]  # 2 or 4 x 4,096 bytes, and a header
    found = near._replace(movement=near.movement * 10.0)
    method = Auto(local=LOCAL, bytes=whole + 9_000)
    for first in (
        Choice(Coding("transform", 1_000), Coding(codec, whole), False, False),
        Choice(Coding(codec, whole), Coding("transform", 1_000), False, False),
    ):
        again = method.choose(found, tw.Key(0), first).choice
        assert again != first, "there is room for more"
        for way, x in ((again.up, found.changes[0]), (again.down, found.movement)):
            assert length(CODECS[way.codec](way.bytes).send(x, None, tw.Key(0))[0]) <= way.bytes
        assert again.up.bytes + again.down.bytes + sum(found.fixed) <= whole + 9_000


def many_layers() -> Measured:
    """Of 124 layers of 6 x 6 and 6 entries, of which Budget sends each: more than 2,100 bytes at their cheapest."""
    g = torch.Generator().manual_seed(0)

    def draw() -> Params:
        return Params.of([(str(n), torch.randn(*(6, 6)[n % 2 :], generator=g)) for n in range(124)])

    return Measured([draw(), draw()], draw(), 8, 3, (10_500, 10_500), (100, 100), None, 1.0, False)


def test_a_second_choice_keeps_to_splits_in_which_every_layer_has_room() -> None:
    found, method = many_layers(), Auto(local=LOCAL, bytes=8_000)
    first = Choice(Coding("budget", 3_900), Coding("budget", 3_900), False, False)
    again = method.choose(found._replace(movement=found.movement * 10.0), tw.Key(0), first).choice
    assert again != first
    for way, x in ((again.up, found.changes[0]), (again.down, found.movement)):
        assert length(CODECS[way.codec](way.bytes).send(x, None, tw.Key(0))[0]) <= way.bytes


def test_a_codec_is_taken_only_where_later_messages_have_room_too() -> None:
    # The layers of a rehearsal are zero but one, and take fewer bytes than those of later rounds.
    found = many_layers()
    few = [x.zeros().replace(x.only(["0"])) for x in found.changes]
    for bytes in range(1_000, 3_000, 100):
        coding = best_codec(bytes, few, tw.Key(0), False)
        CODECS[coding.codec](bytes).send(found.changes[0], None, tw.Key(0))  # raises where it does not hold them


@pytest.mark.slow
@pytest.mark.parametrize("absolute", [False, True])
def test_halves_are_taken_only_where_they_fit_layers_and_all(absolute: bool) -> None:
    # 40 layers of 8 entries: 640 bytes of halves, and 124 of structure.
    g = torch.Generator().manual_seed(0)
    changes = [Params.of([(str(n), torch.randn(8, generator=g)) for n in range(40)]) for _ in range(2)]
    for most, expected in ((720, False), (764, True)):
        found = best_codec(most, changes, tw.Key(0), absolute)
        assert (found.codec == "half") == expected
        assert length(CODECS[found.codec](most).send(changes[0], None, tw.Key(0))[0]) <= most


def test_what_a_choice_is_written_as() -> None:
    coded = Choice(Coding("transform", 4000), Coding("transform", 16000), True, False)
    assert repr(Auto(0.01, LOCAL).method(coded)) == (
        "Averaged(FedAvg(LocalSGD(0.05, batch=8), up=ErrorFeedback(TransformCoding(4000)), "
        "down=PerClient(TransformCoding(16000))), decay=0.8)"
    )
    stream = coded._replace(feedback=False, stream=True, up=Coding("budget", 4000))
    assert repr(Auto(0.01, LOCAL).method(stream)) == (
        "Averaged(FedAvg(LocalSGD(0.05, batch=8), up=Budget(4000), down=EF21(TransformCoding(16000))), decay=0.8)"
    )
    assert PerClient(TransformCoding(16000)).absolute
    later = coded._replace(up=Coding("transform", 8000))  # the downlink stays
    assert repr(Auto(0.01, LOCAL).method(coded, (10, later))) == (
        "Averaged(FedAvg(LocalSGD(0.05, batch=8), up=ErrorFeedback(Switch(TransformCoding(4000), "
        "then=TransformCoding(8000), rounds=10)), down=PerClient(TransformCoding(16000))), decay=0.8)"
    )
