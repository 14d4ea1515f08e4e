"""What a deployment is asked for beside its method, its model and its clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..config import complete
from ..errors import require
from ..federated.buffered import Buffered, check_replies
from ..federated.clip import Clip
from ..federated.privacy import Privacy
from ..federated.sampler import Sampler
from ..federated.setting import ClientsSetting, Seed
from ..ranges import Count
from ..robust import Aggregator


@dataclass(frozen=True)
class Setting(ClientsSetting):
    """How a deployment goes: who takes part, and how much is believed of what one client says.

    - ``sample``: how many clients are called in a round. None: all that are there.
    - ``take``: how many answers count, the first ones. None: all.
    - ``clip``: the Euclidean norm that a field of a client's reply has at most. A longer one counts as if it were that
      long, and the log names its client. "auto" is twice the median norm of the newest rounds' replies
      (:mod:`thinwire.federated.clip`). :meth:`Algorithm.admit <thinwire.algorithms.base.Algorithm.admit>` says what a
      bound means for each method.
    - ``most_examples``: how many examples a client is believed to have, which is its weight: one number, or one for
      each client. An answer that says more is refused. Where a method averages by examples, this and ``clip`` are both
      needed to bound what one client does. None: whatever it says, but the log warns of a reply that has more than half
      of a round's weight.
    - ``privacy``: replies are clipped by it, and noise is added to their mean, from a secret that is drawn when the run
      begins and stays in the server's checkpoint.
    - ``mbit``: what every client's uplink carries at least, in Mbit/s, whatever is measured: messages are cut by it
      until one is lost, and ``ByBandwidth`` chooses by it (for a client whose answers are then too small to be measured
      it goes on to). It may be another when a run goes on.
    - ``seed``: of the model, of who is sampled, of batches and of what links draw.
    - ``aggregate``: the rule by which answers become one (:mod:`thinwire.robust`), such as ``Median()``. It comes after
      ``clip``. A round's record has ``far``, the clients whose answers were more than three times the median distance
      from the result, and ``again``, those that were so, or had an answer refused, in three or more rounds one after
      another, with how many. None: the weighted mean.
    - ``expel``: a client whose answers were far off or refused in so many of its rounds one after another is not called
      any more; never as many as half of the clients, nor so many that the rule has too few. The record has them as
      ``expelled``. None: nobody is left out.
    - ``buffer``: nobody is waited for. ``sample`` clients train at any time, and the server steps when as many answers
      are there as it says, whoever they are from (:class:`~thinwire.Buffered`). A client is called again when it has
      answered. A round's record has ``staleness``, for how many steps each of its answers was on its way, and
      ``in_flight``, how many clients still train. Their calls are held and are in the checkpoint: a server that goes on
      sends them again. None: a round waits for its cohort.
    - ``sampler``: who is called (:class:`~thinwire.Sampler`), such as ``PowerOfChoice(20)``. None:
      ``sample`` of the clients that are there, drawn uniformly.
    - ``device``: where the model is evaluated, as torch names it.
    - ``start``: "known" sends the starting model to nobody. Clients have it from the seed, and refuse calls of a run
      whose digest says that theirs is another.
    """

    example: ClassVar[str] = "Setting(sample=10)"

    sample: Count | None = None
    take: int | None = None
    clip: Clip = None
    most_examples: int | Sequence[int] | None = None
    privacy: Privacy | None = None
    mbit: int | float | None = None
    seed: Seed = 0
    device: str = "cpu"
    start: Literal["sent", "known"] = "sent"
    aggregate: Aggregator | None = None
    expel: Count | None = None
    buffer: Buffered | None = None
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mbit is None or 0 < self.mbit < math.inf, f"mbit={self.mbit}: a rate in Mbit/s is positive")
        require(
            self.buffer is None or self.take is None,
            f"take={self.take}: with buffer={self.buffer!r} that says how many answers count; leave take out",
        )

    def first(self, clients: int) -> int:
        """How many answers of a round count. Raises ``ValueError`` where fewer are called."""
        cohort = self.cohort(clients)
        if self.buffer is not None:
            check_replies(self.buffer, cohort)
            return self.buffer.replies
        first = cohort if self.take is None else self.take
        require(0 < first <= cohort, f"take={self.take}: it must be between 1 and the {cohort} sampled")
        return first

    def replies(self, clients: int) -> int:
        return self.first(clients)

    def optional_facts(self) -> dict[str, Any]:
        """The fields that runs of before them have not, where they are given, as they are recorded."""
        values: dict[str, Any] = {
            "aggregate": self.aggregate and complete(self.aggregate),
            "expel": self.expel,
            "buffer": self.buffer and complete(self.buffer),
            "sampler": self.sampler and complete(self.sampler),
        }
        return {name: value for name, value in values.items() if value is not None}

    def most_of_each(self, clients: int) -> list[int]:
        """How many examples each client is believed to have; empty where any number is."""
        most = self.most_examples
        each = [most] * clients if isinstance(most, int) else list(most or ())
        require(
            most is None or (len(each) == clients and all(n > 0 for n in each)),
            f"most_examples={most}: a positive number, or one for each of the {clients} clients",
        )
        return each
