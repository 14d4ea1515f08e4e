"""What travels between a server and a client that do not share a process: one blob each way, small facts before it.

A broadcast is published once a round, so its version is the number of its round. A client's
base is the round of its last reply that the server has in its checkpoint: the version of the
view and the state of the links that both ends hold. 0 opens the pair anew.

Two states of one round may differ: training need not be reproducible, a call may come twice, a
disk or a server's folder may be put back from a copy. So a state is named by its contents. An
answer says what its client holds from then on, and the next call says of which of those states the
server has the answer. An answer names the call that it is one to in the same way, and with it
every byte that it was made from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import check
from ..key import Key
from ..wire import MOST, Several, dumps, length, loads, restore
from .client import Reply

SMALL = 1024  # bytes: a header is never longer
EXAMPLES = 1 << 32  # more than these no client has
NUMBER = 1 << 61  # as long as any incarnation and any mark: what stands for them where nothing is lost, in a simulation


class Piece(NamedTuple):
    """A broadcast, or a snapshot, as it was published."""

    round: int
    blob: bytes


class Call(NamedTuple):
    """Server to client: what it misses, and that it should train."""

    run: str  # a digest of method, model, seed and number of clients
    incarnation: int  # which of the runs of that digest
    seed: int
    clients: int
    client: int
    round: int
    base: int
    mbit: float  # the uplink as the server measured it or was told, which may choose the codec; 0: not known
    snapshot: bool
    pieces: Several
    state: int = 0  # the mark of what the client held after the answer that is its base; 0: it is opened anew
    shares: bytes = b""  # of a secure sum, those that neighbours made for it; a call without any has one field less

    def write(self) -> bytes:
        """The bytes of it."""
        return dumps(self.fields_sent)

    @property
    def fields_sent(self) -> tuple[Any, ...]:
        """The fields that are sent."""
        return self if self.shares else self[:-1]

    @property
    def payload(self) -> int:
        """Bytes of the broadcasts in it; all others are framing."""
        return sum(len(piece.blob) for piece in self.pieces)


class Answer(NamedTuple):
    """Client to server."""

    run: str
    incarnation: int
    client: int
    round: int
    base: int
    mbit: float
    held: bool  # False: it does not hold the base, and has not trained
    examples: int
    loss: float
    steps: int
    seconds: float  # from the call's arrival to the answer's leaving
    blob: bytes
    call: int = 0  # the mark of the call that it answers
    state: int = 0  # the mark of what the client holds if the answer is taken
    metrics: bytes = b""  # of the client's own test; an answer without any has one field less

    @staticmethod
    def to(
        call: Call,
        number: int,
        reply: Reply | None = None,
        state: int = 0,
        seconds: float = 0.0,
        metrics: bytes = b"",
    ) -> Answer:
        """The answer to a call whose mark is ``number``. None for ``reply``: the client does not hold the base."""
        about = call.run, call.incarnation, call.client, call.round, call.base, call.mbit
        if reply is None:
            return Answer(*about, False, 0, 0.0, 0, seconds, b"", number, state)
        loss = reply.loss if reply.steps else 0.0  # of a client that has not trained there is none
        return Answer(*about, True, reply.examples, loss, reply.steps, seconds, reply.blob, number, state, metrics)

    def write(self) -> bytes:
        """The bytes of it."""
        return dumps(self.fields_sent)

    @property
    def fields_sent(self) -> tuple[Any, ...]:
        """The fields that are sent."""
        return self if self.metrics else self[:-1]

    @property
    def payload(self) -> int:
        """Bytes of the reply in it; all others are framing."""
        return len(self.blob)


def mark(data: bytes) -> int:
    """A number of 62 bits, the first of them 1, that names these bytes and no others."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 3 | 1 << 61


def key_of(seed: int, client: int, round: int, mbit: float) -> Key:
    """The key of a client's round, as both ends have it. ``mbit`` is 0 where the client's uplink is not known."""
    return Key(seed, round, client, mbit=mbit or None)


class Scales:
    """Framing of messages that nobody writes, as many bytes as :meth:`Call.write` and :meth:`Answer.write` give it.

    The length of a header depends on the lengths of the values in it alone. Of messages whose values are equally long
    one is measured, by the serialiser itself, and the result is remembered: to encode each header of a cohort would
    take a tenth of the time in which small clients train.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}

    def framing(self, message: Call | Answer) -> int:
        """All bytes of a message but its payload."""
        alike = _lengths(message)
        if alike not in self.known:
            self.known[alike] = length(message.fields_sent) - message.payload
        return self.known[alike]

    def size(self, message: Call | Answer) -> int:
        """All bytes of a message."""
        return message.payload + self.framing(message)


def _lengths(values: Sequence[Any]) -> tuple[Any, ...]:
    """What the lengths of values depend on; of blobs without their bytes."""
    return tuple([LENGTHS[type(x)](x) for x in values])


LENGTHS: dict[type, Callable[[Any], Any]] = {
    int: int.bit_length,
    bytes: lambda x: len(x).bit_length(),
    str: str,
    float: type,  # any other is as long
    bool: type,
    Several: _lengths,
    Piece: _lengths,
}


def read_call(data: bytes) -> Call:
    """A call from its bytes. Raises ``WireError``."""
    like = Call("", 0, 0, 0, 0, 0, 0, 0.0, False, Several([], Piece(0, b"")), 0)
    fields = loads(data, max_depth=3)
    if isinstance(fields, list) and len(fields) == len(like) - 1:
        fields.append(like.shares)
    call: Call = restore(fields, like)
    check(0 <= call.client < call.clients, "a client of the run's")
    check(0 <= call.base < call.round and call.seed >= 0, "a call of a round")
    check(call.pieces or (call.base == 0 and not call.snapshot), "what a client misses")
    return call


def read_answer(data: bytes, most: int) -> Answer:
    """An answer from its bytes, of which there may be ``most``. Raises ``WireError``."""
    like = Answer("", 0, 0, 0, 0, 0.0, False, 0, 0.0, 0, 0.0, b"", 0, 0)
    fields = loads(data, max_depth=1, max_bytes=most, max_values=2 * len(like))
    if isinstance(fields, list) and len(fields) == len(like) - 1:
        fields.append(like.metrics)
    answer: Answer = restore(fields, like)
    check(0 < answer.examples <= EXAMPLES or not answer.held, f"1 to {EXAMPLES} examples")
    check(answer.steps >= 0 and 0 <= answer.seconds < math.inf and abs(answer.loss) <= MOST, "steps, seconds, a loss")
    check(len(data) - len(answer.blob) <= SMALL, f"a header of at most {SMALL} bytes")
    return answer
