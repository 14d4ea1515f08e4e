"""A start that is ahead: where it is, what is sent from there, what a lost reply leaves, and who cannot have it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thinwire as tw
from blobs import blobs, mlp
from problems import LOCAL, handwriting
from problems import mlp as digits_mlp
from thinwire import Auto, ByBandwidth, Dense, Detached, ErrorFeedback, FedAvg, Key, Local, Params, Task, TopK, Trained
from thinwire.algorithms.luar import LUAR
from thinwire.algorithms.prunefl import entries_in
from thinwire.links import DCT, LBGM, Bins, ChunkTopK, Entropy, Layerwise, Link, Partition, PowerSGD, Switch
from thinwire.params import Layout
from thinwire.train.one import train

FEEDBACK = ErrorFeedback(TopK(0.05))
LAM = 0.5


def movement(round: int, client: int, like: Params) -> Params:
    """What training comes to in place of training: whole numbers up to 40."""
    draw = torch.Generator().manual_seed(100 * round + client)
    return Params(like.layout, torch.randint(-40, 41, (like.layout.size,), generator=draw).float())


class Clients:
    """Rounds by hand of a method whose clients move by :func:`movement`; ``starts`` are where they began."""

    def __init__(self, method: tw.Algorithm) -> None:
        self.method, self.starts = method, dict[tuple[int, int], Params]()
        self.server, first = tw.start(method, mlp, blobs())
        self.states = [first] * len(blobs())

    def train(self, request: Local, task: Task, key: Key) -> Trained:
        assert key.client is not None
        self.starts[key.round, key.client] = request.x
        return Trained(request.x + movement(key.round, key.client, request.x), 1, 0.0)

    def round(self, cohort: list[int], lost: tuple[int, ...] = ()) -> dict[int, Tensor]:
        """What each client of a cohort sent, as the server sees it; the replies of some are lost."""
        replies, sent = [], {}
        for client in cohort:
            reply, after = tw.client_round(
                self.method, self.server.view, self.states[client], blobs()[client], client, train=self.train
            )
            sent[client] = reply.message.update.flat
            if client not in lost:
                replies.append(reply)
                self.states[client] = after
        self.server = tw.server_round(self.method, self.server, replies)
        return sent


def test_a_client_begins_ahead_by_a_half_of_what_it_owes_however_long_it_was_away() -> None:
    team, owed = Clients(Detached(FedAvg(up=FEEDBACK), LAM)), {}
    for number, cohort in enumerate([[0, 1, 2], [1], [0, 1], [2, 0], [0, 2]], 1):
        x = team.method.model(team.server.state).flat
        for client, sent in team.round(cohort).items():
            e = owed.get(client, torch.zeros_like(x))
            start = team.starts[number, client]
            assert torch.allclose(start.flat, x + LAM * e, atol=1e-4)
            assert client not in owed or float((start.flat - x).norm()) > 10  # it owed something
            owed[client] = e + movement(number, client, start).flat - sent


def test_all_that_a_client_went_is_what_it_sent_and_what_it_owes() -> None:
    team = Clients(Detached(FedAvg(up=FEEDBACK), LAM))
    went, arrived = list[Tensor](), list[Tensor]()
    for number in range(1, 7):
        sent = team.round([number % 3, 3])
        went.append(movement(number, 3, team.starts[number, 3]).flat)
        arrived.append(sent[3])
    (end,) = team.states[3].tx
    assert torch.allclose(sum(went), sum(arrived) + end.residual.flat, atol=1e-3)
    assert float(end.residual.norm()) > 50


def test_a_client_whose_reply_is_lost_owes_what_it_did_and_begins_where_it_would_have() -> None:
    lossy, spared = (Clients(Detached(FedAvg(up=FEEDBACK), LAM)) for _ in range(2))
    for team in (lossy, spared):
        team.round([0, 1])
    lossy.round([0, 1], lost=(1,))
    spared.round([0])
    for team in (lossy, spared):
        team.round([0, 1])
    assert lossy.starts[3, 1].flat.equal(spared.starts[3, 1].flat)
    assert tw.dumps(lossy.server.state) == tw.dumps(spared.server.state)
    assert tw.dumps(lossy.states[1]) == tw.dumps(spared.states[1])


def test_what_is_recycled_is_owed_and_clients_begin_ahead_of_it_inside_and_outside_of_luar() -> None:
    inner = FedAvg(LOCAL, up=FEEDBACK)
    ways = Detached(LUAR(inner, recycle=1), LAM), LUAR(Detached(inner, LAM), recycle=1)
    runs = [tw.simulate(way, digits_mlp, handwriting()[0], 4, sample=4, workers=1, plan="each") for way in ways]
    assert runs[0].params.flat.equal(runs[1].params.flat)
    assert list(runs[0].ledger) == list(runs[1].ledger)


def test_what_prunefl_took_out_stays_out_where_a_client_begins() -> None:
    method = tw.parse(f"Detached(PruneFL(FedAvg(LocalSGD(0.5), up={FEEDBACK!r}), initial=3, share=0.6), lam=1.0)")
    server, first = tw.start(method, mlp, blobs())
    states, starts, owed = [first] * 3, [], []

    def noted(request: Local, task: Task, key: Key) -> Trained:
        starts.append(request.x.flat)
        return plain(request, task, key)

    slot = server.view.setup.slot
    plain: Callable[[Local, Task, Key], Trained] = lambda request, task, key: train(slot, task, request, key)  # noqa: E731
    for _ in range(4):
        replies, starts[:] = [], []
        owed = [state.tx[0].residual.flat for state in states]
        out, before = ~entries_in(server.state.x), server
        for client in range(3):
            answer = noted if client == 0 else plain
            reply, states[client] = tw.client_round(
                method, server.view, states[client], blobs()[client], client, train=answer
            )
            replies.append(reply)
        server = tw.server_round(method, server, replies)
    assert out.sum() > 20
    assert owed[0][out].count_nonzero() > 5  # from before these were taken out
    assert starts[0][out].count_nonzero() == 0
    assert not torch.equal(starts[0], before.state.x.flat)


# -- what links say ---------------------------------------------------------------------------------------------------

LAYOUT = Layout(("w.weight", "w.bias"), (torch.Size([6, 5]), torch.Size([6])))
SAYING: list[Link] = [
    FEEDBACK,
    PowerSGD(1),
    Entropy(FEEDBACK),
    Layerwise(FEEDBACK),
    Partition({"*.bias": ErrorFeedback(TopK(0.3)), "*": PowerSGD(1)}),
    DCT(ErrorFeedback(ChunkTopK(2, chunk=8)), chunk=4),
    LBGM(FEEDBACK, threshold=0.0),
    ErrorFeedback(ChunkTopK(2, chunk=8, values=Bins(4))),
]


@pytest.mark.parametrize("link", SAYING, ids=repr)
def test_what_a_link_says_that_it_owes_is_all_that_it_was_given_less_what_was_seen(link: Link) -> None:
    assert link.feedback
    draw, (tx, _) = torch.Generator().manual_seed(3), link.open(LAYOUT.zeros())
    given, seen = LAYOUT.zeros(), LAYOUT.zeros()
    for round in range(1, 5):
        x = Params(LAYOUT, torch.randn(36, generator=draw))
        _, part, tx = link.send(x, tx, Key(0, round, 1))
        given, seen = given + x, seen + part
        owed = link.residual(tx)
        assert owed is not None
        assert torch.allclose(LAYOUT.zeros().replace(owed).flat, (given - seen).flat, atol=1e-5)


@pytest.mark.parametrize("of", [Dense(), TopK(0.1), Switch(TopK(0.1), TopK(0.2), 2), ByBandwidth({"*": FEEDBACK})])
def test_a_link_that_keeps_nothing_or_several_things_says_so(of: Link) -> None:
    assert not of.feedback
    assert of.residual(of.open(LAYOUT.zeros())[0]) is None


# -- Auto -------------------------------------------------------------------------------------------------------------


def test_auto_is_the_same_object_as_before_and_detaches_where_there_is_error_feedback() -> None:
    assert "detach" not in tw.complete(Auto(0.01))
    assert tw.complete(Auto(0.01, detach=0.5)).endswith(", detach=0.5)")

    def chosen(**fields: float) -> str:
        result = tw.simulate(Auto(0.7, **fields), mlp, blobs(), 1, sample=2, workers=1)
        return str(result.chosen[-1]["expression"])

    plain, ahead = chosen(), chosen(detach=0.5)
    assert chosen(detach=0.0) == plain
    assert "ErrorFeedback" in plain
    inner = re.fullmatch(r"Averaged\((.*), decay=0.8\)", plain)
    assert inner is not None
    assert ahead == f"Averaged(Detached({inner[1]}, lam=0.5), decay=0.8)"
