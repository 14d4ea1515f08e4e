"""Golden runs: a few rounds of loss and bytes of each method, as text; ``tables.METHODS`` says of which.

``pytest --golden-rewrite`` writes them anew; the commit that does so says why they moved.

They hold on every processor, with any number of threads. The last bits of a training are not the same
everywhere: how a sum is split over lanes and threads is the library's choice. So losses are compared to four
digits, which rounding alone does not reach in four rounds of a model this small, and bytes exactly: what decides
what is sent (thresholds, ties, draws) must not hang on the last bits. ``make golden`` runs them as other processors
would: with each instruction set of torch, one and two threads, and MKL's products of no instruction set in particular.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from tables import METHODS
from thinwire.data.digits import digits

FOLDER = Path(__file__).parent / "golden"
SIZES = (40, 60, 80, 100, 120)

GOLDEN = {name: expression for method in METHODS for name, expression in method.golden.items()}


@functools.cache
def problem() -> tuple[list[tw.Supervised], tw.Supervised]:
    data = digits()
    parts = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(2))[: sum(SIZES)].split(SIZES)
    return [tw.Supervised(data.inputs, data.targets, part) for part in parts], tw.Supervised(
        data.test_inputs, data.test_targets
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def recorded(expression: str) -> str:
    """The run as text: losses to four digits, bytes to the last."""
    tasks, test = problem()
    result = tw.simulate(
        tw.parse(expression), mlp, tasks, 4, sample=3, test=test, seed=1, dropout=0.25, workers=1, plan="each"
    )
    lines = [expression, "round  train_loss  test_loss  up_payload  up_framing  down_payload  down_framing"]
    lines += [
        f"{r['round']:5}  {r['train_loss']:10.4g}  {r['test_loss']:9.4g}  {r['up_payload']:10}  {r['up_framing']:10}  "
        f"{r['down_payload']:12}  {r['down_framing']:12}"
        for r in result.rounds
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_recorded_run_has_not_moved(name: str, golden_rewrite: bool) -> None:
    found, path = recorded(GOLDEN[name]), FOLDER / f"{name}.txt"
    if golden_rewrite:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found)
    assert path.exists(), f"no {path}: write it with pytest --golden-rewrite"
    assert found == path.read_text(), f"{name} moved; if it was meant to, pytest --golden-rewrite and say why"


def test_every_recorded_run_is_compared() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(GOLDEN)
