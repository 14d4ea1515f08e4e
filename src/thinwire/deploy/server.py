"""The server of clients that are elsewhere: what it calls out, what it accepts, what it makes of it.

It knows nothing of the transport, which brings bytes and says which client they are from.
An answer is checked when it arrives, counts from :meth:`Deployment.end` on, and is
acknowledged in the next call to its client, after a checkpoint. Nothing that a client sends
changes anything but that client's share of the mean.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from ..algorithms.base import Algorithm
from ..algorithms.runnable import check_runnable
from ..errors import OutOfSync, RunError, ThinwireError, WireError, check, require, require_whole
from ..federated.buffered import check_late
from ..federated.clip import Norms
from ..federated.envelope import Answer, mark, read_answer
from ..federated.ledger import Entry
from ..federated.network import measure_rate
from ..federated.own_tests import unpack_metrics
from ..federated.pool import Pool, Work
from ..federated.result import Record
from ..federated.sampler import check_cohort
from ..federated.secure.exchange import Secrets
from ..federated.secure.trips import Gathering
from ..federated.storage import ClientStates, Disk, Ends, Unreadable
from ..key import Key
from ..task import as_task
from ..train.slot import Slot, make_module
from ..wire import Packet
from .asking import Asking
from .limits import find_usable, honest_sizes, warn_of_clipped, warn_of_weight
from .setting import Setting
from .state import Sent

log = logging.getLogger("thinwire")


class Taken(NamedTuple):
    """An answer that was accepted."""

    answer: Answer
    body: Packet
    norms: Norms


class Deployment(Asking):
    """A run between two rounds, whose clients are elsewhere.

    ``clients`` is how many there are. ``setting`` is a :class:`~thinwire.deploy.setting.Setting`. Other keywords
    (``sample=10``, ``clip="auto"``) replace its fields. ``test`` is evaluated as in :func:`thinwire.simulate`; a model
    with buffers needs it, to see which of them training moves. With ``states``, a folder, what is kept of every client
    lies there between its rounds.

    Clients that have tests of their own (``Node(test=...)``) send what these say with their answers to this round. The
    record has it as ``client_accuracy`` and so on, over the ``evaluated_clients`` alone, of the models with which the
    round began. These are clients' own words.

    A reply to an earlier round is used if the method allows it (``Algorithm.late``) and its
    client was not called again; else it is dropped, and the record counts it. With a ``buffer`` no client is called
    again before it has answered, or :meth:`lose` says that its answer is lost.

    Where replies are added in secret, :meth:`begin` gives questions in place of calls, whose answers are for
    :meth:`hear`, and :meth:`proceed` what is sent next.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module | Callable[[], nn.Module],
        clients: int,
        setting: Setting = Setting(),
        *,
        test: Any = None,
        states: str | Path | None = None,
        **fields: Any,
    ) -> None:
        check_runnable(algorithm)
        require_whole(clients=clients)
        require(clients > 0, f"clients={clients}: there must be at least one")
        setting = Setting.of(setting, fields)
        self.setting = setting
        self.first, self.most_examples, self.mbit = setting.first(clients), setting.most_of_each(clients), setting.mbit
        module = model if isinstance(model, nn.Module) else make_module(model, setting.seed)
        slot, self.optional_facts = Slot(algorithm.assemble(module, clients), setting.device), setting.optional_facts()
        tested = None if test is None else as_task(test, floats=slot.layout.dtype)
        if tested is not None:
            require(len(tested) > 0, "the test set has no examples")
        slot.probe([] if tested is None else [tested], trains=False)
        super().__init__(algorithm, slot, clients, setting, tested)
        if setting.buffer is not None:
            check_late(setting.buffer, algorithm)
        self.late = algorithm.late and self.secured is None  # whether replies to earlier rounds are of use
        self.secret = secrets.token_hex(32)  # clients are told the seed
        self.unanswered = ClientStates(self._sent_ends)  # what `pending` was at the end of the round of a call
        if states is not None:
            kept = Path(states)
            self.states, self.unanswered = Disk(self.ends, kept), Disk(self._sent_ends, kept / "unanswered")
        self.pool = Pool(slot, 1, Work(algorithm, self.up, (), self.stream.view, self.ends().own))
        self.incarnation = secrets.randbits(61) | 1 << 61
        self.names: list[str] = []  # of the clients, where they have some
        self.owners: dict[str, str | None] = {}  # whose key may say a name; None: anybody's
        self.marks: dict[int, int] = {}  # of what each client holds after its newest answer that was taken
        self.rates: dict[int, float] = {}  # Mbit/s, upwards, as measured
        self.taken: dict[int, Taken] = {}
        self.key: Key | None = None  # of the round that is under way
        self.gathering: Gathering | None = None  # of the round that is under way
        self.secrets: Secrets | None = None
        self.flights, self.again = dict[int, bytes](), dict[int, bytes]()
        self.dropped = 0

    @property
    def most(self) -> int:
        """Bytes that no honest answer has: twice what dense noise takes."""
        return self._sizes[0]

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        return honest_sizes(self.up, Key(self.seed))

    # -- a round --------------------------------------------------------------

    def begin(self, available: Iterable[int] | None = None) -> dict[int, bytes]:
        """Begin a round with those of the sampled clients that are there; what to send them: calls, or questions."""
        require(self.key is None, "the round before has not ended")
        if available is not None and (available := list(available)):
            check_cohort(available, self.num_clients, "available")
        self.key = self.publish()
        self.taken, self.refused, self.dropped, self.lost = {}, 0, 0, set()
        self.gathering, self.secrets, self.shares = None, None, {}
        if self.setting.buffer is not None:
            return self._begin_more(self.key, available)
        cohort = self.draw_cohort(self.key, available)
        self.called = len(cohort)
        if self.secured is None:
            self.asks_losses = self.asks
            return {client: self.call(client) for client in cohort}
        try:
            self.gathering = Gathering.of(self, self.secured, cohort)
        except ValueError as error:
            log.warning("round %d has no replies: %s", self.key.round, error)
            return {}
        return self.gathering.ask_keys()

    def _begin_more(self, key: Key, available: Iterable[int] | None) -> dict[int, bytes]:
        """Calls to as many as have ended their training, and those again that a server before this one has sent."""
        there = set(range(self.num_clients)) if available is None else set(available)
        for client in self.again.keys() - there:
            self.lose(client)
        again, self.again = {client: data for client, data in self.again.items() if client in there}, {}
        for client, data in again.items():
            self.ledger.add(Entry(key.round, client, "down", 0, 0, len(data)))
        cohort = self.draw_cohort(key, there - self.flights.keys(), self.sample - len(self.flights))
        calls = again | {client: self.call(client) for client in cohort}
        self.called = max(len(self.flights), 1)
        return calls

    def call(self, client: int) -> bytes:
        """What a client is sent in this round: a call to train from what it acknowledged."""
        self._key()  # raises where no round has begun
        self._check_client(client)
        try:
            call, parcel = self.call_to(client)
        except Unreadable as error:
            self._forget(client, error)
            call, parcel = self.call_to(client)
        data = call.write()
        self.sent[client] = Sent(call.round, call.base, call.mbit, mark(data))
        if self.setting.buffer is not None:
            self.flights[client] = data
        self.enter_call(client, parcel, len(data) - parcel.size)
        return self.question_of(client, data) if self.asks_losses else data

    def reopen(self, client: int) -> bytes:
        """Forget what was kept of a client, which is out of step, and call it with one full message."""
        self._check_client(client)
        self._forget(client)
        return self.call(client)

    def accept(self, client: int, data: bytes, seconds: float | None = None, sending: float | None = None) -> bool:
        """Check an answer and keep it for the mean; False where it comes too late to be of use.

        ``seconds`` are those since the client was called, from which its uplink is measured, and
        ``sending`` those that the answer was on its way at most, where that is known.
        Raises ``WireError`` where it is no answer to what this client was asked, and
        :class:`OutOfSync` where the client does not hold the base, or the server cannot read what it kept of the
        client: :meth:`reopen` it. Either way nothing has changed.
        """
        key = self._key()
        self._check_client(client)
        try:
            answer = read_answer(data, self.most)
            check((answer.run, answer.incarnation) == (self.digest, self.incarnation), "an answer of this run")
            check(answer.client == client, f"an answer of client {client}, not of {answer.client},")
            check(answer.round <= key.round, "an answer to a round that has begun")
            sent = self.sent.get(client)
            if sent is None or answer.round < sent.round:
                return self._drop(client, data, answer, "it was called again, or has answered")
            check(sent == (answer.round, answer.base, answer.mbit, answer.call), "an answer to the newest call")
            late = sent.round < key.round
            if (late and not (self.late and answer.held)) or self.asking:
                self._land(client)
                return self._drop(client, data, answer, "it is too late to be of use")
            if self.asks_losses and not late:
                return self._drop(client, data, answer, "those who take part are not chosen yet")
            if not answer.held:
                check(sent.base > 0, "an answer of a client that was opened anew")
                self.enter_answer(client, b"", len(data), used=False)
                raise OutOfSync(f"client {client} does not hold what it held after round {sent.base}")
            if self.most_examples and answer.examples > self.most_examples[client]:
                raise WireError(f"{answer.examples} examples, of which {self.most_examples[client]} are believed")
            body = self.up.read(answer.blob, max_bytes=self.most, max_values=self._sizes[1])
            try:
                rx = self.states.get(client).rx
            except Unreadable as error:
                self._forget(client, error)
                if late:
                    self._land(client)
                    return self._drop(client, data, answer, "the server cannot read what it kept of this client")
                self.enter_answer(client, b"", len(data), used=False)
                raise OutOfSync(f"client {client} has to be opened anew: the server lost what it kept of it") from error
            self.check_layers(self.at(client, answer), body)
            reply = self.mean.check(body, rx, self.at(client, answer))
            norms = Norms()
            if self.secured is None:  # else it is hidden
                self.admit(answer.examples, reply)
                norms = self.up.norms(self.up.values(reply), self.clip == "auto")
            floats = self.up.floats(body)
            unpack_metrics(answer.metrics)  # which checks them
        except OutOfSync:
            raise
        except Exception as error:  # not WireError alone: what a link overlooks must not take the server with it
            self.enter_answer(client, b"", len(data), used=False)
            raise self.refuse(client, error) from error
        self.enter_answer(client, answer.blob, len(data) - answer.payload, floats)
        self.heard[client] = answer.examples
        self.taken[client] = Taken(answer, body, norms)
        self._land(client)
        if seconds is not None:
            away = min(seconds - answer.seconds, math.inf if sending is None else sending)
            rate = measure_rate(self.rates.get(client), len(data), away)
            self.rates |= {} if rate is None else {client: rate}
        return True

    def _land(self, client: int) -> None:
        """Its answer is here."""
        del self.sent[client]
        self.flights.pop(client, None)
        self.lost.discard(client)

    @property
    def full(self) -> bool:
        """Whether as many answers to what was sent last are there as count."""
        now = self._key().round
        if self.setting.buffer is not None:
            return len(self.taken) >= min(self.first, len(self.taken) + len(self.flights))
        if self.asks_losses:
            return len(self.questions.losses) >= self.called
        if self.gathering is not None and self.asking:
            return self.gathering.complete
        called = self.called if self.gathering is None else len(self.shares)
        return sum(taken.answer.round == now for taken in self.taken.values()) >= min(self.first, called)

    def end(self, evaluate: bool = True) -> Record:
        """Average what was accepted and make the server's step; returns the round's record."""
        key = self._key()
        now = [client for client, taken in self.taken.items() if taken.answer.round == key.round]
        clients = sorted(self.taken)
        if self.secured is not None:
            clients = self._uncover(clients)
        self.bind([self.taken[client].norms for client in clients])
        try:
            moved = self._serve(clients)
        except Exception:  # not NonFinite alone: what the checks overlook must not take the round with it
            moved = self._mend(clients)
        self.norms = [self.taken[client].norms for client in moved if self.secured is None]
        if not self.privacy:  # what is meant to be clipped is no news
            warn_of_clipped(self.mean, key.round)
        if not self.most_examples and self.algorithm.weights == "examples":
            warn_of_weight({client: self.taken[client].answer.examples for client in moved}, key.round)
        for client, ends in moved.items():
            self.states.commit(client, ends)
            self.marks[client] = self.taken[client].answer.state
            self.pending.pop(client, None)
            self.unanswered.drop(client)
        for client, (tx, down) in self.pending.items():
            if self.late and client in self.sent:  # else no later answer is of use
                self.unanswered.commit(client, self._sent_ends()._replace(version=key.round, tx=tx, down=down))
        self.pending.clear()
        used = len([client for client in now if client in moved])
        called = self.called if self.setting.buffer is None else len(moved) + len(self.lost)
        lost = called - used if self.setting.buffer is None else len(self.lost)
        steps = sorted(key.round - self.taken[client].answer.round for client in moved)
        record = self.finish(0.0, called, lost, evaluate)
        record |= {} if self.setting.buffer is None else {"staleness": steps, "in_flight": len(self.flights)}
        record |= {"late_replies": len(moved) - used, "dropped_replies": self.dropped, "refused_replies": self.refused}
        answers = {client: self.taken[client].answer for client in sorted(now) if client in moved}
        metrics_of = {client: unpack_metrics(answer.metrics) for client, answer in answers.items() if answer.metrics}
        record |= self.over_clients(metrics_of) | ({"evaluated_clients": len(metrics_of)} if metrics_of else {})
        self.key = None
        return record

    def _serve(self, clients: list[int]) -> dict[int, Ends]:
        """Make the server's step with the answers of these clients; their next ends. If it raises, nothing moved."""
        moved = self._add(clients)
        if self.secured is not None and self.secrets is not None:
            if len(moved) < len(clients):
                raise RunError("the server lost what it kept of a client, whose reply is in the sum")
            self.secured.uncover(self.mean, self.secrets)
        self.serve(self._key())
        return moved

    def _uncover(self, clients: list[int]) -> list[int]:
        """Learn what takes the masks off the sum of the clients' replies; none of them where too few are left."""
        if self.gathering is None:
            return []
        self.gathering.enter(self.ledger)
        self.secrets = self.gathering.secrets() if self.gathering.trip == "reveal" else None
        if self.secrets is None:
            log.warning("round %d: too few clients are left, and nobody learns the sum", self._key().round)
        return clients if self.secrets else []

    def _add(self, clients: list[int]) -> dict[int, Ends]:
        """Begin the mean anew with the answers of these clients; their next ends."""
        key, moved = self._key(), dict[int, Ends]()
        self.gather()
        for client in [client for client in clients if client in self.taken]:
            answer, body, _ = self.taken[client]
            try:
                ends, pending = self.states.get(client), self.after_call(client)
            except Unreadable as error:
                self._forget(client, error)
                del self.taken[client]  # it says nothing without what was kept
                continue
            rx = self.add(answer, body, ends.rx, late=answer.round < key.round)
            moved[client] = Ends(answer.round, rx, self.ends().own, *pending)
        return moved

    def _mend(self, clients: list[int]) -> dict[int, Ends]:
        """The server's step without those whose answers it cannot use; the others' next ends."""
        usable = clients if self.secured is not None else find_usable(clients, self._try, self._refuse)
        try:
            return self._serve(usable)
        except Exception:  # each half will do, and all together will not
            log.exception("round %d: the server could not use the answers of clients %s", self._key().round, usable)
            self.gather()
            return {}

    def _try(self, clients: list[int]) -> None:
        self._add(clients)
        self.next_server(self._key())

    def _refuse(self, client: int, error: Exception) -> None:
        self.refused += 1
        self.suspects.refused.add(client)
        raised = None if isinstance(error, ThinwireError) else error  # of another the log shows where it was raised
        text = "round %d: the answer of client %d was refused, the server cannot use it: %s"
        log.warning(text, self._key().round, client, error, exc_info=raised, extra={"client": client})

    def _drop(self, client: int, data: bytes, answer: Answer, why: str) -> Literal[False]:
        text = "an answer of client %d to round %d is dropped: %s"
        log.warning(text, client, answer.round, why, extra={"client": client})
        self.dropped += 1
        self.enter_answer(client, answer.blob, len(data) - answer.payload, used=False)
        return False
