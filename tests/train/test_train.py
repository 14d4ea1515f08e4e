"""Local training: losses, buffers and models of every kind, one client at a time or many as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import Key, Local
from thinwire.algorithms.fedavg import Reply
from thinwire.task import Supervised
from thinwire.train import one
from thinwire.train.one import train
from thinwire.train.slot import Slot


def tasks(sizes: tuple[int, ...] = (8, 12, 16, 20), seed: int = 0) -> list[Supervised]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 6, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return [Supervised(x, y, part) for part in torch.arange(sum(sizes)).split(list(sizes))]


def linear() -> nn.Module:
    return nn.Linear(6, 3)


class Zero(Supervised):
    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(module, batch) * 0.0


def test_a_loss_of_ones_own_is_used_when_clients_are_trained_together() -> None:
    own = [Zero(t.inputs, t.targets, t.indices) for t in tasks()]
    result = tw.simulate(tw.FedAvg(), linear, own, 1, plan="together")
    assert result.rounds[-1]["train_loss"] == 0.0


class Averaged(Supervised):
    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(module, batch).mean()


def test_a_loss_that_is_averaged_already_is_refused_with_what_to_do() -> None:
    own = [Averaged(t.inputs, t.targets, t.indices) for t in tasks()]
    with pytest.raises(ValueError, match=r"Averaged.loss must give one value an example, of shape \[b\]"):
        tw.simulate(tw.FedAvg(), linear, own, 1)


def cumulative() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3))


def test_counters_of_norm_layers_do_not_leak_between_clients(tmp_path: Path) -> None:
    one, two = (tw.simulate(tw.FedAvg(), cumulative, tasks(), 3, workers=w) for w in (1, 2))
    tw.simulate(tw.FedAvg(), cumulative, tasks(), 2, out=tmp_path / "run")
    resumed = tw.simulate(tw.FedAvg(), cumulative, tasks(), 3, out=tmp_path / "run", resume=True)
    for other in (two, resumed):
        for a, b in zip(one.module.state_dict().values(), other.module.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    assert not one.module.training


class Moving(nn.Module):
    """Its forward pass puts a new tensor in a buffer's place; another buffer is a constant with infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.layer(x)


def test_a_buffer_that_is_reassigned_travels_and_one_that_never_moves_does_not() -> None:
    simulation = tw.Simulation(tw.FedAvg(), Moving, tasks(), workers=1)
    with simulation.pool:
        simulation.step()
    assert simulation.buffers is not None
    assert simulation.buffers.names == ("average",)
    assert simulation.buffers.norm() > 0


def test_the_first_client_may_be_too_small_for_batch_norm_to_look_at_the_model() -> None:
    with pytest.raises(ValueError, match="client 0 has 1 example: batch norm needs 2 to train on"):
        tw.simulate(tw.FedAvg(), cumulative, tasks((1, 12, 13)), 1)


@pytest.mark.parametrize("module", [cumulative, lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))])
def test_models_that_cannot_be_batched_are_trained_one_by_one_whatever_the_plan(module) -> None:
    found = [tw.simulate(tw.FedAvg(), module, tasks(), 2, plan=plan).params.flat for plan in ("each", "together")]
    assert torch.equal(*found)


def test_the_last_round_of_a_schedule_that_ends_at_zero_leaves_the_controls_alone() -> None:
    for schedule in (tw.Cosine(0.1, 3), tw.Triangle(0.1, 1, 2)):
        assert tw.simulate(tw.SCAFFOLD(tw.LocalSGD(schedule)), linear, tasks(), 3).params.finite()


def test_a_second_training_in_a_round_draws_other_batches() -> None:
    class Twice(tw.FedAvg):
        def client(self, view, state, task, key):
            first = yield tw.Local(view.x, self.local)
            second = yield tw.Local(view.x, self.local)
            seen.append((first.x.flat, second.x.flat))
            return type(self).reply(second.x - view.x), state

    Twice.reply = Reply  # type: ignore[attr-defined]
    seen: list[tuple[Tensor, Tensor]] = []
    tw.simulate(Twice(tw.LocalSGD(batch=4)), linear, tasks()[3:], 1)
    assert not torch.equal(*seen[0])


class Watched(Supervised):
    """Notes for which parameters gradients are computed."""

    seen: list[list[bool]] = []  # noqa: RUF012

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.seen.append([p.requires_grad for p in module.parameters()])
        return super().loss(module, batch)


def test_no_gradient_is_computed_of_what_a_mask_holds_and_the_steps_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, task = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), tasks()[3]
    slot, watched = Slot(module), Watched(task.inputs, task.targets, task.indices)
    x = slot.params()
    head = x.zeros().replace(x.only(["2.weight", "2.bias"]).map(torch.ones_like))
    masked = Local(x, tw.LocalSGD(0.5, steps=3, batch=8, momentum=0.5, weight_decay=0.1), mask=head)
    Watched.seen.clear()
    found = train(slot, watched, masked, Key(0, 1, 0)).x
    assert Watched.seen == [[False, False, True, True]] * 3
    assert all(p.requires_grad for p in slot.module.parameters())
    assert torch.equal(found.only(["0.weight", "0.bias"]).flat, x.only(["0.weight", "0.bias"]).flat)
    assert (found - x).norm() > 0.1
    still = train(slot, task, masked._replace(mask=x.zeros()), Key(0, 1, 0)).x
    assert torch.equal(still.flat, x.flat)
    monkeypatch.setattr(one, "masked_parameters", lambda *_: [])
    assert torch.equal(train(slot, watched, masked, Key(0, 1, 0)).x.flat, found.flat)
    assert Watched.seen[3:] == [[True] * 4] * 3
