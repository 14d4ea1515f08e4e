"""FLSS: the basis against numpy's decomposition, reductions to the inner method, phases, bytes, both ends alike."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Size, Tensor, nn

import thinwire as tw
from blobs import bills, blobs, chosen, mlp, normed, simulate
from problems import handwriting
from problems import mlp as digits_mlp
from thinwire import FLSS, Adam, FedAvg, Key, Layout, LocalSGD, Params, Simulation
from thinwire.algorithms import fedavg, flss
from thinwire.errors import CombinationError, RunError
from thinwire.train.one import train
from thinwire.train.slot import Slot
from tiers import tiers

LOCAL = LocalSGD(lr=0.2, batch=8)
NONE = Layout(("coefficients",), (Size([1]),)).zeros().only(())


def fed(method: FLSS, updates: Tensor) -> list[Any]:
    """The server's states after rounds in which these were the mean updates."""
    layout = Layout(("w",), (Size([updates.shape[1]]),))
    start = method.init(layout.zeros(), 2, Key(0))
    server, states = start.server, []
    for g in updates:
        server = method.server(server, start.view, flss.Reply(fedavg.Reply(Params(layout, g)), NONE), Key(0))
        states.append(server)
    return states


def matrix(rows: Any) -> np.ndarray:
    """P, [d, rank]."""
    return torch.stack([row.double() for row in rows], 1).numpy()


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- reductions -------------------------------------------------------------------


@dataclass(frozen=True)
class Valley:
    """Loss of the one example: sum of h (U w - b)^2 / 2, whose slopes lie in the rows of U."""

    u: Tensor  # [r, d]
    h: Tensor
    b: Tensor

    def __len__(self) -> int:
        return 1

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return indices

    def loss(self, module: nn.Module, batch: Tensor) -> Tensor:
        (w,) = module.parameters()
        return ((self.h * (self.u @ w - self.b) ** 2).sum() / 2).repeat(len(batch))

    def metrics(self, module: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(module, batch)}


class Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(draws(40, seed=5))


@pytest.mark.slow
@pytest.mark.parametrize("opt", [tw.SGD(1.0), Adam(0.03)], ids=repr)
@pytest.mark.parametrize("project", ["update", "gradient"])
@pytest.mark.parametrize(("rank", "every"), tiers([(3, 2), (6, None), (3, 4), (6, 2)], slow=2))
def test_updates_in_a_space_that_the_first_rounds_span_lose_nothing(
    rank: int, every: int | None, project: Any, opt: Any
) -> None:
    if isinstance(opt, Adam) and project == "gradient":
        opt = tw.SGD(0.7)
    u = torch.linalg.qr(draws(40, 3))[0].T
    tasks = [Valley(u, draws(3, seed=i).abs() + 0.2, draws(3, seed=10 + i)) for i in range(5)]
    inner = FedAvg(LocalSGD(lr=0.1, steps=3), opt=opt)
    plain = simulate(inner, Vector, 16, tasks=tasks, test=None)
    found = simulate(FLSS(inner, rank, start=6, every=every, project=project), Vector, 16, tasks=tasks, test=None)
    torch.testing.assert_close(found.params.flat, plain.params.flat, atol=2e-5, rtol=0)
    moved = (plain.params.flat - draws(40, seed=5)).norm()
    assert moved > 0.3
    # A space of fewer dimensions is not enough.
    less = simulate(FLSS(inner, 1, start=6, every=every, project=project), Vector, 16, tasks=tasks, test=None)
    assert (less.params.flat - plain.params.flat).norm() > 0.01


# -- the basis --------------------------------------------------------------------


@pytest.mark.parametrize(("start", "rank", "d"), [(6, 3, 50), (5, 5, 30), (20, 4, 700), (1, 1, 3)])
def test_the_first_basis_is_that_of_the_decomposition_of_the_first_updates(start: int, rank: int, d: int) -> None:
    updates = draws(start, d) * (1 + torch.arange(start)[:, None])
    server = fed(FLSS(FedAvg(), rank, start), updates)[-1]
    left, sigma, _ = np.linalg.svd(updates.double().numpy().T, full_matrices=False)
    assert len(server.rows) == rank
    np.testing.assert_allclose(server.sigma.numpy(), sigma[:rank], rtol=1e-5)
    cosines = np.linalg.svd(left[:, :rank].T @ matrix(server.rows), compute_uv=False)
    assert cosines.min() > 1 - 1e-6  # of the angles between the two spaces
    np.testing.assert_allclose(np.abs(np.diag(left[:, :rank].T @ matrix(server.rows))), np.ones(rank), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [1.0, 0.7, 0.3])
@pytest.mark.parametrize(("rank", "d"), [(4, 60), (1, 10), (3, 270_000)])
def test_ten_streaming_steps_are_those_of_numpys_decomposition(rank: int, d: int, decay: float) -> None:
    updates = draws(rank + 12, d, seed=3)
    states = fed(FLSS(FedAvg(), rank, start=rank + 2, every=1, decay=decay), updates)[rank + 1 :]
    left, sigma, _ = np.linalg.svd(updates[: rank + 2].double().numpy().T, full_matrices=False)
    for t, g in enumerate(updates[rank + 2 :].double().numpy()):
        before = decay * left[:, :rank] * sigma[:rank]
        left, sigma, _ = np.linalg.svd(np.column_stack([before, g]), full_matrices=False)
        np.testing.assert_allclose(states[t + 1].sigma.numpy(), sigma[:rank], rtol=1e-5)
        cosines = np.linalg.svd(left[:, :rank].T @ matrix(states[t + 1].rows), compute_uv=False)
        assert cosines.min() > 1 - 1e-5, t


@pytest.mark.parametrize(("store", "off"), [("float32", 5e-7), ("bfloat16", 3e-3)])
def test_the_basis_stays_orthonormal_over_many_steps(store: Any, off: float) -> None:
    for scales in (torch.ones(60), torch.logspace(-4, 4, 60), torch.logspace(4, -4, 60)):
        states = fed(FLSS(FedAvg(), 8, 10, every=1, decay=0.9, store=store), draws(60, 2_000) * scales[:, None])
        for server in states[9:]:
            p = matrix(server.rows)
            assert np.abs(p.T @ p - np.eye(8)).max() < off


@functools.cache
def updates_of(what: str) -> Tensor:
    """Ninety updates, of a training of digits or with a spectrum that falls by four decades."""
    if what == "a spectrum":
        scales = torch.logspace(0, -4, 90)
        return torch.linalg.qr(draws(90, 90))[0] @ (scales[:, None] * draws(90, 2_000, seed=1)) / 40
    tasks, _ = handwriting()
    run = Simulation(FedAvg(LocalSGD(0.1, batch=16)), digits_mlp, tasks, sample=4, workers=1, plan="together")
    points = [run.server.x.flat.clone()]
    with run.pool:
        for _ in range(90):
            run.step()
            points.append(run.server.x.flat.clone())
    return torch.stack(points).diff(dim=0)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a training", "a spectrum"])
@pytest.mark.parametrize("decay", [1.0, 0.7, 0.5])
def test_forty_full_rounds_keep_fifty_directions_and_those_of_the_exact_decomposition(what: str, decay: float) -> None:
    updates = updates_of(what)
    states = fed(FLSS(FedAvg(), 50, start=50, every=1, decay=decay), updates)[49:]
    axes, along = np.linalg.qr(updates.double().numpy().T)  # of all updates: 90 numbers say where one lies
    left, sigma, _ = np.linalg.svd(along[:, :50])
    for t, server in enumerate(states):
        if t:  # SVD_R([decay P Sigma, g]), in double precision and never rounded
            left, sigma, _ = np.linalg.svd(np.column_stack([decay * left * sigma, along[:, 49 + t]]))
        left, sigma = left[:, :50], sigma[:50]
        p, exact = matrix(server.rows), axes @ left
        assert np.abs(p.T @ p - np.eye(50)).max() < 1e-6, t  # fifty directions
        outside = exact - p @ (p.T @ exact)
        assert np.linalg.norm(outside.T @ outside, 2) < 1e-5**2, t  # the largest principal angle between the spaces
        np.testing.assert_allclose(server.sigma.numpy(), sigma, rtol=1e-5)
    assert len(states) == 41
    assert sigma[-1] < {1.0: 1e-1, 0.7: 1e-6, 0.5: 1e-10}[decay] * sigma[0]  # what is weak is kept nevertheless


@pytest.mark.slow
def test_in_bfloat16_forty_full_rounds_keep_fifty_directions_to_what_it_can_say() -> None:
    for server in fed(FLSS(FedAvg(), 50, 50, every=1, decay=0.5, store="bfloat16"), updates_of("a training"))[49:]:
        p = matrix(server.rows)
        assert np.abs(p.T @ p - np.eye(50)).max() < 3e-3  # bfloat16 has eight bits: one half of 2^-8 is 2e-3


@pytest.mark.parametrize("share", [1e-5, 1e-3])
def test_what_an_update_has_little_of_outside_the_basis_is_a_direction_of_length_one(share: float) -> None:
    known, new = torch.linalg.qr(draws(400, 4))[0].T.split((3, 1))
    g = (draws(1, 3) @ known + share * new)[0]
    server = fed(FLSS(FedAvg(), 4, 4, every=1), torch.cat([known, known[:1], g[None]]))[-1]
    p = matrix(server.rows)
    assert np.abs(p.T @ p - np.eye(4)).max() < 1e-6
    assert abs(np.linalg.norm(p.T @ new[0].double().numpy()) - 1) < 1e-3


def test_a_basis_is_mixed_to_the_same_bits_on_every_machine() -> None:
    rows, by = draws(5, 3_000), draws(5, 4, seed=1).double()
    expected = np.zeros((4, 3_000))
    for row, weights in zip(rows.double().numpy(), by.numpy(), strict=True):
        expected = expected + weights[:, None] * row  # each product and each sum rounded once
    found = flss.mix(list(rows), by, rows[0])
    assert torch.equal(torch.stack(list(found)), torch.from_numpy(expected).float())


def test_directions_that_the_first_updates_do_not_have_are_zeros() -> None:
    updates = draws(6, 2) @ draws(2, 50, seed=1)
    server = fed(FLSS(FedAvg(), 4, 6), updates)[-1]
    assert (server.sigma > 0).tolist() == [True, True, False, False]
    p = matrix(server.rows)
    np.testing.assert_allclose(p.T @ p, np.diag([1.0, 1.0, 0.0, 0.0]), atol=1e-6)
    none = fed(FLSS(FedAvg(), 3, 4, every=1), torch.zeros(7, 50))
    assert all(not matrix(server.rows).any() for server in none)


# -- phases -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "full"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (2, [0, 1, 2, 3, 5, 7, 9, 11]),
        (4, [0, 1, 2, 3, 7, 11]),
        (None, [0, 1, 2]),
    ],
)
def test_after_the_first_rounds_one_in_so_many_is_full(every: int | None, full: list[int]) -> None:
    method = FLSS(FedAvg(LOCAL), rank=2, start=3, every=every)
    assert [t for t in range(12) if method.full(t)] == full
    result = simulate(method, rounds=12, sample=2)
    assert [r["up_floats"] for r in result.rounds] == [2 * 83.0 if t in full else 2 * 2.0 for t in range(12)]


def test_the_basis_moves_in_full_rounds_alone() -> None:
    for every, moves in ((3, {4, 7, 10}), (None, set())):
        run = Simulation(FLSS(FedAvg(LOCAL), 2, 3, every), mlp, blobs(), sample=3, workers=1, plan="each")
        with run.pool:
            for t in range(1, 11):
                before = run.server.rows
                run.step()
                same = [torch.equal(a, b) for a, b in zip(before, run.server.rows, strict=False)]
                assert len(run.server.rows) == (t if t < 3 else 2)
                if t > 3:
                    assert same == [t not in moves] * 2


STATEFUL = {
    "coefficients down": "FLSS(FedAvg(), rank=3, start=4, every=2)",
    "models down": "FLSS(FedAvg(opt=Adam(0.03)), rank=3, start=4, every=3, decay=0.7)",
    "bfloat16": "FLSS(FedAvg(up=ErrorFeedback(ScaledSign())), rank=3, start=4, every=2, store='bfloat16')",
    "fixed": "FLSS(FedAvg(opt=SGD(0.7)), rank=2, start=3, every=None, project='gradient')",
    "differences down": "FLSS(FedAvg(down=EF21(TopK(0.3))), rank=2, start=3, every=2)",
}


@pytest.mark.parametrize("name", STATEFUL)
def test_clients_hold_the_servers_basis_and_model_bit_for_bit(name: str) -> None:
    method = tw.parse(STATEFUL[name], {"lr": 0.2, "batch": 8})
    run = Simulation(method, normed, blobs(), sample=3, seed=3, workers=1, plan="each")
    with run.pool:
        for _ in range(11):
            rows, x = run.server.rows, method.model(run.server)
            run.step()  # begins with the broadcast of what was there before
            view = run.stream.view.state
            assert tw.dumps(list(view.rows)) == tw.dumps(list(rows))
            if name != "differences down":
                assert torch.equal(view.inner.x.flat, x.flat)


# -- a client's round -----------------------------------------------------------------


def projected_round(method: FLSS, rounds: int = 4) -> tuple[Simulation, Any, Any, Any]:
    """A run at the beginning of a projected round; what a client then asks for, gets and replies."""
    run = Simulation(method, mlp, blobs(), workers=1, plan="each", seed=2)
    with run.pool:
        for _ in range(rounds):
            run.step()
        view = method.see(run.stream.view.state, method.broadcast(run.server, run.stream.view.state), Key(2))
    key = Key(2, rounds + 1, 5)
    work = method.client(view, None, run.tasks[5], key)
    request = next(work)
    trained = train(Slot(mlp()), run.tasks[5], request, key)
    with pytest.raises(StopIteration) as done:
        work.send(trained)
    return run, request, trained, done.value.value[0]


@pytest.mark.parametrize("store", ["float32", "bfloat16"])
@pytest.mark.parametrize("project", ["update", "gradient"])
def test_coefficients_are_the_inner_products_of_the_update_with_the_basis(project: Any, store: Any) -> None:
    local = LocalSGD(lr=0.2, batch=8, momentum=0.5, weight_decay=0.01)
    run, request, trained, reply = projected_round(FLSS(FedAvg(local), 2, 3, every=2, project=project, store=store))
    p, update = matrix(run.server.rows), (trained.x - request.x).flat.double().numpy()
    np.testing.assert_allclose(reply.coefficients.flat.numpy(), p.T @ update, atol=1e-6)
    assert reply.inner.update.names == ()
    outside = np.linalg.norm(update - p @ (p.T @ update)) / np.linalg.norm(update)
    if project == "gradient":  # every step lies in the space, so the whole does
        assert outside < (1e-5 if store == "float32" else 1e-2)
        assert len(request.basis) == 2
    else:
        assert outside > 0.1
        assert request.basis is None


def test_one_step_projected_before_or_after_is_the_same() -> None:
    local = LocalSGD(lr=0.2, batch=None, steps=1)
    before, after = (
        simulate(FLSS(FedAvg(local), 2, 3, every=2, project=p), rounds=8).params.flat  # type: ignore[arg-type]
        for p in ("gradient", "update")
    )
    torch.testing.assert_close(before, after, atol=2e-6, rtol=1e-5)
    more = LocalSGD(lr=0.2, batch=4)
    before, after = (
        simulate(FLSS(FedAvg(more), 2, 3, every=2, project=p), rounds=8).params.flat  # type: ignore[arg-type]
        for p in ("gradient", "update")
    )
    assert (before - after).abs().max() > 1e-3


def test_the_scale_multiplies_the_rate_of_projected_rounds_alone() -> None:
    for local, rate in ((LOCAL, 0.1), (LocalSGD(lr=tw.Decay(0.4, rounds=(2,), factor=0.5), batch=8), 0.1)):
        _, request, _, _ = projected_round(FLSS(FedAvg(local), 2, 3, every=2, scale=0.5))
        assert request.trainer.rate(Key(0, 5)) == pytest.approx(rate)
    first = simulate(FLSS(FedAvg(LOCAL), 2, 3, every=2, scale=0.5), rounds=4)
    assert torch.equal(first.params.flat, simulate(FedAvg(LOCAL), rounds=4).params.flat)


def test_residuals_rest_in_projected_rounds() -> None:
    method = tw.parse("FLSS(FedAvg(up=ErrorFeedback(TopK(0.1))), rank=2, start=3, every=3)", {"lr": 0.2})
    run = Simulation(method, mlp, blobs(), workers=1, plan="each")
    moved = []
    with run.pool:
        for _ in range(8):
            before = [tw.dumps(run.states.get(client).own.tx) for client in range(6)]
            run.step()
            moved.append([tw.dumps(run.states.get(client).own.tx) != b for client, b in enumerate(before)])
    assert moved == [[True] * 6] * 4 + [[False] * 6] * 2 + [[True] * 6] + [[False] * 6]


def test_the_mean_of_coefficients_is_weighted_like_the_updates() -> None:
    for weights in ("examples", "uniform"):
        method = FLSS(FedAvg(LOCAL, weights=weights), 2, 3, every=None)  # type: ignore[arg-type]
        plain = Simulation(FedAvg(LOCAL, weights=weights), mlp, blobs(), workers=1, plan="each", seed=2)  # type: ignore[arg-type]
        run = Simulation(method, mlp, blobs(), workers=1, plan="each", seed=2)
        with run.pool, plain.pool:
            for _ in range(4):
                before = plain.server.x.flat
                run.step()
                plain.step()
        p = matrix(run.server.rows)
        mean = (plain.server.x.flat - before).double().numpy()  # of round 4, from the same model
        np.testing.assert_allclose(run.server.coefficients.flat.numpy(), p.T @ mean, atol=1e-5)
        moved = (run.server.inner.x.flat - before).double().numpy()
        np.testing.assert_allclose(moved, p @ (p.T @ mean), atol=1e-5)


# -- bytes -------------------------------------------------------------------------


def test_the_bytes_of_every_kind_of_round_are_these() -> None:
    # Rounds 1 to 4 and 7 are full. Up, full: version 1, list 2, update 6, no coefficients 6, padding 1, 4 x 83, the bit
    # that says so 1. Projected: the same structure 15, the mask's four bits 1, 4 x 2.
    up = [(349, 93)] * 4 + [(24, 92)] * 2 + [(349, 93), (24, 92)]
    # Down: version 1, list 2, three fields of 6, two lists of matrices 2 each, round 2. First the model: padding 1,
    # 4 x 83, two masks 1 each. Then updates: masks 1 each. The round after the third brings the matrix of the first
    # basis, those after other full rounds that of the next: a tensor 4,
    # padding 3, 8 x 6. After projected rounds 4 x 2.
    down = [(362, 63), (361, 71), (361, 71), (416, 71), (416, 71), (40, 70), (40, 70), (416, 71)]
    result = simulate("FLSS(FedAvg(), rank=2, start=3, every=3)", rounds=8, sample=6)
    assert bills(result, "up") == [[bill] * 6 for bill in up]
    assert bills(result, "down") == [[bill] * 6 for bill in down]
    assert [r["up_floats"] for r in result.rounds] == [498.0] * 4 + [12.0] * 2 + [498.0, 12.0]
    # Clients cannot make Adam's step: they are sent the model, 332 more, beside the update that moves the
    # basis; the matrix's padding is 7.
    result = simulate("FLSS(FedAvg(opt=Adam(0.03)), rank=2, start=3, every=3)", rounds=8, sample=6)
    down = [(362, 63), (693, 71), (693, 71), (752, 71), (752, 71), (362, 71), (362, 71), (752, 71)]
    assert bills(result, "up") == [[bill] * 6 for bill in up]
    assert bills(result, "down") == [[bill] * 6 for bill in down]


def test_half_as_many_bytes_hold_the_basis_in_bfloat16() -> None:
    sizes = []
    for store in ("float32", "bfloat16"):
        run = Simulation(FLSS(FedAvg(LOCAL), 3, 4, store=store), mlp, blobs(), workers=1, plan="each")  # type: ignore[arg-type]
        with run.pool:
            for _ in range(5):
                run.step()
        assert all(row.element_size() == (4 if store == "float32" else 2) for row in run.server.rows)
        sizes.append((len(tw.dumps(list(run.server.rows))), len(tw.dumps(list(run.stream.view.state.rows)))))
    # Version 1, list 2, tensors 3 each, then 3 x 83 numbers.
    assert sizes == [(1_008, 1_008), (510, 510)]


def test_a_client_that_was_away_is_billed_for_what_it_got() -> None:
    # Client 0 skips rounds 5 to 7: four messages of coefficients in round 8. Client 2 comes then for the first time
    # and is sent a snapshot: three models of 332 and 32 of structure.
    cohorts: list[Any] = [([0, 1], set())] * 4 + [([1], set())] * 3 + [([0, 1, 2], set())]
    run = chosen("FLSS(FedAvg(), rank=2, start=3, every=None)", cohorts)
    found = {c: [e.payload for e in run.ledger.of("down") if e.client == c] for c in (0, 1, 2)}
    assert found == {0: [362, 361, 361, 416, 160], 1: [362, 361, 361, 416, 40, 40, 40, 40], 2: [1_028]}


# -- learning, and what is refused ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", ", store='bfloat16', project='gradient', decay=0.7"])
def test_digits_are_learnt_with_a_third_of_the_rounds_full(more: str) -> None:
    tasks, test = handwriting()
    method = tw.parse(f"FLSS(FedAvg(), rank=5, start=8, every=4{more})", {"lr": 0.2, "batch": 16, "epochs": 2})
    result = tw.simulate(
        method, digits_mlp, tasks, 20, test=test, seed=7, workers=1, plan="together", evaluate_every=20
    )
    assert result.accuracy is not None
    assert result.accuracy > 0.7  # knowing nothing is 0.1


def test_the_checkpoint_of_another_store_is_refused(tmp_path: Path) -> None:
    simulate("FLSS(FedAvg(), rank=2, start=3)", rounds=4, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"another run: its method\.store is 'float32', not 'bfloat16'$"):
        simulate("FLSS(FedAvg(), rank=2, start=3, store='bfloat16')", rounds=6, out=tmp_path / "run", resume=True)
    assert len(simulate("FLSS(FedAvg(), rank=2, start=3)", rounds=6, out=tmp_path / "run", resume=True).rounds) == 6


def test_a_round_in_which_nobody_answers_is_not_applied_twice() -> None:
    cohorts: list[Any] = [([0, 1], set())] * 7
    for silent in (1, 2, 3, 4, 5):
        cohorts = [([0, 1], set()) for _ in range(7)]
        cohorts[silent] = ([1, 2], {1, 2})
        run = chosen("FLSS(FedAvg(), rank=2, start=3, every=2)", cohorts)
        msg = run.algorithm.broadcast(run.server, run.stream.view.state)
        view = run.algorithm.see(run.stream.view.state, msg, Key(0))
        assert torch.equal(view.inner.x.flat, run.server.inner.x.flat)
        assert all(torch.equal(a, b) for a, b in zip(view.rows, run.server.rows, strict=True))


def test_a_dict_of_links_goes_through_as_it_would_without_a_subspace() -> None:
    method = FLSS(FedAvg(up={}, down={}), rank=2, start=3)
    assert method.up == {"coefficients": tw.Dense()}
    with pytest.raises(ValueError, match="up= names 'delta', but the fields it can carry are coefficients, update"):
        chosen("FLSS(FedAvg(up={'delta': Half()}), rank=2, start=3)", [([0], set())])


def test_coefficients_may_go_by_a_linear_link_alone() -> None:
    for link in (tw.ErrorFeedback(tw.TopK(0.5)), tw.LBGM()):
        with pytest.raises(CombinationError, match="are those of another basis"):
            tw.FLSS(tw.FedAvg(), rank=2, start=2, coefficients=link)
    half = tw.parse("FLSS(FedAvg(), rank=2, start=2, coefficients=Half())")
    assert "coefficients=Half()" in tw.complete(half)
    assert "coefficients" not in tw.complete(tw.FLSS(tw.FedAvg(), rank=2, start=2))  # as runs of before have it
