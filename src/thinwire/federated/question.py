"""A question for a client's loss before it may train: what is sent, both ways, and what is counted of it.

1. A *question* is a call with a word before it. Its client takes the call in, evaluates the model that all share on its
   own examples, keeps the call, and answers with its loss: an answer without a reply, with a word before it.
2. To those that are chosen the server says ``go``, with the mark of the call. They answer the call as any other.

Nothing that a client keeps from round to round has moved before it goes. So whoever is asked and not chosen is as if it
had not been called, and is sent what it misses again when it is called next.
"""

from __future__ import annotations

import math
from typing import Any

from ..algorithms.base import Algorithm
from ..dice import seeded
from ..errors import CombinationError, check
from ..params import Params
from ..task import Task
from ..train.evaluation import evaluate, mean_metrics
from ..train.slot import Slot
from ..wire import MOST, State
from .envelope import Answer, Call
from .ledger import Direction, Ledger
from .stream import View

QUESTION, LOSS, GO = b"\0loss?", b"\0loss=", b"\0go:\0\0"  # no call and no answer begins so
MARK = 8  # bytes


def local_loss(
    algorithm: Algorithm, slot: Slot, task: Task, view: View, first: State, statistics: Params | None
) -> float:
    """The mean loss of the model that all share on a client's examples, as the client knows that model.

    ``first`` is what a client keeps before its first round, ``statistics`` those of norm layers then. A loss that is no
    number counts as the largest that may be sent.
    """
    x = algorithm.at_client(view.state, None, first)
    assert x is not None
    slot.load(x)
    slot.load_buffers(view.buffers if algorithm.buffers == "mean" else statistics)
    with seeded(0, slot.random):
        metrics = mean_metrics([evaluate(slot, task)])
    if "loss" not in metrics:
        raise CombinationError(f"{type(task).__name__} has no metric 'loss', which clients are asked for")
    return metrics["loss"] if abs(metrics["loss"]) <= MOST else math.copysign(MOST, 1.0)


def loss_answer(call: Call, number: int, examples: int, loss: float, seconds: float) -> Answer:
    """What a client says of its loss, to a call whose mark is ``number``."""
    about = call.run, call.incarnation, call.client, call.round, call.base, call.mbit
    return Answer(*about, True, examples, loss, 0, seconds, b"", number)


def write_go(number: int) -> bytes:
    """The word to go on with the call of this mark."""
    return GO + number.to_bytes(MARK, "big")


def read_go(data: bytes) -> int:
    """The mark of the call to go on with. Raises ``WireError``."""
    check(len(data) == len(GO) + MARK, "a word to go on, with a mark")
    return int.from_bytes(data[len(GO) :], "big")


class Questions:
    """The questions of a round."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.framing: dict[tuple[int, Direction], int] = {}
        self.gone = set[int]()  # the clients that were told to go on

    def size_of(self, client: int, call: int) -> int:
        """The bytes that a client waits for before it trains, of a call of so many."""
        return len(GO) + MARK if client in self.gone else call

    def bill(self, client: int, way: Direction, size: int) -> None:
        """Note bytes of a question's answer, or of the word to go on."""
        self.framing[client, way] = self.framing.get((client, way), 0) + size

    def enter(self, ledger: Ledger, round: int) -> None:
        """Enter these bytes into the ledger, beside the calls and answers of the round."""
        for (client, way), size in self.framing.items():
            ledger.enter_framing(round, client, way, size)

    def record(self) -> dict[str, Any]:
        """What a round's record has of it."""
        return {"asked": len({client for client, _ in self.framing})} if self.framing else {}
