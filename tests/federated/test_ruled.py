"""Rules in place of the mean, and attacks, in simulations, by hand and in deployments: one result, to the bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thinwire as tw
from blobs import assert_same_model, blobs, mlp, normed, random_layers
from problems import handwriting
from problems import mlp as digits
from test_every_method import FIRST, LEFT_OPEN, options
from test_federation import Parties, Still, held, method, pulls
from thinwire import CenteredClip, GeometricMedian, Krum, Median, MultiKrum, NormClip, Simulation, TrimmedMean
from thinwire.deploy.server import Deployment
from thinwire.errors import CombinationError, RunError
from thinwire.federated import Privacy
from thinwire.federated.ruled import Suspects, expel, follow

PLAIN = "FedAvg(LocalSGD(0.2, batch=8))"
TEN = (12,) * 10


def train(expression: str = PLAIN, rounds: int = 3, sizes: Any = TEN, **asked: Any) -> tw.Result:
    *tasks, test = blobs((*sizes, 60))
    asked = {"seed": 5, "test": test, "workers": 1, "plan": "each"} | asked
    return tw.simulate(tw.parse(expression, {"lr": 0.2, "batch": 8}), mlp, tasks, rounds, **asked)


# -- what a rule is given, and what becomes of it ------------------------------------------


@pytest.mark.parametrize("up", ["Dense()", "TopK(1.0)", "LBGM()", "EF21(TopK(1.0))"])
def test_a_rule_is_given_what_the_server_decodes_of_each_client(up: str) -> None:
    algorithm = tw.parse(f"FedAvg(LocalSGD(1.0), up={up})")
    made = {
        aggregate: tw.simulate(algorithm, Still, pulls(3.0, 1.0, 2.0, 4.0, -90.0), 1, aggregate=aggregate, workers=1)
        for aggregate in (Median(), TrimmedMean(0.2), Krum(1), NormClip(2.5), CenteredClip(2.5, steps=1))
    }
    values = [result.params.flat.item() for result in made.values()]
    shortened = (2.5 + 1 + 2 + 2.5 - 2.5) / 5
    assert values == [pytest.approx(x) for x in (2.0, 2.0, 3.0, shortened, shortened)]
    assert [result.rounds[0]["far"] for result in made.values()] == [[4]] * 5


def test_replies_of_linear_links_are_decoded_one_by_one_and_the_mean_as_a_rule_is_the_mean_of_packets() -> None:
    for up in ("Dense()", "RandK(0.5)", "Half()"):
        plain = train(f"FedAvg(LocalSGD(0.2, batch=8), up={up})")
        named = train(f"FedAvg(LocalSGD(0.2, batch=8), up={up})", aggregate=tw.Mean())
        assert_same_model(plain, named)
        ruled = train(f"FedAvg(LocalSGD(0.2, batch=8), up={up})", aggregate=TrimmedMean(0.0))  # all weigh the same
        torch.testing.assert_close(ruled.params.flat, plain.params.flat, rtol=1e-4, atol=1e-5)
        assert [r["up_bytes"] for r in ruled.rounds] == [r["up_bytes"] for r in plain.rounds]


def test_norm_statistics_are_aggregated_but_by_rules_that_shorten() -> None:
    def statistics(aggregate: Any) -> Any:
        tasks = blobs()
        run = Simulation(method("FedAvg(weights='uniform')"), normed, tasks, seed=5, workers=1, aggregate=aggregate)
        with run.pool:
            run.step(evaluate=False)
        return run.buffers.flat.numpy()

    mean, median, clipped = statistics(None), statistics(Median()), statistics(NormClip(1e-3))
    np.testing.assert_allclose(clipped, mean, rtol=1e-5)
    assert np.abs(median - mean).max() > 1e-3


def test_a_field_that_is_summed_counts_as_many_times_as_there_are_replies() -> None:
    plain = train("SCAFFOLD(weights='uniform')", 2)
    ruled = train("SCAFFOLD(weights='uniform')", 2, aggregate=TrimmedMean(0.0))
    torch.testing.assert_close(ruled.params.flat, plain.params.flat, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("expression", FIRST, ids=str)
def test_every_method_is_ruled_or_refused_with_the_reason(expression: str) -> None:
    algorithm = tw.parse(expression, LEFT_OPEN)
    asked = options(algorithm) | {"dropout": 0.0, "workers": 1, "sample": None, "test": None}
    refused = {"SoftPull", "ClusteredLBGM", "FedSM", "FedSMExtra", "Ensemble", "FedPM"}
    if type(algorithm).__name__ not in refused:
        result = tw.simulate(algorithm, digits, handwriting()[0], 2, aggregate=CenteredClip(), **asked)
        assert ["far" in record for record in result.rounds] == [True, True]
        return
    with pytest.raises(CombinationError, match=r"takes each client's|is a value as it is"):
        tw.simulate(algorithm, digits, handwriting()[0], 2, aggregate=CenteredClip(), **asked)


# -- the same wherever clients are ----------------------------------------------------------


EVERYWHERE = [
    ("FedAvg()", Median(), mlp),
    ("FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6))", tw.Krum(0), mlp),
    ("SCAFFOLD()", GeometricMedian(), mlp),
    ("LUAR(FedAvg(opt=Adam(0.03)), recycle=1)", CenteredClip(), mlp),
    ("FedAvg(up=RandK(0.5))", CenteredClip(0.3), normed),
]


@pytest.mark.parametrize(("expression", "rule", "model"), EVERYWHERE, ids=[row[0] for row in EVERYWHERE])
def test_a_deployment_and_rounds_by_hand_are_the_simulation(
    expression: str, rule: Any, model: Any, tmp_path: Path
) -> None:
    parties = Parties(expression, tmp_path, model, aggregate=rule)
    for number in range(3):
        parties.round()
        if number == 1:
            parties.serve()  # again, with what is on its disk
    asked: dict[str, Any] = {"test": blobs((60,))[0], "seed": 5, "workers": 1, "plan": "each", "aggregate": rule}
    run = Simulation(method(expression), model, blobs(), **asked)
    with run.pool:
        for _ in range(3):
            run.step()
    assert parties.held() == held(run)
    for left, right in zip(parties.server.records, run.records, strict=True):
        for name in right.keys() - {"seconds"}:
            assert left[name] == right[name], name

    own, tasks = method(expression), blobs()
    server, client = tw.start(own, model, tasks, seed=5)
    states = [client] * 6
    for record in run.records:
        replies = []
        for number, task in enumerate(tasks):
            reply, states[number] = tw.client_round(own, server.view, states[number], task, number)
            replies.append(reply)
        server = tw.server_round(own, server, replies, aggregate=rule)
        assert list(server.far) == record["far"]
    assert torch.equal(own.model(server.state).flat, own.model(run.server).flat)


RESUMED: list[tuple[str, Any]] = [
    ("FedAvg(up=LBGM())", tw.SignFlip(0.2, 10.0)),
    ("FedAvg(up=ErrorFeedback(TopK(0.3)))", tw.ALIE(0.2, 1.5)),
    ("Auto(0.7)", tw.SignFlip(0.2, 10.0)),
]


@pytest.mark.parametrize(
    ("expression", "attack"),
    [pytest.param(*row, id=row[0], marks=[pytest.mark.soak] if "Auto" in row[0] else []) for row in RESUMED],
)
def test_a_run_that_is_resumed_has_the_bits_of_one_that_is_not(expression: str, attack: Any, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"aggregate": CenteredClip(), "attack": attack, "expel": 4, "states": "disk"}
    rounds = 12 if expression.startswith("Auto") else 6  # whose second choice is made after round 10
    whole = train(expression, rounds, out=tmp_path / "whole", **asked)
    train(expression, rounds // 2, out=tmp_path / "parts", **asked)
    parts = train(expression, rounds, out=tmp_path / "parts", resume=True, **asked)
    assert_same_model(whole, parts)
    names = ("far", "accuracy", "up_bytes")
    assert [[r[n] for n in names] for r in whole.rounds] == [[r[n] for n in names] for r in parts.rounds]
    assert [r.get("expelled") for r in whole.rounds] == [r.get("expelled") for r in parts.rounds]
    for name, other in (("aggregate", Median()), ("attack", None), ("expel", 3), ("aggregate", None)):
        changed = {**asked, name: other} | ({"expel": None} if other is None and name == "aggregate" else {})
        with pytest.raises(RunError, match=f"is another run: its ({name}|expel)"):
            train(expression, rounds + 1, out=tmp_path / "parts", resume=True, **changed)


def test_hostile_clients_that_know_the_others_know_the_same_in_one_process_and_in_several() -> None:
    results = [
        tw.simulate(
            method(PLAIN), random_layers, blobs(TEN), 2, workers=n, attack=tw.IPM(0.3), aggregate=Median(), seed=5
        )
        for n in (1, 2)
    ]
    assert_same_model(*results)


# -- who is far off again and again -----------------------------------------------------------


def test_strikes_are_rounds_one_after_another_of_those_that_replied() -> None:
    strikes = follow({}, [0, 1, 2], [1])
    assert strikes == {1: 1}
    strikes = follow(strikes, [0, 2], [2])  # client 1 was away
    assert strikes == {1: 1, 2: 1}
    strikes = follow(strikes, [0, 1, 2], [1])
    assert strikes == {1: 2}
    assert follow(strikes, [], [1, 3]) == {1: 3, 3: 1}  # refused: there is no reply of theirs


def test_the_worst_are_expelled_first_as_many_as_there_is_room_for() -> None:
    assert expel([], {1: 3, 2: 5}, 3, 4) == [1, 2]
    assert expel([], {1: 3, 2: 5}, 4, 4) == [2]
    assert expel([], {1: 3, 2: 5}, None, 4) == []
    assert expel([7], {1: 3, 2: 5, 3: 4}, 3, 2) == [2, 7]
    assert expel([], {0: 9, 1: 9}, 3, 0) == []


@pytest.mark.parametrize(
    ("clients", "rule", "room"), [(10, None, 4), (7, Median(), 3), (2, None, 0), (7, Krum(2), 0), (8, Krum(2), 1)]
)
def test_of_those_who_are_left_there_is_a_majority_and_as_many_as_a_rule_needs(
    clients: int, rule: Any, room: int
) -> None:
    suspects = Suspects(1, clients, rule)
    suspects.strikes = dict.fromkeys(range(clients), 1)
    assert suspects.judge(None, []).get("expelled", []) == list(range(room))


def test_a_rule_that_needs_every_client_goes_on_making_steps() -> None:
    asked: dict[str, Any] = {"aggregate": MultiKrum(2), "expel": 1, "sizes": TEN[:8]}
    result = train(rounds=4, attack=tw.SignFlip(0.25, scale=10), **asked)
    assert [len(record["far"]) for record in result.rounds] == [2, 1, 1, 1]
    assert not any("too_few" in record for record in result.rounds)
    assert len(result.rounds[-1]["expelled"]) == 1


def test_who_is_far_off_again_and_again_is_named_and_left_out() -> None:
    asked: dict[str, Any] = {"aggregate": Median(), "attack": tw.SignFlip(0.2, scale=10)}
    hostile = sorted(asked["attack"].hostile(10, 5))
    named = train(rounds=6, **asked)
    assert [record["far"] for record in named.rounds] == [hostile] * 6
    assert [record.get("again") for record in named.rounds[1:4]] == [
        None,
        [[client, 3] for client in hostile],
        [[client, 4] for client in hostile],
    ]
    left_out = train(rounds=6, expel=4, **asked)
    assert [record["clients"] for record in left_out.rounds] == [10, 10, 10, 10, 8, 8]
    assert [record.get("expelled") for record in left_out.rounds] == [None, None, None, *[hostile] * 3]
    assert left_out.rounds[5]["far"] == []


def test_a_deployment_names_and_leaves_out_a_client_whose_answers_are_refused(tmp_path: Path) -> None:
    parties = Parties("FedAvg()", tmp_path, expel=3)
    server = parties.server
    for _ in range(4):
        for client, call in server.begin().items():
            answer = parties.node(client).answer(call)
            if client == 2:
                with pytest.raises(tw.errors.WireError):
                    server.accept(client, answer[:-3])
            else:
                server.accept(client, answer)
        parties.end()
    assert [record["clients"] for record in server.records] == [6, 6, 6, 5]
    assert server.records[2]["again"] == [[2, 3]]
    assert [record.get("expelled") for record in server.records] == [None, None, [2], [2]]
    parties.serve()
    assert parties.server.suspects.expelled == [2]
    assert 2 not in parties.server.begin()


def test_a_round_with_fewer_replies_than_a_rule_needs_makes_no_step_and_says_so() -> None:
    result = train(rounds=8, aggregate=Krum(2), sample=7, dropout=0.3, seed=1)
    few = [record.get("too_few") for record in result.rounds]
    assert any(few)
    assert not all(few)
    for before, record in zip(result.rounds, result.rounds[1:], strict=False):
        assert (record["test_loss"] == before["test_loss"]) == bool(record.get("too_few"))
        if record.get("too_few"):
            assert record["too_few"] == 7 - record["lost_replies"] < 7


def test_a_round_with_too_few_replies_clears_nobody() -> None:
    asked: dict[str, Any] = {"attack": tw.SignFlip(0.2, scale=10), "aggregate": Krum(2), "sample": 8, "dropout": 0.15}
    result = train(rounds=12, seed=1, **asked)
    strikes, cleared = dict[int, int](), False
    for number, record in enumerate(result.rounds, 1):
        replied = {entry.client for entry in result.ledger.of("up", number)}
        if record.get("too_few"):
            cleared = cleared or bool(replied & strikes.keys())  # whom it might have cleared
            continue
        strikes = {c: n for c, n in strikes.items() if c not in replied} | {
            c: strikes.get(c, 0) + 1 for c in record["far"]
        }
        assert dict(record.get("again", [])) == {c: n for c, n in strikes.items() if n >= 3}
    assert cleared


# -- refusals ---------------------------------------------------------------------------------


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("SoftPull(FedAvg(), lam=0.6)", {"aggregate": Median()}, "the server takes each client's inner/update by itself"),
    ("ClusteredLBGM(8)", {"aggregate": Median()}, "the server takes each client's whole by itself"),
    ("FedSM()", {"aggregate": NormClip()}, "shortens changes, and first in the replies of FedSM"),
    (PLAIN, {"aggregate": Krum(4)}, "Krum(4) needs 11 replies a round, and 10 of the clients take part"),
    (PLAIN, {"aggregate": Krum(2), "sample": 6}, "Krum(2) needs 7 replies a round, and 6 of the clients take part"),
    (
        "FedAvg(weights='uniform')",
        {"aggregate": Median(), "privacy": Privacy(1.0, 1.0)},
        "aggregate=Median(): the noise of Privacy(1.0, noise=1.0) is that of a mean",
    ),
    (PLAIN, {"expel": 3}, "expel=3: it goes by how far replies are from what aggregate= makes of them"),
    (PLAIN, {"aggregate": Median(), "expel": 3, "cohort": [[0]]}, "expel=3: the cohort is given"),
    (PLAIN, {"attack": tw.SignFlip(0.05)}, "0.05 of 10 clients is less than one"),
    (PLAIN, {"attack": tw.RhoFlip()}, "is an attack on LBGM, which no uplink is: FedAvg(up=LBGM()) has one"),
    (PLAIN, {"attack": tw.ResidualFlip()}, "is an attack on ErrorFeedback, which no uplink is"),
    ("SoftPull(FedAvg(), lam=0.6)", {"attack": tw.SignFlip()}, "bends fields of layers that are averaged"),
]


@pytest.mark.parametrize(("expression", "asked", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_has_no_meaning_is_refused_with_the_reason(expression: str, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        train(expression, 1, **asked)


def test_masks_are_not_shortened() -> None:
    tasks = blobs()
    with pytest.raises(CombinationError, match="mask in the replies of FedPM"):
        Simulation(tw.FedPM(), mlp, tasks, aggregate=NormClip())
    Simulation(tw.FedPM(), mlp, tasks, aggregate=Median()).close()


def test_a_deployment_refuses_what_a_simulation_does() -> None:
    with pytest.raises(ValueError, match=re.escape("Krum(2) needs 7 replies a round, and 6 of the clients")):
        Deployment(method("FedAvg()"), mlp, 6, aggregate=Krum(2))
    with pytest.raises(ValueError, match=re.escape("Krum(1) needs 5 replies a round, and 4 of the clients")):
        Deployment(method("FedAvg()"), mlp, 6, aggregate=Krum(1), take=4)
    with pytest.raises(CombinationError, match="takes each client's"):
        Deployment(method("SoftPull(FedAvg(), lam=0.6)"), mlp, 6, aggregate=Median())
    server, client = tw.start(method("SoftPull(FedAvg(), lam=0.6)"), mlp, blobs())
    with pytest.raises(CombinationError, match="takes each client's"):
        tw.server_round(method("SoftPull(FedAvg(), lam=0.6)"), server, [], aggregate=Median())
    assert client is not None


def test_a_run_says_its_rule_and_its_attack_in_its_folder_and_others_say_neither(tmp_path: Path) -> None:
    train(rounds=1, out=tmp_path / "plain")
    train(rounds=1, out=tmp_path / "ruled", aggregate=Median(), attack=tw.SignFlip(0.2), expel=5)
    plain, ruled = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("plain", "ruled"))
    assert {"aggregate", "attack", "expel"} & set(plain) == set()
    assert [ruled[name] for name in ("aggregate", "attack", "expel")] == [
        "Median()",
        "SignFlip(share=0.2, scale=1.0)",
        5,
    ]
