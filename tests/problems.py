"""Small problems that several tests share: clients' tasks and models, layouts, updates, and a message over the wire."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Size, Tensor, nn

import thinwire as tw
from thinwire import LocalSGD, Simulation, Supervised
from thinwire.data.digits import digits
from thinwire.errors import WireError
from thinwire.key import Key
from thinwire.links import Link
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

# -- updates ------------------------------------------------------------------

# 352 entries: matrices, vectors, a scalar, a single entry, nothing at all.
LAYOUT = Layout(
    ("conv.weight", "conv.bias", "scale", "one", "empty", "fc.weight", "fc.bias"),
    (Size([4, 3, 3]), Size([4]), Size([]), Size([1]), Size([0, 3]), Size([10, 30]), Size([10])),
)
ONE = Layout(("w",), (Size([1_000]),))
TWO = Layout(("w", "b"), (Size([20, 40]), Size([200])))
EIGHT = Layout(("a",), (Size([8]),))
# Made into Params in the tests: beartype, which checks those, draws random numbers, and strategies must not.
VECTORS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8)


def _updates() -> list[Params]:
    """Ten rounds: a direction, almost the same twice, another one, parts, nothing, zeros, the first again."""
    generator = torch.Generator().manual_seed(11)

    def draw(scale: float) -> Params:
        return Params(LAYOUT, torch.randn(352, generator=generator) * scale)

    a, b = draw(0.1), draw(2.0)
    return [
        a,
        a * 1.7 + draw(0.003),
        (a * -0.4 + draw(0.001)).drop(["fc.weight"]),
        b,
        b.drop(["conv.weight", "scale", "empty"]) * 0.5,
        b.drop(LAYOUT.names),
        b.zeros(),
        b * 2.0,
        a + draw(0.01),
        a.only(["one", "fc.bias"]),
    ]


UPDATES = _updates()  # nothing writes to them: one of the laws of links


def drifting(num: int) -> list[Params]:
    """Updates that turn slowly, every third without some of the layers."""
    generator = torch.Generator().manual_seed(5)
    x, found = torch.randn(352, generator=generator), []
    for t in range(num):
        x = x + 0.3 * torch.randn(352, generator=generator)
        found.append(Params(LAYOUT, x) if t % 3 else Params(LAYOUT, x).drop(LAYOUT.names[t % 5 :: 3]))
    return found


def thousand(layout: Layout) -> Params:
    """1,000 values of which no two have the same magnitude, in no order."""
    return Params(layout, torch.tensor([((i * 7_919) % 1_009 - 504.25) / 512 for i in range(1_000)]))


def forty(*sizes: float) -> Params:
    """Layers of 40 entries of these sizes; the first of each is one more."""
    one = torch.tensor([1.0] + 39 * [0.0])
    return Params.of([(name, one + size) for name, size in zip("abc", sizes, strict=False)])


def eight(values: list[float]) -> Params:
    return Params(EIGHT, torch.tensor(values))


def vector(*values: float) -> Params:
    return Params.of([("a", torch.tensor(values))])


def noise(n: int, seed: int = 0) -> Params:
    return vector(*torch.randn(n, generator=torch.Generator().manual_seed(seed)).tolist())


# -- messages -----------------------------------------------------------------

FIRST = Key(1)


def key(round: int, client: int | None = 4) -> Key:
    return Key(1, round, client).at("up").at("update")


def bits(x: Params) -> bytes:
    assert x.flat.dtype == torch.float32
    return x.flat.contiguous().view(torch.uint8).numpy().tobytes()


def through(link: Link, x: Params, tx: Any, rx: Any, k: Key) -> tuple[bytes, Params, Any, Any]:
    """A message over the wire; both ends must agree on what was seen."""
    packet, seen, tx = link.send(x, tx, k)
    data = dumps(packet)
    got, rx = link.recv(loads(data), x.layout, rx, k)
    assert got.layout == seen.layout == x.layout
    assert bits(got) == bits(seen)
    return data, seen, tx, rx


def once(link: Link, x: Params, k: Key = FIRST) -> tuple[Any, list[float]]:
    """The packet of a first message, and what the other side makes of its bytes."""
    tx, rx = link.open(x.zeros())
    packet, seen, _ = link.send(x, tx, k)
    got, _ = link.recv(loads(dumps(packet)), x.layout, rx, k)
    assert got.flat.equal(seen.flat)
    return packet, seen.flat.tolist()


def rounds(link: Link, *xs: Params) -> Iterator[tuple[Any, list[float], Any]]:
    """The packet, what is seen and the sender's state of each round."""
    tx, rx = link.open(xs[0].zeros())
    for t, x in enumerate(xs):
        packet, seen, tx = link.send(x, tx, key(t))
        got, rx = link.recv(loads(dumps(packet)), x.layout, rx, key(t))
        assert bits(got) == bits(seen)
        yield packet, seen.flat.tolist(), tx


def seen_by(link: Link, *xs: Params) -> list[list[float]]:
    return [seen for _, seen, _ in rounds(link, *xs)]


# -- packets by hand ----------------------------------------------------------


def packed(text: str) -> Tensor:
    """Bits, "1011 0010 1", in bytes with the lowest first."""
    text = text.replace(" ", "")
    text += "0" * (-len(text) % 8)
    return torch.tensor([int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8)], dtype=torch.uint8)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def octets(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def refused(link: Link, packet: Any, n: int) -> bool:
    """Whether the receiver of one layer of ``n`` entries refuses a packet. Fails the test if it does not."""
    layout = Layout(("a",), (Size([n]),))
    with pytest.raises(WireError):
        link.recv(loads(dumps(packet)), layout, link.open(layout.zeros())[1], key(0))
    return True


# -- matrices -----------------------------------------------------------------

# Orthogonal columns of length 2: H D H^T / 4 has the singular values D.
HADAMARD = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])

KNOWN = HADAMARD @ torch.diag(torch.tensor([6.0, 2.0, 1.0, 1.0])) @ HADAMARD / 4  # 4 x 4, length^2 = 42


def matrix(x: Tensor) -> Params:
    return Params.of([("a", x)])


def seen_of(link: Link, x: Tensor, key: Key = FIRST) -> Tensor:
    params = matrix(x)
    return link.send(params, link.open(params.zeros())[0], key)[1]["a"]


def lost(x: Tensor, seen: Tensor) -> float:
    return (x.double() - seen.double()).square().sum().item()


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- digits of eight clients ----------------------------------------------------------------

SIZES = (12, 20, 28, 36, 44, 24, 40, 16)  # clients of different weight, last batches of different size
LOCAL = LocalSGD(lr=0.1, batch=16)


@functools.cache
def handwriting() -> tuple[list[Supervised], Supervised]:
    """Eight clients with a few of scikit-learn's digits each, and a test set."""
    data = digits()
    parts = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(1))[: sum(SIZES)].split(SIZES)
    return [Supervised(data.inputs, data.targets, part) for part in parts], Supervised(
        data.test_inputs[:100], data.test_targets[:100]
    )


def mlp() -> nn.Module:  # 910 parameters
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def normed() -> nn.Module:  # 934, and 24 statistics
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


def trained(algorithm: tw.Algorithm, model: Any = mlp, rounds: int = 3, **options: Any) -> tw.Result:
    """A run on the digits."""
    tasks, test = handwriting()
    options = {"sample": 3, "test": test, "seed": 7, "workers": 1, "plan": "each"} | options
    return tw.simulate(algorithm, model, tasks, rounds, **options)


def assert_same_run(a: tw.Result, b: tw.Result) -> None:
    """The same model bit for bit, on the same way there."""
    assert torch.equal(a.params.flat, b.params.flat)
    for (name, left), right in zip(a.module.state_dict().items(), b.module.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    for name in ("train_loss", "test_loss", "accuracy"):
        assert [r[name] for r in a.rounds] == [r[name] for r in b.rounds]


# -- quadratics, to do by hand ---------------------------------------------------------------


class Point(nn.Module):
    """A model that is a few numbers."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def vector(self) -> Tensor:
        return self.w


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
ONCE = LocalSGD(lr=0.1, batch=None, steps=1)
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


# -- two examples and three classes -----------------------------------------------------------


class Scores(nn.Module):
    """Three scores of a pair of numbers u: w0 u0, w1 u1, w0 u1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.0]))

    def forward(self, u: Tensor) -> Tensor:
        return torch.stack([self.w[0] * u[:, 0], self.w[1] * u[:, 1], self.w[0] * u[:, 1]], 1)


SCORED = [
    Supervised(torch.tensor([[1.0, 2.0]]), torch.tensor([0])),
    Supervised(torch.tensor([[2.0, -1.0]]), torch.tensor([1])),
]
