"""Clustered LBGM: what it is with a cluster for everyone, hand values, bytes both ways, memory, catching up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from blobs import assert_same_model, bills, blobs, mlp, normed, simulate
from problems import PAIR, TWICE, Point, Quadratic, approx, path
from thinwire import LBGM, ClusteredLBGM, FedAvg, Half, Key, LocalSGD, Momentum, Params, Simulation, TopK
from thinwire.algorithms.clustered_lbgm import Broadcast
from thinwire.errors import WireError
from thinwire.federated.stream import Parcel, catch_up
from thinwire.wire import Several

LOCAL = LocalSGD(lr=0.2, batch=8)


# -- reductions -------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [1, 3])
def test_with_one_client_it_is_lbgm(clusters: int) -> None:
    options: dict[str, Any] = {"tasks": blobs()[:1], "sample": 1, "rounds": 12, "model": normed}
    opt = Momentum(1.0, beta=0.5)
    found = simulate(ClusteredLBGM(clusters, threshold=0.4, local=LOCAL, opt=opt), **options)
    plain = simulate(FedAvg(LOCAL, opt=opt, up=LBGM(threshold=0.4)), **options)
    assert_same_model(found, plain)
    floats = [r["up_floats"] - 16 for r in found.rounds]  # less the statistics
    assert floats == [r["up_floats"] - 16 for r in plain.rounds]
    assert 1 < floats.count(99.0) < 12
    assert floats.count(1.0) == 12 - floats.count(99.0)


def test_with_one_client_over_a_compressor_it_is_lbgm_against_the_dense_update() -> None:
    options: dict[str, Any] = {"tasks": blobs()[:1], "sample": 1, "rounds": 12}
    found = simulate(ClusteredLBGM(2, threshold=0.5, local=LOCAL, up=TopK(0.7)), **options)
    plain = simulate(FedAvg(LOCAL, up=LBGM(TopK(0.7), threshold=0.5, compare="dense")), **options)
    assert_same_model(found, plain)
    assert [r["up_floats"] for r in found.rounds] == [r["up_floats"] for r in plain.rounds]


def apart(num: int) -> list[Quadratic]:
    """Clients whose updates are orthogonal: each pulls at two entries of its own, one harder than the other."""
    tasks = []
    for k in range(num):
        h, target = torch.zeros(2 * num), torch.zeros(2 * num)
        h[2 * k], h[2 * k + 1], target[2 * k] = 1.0, 2.0 + k, 1.0
        tasks.append(Quadratic(h, target.repeat(k + 1, 1)))
    return tasks


def test_with_a_cluster_for_each_of_clients_that_have_nothing_in_common_it_is_lbgm() -> None:
    tasks, start = apart(3), torch.linspace(-1.0, 2.0, 6)

    def way(method: tw.Algorithm) -> tuple[list[list[float]], list[float]]:
        found = tw.simulate(method, Point(*start.tolist()), tasks, 8, workers=1, plan="each")
        return path(method, 8, Point(*start.tolist()), tasks), [e.floats for e in found.ledger.of("up")]

    clustered, floats = way(ClusteredLBGM(3, threshold=0.1, local=TWICE))
    plain, expected = way(FedAvg(TWICE, up=LBGM(threshold=0.1)))
    assert clustered == plain
    assert floats == expected
    assert 3 < expected.count(6) < 20


# -- by hand ----------------------------------------------------------------------


def test_six_rounds_of_two_clients_with_one_centroid_are_those_worked_out_by_hand() -> None:
    # h = np.array([1.0, 2.0]); a = np.array([[1.0, 0.0], [1.0, 1.0]]); n = np.array([1, 3])
    # def local(x, i):
    #     y = x.copy()
    #     for _ in range(2): y = y - 0.1 * (h * (y - a[i]))
    #     return y
    # x, c = np.array([0.5, -1.0]), None
    # for t in range(6):
    #     got, whole = [], []
    #     for i in (0, 1):
    #         g = local(x, i) - x
    #         cos = 0 if c is None else g @ c / np.linalg.norm(g) / np.linalg.norm(c)
    #         whole.append(c is None or 1 - cos**2 > 0.05)
    #         got.append(g if whole[-1] else g @ c / (c @ c) * c)
    #     x = x + (n[:, None] * got).sum(0) / 4
    #     if any(whole):
    #         side = got[0] if c is None else c
    #         c = np.mean([g if g @ side >= 0 else -g for g in got], 0)
    #     print(x, c, whole)
    x = [
        [0.595, -0.37],
        [0.67909147, 0.03194363],
        [0.76125759, 0.28489991],
        [0.80661865, 0.45233594],
        [0.80661865, 0.559495],
        [0.83417549, 0.6280768],
    ]
    c = [
        [0.095, 0.54],
        [0.08171098, 0.31236242],
        [0.07510162, 0.16480428],
        [0.0, 0.18],
        [0.0, 0.18],
        [0.01837123, 0.18],
    ]
    whole = [[2, 2], [2, 1], [2, 1], [2, 2], [1, 1], [1, 2]]
    method = ClusteredLBGM(1, threshold=0.05, local=TWICE)
    run = Simulation(method, Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        for t in range(6):
            run.step()
            assert run.server.x.flat.tolist() == approx(x[t])
            assert run.server.centroids.flat.tolist() == approx(c[t])
            assert [e.floats for e in run.ledger.of("up", t + 1)] == whole[t]
    # The model, and the centroid where it moved in the round before.
    assert [e.floats for e in run.ledger.of("down")][::2] == [2, 4, 4, 4, 4, 2]


class Given(nn.Module):
    """A model of two numbers, whose gradient is minus what the task says."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


class Pull:
    """A client whose update is always the same."""

    def __init__(self, *update: float) -> None:
        self.update = torch.tensor(update)

    def __len__(self) -> int:
        return 1

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.update.expand(len(indices), 2)

    def loss(self, module: nn.Module, batch: Tensor) -> Tensor:
        return -(module.w * batch).sum(1)  # type: ignore[operator]

    def metrics(self, module: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(module, batch)}


def first_centroids(clusters: int, threshold: float, *updates: tuple[float, float]) -> list[list[float]]:
    method = ClusteredLBGM(clusters, threshold, LocalSGD(lr=1.0, batch=None, steps=1))
    run = Simulation(method, Given(), [Pull(*update) for update in updates], workers=1, plan="each")
    with run.pool:
        run.step()
    return [c.tolist() for _, c in run.server.centroids.items()]


def test_centroids_begin_far_from_each_other_and_become_the_means_of_their_members() -> None:
    # (4, 0) begins the first. (0, 2) and (0, -6) are both at right angles to it, and the first of them begins the
    # second, which the other is turned to: ((0, 2) + (0, 6)) / 2. (6, 2) is nearer to the first.
    updates = [(4.0, 0.0), (0.0, 2.0), (6.0, 2.0), (0.0, -6.0)]
    assert first_centroids(2, 0.0, *updates) == [[5.0, 1.0], [0.0, 4.0]]
    # With room for more, (6, 2), whose sin^2 to the first is .1, begins one of its own, or not, as the threshold says.
    assert first_centroids(4, 0.09, *updates) == [[4.0, 0.0], [0.0, 4.0], [6.0, 2.0], [0.0, 0.0]]
    assert first_centroids(4, 0.11, *updates) == [[5.0, 1.0], [0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]


def test_an_update_of_zero_begins_no_centroid() -> None:
    assert first_centroids(2, 1.0, (0.0, 0.0), (3.0, 4.0)) == [[3.0, 4.0], [0.0, 0.0]]


# -- bytes and memory ---------------------------------------------------------------


def test_the_bytes_of_a_small_run_are_these() -> None:
    # Up, whole: version 1, list of fields 2, field 2, all layers 1, tensor 3, nothing recycled 2, examples 2, padding
    # 3, 83 numbers of 4 bytes. Recycled: version 1, list of fields 2, field 2, mask 3, None 1, list of one 2, of two
    # 2, the centroid 2, rho 2, examples 2; then the mask 1 and rho 4.
    # Down: version 1, list of fields 2, x 6, centroids 6, padding 1, 83 numbers or twice that; a mask of none is 1.
    tasks = blobs((8, 8), seed=1)
    result = simulate(ClusteredLBGM(1, threshold=1.0, local=LOCAL), tasks=tasks, sample=2, rounds=3)
    assert bills(result, "up") == [[(348, 93)] * 2, [(24, 92)] * 2, [(24, 92)] * 2]
    assert bills(result, "down") == [[(349, 63)] * 2, [(680, 71)] * 2, [(349, 71)] * 2]
    assert [r["up_floats"] for r in result.rounds] == [166, 2, 2]
    assert [r["down_floats"] for r in result.rounds] == [166, 332, 166]


def test_the_server_keeps_so_many_models_however_many_clients_there_are() -> None:
    sizes = {}
    for name, method in {
        "clustered": ClusteredLBGM(2, threshold=0.5, local=LOCAL),
        "lbgm": FedAvg(LOCAL, up=LBGM(threshold=0.5)),
        "as they came": FedAvg(LOCAL, up=LBGM(TopK(0.1), threshold=0.5, store="packet")),
    }.items():
        run = Simulation(method, mlp, blobs((8,) * 20, seed=1), seed=1, workers=1, plan="each")
        with run.pool:
            run.step()
        ends = [tw.dumps(run.states.get(client).rx) for client in range(20)]
        sizes[name] = (len(tw.dumps(run.server)), sum(map(len, ends)))
    assert sizes["lbgm"] == (340, 20 * 340)
    assert sizes["clustered"] == (1_013, 20 * 6)  # the model and two more, whose bytes are 3 x 332 and a header
    assert sizes["as they came"][1] == 4_156  # mostly names of four layers, of which ten entries are kept, and the key


# -- the downlink -----------------------------------------------------------------


@pytest.mark.parametrize("down", ["Dense()", "Half()", "{'x': Half(), 'centroids': EF21(TopK(0.4))}"])
def test_every_way_to_catch_up_ends_in_the_same_view(down: str) -> None:
    method = tw.parse(f"ClusteredLBGM(2, threshold=0.3, down={down})", {"lr": 0.2, "batch": 8})
    run = Simulation(method, mlp, blobs(), sample=3, seed=3, workers=1, plan="each", dropout=0.2)
    stream, views, kinds = run.stream, [run.stream.view], set()
    with run.pool:
        for _ in range(10):
            run.step()
            views.append(stream.view)
            expected = tw.dumps(stream.view)
            for version, view in enumerate(views[:-1]):
                ways = [stream.parcel(version), Parcel(True, [stream.snapshot()])]
                kinds |= {parcel.snapshot for parcel in ways[:1]}
                for parcel in ways:
                    assert tw.dumps(catch_up(method, stream.form, view, parcel, Key(3))) == expected
    assert kinds == {True, False}


def test_a_broadcast_takes_the_place_of_an_older_one_if_it_brings_all_its_centroids() -> None:
    method = ClusteredLBGM(3)
    x = Params.of([("w", torch.zeros(2))])
    centroids = method.init(x, 4, Key(0)).server.centroids

    def message(*which: int) -> Broadcast:
        return Broadcast(x, centroids.only(f"centroid{j}" for j in which))

    assert method.supersedes(message(), message())
    assert method.supersedes(message(0, 2), message(0, 1, 2))
    assert not method.supersedes(message(0, 2), message(0, 1))


def test_clients_and_server_use_the_centroids_that_were_seen() -> None:
    # Halves hold 0.1 as 0.0999755859375: with that centroid an update of (.1, 0) is rho = 1.000244 of it, and what the
    # server makes of it is (.1, 0) again. Had it used its own centroid, it would be .100024.
    method = ClusteredLBGM(1, 0.5, LocalSGD(lr=1.0, batch=None, steps=1), down={"centroids": Half()})
    run = Simulation(method, Given(), [Pull(0.1, 0.0)], workers=1, plan="each")
    with run.pool:
        for expected in (0.1, 0.2, 0.3):
            run.step()
            assert run.server.x.flat[0].item() == pytest.approx(expected, abs=1e-7)
    assert run.server.centroids.flat[0].item() == 0.0999755859375


# -- what is refused ----------------------------------------------------------------


@pytest.mark.parametrize("cluster", [-1, 1, 7])
def test_a_reply_that_refers_to_no_centroid_is_refused(cluster: int) -> None:
    method = ClusteredLBGM(1, local=LOCAL)
    start = method.init(Params.of([("w", torch.zeros(2))]), 2, Key(0))
    like = start.reply.recycled.like
    reply = start.reply._replace(whole=start.reply.whole.only(()), examples=3)
    assert method.admit(start.view, reply._replace(recycled=Several([type(like)(0, torch.ones(()))], like)), 3, None)
    with pytest.raises(WireError, match="one of 1 centroids expected"):
        method.admit(start.view, reply._replace(recycled=Several([type(like)(cluster, torch.ones(()))], like)), 3, None)
