"""Entries left out by each client for itself, averaged over those who sent them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Size

import thinwire as tw
from problems import flags, key, refused, vector
from thinwire.algorithms.fedavg import Reply
from thinwire.errors import CombinationError, WireError
from thinwire.federated.mean import Mean
from thinwire.federated.messages import Form
from thinwire.key import Key
from thinwire.links import DropoutAvg, ErrorFeedback
from thinwire.params import Layout, Params
from thinwire.problem import standard
from thinwire.wire import dumps, loads

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


TWENTY = torch.arange(1.0, 21.0) * torch.tensor([1.0, -1.0] * 10)


def test_each_entry_is_averaged_over_those_who_sent_it() -> None:
    link, layout = DropoutAvg(0.5), Layout(("a",), (Size([4]),))
    packets = [
        [[flags(1, 1, 0, 0), torch.tensor([1.0, 2.0])]],
        [[flags(1, 0, 1, 0), torch.tensor([4.0, 8.0])]],
    ]
    got, _ = link.recv(link.mean(packets, [3.0, 1.0]), layout, None, key(0))
    assert got.flat.tolist() == [1.75, 2.0, 8.0, 0.0]  # (3 * 1 + 4) / 4, 2, 8, nobody
    # Five more replies of weight 1 without this layer count as zeros; of a sum every client adds its own.
    total = link.fold(link.fold(None, packets[0], 3.0), packets[1], 1.0)
    assert link.recv(link.scale(total, 8.0), layout, None, key(0))[0].flat.tolist() == [0.875, 1.0, 4.0, 0.0]
    total = link.fold(link.fold(None, packets[0], 1.0), packets[1], 1.0)
    assert link.recv(link.scale(total, 1.0), layout, None, key(0))[0].flat.tolist() == [5.0, 4.0, 16.0, 0.0]


def test_what_everyone_drops_alike_is_right_on_average_over_the_clients() -> None:
    link, x = DropoutAvg(0.5), Params.of([("a", TWENTY)])
    packets = [loads(dumps(link.send(x, None, key(0, client))[0])) for client in range(40)]
    got, _ = link.recv(link.mean(packets, [float(c + 1) for c in range(40)]), x.layout, None, key(0))
    assert got.flat.tolist() == pytest.approx(TWENTY.tolist(), rel=1e-5)  # everyone has the same value, all are sent


@pytest.mark.parametrize("up", ["DropoutAvg(0.0)", "Flat(DropoutAvg(0.0))", "Layerwise(DropoutAvg(0.0))"])
def test_dropping_nothing_is_the_dense_mean_bit_for_bit(up: str) -> None:
    problem = standard("digits", clients=7, seed=0)
    runs = [
        tw.simulate(tw.parse(f"FedAvg(LocalSGD(0.1), up={link})"), problem.model, problem.tasks, 2, sample=4)
        for link in (up, "Dense()")
    ]
    assert runs[0].params.flat.equal(runs[1].params.flat)


def test_a_share_of_each_layer_is_dropped_by_each_client_for_itself() -> None:
    x = Params.of([("a", torch.ones(1_000)), ("b", torch.ones(10))])
    masks = [DropoutAvg(0.3).send(x, None, key(0, client))[1] for client in (1, 2)]
    assert [int(mask["a"].sum()) for mask in masks] == [700, 700]
    assert [int(mask["b"].sum()) for mask in masks] == [7, 7]
    assert 430 < int((masks[0]["a"] * masks[1]["a"]).sum()) < 550  # 490 of independent ones


def test_a_client_that_says_it_sent_more_than_it_did_is_refused_and_leaves_no_trace() -> None:
    x = vector(1.0, 2.0, 3.0, 4.0)
    form = Form.of(Reply(x), DropoutAvg(0.5), "up")
    mean, rx = Mean(form), form.open()[1]
    for mask in (flags(1, 1, 1, 0), flags(1, 0, 0, 0), flags(0, 0, 0, 0)):
        body = [[None, [[mask, torch.tensor([100.0, 100.0])]]]]
        with pytest.raises(WireError):
            mean.add(1, 1.0, loads(dumps(body)), rx, Key(0, 1, 1))
        assert refused(DropoutAvg(0.5), body[0][1], 4)
    body = [[None, [[flags(0, 1, 1, 0), torch.tensor([5.0, 6.0])]]]]
    mean.add(1, 1.0, loads(dumps(body)), rx, Key(0, 1, 1))
    assert mean.result(Key(0, 1))[0].update.flat.tolist() == [0.0, 5.0, 6.0, 0.0]


@pytest.mark.parametrize("bad", [torch.zeros(4), torch.zeros(5), [flags(1, 1, 0, 0, 0), torch.ones(2)], None])
def test_a_client_cannot_send_a_mean_in_place_of_its_own_entries(bad: Any) -> None:
    form = Form.of(Reply(vector(1.0, 2.0, 3.0, 4.0)), DropoutAvg(0.5), "up")
    with pytest.raises(WireError):
        Mean(form).add(1, 1.0, loads(dumps([[None, [bad]]])), form.open()[1], Key(0, 1, 1))


def test_a_residual_would_deliver_twice_what_the_others_make_up_for() -> None:
    with pytest.raises(CombinationError):
        ErrorFeedback(DropoutAvg(0.5))
