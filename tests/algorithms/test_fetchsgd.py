"""FetchSGD: the path against top-k with momentum and error feedback, catching up, bytes, resuming."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import thinwire as tw
from blobs import assert_same_model, blobs, chosen, mlp, normed, simulate
from problems import Point, Quadratic
from thinwire import ErrorFeedback, FedAvg, FetchSGD, Flat, Key, LocalSGD, Simulation, TopK
from thinwire.federated.stream import Parcel, catch_up

LOCAL = LocalSGD(lr=0.2, batch=8)
WIDE = 1 << 16  # columns enough for no two of a few dozen entries to meet in most rows

# A quadratic of 40 unlike directions, and where it starts.
H = torch.linspace(0.2, 2.0, 40)
TASK = Quadratic(H, torch.linspace(-1.0, 1.0, 40).roll(7).unsqueeze(0))
START = torch.cos(torch.arange(40.0)) * 2


def states(method: tw.Algorithm, model: Any, tasks: Any, rounds: int, **options: Any) -> list[Any]:
    """The server's state before round 1 and after each."""
    run = Simulation(method, model, tasks, workers=1, plan="each", **options)
    found = [run.server]
    with run.pool:
        for _ in range(rounds):
            run.step()
            found.append(run.server)
    return found


# -- the path ---------------------------------------------------------------------


@pytest.mark.parametrize("error", ["zero", "subtract"])
@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_one_client_and_a_large_sketch_are_top_k_with_momentum_and_error_feedback(
    rho: float, masking: bool, error: Any
) -> None:
    method = FetchSGD(
        WIDE, 4, momentum=rho, masking=masking, error=error, lr=0.5, local=LocalSGD(lr=0.1, batch=None, steps=1)
    )
    found = states(method, Point(*START.tolist()), [TASK], 12, seed=3)
    h, target, x = H.double().numpy(), TASK.targets[0].double().numpy(), START.double().numpy()
    u, e = np.zeros(40), np.zeros(40)
    for t in range(12):
        u = rho * u - 0.1 * h * (x - target)
        e = e + 0.5 * u
        top = np.argsort(-np.abs(e))[:4]
        x = x.copy()
        x[top] += e[top]
        e[top] = 0
        if masking:
            u[top] = 0
        np.testing.assert_allclose(found[t + 1].x.flat.numpy(), x, atol=3e-6)
        assert sorted(top) == found[t + 1].change.flat.nonzero().flatten().tolist()
    assert np.abs(x - START.numpy()).max() > 0.5


@pytest.mark.parametrize("model", [mlp, normed])
def test_without_momentum_one_client_and_a_large_sketch_are_top_k_with_error_feedback_bit_for_bit(model: Any) -> None:
    size = 83 if model is mlp else 99
    k = round(0.2 * size)
    tasks = blobs()[:1]
    options: dict[str, Any] = {"rounds": 6, "tasks": tasks, "sample": 1}
    plain = simulate(FedAvg(LOCAL, up=ErrorFeedback(Flat(TopK(k / size)))), model, **options)
    for masking in (True, False):
        found = simulate(FetchSGD(WIDE, k, momentum=0.0, masking=masking, local=LOCAL), model, **options)
        assert_same_model(found, plain)


def test_a_large_sketch_that_takes_out_everything_is_fedavg() -> None:
    found = simulate(FetchSGD(WIDE, 83, momentum=0.0, local=LOCAL), rounds=5)
    torch.testing.assert_close(found.params.flat, simulate(FedAvg(LOCAL), rounds=5).params.flat, atol=2e-6, rtol=1e-5)


def test_the_rate_of_the_server_multiplies_the_momentum() -> None:
    one, two = (states(FetchSGD(WIDE, 5, lr=lr, local=LOCAL), mlp, blobs(), 1)[1] for lr in (1.0, 2.0))
    assert torch.equal(two.change.flat, one.change.flat * 2)
    assert torch.equal(two.momentum, one.momentum)


def entering(method: FetchSGD, *cells: float) -> Any:
    """A server after one round in which this mean sketch came in; the model has 3 entries."""
    x = tw.Params.of([("w", torch.zeros(3))])
    start = method.init(x, 2, Key(0))
    mean = start.reply._replace(sketch=tw.Params(start.reply.sketch.layout, torch.tensor(cells)))
    return method.server(start.server, start.view, mean, Key(0, 1))


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("error", ["zero", "subtract"])
def test_where_entries_collide_zero_empties_the_cell_and_subtract_does_not(error: Any, masking: bool) -> None:
    # One row of one column: all three entries share its cell. The first is taken out, with its sign.
    server = entering(FetchSGD(1, 1, rows=1, masking=masking, error=error), 6.0)
    assert server.change.flat.abs().tolist() == [6.0, 0.0, 0.0]
    assert server.momentum.tolist() == [[0.0 if masking else 6.0]]
    assert server.error.tolist() == [[0.0]]
    # Two are taken out, each at 6 times its sign: their sketch is 12.
    server = entering(FetchSGD(1, 2, rows=1, masking=masking, error=error), 6.0)
    assert server.change.flat.abs().tolist() == [6.0, 6.0, 0.0]
    assert server.error.tolist() == ([[0.0]] if error == "zero" else [[-6.0]])


def test_the_sketch_is_the_same_in_every_round_and_for_every_client() -> None:
    # Else the sums at the server would mean nothing: what is left in the error is found in a later round.
    tasks = [Quadratic(torch.ones(4), torch.tensor([target])) for target in ([8.0, 0, 0, 0], [0, 4.0, 0, 0])]
    method = FetchSGD(WIDE, 1, momentum=0.0, local=LocalSGD(lr=0.5, batch=None, steps=1))
    found = [s.x.flat.tolist() for s in states(method, Point(0.0, 0.0, 0.0, 0.0), tasks, 3)]
    # Updates (4, 0), (0, 2): mean (2, 1), then x = (2, 0), error (0, 1) + mean (1, 1) = (1, 2), and so on.
    assert found == [[0, 0, 0, 0], [2, 0, 0, 0], [2, 2, 0, 0], [4, 2, 0, 0]]


# -- the downlink ------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.6])
def test_a_client_that_was_away_holds_what_the_others_hold_bit_for_bit(known: bool, dropout: float) -> None:
    method = FetchSGD(20, 6, known=known, local=LOCAL)
    run = Simulation(method, normed, blobs(), sample=2, seed=3, dropout=dropout, workers=1, plan="each")
    stream, views, kinds = run.stream, [run.stream.view], set()
    with run.pool:
        for newest in range(1, 12):
            held = run.server.x
            run.step()
            assert torch.equal(stream.view.state.x.flat, held.flat)  # what clients train from is the server's model
            views.append(stream.view)
            expected = tw.dumps(stream.view)
            for version, view in enumerate(views):
                ways = [stream.parcel(version), Parcel(True, [stream.snapshot()])]
                kinds |= {(parcel.snapshot, version < newest) for parcel in ways[:1]}
                if version >= stream.since:
                    ways.append(Parcel(False, [m for m in stream.log if m.version > version]))
                for parcel in ways:
                    assert tw.dumps(catch_up(method, stream.form, view, parcel, Key(3))) == expected, newest
    assert (False, True) in kinds
    assert dropout or (True, True) in kinds
    assert torch.equal(views[-1].state.x.flat, views[1].state.x.flat) is False


def test_the_bytes_of_a_small_run_are_these() -> None:
    # Client 0 is away in rounds 2 and 3, client 1 never, client 2 comes in round 40 for the first time.
    cohorts: list[Any] = [([0, 1], set()), ([1], set()), ([1], set()), ([0, 1], set())]
    cohorts += [([1], set())] * 35 + [([1, 2], set())]
    run = chosen("FetchSGD(10, 4, rows=3)", cohorts)
    assert {e.payload for e in run.ledger.of("up")} == {132}  # 01 06 01 06 02 00 48 01 1e, 3 of padding, 30 floats
    bills = {c: [e.payload for e in run.ledger.of("down") if e.client == c] for c in (0, 1, 2)}
    # First the model: version 1, three fields 2, all its layers 3 and 83 floats 3, no changed layer 6, round 2: 17, 3
    # of padding, the floats, a byte for the layers that did not change. Then: no layer of the model 6, the change 5,
    # its positions 10 and values 3, round 2, 5 bytes of bits, 2 of padding, 4 floats.
    assert bills[1][:6] == [353, 52, 52, 52, 52, 52]
    assert bills[0] == [353, 156]
    # A snapshot: version 1, three parts 2, the view 2, model 3, seed 2, round 2, links 5, no buffers 1; 2 of padding.
    assert bills[2] == [352]
    assert sum(bills[1]) > 2_000
    # Positions are in the bytes; the papers' figure counts values alone.
    floats = [e.floats for e in run.ledger.of("down") if e.client == 1]
    assert floats[:6] == [83.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    assert {e.floats for e in run.ledger.of("up")} == {30.0}


@pytest.mark.parametrize("cols", [8, 40])
def test_a_start_that_is_known_changes_bytes_alone(cols: int) -> None:
    sent, known = (simulate(f"FetchSGD({cols}, 5, known={known})", rounds=5, sample=6) for known in (False, True))
    assert torch.equal(sent.params.flat, known.params.flat)
    assert sent.bytes_up == known.bytes_up
    assert sent.bytes_down - known.bytes_down == 6 * 335  # to each client, once: 83 floats, and three bytes around them


def test_no_more_entries_change_in_a_round_than_k() -> None:
    found = states(FetchSGD(30, 7, local=LOCAL), mlp, blobs(), 6, seed=2)
    for before, after in itertools.pairwise(found):
        moved = (after.x.flat != before.x.flat).nonzero().flatten().tolist()
        assert 0 < len(moved) <= 7
        assert moved == after.change.flat.nonzero().flatten().tolist()


# -- to disk and back, refused -------------------------------------------------------
