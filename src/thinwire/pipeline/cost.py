"""The cost of the modules of a chain: seconds forward and back, and bytes that they hand on, measured with a sample."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import require
from ..train.precision import without_cache

REPEATS, MOST = 3, 20  # of a measurement, at least and at most
ENOUGH = 1.0  # seconds after which it is not repeated any more
Named = tuple[tuple[str, ...], nn.Module]


class Cost(NamedTuple):
    """The cost of a module for a sample."""

    forward: float  # seconds
    backward: float
    handed: int  # bytes of what it gives


def measure_modules(chain: Sequence[Named], sample: Any) -> list[Cost]:
    """The cost of each module; parameters' gradients, statistics and random numbers are left alone.

    The sample goes through the whole chain again and again, so that what disturbs a moment is in one measurement of
    some modules, and not in all of one.
    """
    x = sample[0] if isinstance(sample, tuple | list) else sample
    require(
        isinstance(x, Tensor), f"split(sample=...): {type(x).__name__}; give a tensor, or a tuple that begins with one"
    )
    times, before = list[list[Cost]](), torch.get_rng_state()
    kept = [(b, b.clone()) for _, module in chain for b in module.buffers()]
    try:
        for _ in repeats():
            times.append(_pass(chain, x))
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
        torch.set_rng_state(before)
    return [
        Cost(min(one.forward for one in each), min(one.backward for one in each), each[0].handed)
        for each in zip(*times, strict=True)
    ]


def repeats() -> Iterator[int]:
    """As often as something is measured: the shortest time counts."""
    began = time.perf_counter()
    for already in range(MOST):
        if already >= REPEATS and time.perf_counter() - began > ENOUGH:
            return
        yield already


def _pass(chain: Sequence[Named], x: Tensor) -> list[Cost]:
    """The cost of each module in one way through the chain."""
    costs = []
    for name, module in chain:
        device = next((p.device for p in module.parameters()), x.device)
        try:
            leaf = x.detach().to(device)
            leaf = leaf.clone().requires_grad_(leaf.is_floating_point())
            began = now(device)
            with without_cache(device):
                out = module(leaf.clone() if leaf.requires_grad else leaf)
            between = now(device)
            require(isinstance(out, Tensor), f"it gives {type(out).__name__}, and not one tensor")
            wanted = [t for t in (leaf, *module.parameters()) if t.requires_grad]
            if out.requires_grad:
                torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)
            times = between - began, now(device) - between
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"split: {'.'.join(name) or 'the model'} ({type(module).__name__}) does not take what comes before "
                f"it, {list(x.shape)}: {str(error).splitlines()[0]}"
            ) from error
        x = out.detach()
        costs.append(Cost(*times, x.numel() * x.element_size()))
    return costs


def now(device: torch.device) -> float:
    """Seconds of a clock, once a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
