"""What tests of pipelines share: a small model and its batches, trainings, and processes of one gloo group."""

from __future__ import annotations

import datetime
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.pipeline import DSP, split

BATCHES = 9


def net(dropout: float = 0.0, norm: bool = True) -> nn.Sequential:
    """16 modules and a last one; batch norm, and activations that are written over."""
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for inputs in (6, 8, 8, 8):
        own = nn.BatchNorm1d(8) if norm else nn.Identity()
        layers += [nn.Linear(inputs, 8), own, nn.ReLU(inplace=True), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def cut(model: nn.Module, parts: int) -> list[nn.Sequential]:
    return split(model, parts, costs=[1] * 17)


def data(seed: int = 0, batches: int = BATCHES) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 6, generator=g), torch.randint(3, (8,), generator=g)) for _ in range(batches)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def small_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def dsp(parts: int, deep: int = 2, **links: Any) -> DSP:
    """p = 1 before the last part, and m falls by ``deep``."""
    return DSP((1,) * (parts - 1) + (0,), tuple(deep * k for k in range(parts - 1, -1, -1)), **links)


def bits(module: nn.Module | dict[str, Tensor]) -> Tensor:
    state = module if isinstance(module, dict) else module.state_dict()
    return torch.cat([value.double().reshape(-1) for value in state.values()])


def plain(batches: list[tuple[Tensor, Tensor]], model: nn.Module, optimizer: Any = sgd) -> list[float]:
    """Training as anyone writes it."""
    stepper, losses = optimizer(model.parameters()), []
    for x, y in batches:
        stepper.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return losses


def run(training: Any, batches: list[tuple[Tensor, Tensor]], start: int = 0) -> list[float]:
    losses = []
    for number, (x, y) in enumerate(batches[start:], start):
        losses.append(training.step(x, y, examples=torch.arange(8) + 8 * (number % 2)))
    losses.append(training.drain())
    return [float(loss) for loss in losses if loss is not None]


# -- processes ----------------------------------------------------------------


def forked(ranks: int, work: Callable[[int], Any], folder: Path, timeout: float = 1000.0) -> list[Any]:
    """What ``work(rank)`` gives in processes of one gloo group; None of one that died."""
    torch.set_num_threads(1)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{folder}/store",
                    rank=rank,
                    world_size=ranks,
                    timeout=datetime.timedelta(seconds=timeout),
                )
                torch.save(work(rank), folder / f"{rank}.pt")
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    paths = [folder / f"{rank}.pt" for rank in range(ranks)]
    return [torch.load(path) if path.exists() else None for path in paths]


def refusal(make: Callable[[], Any]) -> str:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
