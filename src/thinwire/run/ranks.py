"""The processes that share a run under ``torchrun``: who they are, and what they say to one another.

Rank 0 alone writes to disk.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import CombinationError, DataError, NonFinite, OutOfSync, RankLost, RunError, WireError
from ..wire import State, dumps, loads


def join() -> None:
    """Join the process group that ``torchrun`` made, once; nothing happens in a process on its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)  # whose threads must not outlive the interpreter


def size() -> int:
    """How many processes share the work."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if size() > 1 else 0


def device_of_rank(device: str) -> str:
    """``cuda`` as the GPU of this rank, where several share a machine."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return f"cuda:{local % torch.cuda.device_count()}" if device == "cuda" and size() > 1 else device


def barrier() -> None:
    """Wait for the others."""
    if size() > 1:
        dist.barrier()


KINDS = (NonFinite, WireError, RunError, DataError, CombinationError, OutOfSync, RankLost, ValueError)
ERRORS = {kind.__name__: kind for kind in KINDS}


def share(work: Callable[[], State]) -> list[Any]:
    """What every rank's ``work`` gives, in the order of ranks. Where it raises, all ranks raise the first one's error.

    A rank that left alone would leave the others waiting for it. ``RankLost`` is another rank's error, which is raised
    where there is one.
    """
    if size() == 1:
        return [work()]
    failed: Exception | None = None
    try:
        mine = [work()]
    except Exception as error:
        failed, mine = error, [type(error).__name__, str(error)]
    everyone = exchange(mine)
    errors = [(number, *answer) for number, answer in enumerate(everyone) if len(answer) == 2]
    for number, kind, text in sorted(errors, key=lambda error: error[1] == RankLost.__name__):
        if failed is not None and number == rank():
            raise failed
        raise ERRORS[kind](text) if kind in ERRORS else RuntimeError(f"rank {number}: {kind}: {text}")
    return [answer[0] for answer in everyone]


def exchange(x: State) -> list[Any]:
    """What every rank gave, in the order of ranks."""
    data = torch.frombuffer(bytearray(dumps(x)), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(size())]
    dist.all_gather(lengths, torch.tensor([data.numel()], device="cpu"))
    longest = int(max(lengths))
    padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
    padded[: data.numel()] = data
    everyone: list[Tensor] = [torch.empty_like(padded) for _ in range(size())]
    dist.all_gather(everyone, padded)
    pairs = zip(everyone, lengths, strict=True)
    return [loads(part[: int(n)].numpy().tobytes(), max_values=None, finite=False) for part, n in pairs]
