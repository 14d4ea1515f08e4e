"""Convolutions trained in C: what torch makes of the same client, at every level of the instruction set."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from clients import KEY, TRAINERS, made, some
from thinwire import LocalSGD, Supervised
from thinwire.kernels import native
from thinwire.local import Local, Memory, Trained
from thinwire.models import fedavg_cnn, lbgm_cnn
from thinwire.params import Params
from thinwire.train.compiled import chain, train_chains
from thinwire.train.many import compiles, train_many
from thinwire.train.one import train
from thinwire.train.slot import Slot

Shape = tuple[int, int, int]


def ended(shape: Shape, *front: nn.Module) -> nn.Module:
    """These stages, and what makes four classes of what they give."""
    inputs = nn.Sequential(*front)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*front, nn.Flatten(), nn.Linear(inputs, 4))


def padded() -> tuple[nn.Module, Shape]:  # no pool after the first, zeros around both, three channels, unequal sides
    shape = (3, 7, 9)
    body = nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 33, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    return ended(shape, *body), shape


def bare() -> tuple[nn.Module, Shape]:  # a pixel at a time, no bias, no ReLU, no pool
    return ended((2, 3, 2), nn.Conv2d(2, 4, 1, bias=False), nn.Conv2d(4, 20, 1)), (2, 3, 2)


def three() -> tuple[nn.Module, Shape]:  # odd sides at every pool, one without ReLU, one before ReLU; rows of 29
    shape = (1, 11, 29)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 17, 2, padding=1), nn.MaxPool2d(2, stride=2)
    third = nn.Conv2d(17, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()
    return ended(shape, *first, *second, *third), shape


def wide() -> tuple[nn.Module, Shape]:  # more channels than registers, and rows of them in several parts
    shape = (1, 8, 6)
    return ended(shape, nn.Conv2d(1, 130, 5, padding=2, bias=False), nn.ReLU(), nn.Conv2d(130, 50, 3), nn.ReLU()), shape


def fedavg() -> tuple[nn.Module, Shape]:
    return fedavg_cnn((1, 16, 17), 4), (1, 16, 17)


def lbgm() -> tuple[nn.Module, Shape]:
    return lbgm_cnn((3, 19, 16), 4), (3, 19, 16)


MODELS = [fedavg, lbgm, padded, bare, three, wide]


def pictures(shape: Shape, n: int = 21, floats: bool = False) -> Supervised:
    g = torch.Generator().manual_seed(2)
    inputs = torch.randint(256, (30, *shape), generator=g, dtype=torch.uint8)
    targets, part = torch.randint(4, (30,), generator=g), torch.arange(n) + 5
    if floats:
        return Supervised(torch.randn(30, *shape, generator=g), targets, part)
    scale = {1: ((0.3,), (0.6,)), 2: ((0.1, 0.2), (1, 2)), 3: ((0.1, 0.2, 0.3), (1, 2, 3))}[shape[0]]
    return Supervised(inputs, targets, part, mean=scale[0], std=scale[1])


def compare(found: Trained, expected: Trained, x: Params) -> None:
    """Equal to rounding. A sum of nearly zero may fall on either side of ReLU's bend: then a few weights are not."""
    assert found.steps == expected.steps
    assert found.loss == pytest.approx(expected.loss, rel=2e-5)
    pairs = [(found.x, expected.x, x.flat)]
    if found.momentum is not None and expected.momentum is not None:
        pairs.append((found.momentum, expected.momentum, torch.zeros(())))
    for one, other, start in pairs:
        assert torch.isclose(one.flat, other.flat, atol=5e-6, rtol=5e-5).float().mean() > 0.999
        assert (one.flat - other.flat).norm() < 5e-4 * (other.flat - start).norm()


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_client_trained_in_c_is_the_client_trained_in_torch(name: str, model: Any, levels: Any) -> None:
    module, shape = model()
    (slot, known, x), own = made(module, 0.1), pictures(shape, floats=name == "five")
    assert known.convs
    assert known.takes(own)
    request = Local(x, replace(TRAINERS[name], lr=0.05))
    expected = train(slot, own, request, KEY)
    assert (expected.x.flat - x.flat).abs().max() > 1e-3
    for level in levels:
        native.use(level)
        compare(train_chains(known, [own], [request], [KEY])[0], expected, x)


@pytest.mark.parametrize("what", ["offset", "anchor", "mask", "shift", "memory"])
def test_what_a_request_asks_for_besides_is_done_in_c_too(what: str, levels: Any) -> None:
    module, shape = padded()
    (slot, known, x), own = made(module, 0.1), pictures(shape)
    asked = (some(x, 4).flat > 0).float() if what == "mask" else some(x, 4).flat
    given = Memory((Params(x.layout, asked),), 0) if what == "memory" else Params(x.layout, asked)
    request = Local(x, TRAINERS["bent"])._replace(**{what: given})
    found = train_chains(known, [own], [request], [KEY])[0]
    compare(found, train(slot, own, request, KEY), x)
    plain = train_chains(known, [own], [Local(x, TRAINERS["bent"])], [KEY])[0]
    assert (plain.x.flat - found.x.flat).abs().max() > 1e-4


@pytest.mark.parametrize("floats", [False, True])
def test_clients_trained_at_once_by_threads_are_those_trained_one_by_one(floats: bool, levels: Any) -> None:
    module, shape = lbgm()
    _, known, x = made(module, 0.1)
    clients = [replace(pictures(shape, floats=floats), indices=torch.arange(n)) for n in (3, 8, 20, 9, 4, 13, 7, 11)]
    clients = [replace(clients[0], indices=own.indices) for own in clients]
    request = Local(x, LocalSGD(0.05, batch=6, epochs=3))

    def trained(i: int) -> Tensor:
        return train_chains(known, [clients[i]], [request], [KEY._replace(client=i)])[0].x.flat

    expected = [trained(i) for i in range(len(clients))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(trained, [*range(len(clients))] * 4))
    for i, one in enumerate(found):
        assert torch.equal(one, expected[i % len(clients)])


def test_the_first_of_equal_numbers_is_the_largest_as_in_torch(levels: Any) -> None:
    # Whole numbers: no sum is rounded, so what is equal here is equal in torch. Many are, in windows of four.
    g = torch.Generator().manual_seed(5)
    body = nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 20, 1), nn.MaxPool2d(2)
    slot, known, x = made(ended((1, 9, 9), *body))
    x = Params(x.layout, torch.randint(-1, 2, x.flat.shape, generator=g).float())
    inputs = torch.randint(0, 3, (30, 1, 9, 9), generator=g).float()
    own = Supervised(inputs, torch.randint(4, (30,), generator=g))
    request = Local(x, LocalSGD(0.01, batch=30))
    expected = train(slot, own, request, KEY)
    for level in levels:
        native.use(level)
        compare(train_chains(known, [own], [request], [KEY])[0], expected, x)
    with torch.no_grad():
        y = torch.relu(nn.functional.conv2d(inputs, x["0.weight"], x["0.bias"]))
    windows = nn.functional.unfold(y, 2, stride=2).view(30, 3, 4, -1)
    ties = (windows == windows.max(2, keepdim=True).values).sum(2)
    assert ((ties > 1) & (windows.max(2).values > 0)).float().mean() > 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("model", [padded, three])
def test_pictures_that_hold_no_numbers_are_said_to(value: float, model: Any, levels: Any) -> None:
    module, shape = model()
    slot, _, x = made(module, 0.1)
    own = pictures(shape, floats=True)
    own.inputs[7, 0, 3, 3] = value
    for level in levels:
        native.use(level)
        with pytest.raises(tw.errors.NonFinite, match="round 2, client 1: the inputs have NaN or infinity in them"):
            train_many(slot, [own], [Local(x, LocalSGD(0.05, batch=5))], [KEY])


def test_numbers_that_overflow_before_a_relu_that_hides_them_are_still_said_to(levels: Any) -> None:
    # The first convolution gives infinity, the second less than nothing of it, which ReLU makes zero: the loss is
    # finite. Zero times infinity is not, so in torch the gradient of the second is NaN.
    slot, _, x = made(ended((1, 5, 5), nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU()))
    x = Params(x.layout, x.flat.abs())
    x["0.weight"].fill_(1e38)
    x["2.weight"].fill_(-1.0)
    own = Supervised(torch.full((4, 1, 5, 5), 10.0), torch.zeros(4, dtype=torch.long))
    request = Local(x, LocalSGD(0.05, batch=4))
    with pytest.raises(tw.errors.NonFinite):
        train(slot, own, request, KEY)
    with pytest.raises(tw.errors.NonFinite):
        train_many(slot, [own], [request], [KEY])


def test_a_client_whose_training_diverges_is_named(levels: Any) -> None:
    module, shape = fedavg()
    slot, _, x = made(module, 0.1)
    with pytest.raises(tw.errors.NonFinite, match=r"round 2, client 1: .* lower lr=1e\+30"):
        train_many(slot, [pictures(shape)], [Local(x, LocalSGD(1e30, batch=5))], [KEY])


def changed(change: Callable[[nn.Module], object], at: int = 0) -> nn.Module:
    module = padded()[0]
    change(module[at])  # type: ignore[index]
    return module


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def with_front(*front: nn.Module) -> nn.Module:
    return nn.Sequential(*front, nn.Flatten(), nn.Linear(1, 4))


def shared() -> nn.Module:
    conv = nn.Conv2d(2, 2, 3)
    return with_front(conv, nn.ReLU(), conv)


CONV = nn.Conv2d(2, 2, 3)
OTHERS = {
    "stride": with_front(nn.Conv2d(2, 2, 3, stride=2)),
    "not square": with_front(nn.Conv2d(2, 2, (3, 1))),
    "padded unequally": with_front(nn.Conv2d(2, 2, 3, padding=(1, 0))),
    "padded by name": with_front(nn.Conv2d(2, 2, 3, padding="same")),
    "padded by others": with_front(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
    "dilation": with_front(nn.Conv2d(2, 2, 3, dilation=2)),
    "groups": with_front(nn.Conv2d(2, 2, 3, groups=2)),
    "of another class": with_front(Doubled(2, 2, 3)),
    "other channels": with_front(CONV, nn.Conv2d(3, 2, 3)),
    "shared": shared(),
    "norm": with_front(CONV, nn.GroupNorm(1, 2)),
    "tanh": with_front(CONV, nn.Tanh()),
    "dropout": with_front(CONV, nn.Dropout()),
    "mean": with_front(CONV, nn.AvgPool2d(2)),
    "pool of 3": with_front(CONV, nn.MaxPool2d(3)),
    "pool that overlaps": with_front(CONV, nn.MaxPool2d(2, stride=1)),
    "pool of a rest": with_front(CONV, nn.MaxPool2d(2, ceil_mode=True)),
    "pool of zeros too": with_front(CONV, nn.MaxPool2d(2, padding=1)),
    "pool with gaps": with_front(CONV, nn.MaxPool2d(2, dilation=2)),
    "pool twice": with_front(CONV, nn.MaxPool2d(2), nn.MaxPool2d(2)),
    "pool alone": with_front(nn.MaxPool2d(2)),
    "not flat": nn.Sequential(CONV, nn.Linear(5, 4)),
    "flat in part": nn.Sequential(CONV, nn.Flatten(2), nn.Linear(5, 4)),
    "no linear layer": nn.Sequential(CONV, nn.Flatten()),
    "after linear layers": nn.Sequential(nn.Linear(5, 5), CONV, nn.Flatten(), nn.Linear(1, 4)),
    "frozen": changed(lambda conv: conv.requires_grad_(False)),
    "frozen bias": changed(lambda conv: conv.bias.requires_grad_(False), 2),
    "hook": changed(lambda conv: conv.register_forward_hook(lambda *_: None), 1),
    "factors": changed(lambda conv: nn.utils.parametrizations.weight_norm(conv)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_module_is_taken_for_one(name: str, levels: Any) -> None:
    module, _ = padded()
    assert chain(module, Slot(module).layout) is not None
    trained = [(n, p) for n, p in OTHERS[name].named_parameters() if p.requires_grad]
    assert chain(OTHERS[name], tw.Layout.of(trained)) is None


def test_no_other_task_is_taken(levels: Any) -> None:
    module, shape = padded()
    _, known, _ = made(module)
    own = pictures(shape)
    assert known.takes(own)
    assert known.takes(pictures(shape, floats=True))
    assert known.takes(replace(own, inputs=own.inputs.transpose(2, 3).contiguous()))  # torch does too: as many numbers
    assert not known.takes(pictures((2, 7, 9), floats=True))
    assert not known.takes(pictures((3, 7, 7), floats=True))
    assert not known.takes(pictures((3, 1, 1), floats=True))
    assert not known.takes(replace(pictures(shape, floats=True), inputs=torch.randn(30, 3 * 7 * 9)))
    assert not known.takes(replace(own, inputs=own.inputs.to(memory_format=torch.channels_last)))
    assert not known.takes(replace(own, targets=own.targets + 1))
    assert not known.takes(replace(own, loss_of=lambda outputs, targets: outputs.sum(1)))


# -- in a simulation --------------------------------------------------------------------------------------------------


def simulated(plan: Any, workers: int = 2, module: Any = None, rounds: int = 3, **options: Any) -> tw.Result:
    shape = (1, 16, 16)
    own = pictures(shape)
    tasks = [replace(own, indices=torch.arange(6 * i, 6 * i + 3 + i % 4)) for i in range(5)]
    make = module or (lambda: fedavg_cnn(shape, 4))
    local = LocalSGD(0.05, batch=2, momentum=0.5)
    return tw.simulate(tw.FedAvg(local), make, tasks, rounds, seed=1, plan=plan, workers=workers, **options)


def test_a_simulation_in_c_is_the_simulation_in_torch_whatever_the_number_of_workers(levels: Any) -> None:
    each = simulated("each")
    runs = [simulated(plan, workers) for plan, workers in ((None, 1), (None, 3), ("measured", 2), ("compiled", 2))]
    for run in runs:
        torch.testing.assert_close(run.params.flat, each.params.flat, atol=5e-6, rtol=5e-5)
        assert torch.equal(run.params.flat, runs[0].params.flat)
    assert not torch.equal(runs[0].params.flat, each.params.flat), "in C the last bits are others"


def test_the_plan_is_a_rule_of_model_and_task(levels: Any) -> None:
    own = pictures((1, 16, 16))
    tasks = [replace(own, indices=torch.arange(6 * i, 6 * i + 3)) for i in range(5)]

    def chosen(method: Any, make: Any, tasks: Any = tasks, **options: Any) -> Any:
        run = tw.Simulation(method, make, tasks, workers=1, **options)
        run.step(evaluate=False)
        return run.plan

    def cnn() -> nn.Module:
        return fedavg_cnn((1, 16, 16), 4)

    assert chosen(tw.FedAvg(), cnn) == "compiled"
    assert chosen(tw.FedAvg(), cnn, sample=1) == "compiled"
    assert chosen(tw.FedAvg(), cnn, plan="measured") == "compiled"
    assert chosen(tw.FedAvg(), cnn, plan="each") == "each"
    assert chosen(tw.SCAFFOLD(), cnn) == "compiled"
    assert chosen(tw.MOON(), cnn) == "each"  # its loss is its own
    assert chosen(tw.FedAvg(tw.LocalSGD(0.1, clip=1.0)), cnn) == "each"
    assert chosen(tw.FedAvg(tw.LocalAdam(0.01)), cnn) == "each"
    assert chosen(tw.FedAvg(), lambda: ended((1, 16, 16), nn.Conv2d(1, 2, 3), nn.Tanh())) == "each"
    native.use("reference")
    assert chosen(tw.FedAvg(), cnn) == "each"


def test_a_compiled_run_goes_on_where_the_kernels_are_missing(levels: Any, tmp_path: Any) -> None:
    whole = simulated(None)
    simulated(None, rounds=2, out=tmp_path / "run")
    native.use("reference")
    resumed = simulated(None, out=tmp_path / "run", resume=True)
    assert len(resumed.rounds) == 3
    torch.testing.assert_close(resumed.params.flat, whole.params.flat, atol=5e-6, rtol=5e-5)
    with pytest.raises(tw.errors.RunError, match="this run began with plan='compiled'"):
        simulated("each", rounds=4, out=tmp_path / "run", resume=True)


def test_a_client_of_another_model_is_trained_in_torch_under_any_plan(levels: Any) -> None:
    def other() -> nn.Module:
        torch.manual_seed(0)
        return ended((1, 16, 16), nn.Conv2d(1, 2, 3), nn.Tanh())

    each, compiled = (simulated(plan, module=other) for plan in ("each", "compiled"))
    assert torch.equal(compiled.params.flat, each.params.flat)


def test_a_request_of_its_own_kind_is_trained_in_torch_beside_others(levels: Any) -> None:
    module, shape = fedavg()
    slot, _, x = made(module, 0.1)
    own = pictures(shape)
    assert compiles(slot, own, Local(x, LocalSGD(0.1)))
    assert not compiles(slot, own, Local(x, LocalSGD(0.1), basis=[torch.ones(x.layout.size)]))
    assert not compiles(slot, own, Local(x, LocalSGD(0.1, warmup=2)))
    assert not compiles(slot, replace(own, augment=(tw.data.augment.Flip(),)), Local(x, LocalSGD(0.1)))
