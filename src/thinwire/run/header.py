"""What travels between a server and a client that do not share a process: one blob each way, small facts before it.

A broadcast is published once a round, so its version is the number of its round. A client's
base is the round of its last reply that the server has in its checkpoint: the version of the
view and the state of the links that both ends hold. 0 opens the pair anew.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..errors import check
from ..wire import MOST, Several, dumps, loads, restore

SMALL = 1024  # bytes: a header is never longer
EXAMPLES = 1 << 32  # more than these no client has


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

    def write(self) -> bytes:
        """The bytes of it."""
        return dumps(self)


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

    def write(self) -> bytes:
        """The bytes of it."""
        return dumps(self)


def read_call(data: bytes) -> Call:
    """A call from its bytes. Raises ``WireError``."""
    like = Call("", 0, 0, 0, 0, 0, 0, 0.0, False, Several([], Piece(0, b"")))
    call: Call = restore(loads(data, max_depth=3), like)
    check(0 <= call.client < call.clients, "a client of the run's")
    check(0 <= call.base < call.round and call.seed >= 0 and call.pieces, "a call of a round, with what it misses")
    return call


def read_answer(data: bytes, most: int) -> Answer:
    """An answer from its bytes, of which there may be ``most``. Raises ``WireError``."""
    like = Answer("", 0, 0, 0, 0, 0.0, False, 0, 0.0, 0, 0.0, b"")
    answer: Answer = restore(loads(data, max_depth=1, max_bytes=most, max_values=2 * len(like)), like)
    check(0 < answer.examples <= EXAMPLES or not answer.held, f"1 to {EXAMPLES} examples")
    check(answer.steps >= 0 and 0 <= answer.seconds < math.inf and abs(answer.loss) <= MOST, "steps, seconds, a loss")
    check(len(data) - len(answer.blob) <= SMALL, f"a header of at most {SMALL} bytes")
    return answer
