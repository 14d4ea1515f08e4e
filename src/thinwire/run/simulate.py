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
from typing import Any, Literal

import torch
from torch import nn

from ..algorithms.base import Algorithm
from ..config import complete
from ..errors import RunError, require
from ..key import Key
from ..task import as_task, as_tasks
from ..train.fitting import fitting
from ..train.one import Slot, made, unusable, usable
from ..wire import dumps, loads
from .client import Reply
from .folder import Folder, locked
from .identity import data_digest
from .ledger import Entry
from .network import Network
from .pool import Plan, Pool, Work
from .privacy import Privacy
from .ranks import Ranks, barrier, placed, rank, size
from .result import Record, Result
from .rounds import Rounds
from .storage import Disk, Ends


def simulate(
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    tasks: Sequence[Any],
    rounds: int,
    *,
    sample: int | None = None,
    test: Any = None,
    client_tests: Sequence[Any] | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    dropout: float = 0.0,
    network: Network | None = None,
    privacy: Privacy | None = None,
    workers: int | None = None,
    device: str = "cpu",
    plan: Plan | Literal["measured"] | None = None,
    states: Literal["memory", "disk"] = "memory",
    out: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    on_round: Callable[[Record], None] | None = None,
    progress: bool = False,
) -> Result:
    """Train ``model`` with a federated method and count every byte.

    ``model`` is a module (copied, not changed) or a function that makes one under ``seed``;
    ``tasks`` one task a client (a :class:`Task`, a Dataset, or a pair of tensors); each
    round ``sample`` of them take part (None: all), each replying with probability
    1 - ``dropout``. ``test`` is evaluated every ``evaluate_every`` rounds and after the
    last, ``client_tests`` likewise, one a client: their mean, spread (standard deviation over
    clients), lowest tenth and worst are in the records as ``client_accuracy``,
    ``client_accuracy_spread``, ``_p10`` and ``_worst``, and each client's own in the folder's ``clients.jsonl``.
    ``network`` runs a simulated clock
    (seconds) and may drop late replies. ``privacy`` clips replies and adds noise to their mean,
    which here is drawn from ``seed``. ``workers`` trains that many clients at once (None:
    one a core); it changes nothing but time. ``plan`` says whether small clients are trained
    as one ("together") or one by one ("each"); the two differ in the last bits. None chooses by a
    rule from model and sizes, the same every time: together are clients of one data set and a
    model of linear layers with at most 500,000 parameters (on a GPU: a million, any layers)
    without buffers or random layers. "measured" times a few steps of both in the first round;
    then the same call may give other bits. A run keeps the plan that it began with.

    ``states`` says where what is kept of every client lies between its rounds: "disk" for
    more clients than fit in memory. Then a client that is not sampled takes at most 2,000
    bytes, its task included where that holds positions in examples all share, and a round as
    long as its cohort needs, however many clients there are (``benchmarks/scale.py`` measures
    both). Under ``torchrun`` (and an initialised process group)
    each rank trains its share of the cohort, with the same results.

    With ``out``, a folder, the run is recorded there and ``resume`` continues it, bit for
    bit, from its last checkpoint (every ``checkpoint_every`` rounds).

    Raises ``ValueError`` for a bad argument, :class:`NonFinite` when training diverges, and
    :class:`RunError` for a folder of another run.
    """
    whole = {"rounds": rounds, "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every}
    for name, value in whole.items():
        require(type(value) is int, f"{name}={value!r}: a whole number is expected")
        require(value > 0, f"{name}={value}: it must be at least 1")
    require(out is not None or not resume, "resume=True needs the folder of the run: out=...")
    require(states in ("memory", "disk"), f"states={states!r}: they are kept in memory or on disk")
    require(out is not None or states == "memory", "states='disk' needs a folder for the run: out=...")
    where = Path(out) / "states" if out is not None and states == "disk" else None
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
        run = Simulation(
            algorithm,
            model,
            tasks,
            sample,
            test=test,
            client_tests=client_tests,
            seed=seed,
            dropout=dropout,
            network=network,
            workers=workers,
            device=device,
            plan=plan,
            states=where,
            privacy=privacy,
        )
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
            record = run.step(evaluate=last or (run.round + 1) % evaluate_every == 0)
            if folder is not None:
                folder.append(record, run.ledger.lines(run.round), run.by_client)
                if last or run.round % checkpoint_every == 0:
                    run.save(folder)
            for listener in (on_round, report):
                if listener is not None:
                    listener(record)
        result = run.result(Path(out) if out is not None else None)
        if folder is not None:
            folder.model(result.module.state_dict(), {"expression": complete(algorithm), "seed": str(seed)})
            folder.summary(result.summary())
        barrier()  # what rank 0 wrote is there for everyone
        return result


class Simulation(Rounds):
    """A run between two rounds, with its clients: :meth:`step` makes one more."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module | Callable[[], nn.Module],
        tasks: Sequence[Any],
        sample: int | None = None,
        test: Any = None,
        client_tests: Sequence[Any] | None = None,
        seed: int = 0,
        dropout: float = 0.0,
        network: Network | None = None,
        workers: int | None = None,
        device: str = "cpu",
        plan: Plan | Literal["measured"] | None = None,
        states: Path | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        plans = (None, "each", "together", "measured")
        require(plan in plans, f"plan={plan!r}: it is 'each', 'together', 'measured' or None")
        require(usable(device), f"device={device!r}: {unusable(device)}")
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
            raise ValueError(f"{algorithm.__name__} is a class: make a method of it, such as {algorithm.__name__}()")
        require(isinstance(algorithm, Algorithm), f"{algorithm!r} is not an algorithm such as FedAvg()")
        self.tasks = as_tasks(tasks)
        require(len(tasks) > 0, "there are no clients: tasks is empty")
        require(0 <= dropout < 1, f"dropout={dropout}: it is a probability below 1")
        require(workers is None or type(workers) is int, f"workers={workers!r}: a whole number is expected")
        require(workers is None or workers > 0, f"workers={workers}: it must be at least 1")
        fits = network is None or isinstance(network, Network)
        require(fits, f"network={network!r}: give a Network, such as Network(mbit=10)")
        fits = privacy is None or isinstance(privacy, Privacy)
        require(fits, f"privacy={privacy!r}: give a Privacy, such as Privacy(clip=1, noise=1)")
        if network is not None:
            network.check(len(tasks))
        self.dropout, self.network = dropout, network
        self.sample = len(tasks) if sample is None else sample
        for name, value in (("seed", seed), ("sample", self.sample)):
            require(type(value) is int, f"{name}={value!r}: a whole number is expected")
        require(0 <= seed < 1 << 63, f"seed={seed}: it must not be negative, and fit 63 bits")
        require(isinstance(model, nn.Module) or callable(model), f"{model!r} is neither a module nor makes one")
        require(0 < self.sample <= len(tasks), f"sample={sample}: it must be between 1 and the {len(tasks)} clients")
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

        slot = Slot(algorithm.prepare(model if isinstance(model, nn.Module) else made(model, seed)), placed(device))
        fitting(slot, ((f"client {client}", task) for client, task in enumerate(self.tasks)))
        fitting(slot, [("test", tested)] if tested is not None else [])
        fitting(slot, ((f"client_tests[{client}]", task) for client, task in enumerate(apart)))
        slot.probe(max(self.tasks[:100], key=len))
        super().__init__(algorithm, slot, len(tasks), seed, tested, privacy)
        self.client_tests, self.measured = apart, plan == "measured"
        self.plan = None if plan == "measured" else plan
        if states is not None:
            self.states = Disk(self.ends, states, writes=rank() == 0)
        work = Work(algorithm, self.up, self.tasks, self.stream.view, self.ends().own)
        kind = Ranks if size() > 1 else Pool
        self.pool = kind(slot, workers or max(1, (os.cpu_count() or 1) // size()), work)

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
        if self.network is not None and lost and self.network.deadline is not None:
            slowest = self.network.deadline  # the round waited for those that did not come
        self.pool.settle()
        return self.finish(began, slowest, len(active), lost, evaluate)

    def _at(self, key: Key, client: int) -> Key:
        """The key of a client's round."""
        mbit = None if self.network is None else self.network.rate(client, self.seed)
        return key._replace(client=client, mbit=mbit)

    def _cohort(self, key: Key) -> tuple[list[int], set[int]]:
        """Who is sampled this round, and who of them will not answer."""
        order = torch.randperm(len(self.tasks), generator=key.generator("sample"))
        cohort = sorted(order[: self.sample].tolist())
        draws = torch.rand(len(cohort), generator=key.generator("dropout")).tolist()
        return cohort, {client for client, draw in zip(cohort, draws, strict=True) if draw < self.dropout}

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
        seconds, used = 0.0, True
        if self.network is not None:
            seconds = self.network.seconds(client, up, down, reply.steps, self.seed)
            used = self.network.deadline is None or seconds <= self.network.deadline
        self.ledger.add(Entry(key.round, client, "up", len(reply.blob), len(header), 0, reply.floats, used))
        return used, seconds

    def setting(self) -> dict[str, Any]:
        """What, besides the algorithm, makes this run what it is."""
        examples = [len(task) for task in self.tasks]
        return {
            "seed": self.seed,
            "clients": len(self.tasks),
            "sample": self.sample,
            "examples": sum(examples),
            "parameters": self.slot.layout.size,
            "dropout": self.dropout,
            "network": None if self.network is None else complete(self.network),
        }

    @cached_property
    def data(self) -> dict[str, str | None]:
        """Digests of the tasks and of what is evaluated: for runs on disk, which may be continued."""
        tests = [*([] if self.test is None else [self.test]), *self.client_tests]
        return {"data": data_digest(self.tasks), "test": data_digest(tests) if tests else None}


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
