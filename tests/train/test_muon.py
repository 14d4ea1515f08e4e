"""Muon for matrices and AdamW for the rest: what each is given, and what scripts do with an optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from thinwire.ddp import DEF, DetachedLoCo, Method, Muon
from thinwire.ddp.simulation import simulate
from thinwire.problem import standard


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(48, 5), nn.Linear(5, 4))


def data(step: int) -> Tensor:
    return torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, after: Callable[[], None] = bool) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.step()
        after()


def bits(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def by_hand(steps: int, layout: torch.memory_format) -> Tensor:
    """Torch's own two, of a model whose kernels were laid flat; the last layer is AdamW's."""
    model = network().to(memory_format=layout)
    kernel, matrix, last = model[0].weight, model[3].weight, model[4].weight
    flat = nn.Parameter(kernel.detach().reshape(3, 18).clone())
    given = {"momentum": 0.8, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    muon = torch.optim.Muon([flat, matrix], 0.02, **given)
    others = [p for p in model.parameters() if p.ndim < 2 or p is last]
    adamw = torch.optim.AdamW(others, 0.02, weight_decay=0.1)
    for step in range(steps):
        model.zero_grad()
        model(data(step)).square().mean().backward()
        assert kernel.grad is not None
        flat.grad = kernel.grad.reshape(3, 18)
        muon.step()
        adamw.step()
        with torch.no_grad():
            kernel.copy_(flat.view(kernel.shape))
    return bits(model)


def make(model: nn.Sequential, parameters: object = None) -> Muon:
    return Muon(parameters or model.parameters(), 0.02, 0.8, 0.1, plain=[model[4].weight])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_matrices_and_kernels_have_muon_and_others_adamw(layout):
    model = network().to(memory_format=layout)
    before, strides = bits(model), model[0].weight.stride()
    train(model, make(model), range(5))
    assert torch.equal(bits(model), by_hand(5, layout))
    assert (bits(model) != before).float().mean() > 0.9
    assert (model[0].weight.shape, model[0].weight.stride()) == ((3, 2, 3, 3), strides)
    assert model[0].weight.grad.shape == (3, 2, 3, 3)


def test_groups_have_rates_of_their_own_and_a_schedule_moves_all():
    model, plain = network(), network()
    groups = [{"params": model[0].parameters()}, {"params": list(model[1:].named_parameters()), "lr": 0.0}]
    with pytest.raises(ValueError, match="with names"):  # torch's rule: all groups have names, or none has
        make(model, copy.copy(groups))
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters()), "lr": 0.0}]
    optimizer = make(model, groups)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.02, 0.0, 0.0]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < 1))
    train(model, optimizer, range(1))
    assert (model[0].weight != plain[0].weight).any()
    assert (model[0].bias != plain[0].bias).any()
    assert torch.equal(bits(model[1:]), bits(plain[1:]))
    schedule.step()
    there = bits(model)
    train(model, optimizer, range(1, 2))
    assert torch.equal(bits(model), there)


def test_it_goes_on_from_its_state_to_the_same_bits():
    model, again = network(), network()
    optimizer = make(model)
    train(model, optimizer, range(3))
    state = copy.deepcopy(optimizer.state_dict())
    again.load_state_dict(model.state_dict())
    other = make(again)
    other.load_state_dict(state)
    train(model, optimizer, range(3, 6))
    train(again, other, range(3, 6))
    assert torch.equal(bits(model), bits(again))
    fresh = network()
    train(fresh, make(fresh), range(3))
    train(fresh, make(fresh), range(3, 6))
    assert not torch.equal(bits(fresh), bits(model))  # the state is not nothing


def test_a_closure_is_called_with_gradients_and_its_loss_given_back():
    model, plain = network(), network()
    optimizer = make(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(data(0)).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure).item()
    assert loss == plain(data(0)).square().mean().item()
    train(plain, make(plain), range(1))
    assert torch.equal(bits(model), bits(plain))


@pytest.mark.parametrize("method", [DEF(16), DetachedLoCo(4)])
def test_ranks_train_with_it(method: Method):
    problem = standard("digits", "mlp", 1, seed=0)
    result = simulate(
        method,
        problem.model,
        problem.tasks[0],
        problem.test,
        workers=2,
        steps=60,
        batch=32,
        optimizer=lambda p: Muon(p, 0.01),
    )
    assert result.records[-1]["accuracy"] > 0.8
