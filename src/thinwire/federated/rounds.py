"""The server's half of a run, whoever carries the messages: the simulator and a real deployment share it, loop and all.

A runner owns loops, means, storage, sampling, time and failure. It never looks inside a
state of an algorithm or a link.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from ..algorithms.base import Algorithm
from ..config import complete
from ..errors import NonFinite, RunError, WireError, require
from ..key import Key
from ..params import Params
from ..run.folder import Folder
from ..run.identity import model_digest, run_digest, versions
from ..run.loop import finite
from ..task import Task
from ..train.slot import Slot
from ..wire import MOST, Packet, Several, State, modest, restore
from .client import unheard
from .clip import Norms, Past, bounds, check_clippable, following, quantiles, whole
from .envelope import Answer, Call, Piece, key_of
from .evaluation import Evaluation
from .ledger import Direction, Entry, Ledger
from .letters import Letter, private, write_letter
from .mean import Mean
from .messages import Form, Message, forms
from .pool import Plan
from .question import Questions
from .result import Record, Result
from .ruled import Centres, Suspects, check_rule, rule_of
from .sampler import check_sampler, draw_clients
from .secure.run import Secured
from .setting import ClientsSetting
from .storage import ClientStates, Ends, Pending
from .stream import Parcel, Stream
from .views import Views, fewer


class Rounds(Evaluation):
    """A run between two rounds: what the server keeps, and what of it is recorded.

    A round begins with :meth:`publish` and ends with :meth:`finish`. In between its cohort is drawn
    (:meth:`draw_cohort`), each client of it is called (:meth:`call_to`) and its answer added (:meth:`add`), and the
    server makes its step (:meth:`serve`). A subclass carries calls and answers, and says what becomes of lost ones.
    """

    unit = "round"
    extends = True
    optional = ("cohort", "train", "clip", "aggregate", "expel", "buffer", "attack", "sampler")
    incarnation: int  # which of the runs of one digest, for the clients

    def __init__(
        self, algorithm: Algorithm, slot: Slot, num_clients: int, setting: ClientsSetting, test: Task | None
    ) -> None:
        seed, privacy, clip, known = setting.seed, setting.privacy, setting.clip, setting.start == "known"
        self.algorithm, self.slot, self.seed, self.test = algorithm, slot, seed, test
        self.num_clients, self.sample = num_clients, setting.cohort(num_clients)
        self.client_tests: Sequence[Task] = ()
        self.initial_buffers = slot.buffers()
        self.buffers = self.initial_buffers if algorithm.buffers == "mean" else None
        self.start = algorithm.init_with(slot.params(), self.initial_buffers, num_clients, Key(seed))
        self.server, self.known = self.start.server, known
        self.up, down = forms(algorithm, self.start, self.buffers)
        self.private = private(algorithm, self.start)
        self.pending = dict[int, Pending]()  # of calls of this round that are not answered yet
        self.privacy, self.secret = privacy, str(seed)  # of the noise
        self.clip = clip  # the norm that a field of a reply has at most
        self.bounds: dict[str, float] = {}  # with "auto": by field, of the newest round
        self.norms, self.lengths = list[Norms](), Past()  # of this round's replies, and with "auto" of those before
        if clip is not None:
            check_clippable(algorithm, self.up)
        self.rule, self.centres = rule_of(setting.aggregate), Centres()
        self.suspects, self.discount = Suspects(setting.expel, num_clients, self.rule), setting.discount
        if self.rule is not None:
            check_rule(self.rule, algorithm, self.up, setting.replies(num_clients))
        self.secured, self.shares = Secured.of(algorithm, self.up, setting, num_clients), dict[int, bytes]()
        self.sampler, self.questions = setting.sampler, Questions()
        check_sampler(self.sampler, algorithm, self.start, setting, num_clients, self.secured is not None)
        if privacy is not None:
            privacy.check(repr(algorithm), algorithm.weights, self.up.fields)
            self.clip = privacy.clip if privacy.clip < math.inf and self.secured is None else None
        self.stream = self._downlink(down)
        self.model_digest = model_digest(slot.module)
        self.digest = run_digest(algorithm, self.model_digest, seed, num_clients, known)
        self.states = ClientStates(self.ends)
        self.round, self.clock, self.ledger, self.records = 0, 0.0, Ledger(), list[Record]()
        self.plan: Plan | None = None
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

    def downlink_fact(self) -> dict[str, str]:
        """The form of the downlink, as a fact of the run, where the method's links leave it open."""
        form = self.stream.form
        return {"downlink": "per client" if self.apart else "stream"} if form.per_client and form.auto else {}

    def private_end(self) -> State:
        """The sending ends of `personal` before a client's first message."""
        return None if self.private is None else self.private.open()[0]

    # -- a round --------------------------------------------------------------

    def gather(self) -> None:
        """Begin to add replies."""
        self.mean = Mean(self.up, self.bounds if self.clip == "auto" else self.clip, self.rule, self.centres)
        self.losses, self.examples, self.replied = 0.0, 0, set[int]()

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
        self.norms, self.questions = [], Questions()
        self.gather()
        return key

    def draw_cohort(self, key: Key, available: Iterable[int] | None = None, count: int | None = None) -> list[int]:
        """``count`` (None: ``sample``) of the clients that are there (None: all) and not expelled, or who is asked."""
        order = torch.randperm(self.num_clients, generator=key.generator("sample"), device="cpu")
        if self.suspects.expelled:
            order = order[~torch.isin(order, torch.tensor(self.suspects.expelled, device="cpu"))]
        if available is not None:
            order = order[torch.isin(order, torch.tensor(sorted(available), dtype=torch.int64, device="cpu"))]
        sizes = () if self.sampler is None else self.sizes()
        return draw_clients(self.sampler, order.tolist(), self.sample if count is None else count, sizes, key)

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
        parcel, own = parcel or self.parcel(client), self.letter(client, base)
        parcel = parcel if own is None else parcel._replace(own=own)
        if self.apart or parcel.own is not None:
            self.pending[client] = Pending(None if parcel.own is None else parcel.own.tx, parcel.end)
        pieces = [Piece(m.round, m.blob) for m in parcel.messages]
        pieces += [] if parcel.own is None else [Piece(number, parcel.own.blob)]
        about = self.digest, self.incarnation, self.seed, self.num_clients, client, number, base, self.rate(client)
        state, shares = self.mark_of(client, base), self.shares.get(client, b"")
        return Call(*about, parcel.snapshot, Several(pieces, Piece(0, b"")), state, shares), parcel

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
        own = self.up.own_part(blob) if blob and self.private is not None else 0
        self.ledger.add(Entry(self.round + 1, client, "up", len(blob), framing, 0, floats, used, own))

    def add(self, answer: Answer, body: Packet, rx: State, late: bool = False) -> State:
        """Take an answer, whose blob is ``body``, into the mean; returns the receiving ends' next states.

        Raises ``WireError``, naming round and client.
        """
        key, examples = self.at(answer.client, answer), answer.examples
        weight = self.algorithm.weigh(examples)
        try:
            admit, discount = partial(self.admit, examples), self.discount(self.round + 1 - answer.round)
            rx = self.mean.add(answer.client, weight, body, rx, key, late, admit, discount)
        except WireError as error:
            raise WireError(f"round {key.round}, client {key.client}: {error}") from error
        self.replied.add(answer.client)
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
        self.server, self.buffers = self.next_server(key)
        if self.mean.ruled is not None and self.mean.enough:
            self.centres = self.mean.ruled.centres

    def next_server(self, key: Key) -> tuple[State, Params | None]:
        """The server's state and the buffers after the replies that were added. Raises :class:`NonFinite`."""
        if not self.mean.enough:
            return self.server, self.buffers
        mean, buffers = self.mean.result(key)
        if self.privacy is not None and self.secured is None:  # else it is in the sum
            values = [self.privacy.hide(x, self.mean.whole, self.secret, key.round) for x in self.up.values(mean)]
            mean, buffers = self.up.build(values)
        server = self.algorithm.server(self.server, self.stream.view.state, mean, key)
        require(
            type(server) is type(self.server),
            f"{type(self.algorithm).__name__}.server returned {type(server).__name__}: it returns a state as `init` "
            f"made it, {type(self.server).__name__}",
        )
        what = "state" if self.algorithm.model(server).finite() else "model"
        if what == "model" or not modest(server):  # what adaptive optimizers divide by is not in the model
            size, client, name = self.mean.largest
            raise NonFinite(
                f"round {key.round}: the server's {what} became NaN, infinite or larger than {MOST:.0e} (the largest "
                f"number it was sent is {size:.3g}, in {name} of client {client}); lower the server's lr, or clip"
            )
        return server, buffers if self.buffers is not None else None

    def finish(self, seconds: float, called: int, lost: int, evaluate: bool) -> Record:
        """End the round, after simulated ``seconds``: of ``called`` clients ``lost`` have no reply that counts."""
        self.round, self.clock = self.round + 1, self.clock + seconds
        self.questions.enter(self.ledger, self.round)
        record = self._record(self.losses / self.examples if self.examples else None, called, lost)
        self.by_client = None
        record |= self.questions.record() | self._lengths() | self.suspects.judge(self.mean.ruled, self.replied)
        record |= self.evaluate() if evaluate else {}
        record["seconds"] = time.perf_counter() - self.began
        self.records.append(record)
        return record

    # -- looking --------------------------------------------------------------

    def _record(self, loss: float | None, called: int, lost: int) -> Record:
        ways: tuple[Direction, ...] = () if self.private is None else ("up", "down")
        return {
            "round": self.round,
            "train_loss": loss,
            "clients": called,
            "lost_replies": lost,
            **self.ledger.sums(self.round),
            "clock": self.clock,
            **{f"{way}_personal": sum(e.personal for e in self.ledger.of(way, self.round)) for way in ways},
        }

    def _lengths(self) -> Record:
        """How long the replies were that counted, before they were shortened, and which bound they had."""
        if not self.norms:
            return {}
        record: Record = {"norms": quantiles(self.norms)}
        if self.clip is not None:
            record["clip"] = dict(self.bounds) if self.clip == "auto" else finite(self.clip)
            record["clipped"] = len({client for client, *_ in self.mean.clipped})
        if self.clip == "auto":
            self.lengths = following(self.lengths, self.norms)
        return record

    # -- to disk and back -----------------------------------------------------

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be continued."""
        about = {**self.facts(), "device": self.slot.device.type}
        return {"method": complete(self.algorithm), **about, "model": self.model_digest, **self.data}

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
            folder.module(module, about, name)
        folder.summary(result.summary())

    def state(self) -> dict[str, State]:
        """Everything, for a checkpoint."""
        return {"run": self.identity(), **self.shared_state(), "states": self.states.state()}

    def shared_state(self) -> dict[str, State]:
        """Everything but what is kept of clients."""
        return {
            "round": self.round,
            "clock": self.clock,
            "plan": self.plan,
            "server": self.server,
            "buffers": self.buffers,
            "stream": self.stream.state(),
            **({"norms": self.lengths} if self.clip == "auto" else {}),
            **({"centres": self.centres} if self.centres else {}),
            **self.suspects.state(),
        }

    def restore(self, packet: Packet) -> None:
        """Continue from what :meth:`state` gave, after bytes and back."""
        if packet["run"] != self.identity():
            raise WireError("it is the checkpoint of another run")
        if self.plan not in (None, packet["plan"]):
            raise RunError(f"this run began with plan={packet['plan']!r}: another one would move its last bits")
        self.restore_shared(packet)
        self.states.load(packet["states"])

    def restore_shared(self, packet: Packet) -> None:
        """Continue from what :meth:`shared_state` gave, after bytes and back."""
        self.round, self.clock, self.plan = packet["round"], packet["clock"], packet["plan"]
        self.server, self.buffers = restore(packet["server"], self.server), restore(packet["buffers"], self.buffers)
        self.stream.load(packet["stream"], Key(self.seed))
        self.lengths, self.centres = packet.get("norms") or {}, packet.get("centres") or {}
        self.suspects.load(packet)
