"""What the server of clients that are elsewhere keeps, on disk and back."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, NamedTuple

from ..config import complete
from ..errors import require
from ..federated.client import ClientState
from ..federated.rounds import Rounds
from ..federated.storage import ClientStates, Ends, Pending, Unreadable
from ..key import Key
from ..links.base import octets
from ..run.folder import Folder
from ..run.identity import data_digest
from ..wire import Packet, State, restore
from .setting import Setting

STATE_FIELDS = ("incarnation", "names", "sent", "rates", "secret", "marks", "owners")  # in a checkpoint, as they are

log = logging.getLogger("thinwire")


class Sent(NamedTuple):
    """The newest call to a client, until it is answered."""

    round: int
    base: int
    mbit: float
    call: int  # its mark


class DeploymentState(Rounds):
    """A run between two rounds, whose clients are elsewhere, as a checkpoint has it."""

    setting: Setting
    first: int  # how many answers of a round count
    optional_facts: dict[str, Any]
    unanswered: ClientStates  # what `pending` was at the end of the round of a call
    sent: dict[int, Sent]
    marks: dict[int, int]  # of what each client holds after its newest answer that was taken
    rates: dict[int, float]  # Mbit/s, upwards, as measured
    mbit: float | None  # what all are said to carry
    key: Key | None  # of the round that is under way
    flights: dict[int, bytes]  # with a buffer, the calls that clients are at work on
    again: dict[int, bytes]  # and those of them that a server before this one has sent

    def ends(self) -> Ends:
        """The server's end of a client's wire before its first reply."""
        return Ends(0, self.up.open()[1], ClientState(None, None, None), self.private_end(), self.stream.end)

    def _sent_ends(self) -> Ends:
        """What is kept of a call that is not answered: the sending ends alone."""
        return self.ends()._replace(rx=None)

    def own(self, client: int) -> ClientState:
        """What a client keeps, none of which is here."""
        return self.ends().own

    def rate(self, client: int) -> float:
        """A client's uplink in Mbit/s; 0 where it is not known."""
        return float(max(self.rates.get(client, 0.0), self.mbit or 0.0))

    def mark_of(self, client: int, base: int) -> int:
        """The mark of what a client holds after its newest answer that was taken; 0 before its first."""
        return self.marks.get(client, 0)

    def after_call(self, client: int) -> Pending:
        """The sending ends that are committed with the answer to a client's newest call."""
        if client in self.pending:
            return self.pending[client]
        ends = self.unanswered.get(client)
        return Pending(ends.tx, ends.down)

    def _forget(self, client: int, error: Unreadable | None = None) -> None:
        """Open the pair of a client anew. ``error`` is what is wrong with what was kept of it here, if that is why."""
        if error is not None:
            log.error(
                "round %d: the server lost what it kept of client %d, which is not the client's fault; the client is "
                "opened anew: %s",
                *(self._key().round, client, error),
            )
        self.states.commit(client, self.ends())
        self.unanswered.drop(client)
        self.marks.pop(client, None)

    def _key(self) -> Key:
        require(self.key is not None, "no round has begun")
        assert self.key is not None
        return self.key

    def _check_client(self, client: int) -> None:
        require(0 <= client < self.num_clients, f"client={client}: the clients are 0 to {self.num_clients - 1}")

    def rewind(self, folder: Folder, packet: Packet | None) -> None:
        """Files of answers that no checkpoint refers to are deleted too."""
        super().rewind(folder, packet)
        if packet is None:
            self.unanswered.load({self.unanswered.kind: {}})
        self.unanswered.run = self.owner()

    def save(self, folder: Folder) -> None:
        """Write a checkpoint."""
        super().save(folder)
        self.unanswered.settle()

    def facts(self) -> dict[str, Any]:
        """What, besides the algorithm, makes this run what it is."""
        return {
            "seed": self.seed,
            "clients": self.num_clients,
            "sample": self.sample,
            "take": self.first,
            "clip": self.clip,
            "start": "known" if self.known else "sent",
            "privacy": None if self.privacy is None else complete(self.privacy),
            **self.optional_facts,
            "parameters": self.slot.layout.size,
            **self.downlink_fact(),
        }

    @cached_property
    def data(self) -> dict[str, str | None]:
        """A digest of what is evaluated: the clients' data are not here."""
        return {"test": None if self.test is None else data_digest([self.test])}

    def owner(self) -> str:
        """Whose a client's file is: of two runs with one setting clients may have done different things."""
        return f"{self.identity()}-{self.incarnation:016x}"

    def state(self) -> dict[str, State]:
        """Everything, for a checkpoint between two rounds."""
        mine = {name: getattr(self, name) for name in STATE_FIELDS}
        state = {**super().state(), **mine, "unanswered": self.unanswered.state()}
        return state if self.setting.buffer is None else {**state, "flights": self.flights}

    def restore(self, packet: Packet) -> None:
        """Continue from what :meth:`state` gave, after bytes and back."""
        super().restore(packet)
        vars(self).update({name: packet[name] for name in STATE_FIELDS})
        self.sent = {client: restore(sent, Sent(0, 0, 0.0, 0)) for client, sent in packet["sent"].items()}
        self.unanswered.load(packet["unanswered"])
        self.flights = {client: octets(call).numpy().tobytes() for client, call in packet.get("flights", {}).items()}
        self.again = dict(self.flights)
