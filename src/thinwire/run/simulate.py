"""All clients in one process; every message still goes through the wire.

The runner owns loops, means, storage, sampling, time and failure. It never looks inside a
state of an algorithm or a link.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
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
from ..errors import NonFinite, RunError, WireError, require
from ..expression import differing
from ..key import Key
from ..ledger import Entry, Ledger
from ..network import Network
from ..params import Params
from ..task import as_task
from ..wire import Packet, dumps, loads, restore
from .client import ClientState, Reply
from .distributed import Ranks, barrier, placed, rank, size
from .folder import Folder, locked
from .identity import data_digest, model_digest
from .messages import Form, Mean
from .pool import Plan, Pool, Work
from .result import Record, Result
from .storage import Disk, Ends, Memory
from .stream import Stream
from .train import Slot


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
    workers: int | None = None,
    device: str = "cpu",
    plan: Plan | None = None,
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
    last, ``client_tests`` likewise, one a client. ``network`` runs a simulated clock
    (seconds) and may drop late replies. ``workers`` trains that many clients at once (None:
    one a core); it changes nothing but time. ``plan`` says whether small clients are trained
    as one ("together") or one by one ("each"): None times a few steps in the first round,
    and the run keeps what it found. The two differ in the last bits.

    ``states`` says where what is kept of every client lies between its rounds: "disk" for
    more clients than fit in memory. Under ``torchrun`` (and an initialised process group)
    each rank trains its share of the cohort, with the same results.

    With ``out``, a folder, the run is recorded there and ``resume`` continues it, bit for
    bit, from its last checkpoint (every ``checkpoint_every`` rounds).

    Raises ``ValueError`` for a bad argument, :class:`NonFinite` when training diverges, and
    :class:`RunError` for a folder of another run.
    """
    require(rounds > 0, f"rounds={rounds}: it must be at least 1")
    require(evaluate_every > 0, f"evaluate_every={evaluate_every}: it must be at least 1")
    require(checkpoint_every > 0, f"checkpoint_every={checkpoint_every}: it must be at least 1")
    require(out is not None or not resume, "resume=True needs the folder of the run: out=...")
    require(states in ("memory", "disk"), f"states={states!r}: they are kept in memory or on disk")
    require(out is not None or states == "memory", "states='disk' needs a folder for the run: out=...")
    where = Path(out) / "states" if out is not None and states == "disk" else None
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        folder = None
        if out is not None:
            if rank() == 0:
                stack.enter_context(locked(Path(out)))
            folder = Folder(Path(out), writes=rank() == 0)
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)  # here and in workers: the bits of a sum must not depend on the machine's cores
        run = Simulation(
            algorithm, model, tasks, sample, test, client_tests, seed, dropout, network, workers, device, plan, where
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
                folder.append(record, run.ledger.lines(run.round))
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


class Simulation:
    """A run between two rounds: :meth:`step` makes one more."""

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
        plan: Plan | None = None,
        states: Path | None = None,
    ) -> None:
        require(plan in (None, "each", "together"), f"plan={plan!r}: it is 'each', 'together' or None")
        require(_there(device), f"device={device!r}: no such device here; use cpu or cuda")
        require(isinstance(algorithm, Algorithm), f"{algorithm!r} is not an algorithm such as FedAvg()")
        require(len(tasks) > 0, "there are no clients: tasks is empty")
        require(0 <= dropout < 1, f"dropout={dropout}: it is a probability below 1")
        require(workers is None or workers > 0, f"workers={workers}: it must be at least 1")
        if network is not None:
            network.check(len(tasks))
        self.algorithm, self.seed, self.dropout, self.network = algorithm, seed, dropout, network
        self.tasks = [as_task(task) for task in tasks]
        self.sample = len(tasks) if sample is None else sample
        for name, value in (("seed", seed), ("sample", self.sample)):
            require(type(value) is int, f"{name}={value!r}: a whole number is expected")
        require(0 <= seed < 1 << 63, f"seed={seed}: it must not be negative, and fit 63 bits")
        require(isinstance(model, nn.Module) or callable(model), f"{model!r} is neither a module nor makes one")
        require(0 < self.sample <= len(tasks), f"sample={sample}: it must be between 1 and the {len(tasks)} clients")
        empty = [i for i, task in enumerate(self.tasks) if len(task) == 0]
        require(not empty, f"client {empty[:1]} has no examples: choose another split or fewer clients")
        self.test = None if test is None else as_task(test)
        self.client_tests = [as_task(task) for task in client_tests or ()]
        require(self.test is None or len(self.test) > 0, "the test set has no examples")
        require(all(len(task) > 0 for task in self.client_tests), "client_tests has a task without examples")
        require(
            client_tests is None or len(client_tests) == len(tasks),
            f"client_tests has {len(self.client_tests)} entries for {len(tasks)} clients",
        )

        module = algorithm.prepare(model if isinstance(model, nn.Module) else _made(model, seed))
        slot = Slot(module, placed(device))
        slot.probe(max(self.tasks[:100], key=len))
        statistics = slot.buffers()
        averaged = statistics if algorithm.buffers == "mean" else None
        start = algorithm.init(slot.params(), len(tasks), Key(seed))
        self.server, self.buffers, self.start, self.slot = start.server, averaged, start, slot
        self.initial_buffers = statistics
        self.up = Form.of(start.reply, algorithm.up, "up", averaged)
        message = algorithm.broadcast(start.server, start.view) if start.message is None else start.message
        self.stream = Stream(algorithm, Form.of(message, algorithm.down, "down", averaged), start.view, averaged)
        self.model_digest = model_digest(slot.module)
        self.states = Memory(self.ends) if states is None else Disk(self.ends, states, writes=rank() == 0)
        self.round, self.clock, self.plan = 0, 0.0, plan
        self.ledger, self.records = Ledger(), list[Record]()
        work = Work(algorithm, self.up, self.tasks, self.stream.view, self.ends().own)
        kind = Ranks if size() > 1 else Pool
        self.pool = kind(slot, workers or max(1, (os.cpu_count() or 1) // size()), work)

    def ends(self) -> Ends:
        """Both ends of a client's wire before its first reply."""
        kept = self.initial_buffers if self.algorithm.buffers == "local" else None
        tx, rx = self.up.open()
        return Ends(0, rx, ClientState(self.start.client, tx, kept))

    # -- a round --------------------------------------------------------------

    def step(self, evaluate: bool = True) -> Record:
        """Broadcast, train the cohort, average, step. Returns the round's record."""
        began = time.perf_counter()
        key = Key(self.seed, self.round + 1)
        msg = self.algorithm.broadcast(self.server, self.stream.view.state)
        self.stream.publish(msg, self.buffers, key)
        cohort, silent = self._cohort(key)
        down = {client: self._deliver(client, key.round) for client in cohort}
        active = [client for client in cohort if client not in silent]
        ends = {client: self.states.get(client) for client in active}
        jobs = [(key._replace(client=client), ends[client].own) for client in active]
        if self.plan is None:
            self.plan = self.pool.choose(jobs, self.stream.view)
        self.pool.plan = self.plan

        mean, losses, examples, lost, slowest = Mean(self.up), 0.0, 0, len(silent), 0.0
        for client, reply in zip(active, self.pool.rounds(jobs, self.stream.view), strict=True):
            used, seconds = self._arrive(client, reply, down[client], key)
            if not used:
                lost += 1
                continue
            slowest = max(slowest, seconds)
            self._commit(client, reply, ends[client], mean, key._replace(client=client))
            if reply.steps:  # a client may answer without training
                losses, examples = losses + reply.loss * reply.examples, examples + reply.examples
        if mean.whole:
            reply_mean, buffers = mean.result(key)
            self.server = self.algorithm.server(self.server, self.stream.view.state, reply_mean, key)
            self.buffers = buffers if self.buffers is not None else None
            if not self.algorithm.model(self.server).finite():
                raise NonFinite(f"round {key.round}: the server's model became NaN or infinite; lower the server's lr")
        if self.network is not None and lost and self.network.deadline is not None:
            slowest = self.network.deadline  # the round waited for those that did not come
        self.pool.settle()
        self.round, self.clock = key.round, self.clock + slowest
        record = self._record(losses / examples if examples else None, len(active), lost)
        record |= self._evaluate() if evaluate else {}
        record["seconds"] = time.perf_counter() - began
        self.records.append(record)
        return record

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

    def _commit(self, client: int, reply: Reply, ends: Ends, mean: Mean, key: Key) -> None:
        """Take a reply into the mean; both ends move on, and only now."""
        weight = float(reply.examples) if self.algorithm.weights == "examples" else 1.0
        try:
            rx = mean.add(client, weight, loads(reply.blob), ends.rx, key)
        except WireError as error:
            raise WireError(f"round {key.round}, client {client}: {error}") from error
        self.states.put(client, Ends(self.stream.version, rx, reply.next))

    # -- looking --------------------------------------------------------------

    def _record(self, loss: float | None, replies: int, lost: int) -> Record:
        up, down = self.ledger.of("up", self.round), self.ledger.of("down", self.round)
        return {
            "round": self.round,
            "train_loss": loss,
            "clients": replies,
            "lost_replies": lost,
            "up_bytes": sum(e.total for e in up),
            "down_bytes": sum(e.total for e in down),
            "up_payload": sum(e.payload for e in up),
            "up_framing": sum(e.framing for e in up),
            "down_payload": sum(e.payload for e in down),
            "down_framing": sum(e.framing for e in down),
            "up_floats": sum(e.floats for e in up),
            "down_floats": sum(e.floats for e in down),
            "slowest_bytes": self.ledger.slowest(self.round),
            "clock": self.clock,
        }

    def _evaluate(self) -> Record:
        values: Record = {}
        if self.test is not None:
            found = self.pool.evaluate(self.algorithm.model(self.server), self._statistics(None), self.test)
            values |= {"test_loss" if name == "loss" else name: value for name, value in found.items()}
        if self.client_tests:
            found_by = [
                self.pool.evaluate(self.algorithm.model(self.server, client), self._statistics(client), task)
                for client, task in enumerate(self.client_tests)
            ]
            for name in found_by[0]:
                each = torch.tensor([found[name] for found in found_by], dtype=torch.float64)
                values[f"client_{name}"] = float(each.mean())
                values[f"client_{name}_p10"] = float(each.quantile(0.1))
        # Of a finite model a loss may overflow all the same. JSON has no word for what is no number but null.
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    def _statistics(self, client: int | None) -> Params | None:
        """Whose norm statistics a model is evaluated with: the mean, or the client's own."""
        if self.algorithm.buffers == "mean":
            return self.buffers
        return self.initial_buffers if client is None else self.states.get(client).own.buffers

    def result(self, path: Path | None = None) -> Result:
        """The run so far."""
        params = self.algorithm.model(self.server).clone()  # the caller's own
        self.slot.load(params)
        self.slot.load_buffers(self._statistics(None))
        module = self.algorithm.finish(copy.deepcopy(self.slot.module).to("cpu").eval())
        return Result(
            self.algorithm, {**self.setting(), "plan": self.plan}, list(self.records), self.ledger, params, module, path
        )

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

    # -- to disk and back -----------------------------------------------------

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be continued."""
        digests = {"model": self.model_digest, **self.data}
        return {"method": complete(self.algorithm), **self.setting(), "device": self.slot.device.type, **digests}

    @cached_property
    def data(self) -> dict[str, str | None]:
        """Digests of the tasks and of what is evaluated: for runs on disk, which may be continued."""
        tests = [*([] if self.test is None else [self.test]), *self.client_tests]
        return {"data": data_digest(self.tasks), "test": data_digest(tests) if tests else None}

    def identity(self) -> str:
        """The fingerprint in short, for the checkpoint."""
        return hashlib.sha256(json.dumps(self.fingerprint()).encode()).hexdigest()[:32]

    def open(self, folder: Folder, resume: bool) -> None:
        """Start a run in ``folder``, or continue the one that is there."""
        about = folder.about()
        if about is not None and not resume:
            raise RunError(f"{folder.path} holds a run already: resume it, or choose another folder")
        packet = folder.load()
        for name, value in self.fingerprint().items():
            if about is not None and about.get(name) != value:
                raise RunError(f"{folder.path} is another run: its {differing(name, about.get(name), value)}")
        folder.describe(self.fingerprint())
        if packet is None:
            folder.cut(0)
            self.states.load({self.states.kind: {}})
            return
        try:
            self._restore(packet)
        except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"the checkpoint in {folder.path} does not fit this version ({error})") from error
        self.records, text = folder.cut(self.round)
        self.ledger = Ledger.parse(text)

    def save(self, folder: Folder) -> None:
        """Write a checkpoint."""
        folder.save(
            {
                "run": self.identity(),
                "round": self.round,
                "clock": self.clock,
                "plan": self.plan,
                "server": self.server,
                "buffers": self.buffers,
                "stream": self.stream.state(),
                "states": self.states.state(),
            }
        )
        self.states.settle()  # only now: until then the checkpoint before refers to what is dropped

    def _restore(self, packet: Packet) -> None:
        if packet["run"] != self.identity():
            raise WireError("it is the checkpoint of another run")
        if self.plan not in (None, packet["plan"]):
            raise RunError(f"this run began with plan={packet['plan']!r}: another one would move its last bits")
        self.round, self.clock, self.plan = packet["round"], packet["clock"], packet["plan"]
        self.server, self.buffers = restore(packet["server"], self.server), restore(packet["buffers"], self.buffers)
        self.stream.load(packet["stream"], Key(self.seed))
        self.states.load(packet["states"])


def _there(device: str) -> bool:
    """Whether tensors can be put on a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # torch raises the latter where it was built without CUDA
        return False
    return True


def _made(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module initialised under ``seed``; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key(seed).number("model"))
        return factory()


@contextlib.contextmanager
def _progress(name: str, rounds: int) -> Iterator[Callable[[Record], None]]:
    from ..report.progress import live  # rich is imported where it is shown

    with live(rounds) as line:
        yield lambda record: line(name, record)
