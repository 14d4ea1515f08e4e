"""Whatever torch's defaults are, the library's numbers have the type and the place that they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from problems import LAYOUT, UPDATES, bits, key, through
from test_every_link import every, straight
from thinwire.ddp import DEF, EF, EF21, SAEF, Hook, PSync, compress
from thinwire.ddp.simulation import simulate
from thinwire.wire import dumps
from tiers import tiers


@contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def half() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")  # a tensor that is made there has no numbers
    try:
        yield
    finally:
        torch.set_default_device(None)


DEFAULTS = [double, half, elsewhere]
each = pytest.mark.parametrize("default", DEFAULTS)


@pytest.mark.usefixtures("kernels")
@each
@every
def test_a_link_sends_the_same_bytes_under_other_defaults(row: Any, default: Callable[[], Any]) -> None:
    expected = straight(row.link)[:3]
    with default():
        (tx, rx), found = row.link.open(LAYOUT.zeros()), []
        for t, x in enumerate(UPDATES[:3]):
            data, seen, tx, rx = through(row.link, x, tx, rx, key(t))
            found.append((data, bits(seen), dumps(tx), dumps(rx)))
    assert found == expected


METHODS = [
    DEF(4),
    DEF(tw.TopK(0.2)),
    EF(4),
    SAEF(4, average=3),
    PSync(4),
    EF21(tw.TopK(0.2)),
    *(Hook(tw.parse(text)) for text in ("Dense()", "Half()", "QSGD(16)", "PowerSGD(2)", "ErrorFeedback(TopK(0.1))")),
    Hook(tw.LBGM(tw.SignSGD())),
    Hook(tw.EF21(tw.TopK(0.2))),
]
X = torch.randn(12, 2, 5, 5, generator=torch.Generator().manual_seed(0))
Y = (X.sum((1, 2, 3)) > 0).long()


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 2)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def trained(module: nn.Module, method: Any, default: Callable[[], Any]) -> list[Tensor]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = [(p.dtype, p.device, p.stride()) for p in module.parameters()]
        with default():
            c = compress(model, optimizer, method)
            for _ in range(20):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X), Y).backward()
                optimizer.step()
            c.load_state_dict(c.state_dict())
            with c.averaged():
                found = [p.detach().clone() for p in model.parameters()]
        assert [(p.dtype, p.device, p.stride()) for p in module.parameters()] == before
        return found
    except Exception as error:
        clear_frames(error.__traceback__)
        raise
    finally:
        # An error keeps its frames. Were the model in them the last to hold the group, torch would join the group's
        # threads under the interpreter's lock, which one of them may wait for.
        model = optimizer = c = None
        dist.destroy_process_group()


@contextmanager
def none() -> Iterator[None]:
    yield


@pytest.mark.slow
@each
@pytest.mark.parametrize("method", tiers(METHODS, slow=6, name=repr))
def test_a_live_module_keeps_its_type_place_and_layout_and_trains_to_the_same_bits(
    method: Any, default: Callable[[], Any]
) -> None:
    expected, found = trained(network(), method, none), trained(network(), method, default)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def task() -> tw.Supervised:
    return tw.Supervised(X, Y)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@each
@pytest.mark.parametrize("method", METHODS[::3], ids=repr)
def test_logical_workers_train_to_the_same_bits_under_other_defaults(method: Any, default: Callable[[], Any]) -> None:
    options: dict[str, Any] = {"workers": 2, "steps": 6, "batch": 3, "optimizer": sgd, "evaluate_every": 3}
    data, model = task(), network()
    expected = simulate(method, model, data, data, **options)
    with default():
        found = simulate(method, model, data, data, **options)
    assert found.accuracy == expected.accuracy
    for a, b in zip(expected.module.state_dict().values(), found.module.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_module_in_double_precision_is_compressed_as_it_is_or_refused_by_name() -> None:
    module = network().double()
    with pytest.raises(ValueError, match=r"parameter '0.weight' is float64: keep parameters in float32"):
        trained(module, EF(4), none)


FEDERATED = [
    "FedAvg(LocalSGD(0.1, batch=4))",
    "FedAvg(LocalSGD(0.1, batch=4), up=ErrorFeedback(TopK(0.1)), down=EF21(TopK(0.2)))",
    "FedAvg(LocalSGD(0.1, batch=4), opt=Adam(0.03), up=LBGM())",
    "SCAFFOLD(LocalSGD(0.1, batch=4))",
    "FedMut(LocalSGD(0.1, batch=4))",
    "LUAR(FedAvg(LocalSGD(0.1, batch=4)), recycle=1)",
]


@each
@pytest.mark.parametrize("text", FEDERATED)
def test_a_federation_trains_to_the_same_bits_under_other_defaults(text: str, default: Callable[[], Any]) -> None:
    """Two clients, twice: with dense layers and with a convolution and a norm."""
    method, tasks = tw.parse(text), [tw.Supervised(X[:6], Y[:6]), tw.Supervised(X[6:], Y[6:])]
    for make in (network, lambda: nn.Sequential(nn.Flatten(), nn.Linear(50, 8), nn.Tanh(), nn.Linear(8, 2))):
        model = make()
        expected = tw.simulate(method, model, tasks, rounds=3, test=task(), workers=2)
        with default():
            found = tw.simulate(method, model, tasks, rounds=3, test=task(), workers=2)
        assert torch.equal(found.params.flat, expected.params.flat)
        assert (found.accuracy, found.bytes_up) == (expected.accuracy, expected.bytes_up)
