"""Many workers of data-parallel training in one process, exactly: the same lines that ranks run.

Each logical worker has its own module, optimiser, residual and batches, and the generators of
:mod:`.collectives` are driven side by side. What comes out is what processes under
DistributedDataParallel compute: to the bit with two workers, and with more but for the order in which
an all-reduce adds (gloo's and NCCL's are their own).
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import complete
from ..dice import Dice, seeded
from ..errors import WireError, require
from ..key import Key
from ..ranges import Count
from ..run.folder import Folder
from ..run.loop import Record, Run, finite
from ..run.setting import BaseSetting
from ..task import Supervised, Task
from ..train.device import usable
from ..train.evaluation import means
from ..train.given import copy_module, refuse_module
from ..train.modes import Modes
from ..train.precision import Precision
from ..train.threads import one_thread, single
from ..version import code_version
from ..wire import Packet, State
from .collectives import Traffic, together
from .exchange import output
from .feedback import Feedback, Method
from .worker import Worker, batches


@dataclass(frozen=True)
class Setting(BaseSetting):
    """How logical workers train, whatever the method and the problem.

    - ``workers`` with ``batch`` examples each make ``steps`` steps.
    - ``seed``: of the model, of the order of examples, and of all else that is drawn.
    - ``evaluate_every``: steps between evaluations. The last step is always evaluated.
    """

    example: ClassVar[str] = "Setting(workers=4)"

    workers: Count = 16
    steps: Count = 1000
    batch: Count = 8
    seed: int = 0
    evaluate_every: Count = 100
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        require(usable(str(self.device)), f"device={str(self.device)!r}: no such device here; use cpu or cuda")


@dataclass
class Result:
    """What a training by logical workers came to."""

    expression: str
    module: nn.Module  # holds the model that the method is judged by
    traffic: Traffic  # what one rank gave to collectives
    records: list[Record] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """At the end. None where it is NaN too."""
        return next((r["accuracy"] for r in reversed(self.records) if "accuracy" in r), None)

    @property
    def best_accuracy(self) -> float | None:
        """The best that was measured."""
        return max((r["accuracy"] for r in self.records if r.get("accuracy") is not None), default=None)

    def summary(self, workers: int) -> Record:
        """What ``summary.json`` says of a complete training besides ``run.json``."""
        last, traffic = self.records[-1], self.traffic
        return {
            "expression": self.expression,
            "version": code_version(),
            "parameters": sum(p.numel() for p in self.module.parameters() if p.requires_grad),
            "accuracy": self.accuracy,
            "best_accuracy": self.best_accuracy,
            "accuracy_x": last.get("accuracy_x"),
            "test_loss": last.get("test_loss"),
            "train_loss": last["train_loss"],
            "bytes_up": traffic.bytes,
            "bytes_down": traffic.received(workers),
            "bytes_reduced": traffic.reduced,
            "bytes_gathered": traffic.gathered,
            "seconds": sum(line["seconds"] for line in self.records),
        }


def simulate(
    method: Method,
    model: nn.Module | Callable[[], nn.Module],
    train: Task,
    test: Task | None = None,
    setting: Setting = Setting(),
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    rate: Callable[[int], float] | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_state: Callable[[State], None] | None = None,
    resume: Packet = None,
    **changed: Any,
) -> Result:
    """Train by ``workers`` ranks with ``batch`` examples each.

    ``setting`` is a :class:`Setting`. Other keywords (``workers=2``, ``device="cuda"``) replace its fields.
    ``optimizer`` makes one of parameters; ``rate`` is a factor of its learning rate by step. Norm statistics are those
    of worker 0, as DistributedDataParallel has them. Every ``evaluate_every`` steps, and at the end, the model that
    the method is judged by is tested, and x itself where that is another (``accuracy_x``). On a CPU as many workers
    train at once as there are cores, but for models that throw dice (dropout). Layers that ``model`` has in evaluation
    mode (frozen norm layers) stay in it; where it is in evaluation mode as a whole, all of it trains. Raises
    ``NonFinite`` when the loss of a worker does.

    ``on_record`` is called after each evaluation with its record, a line of ``rounds.jsonl`` (see
    :mod:`thinwire.studies.read`). Bytes, the loss and seconds in it are those since the record before. Bytes up are
    what one worker gave to collectives (``reduced_bytes`` and ``gathered_bytes`` of them), bytes down what it got back.
    Of DEF that measures lambda a record has ``lam`` and ``lam_star`` too. Of methods that keep a residual e_k at each
    rank it has ``residual``, the root of the mean over ranks of ||e_k||^2, and ``distance``, the norm of their mean: of
    DEF that is ||x - y||.

    ``on_state`` is called next, with all that the following steps depend on. Its tensors are not copies: they are
    written to disk, or copied, before it returns. ``resume`` is such a state, after bytes and back. The training goes
    on from there to the same bits. Raises ``WireError`` for the state of another training.
    """
    setting = Setting.of(setting, changed)
    if isinstance(method, Feedback):
        method.warn(setting.workers)
    with Simulation(method, model, train, test, setting, optimizer=optimizer, rate=rate) as run:
        if resume is not None:
            run.restore(resume)
        tell_state = None if on_state is None else (lambda record: on_state(run.state()))
        every = setting.evaluate_every
        return run.until(setting.steps, run.step, evaluate_every=every, listeners=(on_record, tell_state))


class Simulation(Run[Result]):
    """A training by logical workers between two steps. The arguments are those of :func:`simulate`.

    ``facts`` are what ``run.json`` says of it. It holds threads, and the generators that the process shares, until it
    is closed.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module | Callable[[], nn.Module],
        train: Task,
        test: Task | None = None,
        setting: Setting = Setting(),
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        rate: Callable[[int], float] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.setting, self.method, self.train, self.test = setting, method, train, test
        self.rate, self.facts = rate, dict(facts or {})
        with ExitStack() as stack:
            stack.enter_context(seeded(Key(setting.seed).number("model") % (1 << 32)))
            self.threads = stack.enter_context(_threads(torch.device(setting.device)))
            given = model if isinstance(model, nn.Module) else model()
            refuse_module(given)
            first = copy_module(given).to(setting.device)
            Modes(first).train()
            self.team = [Worker(copy_module(first), optimizer, method, setting.workers) for _ in range(setting.workers)]
            self.modes = Modes(self.team[0].module)  # of the one that is evaluated
            self.rates = [[g["lr"] for g in worker.optimizer.param_groups] for worker in self.team]
            self.number, self.records, self.traffic = 0, list[Record](), Traffic()
            self.dice = torch.device(setting.device).type != "cpu"  # a GPU's own generator is not looked at
            self._begin()
            self.held = stack.pop_all()

    def close(self) -> None:
        self.held.close()

    def _begin(self) -> None:
        """Begin the first step here, and the part of a record."""
        rows = batches(len(self.train), self.setting.workers, self.setting.batch, self.setting.seed)
        self.rows, self.first = islice(rows, self.number, None), self.number
        self._begin_record()

    def _begin_record(self) -> None:
        self.losses, self.since = 0.0, self.number
        self.before, self.began = copy.copy(self.traffic), time.monotonic()

    # -- a step -----------------------------------------------------------------

    def step(self, evaluate: bool = True) -> Record | None:
        """Train every worker on its next batch, and let them agree. Returns a record where it is to evaluate."""
        step, team = self.number, self.team
        keys = [Key(self.setting.seed, step, k, "ddp") for k in range(len(team))]
        _share_buffers(team)
        for worker, rates in zip(team, self.rates, strict=True):
            for param_group, lr in zip(worker.optimizer.param_groups, rates, strict=True):
                param_group["lr"] = lr * (self.rate(step) if self.rate else 1.0)
        self._backward(list(zip(team, next(self.rows), keys, strict=True)))
        one_step(team, keys, self.traffic)
        self.losses += sum(worker.loss for worker in team) / len(team)
        self.number = step + 1
        return self._record() if evaluate else None

    def _backward(self, work: Sequence[tuple[Worker, Tensor, Key]]) -> None:
        """The gradients of all workers: at once, unless they draw from the generators that all threads share."""
        drawn = Dice.now()
        if self.number == self.first or self.dice:
            for worker, indices, key in work:
                with seeded(key.number("dice") % (1 << 32)):
                    drawn = Dice.now()
                    worker.backward(self.train, indices, key)
                    self.dice = self.dice or drawn.differs()
            return
        precision = Precision.now(torch.device(self.setting.device).type)
        calls = [partial(precision.call, worker.backward, self.train, *about) for worker, *about in work]
        list(self.threads.map(lambda call: call(), calls))
        require(
            type(self.train) is Supervised or not drawn.differs(),
            f"step {self.number}: the task drew from the generators of torch, numpy or Python that all share, and its "
            f"first batches did not: draw from the generator that `batch` is given, or draw in every batch",
        )

    # -- looking ----------------------------------------------------------------

    def _record(self) -> Record:
        """The record of the steps since the one before."""
        now, before, workers, method = self.traffic, self.before, self.setting.workers, self.method
        record: Record = {
            "step": self.number,
            "train_loss": self.losses / (self.number - self.since),
            "up_bytes": now.bytes - before.bytes,
            "down_bytes": now.received(workers) - before.received(workers),
            "reduced_bytes": now.reduced - before.reduced,
            "gathered_bytes": now.gathered - before.gathered,
        }
        if isinstance(method, Feedback) and method.measures:
            record |= {"lam": self.team[0].rank.lam, "lam_star": self.team[0].rank.lam_star}
        if isinstance(method, Feedback) and not method.estimate:
            record |= zip(("residual", "distance"), lengths([worker.rank.e for worker in self.team]), strict=True)
        if self.test is not None:
            record |= self._evaluate(self.test)
        record["seconds"] = time.monotonic() - self.began
        self._begin_record()
        self.records.append(record)
        return record

    def _evaluate(self, test: Task) -> Record:
        flat = self.team[0].vector.flat
        own = flat.clone()  # within a round it is a model of the worker's own
        values = self._metrics(test, judged=True)
        if isinstance(self.method, Feedback) and self.method.at_output:
            values |= {f"{name}_x": value for name, value in self._metrics(test, judged=False).items()}
        with torch.no_grad():
            flat.copy_(own)
        self.modes.train()
        return {name: finite(value) for name, value in values.items()}

    def _metrics(self, test: Task, judged: bool) -> dict[str, float]:
        """The metrics of the model that the method is judged by, or of x. It is in worker 0's module then."""
        self._show(judged)
        with seeded(0):
            return means(self.team[0].module, test, self.team[0].vector.flat.device)

    @torch.no_grad()
    def _show(self, judged: bool) -> None:
        """Put into worker 0's module the model that the method is judged by, or x."""
        team, method = self.team, self.method
        if isinstance(method, Feedback):
            x = together([output(method, worker.rank) for worker in team])[0] if judged else team[0].rank.x
            team[0].vector.flat.copy_(x)

    def result(self) -> Result:
        self._show(True)
        return Result(complete(self.method), self.team[0].module, copy.copy(self.traffic), list(self.records))

    # -- to disk and back -------------------------------------------------------

    def fingerprint(self) -> Record:
        return self.facts

    def state(self) -> State:
        return {
            "step": self.number,
            "traffic": asdict(self.traffic),
            "records": list(self.records),
            "workers": [worker.state() for worker in self.team],
        }

    def restore(self, packet: Packet) -> None:
        """As :meth:`Run.restore`. Raises ``WireError`` for the state of another training."""
        try:
            for worker, state in zip(self.team, packet["workers"], strict=True):
                worker.restore(state)
            self.traffic, self.records = Traffic(**packet["traffic"]), list(packet["records"])
            self.number = int(packet["step"])
        except (KeyError, TypeError, ValueError, AttributeError, WireError) as error:
            raise WireError(f"resume: the state of another training or version ({error})") from error
        self._begin()

    def write(self, folder: Folder, result: Result) -> None:
        folder.model(result.module.state_dict(), {"expression": result.expression, "seed": str(self.setting.seed)})
        folder.summary({**self.facts, **result.summary(self.setting.workers)})


@torch.no_grad()
def lengths(residuals: Sequence[Float[Tensor, " d"]]) -> tuple[float, float]:
    """Of the residuals e_k of K workers: the root of the mean of ||e_k||^2, and ||mean e_k||."""
    total, squares = torch.zeros_like(residuals[0], dtype=torch.float64), 0.0
    for e in residuals:
        total.add_(e)
        squares += float(torch.linalg.vector_norm(e, dtype=torch.float64)) ** 2
    return math.sqrt(squares / len(residuals)), float(total.norm()) / len(residuals)


@contextmanager
def _threads(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """One torch thread each: with more a busy neighbour makes everything slow. On a GPU a single one."""
    count = (os.cpu_count() or 1) if device.type == "cpu" else 1
    with one_thread(), ThreadPoolExecutor(count, "worker", single) as threads:
        yield threads


@torch.no_grad()
def one_step(team: Sequence[Worker], keys: Sequence[Key], traffic: Traffic | None = None) -> None:
    """From gradients to the next model, on all workers."""
    unused = set[str].intersection(*(set(worker.without_gradient) for worker in team))
    together([worker.step(key, unused=unused) for worker, key in zip(team, keys, strict=True)], traffic)
    if traffic is not None:
        traffic.steps += 1


def _share_buffers(team: Sequence[Worker]) -> None:
    """Worker 0's, for all."""
    buffers = list(team[0].module.buffers())
    for worker in team[1:]:
        for mine, theirs in zip(worker.module.buffers(), buffers, strict=True):
            mine.copy_(theirs)
