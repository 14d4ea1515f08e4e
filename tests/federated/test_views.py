"""A downlink per client: what each is sent, what is kept of it, and that both ends hold the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from elsewhere import AWAY, LOCAL, TASKS, Start, assert_the_same_elsewhere, deployed, model, node, simulated
from thinwire.deploy.server import Deployment
from thinwire.errors import CombinationError, OutOfSync
from thinwire.federated.envelope import read_call
from thinwire.federated.messages import Form
from thinwire.federated.stream import View, catch_up
from thinwire.federated.views import Views, visit
from thinwire.problem import Problem
from thinwire.run.folder import Folder
from thinwire.studies.predict import Rehearsal
from tiers import tiers

OWN = f"FedAvg({LOCAL}, down=PerClient(TopK(0.2)))"
METHODS = [
    OWN,
    f"FedAvg({LOCAL}, up=ErrorFeedback(TopK(0.2)), down=PerClient(TransformCoding(120)))",
    f"SCAFFOLD({LOCAL}, down={{'x': PerClient(TopK(0.2))}})",
    f"LUAR(FedAvg({LOCAL}, down=PerClient(LowRank(1))), recycle=1, layers='tensors')",
    f"Averaged(Ditto({LOCAL}, down=PerClient(RandK(0.5))))",
]


def plain() -> nn.Module:
    return nn.Linear(40, 3)  # 123 parameters, 492 bytes


# -- what it comes to -------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["sent", "known"])
@pytest.mark.parametrize("method", ["FedAvg({}, down={})", "SCAFFOLD({}, down={})", "FedDC({}, down={})"])
def test_a_client_that_is_sent_everything_trains_the_streams_model_bit_for_bit(method: str, start: Start) -> None:
    own = simulated(method.format(LOCAL, "PerClient(Dense())"), start)
    stream = simulated(method.format(LOCAL, "Dense()"), start)
    assert own.params.flat.equal(stream.params.flat)
    assert [r["train_loss"] for r in own.rounds] == [r["train_loss"] for r in stream.rounds]


def test_a_budget_above_dense_is_dense() -> None:
    own = simulated(f"FedAvg({LOCAL}, down=PerClient(TransformCoding(1000)))")
    assert own.params.flat.equal(simulated(f"FedAvg({LOCAL})").params.flat)


def test_clients_that_begin_from_different_points_are_trained_as_one_too() -> None:
    each, together = (simulated(OWN, module=plain, plan=plan) for plan in ("each", "together"))
    assert torch.allclose(together.params.flat, each.params.flat, atol=1e-6)
    assert not each.params.flat.equal(simulated(f"FedAvg({LOCAL})", module=plain).params.flat)


def test_processes_train_what_threads_do() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(40, 3), nn.Dropout(0.2))

    one, two = (simulated(OWN, module=dropping, workers=workers) for workers in (1, 2))
    assert one.params.flat.equal(two.params.flat)


# -- what is sent -----------------------------------------------------------------------------


def test_nothing_is_sent_of_a_start_that_is_known_and_one_message_for_a_whole_absence() -> None:
    # TopK(0.2) of 123 parameters and 6: 492 + 24 bytes are dense; 26 values are 104 bytes.
    known, sent = simulated(OWN, "known"), simulated(OWN, "sent")
    payload = {(e.round, e.client): e.payload for e in known.ledger if e.direction == "down"}
    assert payload[1, 0] == 0
    assert [key for key, size in payload.items() if size >= 250] == []  # a message, and 24 bytes of statistics
    assert all(size > 120 for key, size in payload.items() if key != (1, 0))
    whole = {(e.round, e.client) for e in sent.ledger if e.direction == "down" and e.payload > 516}
    assert whole == {(1, 0), (2, 1), (4, 2)}  # first contacts


def test_a_call_of_a_client_that_was_away_for_long_is_no_more_bytes() -> None:
    own, stream = (
        {
            (e.round, e.client): e.payload
            for e in simulated(text, cohort=[[0, 1], [0], [0], [0], [0, 1]]).ledger
            if e.direction == "down"
        }
        for text in (OWN, OWN.replace("PerClient", "EF21"))
    )
    assert own[5, 0] < 250
    assert own[5, 1] < 250
    assert stream[5, 1] > 516  # four messages are more than a snapshot


def test_bytes_by_layer_of_messages_of_each_clients_own_add_up() -> None:
    for record in simulated(OWN, record="bytes").rounds:
        assert sum(record["layer_bytes"]["down"].values()) == record["down_payload"]


def test_a_call_costs_what_is_worked_out_by_hand() -> None:
    # a half takes part: away for 1, 2, 3 rounds with probability 1/2, 1/4, 1/8, ...; a snapshot is 3 messages
    # 100 (1/2) + 200 (1/4) + 300 (1/8 + 1/8) = 175
    assert visit(100, 300, 0.5) == (175.0, 100.0)
    assert visit(100, 300, 1.0) == (100.0, 100.0)
    assert visit(400, 300, 0.5) == (300.0, 300.0)


@pytest.mark.parametrize(
    ("link", "sample", "form"),
    [
        ("TopK(0.1)", 1, "per client"),
        ("TopK(0.1)", 3, "stream"),  # all take part
        ("Dense()", 1, "stream"),  # a message is the model
    ],
)
def test_the_form_that_is_left_open_is_that_of_fewer_bytes(link: str, sample: int, form: str) -> None:
    text = f"FedAvg({LOCAL}, down=PerClient({link}, auto=True))"
    run = tw.Simulation(tw.parse(text), plain, TASKS, sample=sample, workers=1)
    assert run.facts()["downlink"] == form
    found = simulated(text, module=plain, cohort=None, sample=sample)
    plainly = text.replace(", auto=True", "")
    expected = plainly if form == "per client" else plainly.replace("PerClient", "EF21") if link != "Dense()" else text
    assert found.params.flat.equal(simulated(expected, module=plain, cohort=None, sample=sample).params.flat)


@pytest.mark.parametrize(
    "about", [{"dropout": 0.5}, {"network": tw.Network(mbit=1.0, deadline=2.0)}], ids=["dropout", "deadline"]
)
def test_the_form_that_is_left_open_is_per_client_where_replies_are_lost(about: dict[str, Any]) -> None:
    method = tw.parse(f"FedAvg({LOCAL}, down=PerClient(TopK(0.1), auto=True))")
    run = tw.Simulation(method, plain, TASKS, workers=1, **about)  # all take part
    assert run.facts()["downlink"] == "per client"


def test_a_prediction_knows_both_forms() -> None:
    problem = Problem(plain, [tw.Supervised(*task) for task in TASKS], None)
    own, stream = (
        Rehearsal(problem, 12, 1, start="known").predict(tw.parse(f"FedAvg({LOCAL}, down={down}(TopK(0.1)))"))
        for down in ("PerClient", "EF21")
    )
    assert own.per_client
    assert not stream.per_client
    assert own.bytes_down[1] < stream.bytes_down[0]
    assert own.message_down[1] < 200  # 12 values, 48 bytes, and a header


# -- what is lost, what goes on -----------------------------------------------------------------


def views(seed: int, rounds: int = 8, clients: int = 3) -> None:
    """A schedule drawn at random: whose calls and answers are lost, when the server is started anew."""
    draw = random.Random(seed)
    method: Any = tw.parse(draw.choice(METHODS[:4]))
    known, module = draw.random() < 0.5, plain()
    x = tw.Params.trainable(module)
    start = method.init_with(x, None, clients, tw.Key(seed))
    message = method.broadcast(start.server, start.view)
    form = Form.of(message, method.down, "down")
    server = Views(method, form, start, None, tw.Key(seed), known)
    ends = dict.fromkeys(range(clients), (0, server.end))  # the server's
    held: dict[int, View] = dict.fromkeys(range(clients), server.begun)  # the clients'
    values = form.values(message)
    g = torch.Generator().manual_seed(seed)
    for number in range(1, rounds + 1):
        values = [
            value.map(lambda v: v + torch.randn(v.shape, generator=g)) if isinstance(value, tw.Params) else value
            for value in values
        ]
        server.publish(form.build(values)[0], None, tw.Key(seed, number))
        for client in range(clients):
            if draw.random() < 0.4:  # not called
                continue
            version, end = ends[client]
            parcel = server.parcel(version, end)
            if draw.random() < 0.2:  # the call is lost
                continue
            view = catch_up(method, form, held[client], parcel, tw.Key(seed))
            if draw.random() < 0.2:  # the answer is lost
                continue
            ends[client], held[client] = (number, parcel.end), view
            assert tw.dumps(server.view_of(*ends[client]).rx) == tw.dumps(view.rx)
        if draw.random() < 0.3:
            saved = tw.dumps([server.state(), ends])
            again = Views(method, form, start, None, tw.Key(seed), known)
            state, packets = tw.loads(saved, finite=False)
            again.load(state, tw.Key(seed))
            ends = {client: tw.restore(packet, (0, again.end)) for client, packet in packets.items()}
            server = again


@pytest.mark.parametrize("seed", range(25))
def test_both_ends_hold_the_same_whatever_was_lost(seed: int) -> None:
    views(seed)


@pytest.mark.soak
def test_both_ends_hold_the_same_after_two_thousand_schedules() -> None:
    for seed in range(2000):
        views(seed)


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize("text", METHODS)
def test_a_run_that_goes_on_is_the_run_that_never_stopped(text: str, states: str, tmp_path: Path) -> None:
    start: Start = "known" if states == "memory" else "sent"
    expected = simulated(text, start)
    method, about = tw.parse(text), {"start": start, "states": states, "workers": 1, "plan": "each"}
    for rounds in (1, 3, 5):
        found = tw.simulate(
            method, model, TASKS, rounds, cohort=AWAY, out=tmp_path, resume=rounds > 1, checkpoint_every=2, **about
        )
    assert found.params.flat.equal(expected.params.flat)
    assert list(found.ledger) == list(expected.ledger)


def test_replies_that_are_lost_leave_a_run_that_goes_on(tmp_path: Path) -> None:
    about: dict[str, Any] = {"seed": 3, "dropout": 0.4, "workers": 1, "plan": "each"}
    expected = tw.simulate(tw.parse(OWN), model, TASKS, 6, **about)
    assert sum(record["lost_replies"] for record in expected.rounds) > 3
    for rounds in (2, 6):
        found = tw.simulate(tw.parse(OWN), model, TASKS, rounds, out=tmp_path, resume=rounds > 2, **about)
    assert found.params.flat.equal(expected.params.flat)
    assert list(found.ledger) == list(expected.ledger)


# -- clients elsewhere ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("start", ["sent", "known"])
@pytest.mark.parametrize("text", tiers(METHODS, slow=3))
def test_clients_elsewhere_are_sent_what_a_simulation_sends(text: str, start: Start, tmp_path: Path) -> None:
    assert_the_same_elsewhere(text, start, tmp_path)


def test_calls_and_answers_that_are_lost_leave_both_ends_as_they_were(tmp_path: Path) -> None:
    # Client 1 is called in rounds 2 and 3 too; the first of these calls is lost, and the answer to the second.
    server = deployed(OWN, "sent", tmp_path)
    for number in range(1, 5):
        calls = server.begin(range(2))
        for client, call in calls.items():
            if client == 1 and number == 2:
                continue
            answer = node(OWN, client, tmp_path).answer(call)
            if client == 1 and number == 3:
                continue
            assert server.accept(client, answer)
        server.end()
    kept = tw.simulate(tw.parse(OWN), model, TASKS, 4, cohort=[[0, 1], [0], [0], [0, 1]], workers=1, plan="each")
    assert server.algorithm.model(server.server).flat.equal(kept.params.flat)


@pytest.mark.parametrize("start", ["sent", "known"])
def test_clients_that_never_answer_take_no_memory_of_a_deployment_with_files(start: Start, tmp_path: Path) -> None:
    def large() -> nn.Module:
        return nn.Linear(1_000, 25)  # 100 kB

    text = f"FedAvg({LOCAL}, down=PerClient(TransformCoding(1000)))"
    server = Deployment(tw.parse(text), large, 20, sample=4, states=tmp_path / "states", start=start)
    folder = Folder(tmp_path)
    server.open(folder, resume=False)
    for number in range(5):
        server.begin(range(4 * number, 4 * number + 4))
        folder.append(server.end(), server.ledger.lines(server.round))
        server.save(folder)
    assert not server.pending
    assert (
        tmp_path / "checkpoint"
    ).stat().st_size < 400_000  # the server's model, its view and the newest broadcast, not twenty more


@pytest.mark.slow
def test_an_answer_that_comes_after_the_server_was_started_anew_is_taken(tmp_path: Path) -> None:
    text, models = METHODS[1], []  # its calls are coded: the answer commits what the server has to know of the call
    for way in ("whole", "anew"):
        server, late = deployed(text, "known", tmp_path / way), b""
        for number, cohort in enumerate([(0, 1, 2), (0, 1, 2), (0, 1), (0, 1, 2)], 1):
            calls = server.begin(cohort)
            if number == 3:
                assert server.accept(2, late)
            for client, call in calls.items():
                answer = node(text, client, tmp_path / way).answer(call)
                if (number, client) == (2, 2):
                    late = answer
                else:
                    assert server.accept(client, answer)
            record = server.end()
            assert server.folder is not None
            server.folder.append(record, server.ledger.lines(server.round))
            server.save(server.folder)
            if way == "anew":
                server = deployed(text, "known", tmp_path / way)
        models.append(server.algorithm.model(server.server).flat)
    assert models[0].equal(models[1])
    assert not list((tmp_path / "anew" / "s" / "states" / "unanswered").glob("*/*.thinwire"))


def delivered(text: str, start: Start, seed: int, folder: Path) -> list[torch.Tensor]:
    """The models of rounds in which calls and answers are lost or late and server and clients are started anew."""
    draw, late, models = random.Random(seed), list[tuple[int, bytes]](), list[torch.Tensor]()
    server = deployed(text, start, folder)
    for _ in range(6):
        fates = [draw.random() for _ in range(3)]
        calls = server.begin([client for client in range(3) if draw.random() < 0.8])
        used = [server.accept(client, answer) for client, answer in late]
        assert used == [client not in calls for client, _ in late]  # who was called again is not waited for
        late = []
        for client, call in calls.items():
            if fates[client] < 0.2:  # the call is lost
                continue
            answer = node(text, client, folder).answer(call)
            if fates[client] < 0.4:  # the answer is lost
                continue
            if fates[client] < 0.6:  # it comes a round later
                late.append((client, answer))
                continue
            assert server.accept(client, answer)
        record = server.end()
        models.append(server.algorithm.model(server.server).flat)
        assert server.folder is not None
        server.folder.append(record, server.ledger.lines(server.round))
        server.save(server.folder)
        if draw.random() < 0.4:
            server = deployed(text, start, folder)
    return models


@pytest.mark.slow
@pytest.mark.parametrize(("start", "seed"), [("sent", 1), ("known", 3)])
def test_what_is_lost_or_late_leaves_the_streams_model_bit_for_bit(start: Start, seed: int, tmp_path: Path) -> None:
    stream, own = (
        delivered(f"FedAvg({LOCAL}, down={down})", start, seed, tmp_path / down)
        for down in ("Dense()", "PerClient(Dense())")
    )
    assert all(a.equal(b) for a, b in zip(own, stream, strict=True))


def test_a_client_that_lost_what_it_held_is_sent_everything_again(tmp_path: Path) -> None:
    server = deployed(OWN, "sent", tmp_path)
    for number in range(2):
        for client, call in server.begin(range(2)).items():
            found = node(OWN, client, tmp_path / f"{number if client else 0}")  # client 1 has a new disk
            try:
                assert server.accept(client, found.answer(call))
            except OutOfSync:
                assert (client, number) == (1, 1)
                call = server.reopen(client)
                assert (read_call(call).base, read_call(call).snapshot) == (0, True)
                assert server.accept(client, found.answer(call))
        server.end()


@pytest.mark.parametrize("text", [METHODS[0], METHODS[2], METHODS[3]])
def test_rounds_by_hand_are_those_of_a_simulation(text: str) -> None:
    method = tw.parse(text)
    server, client = tw.start(method, model, TASKS)
    states = [client] * 3
    sent = []
    for cohort in AWAY:
        replies = []
        for number in cohort:
            reply, states[number] = tw.client_round(method, server.view, states[number], TASKS[number], number)
            replies.append(reply)
            sent.append(len(reply.alone))
        server = tw.server_round(method, server, replies)
    expected = simulated(text)
    assert method.model(server.state).flat.equal(expected.params.flat)
    assert sent == [entry.payload for entry in expected.ledger if entry.direction == "down"]


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FedMut(down=PerClient())", "needs broadcasts each of which is whole by itself"),
        ("Intrinsic(5, down=PerClient())", "needs broadcasts each of which is whole by itself"),
        ("FLSS(FedAvg(down=PerClient()), rank=1, start=1)", "needs broadcasts each of which is whole by itself"),
        ("FedAvg(up=PerClient())", "PerClient is for broadcasts"),
        ("FedAvg(down=Layerwise(PerClient()))", "PerClient goes around other links, not into them"),
        ("SCAFFOLD(down={'x': PerClient(), 'c': EF21()})", "so a link with a memory has to be one too"),
        ("FedAvg(down=PerClient(ErrorFeedback()))", "PerClient needs a link that always keeps a part"),
        ("FedAvg(down=PerClient(LBGM()))", "PerClient keeps the receiver's memory itself"),
    ],
)
def test_what_cannot_have_a_downlink_of_its_own_says_so(text: str, said: str) -> None:
    with pytest.raises(CombinationError) as caught:
        tw.Simulation(tw.parse(text), plain, TASKS)
    assert said in str(caught.value)
