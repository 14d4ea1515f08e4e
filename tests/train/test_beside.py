"""Copies of a module beside it: what is frozen is in memory once, and the caller's own stays apart."""

from __future__ import annotations

import copy
import os
import platform
from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.train.allocator import give_back_freed_memory
from thinwire.train.given import copy_module
from thinwire.train.slot import Slot


def model() -> nn.Module:
    """A frozen body, whose two layers are tied, and a head."""
    torch.manual_seed(0)
    first, second, head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
    second.weight = first.weight
    return nn.Sequential(first.requires_grad_(False), second.requires_grad_(False), head)


def where(module: nn.Module) -> list[int]:
    return [p.data_ptr() for p in module.parameters()]


def tasks() -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(3)]


def test_a_copy_beside_a_module_shares_what_is_frozen_and_copies_what_is_trained() -> None:
    module = model()
    other = copy_module(module, beside=True)
    assert where(other)[:3] == where(module)[:3]  # of the body: a weight, two biases
    assert not set(where(other)[3:]) & set(where(module)[3:])
    assert other[0].weight is other[1].weight
    assert other[0].weight is not module[0].weight  # so that the one can be moved without the other
    other.double()
    assert module[0].weight.dtype == torch.float32
    assert not set(where(copy_module(module))) & set(where(module))


def test_workers_and_the_result_share_the_base_that_a_function_made_and_never_that_of_a_module_that_was_given() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(model())
        return made[-1]

    method = tw.FedAvg(tw.LocalSGD(0.1, batch=4))
    run = tw.simulate(method, make, tasks(), 2, workers=2)
    assert where(run.module)[:3] == where(made[0])[:3]
    given = model()
    before = copy.deepcopy(given.state_dict())
    result = tw.simulate(method, given, tasks(), 2, workers=2)
    assert not set(where(result.module)) & set(where(given))
    for p in result.module.parameters():
        p.data.fill_(7.0)
    assert all(value.equal(before[name]) for name, value in given.state_dict().items())
    slot = Slot(given)
    assert where(slot.twin().module)[:3] == where(slot.module)[:3]
    assert not set(where(slot.module)) & set(where(given))


def test_auto_makes_its_model_once() -> None:
    made: list[int] = []

    def make() -> nn.Module:
        made.append(1)
        return nn.Sequential(nn.Linear(6, 40).requires_grad_(False), nn.Linear(40, 40), nn.Linear(40, 3))

    result = tw.simulate(tw.Auto(0.3, tw.LocalSGD(0.1, batch=4)), make, tasks(), 12, sample=2)
    assert len(result.chosen) == 2  # before the run, and after ten rounds
    assert len(made) == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_that_was_freed_below_what_is_held_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    parts = [torch.ones(16_000) for _ in range(1_000)]  # 64 MB, each too small for a mapping of its own
    held = parts.pop()
    parts.clear()
    before = resident()
    give_back_freed_memory()
    assert before - resident() > 50e6
    assert float(held.sum()) == 16_000


def test_a_probe_finds_a_gradient_wherever_it_is() -> None:
    from torch.utils.checkpoint import checkpoint

    from thinwire.train.slot import nearest_leaf

    class Recomputed(nn.Module):
        """Its trained layer is in no graph: the backward pass makes one anew, and refuses to be asked for a part."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
            self.last.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.first, x.requires_grad_(), use_reentrant=True))

    module = Recomputed()
    for part in (module, module.requires_grad_(False), module):
        part.first.requires_grad_()  # with last's bias in the graph, and then alone
        run = tw.Simulation(tw.FedAvg(tw.LocalSGD(0.1)), module, [(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))])
        run.close()
    a, b, c = (torch.zeros(3, requires_grad=True) for _ in range(3))
    loss = (a.exp().sin() + b.exp()).sum()
    assert nearest_leaf(loss, [a, b, c]) is b
    assert nearest_leaf(loss, [a, c]) is a
    assert nearest_leaf(loss, [c]) is None
    assert nearest_leaf(torch.zeros(()), [a]) is None
