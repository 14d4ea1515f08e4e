"""Where a model is cut for a schedule whose parts compute forward passes twice."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from thinwire.pipeline import BPK, DDG, DSP, FR, split
from thinwire.pipeline.split import balanced, replays


def test_a_part_that_replays_is_charged_for_its_forward_passes_twice():
    """Eight modules of 3, a forward pass is 1 of them: 4 | 4 is 12, and 16 with a replay; 3 | 5 is 12 and 15."""
    modules = [3.0] * 8, [True] * 8
    assert balanced(*modules, 2) == [4]
    assert balanced(*modules, 2, [1.0] * 8, [True, False]) == [3]
    assert balanced(*modules, 2, [1.0] * 8, [False, False]) == [4]


def test_all_parts_but_the_last_replay_under_dsp_where_they_are_late():
    assert replays(DSP((1, 1, 0), (4, 2, 0)), 3) == replays(FR(), 3) == [True, True, False]
    assert replays(DSP((0, 1, 0), (2, 2, 0)), 3) == [True, True, False]
    assert replays(DSP((0, 0, 0), (0, 0, 0)), 3) == replays(BPK(), 3) == replays(DDG(), 3) == [False] * 3


class Slow(nn.Linear):
    """20 ms forward, and next to nothing back."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().forward(x)


def test_a_measured_model_is_cut_for_its_schedule():
    """Six modules alike: 3 | 3 without replays; with them 2 | 4, where both take 4 forward passes."""
    make = lambda: nn.Sequential(*[Slow(2, 2) for _ in range(6)])  # noqa: E731
    sample = torch.zeros(1, 2)
    assert [len(part) for part in split(make(), 2, sample=sample)] == [3, 3]
    assert [len(part) for part in split(make(), 2, sample=sample, schedule=DSP((1, 0), (2, 0)))] == [2, 4]
    with pytest.raises(ValueError, match="is for 3 parts, and the model is cut into 2"):
        split(make(), 2, sample=sample, schedule=DSP((1, 1, 0), (4, 2, 0)))
