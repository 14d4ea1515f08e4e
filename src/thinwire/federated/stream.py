"""The downlink: one stream of broadcasts for everyone, and catching up with it.

A client's view is a pure function of the broadcasts it received, so it is the same for
every client of one version and a simulator holds it once. A client that was away gets the
messages it missed, or a snapshot of the view, whichever is fewer bytes. Where the start is known, a client that has
heard nothing makes the first broadcast itself, and is sent what came after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..algorithms.base import Algorithm
from ..errors import WireError, check
from ..key import Key
from ..links.base import floats
from ..params import Params
from ..wire import Packet, Several, State, clone, dumps, length, loads, restore
from .letters import Letter
from .messages import Form

SLACK = 8  # bytes: a single message is not replaced by a snapshot for less


class View(NamedTuple):
    """What a client holds of the downlink: the same for all clients of one version."""

    state: State  # the algorithm's
    rx: State  # the receiving ends of `down`
    buffers: Params | None


class Logged(NamedTuple):
    """One broadcast, or a snapshot: its version, its round (the key it was made with), its bytes."""

    version: int
    round: int
    blob: bytes
    floats: float  # the papers' figure
    first: int  # the oldest version of its chain: with `chained`, of the messages that it supersedes


class Parcel(NamedTuple):
    """What one client is sent: a snapshot of the view, or the messages it needs, oldest first; and its own."""

    snapshot: bool
    messages: list[Logged]
    own: Letter | None = None
    end: State = None  # the sending ends of `down` once it has been taken, where each client has ends of its own

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return sum(len(m.blob) for m in self.parts)

    @property
    def floats(self) -> float:
        """The papers' figure."""
        return sum(m.floats for m in self.parts)

    @property
    def parts(self) -> list[Logged | Letter]:
        """All that has bytes, in the order in which it is sent."""
        return [*self.messages, *([] if self.own is None else [self.own])]


class Stream:
    """The server's end. Versions count broadcasts from 1; version 0 has heard nothing."""

    def __init__(
        self, algorithm: Algorithm, form: Form, view: State, buffers: Params | None, known: bool = False
    ) -> None:
        self.algorithm, self.form, self.known = algorithm, form, known
        self.tx, rx = form.open()
        self.view = View(view, rx, buffers)
        self.version = 0
        self.log: list[Logged] = []  # what may still be needed, oldest first
        # The oldest version that the log can bring up to date. Links with a memory open at the values
        # of the first broadcast, which a client that has heard nothing does not hold.
        self.since = 1 if form.memory else 0
        self.last: Any = None  # the newest message as clients saw it
        self.whole = 0  # bytes of a snapshot, which is made when it is needed: it can be many models long
        self._snapshot: Logged | None = None
        self._afresh: Logged | None = None
        self._parcels: dict[int, Parcel] = {}  # of the newest version, by what a client holds

    def publish(self, msg: Any, buffers: Params | None, key: Key) -> None:
        """Send one message to everyone: the view moves on by a version."""
        values = self.form.values(msg, buffers)
        if self.version == 0:
            self.tx, rx = self.form.open(self.form.fill(values))  # links open at the first broadcast
            self.view = self.view._replace(rx=rx)
        body, seen, self.tx = self.form.send(values, self.tx, key)
        newest, _ = self.form.build(seen)
        self.version += 1
        first = self.version
        if self.last is not None and not self.form.memory and self.algorithm.supersedes(self.last, newest):
            older = self.log.pop()
            first = older.first if self.algorithm.chained else first
        self.log.append(Logged(self.version, key.round, dumps(body), self.form.floats(body), first))
        self.view = receive(self.algorithm, self.form, self.view, self.log[-1], key)
        self.last, self._afresh, self._snapshot = newest, None, None
        self._parcels.clear()
        self.whole = self._length(key)
        while len(self.log) > 1 and sum(len(m.blob) for m in self.log) > self.whole:
            self.since = self.log.pop(0).version  # a snapshot is cheaper than this and all that follows

    def snapshot(self) -> Logged:
        """The newest view, whole and lossless."""
        if self._snapshot is None:
            blob = dumps(pack_view(self.view))
            count = floats(loads(blob, max_values=None, finite=False))
            self._snapshot = Logged(self.version, self.log[-1].round, blob, count, self.version)
        return self._snapshot

    @property
    def end(self) -> State:
        """What the server keeps of a client's downlink before its first reply: nothing, the stream is everyone's."""
        return None

    def parcel(self, version: int, end: State = None) -> Parcel:
        """The fewest bytes that bring a client from ``version`` to the newest. ``end``: what is kept of it, if any."""
        version = max(version, 1) if self.known else version
        if version not in self._parcels:
            self._parcels[version] = self._parcel(version)
        return self._parcels[version]

    def _parcel(self, version: int) -> Parcel:
        if version < self.since:
            return self.everything()
        missed = [m for m in self.log if m.version > version]
        parts = Parcel(False, [m for m in missed if m.first > version or m is self.log[-1]])
        if parts.size > self.whole + (SLACK if len(parts.messages) == 1 else 0):
            return self.everything()
        return parts

    def everything(self) -> Parcel:
        """What brings anyone to the newest: the snapshot, or a broadcast of the method's that says as much."""
        return Parcel(True, [self.snapshot()]) if self._afresh is None else Parcel(False, [self._afresh])

    def _length(self, key: Key) -> int:
        """Bytes of :meth:`everything`."""
        message = None if self.form.memory else self.algorithm.afresh(self.view.state)
        if message is None:
            return length(pack_view(self.view))
        body, _, _ = self.form.send(self.form.values(message, self.view.buffers), self.tx, key)
        self._afresh = Logged(self.version, key.round, dumps(body), self.form.floats(body), self.version)
        return len(self._afresh.blob)

    def state(self) -> State:
        """Everything, for a checkpoint."""
        return {"version": self.version, "since": self.since, "view": self.view, "tx": self.tx, "log": self.log}

    def load(self, packet: Packet, key: Key) -> None:
        """Continue from what :meth:`state` gave, after bytes and back."""
        self.version, self.since = packet["version"], packet["since"]
        self.view, self.tx = restore(packet["view"], self.view), restore(packet["tx"], self.tx)
        self.log = list(restore(packet["log"], Several([], Logged(0, 0, b"", 0.0, 0))))
        self._snapshot = None
        self._parcels.clear()
        self.whole = self._length(key._replace(round=self.log[-1].round)) if self.log else length(pack_view(self.view))
        if not self.form.memory and self.log:
            body, key = self.form.read(self.log[-1].blob), key._replace(round=self.log[-1].round)
            values, _ = self.form.recv(body, self.view.rx, key)
            self.last, _ = self.form.build(values)


def receive(algorithm: Algorithm, form: Form, view: View, message: Logged, key: Key) -> View:
    """A client's half: one broadcast taken in."""
    key = key._replace(round=message.round, client=None)
    try:
        body = form.read(message.blob)
    except WireError as error:
        raise WireError(f"round {message.round}, broadcast: {error}") from error
    values, rx = form.recv(body, view.rx, key)
    # Own memory: what is a view of the message lies where the message left it, and the bits of a
    # product may depend on how its factors are aligned.
    msg, buffers = form.build([clone(value) for value in values])
    return View(algorithm.see(view.state, msg, key), clone(rx) if form.memory else rx, buffers)


def first_broadcast(
    algorithm: Algorithm, form: Form, server: State, view: View, key: Key
) -> tuple[View, State, list[Any]]:
    """The first broadcast, made of the server's first state: the view after it, the sending ends, and its values.

    Both ends make it where the start is known.
    """
    values = form.values(algorithm.broadcast(server, view.state), view.buffers)
    tx, rx = form.open(form.fill(values))
    key = key._replace(round=1, client=None)
    body, _, tx = form.send(values, tx, key)
    return receive(algorithm, form, view._replace(rx=rx), Logged(1, 1, dumps(body), 0.0, 1), key), tx, values


def catch_up(algorithm: Algorithm, form: Form, view: View, parcel: Parcel, key: Key) -> View:
    """A client's half: a parcel taken in."""
    for message in parcel.messages:
        if parcel.snapshot:
            view = unpack_view(loads(message.blob, max_values=None, finite=False), view)
            continue
        view = receive(algorithm, form, view, message, key)
    return view


def pack_view(view: View) -> State:
    """A view as it is sent. Where a link's end holds what is in the state as well (EF21), a number says where.

    Of every Params in ``rx`` there is a number at the end: which of the state's Params holds these layers, bit for bit,
    so that they are left out of ``rx``; None where none does.
    """
    there = list(_params(view.state))
    numbers: list[int | None] = []

    def without_twin(own: Params) -> Params:
        twins = (number for number, whole in enumerate(there) if _holds(whole, own))
        numbers.append(next(twins, None))
        return own if numbers[-1] is None else own.only(())

    rx = _map(view.rx, without_twin)
    return [view.state, rx, view.buffers, *numbers]


def unpack_view(packet: Packet, like: View) -> View:
    """The view that :func:`pack_view` gave, after bytes and back."""
    expected = sum(1 for _ in _params(like.rx))
    check(isinstance(packet, list) and len(packet) == len(View._fields) + expected, "a view")
    numbers = packet[len(View._fields) :]
    queue = iter(numbers)
    blank = _map(like.rx, lambda own: own if next(queue) is None else own.only(()))
    view: View = restore(packet[: len(View._fields)], like._replace(rx=blank))
    there = list(_params(view.state))
    check(all(n is None or (type(n) is int and 0 <= n < len(there)) for n in numbers), "parameters of the state")
    pairs = zip(_params(view.rx), numbers, strict=True)

    def fill(own: Params) -> Params:
        sent, number = next(pairs)
        return sent if number is None else there[number].only(own.names)

    return view._replace(rx=_map(like.rx, fill))


def _params(x: State) -> Iterator[Params]:
    """Every Params in a state, in order."""
    if isinstance(x, Params):
        yield x
    for part in x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ():
        yield from _params(part)


def _map(x: State, function: Callable[[Params], Params]) -> State:
    """A state with a function of each Params in its place, in the order of :func:`_params`."""
    if isinstance(x, Params):
        return function(x)
    if isinstance(x, dict):
        return {key: _map(part, function) for key, part in x.items()}
    if not isinstance(x, list | tuple):
        return x
    items = [_map(part, function) for part in x]
    if isinstance(x, Several):
        return Several(items, x.like)
    return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)


def _holds(whole: Params, own: Params) -> bool:
    """Whether all layers of ``own`` are in ``whole``, bit for bit."""
    if not set(own.names) <= set(whole.names):
        return False
    same = whole.only(own.names)
    alike = same.layout == own.layout and same.flat.dtype == own.flat.dtype
    return alike and torch.equal(same.flat.view(torch.uint8), own.flat.view(torch.uint8))
