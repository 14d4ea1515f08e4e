"""All clients in one process; every message still goes through the wire.

The runner owns loops, means, storage, sampling, time and failure. It never looks inside a
state of an algorithm or a link.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..algorithms.base import Algorithm
from ..algorithms.runnable import check_runnable
from ..errors import CombinationError, RunError, WireError, require
from ..key import Key
from ..run.folder import Folder
from ..run.identity import data_digest, name_of
from ..run.ranks import barrier, device_of_rank, rank, size
from ..task import as_tasks
from ..train.allocator import give_back_freed_memory
from ..train.fitting import fitting
from ..train.slot import Slot, floats, make_module
from ..train.threads import one_thread
from ..wire import Packet, State
from .answers import Training
from .asking import ask_clients
from .buffered import Arrival, Flights, check_late, check_replies
from .changes import MODELS, Changes, keep
from .client import Job, Manner, Reply, adapt_model
from .envelope import NUMBER, Answer, Call, Scales
from .hostile import Hostile, honest_first, tell
from .layer_bytes import LayerBytes
from .own_tests import Model, as_tests
from .pool import Pool, Work
from .rank_pool import Ranks
from .result import Record
from .rounds import Rounds
from .sampler import check_cohort, check_cohorts, check_given
from .secure.trips import Gathering, Here
from .setting import Setting
from .storage import Disk, Ends, Pending
from .stream import Parcel
from .views import Views


class Simulation(Rounds):
    """A run between two rounds, with its clients: :meth:`step` makes one more. The arguments are those of simulate.

    Messages of the simulation are billed as a deployment would send them, to the byte. With ``states="disk"`` what is
    kept of every client lies in the folder ``out``.

    Threads and processes begin with the first round. They end with :meth:`close`, at the end of ``with Simulation(...)
    as run:``, or when nobody holds the run any more.
    """

    incarnation = NUMBER
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
        cohort: Sequence[Sequence[int]] | None = None,
        train: Training | None = None,
        **fields: Any,
    ) -> None:
        self.setting = setting = Setting.of(setting, fields)
        require(out is not None or setting.states == "memory", "states='disk' needs a folder for the run: out=...")
        vectors = setting.records("gradients") or setting.records("models")
        require(out is not None or not vectors, f"record={setting.record!r} needs a folder for the run: out=...")
        check_runnable(algorithm)
        require(isinstance(model, nn.Module) or callable(model), f"{model!r} is neither a module nor makes one")
        module = model if isinstance(model, nn.Module) else make_module(model, setting.seed)
        kind = floats(module)
        self.tasks = as_tasks(tasks, kind)
        require(len(tasks) > 0, "there are no clients: tasks is empty")
        if setting.network is not None:
            setting.network.check(len(tasks))
        setting.cohort(len(tasks))  # raises where there are fewer
        chosen = {name: getattr(setting, name) for name in ("sample", "expel", "buffer", "sampler")}
        chosen["network"] = setting.network if setting.sessions else None
        for name, value in chosen.items():
            require(cohort is None or value is None, f"{name}={value}: the cohort is given")
        self.cohort = None if cohort is None else check_cohorts(cohort, len(tasks))
        empty = [i for i, task in enumerate(self.tasks) if len(task) == 0]
        require(
            not empty, f"client {empty[0] if empty else None} has no examples: choose another split or fewer clients"
        )
        tested, apart = as_tests(test, client_tests, len(tasks), kind)

        ours = not isinstance(model, nn.Module)  # else a caller may write to it
        slot = Slot(algorithm.assemble(module, len(tasks)), device_of_rank(setting.device), ours)
        fitting(slot, ((f"client {client}", task) for client, task in enumerate(self.tasks)))
        fitting(slot, [("test", tested)] if tested is not None else [])
        fitting(slot, ((f"client_tests[{client}]", task) for client, task in enumerate(apart)))
        slot.probe(self.tasks, trains=train is None)
        if slot.large:
            give_back_freed_memory()  # of the probe, which a worker's thread would not find
        self.flights, buffer = Flights(), setting.buffer
        super().__init__(algorithm, slot, len(tasks), setting, tested)
        for clients in self.cohort or ():
            check_given(clients, setting, self.secured)
        if self.secured is not None and setting.sessions is not None:
            raise CombinationError(
                f"network={setting.network!r}: a secret sum needs so many clients a round, and there may be fewer: "
                f"leave sessions out, or SecureSum"
            )
        if buffer is not None:
            check_late(buffer, algorithm)
            check_replies(buffer, self.sample)
        attack, hostile = setting.attack, None
        if attack is not None:
            hostile = Hostile.of(attack, self.up, len(tasks), setting.seed)
            self.tasks = hostile.poison(self.tasks)
        self.scales = Scales()
        self.client_tests, self.measured = apart, setting.plan == "measured"
        self.plan = None if setting.plan == "measured" else setting.plan
        if setting.states == "disk" and out is not None:
            self.states = Disk(self.ends, Path(out) / "states", writes=rank() == 0)
        looks, layers = setting.records("looks"), setting.records("layers")
        self.manner = Manner(train, looks, layers, setting.clip == "auto", hostile)
        self.layers = LayerBytes(self.up, self.stream.form) if setting.records("bytes") else None
        own, begun = self.ends().own, self.start if self.known else None
        view, down = self.stream.view, self.stream.form
        work = Work(algorithm, self.up, self.tasks, view, own, self.manner, self.private, begun, down)
        workers = setting.workers or max(1, (os.cpu_count() or 1) // size())
        self.pool = (Ranks if size() > 1 else Pool)(slot, workers, work)

    def close(self) -> None:
        """End the threads and processes. A later step begins them anew."""
        self.pool.close()

    # -- a round --------------------------------------------------------------

    @one_thread()
    def step(self, evaluate: bool = True, cohort: Sequence[int] | None = None) -> Record:
        """Broadcast, train the cohort, average, step. Returns the round's record.

        ``cohort`` are the clients that take part, in place of those that would be drawn.
        """
        given = None if cohort is None else check_cohort(cohort, len(self.tasks))
        if given is None and self.cohort is not None:
            require(self.round < len(self.cohort), f"cohort names the clients of {len(self.cohort)} rounds, no more")
            given = self.cohort[self.round]
        check_given(given, self.setting, self.secured)
        there, begins = self._there()
        key = self.publish()
        cohort = self._free(key, there) if given is None else given
        silent = self._silent(cohort, key)
        secret = None if self.secured is None else Here(Gathering.of(self, self.secured, cohort), self.setting.network)
        self.shares = {} if secret is None else secret.shares
        parcels = self.pool.each(self.parcel, cohort) if self.apart else [None] * len(cohort)  # each is encoded
        delivered = {client: self._deliver(client, parcel) for client, parcel in zip(cohort, parcels, strict=True)}
        calls = {client: call for client, (call, _) in delivered.items()}
        active, asking = [client for client in cohort if client not in silent], 0.0  # seconds
        if given is None and self.sampler is not None and self.sampler.asks:
            active, asking = ask_clients(self, {client: delivered[client] for client in active})
        ends = {client: self.states.get(client) for client in active}
        called = begins + asking + (secret.seconds if secret else 0.0)
        jobs = [self.job(*delivered[client], ends[client]) for client in active]
        self.plan = self.pool.plan = self.plan or self.pool.choose(jobs, self.stream.view, self.measured)

        lost, slowest, looks, waiting = len(silent), 0.0, list[Record](), list[Arrival]()
        changes = Changes(self.slot.layout) if self.manner.changes else None
        arrivals, buffer, rest = self._arrivals(calls, jobs, ends, secret), self.setting.buffer, dict[str, Any]()
        if buffer is not None:
            landed = self.flights.land(arrivals, buffer.replies, self.clock)
            steps = sorted(self.round + 1 - arrival.answer.round for arrival in landed)
            rest = {"staleness": steps, "in_flight": len(self.flights.arrivals)}
            active = [arrival.answer.client for arrival in landed]
            arrivals = iter([arrival._replace(seconds=arrival.time - self.clock) for arrival in landed])
        for arrival in arrivals:
            client = arrival.answer.client
            used, waited = self._arrive(arrival, called)
            slowest = max(slowest, waited)
            if not used:
                lost += 1
                continue
            looks += [{"client": client, **look} for look in arrival.looks]
            if changes is not None:
                changes.add(arrival.noted, self.algorithm.weigh(arrival.answer.examples))
            if secret is None:
                self.norms.append(arrival.norms or {})
            if self.clip == "auto" or secret is not None:  # their bound, or their sum, is known when all are there
                waiting.append(arrival)
            else:
                self._take(arrival)
        if self.clip == "auto":
            self.bind(self.norms)
        secrets = None if secret is None else secret.end(arrival.answer.client for arrival in waiting)
        if secret is not None:
            secret.gathering.enter(self.ledger)
            if not secrets:  # nobody learns anything
                lost, waiting = lost + len(waiting), []
                changes = None if changes is None else Changes(self.slot.layout)
        for arrival in waiting:
            self._take(arrival)
        if self.secured is not None and secrets is not None:
            self.secured.uncover(self.mean, secrets)
        self.pending.clear()
        before = self.algorithm.model(self.server) if self.manner.changes else None
        self.serve(key)
        network = self.setting.network
        if network is not None and lost and network.deadline is not None:
            slowest = network.deadline  # the round waited for those that did not come
        self.pool.settle()
        seconds = begins - self.clock + asking + slowest + (secret.seconds if secret else 0.0)
        record = self.finish(seconds, len(active) + len(silent), lost, evaluate)
        record |= rest
        if there is not None:
            record["there"] = len(there)
        if self.manner.looks:
            record["looks"] = looks
        if changes is not None and before is not None:
            moved = self.algorithm.model(self.server) - before
            record |= changes.record(before, moved)
            if self.setting.records("gradients") and self.folder is not None and self.folder.writes:
                self.folder.owe(keep(self.folder.path, self.round, changes.mean(moved)))
        if evaluate and self.setting.records("models") and self.folder is not None:
            record["model"] = True
            if self.folder.writes:
                self.folder.owe(keep(self.folder.path, self.round, self.algorithm.model(self.server), MODELS))
        if self.layers is not None:
            record["layer_bytes"] = self.layers.record()
        return record

    def _replies(self, jobs: Sequence[Job], ends: Mapping[int, Ends]) -> Iterator[Reply]:
        """The replies of clients, in the order of ``jobs``."""
        hostile = self.manner.hostile
        if hostile is None or not hostile.attack.omniscient:
            return self.pool.rounds(jobs, self.stream.view)

        def about(replies: Mapping[int, Reply]) -> bytes:
            keys = {job.key.client: job.key for job in jobs}
            decoded = (self.up.recv(self.up.read(r.blob), ends[c].rx, keys[c])[0] for c, r in replies.items())
            return tell(self.up, decoded, len(jobs) - len(replies))

        return iter(honest_first(jobs, hostile.clients, lambda some: self.pool.rounds(some, self.stream.view), about))

    def sizes(self) -> list[int]:
        """The examples of every client."""
        return [len(task) for task in self.tasks]

    def _there(self) -> tuple[set[int] | None, float]:
        """The clients that are there when the next round begins, or None for all; and when it begins."""
        network = self.setting.network
        if network is None or network.sessions is None:
            return None, self.clock
        every = set(range(self.num_clients)) - set(self.suspects.expelled)
        return network.present_clients(every, self.clock, self.seed)

    def _free(self, key: Key, there: set[int] | None) -> list[int]:
        """The round's cohort; with a buffer as many as end their training, of those that are not at it."""
        busy = self.flights.arrivals
        if not busy:
            return self.draw_cohort(key, there)
        return self.draw_cohort(key, set(range(self.num_clients)) - set(busy), self.sample - len(busy))

    def _arrivals(
        self, calls: Mapping[int, Call], jobs: Sequence[Job], ends: Mapping[int, Ends], secret: Here | None
    ) -> Iterator[Arrival]:
        """What comes of jobs, in their order."""
        network, version = self.setting.network, self.stream.version
        for job, reply in zip(jobs, self._replies(jobs, ends), strict=True):
            client = job.key.client
            assert client is not None
            reply = reply if secret is None else reply._replace(blob=secret.hide(client, reply.blob))
            answer, seconds = Answer.to(calls[client], NUMBER, reply, NUMBER, reply.seconds), 0.0
            if network is not None:
                up, down = self.scales.size(answer), self.questions.size_of(client, self.scales.size(calls[client]))
                seconds = network.seconds(client, up, down, answer.steps, self.seed)
            after = Ends(version, ends[client].rx, reply.next, *self.pending.pop(client, Pending()))
            yield Arrival(answer, after, reply.floats, seconds, reply.looks, reply.noted, reply.norms)

    def _take(self, arrival: Arrival) -> None:
        """Add an answer to the mean, and commit both ends of its client's wire."""
        answer, ends = arrival.answer, arrival.ends
        body = self.up.read(answer.blob)
        self._check_layers(Key(self.seed, answer.round, answer.client), body)
        rx = self.add(answer, body, ends.rx, late=answer.round <= self.round)
        if self.layers is not None:
            self.layers.enter_reply(body, answer.payload)
        self.states.commit(answer.client, ends._replace(rx=rx))  # both ends move on, only now

    def job(self, call: Call, parcel: Parcel, ends: Ends) -> Job:
        """A call as the pool takes it."""
        alone = b"" if self.private is None else call.pieces[-1].blob
        job = Job(self.at(call.client, call), ends.own, alone, call.base == 0)
        if not isinstance(self.stream, Views):
            return job
        return job._replace(held=self.stream.view_of(call.base, ends.down), parcel=parcel._replace(own=None, end=None))

    def rate(self, client: int) -> float:
        """A client's uplink in Mbit/s; 0 where there is no network."""
        network = self.setting.network
        return 0.0 if network is None else network.rate(client, self.seed)

    @property
    def answer_rate(self) -> float:
        """Where replies may be late it is not known how many are: the share is put at a half of those that answer."""
        network = self.setting.network
        return (1 - self.setting.dropout) * (0.5 if network is not None and network.loses else 1.0)

    def mark_of(self, client: int, base: int) -> int:
        """A number as long as a mark: nothing is lost here that a mark would show."""
        return NUMBER if base else 0

    def _silent(self, cohort: list[int], key: Key) -> set[int]:
        """Who of a cohort will not answer."""
        draws = torch.rand(len(cohort), generator=key.generator("dropout"), dtype=torch.float32, device="cpu").tolist()
        return {client for client, draw in zip(cohort, draws, strict=True) if draw < self.setting.dropout}

    def _deliver(self, client: int, made: Parcel | None) -> tuple[Call, Parcel]:
        """Call a client."""
        call, parcel = self.call_to(client, made)
        self.enter_call(client, parcel, self.scales.framing(call))
        if self.layers is not None:
            self.layers.enter_call(parcel)
        return call, parcel

    def _check_layers(self, key: Key, body: Packet) -> None:
        """Raise :class:`CombinationError` for a method whose clients leave out layers of which it does not say so."""
        try:
            self.check_layers(key, body)
        except WireError as error:
            name = type(self.algorithm).__name__
            raise CombinationError(
                f"round {key.round}, client {key.client}: {error}; a layer that a client leaves out counts as zero in "
                f"its reply: a method whose clients leave layers out says which in {name}.outlines"
            ) from error

    def _arrive(self, arrival: Arrival, called: float) -> tuple[bool, float]:
        """Enter an answer's bytes; whether it came in time, and the seconds for which it was waited for."""
        answer, network, used, waited = arrival.answer, self.setting.network, True, arrival.seconds
        if network is not None:
            used, waited = network.judge(answer.client, arrival.seconds, called, self.seed)
        self.enter_answer(answer.client, answer.blob, self.scales.framing(answer), arrival.floats, used)
        return used, waited

    def state(self) -> dict[str, State]:
        """With a buffer also what is on its way."""
        state = super().state()
        return state if self.setting.buffer is None else {**state, "flights": self.flights.state()}

    def restore(self, packet: Packet) -> None:
        super().restore(packet)
        self.flights.load(packet.get("flights") or [], self.ends())

    def adapt(self, client: int, kept: Model) -> Model:
        """A client's own model as the method adapts it to the client's examples."""
        if not self.algorithm.personal_models:
            return kept
        key = Key(self.seed, max(self.round, 1), client).at("adapt")
        return Model(*adapt_model(self.algorithm, self.slot, self.tasks[client], *kept, key, self.manner.train))

    def open(self, folder: Folder, resume: bool) -> None:
        """Start a run in ``folder``, or continue the one that is there. Of several ranks all look, then one writes."""
        if rank() == 0:
            barrier()
        super().open(folder, resume)
        if rank() != 0:
            barrier()
        barrier()
        for number, clients in enumerate(self.cohort or (), 1):
            made = {entry.client for entry in self.ledger.of("down", number)}
            if number <= self.round and made != set(clients):
                raise RunError(
                    f"{folder.path} is another run: the cohort of its round {number} is {sorted(made)}, not {clients}"
                )

    def facts(self) -> dict[str, Any]:
        """What, besides the algorithm, makes this run what it is."""
        return {
            "clients": len(self.tasks),
            **self.setting.fixed_fields(),
            "sample": self.sample,
            "examples": sum(len(task) for task in self.tasks),
            "parameters": self.slot.layout.size,
            **self.downlink_fact(),
            **({} if self.cohort is None else {"cohort": "given"}),
            **({} if self.manner.train is None else {"train": name_of(self.manner.train)}),
        }

    @cached_property
    def data(self) -> dict[str, str | None]:
        """Digests of the tasks and of what is evaluated: for runs on disk, which may be continued."""
        tests = [*([] if self.test is None else [self.test]), *self.client_tests]
        return {"data": data_digest(self.tasks), "test": data_digest(tests) if tests else None}
