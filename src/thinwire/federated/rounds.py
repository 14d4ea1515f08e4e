"""The server's half of a run, whoever carries the messages: the simulator and a real deployment share it, loop and all.

A runner owns loops, means, storage, sampling, time and failure. It never looks inside a
state of an algorithm or a link.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from ..algorithms.base import Algorithm, Around, adapts, predicts
from ..config import complete
from ..errors import CombinationError, NonFinite, RunError, WireError, require
from ..key import Key
from ..params import Params
from ..run.folder import Folder
from ..run.identity import model_digest, run_digest, versions
from ..run.loop import Run, finite
from ..task import Task
from ..train.one import Slot, mean_metrics, sums
from ..wire import MOST, Packet, Several, State, length, loads, modest, restore
from .client import ClientState, statistics_of, unheard
from .clip import Clip, Norms, Past, bounds, check_clip, following, quantiles, whole
from .envelope import Answer, Call, Piece, key_of
from .ledger import Entry, Ledger
from .messages import Form, Letter, Mean, Message, forms, private, write_letter
from .own_tests import Metrics, Model, evaluate_models, over_clients
from .pool import Plan, Pool
from .privacy import Privacy
from .result import Predicting, Record, Result
from .storage import Ends, Memory
from .stream import Parcel, Stream
from .views import Views, fewer


class Pending(NamedTuple):
    """The server's sending ends after a call that is not answered yet."""

    tx: State = None  # of `personal`
    down: State = None


class Rounds(Run[Result]):
    """A run between two rounds: what the server keeps, and what of it is recorded.

    A round begins with :meth:`publish` and ends with :meth:`finish`. In between its cohort is drawn
    (:meth:`draw_cohort`), each client of it is called (:meth:`call_to`) and its answer added (:meth:`add`), and the
    server makes its step
    (:meth:`serve`). Who carries calls and answers, and what becomes of those that are lost, is the subclass's.
    """

    unit = "round"
    extends = True
    pool: Pool  # evaluates, and trains where clients are here
    clients_here: ClassVar[bool] = False  # and what they keep
    incarnation: int  # which of the runs of one digest, for the clients

    def __init__(
        self,
        algorithm: Algorithm,
        slot: Slot,
        num_clients: int,
        sample: int,
        seed: int,
        test: Task | None,
        privacy: Privacy | None = None,
        known: bool = False,
        clip: Clip = None,
    ) -> None:
        require(clip is None or privacy is None, f"clip={clip}: {privacy!r} has a clip of its own")
        self.algorithm, self.slot, self.seed, self.test = algorithm, slot, seed, test
        self.num_clients, self.sample = num_clients, sample
        self.client_tests: Sequence[Task] = ()
        self.by_client: Record | None = None  # the last evaluation of their tests: a list by metric
        self.initial_buffers = slot.buffers()
        self.buffers = self.initial_buffers if algorithm.buffers == "mean" else None
        self.start = algorithm.init_with(slot.params(), self.initial_buffers, num_clients, Key(seed))
        self.server, self.known = self.start.server, known
        self.up, down = forms(algorithm, self.start, self.buffers)
        self.private = private(algorithm, self.start)
        self.pending = dict[int, Pending]()  # of calls of this round that are not answered yet
        self.privacy, self.secret = privacy, str(seed)  # of the noise
        self.clip = check_clip(clip)  # the norm that a field of a reply has at most
        self.bounds: dict[str, float] = {}  # with "auto": by field, of the newest round
        self.norms, self.lengths = list[Norms](), Past()  # of this round's replies, and with "auto" of those before
        if clip is not None:
            clippable(algorithm, self.up)
        if privacy is not None:
            privacy.check(repr(algorithm), algorithm.weights, self.up.fields)
            self.clip = privacy.clip if privacy.clip < math.inf else None
        self.stream = self._downlink(down)
        self.model_digest = model_digest(slot.module)
        self.digest = run_digest(algorithm, self.model_digest, seed, num_clients, known)
        self.states = Memory(self.ends)
        self.round, self.clock = 0, 0.0
        self.plan: Plan | None = None
        self.ledger, self.records = Ledger(), list[Record]()
        self.gather()

    @property
    def number(self) -> int:  # type: ignore[override]
        """The rounds that were made."""
        return self.round

    def ends(self) -> Ends:
        """Both ends of a client's wire before its first reply."""
        own = unheard(self.algorithm, self.start, self.up, self.initial_buffers)
        return Ends(0, self.up.open()[1], own, self.private_end(), self.stream.end)

    def _downlink(self, form: Form) -> Stream:
        """One stream for everyone, or messages of each client's own: as the links say."""
        key, start = Key(self.seed), self.start
        if form.per_client:
            values = form.values(self.algorithm.broadcast(start.server, start.view), self.buffers)
            if not form.auto or fewer(form, values, key, self.sample / self.num_clients * self.answer_rate):
                return Views(self.algorithm, form, start, self.buffers, key, self.known)
        return Stream(self.algorithm, form, start.view, self.buffers, self.known)

    @property
    def answer_rate(self) -> float:
        """The share of calls whose replies are taken, as far as it is known before the run."""
        return 1.0

    @property
    def apart(self) -> bool:
        """Whether each client is sent messages of its own in place of the stream's."""
        return isinstance(self.stream, Views)

    def chosen(self) -> dict[str, str]:
        """The form of the downlink, as a fact of the run, where the method's links leave it open."""
        form = self.stream.form
        return {"downlink": "per client" if self.apart else "stream"} if form.per_client and form.auto else {}

    def private_end(self) -> State:
        """The sending ends of `personal` before a client's first message."""
        return None if self.private is None else self.private.open()[0]

    # -- a round --------------------------------------------------------------

    def gather(self) -> None:
        """Begin to add replies."""
        self.mean = Mean(self.up, self.bounds if self.clip == "auto" else self.clip)
        self.losses, self.examples = 0.0, 0

    def bind(self, norms: Sequence[Norms]) -> None:
        """Say how long the replies of this round are, before any is added: ``clip="auto"`` goes by it."""
        self.norms = list(norms)
        if self.clip == "auto":
            self.bounds = bounds(self.lengths, self.norms)
            self.gather()

    def publish(self) -> Key:
        """Put the next round's broadcast into the stream; returns the round's key."""
        self.began = time.perf_counter()
        key = Key(self.seed, self.round + 1)
        message = self.algorithm.broadcast(self.server, self.stream.view.state)
        self.stream.publish(message, self.buffers, key)
        self.norms = []
        self.gather()
        return key

    def draw_cohort(self, key: Key, available: Iterable[int] | None = None) -> list[int]:
        """The round's cohort: ``sample`` of the clients that are there (None: all), in their order."""
        order = torch.randperm(self.num_clients, generator=key.generator("sample"), device="cpu")
        if available is not None:
            order = order[torch.isin(order, torch.tensor(sorted(available), dtype=torch.int64, device="cpu"))]
        return sorted(order[: self.sample].tolist())

    @abstractmethod
    def rate(self, client: int) -> float:
        """A client's uplink in Mbit/s; 0 where it is not known."""

    def parcel(self, client: int) -> Parcel:
        """What a client misses of the broadcasts, in the round that was published."""
        base = self.states.version(client)
        return self.stream.parcel(base, self.states.get(client).down if self.apart else None)

    def call_to(self, client: int, parcel: Parcel | None = None) -> tuple[Call, Parcel]:
        """What a client is sent in the round that was published: all that it misses, and what is for it alone.

        It is not yet in the ledger. What is for it alone is the last piece, if there is any. ``parcel`` is what
        :meth:`parcel` gave, if it was asked.
        """
        base, number = self.states.version(client), self.round + 1
        parcel = (parcel or self.parcel(client))._replace(own=self.letter(client, base))
        if self.apart or parcel.own is not None:
            self.pending[client] = Pending(None if parcel.own is None else parcel.own.tx, parcel.end)
        pieces = [Piece(m.round, m.blob) for m in parcel.messages]
        pieces += [] if parcel.own is None else [Piece(number, parcel.own.blob)]
        about = self.digest, self.incarnation, self.seed, self.num_clients, client, number, base, self.rate(client)
        return Call(*about, parcel.snapshot, Several(pieces, Piece(0, b"")), self.mark_of(client, base)), parcel

    def letter(self, client: int, base: int) -> Letter | None:
        """What a client alone is sent, made from the newest state and for what this client holds."""
        if self.private is None:
            return None
        key = key_of(self.seed, client, self.round + 1, self.rate(client))
        message = self.algorithm.alone(self.server, client)
        first = self.algorithm.alone(self.start.server, client) if self.known and base == 0 else None
        return write_letter(self.private, message, self.states.get(client).tx, key, base == 0, first)

    @abstractmethod
    def mark_of(self, client: int, base: int) -> int:
        """The mark of what a client holds after the answer to round ``base``; 0 before its first."""

    def at(self, client: int, about: Call | Answer) -> Key:
        """The key of the round of a client that a call or an answer is about."""
        return key_of(self.seed, client, about.round, about.mbit)

    def enter_call(self, client: int, parcel: Parcel, framing: int) -> None:
        """Enter what a client was sent in this round into the ledger."""
        own = 0 if parcel.own is None else len(parcel.own.blob)
        self.ledger.add(Entry(self.round + 1, client, "down", parcel.size, framing, 0, parcel.floats, True, own))

    def enter_answer(self, client: int, blob: bytes, framing: int, floats: float = 0.0, used: bool = True) -> None:
        """Enter what a client answered in this round into the ledger; ``blob`` is its reply."""
        own = self.own_part(blob) if blob and self.private is not None else 0
        self.ledger.add(Entry(self.round + 1, client, "up", len(blob), framing, 0, floats, used, own))

    def own_part(self, blob: bytes) -> int:
        """Bytes of a reply that are of the client's own model: of the fields that are not averaged over clients.

        0 for one that cannot be read.
        """
        try:
            body = loads(blob)
            return sum(length(part) for leaf, part in zip(self.up.leaves, body, strict=True) if leaf.kind == "each")
        except (WireError, ValueError, TypeError):
            return 0

    def add(self, answer: Answer, body: Packet, rx: State, late: bool = False) -> State:
        """Take an answer, whose blob is ``body``, into the mean; returns the receiving ends' next states.

        Raises ``WireError``, naming round and client.
        """
        key, examples = self.at(answer.client, answer), answer.examples
        weight = self.algorithm.weigh(examples)
        try:
            rx = self.mean.add(answer.client, weight, body, rx, key, late, partial(self.admit, examples))
        except WireError as error:
            raise WireError(f"round {key.round}, client {key.client}: {error}") from error
        if answer.steps:  # a client may answer without training
            self.losses, self.examples = self.losses + answer.loss * examples, self.examples + examples
        return rx

    def check_layers(self, key: Key, body: Packet) -> None:
        """Raise ``WireError`` for a reply with other layers than the method's clients send in a round."""
        self.up.compare(body, self.algorithm.outlines(self.stream.view.state, self.up.blank, key))

    def admit(self, examples: int, reply: Message) -> Message:
        """What the method makes of a reply that is decoded. Raises ``WireError``."""
        clip = whole(self.bounds if self.clip == "auto" else self.clip)
        return self.algorithm.admit(self.stream.view.state, reply, examples, clip)

    def serve(self, key: Key) -> None:
        """The server's half of the round, given the replies that were added. Raises :class:`NonFinite`."""
        self.server, self.buffers = self.served(key)

    def served(self, key: Key) -> tuple[State, Params | None]:
        """The server's state and the buffers after the replies that were added. Raises :class:`NonFinite`."""
        if not self.mean.whole:
            return self.server, self.buffers
        mean, buffers = self.mean.result(key)
        if self.privacy is not None:
            values = [self.privacy.hidden(x, self.mean.whole, self.secret, key.round) for x in self.up.values(mean)]
            mean, buffers = self.up.build(values)
        server = self.algorithm.server(self.server, self.stream.view.state, mean, key)
        require(
            type(server) is type(self.server),
            f"{type(self.algorithm).__name__}.server returned {type(server).__name__}: it returns a state as `init` "
            f"made it, {type(self.server).__name__}",
        )
        what = "state" if self.algorithm.model(server).finite() else "model"
        if what == "model" or not modest(server):  # what adaptive optimizers divide by is not in the model
            found, client, name = self.mean.largest
            raise NonFinite(
                f"round {key.round}: the server's {what} became NaN, infinite or larger than {MOST:.0e} (the largest "
                f"number it was sent is {found:.3g}, in {name} of client {client}); lower the server's lr, or clip"
            )
        return server, buffers if self.buffers is not None else None

    def finish(self, seconds: float, replies: int, lost: int, evaluate: bool) -> Record:
        """End the round that was published; returns its record. ``seconds`` are those of a simulated clock."""
        self.round, self.clock = self.round + 1, self.clock + seconds
        record = self._record(self.losses / self.examples if self.examples else None, replies, lost)
        self.by_client = None
        record |= self._lengths()
        record |= self._evaluate() if evaluate else {}
        record["seconds"] = time.perf_counter() - self.began
        self.records.append(record)
        return record

    # -- looking --------------------------------------------------------------

    def _record(self, loss: float | None, replies: int, lost: int) -> Record:
        up, down = self.ledger.of("up", self.round), self.ledger.of("down", self.round)
        both = ("up", up), ("down", down)
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
            **({} if self.private is None else {f"{e}_personal": sum(x.personal for x in of) for e, of in both}),
        }

    def _lengths(self) -> Record:
        """How long the replies were that counted, before they were shortened, and which bound they had."""
        if not self.norms:
            return {}
        found: Record = {"norms": quantiles(self.norms)}
        if self.clip is not None:
            found["clip"] = dict(self.bounds) if self.clip == "auto" else finite(self.clip)
            found["clipped"] = len({client for client, *_ in self.mean.clipped})
        if self.clip == "auto":
            self.lengths = following(self.lengths, self.norms)
        return found

    def _evaluate(self) -> Record:
        values: Record = {}
        if self.test is not None:
            found = self.pool.evaluate(*self.whose(None), self.test)
            values |= {"test_loss" if name == "loss" else name: value for name, value in found.items()}
            served = self.algorithm.served(self.server)
            if served is not None:
                found = self.pool.evaluate(served, self.whose(None).statistics, self.test)
                values |= {f"served_{name}": value for name, value in found.items()}
            here = self.clients_here or self.algorithm.at_server
            if here and predicts(self.algorithm) and not adapts(self.algorithm):
                values |= {f"predicted_{name}": value for name, value in self.evaluate_predictions(self.test).items()}
        values |= self.over_clients({client: self.tested(client) for client in range(len(self.client_tests))})
        return {name: finite(value) for name, value in values.items()}

    def evaluate_predictions(self, test: Task) -> Metrics:
        """Every metric of what the method predicts for examples of no named client: of FedSM by its selector."""
        return mean_metrics([sums(Predicting(self.result()), test, partial(self.slot.batch, test), 0, len(test))])

    def tested(self, client: int) -> Metrics:
        """What a client's test says."""
        shared = self.held(None) if self.algorithm.personal_models else None
        before, task = self.held(client), self.client_tests[client]
        own = self.adapted(client, before)
        return evaluate_models(
            lambda x, statistics: self.pool.evaluate(x, statistics, task), own, before, shared or before
        )

    def over_clients(self, found: Mapping[int, Metrics]) -> Record:
        """A record's fields of clients' tests. Each client's own values are the next line of ``clients.jsonl``."""
        values, by_client = over_clients(found, self.num_clients)
        self.by_client = {"round": self.round, **by_client} if found else None
        return values

    def owners_here(self) -> dict[str, int]:
        """The clients whose own models can be written down here, by the names of their files.

        Those that never took part have one model, of the name ``others``. A model that is made of its client's examples
        (``Algorithm.adapt``) has to be trained: it is written for clients with tests of their own, for which it is
        trained anyway.
        """
        if adapts(self.algorithm):
            return {str(client): client for client in range(len(self.client_tests) if self.clients_here else 0)}
        if not (self.personal and (self.clients_here or self.algorithm.at_server)):
            return {}
        known = dict.fromkeys(self.states.known())
        away = next((client for client in range(self.num_clients) if client not in known), None)
        return {str(client): client for client in known} | ({} if away is None else {"others": away})

    @property
    def personal(self) -> bool:
        """Whether clients have models, or norm statistics, of their own."""
        return self.algorithm.personal_models or self.algorithm.buffers == "local"

    def held(self, client: int | None) -> Model:
        """The model of a client, or for None the shared one, before it is adapted."""
        statistics = self.buffers if self.algorithm.buffers == "mean" else self.initial_buffers
        if client is None or not self.personal:
            kept = self.algorithm.statistics(self.server)
            return Model(self.algorithm.model(self.server), statistics if kept is None else kept)
        own, kept = self.own(client), self.algorithm.statistics(self.server, client)
        x = self.algorithm.model(self.server, client, own.state)
        return Model(x, statistics_of(self.algorithm, own, statistics) if kept is None else kept)

    def own(self, client: int) -> ClientState:
        """What a client keeps, as far as it is here."""
        return self.states.get(client).own

    def whose(self, client: int | None) -> Model:
        """The model of a client, or for None the shared one, and the norm statistics that it is evaluated with."""
        held = self.held(client)
        return held if client is None else self.adapted(client, held)

    def adapted(self, client: int, held: Model) -> Model:
        """A client's own model as the method makes it of what is held. Here it is that: examples are elsewhere."""
        return held

    def module(self, client: int | None = None) -> nn.Module:
        """A copy of the module as its user wrote it, with the model of :meth:`whose`, on the CPU."""
        with torch.inference_mode(False), torch.enable_grad():  # it may have to be trained
            return self.algorithm.finish(self.trained_module(self.whose(client)))

    def trained_module(self, model: Model) -> nn.Module:
        """A copy of the module as it is trained, with this model, on the CPU."""
        self.slot.load(model.x)
        self.slot.load_buffers(model.statistics)
        return copy.deepcopy(self.slot.module).to("cpu").eval()

    def result(self) -> Result:
        """The run so far."""
        shared, served = self.whose(None), self.algorithm.served(self.server)
        params, whole = shared.x.clone(), self.trained_module(shared)  # the caller's own
        beside, module = self.algorithm.beside(whole), self.algorithm.finish(whole)
        facts, path = {**self.facts(), "plan": self.plan}, None if self.folder is None else self.folder.path
        result = Result(self.algorithm, facts, list(self.records), self.ledger, params, module, path, beside=beside)
        if served is not None:
            result.served = self.algorithm.finish(self.trained_module(shared._replace(x=served)))
        if self.personal and (self.clients_here or self.algorithm.at_server):
            result.clients, result.own_module = self.num_clients, partial(self.module_at, self.round)
        return result

    def module_at(self, round: int, client: int) -> nn.Module:
        """:meth:`module` of a client, as long as the run stands where it stood after that round."""
        require(
            self.round == round,
            f"this result is of round {round}, and the run has made {self.round}: ask for clients' own models before "
            f"it goes on, or take its newest result",
        )
        return self.module(client)

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What, besides the algorithm, makes this run what it is."""

    # -- to disk and back -----------------------------------------------------

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be continued."""
        about = {**self.facts(), "device": self.slot.device.type}
        return {"method": complete(self.algorithm), **about, "model": self.model_digest, **self.data}

    @property
    @abstractmethod
    def data(self) -> dict[str, str | None]:
        """Digests of the data that are here."""

    def identity(self) -> str:
        """The fingerprint in short, for the checkpoint."""
        return hashlib.sha256(json.dumps(self.fingerprint()).encode()).hexdigest()[:32]

    def describe(self, folder: Folder, about: Record) -> None:
        """``run.json`` has the versions that the run was made with too."""
        folder.describe({**self.fingerprint(), "versions": versions(folder, about)})

    def rewind(self, folder: Folder, packet: Packet | None) -> None:
        """Lines after the checkpoint are cut off, and of those before it the digests are compared."""
        if packet is None:
            self.states.load({self.states.kind: {}})
        self.states.run = self.owner()
        self.records, text = folder.cut(self.round, None if packet is None else packet.get("lines"))
        try:
            self.ledger = Ledger.parse(text)
        except ValueError as error:
            raise RunError(f"{folder.path / 'ledger.jsonl'}: {error}") from error

    def enter(self, folder: Folder, record: Record) -> None:
        """A line of ``rounds.jsonl``, and those of the ledger and of clients' tests."""
        folder.append(record, self.ledger.lines(self.round), self.by_client)

    def owner(self) -> str:
        """Whose a client's file is."""
        return self.identity()

    def save(self, folder: Folder) -> None:
        """Write a checkpoint, with digests of the lines before it."""
        folder.save({**self.state(), "lines": folder.lines()})
        self.states.settle()  # only now: until then the checkpoint before refers to what is dropped

    def write(self, folder: Folder, result: Result) -> None:
        """The model, what the method has beside it, clients' own models, and the summary."""
        about = {"expression": complete(self.algorithm), "seed": str(self.seed)}
        served = {} if result.served is None else {"served": result.served}
        own = {f"personal/{name}": result.personal(client) for name, client in self.owners_here().items()}
        for name, module in {"model": result.module, **result.beside, **served, **own}.items():
            folder.model(module.state_dict(), about, name)
        folder.summary(result.summary())

    def state(self) -> dict[str, State]:
        """Everything, for a checkpoint."""
        return {"run": self.identity(), **self.carried(), "states": self.states.state()}

    def carried(self) -> dict[str, State]:
        """Everything but what is kept of clients."""
        return {
            "round": self.round,
            "clock": self.clock,
            "plan": self.plan,
            "server": self.server,
            "buffers": self.buffers,
            "stream": self.stream.state(),
            **({"norms": self.lengths} if self.clip == "auto" else {}),
        }

    def restore(self, packet: Packet) -> None:
        """Continue from what :meth:`state` gave, after bytes and back."""
        if packet["run"] != self.identity():
            raise WireError("it is the checkpoint of another run")
        if self.plan not in (None, packet["plan"]):
            raise RunError(f"this run began with plan={packet['plan']!r}: another one would move its last bits")
        self.carry(packet)
        self.states.load(packet["states"])

    def carry(self, packet: Packet) -> None:
        """Continue from what :meth:`carried` gave, after bytes and back."""
        self.round, self.clock, self.plan = packet["round"], packet["clock"], packet["plan"]
        self.server, self.buffers = restore(packet["server"], self.server), restore(packet["buffers"], self.buffers)
        self.stream.load(packet["stream"], Key(self.seed))
        self.lengths = packet.get("norms") or {}


def clippable(algorithm: Algorithm, form: Form) -> None:
    """Raise :class:`CombinationError` where ``clip`` would not bound what a reply does: see ``Algorithm.admit``."""
    inner = algorithm
    while isinstance(inner, Around):
        inner = inner.inner
    numbers = [leaf.name for leaf in form.leaves if leaf.link is None and leaf.blank is not None]
    if numbers and type(inner).admit is Algorithm.admit:
        raise CombinationError(
            f"clip= bounds fields of layers, and {type(inner).__name__}'s replies have {', '.join(numbers)}: give "
            f"{type(inner).__name__} a method `admit` that bounds what these do, or leave clip out"
        )
    if not any(leaf.link is not None and not leaf.statistics for leaf in form.leaves):
        raise CombinationError(
            f"clip= bounds fields of layers, and {type(inner).__name__}'s replies have none: leave clip out"
        )
