"""Intrinsic gradient compression: the path against dense matrices, hand values, catching up, bytes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from blobs import assert_same_model, bills, blobs, chosen, mlp, normed, simulate
from problems import Point, Quadratic, handwriting
from problems import mlp as digits_mlp
from thinwire import SGD, Adam, Basis, FedAvg, Gaussian, Intrinsic, Key, LocalSGD, PerTensor, Simulation

LOCAL = LocalSGD(lr=0.2, batch=8)
STEP = LocalSGD(lr=0.5, batch=None, steps=1)


@dataclass(frozen=True)
class Identity(Basis):
    """A = I."""

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        return s.clone()

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        return x.clone()


@dataclass(frozen=True)
class Shuffled(Basis):
    """A is a permutation, another one for every key."""

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        return torch.empty(size).index_copy_(0, self._order(size, key), s)

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        return x[self._order(dim, key)]

    def _order(self, n: int, key: Key) -> Tensor:
        return torch.randperm(n, generator=key.generator("order"))


@dataclass(frozen=True)
class Slices(Basis):
    """Subspace k is the k-th slice of the vector."""

    def expand(self, s: Tensor, size: int, key: Key) -> Tensor:
        start = int(key.where[-1]) * len(s)
        return torch.cat([torch.zeros(start), s, torch.zeros(size - start - len(s))])

    def project(self, x: Tensor, dim: int, key: Key) -> Tensor:
        start = int(key.where[-1]) * dim
        return x[start : start + dim].clone()


def stepped(method: tw.Algorithm, model: Any, tasks: Any, rounds: int, **options: Any) -> list[Any]:
    """The server's state before round 1 and after each."""
    run = Simulation(method, model, tasks, workers=1, plan="each", **options)
    states = [run.server]
    with run.pool:
        for _ in range(rounds):
            run.step()
            states.append(run.server)
    return states


# -- the path -------------------------------------------------------------------

H = torch.tensor([1.0, 2.0, 3.0, 0.5, 1.5])
TASK = Quadratic(H, torch.tensor([[1.0, -1.0, 0.5, 2.0, 0.0]]))
START = (0.5, 1.0, -1.0, 0.25, 2.0)


def dense(basis: Basis, dim: int, seed: int, epoch: int, name: str) -> np.ndarray:
    """A, column by column."""
    key = Key(seed, epoch, None, f"intrinsic/{name}")
    return torch.stack([basis.expand(unit, 5, key) for unit in torch.eye(dim)], 1).double().numpy()


@pytest.mark.parametrize("basis", [tw.Fastfood(), Gaussian()], ids=repr)
@pytest.mark.parametrize("epoch", [None, 1, 2, 3])
def test_the_path_is_gradient_descent_on_the_coefficients(basis: Basis, epoch: int | None) -> None:
    varying = {} if epoch is None else {"varying": True, "epoch": epoch}
    method = Intrinsic(3, local=LocalSGD(lr=0.05, batch=None, steps=1), opt=SGD(0.5), basis=basis, **varying)
    states = stepped(method, Point(*START), [TASK], 7, seed=9)
    h, target = H.double().numpy(), TASK.targets[0].double().numpy()
    theta, sigma = np.array(START), np.zeros(3)
    for t in range(7):
        a = dense(basis, 3, 9, t // epoch if epoch else 0, "subspace0")
        gradient = h * (theta + a @ sigma - target)
        sigma = sigma - 0.5 * 0.05 * a.T @ gradient
        expected = theta + a @ sigma
        np.testing.assert_allclose(method.model(states[t + 1]).flat.numpy(), expected, atol=3e-6)
        if epoch and (t + 1) % epoch == 0:
            theta, sigma = theta + a @ sigma, np.zeros(3)
            np.testing.assert_allclose(states[t + 1].base.flat.numpy(), theta, atol=3e-6)
            assert states[t + 1].sigma.flat.tolist() == [0.0, 0.0, 0.0]
        elif not epoch:
            assert torch.equal(states[t + 1].base.flat, torch.tensor(START))
        np.testing.assert_allclose(states[t + 1].sigma.flat.numpy(), sigma, atol=3e-6)
    assert np.abs(expected - np.array(START)).max() > 0.05


def test_every_epoch_has_a_matrix_of_its_own_and_the_last_coefficients_are_kept() -> None:
    found = [dense(tw.Fastfood(), 3, 9, epoch, "subspace0") for epoch in range(3)]
    assert all(np.abs(a - b).max() > 0.1 for a, b in itertools.combinations(found, 2))
    method = Intrinsic(3, varying=True, epoch=2, local=STEP)
    states = stepped(method, Point(*START), [TASK], 4, seed=9)
    assert [s.before.flat.norm().item() > 0 for s in states] == [False, False, True, True, True]
    assert not torch.equal(states[2].before.flat, states[4].before.flat)
    assert torch.equal(states[2].before.flat, states[3].before.flat)
    moved = states[2].base.flat - torch.tensor(START)
    expected = dense(tw.Fastfood(), 3, 9, 0, "subspace0") @ states[2].before.flat.double().numpy()
    np.testing.assert_allclose(moved.numpy(), expected, atol=1e-5)


def test_an_adaptive_server_steps_on_the_coefficients() -> None:
    # m = .9 m + .1 d, v = .99 v + .01 d^2 from 1e-6; Sigma + .05 m / (sqrt(v) + 1e-3): as Adam in tables.py.
    method = Intrinsic(3, local=LocalSGD(lr=0.05, batch=None, steps=1), opt=Adam(0.05), basis=Gaussian())
    states = stepped(method, Point(*START), [TASK], 5, seed=2)
    a, h, target = dense(Gaussian(), 3, 2, 0, "subspace0"), H.double().numpy(), TASK.targets[0].double().numpy()
    sigma, m, v = np.zeros(3), np.zeros(3), np.full(3, 1e-6)
    for t in range(5):
        d = -0.05 * a.T @ (h * (np.array(START) + a @ sigma - target))
        m, v = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d**2
        sigma = sigma + 0.05 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(states[t + 1].sigma.flat.numpy(), sigma, atol=1e-5)


def test_the_servers_momentum_ends_with_its_epoch() -> None:
    # m = .9 m + d, Sigma + m; d = -.05 A^T gradient at theta + A Sigma: another A, and m from 0, every two rounds.
    sgd = LocalSGD(lr=0.05, batch=None, steps=1)
    method = Intrinsic(3, varying=True, epoch=2, local=sgd, opt=tw.Momentum(), basis=Gaussian())
    states = stepped(method, Point(*START), [TASK], 5, seed=2)
    h, target, theta = H.double().numpy(), TASK.targets[0].double().numpy(), np.array(START)
    for t in range(5):
        if t % 2 == 0:
            a, origin, sigma, m = dense(Gaussian(), 3, 2, t // 2, "subspace0"), theta, np.zeros(3), np.zeros(3)
        m = 0.9 * m - 0.05 * a.T @ (h * (theta - target))
        sigma = sigma + m
        theta = origin + a @ sigma
        np.testing.assert_allclose(method.model(states[t + 1]).flat.numpy(), theta, atol=1e-5)


# -- reductions -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("basis", [Identity(), Shuffled()], ids=repr)
def test_a_square_orthonormal_matrix_makes_it_fedavg(basis: Basis, model: Any) -> None:
    size = 83 if model is mlp else 99
    plain = simulate(FedAvg(LOCAL), model, 5)
    # A base that moves every round is the model, and the sums are the same ones.
    moving = simulate(Intrinsic(size, varying=True, epoch=1, local=LOCAL, basis=basis), model, 5)
    assert_same_model(moving, plain)
    assert [r["train_loss"] for r in moving.rounds] == [r["train_loss"] for r in plain.rounds]
    for epoch in (2, 100):  # otherwise the coefficients are summed first
        found = simulate(Intrinsic(size, varying=True, epoch=epoch, local=LOCAL, basis=basis), model, 5)
        torch.testing.assert_close(found.params.flat, plain.params.flat, atol=2e-6, rtol=1e-5)
    static = simulate(Intrinsic(size, local=LOCAL, basis=basis, weights="uniform"), model, 5)
    uniform = simulate(FedAvg(LOCAL, weights="uniform"), model, 5)
    torch.testing.assert_close(static.params.flat, uniform.params.flat, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("basis", [Identity(), Shuffled()], ids=repr)
def test_a_square_orthonormal_matrix_of_the_only_tensor_makes_it_fedavg_too(basis: Basis) -> None:
    plain = stepped(FedAvg(STEP), Point(*START), [TASK], 4)
    method = Intrinsic(5, varying=True, epoch=1, local=STEP, basis=PerTensor(basis))
    found = stepped(method, Point(*START), [TASK], 4)
    assert [method.model(s).flat.tolist() for s in found] == [s.x.flat.tolist() for s in plain]


def test_by_tensor_the_path_is_gradient_descent_on_the_shared_coefficients() -> None:
    # Two parameters p and q, each with a matrix of its own: the gradient of Sigma is A_p^T g_p + A_q^T g_q.
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = nn.Parameter(torch.tensor(START[:2])), nn.Parameter(torch.tensor(START[2:]))

        def vector(self) -> Tensor:
            return torch.cat([self.p, self.q])

    method = Intrinsic(3, local=LocalSGD(lr=0.05, batch=None, steps=1), opt=SGD(0.5), basis=PerTensor(Gaussian()))
    states = stepped(method, Two(), [TASK], 7, seed=9)
    key, units = Key(9, 0, None, "intrinsic/subspace0"), torch.eye(3)
    parts = [[Gaussian().expand(u, size, key.at(name)) for u in units] for name, size in (("p", 2), ("q", 3))]
    a = torch.cat([torch.stack(columns, 1) for columns in parts]).double().numpy()
    h, target, sigma = H.double().numpy(), TASK.targets[0].double().numpy(), np.zeros(3)
    for t in range(7):
        sigma = sigma - 0.5 * 0.05 * a.T @ (h * (np.array(START) + a @ sigma - target))
        np.testing.assert_allclose(method.model(states[t + 1]).flat.numpy(), np.array(START) + a @ sigma, atol=3e-6)
    assert np.abs(a @ sigma).max() > 0.05


@pytest.mark.parametrize("method", ["Intrinsic(20)", "Intrinsic(10, subspaces=2, opt=Adam(0.03))"])
def test_an_epoch_that_does_not_end_is_the_static_form(method: str) -> None:
    static, varying = simulate(method), simulate(f"{method[:-1]}, varying=True, epoch=5)")
    assert torch.equal(static.params.flat, varying.params.flat)
    assert [r["test_loss"] for r in static.rounds] == [r["test_loss"] for r in varying.rounds]


@pytest.mark.parametrize(
    ("form", "more"),  # 83 floats; in the time-varying form a snapshot, which saves the epoch before (8 floats).
    # A message of 128 bytes or more has a byte more in its header.
    [("8", 333), ("8, varying=True, epoch=2", 301), ("4, subspaces=2", 333)],
)
def test_a_starting_point_that_is_known_changes_bytes_alone(form: str, more: int) -> None:
    sent, known = (simulate(f"Intrinsic({form}{known})", rounds=5, sample=6) for known in ("", ", known=True"))
    assert torch.equal(sent.params.flat, known.params.flat)
    assert sent.bytes_up == known.bytes_up
    assert sent.bytes_down - known.bytes_down == 6 * more  # to each client, once


# -- K subspaces ------------------------------------------------------------------

# One step of 0.5 from 0 towards targets: the updates are half of them. Clients of 1, 1 and 2 examples.
THREE = [
    Quadratic(torch.ones(4), torch.tensor([[2.0, 4.0, 6.0, 8.0]])),
    Quadratic(torch.ones(4), torch.tensor([[-2.0, 0.0, 2.0, 4.0]])),
    Quadratic(torch.ones(4), torch.tensor([[4.0, 4.0, -4.0, -4.0]]).repeat(2, 1)),
]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # Client 0 draws the first slice, 1 and 2 the second: (1, 2) of 4 examples; (1, 2) + 2 (-2, -2) of 4.
        ("examples", [0.25, 0.5, -0.75, -0.5]),
        ("uniform", [1 / 3, 2 / 3, -1 / 3, 0.0]),
    ],
)
def test_the_coefficients_of_a_subspace_are_summed_over_those_who_drew_it(weights: Any, expected: list[float]) -> None:
    method = Intrinsic(2, subspaces=2, local=STEP, basis=Slices(), weights=weights)
    server = stepped(method, Point(0.0, 0.0, 0.0, 0.0), THREE, 1, seed=SEED)[1]
    assert server.sigma.names == ("subspace0", "subspace1")
    assert server.sigma.flat.tolist() == pytest.approx(expected)
    assert method.model(server).flat.tolist() == pytest.approx(expected)


SEED = 4


def test_a_reply_names_one_subspace_and_over_the_rounds_each_is_drawn_equally_often() -> None:
    method = Intrinsic(3, subspaces=4, local=LOCAL)
    x = tw.Params.trainable(mlp())
    start = method.init(x, 2, Key(0))
    drawn: dict[str, int] = {}
    for t, client in itertools.product(range(100), range(4)):
        work = method.client(start.view, None, blobs()[0], Key(0, t, client))
        next(work)
        with pytest.raises(StopIteration) as done:
            work.send(tw.Trained(x, 1, 0.0))
        reply, _ = done.value.value
        (name,) = reply.update.names
        assert reply.update.layout.size == 3
        drawn[name] = drawn.get(name, 0) + 1
    assert sorted(drawn) == ["subspace0", "subspace1", "subspace2", "subspace3"]
    assert all(abs(n - 100) < 44 for n in drawn.values())  # five standard deviations of 8.7


def test_the_whole_is_right_on_average_without_a_factor() -> None:
    # One client, one step from 0 with the identity in slices: on average over the draws half of (2, 4, 6, 8) times 1/2.
    method = Intrinsic(2, subspaces=2, local=STEP, basis=Slices())
    found = [
        method.model(stepped(method, Point(0.0, 0.0, 0.0, 0.0), THREE[:1], 1, seed=seed)[1]).flat for seed in range(60)
    ]
    whole = {tuple(x.tolist()) for x in found}
    assert whole == {(1.0, 2.0, 0.0, 0.0), (0.0, 0.0, 3.0, 4.0)}
    first = sum(x[0].item() for x in found)
    assert 11 <= first <= 49  # 30 and five standard deviations of 3.9


# -- bytes ------------------------------------------------------------------------


def test_the_bytes_of_the_static_form_are_these() -> None:
    # Down: version 1, list 2, base and coefficients 6 each, no coefficients of an epoch before 6, round 2, padding 1,
    # 4 x 83 and 4 x 8. Afterwards a mask of four bits in the base's place. Up: 1, lists 4, all 1, tensor 3, padding 3.
    result = simulate("Intrinsic(8)", rounds=3, sample=6)
    assert bills(result, "down") == [[(388, 63)] * 6, [(56, 70)] * 6, [(56, 70)] * 6]
    assert bills(result, "up") == [[(44, 92)] * 6] * 3
    assert [r["up_floats"] for r in result.rounds] == [48.0] * 3
    assert [r["down_floats"] for r in result.rounds] == [546.0, 48.0, 48.0]  # 6 x (83 + 8), then 6 x 8
    known = simulate("Intrinsic(8, known=True)", rounds=3, sample=6)
    assert bills(known, "down") == [[(56, 62)] * 6, [(56, 70)] * 6, [(56, 70)] * 6]


def test_the_bytes_of_the_other_forms_are_these() -> None:
    # Two subspaces: everyone is sent 16 coefficients and sends 8 and their number (in the place of padding).
    result = simulate("Intrinsic(8, subspaces=2, known=True)", rounds=2, sample=6)
    assert bills(result, "down") == [[(88, 62)] * 6, [(88, 70)] * 6]
    assert bills(result, "up") == [[(44, 92)] * 6] * 2
    # Of sixty-four: the number still has a byte and a byte that says so, where a bit each would take three and eight.
    many = simulate("Intrinsic(1, subspaces=64, known=True)", rounds=1, sample=6)
    assert bills(many, "up") == [[(16, 92)] * 6]
    # Time-varying: 8 of this epoch and 8 of the one before.
    result = simulate("Intrinsic(8, varying=True, epoch=2, known=True)", rounds=4, sample=6)
    assert bills(result, "down") == [[(88, 62)] * 6] + [[(88, 70)] * 6] * 3
    assert bills(result, "up") == [[(44, 92)] * 6] * 4
    result = simulate("Intrinsic(8, subspaces=2, varying=True, epoch=2, known=True)", rounds=4, sample=6)
    assert bills(result, "down") == [[(152, 63)] * 6] + [[(152, 71)] * 6] * 3
    assert [r["down_floats"] for r in result.rounds] == [192.0] * 4


# -- catching up --------------------------------------------------------------------


def test_a_client_that_was_away_is_billed_for_what_it_got() -> None:
    # Epochs of four rounds, 56 bytes a message: two times four floats. Client 0 skips round 2, client 1 never; client 2
    # comes in round 8 for the first time, when the messages would be those of rounds 1, 4 and 8.
    cohorts: list[Any] = [([1], set()) for _ in range(8)]
    cohorts[0], cohorts[2], cohorts[7] = ([0, 1], set()), ([0, 1], set()), ([1, 2], set())
    run = chosen("Intrinsic(4, varying=True, epoch=4)", cohorts)
    found = {c: [(e.round, e.payload) for e in run.ledger.of("down") if e.client == c] for c in range(3)}
    assert found[0] == [(1, 372), (3, 56)]
    assert found[1] == [(1, 372), *((t, 56) for t in range(2, 9))]
    # A snapshot: version 1, lists of 3 and 4, base and coefficients 3 each, seed 2, round 2, links 7 and no buffers 1.
    assert found[2] == [(8, 372)]
    # Where the starting point is known a snapshot is no bargain.
    run = chosen("Intrinsic(4, varying=True, epoch=4, known=True)", cohorts)
    assert [e.payload for e in run.ledger.of("down") if e.client == 2] == [112]


@pytest.mark.parametrize(
    "form", ["", ", subspaces=2", ", varying=True, epoch=2", ", varying=True, epoch=1, opt=Yogi()"]
)
@pytest.mark.parametrize("model", [mlp, normed])
def test_clients_train_from_the_very_model_that_is_evaluated(form: str, model: Any) -> None:
    method = tw.parse(f"Intrinsic(8{form})", {"lr": 0.2, "batch": 8})
    run = Simulation(method, model, blobs(), sample=3, dropout=0.4, seed=3, workers=1, plan="each")
    with run.pool:
        for _ in range(7):
            held = method.model(run.server)
            run.step()
            work = method.client(run.stream.view.state, None, blobs()[0], Key(3, run.round, 0))
            assert torch.equal(next(work).x.flat, held.flat)


# -- to disk and back, buffers --------------------------------------------------------


def test_statistics_travel_beside_the_coefficients() -> None:
    result = simulate("Intrinsic(8)", normed, 2, sample=6)
    assert [r["up_floats"] for r in result.rounds] == [6 * 24.0] * 2
    assert [r["down_floats"] for r in result.rounds] == [6 * (99 + 8 + 16.0), 6 * 24.0]
    local = simulate("Intrinsic(8, buffers='local')", normed, 2, sample=6)
    assert [r["up_floats"] for r in local.rounds] == [6 * 8.0] * 2


# -- learning, and what is refused ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["150, subspaces=2", "300, varying=True, epoch=5", "300, basis=PerTensor()"])
def test_digits_are_learnt_in_a_third_of_the_dimensions(form: str) -> None:
    tasks, test = handwriting()
    method = tw.parse(f"Intrinsic({form})", {"lr": 0.2, "batch": 16, "epochs": 2})  # of 910
    result = tw.simulate(
        method, digits_mlp, tasks, 30, test=test, seed=7, workers=1, plan="together", evaluate_every=30
    )
    assert result.accuracy is not None
    assert result.accuracy > 0.7  # knowing nothing is 0.1


def test_as_many_coefficients_as_parameters_are_allowed() -> None:
    assert simulate("Intrinsic(83)", rounds=1).params.layout.size == 83
    assert simulate("Intrinsic(41, subspaces=2)", rounds=1).params.layout.size == 83


LARGE = """
import sys
import torch
from torch import nn
from pathlib import Path
import thinwire as tw

wide = int(sys.argv[1])
inputs, targets = torch.randn(8, wide), torch.randint(wide, (8,))
tasks = [tw.Supervised(inputs, targets, part) for part in torch.arange(8).split(4)]
method = tw.Intrinsic(16384, local=tw.LocalSGD(0.01, batch=4), known=True)
run = tw.Simulation(method, lambda: nn.Linear(wide, wide, bias=False), tasks, workers=1, plan="each")
with run.pool:
    for _ in range(2):
        run.step(evaluate=False)
print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024)
"""


@pytest.mark.deployment
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing here says the most memory a process had")
@pytest.mark.parametrize(
    ("wide", "most"), [(5568, 1_250_000_000), pytest.param(11136, 4_000_000_000, marks=pytest.mark.soak)]
)
def test_a_large_model_is_trained_in_a_subspace_in_seven_vectors_of_its_size(wide: int, most: int) -> None:
    # The model at the start, in training, its gradients, where it got to, the way there, and a padded copy of that. Of
    # 31 million parameters a vector has 124 MB, of 124 million half a gigabyte; torch itself takes some 300 MB.
    done = subprocess.run([sys.executable, "-c", LARGE, str(wide)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < most


def test_coefficients_of_a_moving_subspace_need_a_broadcast_that_loses_nothing() -> None:
    with pytest.raises(tw.errors.CombinationError, match="nothing would bring it back; use down=Dense"):
        tw.Intrinsic(4, varying=True, down=tw.Half())
