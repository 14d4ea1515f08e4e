"""FedPara and PruneFL: identities, hand values, what really crosses the wire, what is refused."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from problems import Quadratic, approx, handwriting, mlp, trained
from thinwire import FLSS, LUAR, FedAvg, FedPara, LocalSGD, Momentum, Params, PruneFL, Simulation
from thinwire.algorithms.fedpara import Product, fold, root_mean_square
from thinwire.algorithms.prunefl import entries_in, prune
from thinwire.errors import CombinationError
from thinwire.models import build

LOCAL = LocalSGD(lr=0.1, batch=16)

# -- FedPara ------------------------------------------------------------------------


def seeded(make: Any, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module: nn.Module = make()
    return module


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, groups=2),
        nn.Flatten(),
        nn.Linear(16 * 6 * 6, 10),
    )


@pytest.mark.parametrize("make", [mlp, convolutions])
def test_at_full_rank_the_products_are_the_dense_layers(make: Any) -> None:
    dense = seeded(make)
    product = FedPara(FedAvg(), rank=64, start="weights").prepare(dense)
    assert any(isinstance(m, Product) for m in product.modules())
    x = torch.randn(5, *((1, 8, 8) if make is mlp else (3, 8, 8)), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(product(x), dense(x), atol=2e-5, rtol=0)
    torch.testing.assert_close(fold(product)(x), dense(x), atol=2e-5, rtol=0)


def test_full_rank_trains_all_its_factors() -> None:
    # What the rank leaves over begins as numbers times zeros: one of each pair has a gradient at once.
    product = FedPara(FedAvg(), rank=20, start="weights").prepare(seeded(convolutions))
    before = Params.trainable(product)
    optimizer = torch.optim.SGD(product.parameters(), lr=0.1)
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(product(x), torch.arange(8)).backward()
        optimizer.step()
    after = Params.trainable(product)
    for name, value in before.items():
        assert bool((after[name] != value).flatten(1).any(1).all() if value.ndim > 1 else True), name


@pytest.mark.parametrize("rank", [1, 4, 16])
@pytest.mark.parametrize("shape", [(96, 120), (64, 48, 3, 3)], ids=["linear", "convolution"])
def test_random_factors_make_weights_of_the_scale_that_was_asked_for(shape: tuple[int, ...], rank: int) -> None:
    product = Product(torch.Size(shape), rank)
    factors = product.draw(0.05, torch.Generator().manual_seed(0))
    assert root_mean_square(product(*factors)) == pytest.approx(0.05, rel=1e-4)


def test_the_initial_weights_keep_the_scale_of_the_module() -> None:
    module = seeded(lambda: nn.Linear(400, 300))
    found = FedPara(FedAvg(), ratio=1.0).prepare(module)
    assert root_mean_square(found.get_parameter("bias").detach()) == root_mean_square(module.bias.detach())
    # 1 / sqrt(3 * 400) = 0.0289
    assert root_mean_square(fold(found).get_parameter("weight").detach()) == pytest.approx(0.0289, rel=0.02)


# Factors of a linear layer have 2 R (outputs + inputs) entries, of a convolution 2 R (outputs + inputs + R k k).
# Linear 512 -> 256, dense 131,072: R = 16 at least (16^2 = 256), 24,576. Half: 65,536 / 1,536 = 42.67, R = 42.
# Convolution 256 -> 256, 3 x 3, dense 589,824: R = 16 at least. A tenth, 58,982: R = 35 makes 57,890, 36 makes 60,192.
@pytest.mark.parametrize(
    ("shape", "ratio", "rank"),
    [
        ((256, 512), 0.01, 16),
        ((256, 512), 0.5, 42),
        ((256, 512), 1.0, 85),
        ((256, 256, 3, 3), 0.01, 16),
        ((256, 256, 3, 3), 0.1, 35),
        ((10, 12), 1.0, None),  # 4 x 22 x 2 = 176 entries in place of 120
        ((16, 3, 3, 3), 1.0, 3),  # 2 at least; 4 would make 440 entries in place of 432
    ],
)
def test_the_rank_follows_from_the_share_of_entries(shape: tuple[int, ...], ratio: float, rank: int | None) -> None:
    assert FedPara(FedAvg(), ratio=ratio).rank_of(torch.Size(shape)) == rank


def test_a_run_sends_the_factors_and_gives_the_dense_model() -> None:
    tasks, test = handwriting()
    module = seeded(mlp)
    result = tw.simulate(
        FedPara(FedAvg(LocalSGD(0.2, batch=8, epochs=3, momentum=0.8)), ratio=0.75),
        module,
        tasks,
        6,
        test=test,
        workers=1,
    )
    # Linear 64 -> 12: R = 4 at least (which is more than 0.75 of it): 608 + 12 + 120 + 10 = 750 floats, 3,000 bytes.
    assert result.params.layout.size == 750
    assert [e.payload for e in result.ledger.of("up", 1)] == [3012] * 8
    assert [e.payload for e in result.ledger.of("down", 1)] == [3012] * 8
    assert list(result.module.state_dict()) == list(module.state_dict())
    fresh = mlp()
    fresh.load_state_dict(result.module.state_dict())
    x, y = test.batch(torch.arange(100))
    assert float((fresh.eval()(x).argmax(1) == y).float().mean()) == pytest.approx(result.accuracy)
    assert result.accuracy > 0.3
    assert list(dict(module.named_parameters())) == ["1.weight", "1.bias", "3.weight", "3.bias"]  # not changed


def test_the_same_seed_begins_with_the_same_factors() -> None:
    a, b, c = (Params.trainable(FedPara(FedAvg(), rank=3).prepare(seeded(mlp, s))).flat for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_what_cannot_or_need_not_be_a_product_stays() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.there, self.back = nn.Linear(40, 40), nn.Linear(40, 40)
            self.back.weight = self.there.weight
            self.frozen, self.plain = nn.Linear(40, 40), nn.Linear(40, 40)
            self.frozen.weight.requires_grad_(False)
            self.table = nn.Embedding(40, 40)

    found = FedPara(FedAvg()).prepare(seeded(Tied))
    products = [name for name, m in found.named_modules() if isinstance(m, Product)]
    assert products == ["plain.parametrizations.weight.0"]


@pytest.mark.parametrize("model", ["resnet20_group", "vgg_small", "char_transformer"])
def test_models_of_the_library_can_be_products(model: str) -> None:
    shape = (20,) if model == "char_transformer" else (3, 16, 16)
    dense = seeded(lambda: build(model, shape, 10))
    found = FedPara(FedAvg(), ratio=0.5).prepare(dense)
    assert Params.trainable(found).layout.size < 0.65 * Params.trainable(dense).layout.size
    x = torch.zeros(2, 20, dtype=torch.int64) if model == "char_transformer" else torch.randn(2, *shape)
    torch.testing.assert_close(fold(copy.deepcopy(found)).eval()(x), found.eval()(x), atol=1e-5, rtol=1e-5)


def test_products_of_many_clients_trained_as_one_are_those_of_each() -> None:
    method = FedPara(FedAvg(LocalSGD(0.1, batch=8, momentum=0.5)), rank=4)
    each, together = (trained(method, plan=plan) for plan in ("each", "together"))
    torch.testing.assert_close(each.params.flat, together.params.flat, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_16_bit_weights_are_refused_in_one_line(dtype: torch.dtype) -> None:
    message = f"FedPara: a weight is {dtype}; factors are float32 or float64: give model.float()"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        FedPara(FedAvg(), rank=2).prepare(seeded(mlp).to(dtype))


class Column(nn.Module):
    """A linear layer of two weights, looked at as a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(1, 2, bias=False)

    def vector(self) -> Tensor:
        return self.dense.weight.flatten()


H = torch.tensor([1.0, 2.0])
PAIR = [
    Quadratic(H, torch.tensor([[1.0, 0.0]])),
    Quadratic(H, torch.tensor([[0.0, 1.0], [2.0, 3.0], [1.0, -1.0]])),
]


def test_two_rounds_of_fedpara_are_those_worked_out_by_hand() -> None:
    # h = np.array([1.0, 2.0]); a = np.array([[1.0, 0.0], [1.0, 1.0]]); n = np.array([1, 3])
    # f = np.array([1.0, -0.5, 0.8, 1.0, 0.5, 1.2])       # x1 (2), y1, x2 (2), y2: w = x1 y1 x2 y2
    # def local(f, i):
    #     for _ in range(2):
    #         x1, y1, x2, y2 = f[:2], f[2], f[3:5], f[5]
    #         g = h * (x1 * y1 * x2 * y2 - a[i])
    #         f = f - 0.1 * np.hstack([g * y1 * x2 * y2, (g * x1 * x2 * y2).sum(),
    #                                  g * x1 * y1 * y2, (g * x1 * y1 * x2).sum()])
    #     return f
    # for _ in range(2): f = (n[:, None] * np.array([local(f, i) for i in (0, 1)])).sum(0) / 4; print(f)
    expected = [
        [1.01458203, -0.34609449, 0.72894349, 1.01458203, 0.34609449, 1.15313902],
        [1.03688465, -0.258302, 0.72164314, 1.03688465, 0.258302, 1.14855365],
    ]
    method = FedPara(FedAvg(LocalSGD(0.1, batch=None, steps=2)), rank=1)
    run = Simulation(method, Column(), PAIR, workers=1, plan="each")
    with run.pool:
        start = torch.tensor([1.0, -0.5, 0.8, 1.0, 0.5, 1.2])
        run.server = run.server._replace(x=run.server.x.map(lambda _: start))
        for points in expected:
            run.step()
            assert run.server.x.flat.tolist() == approx(points)


# -- PruneFL ------------------------------------------------------------------------


class Row(nn.Module):
    """A kernel of four weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0, -0.5, 0.25, 2.0]]))

    def vector(self) -> Tensor:
        return self.w.flatten()


ROW = torch.tensor([1.0, 2.0, 3.0, 1.0])
FOUR = [
    Quadratic(ROW, torch.tensor([[1.0, 0.0, 1.0, 2.0]])),
    Quadratic(ROW, torch.tensor([[0.0, 1.0, 3.0, 1.0], [1.0, 0.0, 2.0, 2.0], [-1.0, 2.0, 4.0, 0.0]])),
]


def test_four_rounds_of_pruning_are_those_worked_out_by_hand() -> None:
    # h = np.array([1.0, 2, 3, 1]); a = np.array([[1.0, 0, 1, 2], [0, 1, 3, 1]]); n = np.array([1, 3])
    # def mean(d): return (n[:, None] * np.array(d)).sum(0) / 4
    # x, keep = np.array([1.0, -0.5, 0.25, 2.0]), np.ones(4, bool)
    # for t in (1, 2, 3, 4):
    #     g = mean([h * (x - a[i]) for i in (0, 1)])
    #     x = np.where(keep, x - 0.1 * g, 0)
    #     if t % 2 == 0:
    #         inside = [j for j in np.argsort(abs(x)) if keep[j]]                  # half of them may go,
    #         free = [j for j in range(4) if not keep[j] or j in inside[: len(inside) // 2]]
    #         free = sorted((j for j in free if j != abs(x).argmax()), key=lambda j: -g[j] ** 2)
    #         sure = [j for j in range(4) if j not in free]
    #         worth = [(g[sure + free[:k]] ** 2).sum() / (2 + len(sure) + k) for k in range(len(free) + 1)]
    #         keep = np.isin(range(4), sure + free[: np.argmax(worth)])
    #     x = np.where(keep, x, 0); print(x, keep)
    # After the fourth round the second entry is in again, at zero, and the last one out.
    expected = [
        ([0.925, -0.25, 0.925, 1.925], [True, True, True, True]),
        ([0.0, 0.0, 1.3975, 1.8575], [False, False, True, True]),
        ([0.0, 0.0, 1.72825, 1.79675], [False, False, True, True]),
        ([0.0, 0.0, 1.959775, 0.0], [False, True, True, False]),
    ]
    local = LocalSGD(0.1, batch=None, steps=1)
    method = PruneFL(FedAvg(local), every=2, share=0.5, least=0.25, overhead=0.5, batch=None)
    run = Simulation(method, Row(), FOUR, workers=1, plan="each")
    up, down = [], []
    with run.pool:
        for x, mask in expected:
            run.step()
            assert run.server.x.flat.tolist() == approx(x)
            assert entries_in(run.server.x).tolist() == mask
            up.append([e.payload for e in run.ledger.of("up", run.round)])
            down.append([e.payload for e in run.ledger.of("down", run.round)])
    # A message of one field begins with 14 bytes, 16 with padding; so four floats are 32. Two floats and four bits are
    # 16, 1, 3 of padding and 8. Upwards there is the gradient besides: 6 and a bit that says that it is not there, or
    # 6 and 16. Where client 0 has nothing to change (round 1) two entries go as a Rice code, 8 bytes more than bits.
    assert down == [[32, 32], [32, 32], [28, 28], [28, 28]]
    assert up == [[41, 37], [52, 52], [33, 33], [48, 48]]


def test_only_entries_that_are_kept_cross_the_wire() -> None:
    tasks, _ = handwriting()
    method = PruneFL(FedAvg(LOCAL), every=2, share=0.6, least=0.05, overhead=0.2)
    run = Simulation(method, mlp, tasks, sample=4, workers=1, plan="each")
    sizes = []
    with run.pool:
        for _ in range(7):
            held = int(entries_in(run.server.x).sum())  # of 888 entries of kernels and 22 of biases
            asked = run.round % 2 == 1
            run.step()
            for e in run.ledger.of("down", run.round):
                # 4 bytes an entry, at most a bit for each that there is, some 30 bytes of structure
                assert 4 * (held - 22) <= e.payload <= 4 * held + 911 // 8 + 60
            for e in run.ledger.of("up", run.round):
                assert e.payload <= 4 * held + 911 // 8 + 60 + (3650 if asked else 0)
                assert e.payload > 3640 or not asked
            sizes.append(held)
            gone = ~entries_in(run.server.x)
            assert run.server.x.flat[gone].eq(0).all()
    assert sizes[:2] == [910, 910]
    assert sizes == sorted(sizes, reverse=True)
    assert 60 < sizes[-1] < 500


def test_an_adaptive_server_leaves_out_what_is_out() -> None:
    tasks, _ = handwriting()
    method = LUAR(PruneFL(FedAvg(LOCAL, opt=Momentum(0.5, beta=0.9)), every=2, share=0.6, overhead=0.2), recycle=1)
    run = Simulation(method, mlp, tasks, sample=4, workers=1, plan="each")
    with run.pool:
        run.step()
        run.step()
        out = ~entries_in(run.server.inner.x)
        assert 300 < int(out.sum()) < 600
        run.step()
        assert torch.equal(out, ~entries_in(run.server.inner.x))
        assert run.server.inner.x.flat[out].eq(0).all()


def test_the_mask_is_the_bits_that_are_set_and_the_wire_keeps_them() -> None:
    x = Params.of([("w", torch.tensor([[1.0, 0.0, -2.0, 0.0]])), ("b", torch.tensor([0.0, 3.0]))])
    found = prune(x, torch.tensor([True, True, False, False, True, True]))
    assert found["w"].tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert torch.signbit(found["w"]).tolist() == [[False, True, False, False]]
    packet, seen, _ = tw.Sparse().send(found, None, tw.Key(0))
    back, _ = tw.Sparse().recv(tw.loads(tw.dumps(packet)), x.layout, None, tw.Key(0))
    for y in (found, seen, back):
        assert entries_in(y).tolist() == [True, True, False, False, True, True]


def test_no_layer_is_pruned_away() -> None:
    x = Params.of([("small", torch.full((3, 3), 1e-6)), ("large", torch.ones(4, 4))])
    g = Params.of([("small", torch.zeros(3, 3)), ("large", torch.ones(4, 4))])
    mask = PruneFL(FedAvg(), share=0.9, overhead=0.0, least=0.01).choose(x, g, torch.ones(25, dtype=torch.bool))
    assert int(mask[:9].sum()) == 1
    assert int(mask[9:].sum()) >= 1


# -- what is refused --------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["PruneFL(LUAR(FedAvg(), 1), 20)", "PruneFL(FedPara(FedAvg(opt=Adam())))"])
def test_what_is_advised_in_its_place_can_be_had(expression: str) -> None:
    with pytest.raises(CombinationError) as refused:
        tw.parse(expression)
    other = tw.parse(str(refused.value).partition("not around it: ")[2])
    asked = expression.removeprefix("PruneFL(").partition("(")[0]
    assert [type(part).__name__ for part in (other, other.inner, other.inner.inner)] == [asked, "PruneFL", "FedAvg"]


def test_a_model_that_would_not_get_smaller_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer of the model would get smaller; use a plain method"):
        trained(FedPara(FedAvg(LOCAL)), lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), rounds=1)
    with pytest.raises(CombinationError):
        FLSS(PruneFL(FedAvg()), rank=2, start=2)
