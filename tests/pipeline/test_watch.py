"""Staleness: how far a part moves while a batch is on its way, and its gradient beside that of backpropagation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import thinwire as tw
from thinwire.pipeline import BPK, DSP, FR, GPipe, PipeDream, Simulation
from thinwire.pipeline.schedule import Schedule
from thinwire.pipeline.watch import Watch, backpropagate, difference, due, lemma, mean_moved, size


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 6), nn.Linear(6, 3)]


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 4, generator=draw), torch.randint(3, (4,), generator=draw)) for _ in range(count)]


def watched(schedule: Schedule, stages: list[nn.Module]) -> Simulation:
    training = Simulation(stages, lambda p: torch.optim.SGD(p, lr=0.5), schedule)
    for stage in training.stages.values():
        stage.watch = Watch(schedule.delays(3)[0])
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


@pytest.mark.parametrize("schedule", [DSP((1, 1, 0), (4, 2, 0)), DSP((2, 1, 0), (7, 3, 0)), FR()])
def test_the_lemma_compares_with_backpropagation_where_each_part_was_when_the_batch_went_forward(
    schedule: Schedule,
) -> None:
    """After each step a copy is taken of each part. By its own clock batch n goes forward at step n, back m_k later."""
    stages, lags = parts(), schedule.delays(3)
    training, drawn = watched(schedule, stages), batches(12)
    copies = [[flat(stage)] for stage in stages]
    for x, y in drawn:
        training.step(x, y)
        for part, stage in enumerate(stages):
            copies[part].append(flat(stage))
    seen = 0
    for part in range(3):
        watch = training.stages[part].watch
        assert watch is not None
        assert watch.gradient is not None
        batch, gradient = watch.gradient
        whole = nn.Sequential(*copy.deepcopy(stages))
        for k, layers in enumerate(whole):
            nn.utils.vector_to_parameters(copies[k][batch], layers.parameters())
        F.cross_entropy(whole(drawn[batch][0]), drawn[batch][1]).backward()
        by = torch.cat([weight.grad.flatten() for weight in whole[part].parameters() if weight.grad is not None])
        ways = sum(float((copies[k][batch + lags[k]] - copies[k][batch]).norm()) for k in range(part, 3))
        before = [flat(stage) for stage in stages]
        found = lemma([training.stages[k] for k in range(3)], part, *drawn[batch])
        assert found is not None
        assert found == pytest.approx((float((gradient - by).norm()), float(by.norm()), ways), abs=1e-6)
        assert all(torch.equal(flat(stage), known) for stage, known in zip(stages, before, strict=True))
        seen += found.ratio is not None and found.ratio > 0.01
    assert seen == 1  # the last part waits for nobody, and the middle one is linear: only the first is elsewhere


def test_there_is_no_lemma_of_micro_batches_or_of_a_batch_that_was_not_kept() -> None:
    assert all(lemma_of(GPipe(2), behind) is None for behind in (0, 4))
    assert lemma_of(DSP((1, 1, 0), (4, 2, 0)), 0) is None
    assert lemma_of(BPK(), 0) == pytest.approx((0, lemma_of(BPK(), 0)[1], 0), abs=1e-6)  # type: ignore[index]


def lemma_of(schedule: Schedule, behind: int) -> Any:
    """Of the first part after eight ticks."""
    training, drawn = watched(schedule, parts()), batches(8)
    for stage in training.stages.values():
        stage.watch = Watch(behind)
    for x, y in drawn:
        training.step(x, y)
    own = training.stages[0].watch
    assert own is not None
    assert own.gradient is not None
    return lemma([training.stages[part] for part in range(3)], 0, *drawn[own.gradient[0]])


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
    first, *others = [
        lemma([one.stages[part] for part in range(3)], 0, *drawn[one.stages[0].watch.gradient[0]])  # type: ignore[union-attr, index]
        for one in (training, again, late)
    ]
    assert first is not None
    assert others == [first, None]
