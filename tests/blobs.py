"""A small federated run that many tests share: points of three classes, models for them, and comparisons of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import thinwire as tw
from thinwire import Key, Simulation, Supervised

SIZES = (8, 12, 16, 20, 24, 40)


def blobs(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> list[Supervised]:
    """Points of three linearly separable classes, dealt to clients of different size."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(sum(sizes), 6, generator=generator)
    targets = (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)
    return [Supervised(inputs, targets, part) for part in torch.arange(sum(sizes)).split(list(sizes))]


def mlp() -> nn.Module:  # 83 parameters
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def normed() -> nn.Module:  # 99, and 16 statistics
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def random_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3))


MODELS = {"mlp": mlp, "normed": normed, "random_layers": random_layers}


def simulate(expression: str | tw.Algorithm, model: Any = mlp, rounds: int = 4, **options: Any) -> tw.Result:
    method = tw.parse(expression, {"lr": 0.2, "batch": 8}) if isinstance(expression, str) else expression
    tasks = options.pop("tasks", None) or blobs()
    options = {"sample": 3, "test": blobs((60,), seed=0)[0], "seed": 5, "workers": 1, "plan": "each"} | options
    return tw.simulate(method, model, tasks, rounds, **options)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``rounds.jsonl``, but for the time they took."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same_model(a: tw.Result, b: tw.Result) -> None:
    assert torch.equal(a.params.flat, b.params.flat)
    for (name, left), right in zip(a.module.state_dict().items(), b.module.state_dict().values(), strict=True):
        if left.is_floating_point():
            assert torch.equal(left, right), name


def assert_same_run(a: tw.Result, b: tw.Result) -> None:
    assert_same_model(a, b)
    assert list(a.ledger) == list(b.ledger)
    ours, theirs = ([{**r, "seconds": 0} for r in result.rounds] for result in (a, b))
    assert ours == theirs


class Chosen(Simulation):
    """A run in which the test says who takes part, and who of them stays silent, in each round."""

    def __init__(self, *arguments: Any, cohorts: Any, **options: Any) -> None:
        super().__init__(*arguments, workers=1, plan="each", **options)
        self.cohorts = cohorts

    def draw_cohort(self, key: Key, available: Any = None) -> list[int]:
        return self.cohorts[key.round - 1][0]

    def _silent(self, cohort: list[int], key: Key) -> set[int]:
        return self.cohorts[key.round - 1][1]


def chosen(expression: str, cohorts: list[tuple[list[int], set[int]]], model: Any = mlp, **options: Any) -> Chosen:
    method = tw.parse(expression, {"lr": 0.2, "batch": 8})
    run = Chosen(method, model, blobs(), cohorts=cohorts, **options)
    with run.pool:
        for _ in cohorts:
            run.step()
    return run


def bills(result: tw.Result, direction: Any) -> list[list[tuple[int, int]]]:
    """(payload, framing) of each client, round by round."""
    return [[(e.payload, e.framing) for e in result.ledger.of(direction, r["round"])] for r in result.rounds]
