"""Staleness: how far a part moves while a batch is on its way, and its gradient beside that of backpropagation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import thinwire as tw
from thinwire.pipeline import BPK, DSP, GPipe, PipeDream, Simulation
from thinwire.pipeline.schedule import Schedule
from thinwire.pipeline.watch import Watch, backpropagate, difference, due, mean_moved, size


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 6), nn.Linear(6, 3)]


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 4, generator=draw), torch.randint(3, (4,), generator=draw)) for _ in range(count)]


def watched(schedule: Schedule, stages: list[nn.Module]) -> Simulation:
    training = Simulation(stages, lambda p: torch.optim.SGD(p, lr=0.5), schedule)
    for stage in training.stages.values():
        stage.watch = Watch()
    return training


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("schedule", [DSP((1, 1, 0), (4, 2, 0)), PipeDream()])
def test_a_part_has_moved_by_what_it_did_in_the_ticks_between_forward_and_back(schedule: Any) -> None:
    """After each tick a copy is taken: batch n goes forward with copy n, and back before the step of tick n + m."""
    stages, lags = parts(), schedule.delays(3)
    training = watched(schedule, stages)
    copies = [[flat(stage)] for stage in stages]
    for n, (x, y) in enumerate(batches(7)):
        training.step(x, y)
        for part, stage in training.stages.items():
            found = mean_moved(stage)
            if n < lags[part]:
                assert found is None
            else:
                expected = copies[part][n] - copies[part][n - lags[part]]
                assert found == pytest.approx(float(expected.norm()), abs=1e-6)
            copies[part].append(flat(stages[part]))
            assert size(stage) == pytest.approx(float(flat(stages[part]).norm()))
    assert float((copies[0][-1] - copies[0][0]).norm()) > 0.1


def gap(schedule: Schedule, ticks: int) -> list[float]:
    """Of each part at its last step, by the length of backpropagation's gradient."""
    training = watched(schedule, parts())
    drawn = batches(ticks)
    for x, y in drawn[:-1]:
        training.step(x, y)
    stages = [training.stages[part] for part in range(3)]
    expected = [(batch := due(s), backpropagate(stages, s.part, batch, *drawn[batch])) for s in stages]
    training.step(*drawn[-1])
    return [difference(s, batch, by) / float(by.norm()) for s, (batch, by) in zip(stages, expected, strict=True)]


def test_plain_model_parallelism_has_the_gradient_of_backpropagation() -> None:
    assert gap(BPK(), 3) == [pytest.approx(0, abs=1e-6)] * 3
    assert gap(GPipe(2), 3) == [pytest.approx(0, abs=1e-6)] * 3
    first, second, last = gap(DSP((1, 1, 0), (4, 2, 0)), 8)
    assert min(first, second) > 0.1
    assert last == pytest.approx(0, abs=1e-6)  # what it is given was computed with the parameters as they are


def test_backpropagation_through_the_parts_is_that_of_the_whole_model() -> None:
    stages, ((x, y),) = parts(), batches(1)
    training = watched(BPK(), stages)
    whole = nn.Sequential(*copy.deepcopy(stages))
    F.cross_entropy(whole(x), y).backward()
    for part, layers in enumerate(whole):
        expected = torch.cat([p.grad.flatten() for p in layers.parameters() if p.grad is not None])
        found = backpropagate([training.stages[k] for k in range(3)], part, 0, x, y)
        torch.testing.assert_close(found, expected)


def test_a_watched_training_is_the_same_and_goes_on_from_its_bytes_to_the_same_distances() -> None:
    schedule, drawn = DSP((1, 1, 0), (4, 2, 0)), batches(9)
    plain = Simulation(alone := parts(), lambda p: torch.optim.SGD(p, lr=0.5), schedule)
    training = watched(schedule, stages := parts())
    for x, y in drawn[:5]:
        plain.step(x, y)
        training.step(x, y)
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(alone, stages, strict=True))
    saved = tw.dumps(training.state_dict())
    again, late = watched(schedule, parts()), watched(schedule, parts())
    again.load_state_dict(tw.loads(saved, max_values=None))
    late.load_state_dict(plain.state_dict())  # it was not watched
    for one in (training, again, late):
        for stage in one.stages.values():
            mean_moved(stage)
        one.step(*drawn[5])
    assert [mean_moved(s) for s in again.stages.values()] == [mean_moved(s) for s in training.stages.values()]
    assert [mean_moved(s) for s in late.stages.values()] == [None, None, 0.0]
