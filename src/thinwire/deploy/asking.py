"""The questions of a round of a deployment: what its server sends, hears and chooses by."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ..errors import OutOfSync, WireError, check
from ..federated.envelope import SMALL, read_answer
from ..federated.question import LOSS, QUESTION, write_go
from ..federated.sampler import choose_clients
from ..federated.secure.trips import Gathering
from ..wire import Packet, State
from .state import DeploymentState, Sent

log = logging.getLogger("thinwire")


class Asking(DeploymentState):
    """A run whose clients are elsewhere, and may be asked for their losses before some of them are called."""

    most_examples: list[int]  # that each client is believed to have; empty: any number
    gathering: Gathering | None  # the questions of a secure sum, in the round that is under way
    taken: Mapping[int, Any]  # client -> its answer to this round's call, where that was accepted

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asks_losses = False  # whether calls are questions now
        self.heard: dict[int, int] = {}  # the examples of each client, as its newest answer said
        self.sent: dict[int, Sent] = {}
        self.refused, self.lost = 0, set[int]()  # in this round: answers, and clients whose answers are lost

    @property
    def asking(self) -> bool:
        """Whether what was sent last are questions of a secure sum."""
        return self.gathering is not None and self.gathering.trip != "call"

    def hear(self, client: int, data: bytes) -> None:
        """Take an answer to such a question. Raises ``WireError`` where it is none; then nothing has changed."""
        self._check_client(client)
        assert self.gathering is not None
        try:
            self.gathering.hear(client, data)
        except WireError as error:
            raise self.refuse(client, error) from error

    def proceed(self) -> dict[int, bytes]:
        """What is sent next in this round, when what was sent before has its answers; nothing where that was all."""
        if self.asks_losses:
            return self.choose_called()
        gathering = self.gathering
        if gathering is None or gathering.trip == "reveal":
            return {}
        if gathering.trip == "keys":
            return gathering.ask_shares()
        if gathering.trip == "shares":
            self.shares = gathering.close()
            return {client: self.call(client) for client in self.shares}
        return gathering.ask_secrets(self.taken)

    @abstractmethod
    def call(self, client: int) -> bytes:
        """What a client is sent in this round."""

    @property
    def asks(self) -> bool:
        """Whether a round begins with questions."""
        return self.sampler is not None and self.sampler.asks

    def sizes(self) -> list[int]:
        """What clients' newest answers said; of one that has not answered, the mean of the others."""
        usual = max(round(sum(self.heard.values()) / len(self.heard)), 1) if self.heard else 1
        return [self.heard.get(client, usual) for client in range(self.num_clients)]

    def question_of(self, client: int, call: bytes) -> bytes:
        """A call as a question, whose word is billed."""
        self.questions.bill(client, "down", len(QUESTION))
        return QUESTION + call

    def hear_loss(self, client: int, data: bytes) -> None:
        """Take what a client says of its loss.

        Where a sampler asks, one that is said twice or too late is dropped, as an answer is. Raises ``WireError`` where
        it is no answer to what the client was asked, and :class:`OutOfSync` where the client does not hold the base: it
        is to be opened anew.
        """
        self._check_client(client)
        self.questions.bill(client, "up", len(data))
        try:
            check(data.startswith(LOSS), "an answer to a question")
            answer, sent = read_answer(data[len(LOSS) :], SMALL), self.sent.get(client)
            about = answer.run, answer.incarnation, answer.client
            check(about == (self.digest, self.incarnation, client), "an answer of this run and of this client")
            late = sent is None or answer.round < sent.round
            if self.asks and (late or not self.asks_losses):  # an honest client may be slow, and its transport repeat
                log.info("client %d says its loss too late: it is dropped", client, extra={"client": client})
                return
            check(self.asks_losses, "an answer to a question")
            check(sent == (answer.round, answer.base, answer.mbit, answer.call), "an answer to the newest question")
            check(not answer.blob, "a loss alone")
            check(answer.held or answer.base > 0, "an answer of a client that was opened anew")
            most = self.most_examples[client] if self.most_examples else answer.examples
            check(answer.examples <= most, f"at most {most} examples, as are believed,")
        except Exception as error:
            raise self.refuse(client, error, "what client %d says of its loss") from error
        if not answer.held:
            raise OutOfSync(f"client {client} does not hold what it held after round {answer.base}")
        self.questions.losses[client], self.heard[client] = answer.loss, answer.examples

    def choose_called(self) -> dict[int, bytes]:
        """End the questions: what those are sent that take part. For the others it is as if they were not called."""
        assert self.sampler is not None
        chosen, now = choose_clients(self.sampler, self.questions.losses, self.sample), self.round + 1
        for client in [client for client, sent in self.sent.items() if sent.round == now and client not in chosen]:
            del self.sent[client]
            self.pending.pop(client, None)
        self.asks_losses, self.called = False, len(chosen)
        words = {client: write_go(self.sent[client].call) for client in chosen}
        for client, word in words.items():
            self.questions.bill(client, "down", len(word))
        return words

    def refuse(self, client: int, error: Exception, what: str = "an answer of client %d") -> WireError:
        """Note that an answer was refused; the error that says so."""
        self.refused += 1
        self.suspects.refused.add(client)
        self.lose(client)
        text = f"round %d: {what} was refused: %s"
        log.warning(text, self.round + 1, client, error, extra={"client": client})
        return WireError(f"round {self.round + 1}, client {client}: {error}")

    def lose(self, client: int) -> None:
        """With a buffer: a client's answer is not waited for any more, so it may be called again."""
        if self.flights.pop(client, None) is not None:
            self.lost.add(client)

    def state(self) -> dict[str, State]:
        """With a sampler also how many examples clients have said that they have."""
        state = super().state()
        return state if self.sampler is None else {**state, "heard": self.heard}

    def restore(self, packet: Packet) -> None:
        super().restore(packet)
        self.heard = packet.get("heard") or {}
