"""All clients in one process; every message still goes through the wire.

The runner owns loops, means, storage, sampling, time and failure. It never looks inside a
state of an algorithm or a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..algorithms.base import Algorithm
from ..config import complete
from ..errors import RunError, require
from ..key import Key
from ..task import as_task, as_tasks
from ..train.fitting import fitting
from ..train.one import Slot, made
from ..wire import dumps, loads
from .client import Reply
from .folder import Folder, locked
from .identity import data_digest
from .ledger import Entry
from .pool import Pool, Work
from .ranks import Ranks, barrier, placed, rank, size
from .result import Record, Result
from .rounds import Rounds
from .setting import Setting
from .storage import Disk, Ends


def simulate(
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    tasks: Sequence[Any],
    rounds: int,
    setting: Setting = Setting(),
    *,
    test: Any = None,
    client_tests: Sequence[Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Record], None] | None = None,
    progress: bool = False,
    **fields: Any,
) -> Result:
    """Train ``model`` with a federated method and count every byte.

    ``model`` is a module (copied, not changed) or a function that makes one under the seed.
    ``tasks`` are one task a client (a :class:`Task`, a Dataset, or a pair of tensors).
    ``setting`` is a :class:`Setting`: who takes part, the seed, the network and so on. Other keywords
    (``sample=10``, ``seed=1``) replace its fields.

    ``test`` and ``client_tests`` are evaluated every ``evaluate_every`` rounds and after the last. ``client_tests``
    are one a client, each evaluated with the client's own model where the method has some. Their mean, spread (standard
    deviation over clients), lowest tenth and worst are in the records as ``client_accuracy``,
    ``client_accuracy_spread``, ``_p10`` and ``_worst``, and each client's own in the folder's ``clients.jsonl``.

    With ``states="disk"`` a client that is not sampled takes at most 2,000 bytes, its task included where that holds
    positions in examples all share, and a round as long as its cohort needs, however many clients there are
    (``benchmarks/scale.py`` measures both). Under ``torchrun`` (and an initialised process group) each rank trains
    its share of the cohort, with the same results.

    With ``out``, a folder, the run is recorded there and ``resume`` continues it, bit for
    bit, from its last checkpoint (every ``checkpoint_every`` rounds).

    Raises ``TypeError`` for a keyword that is no field, ``ValueError`` for a bad argument, :class:`NonFinite` when
    training diverges, and :class:`RunError` for a folder of another run.
    """
    setting = _settled(setting, fields)
    require(type(rounds) is int, f"rounds={rounds!r}: a whole number is expected")
    require(rounds > 0, f"rounds={rounds}: it must be at least 1")
    require(out is not None or not resume, "resume=True needs the folder of the run: out=...")
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        if out is not None:
            stack.enter_context(roomy(Path(out), "the same call with resume=True"))
        folder = None
        if out is not None:
            if rank() == 0:
                stack.enter_context(locked(Path(out)))
            folder = Folder(Path(out), writes=rank() == 0)
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)  # here and in workers: the bits of a sum must not depend on the machine's cores
        run = Simulation(algorithm, model, tasks, setting, test=test, client_tests=client_tests, out=out)
        stack.enter_context(run.pool)
        if folder is not None:
            if rank() == 0:
                barrier()  # the others have looked at the folder
            run.open(folder, resume)
            if rank() != 0:
                barrier()
            barrier()
        report = stack.enter_context(_progress(repr(algorithm), rounds)) if progress else None
        if run.round > rounds:
            raise RunError(f"{out} has {run.round} rounds already: rounds={rounds} would be fewer")
        while run.round < rounds:
            last = run.round + 1 == rounds
            record = run.step(evaluate=last or (run.round + 1) % setting.evaluate_every == 0)
            if folder is not None:
                folder.append(record, run.ledger.lines(run.round), run.by_client)
                if last or run.round % setting.checkpoint_every == 0:
                    run.save(folder)
            for listener in (on_round, report):
                if listener is not None:
                    listener(record)
        result = run.result(Path(out) if out is not None else None)
        if folder is not None:
            folder.model(result.module.state_dict(), {"expression": complete(algorithm), "seed": str(setting.seed)})
            folder.summary(result.summary())
        barrier()  # what rank 0 wrote is there for everyone
        return result


class Simulation(Rounds):
    """A run between two rounds, with its clients: :meth:`step` makes one more.

    With ``states="disk"`` what is kept of every client lies in the folder ``out``.
    """

    clients_here = True

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module | Callable[[], nn.Module],
        tasks: Sequence[Any],
        setting: Setting = Setting(),
        *,
        test: Any = None,
        client_tests: Sequence[Any] | None = None,
        out: str | Path | None = None,
        **fields: Any,
    ) -> None:
        self.setting = setting = _settled(setting, fields)
        require(out is not None or setting.states == "memory", "states='disk' needs a folder for the run: out=...")
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
            raise ValueError(f"{algorithm.__name__} is a class: make a method of it, such as {algorithm.__name__}()")
        require(isinstance(algorithm, Algorithm), f"{algorithm!r} is not an algorithm such as FedAvg()")
        self.tasks = as_tasks(tasks)
        require(len(tasks) > 0, "there are no clients: tasks is empty")
        if setting.network is not None:
            setting.network.check(len(tasks))
        self.sample = setting.cohort(len(tasks))
        require(isinstance(model, nn.Module) or callable(model), f"{model!r} is neither a module nor makes one")
        empty = [i for i, task in enumerate(self.tasks) if len(task) == 0]
        require(not empty, f"client {empty[:1]} has no examples: choose another split or fewer clients")
        tested = None if test is None else as_task(test, "test")
        apart = [as_task(task, f"client_tests[{client}]") for client, task in enumerate(client_tests or ())]
        require(tested is None or len(tested) > 0, "the test set has no examples")
        require(all(len(task) > 0 for task in apart), "client_tests has a task without examples")
        require(
            client_tests is None or len(apart) == len(tasks),
            f"client_tests has {len(apart)} entries for {len(tasks)} clients",
        )

        module = model if isinstance(model, nn.Module) else made(model, setting.seed)
        slot = Slot(algorithm.prepare(module), placed(setting.device))
        fitting(slot, ((f"client {client}", task) for client, task in enumerate(self.tasks)))
        fitting(slot, [("test", tested)] if tested is not None else [])
        fitting(slot, ((f"client_tests[{client}]", task) for client, task in enumerate(apart)))
        slot.probe(max(self.tasks[:100], key=len))
        super().__init__(algorithm, slot, len(tasks), setting.seed, tested, setting.privacy)
        self.client_tests, self.measured = apart, setting.plan == "measured"
        self.plan = None if setting.plan == "measured" else setting.plan
        if setting.states == "disk" and out is not None:
            self.states = Disk(self.ends, Path(out) / "states", writes=rank() == 0)
        work = Work(algorithm, self.up, self.tasks, self.stream.view, self.ends().own)
        kind = Ranks if size() > 1 else Pool
        self.pool = kind(slot, setting.workers or max(1, (os.cpu_count() or 1) // size()), work)

    # -- a round --------------------------------------------------------------

    def step(self, evaluate: bool = True) -> Record:
        """Broadcast, train the cohort, average, step. Returns the round's record."""
        began = time.perf_counter()
        key = self.publish()
        cohort, silent = self._cohort(key)
        down = {client: self._deliver(client, key.round) for client in cohort}
        active = [client for client in cohort if client not in silent]
        ends = {client: self.states.get(client) for client in active}
        jobs = [(self._at(key, client), ends[client].own) for client in active]
        if self.plan is None:
            self.plan = self.pool.choose(jobs, self.stream.view, self.measured)
        self.pool.plan = self.plan

        lost, slowest = len(silent), 0.0
        for client, reply in zip(active, self.pool.rounds(jobs, self.stream.view), strict=True):
            used, seconds = self._arrive(client, reply, down[client], key)
            if not used:
                lost += 1
                continue
            slowest = max(slowest, seconds)
            loss = reply.loss if reply.steps else None  # a client may answer without training
            rx = self.add(loads(reply.blob), reply.examples, loss, ends[client].rx, self._at(key, client))
            self.states.put(client, Ends(self.stream.version, rx, reply.next))  # both ends move on, and only now
        self.serve(key)
        network = self.setting.network
        if network is not None and lost and network.deadline is not None:
            slowest = network.deadline  # the round waited for those that did not come
        self.pool.settle()
        return self.finish(began, slowest, len(active), lost, evaluate)

    def _at(self, key: Key, client: int) -> Key:
        """The key of a client's round."""
        network = self.setting.network
        mbit = None if network is None else network.rate(client, self.seed)
        return key._replace(client=client, mbit=mbit)

    def _cohort(self, key: Key) -> tuple[list[int], set[int]]:
        """Who is sampled this round, and who of them will not answer."""
        order = torch.randperm(len(self.tasks), generator=key.generator("sample"))
        cohort = sorted(order[: self.sample].tolist())
        draws = torch.rand(len(cohort), generator=key.generator("dropout")).tolist()
        return cohort, {client for client, draw in zip(cohort, draws, strict=True) if draw < self.setting.dropout}

    def _deliver(self, client: int, round: int) -> int:
        """Send a client what it misses; returns the bytes, which the ledger has too."""
        parcel = self.stream.parcel(self.states.version(client))
        header = dumps([self.seed, self.stream.version, parcel.snapshot, [m.round for m in parcel.messages]])
        self.ledger.add(Entry(round, client, "down", parcel.size, len(header), floats=parcel.floats))
        return parcel.size + len(header)

    def _arrive(self, client: int, reply: Reply, down: int, key: Key) -> tuple[bool, float]:
        """Enter a reply's bytes; whether it came in time, and after how many seconds."""
        header = dumps([self.seed, key.round, self.stream.version, reply.examples, reply.loss])
        up = len(reply.blob) + len(header)
        seconds, used, network = 0.0, True, self.setting.network
        if network is not None:
            seconds = network.seconds(client, up, down, reply.steps, self.seed)
            used = network.deadline is None or seconds <= network.deadline
        self.ledger.add(Entry(key.round, client, "up", len(reply.blob), len(header), 0, reply.floats, used))
        return used, seconds

    def facts(self) -> dict[str, Any]:
        """What, besides the algorithm, makes this run what it is."""
        return {
            "clients": len(self.tasks),
            **self.setting.fixed(),
            "sample": self.sample,
            "examples": sum(len(task) for task in self.tasks),
            "parameters": self.slot.layout.size,
        }

    @cached_property
    def data(self) -> dict[str, str | None]:
        """Digests of the tasks and of what is evaluated: for runs on disk, which may be continued."""
        tests = [*([] if self.test is None else [self.test]), *self.client_tests]
        return {"data": data_digest(self.tasks), "test": data_digest(tests) if tests else None}


def _settled(setting: Setting, fields: dict[str, Any]) -> Setting:
    require(isinstance(setting, Setting), f"setting={setting!r}: give a Setting, such as {Setting.example}")
    return setting.but(fields)


FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def roomy(folder: Path, command: str) -> Iterator[None]:
    """Where the disk is full, say in which folder, and that ``command`` goes on."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        kept = f"make room, then {command} goes on from the last checkpoint: nothing before it is lost"
        raise OSError(error.errno, f"no space is left on the disk of {folder}: {kept}") from error


@contextlib.contextmanager
def _progress(name: str, rounds: int) -> Iterator[Callable[[Record], None]]:
    from .progress import live  # rich is imported where it is shown

    with live(rounds) as line:
        yield lambda record: line(name, record)
