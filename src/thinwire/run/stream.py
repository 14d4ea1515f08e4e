"""The downlink: one stream of broadcasts for everyone, and catching up with it.

A client's view is a pure function of the broadcasts it received, so it is the same for
every client of one version and a simulator holds it once. A client that was away gets the
messages it missed, or a snapshot of the view, whichever is fewer bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..algorithms.base import Algorithm
from ..key import Key
from ..links.base import floats
from ..params import Params
from ..wire import Packet, State, clone, dumps, loads, restore
from .messages import Form


class View(NamedTuple):
    """What a client holds of the downlink: the same for all clients of one version."""

    state: State  # the algorithm's
    rx: State  # the receiving ends of `down`
    buffers: Params | None


class Logged(NamedTuple):
    """One broadcast, or a snapshot: its round (the key it was made with), its bytes, the papers' figure for it."""

    round: int
    blob: bytes
    floats: float


class Parcel(NamedTuple):
    """What one client is sent: a snapshot of the view, or the messages it misses, oldest first."""

    snapshot: bool
    messages: list[Logged]

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return sum(len(m.blob) for m in self.messages)

    @property
    def floats(self) -> float:
        """The papers' figure."""
        return sum(m.floats for m in self.messages)


class Stream:
    """The server's end. Versions count broadcasts from 1; version 0 has heard nothing."""

    def __init__(self, algorithm: Algorithm, form: Form, view: State, buffers: Params | None) -> None:
        self.algorithm, self.form = algorithm, form
        self.tx, rx = form.open()
        self.view = View(view, rx, buffers)
        self.version = 0
        self.log: list[Logged] = []  # the newest broadcasts, without gaps
        self.last: Any = None  # the newest message as clients saw it
        self.alone = False  # the newest message suffices, whatever a client heard before
        self._snapshot: Logged | None = None

    def publish(self, msg: Any, buffers: Params | None, key: Key) -> None:
        """Send one message to everyone: the view moves on by a version."""
        values = self.form.values(msg, buffers)
        if self.version == 0:
            self.tx, rx = self.form.open(values)  # links open at the values of the first broadcast
            self.view = self.view._replace(rx=rx)
        body, seen, self.tx = self.form.send(values, self.tx, key)
        newest, _ = self.form.build(seen)
        older = newest if self.last is None else self.last
        self.alone = not self.form.memory and self.algorithm.supersedes(older, newest)
        if self.alone:
            self.log.clear()
        self.log.append(Logged(key.round, dumps(body), self.form.floats(body)))
        self.view = receive(self.algorithm, self.form, self.view, self.log[-1], key)
        self.version, self.last, self._snapshot = self.version + 1, newest, None
        while len(self.log) > 1 and sum(len(m.blob) for m in self.log) > len(self.snapshot().blob):
            del self.log[0]  # a snapshot is cheaper than this and all that follows

    def snapshot(self) -> Logged:
        """The newest view, whole and lossless."""
        if self._snapshot is None:
            blob = dumps(self.view)
            self._snapshot = Logged(self.log[-1].round, blob, floats(loads(blob)))
        return self._snapshot

    def parcel(self, version: int) -> Parcel:
        """The fewest bytes that bring a client from ``version`` to the newest."""
        missing = self.version - version
        if missing == 0:
            return Parcel(False, [])
        whole = Parcel(True, [self.snapshot()])
        if self.alone:
            parts = Parcel(False, self.log[-1:])
        elif version > 0 and missing <= len(self.log):
            parts = Parcel(False, self.log[-missing:])
        else:
            return whole
        return parts if parts.size <= whole.size else whole

    def state(self) -> State:
        """Everything, for a checkpoint."""
        log = [[m.round, torch.frombuffer(bytearray(m.blob), dtype=torch.uint8), m.floats] for m in self.log]
        return {"version": self.version, "view": self.view, "tx": self.tx, "log": log, "alone": self.alone}

    def load(self, packet: Packet, key: Key) -> None:
        """Continue from what :meth:`state` gave, after bytes and back."""
        self.version, self.alone = packet["version"], packet["alone"]
        self.view, self.tx = restore(packet["view"], self.view), restore(packet["tx"], self.tx)
        self.log = [Logged(round, blob.numpy().tobytes(), count) for round, blob, count in packet["log"]]
        self._snapshot = None
        if not self.form.memory and self.log:
            values, _ = self.form.recv(loads(self.log[-1].blob), self.view.rx, key._replace(round=self.log[-1].round))
            self.last, _ = self.form.build(values)


def receive(algorithm: Algorithm, form: Form, view: View, message: Logged, key: Key) -> View:
    """A client's half: one broadcast taken in."""
    values, rx = form.recv(loads(message.blob), view.rx, key._replace(round=message.round, client=None))
    msg, buffers = form.build(values)
    state = algorithm.see(view.state, msg, key._replace(round=message.round, client=None))
    # Own memory: the bits of a product may depend on how its factors are aligned.
    own: View = clone(View(state, rx, buffers))
    return own


def catch_up(algorithm: Algorithm, form: Form, view: View, parcel: Parcel, key: Key) -> View:
    """A client's half: a parcel taken in."""
    for message in parcel.messages:
        whole = parcel.snapshot
        view = restore(loads(message.blob), view) if whole else receive(algorithm, form, view, message, key)
    return view
