"""Random subspaces: the Hadamard transform and both bases against dense matrices, and the link that projects."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from torch import Size, Tensor

from thinwire import Dense, ErrorFeedback, Fastfood, FedAvg, Flat, Gaussian, Key, Layout, Params, PerTensor, Projection
from thinwire.errors import CombinationError
from thinwire.kernels import counter, fastfood
from thinwire.kernels.hadamard import hadamard_
from thinwire.links.subspace import Basis
from thinwire.wire import dumps, loads

KEY = Key(3, 5, 2, "up/update")
bases = pytest.mark.parametrize("basis", [Fastfood(), Gaussian()], ids=repr)


def normal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def matrix(basis: Basis, size: int, dim: int, key: Key = KEY) -> Tensor:
    """A, column by column, in double precision."""
    return torch.stack([basis.expand(unit, size, key) for unit in torch.eye(dim)], 1).double()


# -- Hadamard -----------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 128, 256, 1024, 2048])
def test_the_transform_is_the_product_with_the_dense_matrix(n: int) -> None:
    x = torch.randint(-50, 50, (n,), generator=torch.Generator().manual_seed(n)).float()  # whole: sums are exact
    expected = scipy.linalg.hadamard(n).astype(np.float64) @ x.double().numpy()
    assert hadamard_(x.clone()).tolist() == expected.tolist()


@pytest.mark.parametrize("n", [1 << 17, 1 << 18, 1 << 20])
def test_a_large_vector_transformed_twice_is_n_times_itself(n: int) -> None:
    x = torch.randint(-3, 4, (n,), generator=torch.Generator().manual_seed(1)).float()
    once = hadamard_(x.clone())
    # Row i of H has the sign (-1)^(number of bits that i and j share).
    for i in (0, 1, n // 2, n - 1, 12_345):
        shared = np.bitwise_count(np.arange(n) & i) % 2
        assert once[i].item() == float(((1 - 2 * shared.astype(np.int64)) * x.numpy().astype(np.int64)).sum())
    assert torch.equal(hadamard_(once), x * n)


def test_the_transform_is_made_in_place_and_returned() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 5.0])
    assert hadamard_(x) is x
    assert x.tolist() == [11.0, -3.0, -5.0, 1.0]


@pytest.mark.parametrize("n", [0, 3, 6, 100, (1 << 17) + 1])
def test_a_length_that_is_no_power_of_two_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"^a Hadamard transform of {n} entries: it takes a power of two$"):
        hadamard_(torch.zeros(n))


# -- both bases ---------------------------------------------------------------

# (size, dim): nothing, everything and neither a power of two; more than a chunk of draws; more than a transform's part
SHAPES = [(1, 1), (5, 5), (8, 3), (16, 16), (100, 7), (1_000, 1), (777, 100), (64, 64), (70_000, 300), (200_000, 33)]


@bases
@pytest.mark.parametrize(("size", "dim"), SHAPES)
def test_projecting_is_the_adjoint_of_expanding(basis: Basis, size: int, dim: int) -> None:
    for seed in range(3):
        s, x = normal(dim, seed), normal(size, 100 + seed)
        expanded, projected = basis.expand(s, size, KEY), basis.project(x, dim, KEY)
        assert (expanded.shape, projected.shape) == ((size,), (dim,))
        assert expanded.dtype == projected.dtype == torch.float32
        one, other = expanded.double() @ x.double(), s.double() @ projected.double()
        assert abs(one - other) < 2e-6 * expanded.double().norm() * x.double().norm()
        assert expanded.norm() > 0


@bases
def test_expanding_is_linear_and_zeros_stay_zeros(basis: Basis) -> None:
    s, t = normal(7, 1), normal(7, 2)
    both = basis.expand(2 * s - t, 100, KEY)
    torch.testing.assert_close(both, 2 * basis.expand(s, 100, KEY) - basis.expand(t, 100, KEY), atol=1e-5, rtol=1e-5)
    assert basis.expand(torch.zeros(7), 100, KEY).abs().max() == 0.0
    assert basis.project(torch.zeros(100), 7, KEY).abs().max() == 0.0


@bases
def test_what_is_handed_in_is_not_written_to(basis: Basis) -> None:
    s, x = normal(8, 1), normal(128, 2)
    basis.expand(s, 128, KEY), basis.project(x, 8, KEY)
    assert torch.equal(s, normal(8, 1))
    assert torch.equal(x, normal(128, 2))


@bases
@pytest.mark.parametrize(("size", "dim"), [(6, 3), (4, 4), (9, 1), (5, 8)])
def test_expanding_what_was_projected_is_right_on_average(basis: Basis, size: int, dim: int) -> None:
    draws = 300
    products = []
    for t in range(draws):
        a = matrix(basis, size, dim, Key(11, t))
        products.append(a @ a.T)
    found = torch.stack(products)
    error = found.std(0) / draws**0.5
    assert error.max() < 0.26
    # The largest of at most 81 entries is off by 5 standard errors with probability 5e-5.
    assert ((found.mean(0) - torch.eye(size)).abs() <= 5 * error + 1e-6).all()


@bases
@pytest.mark.parametrize(("size", "dim", "off"), [(4_096, 16, 0.12), (3_000, 16, 0.14), (20_000, 7, 0.06)])
def test_the_columns_are_nearly_orthogonal_of_squared_length_size_over_dim(
    basis: Basis, size: int, dim: int, off: float
) -> None:
    a = matrix(basis, size, dim)
    gram = a.T @ a * dim / size
    assert (gram - torch.eye(dim)).abs().max() < off  # entries are off by sqrt(2 / size) or so: five of them


@bases
def test_the_two_ends_and_every_client_draw_the_same_matrix(basis: Basis) -> None:
    s, x = normal(300, 1), normal(70_000, 2)
    first = [dumps(basis.expand(s, 70_000, KEY)), dumps(basis.project(x, 300, KEY))]
    other = KEY._replace(client=None)
    torch.manual_seed(99)
    assert [dumps(basis.expand(s.clone(), 70_000, other)), dumps(basis.project(x.clone(), 300, other))] == first


@pytest.fixture
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_the_number_of_threads_changes_no_bit(request: pytest.FixtureRequest) -> None:
    s, x = normal(300, 1), normal(200_000, 2)
    one = [Fastfood().expand(s, 200_000, KEY), Fastfood().project(x, 300, KEY)]
    request.getfixturevalue("_two_threads")
    two = [Fastfood().expand(s, 200_000, KEY), Fastfood().project(x, 300, KEY)]
    assert torch.get_num_threads() == 2
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@bases
def test_another_seed_round_or_place_is_another_matrix(basis: Basis) -> None:
    keys = [KEY, KEY._replace(seed=4), KEY._replace(round=6), KEY._replace(where="up/other"), KEY.always()]
    found = [matrix(basis, 200, 5, key) for key in keys]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert abs(float((one * other).sum())) < 0.25 * float((one * one).sum())  # 0.03 is one standard deviation


# -- a matrix for every tensor ------------------------------------------------------

SMALL = Layout(("w", "none", "b"), (Size([2, 3]), Size([0, 4]), Size([2])))


def whole(basis: Basis, layout: Layout, dim: int, key: Key = KEY) -> Tensor:
    """A over all tensors, column by column."""
    return torch.stack([basis.expand_model(unit, layout, key).flat for unit in torch.eye(dim)], 1).double()


@bases
def test_by_tensor_projecting_is_the_adjoint_of_expanding(basis: Basis) -> None:
    layout = Layout(("w", "scale", "b"), (Size([20, 40]), Size([]), Size([30])))
    for seed, dim in enumerate([1, 7, 64]):  # the last one more than most tensors have entries
        s, x = normal(dim, seed), Params(layout, normal(831, 100 + seed))
        expanded, projected = (
            PerTensor(basis).expand_model(s, layout, KEY),
            PerTensor(basis).project_model(x, dim, KEY),
        )
        assert (expanded.layout, projected.shape) == (layout, (dim,))
        assert abs(expanded @ x - float(s.double() @ projected.double())) < 2e-6 * expanded.norm() * x.norm()


@bases
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_by_tensor_what_was_projected_is_right_on_average_across_tensors_too(basis: Basis, dim: int) -> None:
    found = torch.stack([a @ a.T for a in (whole(PerTensor(basis), SMALL, dim, Key(12, t)) for t in range(300))])
    error = found.std(0) / 300**0.5
    assert error.max() < 0.26
    assert ((found.mean(0) - torch.eye(8)).abs() <= 5 * error + 1e-6).all()


@bases
def test_each_tensor_has_a_matrix_of_its_own_and_a_model_of_one_is_its_matrix(basis: Basis) -> None:
    twins = Layout(("w", "v"), (Size([30, 10]), Size([30, 10])))
    a = whole(PerTensor(basis), twins, 5)
    one, other = a[:300], a[300:]
    assert abs(float((one * other).sum())) < 0.25 * float((one * one).sum())
    assert torch.equal(one, whole(PerTensor(basis), twins.only(["w"]), 5))  # whatever else the model has
    assert torch.equal(one, matrix(basis, 300, 5, KEY.at("w")))


def test_a_matrix_over_the_whole_vector_does_not_see_the_tensors() -> None:
    for basis in (Fastfood(), Gaussian()):
        assert torch.equal(whole(basis, SMALL, 3), matrix(basis, 8, 3))
        assert not torch.equal(whole(PerTensor(basis), SMALL, 3), matrix(basis, 8, 3))
        assert torch.equal(matrix(PerTensor(basis), 8, 3), matrix(basis, 8, 3))  # a vector is one tensor


# -- Fastfood -----------------------------------------------------------------


@pytest.mark.parametrize(("size", "dim"), [(8, 3), (6, 4), (100, 7), (128, 100), (33, 33), (1, 1), (5, 12)])
def test_fastfood_is_the_product_of_its_dense_factors(size: int, dim: int) -> None:
    n = max(16 if dim == 12 else 1, {8: 8, 6: 8, 100: 128, 128: 128, 33: 64, 1: 1, 5: 8}[size])
    m = {3: 4, 4: 4, 7: 8, 100: 128, 33: 64, 1: 1, 12: 16}[dim]
    draw = fastfood.draws(0, n, n, m, KEY.everyone().number("fastfood"))
    sign, gauss, place = (part.numpy() for part in draw)
    h = scipy.linalg.hadamard(n).astype(np.float64)
    dense = np.diag(sign.astype(np.float64)) @ h @ np.diag(gauss.astype(np.float64)) @ h[place][:, :dim]
    dense = dense[:size] / np.sqrt(n * dim)
    np.testing.assert_allclose(matrix(Fastfood(), size, dim).numpy(), dense, atol=1e-5)
    assert set(np.unique(sign)) <= {-1, 1}


def test_what_is_drawn_is_signs_normal_numbers_and_every_place_equally_often() -> None:
    sign, gauss, place = fastfood.draws(0, 1 << 17, 1 << 17, 1 << 10, 77)
    assert sign.unique().tolist() == [-1, 1]
    assert abs(sign.double().mean()) < 0.014  # five standard errors: 5 / sqrt(131,072)
    assert abs(gauss.double().mean()) < 0.014
    assert abs(gauss.double().square().mean() - 1) < 0.02
    assert abs(gauss.double().pow(4).mean() - 3) < 0.14  # its standard error is sqrt(96 / 131,072)
    assert abs((gauss * sign).double().mean()) < 0.014
    assert abs((gauss[1:] * gauss[:-1]).double().mean()) < 0.014
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) with probability 0.001, and a step of the table is 1 / 8,192
    assert scipy.stats.kstest(gauss.numpy(), "norm").statistic < 0.0055
    assert place.bincount().tolist() == [128] * 1_024


def test_the_table_of_magnitudes_is_that_of_the_half_normal_distribution() -> None:
    table = fastfood.quantiles()
    expected = scipy.stats.halfnorm.ppf((np.arange(4_096) + 0.5) / 4_096)
    np.testing.assert_allclose(table, expected / np.sqrt(np.mean(expected**2)), rtol=2e-7)
    # The same bits on every machine: the sums of both ends would differ without it.
    assert zlib.crc32(table.tobytes()) == 1_623_785_428


@pytest.mark.parametrize("bits", range(17))
def test_what_permutes_permutes(bits: int) -> None:
    n = 1 << bits
    for seed in range(5):
        found = fastfood.permute(torch.arange(n), n, counter.keys(seed, 3))
        assert sorted(found.tolist()) == list(range(n))
        if bits >= 10:  # far from where they were, and neighbours far from each other
            assert (found - torch.arange(n)).abs().double().mean() > 0.25 * n
            assert abs(np.corrcoef(found.numpy()[:-1], found.numpy()[1:])[0, 1]) < 0.16  # 5 / sqrt(1,024)


@pytest.mark.parametrize("bits", [10, 14])
def test_a_part_of_the_draws_is_that_part_of_all_draws(bits: int) -> None:
    whole = fastfood.draws(0, 1 << bits, 1 << bits, 64, 5)
    for part, all_ in zip(fastfood.draws(100, 300, 1 << bits, 64, 5), whole, strict=True):
        assert torch.equal(part, all_[100:300])


MEASURED = """
import torch
from thinwire import Fastfood, Key
torch.set_num_threads(1)
size, dim, key = 6_570_880, 16_384, Key(0)
x, s = torch.ones(size), torch.ones(dim)
Fastfood().project(torch.ones(70_000), 64, key), Fastfood().expand(torch.ones(64), 70_000, key)
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name + ":"))
before = status("VmRSS")
Fastfood().project(x, dim, key)
print(status("VmHWM") - before)
Fastfood().expand(s, size, key)
print(status("VmHWM") - before)
"""


@pytest.mark.deployment
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_large_matrix_takes_little_more_than_one_padded_vector_of_memory() -> None:
    # 6,570,880 entries are padded to 2^23 floats, 33.6 MB. Beside them: chunks of 65,536 draws. Measured 37 MB;
    # 50 MB is a vector and a half. (Not ru_maxrss: a child inherits its parent's.)
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    project, both = map(int, done.stdout.split())
    assert 25_000_000 < project < 50_000_000
    assert both < 50_000_000


# -- the link -----------------------------------------------------------------

LAYOUT = Layout(("w", "scale", "b"), (Size([20, 40]), Size([]), Size([30])))


def through(link: Projection | Flat, x: Params, key: Key) -> tuple[bytes, Params]:
    packet, seen, _ = link.send(x, None, key)
    data = dumps(packet)
    got, _ = link.recv(loads(data), x.layout, None, key)
    assert torch.equal(got.flat, seen.flat)
    return data, seen


def test_layers_that_are_not_larger_than_dim_are_sent_whole() -> None:
    x = Params(LAYOUT, normal(831))
    _, seen = through(Projection(30), x, KEY)
    assert torch.equal(seen["scale"], x["scale"])
    assert torch.equal(seen["b"], x["b"])
    assert not torch.allclose(seen["w"], x["w"], atol=0.1)
    _, seen = through(Projection(29), x, KEY)
    assert not torch.allclose(seen["b"], x["b"], atol=0.1)
    _, seen = through(Projection(800), x, KEY)
    assert torch.equal(seen.flat, x.flat)


@bases
def test_what_is_sent_of_a_layer_is_its_projection_and_what_is_seen_its_expansion(basis: Basis) -> None:
    layout = Layout(("w",), (Size([4, 5]),))
    x = Params(layout, normal(20))
    packet, seen, _ = Projection(3, basis).send(x, None, KEY)
    a = matrix(basis, 20, 3, KEY.at("w"))
    torch.testing.assert_close(packet[0].double(), a.T @ x.flat.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.flat.double(), a @ a.T @ x.flat.double(), atol=1e-4, rtol=1e-4)


@bases
@pytest.mark.parametrize("link", [Projection, lambda *a: Flat(Projection(*a))], ids=["by layer", "flat"])
def test_a_projected_layer_is_seen_as_it_is_on_average(basis: Basis, link: type[Projection]) -> None:
    layout = Layout(("a", "b"), (Size([4, 3]), Size([9])))
    x, draws = Params(layout, normal(21)), 400
    seen = torch.stack([link(4, basis).send(x, None, Key(8, t))[1].flat.double() for t in range(draws)])
    error = seen.std(0) / draws**0.5
    assert error.max() < 0.3
    assert ((seen.mean(0) - x.flat.double()).abs() < 5 * error).all()


@bases
def test_the_mean_of_projections_is_the_projection_of_the_mean(basis: Basis) -> None:
    link, packets, total = Projection(10, basis), [], torch.zeros(831)
    for client, weight in enumerate((1.0, 3.0, 4.0)):
        x = Params(LAYOUT, normal(831, client))
        packets.append(loads(dumps(link.send(x, None, KEY._replace(client=client))[0])))
        total += weight / 8 * x.flat
    assert link.linear
    got, _ = link.recv(link.mean(packets, [1.0, 3.0, 4.0]), LAYOUT, None, KEY._replace(client=None))
    _, expected, _ = link.send(Params(LAYOUT, total), None, KEY)
    torch.testing.assert_close(got.flat, expected.flat, atol=1e-4, rtol=1e-4)


def test_a_fixed_matrix_is_the_same_in_all_rounds_and_another_one_is_not() -> None:
    x = Params(LAYOUT, normal(831))
    for fixed in (True, False):
        one, other = (through(Projection(10, fixed=fixed), x, KEY._replace(round=t))[0] for t in (5, 6))
        assert (one == other) is fixed


def test_two_layers_have_matrices_of_their_own() -> None:
    layout = Layout(("a", "b"), (Size([50]), Size([50])))
    packet, _, _ = Projection(4, fixed=True).send(Params(layout, torch.ones(100)), None, KEY)
    assert not torch.allclose(packet[0], packet[1], atol=0.1)


def test_a_projection_is_no_contraction_and_may_carry_neither_residuals_nor_broadcasts() -> None:
    link = Projection(8)
    assert (link.linear, link.contraction, link.memory, link.absolute) == (True, False, False, False)
    reason = re.escape("ErrorFeedback needs a link that always keeps a part of what it is given (a contraction); ")
    with pytest.raises(CombinationError, match=reason + re.escape("Projection(8) does not")):
        ErrorFeedback(link)
    with pytest.raises(CombinationError, match=r"Flat\(Projection\(8\)\) does not"):
        ErrorFeedback(Flat(link))


def test_projections_have_these_bytes() -> None:
    # Version 1, a list 2, three tensors of 4, 3 and 3 (dimensions none, one), padding to 4, then floats:
    # 16 of w, 1 of scale, 16 of b: 1 + 2 + 3 + 2 + 3 = 11, 1 of padding, 132.
    x = Params(LAYOUT, normal(831))
    data, _ = through(Projection(16), x, KEY)
    assert len(data) == 144
    assert Projection(16).floats(loads(data)) == 33
    data, _ = through(Flat(Projection(16)), x, KEY)
    assert len(data) == 68  # 1, 3, and 64
    assert len(dumps(Dense().send(x, None, KEY)[0])) == 3_332  # 5, 3 of padding, 3,324
    assert FedAvg(up=Projection(16)).up == Projection(16)


def test_what_a_dense_projection_sends_is_what_is_seen() -> None:
    layout = Layout(("w", "scale", "b"), (Size([20, 40]), Size([]), Size([30])))
    x = Params(layout, torch.randn(831, generator=torch.Generator().manual_seed(0)))
    for dim in (7, 10, 29):
        link = Projection(dim, Gaussian())
        for round in range(20):
            key = Key(round, 0, 2, "up/update")
            packet, seen, _ = link.send(x, None, key)
            got, _ = link.recv(loads(dumps(packet)), layout, None, key)
            assert torch.equal(got.flat, seen.flat)
