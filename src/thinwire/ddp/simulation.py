"""Many workers of data-parallel training in one process, exactly: the same lines that ranks run.

Each logical worker has its own module, optimiser, residual and batches, and the generators of
:mod:`.loop` are driven side by side. What comes out is what processes under
DistributedDataParallel compute: to the bit with two workers, and with more but for the order in which
an all-reduce adds (gloo's and NCCL's are their own).
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import complete
from ..dice import Dice, seeded
from ..errors import WireError, require
from ..key import Key
from ..task import Supervised, Task
from ..train.device import usable
from ..train.evaluation import means
from ..train.given import copy_module, refuse_module
from ..train.modes import Modes
from ..train.precision import Precision
from ..train.threads import one_thread, single
from ..wire import Packet, State
from .collectives import Traffic, together
from .exchange import output, place
from .methods import Feedback, Method
from .worker import Worker, batches

Record = dict[str, Any]


@dataclass
class Result:
    """What a training by logical workers came to."""

    expression: str
    module: nn.Module  # holds the model that the method is judged by
    traffic: Traffic  # what one rank gave to collectives
    records: list[Record] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """At the end."""
        return next((r["accuracy"] for r in reversed(self.records) if r.get("accuracy") is not None), None)

    @property
    def best_accuracy(self) -> float | None:
        """The best that was measured."""
        return max((r["accuracy"] for r in self.records if r.get("accuracy") is not None), default=None)


def simulate(
    method: Method,
    model: nn.Module | Callable[[], nn.Module],
    train: Task,
    test: Task | None = None,
    *,
    workers: int = 16,
    steps: int = 1000,
    batch: int = 8,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    rate: Callable[[int], float] | None = None,
    seed: int = 0,
    evaluate_every: int = 100,
    device: torch.device | str = "cpu",
    on_record: Callable[[Record], None] | None = None,
    on_state: Callable[[State], None] | None = None,
    resume: Packet = None,
) -> Result:
    """Train by ``workers`` ranks with ``batch`` examples each.

    ``optimizer`` makes one of parameters; ``rate`` is a factor of its learning rate by step. Norm statistics are those
    of worker 0, as DistributedDataParallel has them. Every ``evaluate_every`` steps, and at the end, the model that
    the method is judged by is tested, and x itself where that is another (``accuracy_x``). On a CPU as many workers
    train at once as there are cores, but for models that throw dice (dropout). Layers that ``model`` has in evaluation
    mode (frozen norm layers) stay in it; where it is in evaluation mode as a whole, all of it trains. Raises
    ``NonFinite`` when the loss of a worker does.

    ``on_record`` is called after each evaluation with its record, a line of ``rounds.jsonl`` (see
    :mod:`thinwire.studies.read`). Bytes, the loss and seconds in it are those since the record before. Bytes up are
    what one worker gave to collectives (``reduced_bytes`` and ``gathered_bytes`` of them), bytes down what it got back.
    Of DEF a record has ``lam`` and ``lam_star`` too. Of methods that keep a residual e_k at each rank it has
    ``residual``, the root of the mean over ranks of ||e_k||^2, and ``distance``, the norm of their mean: of DEF that
    is ||x - y||.

    ``on_state`` is called next, with all that the following steps depend on. Its tensors are not copies: they are
    written to disk, or copied, before it returns. ``resume`` is such a state, after bytes and back. The training goes
    on from there to the same bits. Raises ``WireError`` for the state of another training.
    """
    for name, value in (("workers", workers), ("steps", steps), ("batch", batch), ("evaluate_every", evaluate_every)):
        require(type(value) is int and value > 0, f"{name}={value}: a whole number of at least 1")
    require(usable(str(device)), f"device={str(device)!r}: no such device here; use cpu or cuda")
    if isinstance(method, Feedback):
        method.warn(workers)
    with seeded(Key(seed).number("model") % (1 << 32)), _threads(torch.device(device)) as threads:
        given = model if isinstance(model, nn.Module) else model()
        refuse_module(given)
        first = copy_module(given).to(device)
        Modes(first).train()
        team = [Worker(copy_module(first), optimizer, method, workers) for _ in range(workers)]
        modes = Modes(team[0].module)  # of the one that is evaluated
        rates = [[g["lr"] for g in worker.optimizer.param_groups] for worker in team]
        result, begin = Result(complete(method), team[0].module, Traffic()), 0
        if resume is not None:
            begin = _restore(result, team, resume)
        losses, before, began = 0.0, copy.copy(result.traffic), time.monotonic()
        dice = torch.device(device).type != "cpu"  # a GPU has a generator of its own, which is not looked at
        rows_of = islice(batches(len(train), workers, batch, seed), begin, None)
        for step, rows in zip(range(begin, steps), rows_of, strict=False):
            keys = [Key(seed, step, k, "ddp") for k in range(workers)]
            _share_buffers(team)
            for worker, base in zip(team, rates, strict=True):
                for param_group, lr in zip(worker.optimizer.param_groups, base, strict=True):
                    param_group["lr"] = lr * (rate(step) if rate else 1.0)
            work = list(zip(team, rows, keys, strict=True))
            if step == begin or dice:  # all threads draw from the same generators
                for worker, indices, key in work:
                    with seeded(key.number("dice") % (1 << 32)):
                        drawn = Dice.now()
                        worker.backward(train, indices, key)
                        dice = dice or drawn.differs()
            else:
                drawn, precision = Dice.now(), Precision.now(torch.device(device).type)
                backward = [partial(precision.call, worker.backward, train, *about) for worker, *about in work]
                list(threads.map(lambda call: call(), backward))
                require(
                    type(train) is Supervised or not drawn.differs(),
                    f"step {step}: the task drew from the generators of torch, numpy or Python that all share, and its "
                    f"first batches did not: draw from the generator that `batch` is given, or draw in every batch",
                )
            one_step(team, keys, result.traffic)
            losses += sum(worker.loss for worker in team) / workers
            if (step + 1) % evaluate_every == 0 or step + 1 == steps:
                since = (step % evaluate_every) + 1
                record: Record = {
                    "step": step + 1,
                    "train_loss": losses / since,
                    **_bytes_between(result.traffic, before, workers),
                }
                if isinstance(method, Feedback) and method.measured:
                    record |= {"lam": team[0].rank.lam, "lam_star": team[0].rank.lam_star}
                record |= _residuals(team) | (_evaluate(team, test, modes) if test is not None else {})
                now = time.monotonic()
                record["seconds"] = now - began
                losses, before, began = 0.0, copy.copy(result.traffic), now
                result.records.append(record)
                if on_record is not None:
                    on_record(record)
                if on_state is not None:
                    on_state(_state(result, team, step + 1))
        _show(team, True)
    return result


def _bytes_between(now: Traffic, before: Traffic, workers: int) -> Record:
    """The bytes between two moments, as a record has them."""
    reduced, gathered = now.reduced - before.reduced, now.gathered - before.gathered
    return {
        "up_bytes": now.bytes - before.bytes,
        "down_bytes": now.received(workers) - before.received(workers),
        "reduced_bytes": reduced,
        "gathered_bytes": gathered,
    }


def _residuals(team: Sequence[Worker]) -> Record:
    """How long residuals are, and how long their mean is. Nothing for a method that keeps an estimate instead."""
    method = team[0].method
    if not isinstance(method, Feedback) or method.estimate:
        return {}
    residual, distance = lengths([worker.rank.e for worker in team])
    return {"residual": residual, "distance": distance}


@torch.no_grad()
def lengths(residuals: Sequence[Float[Tensor, " d"]]) -> tuple[float, float]:
    """Of the residuals e_k of K workers: the root of the mean of ||e_k||^2, and ||mean e_k||."""
    total, squares = torch.zeros_like(residuals[0], dtype=torch.float64), 0.0
    for e in residuals:
        total.add_(e)
        squares += float(torch.linalg.vector_norm(e, dtype=torch.float64)) ** 2
    return math.sqrt(squares / len(residuals)), float(total.norm()) / len(residuals)


def _state(result: Result, team: Sequence[Worker], step: int) -> State:
    return {
        "step": step,
        "traffic": asdict(result.traffic),
        "records": result.records,
        "workers": [worker.state() for worker in team],
    }


def _restore(result: Result, team: Sequence[Worker], packet: Packet) -> int:
    """Put a state into a result and workers that begin; returns the steps that were made."""
    try:
        for worker, kept in zip(team, packet["workers"], strict=True):
            worker.restore(kept)
        result.traffic, result.records = Traffic(**packet["traffic"]), packet["records"]
        return int(packet["step"])
    except (KeyError, TypeError, ValueError, AttributeError, WireError) as error:
        raise WireError(f"resume: the state of another training or version ({error})") from error


@contextmanager
def _threads(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """One torch thread each: with more a busy neighbour makes everything slow. On a GPU a single one."""
    count = (os.cpu_count() or 1) if device.type == "cpu" else 1
    with one_thread(), ThreadPoolExecutor(count, "worker", single) as threads:
        yield threads


@torch.no_grad()
def one_step(team: Sequence[Worker], keys: Sequence[Key], traffic: Traffic | None = None) -> None:
    """From gradients to the next model, on all workers."""
    unused = set[str].intersection(*(set(worker.unused) for worker in team))
    together([worker.step(key, unused=unused) for worker, key in zip(team, keys, strict=True)], traffic)
    if traffic is not None:
        traffic.steps += 1


def _share_buffers(team: Sequence[Worker]) -> None:
    """Worker 0's, for all."""
    buffers = list(team[0].module.buffers())
    for worker in team[1:]:
        for mine, theirs in zip(worker.module.buffers(), buffers, strict=True):
            mine.copy_(theirs)


@torch.no_grad()
def _show(team: Sequence[Worker], judged: bool) -> None:
    """Put into worker 0's module the model that the method is judged by, or x."""
    method = team[0].method
    if isinstance(method, Feedback):
        x = together([output(method, worker.rank) for worker in team])[0] if judged else team[0].rank.x
        team[0].vector.flat.copy_(x)


def _evaluate(team: Sequence[Worker], test: Task, modes: Modes) -> Record:
    module, device = team[0].module, team[0].vector.flat.device
    method = team[0].method
    _show(team, True)
    with seeded(0):
        found = means(module, test, device)
    if isinstance(method, Feedback) and method.given:
        _show(team, False)
        with seeded(0):
            shared = means(module, test, device)
        found |= {f"{name}_x": value for name, value in shared.items()}
    if isinstance(method, Feedback):
        with torch.no_grad():
            place(team[0].rank, method.applied, team[0].vector.flat)
    modes.train()
    # Of a finite model a loss may overflow all the same. JSON has no word for what is no number but null.
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
