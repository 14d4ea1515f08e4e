"""Convolutions trained in C: what torch makes of the same client, at every level of the instruction set."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tables
import thinwire as tw
from clients import KEY, TRAINERS, made, some
from thinwire import LocalSGD, Supervised
from thinwire.kernels import native
from thinwire.local import Local, Memory, Trained, look
from thinwire.models import fedavg_cnn, lbgm_cnn, resnet8
from thinwire.models.pool import ChannelMean
from thinwire.models.resnet import ResNet
from thinwire.params import Params
from thinwire.train import one, one_in_c
from thinwire.train.compiled import chain
from thinwire.train.one_in_c import chain_for
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


def strided() -> tuple[nn.Module, Shape]:  # the means of channels, and two linear layers
    front = (
        nn.Conv2d(3, 7, 4, stride=3, padding=2),
        nn.ReLU(),
        nn.Conv2d(7, 18, 2, stride=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
    )
    return nn.Sequential(*front, ChannelMean(), nn.Linear(18, 9), nn.Tanh(), nn.Linear(9, 4)), (3, 31, 22)


def normed() -> tuple[nn.Module, Shape]:  # before pools, with strides, with a bias that it takes away, of any side
    shape = (2, 14, 12)
    first = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 20, 3, stride=2, padding=2), nn.BatchNorm2d(20), nn.Conv2d(20, 33, 3), nn.BatchNorm2d(33)
    third = nn.ReLU(), nn.Conv2d(33, 5, 2, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU()
    return ended(shape, *first, *second, *third), shape


def patched() -> tuple[nn.Module, Shape]:  # where Winograd's products do: even sides, patches in rows of 17 and of 3
    shape = (1, 4, 34)
    first = nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 40, 3, padding=1, bias=False), nn.BatchNorm2d(40), nn.ReLU()
    second = nn.MaxPool2d(2), nn.Conv2d(40, 3, 3, padding=2), nn.BatchNorm2d(3), nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20)
    return ended(shape, *first, *second), shape


def residual() -> tuple[nn.Module, Shape]:
    return resnet8((3, 8, 12), 4, width=8), (3, 8, 12)


def residual_odd() -> tuple[nn.Module, Shape]:
    return ResNet(1, 4, "batch", blocks=2, width=16), (1, 9, 7)


MODELS = [fedavg, lbgm, padded, bare, three, wide, strided, normed, patched, residual, residual_odd]


def pictures(shape: Shape, n: int = 21, floats: bool = False) -> Supervised:
    g = torch.Generator().manual_seed(2)
    inputs = torch.randint(256, (30, *shape), generator=g, dtype=torch.uint8)
    targets, part = torch.randint(4, (30,), generator=g), torch.arange(n) + 5
    if floats:
        return Supervised(torch.randn(30, *shape, generator=g), targets, part)
    scale = {1: ((0.3,), (0.6,)), 2: ((0.1, 0.2), (1, 2)), 3: ((0.1, 0.2, 0.3), (1, 2, 3))}[shape[0]]
    return Supervised(inputs, targets, part, mean=scale[0], std=scale[1])


def check(found: Trained, torchs: Trained, exact: Trained, x: Params) -> None:
    """What C gives is as near to training in 64-bit floats as what torch gives, layer by layer.

    To rounding: where a sum is nearly zero it may fall on either side of ReLU's bend, and then a few weights differ.
    """
    assert found.steps == torchs.steps
    assert found.loss == pytest.approx(torchs.loss, rel=1e-3)
    kinds = [(found.x, torchs.x, exact.x, x)]
    if torchs.momentum is not None and exact.momentum is not None and found.momentum is not None:
        kinds.append((found.momentum, torchs.momentum, exact.momentum, Params(x.layout, torch.zeros_like(x.flat))))
    assert (found.buffers is None) == (torchs.buffers is None)
    if torchs.buffers is not None and exact.buffers is not None and found.buffers is not None:
        assert found.buffers.layout == torchs.buffers.layout
        zeros = Params(torchs.buffers.layout, torch.zeros_like(torchs.buffers.flat))
        kinds.append((found.buffers, torchs.buffers, exact.buffers, zeros))
    for mine, theirs, true, start in kinds:
        for name in true.layout.names:
            far, near, moved = ((each[name].double() - true[name]).norm() for each in (mine, theirs, start))
            assert far <= 4 * near + 2e-4 * moved + 1e-6, f"{name}: {far:.2g}, {near:.2g} in torch, of {moved:.2g}"


def started(model: Any, floats: bool = False) -> tuple[Slot, Supervised, Params]:
    """A slot for the model that knows its statistics, pictures, and where training begins."""
    torch.manual_seed(0)
    module, shape = model()
    own = pictures(shape, floats=floats)
    slot = Slot(module)
    slot.probe([own])
    slot.flat.add_(0.05 * torch.randn(slot.flat.shape))
    x = slot.params()
    assert chain_for(slot, own, Local(x, LocalSGD(0.1))) is not None
    return slot, own, x


def in_64_bits(model: Any, own: Supervised, request: Local) -> Trained:
    """The same training in 64-bit floats."""
    slot = Slot(model()[0].double())
    slot.probe([own])

    def wide(given: Any) -> Any:
        if isinstance(given, Memory):
            return Memory(tuple(map(wide, given.vectors)), given.steps)
        return Params(slot.layout, given.flat.double()) if isinstance(given, Params) else given

    slot.load_buffers(request.buffers)
    plain = request._replace(buffers=None)
    return one.train(slot, own, Local(*map(wide, plain)), KEY)


def both(model: Any, slot: Slot, own: Supervised, request: Local, levels: Any) -> None:
    """Trained in torch and in C, which have to agree.

    One start in some hundreds has a sum so near to ReLU's bend that rounding decides, in torch as in C, and which one
    depends on the processor. Where they do not agree they have to at two other starts, a thousandth away.
    """
    try:
        agree(model, slot, own, request, levels)
    except AssertionError:
        for seed in (1, 2):
            near = request.x.flat + 1e-3 * some(request.x, seed).flat
            agree(model, slot, own, request._replace(x=Params(request.x.layout, near)), levels)


def agree(model: Any, slot: Slot, own: Supervised, request: Local, levels: Any) -> None:
    exact = in_64_bits(model, own, request)
    slot.load_buffers(None)
    expected = one.train(slot, own, request, KEY)
    assert (expected.x.flat - request.x.flat).abs().max() > 1e-3
    for level in levels:
        native.use(level)
        slot.load_buffers(None)
        check(one_in_c.train(slot, own, request, KEY), expected, exact, request.x)


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_client_trained_in_c_is_the_client_trained_in_torch(name: str, model: Any, levels: Any) -> None:
    slot, own, x = started(model, floats=name == "five")
    lr = 0.002 if name == "one by one" else 0.02  # norms of single pictures throw small differences far
    both(model, slot, own, Local(x, replace(TRAINERS[name], lr=lr)), levels)


@pytest.mark.parametrize("what", ["offset", "anchor", "mask", "shift", "memory", "buffers"])
@pytest.mark.parametrize("model", [padded, residual])
def test_what_a_request_asks_for_besides_is_done_in_c_too(what: str, model: Any, levels: Any) -> None:
    slot, own, x = started(model)
    asked = (some(x, 4).flat > 0).float() if what == "mask" else some(x, 4).flat
    given: Any = Memory((Params(x.layout, asked),), 0) if what == "memory" else Params(x.layout, asked)
    if what == "buffers":
        given = slot.buffers()
        given = given if given is None else Params(given.layout, given.flat + 1)
    request = Local(x, replace(TRAINERS["bent"], lr=0.02))
    both(model, slot, own, request._replace(**{what: given}), levels[-1:])
    slot.load_buffers(None)
    bent, plain = (one_in_c.train(slot, own, each, KEY) for each in (request._replace(**{what: given}), request))
    if what != "buffers":
        assert (plain.x.flat - bent.x.flat).abs().max() > 1e-4


@pytest.mark.parametrize("model", [padded, residual])
def test_a_gradient_that_is_asked_for_is_torchs(model: Any, levels: Any) -> None:
    slot, own, x = started(model)
    request = look(x, LocalSGD(0.1, batch=4, weight_decay=0.1))
    slot.load_buffers(None)
    expected = one.train(slot, own, request, KEY)
    slot.load_buffers(None)
    found = one_in_c.train(slot, own, request, KEY)
    torch.testing.assert_close(found.gradient.flat, expected.gradient.flat, atol=1e-5, rtol=1e-3)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)


def test_statistics_go_on_from_where_a_client_begins(levels: Any) -> None:
    slot, own, x = started(residual)
    request = Local(x, LocalSGD(0.02, batch=8))
    slot.load_buffers(None)
    first, second = (one_in_c.train(slot, own, request, KEY).buffers for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.flat - second.flat).abs().min() > 0
    both(residual, slot, own, request._replace(buffers=first), levels[-1:])


def test_a_client_of_smaller_batches_after_one_of_larger_and_of_another_size_is_trained_alike(levels: Any) -> None:
    # They share a worker's room.
    slot, own, x = started(residual)
    for size, sides in ((8, (8, 12)), (3, (8, 12)), (8, (8, 12)), (8, (10, 6)), (9, (8, 12))):
        task = replace(own, inputs=torch.randn(30, 3, *sides), mean=None, std=None)
        request = Local(x, LocalSGD(0.02, batch=size))
        slot.load_buffers(None)
        found = one_in_c.train(slot, task, request, KEY)
        other, _, _ = started(residual)
        other.load_buffers(None)
        alone = one_in_c.train(other, task, request, KEY)
        assert torch.equal(found.x.flat, alone.x.flat)


@pytest.mark.parametrize("model", [lbgm, residual])
def test_clients_trained_at_once_by_threads_are_those_trained_one_by_one(model: Any, levels: Any) -> None:
    slots = [started(model) for _ in range(4)]
    own, x = slots[0][1:]
    clients = [replace(own, indices=torch.arange(n)) for n in (3, 8, 20, 9, 4, 13, 7, 11)]
    request = Local(x, LocalSGD(0.02, batch=6, epochs=2))

    def trained(i: int, slot: Slot) -> Tensor:
        slot.load_buffers(None)
        return one_in_c.train(slot, clients[i], request, KEY._replace(client=i)).x.flat

    def share(worker: int) -> list[Tensor]:
        return [trained(i, slots[worker][0]) for i in range(len(clients))]

    expected = share(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(share, range(4)):
            assert all(map(torch.equal, found, expected))


def test_the_first_of_equal_numbers_is_the_largest_as_in_torch(levels: Any) -> None:
    # Whole numbers: no sum is rounded, so what is equal here is equal in torch. Many are, in windows of four.
    g = torch.Generator().manual_seed(5)
    body = nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 20, 1), nn.MaxPool2d(2)
    module = ended((1, 9, 9), *body)
    slot, _, x = made(module)
    x = Params(x.layout, torch.randint(-1, 2, x.flat.shape, generator=g).float())
    inputs = torch.randint(0, 3, (30, 1, 9, 9), generator=g).float()
    own = Supervised(inputs, torch.randint(4, (30,), generator=g))
    both(lambda: (deepcopy(module), (1, 9, 9)), slot, own, Local(x, LocalSGD(0.01, batch=30)), levels)
    with torch.no_grad():
        y = torch.relu(nn.functional.conv2d(inputs, x["0.weight"], x["0.bias"]))
    windows = nn.functional.unfold(y, 2, stride=2).view(30, 3, 4, -1)
    ties = (windows == windows.max(2, keepdim=True).values).sum(2)
    assert ((ties > 1) & (windows.max(2).values > 0)).float().mean() > 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("model", [padded, three, residual])
def test_pictures_that_hold_no_numbers_are_said_to(value: float, model: Any, levels: Any) -> None:
    slot, own, x = started(model, floats=True)
    own.inputs[7, 0, 3, 3] = value
    for level in levels:
        native.use(level)
        with pytest.raises(tw.errors.NonFinite, match="round 2, client 1: the inputs have NaN or infinity in them"):
            one_in_c.train(slot, own, Local(x, LocalSGD(0.05, batch=5)), KEY)


def test_numbers_that_overflow_before_a_relu_that_hides_them_are_still_said_to(levels: Any) -> None:
    # The first convolution gives infinity, the second less than nothing of it, which ReLU makes zero: the loss is
    # finite. Zero times infinity is not, so in torch the gradient of the second is NaN.
    slot, _, x = made(ended((1, 5, 5), nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU()))
    x = Params(x.layout, x.flat.abs())
    x["0.weight"].fill_(1e38)
    x["2.weight"].fill_(-1.0)
    own = Supervised(torch.full((4, 1, 5, 5), 10.0), torch.zeros(4, dtype=torch.long))
    request = Local(x, LocalSGD(0.05, batch=4))
    for trainer in (one.train, one_in_c.train):
        with pytest.raises(tw.errors.NonFinite):
            trainer(slot, own, request, KEY)


@pytest.mark.parametrize("model", [fedavg, residual])
def test_a_client_whose_training_diverges_is_named(model: Any, levels: Any) -> None:
    slot, own, x = started(model)
    with pytest.raises(tw.errors.NonFinite, match=r"round 2, client 1: .* lower lr=1e\+30"):
        one_in_c.train(slot, own, Local(x, LocalSGD(1e30, batch=5)), KEY)


def changed(change: Callable[[nn.Module], object], at: int = 0) -> nn.Module:
    module = padded()[0]
    change(module[at])  # type: ignore[index]
    return module


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def with_front(*front: nn.Module) -> nn.Module:
    return nn.Sequential(*front, nn.Flatten(), nn.Linear(1, 4))


def with_norm(norm: nn.Module) -> nn.Module:
    return with_front(nn.Conv2d(2, 2, 3), norm, nn.ReLU())


def resnet(change: Callable[[Any], object]) -> nn.Module:
    module = resnet8((3, 8, 8), 4, width=4)
    change(module)
    return module


def shared() -> nn.Module:
    conv = nn.Conv2d(2, 2, 3)
    return with_front(conv, nn.ReLU(), conv)


CONV = nn.Conv2d(2, 2, 3)
OTHERS = {
    "strides": with_front(nn.Conv2d(2, 2, 3, stride=(1, 2))),
    "not square": with_front(nn.Conv2d(2, 2, (3, 1))),
    "padded unequally": with_front(nn.Conv2d(2, 2, 3, padding=(1, 0))),
    "padded by name": with_front(nn.Conv2d(2, 2, 3, padding="same")),
    "padded by others": with_front(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
    "dilation": with_front(nn.Conv2d(2, 2, 3, dilation=2)),
    "groups": with_front(nn.Conv2d(2, 2, 3, groups=2)),
    "of another class": with_front(Doubled(2, 2, 3)),
    "other channels": with_front(CONV, nn.Conv2d(3, 2, 3)),
    "shared": shared(),
    "norm of groups": with_norm(nn.GroupNorm(1, 2)),
    "norm of instances": with_norm(nn.InstanceNorm2d(2, affine=True)),
    "norm without weights": with_norm(nn.BatchNorm2d(2, affine=False)),
    "norm without statistics": with_norm(nn.BatchNorm2d(2, track_running_stats=False)),
    "norm of all batches": with_norm(nn.BatchNorm2d(2, momentum=None)),
    "norm of other channels": with_norm(nn.BatchNorm2d(3)),
    "norm at rest": with_norm(nn.BatchNorm2d(2).eval()),
    "norm frozen": with_norm(nn.BatchNorm2d(2).requires_grad_(False)),
    "norm twice": with_front(CONV, nn.BatchNorm2d(2), nn.BatchNorm2d(2)),
    "norm after ReLU": with_front(CONV, nn.ReLU(), nn.BatchNorm2d(2)),
    "norm after a pool": with_front(CONV, nn.MaxPool2d(2), nn.BatchNorm2d(2)),
    "norm alone": with_front(nn.BatchNorm2d(2)),
    "norms of unequal eps": with_front(CONV, nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, eps=0.1)),
    "residual, of groups": resnet8((3, 8, 8), 4, norm="group"),
    "residual, another norm": resnet(lambda m: setattr(m.stages[1], "norm2", nn.Identity())),
    "residual, another shortcut": resnet(lambda m: setattr(m.stages[1], "shortcut", nn.Conv2d(4, 8, 1, 2))),
    "residual, another stage": resnet(lambda m: m.stages.append(nn.Sigmoid())),
    "residual, frozen": resnet(lambda m: m.stages[0].conv2.requires_grad_(False)),
    "residual, a hook": resnet(lambda m: m.stages[0].register_forward_hook(lambda *_: None)),
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
    "hook on the way back": changed(lambda conv: conv.register_full_backward_pre_hook(lambda *_: None), 1),
    "hook of a weight": changed(lambda conv: conv.weight.register_hook(lambda slope: 2 * slope)),
    "hook of a gradient": changed(lambda conv: conv.weight.register_post_accumulate_grad_hook(lambda weight: None)),
    "another forward": changed(lambda relu: setattr(relu, "forward", torch.tanh), 1),
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


def test_a_pool_that_leaves_out_what_a_norm_has_seen_is_left_to_torch(levels: Any) -> None:
    def known(shape: Shape) -> bool:
        front = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2)
        _, chain, _ = made(ended(shape, *front))
        return chain.takes(pictures(shape, floats=True))

    assert [known(shape) for shape in ((1, 8, 8), (1, 9, 8), (1, 8, 9))] == [True, False, False]


# -- in a simulation --------------------------------------------------------------------------------------------------


def simulated(plan: Any, workers: int = 2, module: Any = None, rounds: int = 3, **options: Any) -> tw.Result:
    shape = (1, 16, 16)
    own = pictures(shape)
    tasks = [replace(own, indices=torch.arange(6 * i, 6 * i + 3 + i % 4)) for i in range(5)]
    make = module or (lambda: fedavg_cnn(shape, 4))
    local = LocalSGD(0.05, batch=2, momentum=0.5)
    return tw.simulate(tw.FedAvg(local), make, tasks, rounds, seed=1, plan=plan, workers=workers, **options)


def small_cnn() -> nn.Module:
    return fedavg_cnn((1, 16, 16), 4)


def small_resnet() -> nn.Module:
    return ResNet(1, 4, "batch", blocks=1, width=4)


@pytest.mark.parametrize("module", [small_cnn, small_resnet])
def test_a_simulation_in_c_is_the_simulation_in_torch_whatever_the_number_of_workers(module: Any, levels: Any) -> None:
    each = simulated("each", module=module)
    plans = ((None, 1), (None, 3), ("measured", 2), ("compiled", 2))
    runs = [simulated(plan, workers, module) for plan, workers in plans]
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

    assert chosen(tw.FedAvg(), small_cnn) == "compiled"
    assert chosen(tw.FedAvg(), small_cnn, sample=1) == "compiled"
    assert chosen(tw.FedAvg(), small_resnet) == "compiled"
    assert chosen(tw.FedAvg(), small_cnn, plan="measured") == "compiled"
    assert chosen(tw.FedAvg(), small_cnn, plan="each") == "each"
    assert chosen(tw.SCAFFOLD(), small_cnn) == "compiled"
    assert chosen(tw.MOON(), small_cnn) == "each"  # its loss is its own
    assert chosen(tw.FedAvg(tw.LocalSGD(0.1, clip=1.0)), small_cnn) == "each"
    assert chosen(tw.FedAvg(tw.LocalAdam(0.01)), small_cnn) == "each"
    assert chosen(tw.FedAvg(), lambda: ended((1, 16, 16), nn.Conv2d(1, 2, 3), nn.Tanh())) == "each"
    native.use("reference")
    assert chosen(tw.FedAvg(), small_cnn) == "each"


def test_a_compiled_run_goes_on_where_the_kernels_are_missing(levels: Any, tmp_path: Any) -> None:
    whole = simulated(None)
    simulated(None, rounds=2, out=tmp_path / "run")
    native.use("reference")
    resumed = simulated(None, out=tmp_path / "run", resume=True)
    assert len(resumed.rounds) == 3
    torch.testing.assert_close(resumed.params.flat, whole.params.flat, atol=5e-6, rtol=5e-5)
    with pytest.raises(tw.errors.RunError, match="this run began with plan='compiled'"):
        simulated("each", rounds=4, out=tmp_path / "run", resume=True)


METHODS = [
    "FedBN(stay=('*norm*', '*shortcut.1*'))",
    "Ditto()",
    "SoftPull()",
    "FedProx(mu=0.1)",
    "SCAFFOLD()",
    "FedRep()",
]


@pytest.mark.parametrize("method", METHODS)
def test_methods_with_models_of_clients_own_are_trained_in_c_as_in_torch(method: str, levels: Any) -> None:
    own = pictures((1, 16, 16))
    tasks = [replace(own, indices=torch.arange(6 * i, 6 * i + 4 + i % 3)) for i in range(4)]
    algorithm = tw.parse(method, {"lr": 0.02, "batch": 2})
    more = {"client_tests": tasks} if algorithm.personal_models else {"test": own}
    each, compiled = (
        tw.simulate(algorithm, small_resnet, tasks, 3, seed=1, plan=plan, workers=2, **more)
        for plan in ("each", "compiled")
    )
    torch.testing.assert_close(compiled.params.flat, each.params.flat, atol=2e-5, rtol=1e-3)
    assert not torch.equal(compiled.params.flat, each.params.flat)
    for one_round, other in zip(compiled.rounds, each.rounds, strict=True):
        assert one_round["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)
        if "personal_loss" in other:
            assert one_round["personal_loss"] == pytest.approx(other["personal_loss"], rel=1e-3)


def test_a_client_of_another_model_is_trained_in_torch_under_any_plan(levels: Any) -> None:
    def other() -> nn.Module:
        torch.manual_seed(0)
        return ended((1, 16, 16), nn.Conv2d(1, 2, 3), nn.Tanh())

    each, compiled = (simulated(plan, module=other) for plan in ("each", "compiled"))
    assert torch.equal(compiled.params.flat, each.params.flat)


def test_a_request_of_its_own_kind_is_trained_in_torch_beside_others(levels: Any) -> None:
    slot, own, x = started(fedavg)
    request = Local(x, LocalSGD(0.1))
    assert chain_for(slot, own, request) is not None
    assert chain_for(slot, own, request._replace(basis=[torch.ones(x.layout.size)])) is None
    assert chain_for(slot, own, Local(x, LocalSGD(0.1, warmup=2))) is None
    assert chain_for(slot, own, Local(x, LocalSGD(0.1, clip=1.0))) is None
    assert chain_for(slot, replace(own, augment=(tw.data.augment.Flip(),)), request) is None


EVERY = [expression for method in tables.METHODS for expression in list(method.golden.values())[:1]]
EVERY = [expression.replace("Intrinsic(200", "Intrinsic(20") for expression in EVERY]  # of a smaller model
EVERY += ["SCAFFOLD(LocalSGD(0.1, batch=5), option='I')", "PerFedAvg(LocalSGD(0.1, batch=5))", "APFL(LocalSGD(0.1))"]


@pytest.mark.parametrize("expression", [*EVERY, "Ditto(LocalSGD(0.1, batch=5))", "pFedMe(LocalSGD(0.1, batch=5))"])
def test_whatever_the_method_the_plan_compiled_trains_what_each_does(expression: str) -> None:
    """Methods that look at gradients, hold layers still, bend steps or have a loss of their own, which torch trains."""
    g = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (60, 1, 10, 10), generator=g, dtype=torch.uint8)
    classes = torch.randint(3, (60,), generator=g)
    tasks = [Supervised(pictures, classes, part, mean=(0.3,), std=(0.3,)) for part in torch.arange(60).split(20)]

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))

    method = tw.parse(expression)
    each, compiled = (tw.simulate(method, model, tasks, 3, seed=1, workers=1, plan=p) for p in ("each", "compiled"))
    torch.testing.assert_close(compiled.params.flat, each.params.flat, atol=1e-5, rtol=1e-4)
    assert [entry.total for entry in compiled.ledger] == [entry.total for entry in each.ledger]
