"""Rounds by hand: what a person holds and gives is what a run makes, to the bit."""

from __future__ import annotations

import functools
import gc
import json
import math
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from blobs import blobs, chosen, mlp, normed
from places import ROOT
from thinwire import LBGM, FedAvg, FedDC, FedDyn, Key, Layerwise, Local, LocalSGD, Supervised, Task, Trained
from thinwire.errors import CombinationError, NonFinite, RunError
from thinwire.train.batches import draw_batches

METHODS = [
    ("FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.9), down=EF21(TopK(0.2)))", mlp),
    ("FedAvg(LocalSGD(0.1, momentum=0.9, keep=True), opt=Adam(0.03), up=Layerwise(LBGM()))", normed),
    ("FedAvg(buffers='local')", normed),
    ("SCAFFOLD()", mlp),
    ("FedDyn()", mlp),
    ("FedDC()", mlp),
    ("LUAR(FedAvg(), recycle=1)", mlp),
    ("FLSS(FedAvg(), rank=1, start=1, every=2)", mlp),
    ("Intrinsic(20, subspaces=2, varying=True, epoch=2)", mlp),
    ("PruneFL(FedAvg(), every=2)", mlp),
    ("FedPara(FedAvg(), rank=2)", mlp),
    ("SoftPull(FedAvg(), lam=0.6, personal=EF21(TopK(0.3)))", normed),
    ("FedSM(form='epoch')", normed),
    ("Detached(LUAR(FedAvg(up=ErrorFeedback(TopK(0.3))), recycle=1))", mlp),
    ("FedAvg(up=SecureSum(clip=0.5), weights='uniform')", mlp),
    ("LUAR(FedAvg(opt=Adam(0.03), up=SecureSum(RandK(0.5), clip=0.5), weights='uniform'), recycle=1)", mlp),
    ("Intrinsic(20, up=SecureSum(clip=4.0), weights='uniform')", mlp),
]


def by_hand(
    method: tw.Algorithm, model: Any, tasks: list[Any], cohorts: list[list[int]], seed: int = 0, **more: Any
) -> tuple[tw.ServerState, list[tw.ClientState], list[list[tw.ClientReply]]]:
    """Rounds of these cohorts; the server, the clients and the replies."""
    server, client = tw.start(method, model, tasks, seed)
    states, made = [client] * len(tasks), []
    for cohort in cohorts:
        replies = []
        if "SecureSum" in repr(method):
            server = tw.exchange_keys(method, server, cohort)
        for number in cohort:
            reply, states[number] = tw.client_round(method, server.view, states[number], tasks[number], number, **more)
            replies.append(reply)
        server = tw.server_round(method, server, replies)
        made.append(replies)
    return server, states, made


COHORTS = [[0, 2, 5], [1, 2, 3], [0, 2, 4]]


@pytest.mark.parametrize(("expression", "model"), METHODS, ids=[expression for expression, _ in METHODS])
def test_three_rounds_by_hand_are_those_of_a_run(expression: str, model: Any) -> None:
    method = tw.parse(expression, {"lr": 0.1, "batch": 8})
    run = tw.simulate(method, model, blobs(), 3, seed=4, cohort=COHORTS, workers=1, plan="each")
    server, _, made = by_hand(method, model, blobs(), COHORTS, seed=4)
    assert torch.equal(method.model(server.state).flat, run.params.flat)
    assert [sum(len(reply.blob) for reply in replies) for replies in made] == [r["up_payload"] for r in run.rounds]
    assert [[reply.client for reply in replies] for replies in made] == COHORTS


def test_what_is_given_to_a_round_by_hand_is_not_changed() -> None:
    method = tw.parse("FedAvg(LocalSGD(0.1, batch=8), up=ErrorFeedback(TopK(0.3)))")
    server, client = tw.start(method, mlp, blobs())
    first, _ = tw.client_round(method, server.view, client, blobs()[1], 1)
    again, after = tw.client_round(method, server.view, client, blobs()[1], 1)
    assert first.blob == again.blob
    assert tw.server_round(method, server, [first]).view.blob == tw.server_round(method, server, [again]).view.blob
    later, _ = tw.client_round(method, server.view, after, blobs()[1], 1)
    assert later.blob != first.blob  # its residual is another


def test_replies_say_what_the_server_will_see() -> None:
    method = FedAvg(LocalSGD(0.1, batch=8), up=tw.TopK(0.3), weights="uniform")
    server, client = tw.start(method, mlp, blobs())
    replies = [tw.client_round(method, server.view, client, blobs()[k], k)[0] for k in (0, 1)]
    after = tw.server_round(method, server, reversed(replies))
    seen = (replies[0].message.update + replies[1].message.update) / 2
    assert torch.equal(after.mean.update.flat, seen.flat)
    assert torch.equal(after.state.x.flat, (server.state.x + seen).flat)
    assert torch.equal(after.view.message.x.flat, after.state.x.flat)
    assert (after.round, replies[1].examples, replies[1].steps) == (2, len(blobs()[1]), -(-len(blobs()[1]) // 8))


SECRET = FedAvg(LocalSGD(0.1, batch=8), up=tw.SecureSum(clip=0.5, most=8), weights="uniform")


def test_by_hand_too_a_secret_sum_is_of_masked_replies_and_that_of_those_who_replied() -> None:
    run = chosen("FedAvg(up=SecureSum(clip=0.5, most=8), weights='uniform')", [([0, 1, 2, 3, 4], {1, 4})])
    method = run.algorithm
    server, client = tw.start(method, mlp, blobs())
    before, server = server, tw.exchange_keys(method, server, [4, 3, 2, 1, 0])
    replies = [tw.client_round(method, server.view, client, blobs()[k], k)[0] for k in (0, 2, 3)]
    again, _ = tw.client_round(method, server.view, client, blobs()[0], 0)
    assert again.blob == replies[0].blob  # nothing that is given is changed
    for after in (tw.server_round(method, server, replies), tw.server_round(method, server, replies)):
        assert torch.equal(method.model(after.state).flat, method.model(run.server).flat)
        assert after.view.secret is None
    link = tw.SecureSum(clip=0.5, most=8)
    for reply in replies:  # what is sent is none of the numbers that the server would otherwise see
        sent = link.signed(link.unpack(tw.loads(reply.blob)[0][1], 83)) * link.step
        assert (sent.float() == reply.message.update.flat).float().mean() < 0.1
    other = tw.exchange_keys(method, before, [0, 1, 2, 3, 4])
    assert tw.client_round(method, other.view, client, blobs()[0], 0)[0].blob != again.blob


def test_by_hand_too_nobody_learns_a_sum_of_too_few() -> None:
    server, client = tw.start(SECRET, mlp, blobs())
    server = tw.exchange_keys(SECRET, server, range(5))  # of whom two have to answer beside each
    replies = [tw.client_round(SECRET, server.view, client, blobs()[k], k)[0] for k in (0, 2)]
    after = tw.server_round(SECRET, server, replies)
    assert torch.equal(after.state.x.flat, server.state.x.flat)
    assert (after.round, after.mean, after.rx) == (2, None, {})


def test_by_hand_nothing_is_added_in_the_clear_that_should_be_secret() -> None:
    server, client = tw.start(SECRET, mlp, blobs())
    with pytest.raises(CombinationError, match=re.escape("server = tw.exchange_keys(method, server, clients)")):
        tw.client_round(SECRET, server.view, client, blobs()[0], 0)
    with pytest.raises(CombinationError, match="exchange keys first"):
        tw.server_round(SECRET, server, [])
    first, second = (tw.exchange_keys(SECRET, server, [0, 1, 2]) for _ in range(2))
    with pytest.raises(ValueError, match=r"clients \[4\] have no keys in round 1"):
        tw.client_round(SECRET, first.view, client, blobs()[4], 4)
    replies = [tw.client_round(SECRET, first.view, client, blobs()[k], k)[0] for k in (0, 1, 2)]
    with pytest.raises(ValueError, match="client 0: its reply is hidden with other keys"):
        tw.server_round(SECRET, second, replies)
    with pytest.raises(CombinationError, match=r"aggregate=Median\(\) looks at each reply"):
        tw.server_round(SECRET, first, replies, aggregate=tw.Median())
    for clients, said in (([0], "two clients at least"), ([0, 9], "clients of the 6"), ([1, 1], "each once")):
        with pytest.raises(ValueError, match=said):
            tw.exchange_keys(SECRET, server, clients)
    plain = FedAvg()
    with pytest.raises(CombinationError, match="leave exchange_keys out"):
        tw.exchange_keys(plain, tw.start(plain, mlp, blobs())[0], [0, 1])


def test_a_reply_that_is_given_twice_is_refused() -> None:
    server, client = tw.start(FedAvg(), mlp, blobs())
    reply, _ = tw.client_round(FedAvg(), server.view, client, blobs()[0], 0)
    with pytest.raises(ValueError, match="a client has two replies"):
        tw.server_round(FedAvg(), server, [reply, reply])


def test_a_reply_to_another_round_is_refused() -> None:
    method = tw.parse("FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.9))")
    server, client = tw.start(method, mlp, blobs())
    old, state = tw.client_round(method, server.view, client, blobs()[0], 0)
    after = tw.server_round(method, server, [old])
    with pytest.raises(ValueError, match="client 0: its reply is of round 1, and this is round 2"):
        tw.server_round(method, after, [old])
    new, _ = tw.client_round(method, after.view, state, blobs()[0], 0)
    with pytest.raises(ValueError, match="client 0: its reply is of round 2, and this is round 1"):
        tw.server_round(method, server, [new])


@pytest.mark.parametrize("examples", [0, -10, float("nan"), float("inf")])
def test_a_reply_of_no_number_of_examples_is_refused(examples: float) -> None:
    server, client = tw.start(FedAvg(), mlp, blobs())
    honest, false = (tw.client_round(FedAvg(), server.view, client, blobs()[n], n)[0] for n in (0, 1))
    with pytest.raises(ValueError, match=f"client 1: its reply is of {examples} examples, and there are one or more"):
        tw.server_round(FedAvg(), server, [honest, false._replace(examples=examples)])


@pytest.mark.parametrize("number", [-1, len(blobs()), "0", 1.0])
def test_a_client_that_there_is_not_has_no_round_by_hand(number: Any) -> None:
    server, client = tw.start(FedAvg(), mlp, blobs())
    with pytest.raises(ValueError, match=f"client={number}: the clients are 0 to {len(blobs()) - 1}"):
        tw.client_round(FedAvg(), server.view, client, blobs()[0], number)
    reply, _ = tw.client_round(FedAvg(), server.view, client, blobs()[0], 0)
    with pytest.raises(ValueError, match=f"client={number}: the clients are 0 to {len(blobs()) - 1}"):
        tw.server_round(FedAvg(), server, [reply._replace(client=number)])


def test_a_server_that_diverges_says_so() -> None:
    server, client = tw.start(FedAvg(), mlp, blobs())
    reply, _ = tw.client_round(FedAvg(), server.view, client, blobs()[0], 0)
    far = server._replace(state=server.state._replace(x=server.state.x.map(lambda f: f + 1e38)))
    with pytest.raises(NonFinite, match="round 1: the server's state became"):
        tw.server_round(FedAvg(), far, [reply])


def test_the_page_about_rounds_by_hand_is_a_program_that_runs() -> None:
    page = (ROOT / "docs" / "by-hand.md").read_text()
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "by-hand.md", "exec"), {})


# -- a cohort that is given ---------------------------------------------------------------------------------


def test_a_step_takes_the_clients_it_is_given() -> None:
    with tw.Simulation(FedAvg(), mlp, blobs(), workers=1) as run:
        record = run.step(cohort=[5, 1])
        assert [(e.client, e.direction) for e in run.ledger] == [(1, "down"), (5, "down"), (1, "up"), (5, "up")]
        assert record["clients"] == 2
        for bad in ([], [1, 1], [6], [-1]):
            with pytest.raises(ValueError, match=r"it must name one or more of the 6 clients, each once"):
                run.step(cohort=bad)
        assert run.round == 1


def test_the_cohorts_that_would_be_drawn_make_the_same_run_when_they_are_given() -> None:
    drawn = tw.simulate(FedAvg(), mlp, blobs(), 4, sample=2, seed=3, dropout=0.3, workers=1)
    cohorts = [[e.client for e in drawn.ledger.of("down", number)] for number in range(1, 5)]
    given = tw.simulate(FedAvg(), mlp, blobs(), 4, cohort=cohorts, seed=3, dropout=0.3, workers=1)
    assert torch.equal(drawn.params.flat, given.params.flat)
    assert list(drawn.ledger) == list(given.ledger)


def test_a_run_with_given_cohorts_is_resumed_with_the_same_and_with_no_others(tmp_path: Path) -> None:
    cohorts = [[0, 1], [2, 3], [1, 4], [0, 5]]
    straight = tw.simulate(FedAvg(), mlp, blobs(), 4, cohort=cohorts, workers=1)
    go: Callable[..., tw.Result] = functools.partial(
        tw.simulate, FedAvg(), mlp, blobs(), out=tmp_path, workers=1, checkpoint_every=1
    )
    go(rounds=2, cohort=cohorts[:2])
    assert json.loads((tmp_path / "run.json").read_text())["cohort"] == "given"
    with pytest.raises(RunError, match=r"the cohort of its round 2 is \[2, 3\], not \[2, 4\]"):
        go(rounds=4, resume=True, cohort=[[0, 1], [2, 4], [1, 4], [0, 5]])
    with pytest.raises(ValueError, match="cohort names the clients of fewer than rounds=4"):
        go(rounds=4, resume=True, cohort=cohorts[:3])
    with pytest.raises(RunError, match="is another run: its cohort is given, not None"):
        go(rounds=4, resume=True)
    resumed = go(rounds=4, resume=True, cohort=cohorts)
    assert torch.equal(resumed.params.flat, straight.params.flat)


def test_a_sample_beside_a_given_cohort_is_refused() -> None:
    with pytest.raises(ValueError, match="sample=2: the cohort is given"):
        tw.simulate(FedAvg(), mlp, blobs(), 1, sample=2, cohort=[[0]])


# -- an order that is given ---------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["each", "together"])
def test_the_order_that_would_be_drawn_makes_the_same_run_when_it_is_given(plan: Any) -> None:
    trainer, rounds, seed = LocalSGD(0.1, epochs=1.5, batch=8), 3, 7
    tasks = []
    for client, task in enumerate(blobs()):
        order = []
        for number in range(1, rounds + 1):
            rows = draw_batches(len(task), trainer, Key(seed, number, client).generator("batches"))
            order.append([[i for i in row if i >= 0] for row in rows.tolist()])
        tasks.append(Supervised(task.inputs, task.targets, task.indices, order=order))
    method = FedAvg(LocalSGD(0.1, epochs=40, batch=3))  # of which nothing but the rate counts
    given = tw.simulate(method, mlp, tasks, rounds, seed=seed, workers=1, plan=plan)
    straight = tw.simulate(FedAvg(trainer), mlp, blobs(), rounds, seed=seed, workers=1, plan=plan)
    assert torch.equal(given.params.flat, straight.params.flat)


class Number(nn.Module):
    """A model that is one number."""

    def __init__(self, start: float = 0.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def test_steps_take_the_batches_that_are_given_in_their_order() -> None:
    # A step goes from w to w - 0.25 * 2 (w - mean of the targets), half the way there: 0, 4, 3, 2.
    targets = torch.tensor([8.0, 2.0, 1.0])
    task = Supervised(torch.ones(3), targets, order=[[[0], [1, 1], [2]], []])
    method = FedAvg(LocalSGD(0.25, batch=None))
    server, client = tw.start(method, Number(), [task])
    reply, state = tw.client_round(method, server.view, client, task, 0)
    assert reply.message.update.flat.tolist() == [2.0]
    assert reply.steps == 3
    later = tw.server_round(method, server, [reply])
    with pytest.raises(ValueError, match=r"round 2, client 0: the task's order has no batches for this round"):
        tw.client_round(method, later.view, state, task, 0)
    for bad in ([[3]], [[-1]], [[]], [torch.tensor([0.5])]):
        with pytest.raises(ValueError, match=r"round 1, client 0: the task's order has at 0 .* positions below 3"):
            tw.client_round(method, server.view, client, Supervised(torch.ones(3), targets, order=[bad]), 0)


def test_a_run_is_not_resumed_with_another_order(tmp_path: Path) -> None:
    def task(order: Any) -> Supervised:
        return Supervised(torch.ones(3), torch.tensor([8.0, 2.0, 1.0]), order=order)

    options: dict[str, Any] = {"out": tmp_path, "workers": 1}
    tw.simulate(FedAvg(), Number(), [task([[[0]], [[1]]])], 1, **options)
    with pytest.raises(RunError, match="is another run: its data"):
        tw.simulate(FedAvg(), Number(), [task([[[0]], [[2]]])], 2, resume=True, **options)
    tw.simulate(FedAvg(), Number(), [task([[[0]], [[1]]])], 2, resume=True, **options)


# -- updates that are given ---------------------------------------------------------------------------------


def test_a_run_takes_the_updates_that_it_is_given() -> None:
    # Of weights 1 and 3: (1 * 4 + 3 * 8) / 4 = 7 in round 1, twice as much in round 2.
    asked = []

    def give(request: Local, task: Task, key: Key) -> Trained:
        asked.append((key.round, key.client, request.x.flat.item()))
        step = (4.0 if len(task) == 1 else 8.0) * key.round
        return Trained(request.x.map(lambda f: f + step), steps=1, loss=0.5)

    tasks = [(torch.ones(n), torch.ones(n)) for n in (1, 3)]
    result = tw.simulate(FedAvg(), Number(), tasks, 2, train=give, workers=2)
    assert result.params.flat.tolist() == [21.0]
    assert asked == [(1, 0, 0.0), (1, 1, 0.0), (2, 0, 7.0), (2, 1, 7.0)]
    assert [r["train_loss"] for r in result.rounds] == [0.5, 0.5]
    assert "give" in result.setting["train"]
    server, client = tw.start(FedAvg(), Number(), tasks)
    reply, _ = tw.client_round(FedAvg(), server.view, client, tasks[1], 1, train=give)
    assert reply.message.update.flat.tolist() == [8.0]


def other_layers(request: Local) -> Any:
    return Trained(tw.Params.of([("v", torch.ones(1))]), 1, 0.5)


@pytest.mark.parametrize(
    ("expression", "give", "said"),
    [
        ("FedAvg()", lambda request: None, "gave NoneType: it returns Trained(x, steps, loss)"),
        ("FedAvg()", lambda request: request.x, "gave Params: it returns Trained(x, steps, loss)"),
        ("FedAvg()", other_layers, "gave an x of other layers or of another type: it is made of the request's,"),
        ("FedAvg()", lambda request: Trained(request.x, 1, None), "gave steps=1, loss=None, rates=0.0: a whole"),  # type: ignore[arg-type]
        ("FedAvg()", lambda request: Trained(request.x, 1, math.nan), "gave steps=1, loss=nan: steps must not"),
        ("FedAvg()", lambda request: Trained(request.x, -1, 0.5), "gave steps=-1, loss=0.5: steps must not"),
        ("FedAvg(LocalAdam(keep=True))", lambda request: Trained(request.x, 1, 0.5), "gave no memory, which LocalAdam"),
        ("PerFedAvg()", lambda request: Trained(request.x, 1, 0.5), "was asked for a gradient: it returns Trained(..."),
    ],
)
def test_a_function_that_answers_otherwise_than_it_was_asked_is_told_so(expression: str, give: Any, said: str) -> None:
    method, tasks = tw.parse(expression), [(torch.ones(1), torch.ones(1))]
    with pytest.raises(ValueError, match=re.escape(f"round 1, client 0: train {said}")):
        tw.simulate(method, Number(), tasks, 1, train=lambda request, task, key: give(request))
    server, client = tw.start(method, Number(), tasks)
    with pytest.raises(ValueError, match=re.escape(f"round 1, client 0: train {said}")):
        tw.client_round(method, server.view, client, tasks[0], 0, train=lambda request, task, key: give(request))


def test_numbers_that_are_tensors_are_taken_for_what_they_are() -> None:
    def give(request: Local, task: Task, key: Key) -> Trained:
        return Trained(request.x, 1, torch.tensor(0.5))  # type: ignore[arg-type]

    result = tw.simulate(FedAvg(), Number(), [(torch.ones(1), torch.ones(1))], 1, train=give)
    assert [r["train_loss"] for r in result.rounds] == [0.5]


# -- what LBGM saw -------------------------------------------------------------------------------------------


def test_lbgm_says_by_what_it_decides() -> None:
    # l = (3, 4); g = (4, 3): cos = 24/25, sin^2 = 1 - 576/625 = 49/625, rho = 24/25.
    link = LBGM(threshold=0.1)
    x = tw.Params.of([("a", torch.tensor([3.0, 4.0]))])
    tx, _ = link.open(x)
    assert link.look(x, tx, Key(0)) == {"a": (None, None, False, 5.0)}
    _, _, tx = link.send(x, tx, Key(0))
    y = tw.Params.of([("a", torch.tensor([4.0, 3.0]))])
    assert link.look(y, tx, Key(0))["a"] == (pytest.approx(49 / 625), pytest.approx(24 / 25), True, 5.0)
    assert not LBGM(threshold=0.05).look(y, tx, Key(0))["a"].recycled


def test_every_layer_is_looked_at_by_name_through_links_around() -> None:
    x = tw.Params.of([("a", torch.tensor([3.0, 4.0])), ("b", torch.tensor([1.0]))])
    y = tw.Params.of([("a", torch.tensor([4.0, 3.0])), ("b", torch.tensor([-2.0]))])
    a = (pytest.approx(49 / 625), pytest.approx(24 / 25), True, 5.0)
    for link, b in (
        (tw.Entropy(Layerwise(LBGM(threshold=0.1))), {"b": (0.0, -2.0, True, 2.0)}),
        (tw.Partition({"b": tw.Dense(), "*": LBGM(threshold=0.1)}), {}),
        (tw.ErrorFeedback(Layerwise(LBGM(threshold=0.1))), {"b": (0.0, -2.0, True, 2.0)}),
    ):
        _, _, tx = link.send(x, link.open(x)[0], Key(0))
        assert link.look(y, tx, Key(0)) == {"a": a, **b}
    whole = LBGM()
    assert list(whole.look(x, whole.open(x)[0], Key(0))) == ["*"]
    assert tw.TopK(0.5).look(x, None, Key(0)) == {}


@pytest.mark.parametrize("model", [mlp, lambda: nn.Sequential(mlp(), nn.Dropout(0.1))], ids=["threads", "processes"])
def test_a_run_records_how_updates_were_tested_where_it_is_asked(model: Any, tmp_path: Path) -> None:
    method = FedAvg(LocalSGD(0.1, batch=8), up=Layerwise(LBGM(threshold=0.5)))
    plain = tw.simulate(method, model, blobs(), 3, sample=2, workers=2)
    looked = tw.simulate(method, model, blobs(), 3, sample=2, workers=2, record="looks", out=tmp_path)
    assert torch.equal(plain.params.flat, looked.params.flat)
    assert "looks" not in plain.rounds[0]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["looks"] for line in lines] == [r["looks"] for r in looked.rounds]
    for record in looked.rounds:
        ups = looked.ledger.of("up", record["round"])
        names = list(looked.params.names)
        assert [(k["client"], k["layer"]) for k in record["looks"]] == [(e.client, n) for e in ups for n in names]
        assert {k["field"] for k in record["looks"]} == {"update"}
        for e in ups:  # a recycled layer is one 32-bit float
            sizes = dict(zip(names, looked.params.layout.sizes, strict=True))
            mine = [k for k in record["looks"] if k["client"] == e.client]
            assert e.floats == sum(1 if k["recycled"] else sizes[k["layer"]] for k in mine)
            assert all(k["recycled"] == (k["sin2"] is not None and k["sin2"] <= 0.5) for k in mine)


# -- an alpha of each client's own -----------------------------------------------------------------------------

# Clients of 1 and 3 examples whose losses are (w - 4)^2 and (w - 8)^2. With alpha = 0.5 and mean_examples = 2 their own
# alphas are 1 and 1/3. A step goes from w to w - 0.25 (2 (w - t) + alpha (w - x) - g).
PULLED = [Supervised(torch.ones(n), torch.full((n,), t)) for n, t in ((1, 4.0), (3, 8.0))]


def model_after(method: tw.Algorithm, rounds: int) -> float:
    return tw.simulate(method, Number(), PULLED, rounds, workers=1).params.flat.item()


@pytest.mark.parametrize("kind", [FedDyn, FedDC])
def test_a_client_is_pulled_the_less_the_more_examples_it_has(kind: Any) -> None:
    # Two steps from 0 end at 0.75 t - 0.125 alpha t: 2.5 and 17/3. The mean is 49/12, and both add it once more.
    twice = LocalSGD(0.25, batch=None, steps=2)
    found = model_after(kind(twice, alpha=0.5, mean_examples=2, weights="uniform"), 1)
    assert found == pytest.approx(49 / 6, rel=1e-6)
    alike = model_after(kind(twice, alpha=0.5, weights="uniform"), 1)  # 2.75 and 5.5
    assert alike == pytest.approx(8.25, rel=1e-6)


def test_feddyns_gradients_are_scaled_as_its_alphas_are() -> None:
    # One step a round. 1: changes 2 and 4, h = -1.5, x = 3 + 3 = 6; g = (-2, -4/3). 2: changes -1.5 and 2/3, whose mean
    # is -5/12; h = -1.5 + 5/24 = -31/24, x = 6 - 5/12 + 31/12 = 49/6.
    once = LocalSGD(0.25, batch=None, steps=1)
    assert model_after(FedDyn(once, alpha=0.5, mean_examples=2), 1) == pytest.approx(6.0)
    assert model_after(FedDyn(once, alpha=0.5, mean_examples=2), 2) == pytest.approx(49 / 6, rel=1e-6)


@pytest.mark.soak
def test_feddyn_settles_at_the_mean_of_all_examples_where_its_alphas_are_by_examples() -> None:
    method = FedDyn(LocalSGD(0.1, batch=None, steps=50), alpha=0.5, mean_examples=2)
    assert model_after(method, 60) == pytest.approx((4 + 3 * 8) / 4, rel=1e-4)
    uniform = FedDyn(LocalSGD(0.1, batch=None, steps=50), alpha=0.5)
    assert model_after(uniform, 60) == pytest.approx((4 + 8) / 2, rel=1e-4)


@pytest.mark.parametrize("kind", [FedDyn, FedDC])
def test_a_mean_of_no_examples_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"\(mean_examples=0.0\): a mean number of examples is positive"):
        kind(mean_examples=0)


# -- runs that nobody closes ---------------------------------------------------------------------------------


def children() -> int:
    """Processes that this one has begun."""
    return len(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def settled(count: Callable[[], int], expected: int) -> bool:
    for _ in range(2000):  # 100 s, on a machine that has other work
        if count() <= expected:
            return True
        time.sleep(0.05)
    return False


def test_a_run_that_is_abandoned_leaves_no_process_and_no_thread() -> None:
    assert "fork" in multiprocessing.get_all_start_methods()
    before, threads = children(), threading.active_count()
    run = tw.Simulation(FedAvg(), lambda: nn.Sequential(mlp(), nn.Dropout(0.1)), blobs(), sample=2, workers=2)
    assert children() == before  # nothing begins before the first round
    run.step()
    assert children() == before + 2
    del run
    gc.collect()
    assert settled(children, before)
    assert settled(threading.active_count, threads)


def test_a_closed_run_goes_on_and_is_the_run_that_was_not_closed() -> None:
    straight = tw.Simulation(FedAvg(), mlp, blobs(), workers=2)
    closed = tw.Simulation(FedAvg(), mlp, blobs(), workers=2)
    for _ in range(2):
        straight.step()
        with closed:
            closed.step()
    closed.close()
    assert torch.equal(straight.result().params.flat, closed.result().params.flat)
    straight.close()
