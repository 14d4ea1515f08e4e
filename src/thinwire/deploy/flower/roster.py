"""Which client each node of a deployment is, and which of them are there."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from ...errors import WireError, check
from ..server import Deployment
from ..watch import Board
from .mail import Mail
from .post import NAME, pack, unpack

AGAIN = 60.0  # seconds, after which a node that has not said its name is asked again
AHEAD = 5.0  # seconds that a sender's clock may be ahead of ours: of an authenticated node Flower asks as much

log = logging.getLogger("thinwire")


@runtime_checkable
class KnownNode(Protocol):
    """What a Grid says of a node: its number, and its public key where it has one."""

    @property
    def node_id(self) -> int: ...
    @property
    def public_key(self) -> bytes: ...


class Roster:
    """The nodes of a deployment by the clients that they are."""

    def __init__(self, grid: Grid, run: Deployment, deadline: float, poll: float, board: Board | None = None) -> None:
        self.grid, self.run, self.deadline, self.poll = grid, run, deadline, poll
        self.board = board or Board(None, 0)
        self.online: set[int] = set()  # nodes
        self.nodes: dict[int, int] = {}  # client -> node
        self.keys: dict[int, str] = {}  # node -> its key
        self.named: dict[str, int] = {}  # name -> node, as long as there are fewer than clients
        self.asked: dict[str, int] = {}  # message -> node: who are you?
        self.since: dict[int, float] = {}  # node -> when it was asked
        self.introductions = Mail(grid, poll)
        self.ahead: set[int] = set()  # nodes whose clock says nothing

    def show(self, force: bool = False) -> None:
        """Say how the round stands."""
        there = {client for client, node in self.nodes.items() if node in self.online}
        self.board.write(self.run.round + 1, self.run.names, there, force)

    def notice(self) -> None:
        """What is to be done when it was seen which nodes are there."""

    def push(self, node: int, data: bytes | None, mbit: float = 0.0) -> list[str]:
        """Send a blob, which is empty to ask for a name, or no blob; the number of the message, if it could be sent."""
        content, group = RecordDict() if data is None else pack(data, mbit), str(self.run.round + 1)
        message = Message(content, node, MessageType.TRAIN, ttl=2 * self.deadline, group_id=group)
        return [sent for sent in self.grid.push_messages([message]) if sent]

    def on_its_way(self, message: Message) -> float | None:
        """Seconds since a reply was made, at most; None where its sender's clock has been seen to be too far ahead."""
        since, node = time.time() - message.metadata.created_at, message.metadata.src_node_id
        if since < -AHEAD:
            self.ahead.add(node)
        return None if node in self.ahead else since + AHEAD

    def muster(self) -> list[int]:
        """The clients that are there: all of them before the first round, later as many as count or come in time.

        A server that goes on with calls under way waits for those clients too, and for as many as train at a time.
        """
        end = time.monotonic() + self.deadline
        while True:
            online = self.enrol()
            there = sorted(client for client, node in self.nodes.items() if node in online)
            enough = self.run.first if self.run.round else self.run.num_clients
            enough = self.run.sample if self.run.again else enough
            whole = len(there) >= enough and self.run.again.keys() <= set(there)
            if whole or (there and self.run.round and time.monotonic() > end):
                return there
            self.show()
            time.sleep(self.poll)

    def enrol(self) -> set[int]:
        """Ask nodes that are new for their names; the nodes that are there."""
        keys = {node.node_id: key_of(node) for node in self.grid.get_nodes()}
        self.keys |= keys
        self.online = online = set(keys)
        self.notice()
        for node in sorted(online - set(self.nodes.values())):
            if time.monotonic() - self.since.get(node, -math.inf) > AGAIN:
                self.since[node] = time.monotonic()
                for sent in self.push(node, b""):
                    self.asked[sent] = node
                    self.introductions.expect(sent)
        for sent, (message, _) in self.introductions.wait(0.0).items():
            node = self.asked.pop(sent)
            try:
                if message is None or message.has_error():
                    raise WireError("it cannot be read" if message is None else message.error.reason)
                self.on_its_way(message)  # so little that a clock that is far ahead shows
                name = unpack(message.content, NAME).decode()
                check(name.isprintable() and name, "a name")
                self.admit(name, node, online)
            except (WireError, UnicodeDecodeError) as error:
                log.warning("node %d does not say which client it is: %s", node, error)
        return online

    def admit(self, name: str, node: int, online: set[int]) -> None:
        """Note which node a client is. A name that was called has an owner; before, it is the first's that is there."""
        names = self.run.names
        if (self.run.owners.get(name) or self.keys[node]) != self.keys[node]:
            log.warning(
                "node %d says that it is %r, which is the name of a node with another key; if that has a new one, "
                "start the server again with clients={%r: ...}, the text of the new key's .pub file",
                node,
                name,
                name,
            )
        elif not names:
            if self.named.get(name, node) in online - {node}:
                log.warning("node %d says that it is %r, which another node is", node, name)
                return
            self.named[name] = node
            if len(self.named) < self.run.num_clients:
                return
            names.extend(by_number(self.named))
            self.nodes = {client: self.named[name] for client, name in enumerate(names)}
        elif name not in names:
            log.warning("node %d says that it is %r, which this run does not know", node, name)
        elif self.nodes.get(names.index(name), node) in online - {node}:
            log.warning("node %d says that it is %r, which another node is", node, name)
        else:
            self.nodes[names.index(name)] = node


def key_of(node: KnownNode) -> str:
    """A digest of a node's public key, whatever that is; its number where it has none."""
    return hashlib.sha256(node.public_key).hexdigest() if node.public_key else f"node {node.node_id}"


def digest_of(key: str) -> str:
    """The same for the text of a ``.pub`` file."""
    try:
        public = serialization.load_ssh_public_key(key.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        text = "is no public key: give the text of the node's .pub file, 'ecdsa-sha2-nistp384 AAAA...', or None"
        raise ValueError(f"clients={{...: {key[:60]!r}}} {text}") from error
    as_flower_has_it = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public.public_bytes(*as_flower_has_it)).hexdigest()


def by_number(names: Iterable[str]) -> list[str]:
    """In the order of their numbers, where they end in some."""
    return sorted(names, key=lambda name: (len(name), name))
