"""Models in 64 bits: they are trained, sent and averaged in 64 bits, and give what double precision gives."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Size, Tensor, nn

import thinwire as tw
from blobs import blobs, mlp, normed
from test_hand import Number
from thinwire import LBGM, Dense, ErrorFeedback, FedAvg, Flat, Key, Layout, LocalSGD, Params, TopK, dumps, loads
from thinwire.train.slot import Slot

# Losses (w - t)^2 with t = 1/3 and 1/7 for one and two examples. Four steps of lr 0.1 a round take w to
# w + (t - w) (1 - 0.8^4) for each, and the mean is by examples.
TARGETS = ((1, 1 / 3), (2, 1 / 7))


def exact(rounds: int) -> Fraction:
    w, share = Fraction(0), 1 - Fraction(4, 5) ** 4
    for _ in range(rounds):
        ends = [(n, w + (Fraction(t) - w) * share) for n, t in TARGETS]
        w = sum(n * end for n, end in ends) / 3
    return w


LOCAL = LocalSGD(0.1, batch=None, steps=4)


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(LOCAL),
        FedAvg(LOCAL, up=LBGM(threshold=0.0)),
        FedAvg(LOCAL, up=ErrorFeedback(LBGM(threshold=0.5, compare="dense"))),
        FedAvg(LOCAL, up=tw.Sparse(), down=tw.EF21(Dense())),
    ],
    ids=repr,
)
def test_rounds_on_quadratics_are_exact_to_fifteen_digits(method: tw.Algorithm) -> None:
    tasks = [(np.ones(n), np.full(n, t)) for n, t in TARGETS]
    result = tw.simulate(method, Number(dtype=torch.float64), tasks, 6, workers=1)
    assert result.params.flat.dtype == torch.float64
    assert abs(Fraction(result.params.flat.item()) - exact(6)) < 1e-15
    single = tw.simulate(method, Number(), tasks, 6, workers=1)
    assert 1e-10 < abs(Fraction(single.params.flat.item()) - exact(6)) < 1e-6


METHODS = [
    "FedAvg(LocalAdam(0.02, keep=True), opt=Yogi(0.03), up=Layerwise(LBGM(threshold=0.6)))",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.9, store='packet'), down=EF21(TopK(0.2)))",
    "FedAvg(up=Entropy(Dense()), down=Half())",
    "FedAvg(up=ErrorFeedback(Flat(TopK(0.1))))",
    "FedAvg(up=PowerSGD(2))",
    "FedAvg(up=Budget(400))",
    "FedAvg(up=Partition({'*.bias': Dense(), '*': QSGD(16)}))",
    "FedAvg(up=CountSketch(3, 5))",
    "FedAvg(up=DropoutAvg(0.3))",
    "SCAFFOLD()",
    "FedDyn()",
    "FedDC()",
    "MOON()",
    "FedNTD()",
    "FedGen(hidden=8, noise=4, steps=5)",
    "FedMut()",
    "LUAR(FedACG(), recycle=1)",
    "FedAvgSLM(LocalSGD(0.1, momentum=0.6))",
    "DOMO(0.9, LocalSGD(0.1, momentum=0.6), intra=True)",
    "FLSS(FedAvg(), rank=1, start=1, every=2)",
    "Intrinsic(20)",
    "FetchSGD(20, 10)",
    "PruneFL(FedAvg(), every=2)",
    "FedPara(FedAvg(), rank=2, start='weights')",
    "ClusteredLBGM(2)",
]


@pytest.mark.parametrize("expression", METHODS)
def test_every_method_trains_in_64_bits_what_it_trains_in_32(expression: str) -> None:
    method = tw.parse(expression, {"lr": 0.05, "batch": 8})
    options: dict[str, Any] = {"sample": 3, "seed": 2, "workers": 1, "plan": "each"}
    double = tw.simulate(method, lambda: normed().double(), blobs(), 2, **options)
    single = tw.simulate(method, normed, blobs(), 2, **options)
    assert double.params.flat.dtype == double.params.layout.dtype == torch.float64
    assert {t.dtype for t in double.module.state_dict().values() if t.is_floating_point()} == {torch.float64}
    assert not torch.equal(double.params.flat, double.params.flat.float().double())
    assert double.rounds[-1]["train_loss"] == pytest.approx(single.rounds[-1]["train_loss"], rel=0.02)


def test_a_dense_message_of_64_bits_is_twice_as_long() -> None:
    up = {}
    for dtype in (torch.float32, torch.float64):
        run = tw.simulate(FedAvg(), lambda dtype=dtype: mlp().to(dtype), blobs(), 1, workers=1)
        up[dtype] = run.rounds[0]["up_floats"] / len(blobs())
    assert up == {torch.float32: 83.0, torch.float64: 166.0}


LAYOUT = Layout(("w", "b"), (Size([20, 10]), Size([7])), torch.float64)


LINKS = [
    "Dense()",
    "Sparse()",
    "TopK(0.2)",
    "LBGM(threshold=1)",
    "Half()",
    "QSGD(16)",
    "ScaledSign()",
    "PowerSGD(1)",
    "EF21(TopK(0.1))",
    "PerClient(TopK(0.1))",
    "PerClient(Dense())",
    "ErrorFeedback(Flat(STC(0.1)))",
    "Layerwise(LBGM(TopK(0.5)))",
    "Entropy(Int8())",
    "Budget(300)",
    "TransformCoding(200)",
    "EF21(TransformCoding(100))",
    "PerClient(TransformCoding(100))",
    "Projection(9)",
    "RandomBlock(3)",
    "ATOMO(2)",
    "RandK(0.3)",
    "LBGM(LowRank(2), store='packet')",
]


@pytest.mark.parametrize("link", LINKS)
def test_the_receiver_sees_64_bit_numbers_and_those_the_sender_knows_of(link: str) -> None:
    wire, draw = tw.parse(link), torch.Generator().manual_seed(3)
    tx, rx = wire.open(LAYOUT.zeros())
    for number in range(1, 5):
        x = Params(LAYOUT, torch.randn(LAYOUT.size, generator=draw, dtype=torch.float64))
        key = Key(1, number, 0)
        packet, seen, tx = wire.send(x, tx, key)
        got, rx = wire.recv(loads(dumps(packet)), LAYOUT, rx, key)
        assert seen.flat.dtype == got.flat.dtype == torch.float64
        assert torch.equal(seen.flat, got.flat)
        if link in ("Dense()", "Sparse()", "PerClient(Dense())"):
            assert torch.equal(seen.flat, x.flat)


def test_a_lossless_link_keeps_what_32_bits_cannot_say() -> None:
    x = Params(Layout(("a",), (Size([3]),), torch.float64), torch.tensor([1e-300, 0.0, 0.1], dtype=torch.float64))
    for link in (Dense(), tw.Sparse(), LBGM(), tw.Layerwise(Dense())):
        tx, rx = link.open(x.zeros())
        assert link.recv(link.send(x, tx, Key(0))[0], x.layout, rx, Key(0))[0].flat.tolist() == [1e-300, 0.0, 0.1]
    seen = Flat(TopK(1.0)).send(x, None, Key(0))[1]
    assert seen.flat.tolist() == [0.0, 0.0, float(np.float32(0.1))]


class Mixed(nn.Module):
    """A weight in 32 bits and a bias in 64."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x + self.b


def test_parameters_in_32_bits_beside_64_are_rounded_copies() -> None:
    slot = Slot(Mixed())
    assert slot.flat.dtype == torch.float64
    slot.load(Params(slot.layout, torch.tensor([1 / 3, 1 / 3], dtype=torch.float64)))
    assert slot.module.w.item() == float(np.float32(1 / 3))
    assert slot.module.b.item() == 1 / 3
    tasks = [(np.ones(2), np.zeros(2))]
    result = tw.simulate(FedAvg(LocalSGD(0.25, batch=None)), Mixed(), tasks, 1, workers=1)
    assert result.params.flat.tolist() == [0.5, -0.5]  # from (1, 0) by 0.25 * 2 * (1 - 0)
    assert [p.dtype for p in result.module.parameters()] == [torch.float32, torch.float64]


def test_examples_in_32_bits_become_what_the_first_layer_takes() -> None:
    task = blobs()[0]
    assert Slot(mlp().double()).batch(task, torch.arange(2))[0].dtype == torch.float64
    assert Slot(mlp()).batch(task, torch.arange(2))[0].dtype == torch.float32


def test_a_run_in_64_bits_is_resumed_bit_for_bit(tmp_path: Any) -> None:
    method = tw.parse("FedAvg(LocalSGD(0.1, momentum=0.9, keep=True), up=LBGM(threshold=0.5), opt=Adam(0.03))")
    options: dict[str, Any] = {"sample": 3, "seed": 2, "workers": 1, "states": "disk"}

    def make() -> nn.Module:
        return normed().double()

    straight = tw.simulate(method, make, blobs(), 4, out=tmp_path / "straight", **options)
    tw.simulate(method, make, blobs(), 2, out=tmp_path / "halves", **options)
    resumed = tw.simulate(method, make, blobs(), 4, out=tmp_path / "halves", resume=True, **options)
    assert torch.equal(straight.params.flat, resumed.params.flat)
    assert resumed.params.flat.dtype == torch.float64
