"""The downlink where each client is sent a message of its own: what changed since that client was called last.

There is no log of broadcasts. The server keeps the sending ends of ``down`` for each client, beside the receiving ends
of ``up``, and commits them together when the client's reply was taken. So a call or an answer that is lost leaves both
ends as they were, and the next message is about the whole difference again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..algorithms.base import Algorithm, Start
from ..key import Key
from ..links.base import floats
from ..params import Params
from ..wire import Packet, State, dumps, length, loads
from .messages import Form, noise_like
from .stream import Logged, Parcel, Stream, View, first_broadcast, pack_view


class Views(Stream):
    """The server's end. A version is the number of broadcasts made; what a client holds is that client's alone."""

    def __init__(
        self, algorithm: Algorithm, form: Form, start: Start, buffers: Params | None, key: Key, known: bool = False
    ) -> None:
        super().__init__(algorithm, form, start.view, buffers, known)
        self.begun, self.fresh = self.view, self.tx  # both ends of a client that has not been called
        self.values: list[Any] = []  # of the newest broadcast
        self.key, self.unmoved = key, False
        if known:
            self.begun, self.fresh, values = first_broadcast(algorithm, form, start.server, self.view, key)
            self.same = dumps(values)

    @property
    def end(self) -> State:
        return self.fresh

    def publish(self, msg: Any, buffers: Params | None, key: Key) -> None:
        """The message that all clients are brought to; nothing is encoded yet."""
        self.values, self.key = self.form.values(msg, buffers), key
        self.version, self.last = self.version + 1, msg
        self.unmoved = self.known and dumps(self.values) == self.same
        self.view = View(self.algorithm.see(self.view.state, msg, key), self.view.rx, buffers)
        self._snapshot = None

    def parcel(self, version: int, end: State = None) -> Parcel:
        """What brings a client to the newest values. ``end`` is its sending end; ``version`` 0 has heard nothing."""
        if version == 0:
            if not self.known:
                return Parcel(True, [self.snapshot()], end=self.opened)
            if self.unmoved:
                return Parcel(False, [], end=self.fresh)
            end = self.fresh
        body, _, end = self.form.send(self.values, end, self.key)
        message = Logged(self.version, self.key.round, dumps(body), self.form.floats(body), self.version)
        return Parcel(False, [message], end=end)

    def snapshot(self) -> Logged:
        """The newest values, whole and lossless, as the view of a client that is opened at them."""
        if self._snapshot is None:
            self.opened, rx = self.form.open(self.values)
            blob = dumps(pack_view(self.view._replace(rx=rx)))
            count = floats(loads(blob, max_values=None, finite=False))
            self._snapshot = Logged(self.version, self.key.round, blob, count, self.version)
        return self._snapshot

    def view_of(self, version: int, end: State) -> View:
        """What a client holds: of its state only the ends, for every broadcast is whole."""
        return self.begun if version == 0 else self.view._replace(rx=self.form.mirror(end))

    def load(self, packet: Packet, key: Key) -> None:
        super().load(packet, key)
        self.key = key


class Visit(NamedTuple):
    """Bytes that one client is sent when it is called, as a mean over its absences."""

    stream: float
    per_client: float


def visit(message: int, whole: int, share: float) -> Visit:
    """What a call costs downwards, of messages of so many bytes and a snapshot of ``whole`` bytes.

    ``share`` of the clients take part in a round and have their replies taken, drawn anew each time, so that a client
    is away for g rounds with probability share (1 - share)^(g - 1). From a stream it is sent g messages or the
    snapshot, whichever is fewer bytes. By itself it is sent one message, or the snapshot. First contacts cost the same
    in both and are left out.
    """
    away = 1 - share
    most = max(whole // message, 0)  # messages that are no more bytes than a snapshot
    # The sum of g share away^(g - 1) for g to `most`, and the probability of more.
    few = (1 - away**most * (1 + most * share)) / share
    return Visit(message * few + whole * away**most, float(min(message, whole)))


def fewer(form: Form, values: list[Any], key: Key, share: float) -> bool:
    """Whether messages of each client's own are predicted to be fewer bytes than the stream, by :func:`visit`.

    ``share`` of the clients are called in a round and have their replies taken. To know how long a message is, a change
    of normally distributed numbers is encoded.
    """
    pairs = zip(values, noise_like(values, key.generator("visit")), strict=True)
    moved = [value + noise if isinstance(value, Params) else value for value, noise in pairs]
    body, _, _ = form.send(moved, form.open(values)[0], key)
    cost = visit(length(body), length(values), share)
    return cost.per_client < cost.stream
