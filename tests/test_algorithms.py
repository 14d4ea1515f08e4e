"""Algorithms: one table through common properties, reductions bit for bit, hand values, what is refused."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import (
    EF21,
    LBGM,
    LUAR,
    SCAFFOLD,
    SGD,
    Adam,
    Budget,
    ClusteredLBGM,
    Dense,
    DropoutAvg,
    Each,
    Entropy,
    ErrorFeedback,
    FedAvg,
    Half,
    Key,
    Layerwise,
    LocalSGD,
    Momentum,
    Params,
    RandK,
    RandomBlock,
    Simulation,
    Sparse,
    Start,
    Sum,
    Supervised,
    TopK,
    Yogi,
)
from thinwire.algorithms import fedavg
from thinwire.data.digits import digits
from thinwire.errors import CombinationError

# -- problems -------------------------------------------------------------------

SIZES = (12, 20, 28, 36, 44, 24, 40, 16)  # clients of different weight, last batches of different size


@functools.cache
def handwriting() -> tuple[list[Supervised], Supervised]:
    """Eight clients with a few of scikit-learn's digits each, and a test set."""
    data = digits()
    parts = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(1))[: sum(SIZES)].split(SIZES)
    return [Supervised(data.inputs, data.targets, part) for part in parts], Supervised(
        data.test_inputs[:100], data.test_targets[:100]
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


LOCAL = LocalSGD(lr=0.1, batch=16)


def trained(algorithm: tw.Algorithm, model: Any = mlp, rounds: int = 3, **options: Any) -> tw.Result:
    tasks, test = handwriting()
    return tw.simulate(
        algorithm,
        model,
        tasks,
        rounds,
        **{"sample": 3, "test": test, "seed": 7, "workers": 1, "plan": "each"} | options,
    )


def assert_same_run(a: tw.Result, b: tw.Result) -> None:
    """The same model bit for bit, on the same way there."""
    assert torch.equal(a.params.flat, b.params.flat)
    for (name, left), right in zip(a.module.state_dict().items(), b.module.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    for name in ("train_loss", "test_loss", "accuracy"):
        assert [r[name] for r in a.rounds] == [r[name] for r in b.rounds]


# -- every algorithm ------------------------------------------------------------

TABLE = [
    "FedAvg()",
    "FedAvg(weights='uniform')",
    "FedAvg(LocalSGD(prox=0.1))",
    "FedAvg(LocalSGD(lr=0.1, momentum=0.9, weight_decay=0.001))",
    "FedAvg(LocalSGD(lr=Decay(0.5, rounds=(2, 4), factor=0.5)))",
    "FedAvg(LocalSGD(steps=3), opt=Momentum(0.5, beta=0.9))",
    "FedAvg(LocalAdamW(lr=0.01, warmup=5, clip=1.0))",
    "FedDyn(LocalAdam(lr=0.01), alpha=0.1, up=ErrorFeedback(TopK(0.3)))",
    "FLSS(FedProx(LocalAdamW(lr=0.01, keep=True), mu=0.1), rank=2, start=3, every=2, project='gradient')",
    "LUAR(SCAFFOLD(LocalAdam(lr=0.01, keep=True), option='I'), recycle=1)",
    "SCAFFOLD(LocalSGD(lr=0.3, warmup=4, clip=2.0))",
    "FedAvg(opt=Adam(0.03))",
    "FedAvg(opt=Yogi(0.03))",
    "FedAvg(opt=Adagrad(0.03))",
    "FedAvg(up=ErrorFeedback(TopK(0.1, values=Half())))",
    "FedAvg(up=ErrorFeedback(Flat(TopK(0.1))))",
    "FedAvg(up=ErrorFeedback(ScaledSign()))",
    "FedAvg(up=RandK(0.3))",
    "FedAvg(up=BF16(), down=Half())",
    "FedAvg(up=EF21(TopK(0.3)), down=EF21(TopK(0.3)))",
    "FedAvg(up=LBGM(threshold=0.6))",
    "FedAvg(up=Layerwise(LBGM(ErrorFeedback(TopK(0.3)), threshold=0.6)))",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.8, compare='dense', store='packet'))",
    "FedAvg(up=ErrorFeedback(LBGM(TopK(0.3), threshold=0.8, compare='dense')))",
    "FedAvg(up=ErrorFeedback(Budget(900)))",
    "ClusteredLBGM(3, threshold=0.6)",
    "ClusteredLBGM(2, threshold=0.8, up=ErrorFeedback(TopK(0.3)), down={'x': Half(), 'centroids': EF21(TopK(0.3))})",
    "FedAvg(up=Partition({'*.bias': Dense(), '*': ErrorFeedback(TopK(0.1))}))",
    "SCAFFOLD()",
    "SCAFFOLD(up={'update': ErrorFeedback(TopK(0.2)), 'control': Half()}, down={'c': Half()})",
    "LUAR(FedAvg(), recycle=1)",
    "LUAR(FedAvg(opt=Adam(0.03), up=ErrorFeedback(TopK(0.2))), recycle=2, layers='tensors')",
    "LUAR(FedAvg(up=LBGM(threshold=0.6)), recycle=1, layers='modules', select='gradient-norm')",
    "LUAR(SCAFFOLD(down=EF21(TopK(0.6))), recycle=1, select='uniform')",
    "LUAR(FedAvg(), recycle=1, select='round-robin', drop=True)",
    "FLSS(FedAvg(), rank=3, start=3, every=2)",
    "FLSS(FedAvg(opt=Adam(0.03), up=ErrorFeedback(ScaledSign())), rank=2, start=2, every=3, store='bfloat16')",
    "FLSS(FedAvg(LocalSGD(prox=0.1)), rank=2, start=3, every=None, decay=0.7, project='gradient', scale=0.5)",
    "Intrinsic(600, local=LocalSGD(lr=0.3))",
    "Intrinsic(400, subspaces=2, varying=True, epoch=2, local=LocalSGD(lr=0.3), basis=Gaussian())",
    "FedAvg(LocalSGD(lr=0.2), up=Projection(64))",
    "FedAvg(up=QSGD(16))",
    "FedAvg(up=Partition({'<100': Dense(), '*': Ternary()}))",
    "FedAvg(up=Entropy(Int8()), down=EF21(Entropy(Int8())))",
    "FedAvg(opt=MajorityVote(0.02), up=SignSGD(), down=EF21(ScaledSign()), weights='uniform')",
    "FedAvg(up=ErrorFeedback(STC(0.1)), down=EF21(STC(0.2)))",
    "FedAvg(up=ErrorFeedback(RandomBlock(4.0)))",
    "SCAFFOLD(up=DropoutAvg(0.3))",
    "FedAvg(LocalSGD(lr=0.3), up=Flat(Projection(600, fixed=True)))",
    "FedAvg(up=ErrorFeedback(LowRank(2)))",
    "FedAvg(up=ATOMO(3))",
    "FedAvg(up=PowerSGD(2))",
    "FedAvg(up=Flat(CountSketch(5, 150)))",
    "FetchSGD(150, 80, momentum=0.5)",
    "FetchSGD(300, 40, rows=3, momentum=0.3, masking=False, error='subtract', known=True, up=Half())",
    "SCAFFOLD(LocalSGD(lr=0.1, momentum=0.9), option='I')",
    "FedProx(mu=0.1)",
    "FedDyn(alpha=0.1)",
    "FedDyn(LocalSGD(lr=0.3), alpha=0.5, up=ErrorFeedback(TopK(0.3)), weights='examples')",
    "FedDC(alpha=0.1)",
    "FedDC(up={'gradient': Half()}, weights='uniform')",
    "MOON(mu=0.5)",
    "MOON(temperature=1.0, layer='1', up=LBGM(threshold=0.6))",
    "FedNTD(beta=0.3, temperature=2.0)",
    "FedGen(hidden=16, noise=4, steps=20)",
    "FedGen(weight=0.5, hidden=8, noise=3, steps=5, up=EF21(TopK(0.3)), down={'generator': Half()})",
    "FedMut(alpha=0.5)",
    "FedMut(alpha=1.0, down=EF21(TopK(0.6)))",
    "FedACG(momentum=0.5)",
    "FedACG(beta=0.1, up=ErrorFeedback(ScaledSign()), down=BF16())",
    "LUAR(FedMut(), recycle=1)",
    "LUAR(FedACG(momentum=0.7), recycle=1, select='round-robin')",
    "LUAR(MOON(mu=0.3), recycle=2, layers='tensors')",
    "FLSS(FedProx(mu=0.1), rank=2, start=3, every=2)",
    "FedAvgSM(opt=Momentum(0.5, beta=0.5))",
    "FedAvgLM(LocalSGD(0.1, momentum=0.6))",
    "FedAvgLM(LocalSGD(0.1, momentum=0.6), up={'momentum': BF16()}, down=Half())",
    "FedAvgLMZ(LocalSGD(0.1, momentum=0.6), up=ErrorFeedback(TopK(0.2)))",
    "FedAvgSLM(LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5))",
    "FedAvgSLMZ(LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5), weights='uniform')",
    "DOMO(0.9, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5))",
    "DOMO(0.9, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5), intra=True)",
    "DOMO(0.5, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5), momentum='sent', down=Half())",
    "LUAR(DOMO(0.5, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5)), recycle=1)",
    "LUAR(FedAvgLM(LocalSGD(0.1, momentum=0.6)), recycle=2, layers='tensors')",
    "FedPara(FedAvg(LocalSGD(0.2, epochs=3, momentum=0.8)), ratio=1.0)",
    "FedPara(SCAFFOLD(LocalSGD(0.2, epochs=4), up=BF16()), rank=12, start='weights')",
    "LUAR(FedPara(FedAvg(LocalSGD(0.1, epochs=3, momentum=0.8)), rank=4), recycle=1, layers='tensors')",
    "PruneFL(FedAvg(), every=2)",
    "PruneFL(FedAvg(opt=Adam(0.03), up=ErrorFeedback(TopK(0.3))), every=3, share=0.5, initial=1, batch=8)",
    "LUAR(PruneFL(FedAvg(), every=2, share=0.5), recycle=1)",
]


LEFT_OPEN = {"lr": 0.5, "batch": 8, "epochs": 2}  # where an expression says nothing


@pytest.mark.parametrize("expression", TABLE, ids=str)
def test_training_lowers_the_loss_and_is_repeated_bit_for_bit(expression: str) -> None:
    method = tw.parse(expression, LEFT_OPEN)
    first = trained(method, rounds=6)
    assert first.rounds[-1]["test_loss"] < 2.1  # ln 10 = 2.303 is knowing nothing
    again = trained(method, rounds=6, workers=2)
    assert_same_run(first, again)
    assert list(first.ledger) == list(again.ledger)


@pytest.mark.parametrize("expression", TABLE, ids=str)
def test_the_name_of_a_method_can_be_typed_back(expression: str) -> None:
    method = tw.parse(expression, LEFT_OPEN)
    assert tw.parse(repr(method)) == method
    assert tw.parse(tw.complete(method)) == method
    assert repr(tw.parse(tw.complete(method))) == repr(method)


@pytest.mark.parametrize("expression", TABLE, ids=str)
def test_states_survive_the_wire_and_nobody_writes_into_them(expression: str) -> None:
    tasks, _ = handwriting()
    run = Simulation(tw.parse(expression), normed, tasks, sample=4, seed=3, workers=1, plan="each")
    with run.pool:
        for _ in range(3):
            held = [run.server, run.stream.view, dict(run.states.ends), run.buffers]
            before = [tw.dumps(state) for state in held]
            run.step()
            assert [tw.dumps(state) for state in held] == before
        for state in [run.server, run.stream.view, *run.states.ends.values()]:
            data = tw.dumps(state)
            assert tw.dumps(tw.restore(tw.loads(data, finite=False), state)) == data


def tensors(x: Any) -> Iterator[Tensor]:
    """Those in a state, a message, a request for training or an optional other thing."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Params):
        yield x.flat
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors(part)
    elif isinstance(x, dict):
        for part in x.values():
            yield from tensors(part)


@pytest.mark.parametrize("expression", TABLE, ids=str)
def test_nobody_writes_into_what_an_algorithm_was_given_or_gave(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a state shares memory with is never written to, by the algorithm, its links or the runner.
    method, held = tw.parse(expression, LEFT_OPEN), list[tuple[str, Tensor, Tensor]]()

    def hold(where: str, *values: Any) -> None:
        held.extend((where, tensor, tensor.clone()) for value in values for tensor in tensors(value))

    def watched(cls: type, name: str) -> Any:
        inner = getattr(cls, name)

        def call(self: Any, *given: Any) -> Any:
            found = inner(self, *given)
            hold(f"{cls.__name__}.{name}", given, found)
            return found

        def client(self: Any, *given: Any) -> Any:
            hold(f"{cls.__name__}.client", given)
            work, trained = inner(self, *given), None
            while True:
                try:
                    request = next(work) if trained is None else work.send(trained)
                except StopIteration as done:
                    hold(f"{cls.__name__}.client", done.value)
                    return done.value
                trained = yield request
                hold(f"{cls.__name__}.client", request, trained)

        return client if name == "client" else call

    algorithm: Any = method
    classes = set[type]()
    while isinstance(algorithm, tw.Algorithm):
        classes.add(type(algorithm))
        algorithm = getattr(algorithm, "inner", None)
    for cls in classes:
        for name in ("init", "broadcast", "see", "client", "sent", "server", "model"):
            monkeypatch.setattr(cls, name, watched(cls, name))
    plan = "together" if "FLSS" not in expression else "each"
    trained(method, rounds=4, plan=plan)
    assert len(held) > 100
    assert [where for where, tensor, before in held if not torch.equal(tensor, before)] == []


def test_another_seed_is_another_run_from_the_same_model() -> None:
    module = mlp()
    assert_same_run(trained(FedAvg(LOCAL), module), trained(FedAvg(LOCAL), module))
    assert not torch.equal(
        trained(FedAvg(LOCAL), module).params.flat, trained(FedAvg(LOCAL), module, seed=8).params.flat
    )


# -- reductions -----------------------------------------------------------------

COMPRESSED = ErrorFeedback(TopK(0.1))
SERVERS = {"sgd": SGD(1.0), "adam": Adam(0.03), "yogi": Yogi(0.03), "momentum": Momentum(1.0, beta=0.9)}


def with_server(name: str, weights: Any, up: tw.Link) -> tw.Algorithm:
    if name == "scaffold":
        return SCAFFOLD(LOCAL, up=up, weights=weights)
    return FedAvg(LOCAL, opt=SERVERS[name], up=up, weights=weights)


@pytest.mark.parametrize("up", [Dense(), COMPRESSED], ids=["dense", "compressed"])
@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize("inner", [*SERVERS, "scaffold"])
def test_recycling_nothing_is_the_inner_algorithm(inner: str, weights: Any, up: tw.Link) -> None:
    method = with_server(inner, weights, up)
    assert_same_run(trained(LUAR(method, recycle=0)), trained(method))


@pytest.mark.parametrize("inner", [*SERVERS, "scaffold"])
@pytest.mark.parametrize("layers", ["tensors", "modules"])
def test_recycling_nothing_is_the_inner_algorithm_with_norm_statistics(inner: str, layers: Any) -> None:
    method = with_server(inner, "examples", COMPRESSED)
    assert_same_run(trained(LUAR(method, recycle=0, layers=layers), normed), trained(method, normed))


SAME = {
    "LBGM that never recycles is FedAvg": (
        FedAvg(LOCAL, up=LBGM(threshold=0.0)),
        FedAvg(LOCAL),
    ),
    "LBGM that never recycles, layer by layer, is FedAvg": (
        FedAvg(LOCAL, up=Layerwise(LBGM(threshold=0.0)), weights="uniform"),
        FedAvg(LOCAL, weights="uniform"),
    ),
    "LBGM that never recycles is the link it holds": (
        FedAvg(LOCAL, up=LBGM(COMPRESSED, threshold=0.0)),
        FedAvg(LOCAL, up=COMPRESSED),
    ),
    "LBGM against the dense update that never recycles is the link it holds": (
        FedAvg(LOCAL, up=LBGM(COMPRESSED, threshold=0.0, compare="dense", store="packet")),
        FedAvg(LOCAL, up=COMPRESSED),
    ),
    "clustered LBGM that never recycles is FedAvg": (ClusteredLBGM(2, threshold=0.0, local=LOCAL), FedAvg(LOCAL)),
    "clustered LBGM that never recycles is FedAvg over its link": (
        ClusteredLBGM(3, threshold=0.0, local=LOCAL, opt=Adam(0.03), up=COMPRESSED, weights="uniform"),
        FedAvg(LOCAL, opt=Adam(0.03), up=COMPRESSED, weights="uniform"),
    ),
    "a budget that holds everything is dense": (
        FedAvg(LOCAL, up=Budget(4_000, ladder=(TopK(0.1), Half(), Dense()))),
        FedAvg(LOCAL),
    ),
    "top-k of everything is dense": (FedAvg(LOCAL, up=TopK(1.0)), FedAvg(LOCAL)),
    "error feedback without an error is dense": (FedAvg(LOCAL, up=ErrorFeedback(TopK(1.0))), FedAvg(LOCAL)),
    "sparse is dense": (FedAvg(LOCAL, up=Sparse(), down=Sparse()), FedAvg(LOCAL)),
    "dropping nothing is dense": (SCAFFOLD(LOCAL, up=DropoutAvg(0.0)), SCAFFOLD(LOCAL)),
    "what is lossless changes nothing": (FedAvg(LOCAL, up=Entropy(COMPRESSED)), FedAvg(LOCAL, up=COMPRESSED)),
    "a block of everything is dense": (FedAvg(LOCAL, up=RandomBlock(1.0)), FedAvg(LOCAL)),
    "a dict of links is the link": (
        SCAFFOLD(LOCAL, up={"update": COMPRESSED, "control": COMPRESSED}),
        SCAFFOLD(LOCAL, up=COMPRESSED),
    ),
    "a pull of nothing is none": (FedAvg(LocalSGD(lr=0.1, batch=16, prox=0.0)), FedAvg(LOCAL)),
    "momentum without memory is SGD": (
        FedAvg(LOCAL, opt=Momentum(0.7, beta=0.0)),
        FedAvg(LOCAL, opt=SGD(0.7)),
    ),
    "epochs of so many batches are so many steps": (
        FedAvg(LocalSGD(lr=0.1, batch=None, epochs=3)),
        FedAvg(LocalSGD(lr=0.1, batch=1000, steps=3)),
    ),
    "a schedule that never moves is its number": (
        SCAFFOLD(LocalSGD(lr=tw.Exponential(0.1, factor=1.0), batch=16)),
        SCAFFOLD(LOCAL),
    ),
}


@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("name", SAME)
def test_a_method_at_its_neutral_setting_is_its_parent(name: str, model: Any) -> None:
    special, plain = SAME[name]
    assert_same_run(trained(special, model), trained(plain, model))


def test_the_first_round_of_scaffold_is_that_of_fedavg() -> None:
    for weights in ("examples", "uniform"):
        a, b = trained(SCAFFOLD(LOCAL, weights=weights), rounds=1), trained(FedAvg(LOCAL, weights=weights), rounds=1)  # type: ignore[arg-type]
        assert_same_run(a, b)


def test_the_second_round_of_scaffold_is_not_that_of_fedavg() -> None:
    a, b = trained(SCAFFOLD(LOCAL), rounds=2), trained(FedAvg(LOCAL), rounds=2)
    assert not torch.allclose(a.params.flat, b.params.flat, atol=1e-3)


def test_one_client_with_one_step_a_round_is_gradient_descent() -> None:
    tasks, _ = handwriting()
    torch.manual_seed(0)
    module = mlp()
    found = tw.simulate(
        FedAvg(LocalSGD(lr=0.5, batch=None, steps=1)), module, [tasks[4]], 6, workers=1, plan="each"
    ).params
    x, y = tasks[4].batch(torch.arange(44))
    weights = list(module.parameters())
    for _ in range(6):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), weights)
        with torch.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                w -= 0.5 * g
    torch.testing.assert_close(found.flat, torch.cat([w.detach().flatten() for w in weights]), atol=2e-6, rtol=0)


@dataclass(frozen=True)
class DecodedRandK(RandK):
    """Each reply decoded, then averaged."""

    linear = False


@pytest.mark.parametrize("unbiased", [False, True])
def test_averaging_packets_is_averaging_what_they_decode_to(unbiased: bool) -> None:
    packets = trained(FedAvg(LOCAL, up=RandK(0.2, unbiased=unbiased)))
    decoded = trained(FedAvg(LOCAL, up=DecodedRandK(0.2, unbiased=unbiased)))
    torch.testing.assert_close(packets.params.flat, decoded.params.flat, atol=1e-6, rtol=1e-5)
    assert packets.bytes_up == decoded.bytes_up


def test_a_downlink_of_differences_that_loses_nothing_is_dense() -> None:
    differences = trained(FedAvg(LOCAL, down=EF21(TopK(1.0)))).params
    torch.testing.assert_close(differences.flat, trained(FedAvg(LOCAL)).params.flat, atol=1e-6, rtol=1e-5)


# -- a problem to do by hand ------------------------------------------------------


class Point(nn.Module):
    """A model that is two numbers."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def vector(self) -> Tensor:
        return self.w


class Tower(nn.Module):
    """Three kernels and a bias: entries 0-1, 3-4, 5 and 2 of the vector."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 1), nn.Linear(1, 2, bias=False), nn.Linear(1, 1, bias=False)
        start = torch.tensor([1.0, -1.0, 0.0, 2.0, 1.0, 2.0])
        nn.utils.vector_to_parameters(start, self.parameters())

    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters())


@dataclass(frozen=True)
class Quadratic:
    """Loss of an example: sum of h (w - target)^2 / 2."""

    h: Tensor
    targets: Tensor  # [n, d]

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.targets[indices]

    def loss(self, module: nn.Module, batch: Tensor) -> Tensor:
        return (self.h * (module.vector() - batch) ** 2).sum(1) / 2  # type: ignore[operator]

    def metrics(self, module: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(module, batch)}


H = torch.tensor([1.0, 2.0])
PAIR = [
    Quadratic(H, torch.tensor([[1.0, 0.0]])),
    Quadratic(H, torch.tensor([[0.0, 1.0], [2.0, 3.0], [1.0, -1.0]])),
]
TWICE = LocalSGD(lr=0.1, batch=None, steps=2)


def path(algorithm: tw.Algorithm, rounds: int, model: nn.Module | None = None, tasks: Any = PAIR) -> list[list[float]]:
    """The model after each round."""
    run = Simulation(algorithm, model or Point(0.5, -1.0), tasks, workers=1, plan="each")
    with run.pool:
        points = []
        for _ in range(rounds):
            run.step()
            points.append(algorithm.model(run.server).flat.tolist())
    return points


def approx(x: Any) -> Any:
    return [pytest.approx(row, abs=2e-6) for row in x] if isinstance(x[0], list) else pytest.approx(x, abs=2e-6)


# The numbers of the next tests come from:
#
#   h = np.array([1.0, 2.0]); a = np.array([[1.0, 0.0], [1.0, 1.0]]); n = np.array([1, 3])  # a: mean targets
#   def local(x, i, mu=0.0, offset=0.0):
#       y = x.copy()
#       for _ in range(2): y = y - 0.1 * (h * (y - a[i]) + mu * (y - x) + offset)
#       return y
#   def mean(d, w): return (w[:, None] * np.array(d)).sum(0) / w.sum()
#   def fedavg(w, mu=0.0, step=lambda x, d: x + d):
#       x = np.array([0.5, -1.0])
#       for _ in range(2): x = step(x, mean([local(x, i, mu) - x for i in (0, 1)], w)); print(x)
#   fedavg(n); fedavg(np.ones(2)); fedavg(n, mu=0.5)
#   class Adam:                                             # Momentum: m = .9 m + d; x + .5 m
#       m, v = np.zeros(2), np.full(2, 1e-6)
#       def __call__(s, x, d):
#           s.m = .9 * s.m + .1 * d; s.v = .99 * s.v + .01 * d**2   # Yogi: v - .01 d**2 sign(v - d**2)
#           return x + .05 * s.m / (np.sqrt(s.v) + 1e-3)
#   fedavg(n, step=Adam())
BY_HAND = {
    "FedAvg(L)": [[0.595, -0.37], [0.67195, 0.0332]],
    "FedAvg(L, weights='uniform')": [[0.595, -0.46], [0.67195, -0.1144]],
    "FedAvg(LocalSGD(lr=0.1, batch=None, steps=2, prox=0.5))": [[0.5925, -0.3875], [0.6678875, 0.010625]],
    "FedAvg(L, opt=Adam(0.05))": [[0.54501532, -0.95078729], [0.60710123, -0.88425962]],
    "FedAvg(L, opt=Yogi(0.05))": [[0.54501309, -0.95078735], [0.60693871, -0.8844291]],
    "FedAvg(L, opt=Momentum(0.5, beta=0.9))": [[0.5475, -0.685], [0.6332375, -0.1432]],
}


@pytest.mark.parametrize("expression", BY_HAND)
def test_two_rounds_are_those_worked_out_by_hand(expression: str) -> None:
    written = expression.replace("L,", "LocalSGD(lr=0.1, batch=None, steps=2),")
    written = written.replace("(L)", "(LocalSGD(lr=0.1, batch=None, steps=2))")
    assert path(tw.parse(written), 2) == approx(BY_HAND[expression])


@pytest.mark.parametrize(
    ("weights", "x", "c", "c_0", "c_1"),
    [
        (
            "uniform",
            [[0.595, -0.46], [0.67195, -0.1144]],
            [[-0.475, -2.7], [-0.38475, -1.728]],
            [[-0.475, -1.8], [-0.38475, -0.738]],
            [[-0.475, -3.6], [-0.38475, -2.718]],
        ),
        (
            "examples",
            [[0.595, -0.37], [0.67195, -0.0478]],
            [[-0.475, -2.7], [-0.38475, -1.566]],
            [[-0.475, -1.8], [-0.38475, -0.576]],
            [[-0.475, -3.6], [-0.38475, -2.556]],
        ),
    ],
)
def test_two_rounds_of_scaffold_are_those_worked_out_by_hand(
    weights: Any, x: list[Any], c: list[Any], c_0: list[Any], c_1: list[Any]
) -> None:
    # x = np.array([0.5, -1.0]); c = np.zeros(2); ci = np.zeros((2, 2))
    # for _ in range(2):                                    # w = np.ones(2) or n; `local`, `mean` as above
    #     ys = [local(x, i, offset=c - ci[i]) for i in (0, 1)]
    #     new = np.array([ci[i] - c + (x - ys[i]) / (2 * 0.1) for i in (0, 1)])
    #     x = x + mean([y - x for y in ys], w); c = c + (new - ci).sum(0) / 2; ci = new; print(x, c, ci)
    run = Simulation(SCAFFOLD(TWICE, weights=weights), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        for t in (0, 1):
            run.step()
            assert run.server.x.flat.tolist() == approx(x[t])
            assert run.server.c.flat.tolist() == approx(c[t])
            assert run.states.get(0).own.state.flat.tolist() == approx(c_0[t])
            assert run.states.get(1).own.state.flat.tolist() == approx(c_1[t])


def test_four_rounds_of_lbgm_are_those_worked_out_by_hand() -> None:
    # x = np.array([0.5, -1.0]); l = [None, None]           # `local`, `mean` and n as above
    # for _ in range(4):
    #     seen = []
    #     for i in (0, 1):
    #         g = x - local(x, i)
    #         cos = 0 if l[i] is None else g @ l[i] / np.linalg.norm(g) / np.linalg.norm(l[i])
    #         if 1 - cos**2 <= 0.1: seen.append(g @ l[i] / (l[i] @ l[i]) * l[i])   # one scalar
    #         else: l[i] = g; seen.append(g)                                       # two floats
    #     x = x - mean(seen, n); print(x)                   # sent: full full, one one, full one, full one
    expected = [[0.595, -0.37], [0.65342648, 0.03693313], [0.70445598, 0.29559255], [0.74388008, 0.46138656]]
    method = FedAvg(TWICE, up=LBGM(threshold=0.1))
    assert path(method, 4) == approx(expected)
    ledger = tw.simulate(method, Point(0.5, -1.0), PAIR, 4, workers=1, plan="each").ledger
    assert [[e.floats for e in ledger.of("up", r)] for r in (1, 2, 3, 4)] == [[2, 2], [1, 1], [2, 1], [2, 1]]


def test_a_round_that_looks_back_keeps_the_residual_of_the_link_it_holds() -> None:
    # One step of 0.1, h = (1, 2), target (1, 0): the update is ((1 - x) / 10, -x / 5). Top-k keeps one entry of two.
    # 1: p = (.05, .2),   (0, .2) whole,           e = (.05, 0)
    # 2: p = (.1, .16),   .8 of (0, .2), looked back, e = (.1, 0)
    # 3: p = (.15, .128), (.15, 0) whole,          e = (0, .128)
    # 4: p = (.035, .256), (0, .256) whole
    method = FedAvg(LocalSGD(lr=0.1, batch=None, steps=1), up=LBGM(ErrorFeedback(TopK(0.5)), threshold=0.5))
    assert path(method, 4, tasks=PAIR[:1]) == approx([[0.5, -0.8], [0.5, -0.64], [0.65, -0.64], [0.65, -0.384]])


def test_clients_train_from_the_halves_they_were_sent() -> None:
    # Half precision holds 0.1 as 0.0999755859375 and 1000.3 as 1000.5. One step of 0.5 from there, h = 1, target 0:
    # the update is -0.04998779296875 and -500.25; the server adds it to its own 0.1 and 1000.3.
    task = Quadratic(torch.ones(2), torch.zeros(1, 2))
    method = FedAvg(LocalSGD(lr=0.5, batch=None, steps=1), down=Half())
    found = path(method, 1, Point(0.1, 1000.3), [task])[0]
    assert found[0] == pytest.approx(0.05001220703125, abs=1e-8)
    assert found[1] == pytest.approx(500.05, abs=1e-4)


# -- weights and the other ways to gather -------------------------------------------


class GatheredReply(NamedTuple):
    update: Params
    own: Each[Params]
    total: Sum[Params]
    label: Each[Tensor]
    counts: Sum[Tensor]
    shares: Tensor
    number: float
    steps: Sum[float]


class Held(NamedTuple):
    x: Params


@dataclass(frozen=True)
class Gather(tw.Algorithm):
    """Sends the client's number and size in every kind of field; `log` gets what the server is handed."""

    log: Any = None
    up: Any = Dense()
    down: Any = Dense()
    weights: Any = "examples"
    buffers: Any = "mean"

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        blank = GatheredReply(zero, zero, zero, torch.zeros(1), torch.zeros(2), torch.zeros(2), 0.0, 0.0)
        return Start(Held(x), Held(zero), None, blank)

    def broadcast(self, server: Any, view: Any) -> Any:
        return Held(server.x)

    def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
        yield tw.Local(view.x, LOCAL)
        i, n = float(key.client or 0), float(len(task))
        value = view.x.zeros().map(lambda f: f + i)
        return (
            GatheredReply(value, value, value, torch.tensor([i]), torch.tensor([n, 1.0]), torch.tensor([i, n]), i, n),
            state,
        )

    def server(self, server: Any, view: Any, mean: Any, key: Key) -> Any:
        self.log.append(mean)
        return server

    def model(self, server: Any, client: int | None = None) -> Params:
        return server.x


class OwnReply(NamedTuple):
    update: Each[Params]


@dataclass(frozen=True)
class Own(Gather):
    """Sends an update that is not averaged."""

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return super().init(x, num_clients, key)._replace(reply=OwnReply(x.zeros()))


def test_luar_over_updates_that_are_not_averaged_is_refused_with_the_reason() -> None:
    with pytest.raises(CombinationError, match=r"an update of each client's own \(Each\[...\]\), and no aggregate"):
        tw.simulate(LUAR(Own([]), recycle=0, layers="tensors"), Point(0.5, -1.0), PAIR, 1, workers=1)


# Clients 0, 1, 2 have 1, 2 and 5 examples and send 0, 1 and 2.
@pytest.mark.parametrize(
    ("weights", "mean", "shares"),
    [("examples", 1.5, [1.5, 3.75]), ("uniform", 1.0, [1.0, 8 / 3])],  # (0 + 2 + 10) / 8; (1 + 4 + 25) / 8
)
@pytest.mark.parametrize("up", [Dense(), TopK(1.0), RandK(1.0)], ids=repr)
def test_fields_are_averaged_summed_or_handed_over_as_their_types_say(
    weights: Any, mean: float, shares: list[float], up: tw.Link
) -> None:
    log: list[Any] = []
    tasks = [Quadratic(H, torch.zeros(n, 2)) for n in (1, 2, 5)]
    tw.simulate(Gather(log, up=up, weights=weights), Point(0.5, -1.0), tasks, 1, workers=1, plan="each")
    (got,) = log
    assert got.update.flat.tolist() == [pytest.approx(mean)] * 2
    assert {client: own.flat.tolist() for client, own in got.own.items()} == {0: [0, 0], 1: [1, 1], 2: [2, 2]}
    assert got.total.flat.tolist() == [3, 3]
    assert {client: label.tolist() for client, label in got.label.items()} == {0: [0], 1: [1], 2: [2]}
    assert got.counts.tolist() == [8, 3]
    assert got.shares.tolist() == pytest.approx(shares)
    assert got.number == pytest.approx(mean)
    assert got.steps == 8


def test_only_those_who_replied_are_gathered_and_weighted() -> None:
    log: list[Any] = []
    tasks = [Quadratic(H, torch.zeros(n, 2)) for n in (1, 2, 5, 3)]
    tw.simulate(Gather(log), Point(0.5, -1.0), tasks, 12, sample=2, workers=1, plan="each")
    sizes = {0: 1.0, 1: 2.0, 2: 5.0, 3: 3.0}
    pairs = [sorted(got.own) for got in log]
    assert len({tuple(pair) for pair in pairs}) > 3
    for got, (i, j) in zip(log, pairs, strict=True):
        weighted = (i * sizes[i] + j * sizes[j]) / (sizes[i] + sizes[j])
        assert got.update.flat.tolist() == [pytest.approx(weighted)] * 2
        assert got.counts.tolist() == [sizes[i] + sizes[j], 2]


# -- LUAR ---------------------------------------------------------------------------

TOWER = [
    Quadratic(torch.tensor([1.0, 2, 3, 1, 2, 3]), torch.tensor([[1.0, 0, 1, 2, 0, 1]])),
    Quadratic(
        torch.tensor([1.0, 2, 3, 1, 2, 3]),
        torch.tensor([[0.0, 1, 3, 1, 1, -1], [1.0, 0, 3, 2, 2, -2], [-1.0, 2, 3, 0, 0, 0]]),
    ),
]
ONCE = LocalSGD(lr=0.1, batch=None, steps=1)


@pytest.mark.parametrize(
    ("drop", "x", "score"),
    [
        (
            False,
            [
                [0.925, -0.65, 0.75, 1.925, 0.95, 1.25],
                [0.8575, -0.37, 1.275, 1.85, 0.9, 0.725],
                [0.79675, -0.146, 1.6425, 1.79, 0.87, 0.2],
                [0.736, 0.078, 1.89975, 1.736, 0.846, -0.01],
            ],
            [0.2485135, 0.0296917, 1.05],
        ),
        (
            True,
            [
                [0.925, -0.65, 0.75, 1.925, 0.95, 1.25],
                [0.8575, -0.37, 1.275, 1.925, 0.95, 0.725],
                [0.79675, -0.146, 1.6425, 1.8575, 0.91, 0.725],
                [0.79675, -0.146, 1.89975, 1.79675, 0.878, 0.3575],
            ],
            [0.2485135, 0.0331955, 0.5068966],
        ),
    ],
)
def test_four_rounds_of_luar_in_turn_are_those_worked_out_by_hand(
    drop: bool, x: list[list[float]], score: list[float]
) -> None:
    # h = np.array([1, 2, 3, 1, 2, 3.]); a = np.array([[1, 0, 1, 2, 0, 1], [0, 1, 3, 1, 1, -1.]]); n = np.array([1, 3])
    # x, last, s = np.array([1, -1, 0, 2, 1, 2.]), np.zeros(6), {}
    # layers = {"a": slice(0, 2), "b": slice(3, 5), "c": slice(5, 6)}   # kernels; entry 2 is a's bias, always sent
    # for recycled in ["", "b", "c", "a"]:
    #     d = (n[:, None] * np.array([-0.1 * h * (x - a[i]) for i in (0, 1)])).sum(0) / 4
    #     if recycled: d[layers[recycled]] = 0 if drop else last[layers[recycled]]
    #     for k, at in layers.items():
    #         if k != recycled: s[k] = np.linalg.norm(d[at]) / np.linalg.norm(x[at])
    #     x, last = x + d, d; print(x, s)
    run = Simulation(LUAR(FedAvg(ONCE), 1, select="round-robin", drop=drop), Tower(), TOWER, workers=1, plan="each")
    floats, unsent = [], []
    with run.pool:
        for t in range(4):
            unsent.append(run.server.recycled.tolist())
            run.step()
            assert run.server.inner.x.flat.tolist() == approx(x[t])
            floats.append(run.records[-1]["up_floats"])
    assert run.server.score.tolist() == approx(score)
    # a.weight, a.bias, b.weight, c.weight
    assert unsent == [
        [False, False, False, False],
        [False, False, True, False],
        [False, False, False, True],
        [True, False, False, False],
    ]
    assert floats == [12, 8, 10, 8]


def after_one_round(luar: LUAR, x: Params, update: Params, seed: int) -> Any:
    """The server's state, of a LUAR over FedAvg, after a round with this mean update."""
    start = luar.init(x, 2, Key(seed))
    return luar.server(start.server, start.view, fedavg.Reply(update), Key(seed, 1))


def three_kernels(*values: float) -> Params:
    return Params.of((name, torch.tensor([[value]])) for name, value in zip("pqr", values, strict=True))


# x = (2, 4, 8), |update| = (2, 2, 2): s = 1, 1/2, 1/4. How often a layer is drawn, without replacement:
#   p = 1 / s
#   for order in itertools.permutations(range(3), recycle):
#       share, rest = 1, p.sum()
#       for i in order: share *= p[i] / rest; rest -= p[i]
#       for i in order: drawn[i] += share
# For |update| = (1, 1, 4) and select="gradient-norm" the same with s = |update|.
@pytest.mark.parametrize(
    ("select", "recycle", "update", "expected"),
    [
        ("metric", 1, (2.0, -2.0, 2.0), (0.142857, 0.285714, 0.571429)),
        ("metric", 2, (2.0, -2.0, 2.0), (0.390476, 0.714286, 0.895238)),
        ("gradient-norm", 1, (1.0, 1.0, -4.0), (0.444444, 0.444444, 0.111111)),
        ("gradient-norm", 2, (1.0, 1.0, -4.0), (0.855556, 0.855556, 0.288889)),
        ("uniform", 1, (1.0, 1.0, -4.0), (0.333333, 0.333333, 0.333333)),
        ("uniform", 2, (1.0, 1.0, -4.0), (0.666667, 0.666667, 0.666667)),
    ],
)
def test_layers_are_drawn_as_often_as_their_scores_say(
    select: Any, recycle: int, update: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    luar, x, draws = LUAR(FedAvg(), recycle, select=select), three_kernels(2.0, 4.0, 8.0), 800
    drawn = torch.zeros(3)
    for seed in range(draws):
        drawn += after_one_round(luar, x, three_kernels(*update), seed).recycled
    assert int(drawn.sum()) == draws * recycle
    assert (drawn / draws).tolist() == pytest.approx(expected, abs=0.06)  # 3.4 standard deviations at least


def test_the_score_of_a_layer_is_its_update_over_its_weights() -> None:
    x, update = three_kernels(2.0, 4.0, 8.0), three_kernels(2.0, -2.0, 2.0)
    assert after_one_round(LUAR(FedAvg(), 1), x, update, 0).score.tolist() == pytest.approx([1.0, 0.5, 0.25])
    norms = after_one_round(LUAR(FedAvg(), 1, select="gradient-norm"), x, update, 0).score
    assert norms.tolist() == pytest.approx([2.0, 2.0, 2.0])


def test_a_layer_that_does_not_move_or_starts_at_zero_has_a_finite_chance() -> None:
    seen: Counter[int] = Counter()
    for seed in range(20):
        state = after_one_round(LUAR(FedAvg(), 1), three_kernels(0.0, 1.0, 1.0), three_kernels(1.0, 0.0, 1.0), seed)
        seen.update(state.recycled.nonzero().flatten().tolist())
        assert torch.isfinite(state.score).all()
    assert seen == {1: 20}  # a frozen layer costs nothing to recycle


def test_a_recycled_layer_repeats_its_last_update_bit_for_bit() -> None:
    tasks, _ = handwriting()
    for inner in (FedAvg(LOCAL), FedAvg(LOCAL, up=COMPRESSED, weights="uniform")):
        run = Simulation(LUAR(inner, recycle=2, layers="tensors"), mlp, tasks, sample=4, workers=1, plan="each")
        recycled = 0
        with run.pool:
            for _ in range(6):
                x, last, unsent = run.server.inner.x, run.server.last, run.server.recycled
                run.step()
                for name in x.layout.named(unsent):
                    recycled += 1
                    assert torch.equal(run.server.last[name], last[name])
                    assert torch.equal(run.server.inner.x[name], x[name] + last[name])
                for name in set(x.names) - set(x.layout.named(unsent)):
                    assert not torch.equal(run.server.last[name], last[name])
        assert recycled == 10


def test_units_are_kernels_tensors_or_modules() -> None:
    layout = Params.trainable(normed()).layout
    assert LUAR(FedAvg(), 0).units(layout) == [["1.weight"], ["4.weight"]]
    assert LUAR(FedAvg(), 0, layers="tensors").units(layout) == [
        ["1.weight"],
        ["1.bias"],
        ["2.weight"],
        ["2.bias"],
        ["4.weight"],
        ["4.bias"],
    ]
    assert LUAR(FedAvg(), 0, layers="modules").units(layout) == [
        ["1.weight", "1.bias"],
        ["2.weight", "2.bias"],
        ["4.weight", "4.bias"],
    ]


@pytest.mark.parametrize(
    ("layers", "recycle", "once"),
    [("kernels", 1, [{"1.weight"}, {"4.weight"}]), ("modules", 2, None), ("tensors", 5, None)],
)
def test_what_is_recycled_is_not_sent_and_the_rest_is(layers: Any, recycle: int, once: Any) -> None:
    tasks, _ = handwriting()
    run = Simulation(LUAR(FedAvg(LOCAL), recycle, layers=layers), normed, tasks, sample=2, workers=1, plan="each")
    sizes = {"1.weight": 768, "1.bias": 12, "2.weight": 12, "2.bias": 12, "4.weight": 120, "4.bias": 10}
    modules = [{"1.weight", "1.bias"}, {"2.weight", "2.bias"}, {"4.weight", "4.bias"}]
    allowed = {
        "kernels": once,
        "modules": [a | b for a, b in itertools.combinations(modules, 2)],
        "tensors": [set(sizes) - {name} for name in sizes],
    }[layers]
    with run.pool:
        run.step()
        for _ in range(5):
            unsent = set(run.slot.layout.named(run.server.recycled))
            assert unsent in allowed
            run.step()
            sent = sum(size for name, size in sizes.items() if name not in unsent) + 24  # and the norm's statistics
            assert [e.floats for e in run.ledger.of("up", run.round)] == [sent, sent]


# -- SCAFFOLD -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "up",
    [Dense(), TopK(0.05), COMPRESSED, Half(), RandK(0.2), LBGM(threshold=0.7), EF21(TopK(0.1))],
    ids=repr,
)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_the_servers_control_is_the_mean_of_the_clients_after_every_round(up: tw.Link, weights: Any) -> None:
    tasks, _ = handwriting()
    method = SCAFFOLD(LOCAL, up=up, weights=weights)
    run = Simulation(method, mlp, tasks, sample=4, dropout=0.3, workers=1, plan="each")
    with run.pool:
        for _ in range(6):
            run.step()
            held = [run.states.get(i).own.state.flat for i in range(8)]
            torch.testing.assert_close(run.server.c.flat, torch.stack(held).mean(0), atol=2e-6, rtol=1e-4)
    assert run.server.c.norm() > 0.01


# -- what is refused ------------------------------------------------------------------


def test_luar_over_luar_is_refused_with_the_reason() -> None:
    with pytest.raises(CombinationError, match="outer one would recycle what the inner one did not send"):
        LUAR(LUAR(FedAvg(), 1), 1)


@pytest.mark.parametrize(
    ("layers", "recycle", "message"),
    [
        ("kernels", 2, r"LUAR\(recycle=2\): at most 1, the model has 2 kernels and one must be sent"),
        ("modules", 2, r"LUAR\(recycle=2\): at most 1, the model has 2 modules and one must be sent"),
        ("tensors", 4, r"LUAR\(recycle=4\): at most 3, the model has 4 tensors and one must be sent"),
    ],
)
def test_recycling_every_layer_is_refused_with_the_largest_number(layers: Any, recycle: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trained(LUAR(FedAvg(), recycle, layers=layers), rounds=1)
    trained(LUAR(FedAvg(), recycle - 1, layers=layers), rounds=2)


def test_recycling_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LUAR\(recycle=-1\): recycle is a number of layers, 0 or more"):
        LUAR(FedAvg(), -1)


@pytest.mark.parametrize("down", [TopK(0.1), ErrorFeedback(TopK(0.1)), LBGM(), RandK(0.5)], ids=repr)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_downlink_that_would_lose_absolute_values_is_refused(down: tw.Link, by_name: bool) -> None:
    with pytest.raises(CombinationError, match=r"cannot carry a broadcast.*EF21\(TopK\(0\.1\)\)"):
        trained(FedAvg(down={"x": down} if by_name else down), rounds=1)
    with pytest.raises(CombinationError, match="cannot carry a broadcast"):
        trained(LUAR(SCAFFOLD(down={"c": down}), recycle=1), rounds=1)


def test_a_link_for_a_field_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="up= names 'delta', but the fields it can carry are control, update"):
        trained(SCAFFOLD(up={"delta": TopK(0.1)}), rounds=1)
    with pytest.raises(ValueError, match="down= names 'update', but the fields it can carry are x"):
        trained(LUAR(FedAvg(down={"update": Half()}), recycle=1), rounds=1)


def test_scaffold_with_local_momentum_is_refused_with_the_reason() -> None:
    with pytest.raises(CombinationError, match=r"local momentum=0\.9 stretches: use momentum=0"):
        SCAFFOLD(LocalSGD(momentum=0.9))


REFUSED = {
    "LUAR(FedAvg(), 1, layers='kernel')": ("LUAR(layers='kernel'): one of 'kernels', 'tensors', 'modules' is expected"),
    "LUAR(FedAvg(), 1, select='best')": (
        "LUAR(select='best'): one of 'metric', 'uniform', 'round-robin', 'gradient-norm' is expected"
    ),
    "LUAR(TopK(), 1)": "LUAR(inner=TopK(0.01)): Algorithm such as FedAvg() is expected",
    "LUAR(FedAvg, 1)": (
        "LUAR(inner=<class 'thinwire.algorithms.fedavg.FedAvg'>): Algorithm such as FedAvg() is expected"
    ),
}


def test_arguments_of_a_wrong_kind_are_refused_in_one_clear_line() -> None:
    # In a process of its own: here the checked annotations would speak first.
    script = (
        "import json, sys\nfrom thinwire import *\nfound = {}\n"
        "for text in json.load(sys.stdin):\n"
        "    try: eval(text)\n"
        "    except ValueError as error: found[text] = str(error)\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(list(REFUSED)), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == REFUSED
