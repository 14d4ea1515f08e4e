"""The messages between the server of a deployment and its nodes."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from functools import partial

from flwr.serverapp import Grid

from ...errors import OutOfSync, WireError
from ...federated.ledger import Direction
from ...federated.question import LOSS
from ...federated.result import Record
from ..server import Deployment
from ..watch import Board
from .awake import Awake
from .chunks import CHUNK, Chunks
from .mail import Arrival, Mail
from .post import unpack
from .roster import Roster
from .transfer import FINAL, Transfer

SOON = 0.1  # seconds, at most, between two looks at what is to be sent
PROBE = 60.0  # seconds without a reply, after which a node that is there is asked its name
OVERTAKE = 30.0  # seconds by which a short reply may come before a long one that was made earlier
CHUNKS = "chunks"  # the folder of what has come of large answers

log = logging.getLogger("thinwire")


class Nodes(Roster):
    """The messages of a deployment: to its nodes, and what they answer."""

    def __init__(self, grid: Grid, run: Deployment, deadline: float, poll: float, board: Board | None = None) -> None:
        super().__init__(grid, run, deadline, poll, board)
        self.waiting: dict[str, tuple[int, float, Transfer | None]] = {}  # message -> client, when it was called
        self.questions: dict[str, int] = {}  # message -> client, of those that were sent last
        self.called: dict[int, float] = {}  # client -> when it was called last
        self.spare: dict[str, Arrival] = {}  # with a buffer, replies that came when that was full
        self.transfers: dict[int, Transfer] = {}  # client -> its newest call, where that or its answer may be large
        self.bills = dict[tuple[int, Direction], tuple[int, int]]()  # of this round's transfers: framing, retries
        self.calls: dict[int, bytes] = {}  # client -> its newest call, where that goes as one message
        self.probes = dict[str, tuple[int, float]]()  # message -> client, when it was asked for a sign of life
        self.probed: dict[int, float] = {}  # client -> the newest of these times
        self.alive: dict[int, tuple[float, float]] = {}  # client -> when it was asked so, and when it has answered
        self.lost: set[str] = set()  # messages without a transfer that were sent again
        self.answers = Mail(grid, poll)
        self.awake = Awake(self.wake)
        self.lossy: set[int] = set()  # clients that have not answered once: the way there is not what a rate says

    # -- a round --------------------------------------------------------------

    def step(self, evaluate: bool) -> Record:
        """One round, from the calls to its record."""
        self.round()
        self.show(force=True)
        if self.run.round + 1 == self.board.rounds:
            for client in list(self.transfers):
                self.abandon(client)
        for (client, way), (framing, retries) in self.bills.items():
            self.run.ledger.enter_framing(self.run.round + 1, client, way, framing, retries)
        resent = sum(retries for _, retries in self.bills.values())
        self.bills.clear()
        record = self.run.end(evaluate)
        if self.large(b""):
            record["resent_bytes"] = resent
        return record

    def bill(self, client: int, way: Direction, framing: int, retries: int = 0) -> None:
        """Note what has crossed beside a client's call and its answer."""
        before = self.bills.get((client, way), (0, 0))
        self.bills[client, way] = before[0] + framing, before[1] + retries

    def abandon(self, client: int) -> None:
        """Let go of a client's transfer, if there is one: what has come of its answer is of no use, and is billed."""
        transfer = self.transfers.pop(client, None)
        if transfer is not None and transfer.come:
            self.bill(client, "up", transfer.come)

    def round(self) -> None:
        """Call a cohort and hand in what it answers, until enough is there, nobody is left, or time is up."""
        self.lossy |= self.run.sent.keys() - self.run.flights.keys()
        messages = self.run.begin(self.muster())
        while messages or self.run.flights:
            self.board.begin([*messages, *self.run.flights])
            self.send_all(messages)
            self.wait()
            self.questions.clear()
            if self.run.asks_losses:
                for client in messages.keys() & self.transfers.keys():
                    self.abandon(client)
            messages = self.run.proceed()
            if not messages:
                break

    def send_all(self, messages: dict[int, bytes]) -> None:
        """Send each client its call, or its question."""
        began = time.monotonic()
        for client, data in messages.items():
            self.run.owners.setdefault(self.run.names[client], self.keys[self.nodes[client]])
            self.ask(client, data) if self.run.asking else self.call(client, data)
        self.awake.call(messages.keys(), began)

    def wait(self) -> None:
        """Hand in what is answered to what was sent last, until that is enough, nobody is left, or time is up."""
        look, end = 0.0, time.monotonic() + self.deadline
        while not self.run.full and self.out() and (self.run.flights or time.monotonic() < end):
            for client, transfer in list(self.transfers.items()):
                self.go_on(client)
                self.board.chunks[client] = transfer.progress
            for client in [c for c in self.run.flights if time.monotonic() > self.called.get(c, 0.0) + self.deadline]:
                self.run.lose(client)
            self.show()
            self.awake.go_on()
            if not self.collect() and time.monotonic() > look:
                self.enrol()
                self.probe()
                look = time.monotonic() + min(4 * self.poll, 1.0)
        self.awake.end()

    def notice(self) -> None:
        """Say to each transfer whether its node is there."""
        for client, transfer in self.transfers.items():
            transfer.note_presence(self.nodes[client] in self.online)

    def large(self, call: bytes) -> bool:
        """Whether a call, or an honest answer to it, goes in chunks: each is a message, so of two they save nothing."""
        return max(len(call), self.run.most // 2) > 2 * CHUNK

    def call(self, client: int, data: bytes) -> None:
        """Send a call. It outlives its round: a late answer may be of use.

        It is cut as if the server's uplink, which nobody measures, were as fast as the client's, for all together.
        """
        self.called[client] = time.monotonic()
        self.abandon(client)
        if self.large(data):
            self.transfers[client] = Transfer(data, self.run.most, self.chunks_of(client), partial(self.bill, client))
            self.go_on(client)
            return
        self.calls[client] = data
        self.send(client, data)

    def ask(self, client: int, data: bytes) -> None:
        """Send a question, whose answer is of use until the next messages are sent."""
        for sent in self.push(self.nodes[client], data):
            self.questions[sent] = client
            self.answers.expect(sent)

    def send(self, client: int, data: bytes, transfer: Transfer | None = None) -> list[str]:
        """Send a client a blob, whose reply is looked for; the number of the message, if it could be sent."""
        mbit = 0.0 if client in self.lossy else self.run.rate(client) / self.run.called
        mbit = max(mbit, 0.0 if transfer is None else transfer.rates["down"])
        messages = self.push(self.nodes[client], data, mbit)
        for sent in messages:
            self.waiting[sent] = client, time.monotonic(), transfer
            self.answers.expect(sent)
        return messages

    def go_on(self, client: int) -> None:
        """Send what is due of a transfer."""
        transfer = self.transfers[client]
        for about, data in transfer.due(self.run.rate(client)):
            messages = self.send(client, data, transfer)
            for sent in messages:
                transfer.note_sent(sent, about, len(data))
            if not messages:
                transfer.due_again(about)

    def chunks_of(self, client: int) -> Chunks:
        """Where the chunks of a client's answer are kept."""
        return Chunks(None if self.run.folder is None else self.run.folder.path / CHUNKS / str(client))

    def wake(self, client: int) -> None:
        """Send a client a message that asks nothing. Not on a slow link, where its requests, of some kB, take long."""
        rate = self.run.rate(client)
        if rate == 0.0 or rate >= 1.0:
            self.push(self.nodes[client], None)

    def out(self) -> bool:
        """Whether an answer to what was sent last may still come."""
        if self.run.asking:
            return bool(self.questions)
        if self.run.flights:
            return True
        now = self.run.round + 1
        called = {client for client, _, _ in self.waiting.values()} | self.transfers.keys()
        return any(self.run.sent[client].round == now for client in called & self.run.sent.keys())

    def collect(self) -> bool:
        """Hand in what arrives before the next look; whether anything has."""
        messages = self.spare or self.answers.wait(min(self.poll, SOON))
        self.spare = {}
        for sent, reply in messages.items():
            message = reply.message
            if self.run.setting.buffer is not None and self.run.full:
                self.spare[sent] = reply
                continue
            if sent in self.questions:
                self.hear(self.questions.pop(sent), reply)
                continue
            if sent in self.probes:
                client, asked = self.probes.pop(sent)
                if message is not None and not message.has_error():
                    self.alive[client] = asked, time.monotonic()
                continue
            if sent not in self.waiting:
                continue  # an answer to an earlier question
            client, since, transfer = self.waiting.pop(sent)
            if transfer is not None and transfer is not self.transfers.get(client):
                continue  # it was called again
            twins = self.twins(client, since)
            if message is None or message.has_error():
                if twins and transfer is None:
                    continue  # the same call was sent again, and may be answered
                why = "its message cannot be read" if message is None else message.error.reason
                if transfer is not None and message is not None and message.error.code not in FINAL:
                    log.info(
                        "client %d: a chunk of a transfer is sent again: %s", client, why, extra={"client": client}
                    )
                    transfer.lose(sent)
                    continue
                self.abandon(client)
                self.fail(client, why)
                continue
            sending = self.on_its_way(message)
            try:
                data: bytes | None = unpack(message.content, max(self.run.most, 2 * CHUNK))
                if transfer is not None and data is not None:
                    data = transfer.take(sent, data)
                    sending = None if transfer.since is None else time.monotonic() - transfer.since
            except WireError as error:
                log.warning("client %d sent no blob of ours: %s", client, error, extra={"client": client})
                data = b""  # which is refused, and counted, like any other
                self.abandon(client)
            if data is None:
                self.go_on(client)
                continue
            for sent in twins:
                del self.waiting[sent]
            self.transfers.pop(client, None)
            self.awake.answer(client, reply.seen)
            self.board.note(client, "refused")
            with contextlib.suppress(WireError):  # it is in the log and in the record
                try:
                    counts = self.take(client, data, time.monotonic() - since, sending)
                    self.board.note(client, "answered" if counts else "refused")
                except OutOfSync as error:
                    log.warning("%s: it is sent everything", error, extra={"client": client})
                    self.board.note(client, "called")
                    self.call(client, self.run.reopen(client))
        return bool(messages)

    def twins(self, client: int, since: float) -> list[str]:
        """Messages without a reply by which a client was called, if that which was sent then is its newest call."""
        newest = self.called.get(client, math.inf)
        if since < newest:
            return []
        return [m for m, (who, at, transfer) in self.waiting.items() if who == client and not transfer and at >= newest]

    def probe(self) -> None:
        """Ask a node that is there and has long not replied its name.

        A message that a node is sent in the moment in which its link is cut is lost, and neither Flower nor the node
        says so. A node takes one message after the other: where it says its name, and what it was sent before is
        still not answered ``OVERTAKE`` seconds later, that is lost.
        """
        now, oldest = time.monotonic(), dict[int, float]()
        for client, (asked, heard) in list(self.alive.items()):
            rate = self.run.rate(client) or math.inf
            if now - heard > OVERTAKE + 8e-6 * 2 * CHUNK / rate:  # the longest answer that is one message
                del self.alive[client]
                self.send_again(client, asked)
        for sent, (client, since, transfer) in self.waiting.items():
            if sent not in self.lost if transfer is None else sent in transfer.away:
                oldest[client] = min(since, oldest.get(client, now))
        for client, since in oldest.items():
            if self.nodes[client] in self.online and now - max(since, self.probed.get(client, since)) > PROBE:
                self.probed[client] = now
                for sent in self.push(self.nodes[client], b""):
                    self.probes[sent] = client, now
                    self.answers.expect(sent)

    def send_again(self, client: int, asked: float) -> None:
        """Send a client again what it was sent before this time, and has not replied to."""
        for sent, (who, since, transfer) in list(self.waiting.items()):
            if who != client or since >= asked or sent in self.lost:
                continue
            if transfer is not None:
                if sent in transfer.away:
                    transfer.lose(sent)
                continue
            self.lost.add(sent)
            if client in self.run.sent and self.run.sent[client].round == self.run.round + 1:
                log.info("client %d is called again: the message was lost", client, extra={"client": client})
                self.bill(client, "down", 0, len(self.calls[client]))
                self.send(client, self.calls[client])

    def take(self, client: int, data: bytes, seconds: float, sending: float | None) -> bool:
        """Hand in an answer, or what a client says of its loss; whether it counts."""
        if not data.startswith(LOSS):
            return self.run.accept(client, data, seconds, sending)
        self.run.hear_loss(client, data)
        return True

    def hear(self, client: int, reply: Arrival) -> None:
        """Hand in the answer to a question."""
        message = reply.message
        if message is None or message.has_error():
            self.fail(client, "its message cannot be read" if message is None else message.error.reason)
            return
        self.awake.answer(client, reply.seen)
        data = b""  # which is refused, like any other that is none
        with contextlib.suppress(WireError):
            data = unpack(message.content, CHUNK)
        with contextlib.suppress(WireError):  # it is in the log and in the record
            self.run.hear(client, data)

    def fail(self, client: int, why: str | None) -> None:
        """Note that a client does not answer."""
        self.run.lose(client)
        self.board.note(client, "failed")
        log.warning("client %d failed: %s", client, why, extra={"client": client})
