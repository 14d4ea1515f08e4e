"""The operations of a part, and the base of all schedules, which are in :mod:`~.schedule`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

from ..config import Config
from ..errors import CombinationError, require
from ..links import Dense, Link
from .stored import AQSGD, remembers

Keep = Literal["graph", "input", "weights"]


class Op(NamedTuple):
    """An operation of a part.

    - ``forward``: take an input, compute, and give the output to the next part. ``keep`` says what stays here until
      the backward pass: the ``graph``, the ``input``, or a graph over a copy of the parameters (``weights``).
    - ``backward``: take the error gradient of the oldest micro-batch that is kept, and give that of its input to the
      part before. The gradients of the parameters are added up.
    - ``step``: the optimiser's, with what was added up.
    - ``guess``: ``backward``, with an error gradient that an auxiliary network predicts.
    - ``teach``: take the error gradient, and train the auxiliary network with it.

    ``version`` is the number of steps after which the parameters were as the forward pass uses them; None: as they are.
    """

    do: Literal["forward", "backward", "step", "guess", "teach"]
    batch: int
    micro: int = 0
    keep: Keep = "graph"
    version: int | None = None


@dataclass(frozen=True)
class Schedule(Config):
    """Which operations a part makes when, and what its messages are sent by.

    ``activations`` is the link to the next part, ``gradients`` the one to the part before: any link without a memory,
    such as ``Half()``, ``Int8()``, ``QSGD(16)``, ``LowRank(4)`` or ``TopK(0.1)``. ``activations`` may be
    :class:`AQSGD` too. Raises ``CombinationError`` for a link with a memory: successive messages are of different
    examples, and have nothing to remember of one another.
    """

    example = "DSP((1, 1, 0), (4, 2, 0))"

    activations: Link | AQSGD = field(default=Dense(), kw_only=True)
    gradients: Link = field(default=Dense(), kw_only=True)

    def __post_init__(self) -> None:
        for name in ("activations", "gradients"):
            link = getattr(self, name)
            if isinstance(link, Link):
                memoryless(link, f"{type(self).__name__}({name}={link!r})")

    @classmethod
    def _in_order(cls) -> Sequence[Field[Any]]:
        return sorted(fields(cls), key=lambda f: bool(f.kw_only))  # as in the signature

    # -- the switches ---------------------------------------------------------

    keeps: ClassVar[Keep] = "graph"
    """What a part whose delay is not zero keeps of a forward pass."""
    flushes: ClassVar[bool] = False
    """Whether a batch ends before the next one begins."""
    lookback: ClassVar[int] = 0
    """How many steps back the parameters may lie that a forward pass to come asks for."""

    @abstractmethod
    def delays(self, parts: int) -> tuple[int, ...]:
        """How many micro-batches lie between the forward and the backward pass of one, by part."""

    @property
    def pieces(self) -> int:
        """Micro-batches that a batch is cut into."""
        return 1

    @property
    def barrier(self) -> bool:
        """True where all parts wait for one another after each batch. That changes the time a batch takes alone."""
        return False

    def staleness(self, parts: int) -> tuple[int, ...]:
        """How many batches lie between the forward pass of a batch and the step that it leads to, by part."""
        return (0,) * parts if self.flushes else self.delays(parts)

    def lags(self, parts: int) -> tuple[int, ...]:
        """Ticks from the forward pass of a part to that of the next one, where all parts have a common clock."""
        return (0,) * parts

    def slack(self, part: int, parts: int) -> int:
        """How many messages a part can be ahead of those that the next one answers to."""
        delays = self.delays(parts)
        return delays[part] if self.flushes else delays[part] - delays[part + 1]

    def check(self, parts: int) -> None:
        """Raise ``ValueError`` where this is no schedule for so many parts."""
        require(parts >= 1, f"{parts} parts: a pipeline has at least one")

    # -- what it comes to -----------------------------------------------------

    def tick(self, part: int, parts: int, batch: int, first: int = 0) -> list[Op]:
        """The operations of a part that is given a batch. ``first`` is the first batch since the pipeline was empty."""
        start = batch if self.flushes else first
        done = (batch - start) * self.pieces
        ops: list[Op] = []
        for micro in range(self.pieces):
            ops.append(self._forward(part, parts, batch, micro, start))
            ops += self._backward(done + micro - self.delays(parts)[part], start)
        return ops + (self._rest(part, parts, start, batch + 1) if self.flushes else [])

    def drain(self, part: int, parts: int, first: int, end: int) -> list[Op]:
        """The operations left for the batches from ``first`` on, of which ``end`` is the first that was not given."""
        return [] if self.flushes else self._rest(part, parts, first, end)

    def _rest(self, part: int, parts: int, start: int, end: int) -> list[Op]:
        total = (end - start) * self.pieces
        waiting = range(max(0, total - self.delays(parts)[part]), total)
        return [op for number in waiting for op in self._backward(number, start)]

    def _forward(self, part: int, parts: int, batch: int, micro: int, start: int) -> Op:
        return Op("forward", batch, micro, self.keeps if self.delays(parts)[part] else "graph")

    def _backward(self, number: int, start: int) -> list[Op]:
        """The backward pass of a micro-batch, counted from batch ``start``; none of those before it."""
        if number < 0:
            return []
        batch, micro = divmod(number, self.pieces)
        step = [Op("step", start + batch)] if micro == self.pieces - 1 else []
        return [Op("backward", start + batch, micro), *step]

    def table(self, parts: int, ticks: int) -> str:
        """The ticks of a common clock as text, a line a part: ``F3`` and ``B1`` are batches that go forward and back.

        Of schedules with one micro-batch a batch.
        """
        self.check(parts)
        require(self.pieces == 1, f"{self!r}: only schedules of whole batches have a common clock")
        lines, begin, width = [], 0, len(f"F{ticks} B{ticks}")
        for part, (lag, delay) in enumerate(zip(self.lags(parts), self.delays(parts), strict=True)):
            cells = [""] * min(begin, ticks)
            for batch in range(ticks - begin):
                cells.append(f"F{batch}" + (f" B{batch - delay}" if batch >= delay else ""))
            lines.append("  ".join([f"part {part}", *(cell.ljust(width) for cell in cells)]).rstrip())
            begin += lag
        return "\n".join(lines)


def memoryless(link: Link, where: str) -> None:
    """Raise ``CombinationError`` for a link whose ends remember earlier messages."""
    if remembers(link):
        raise CombinationError(
            f"{where}: it remembers earlier messages, and here each is of other examples: take a link without a "
            "memory, such as Half() or Int8(); AQSGD(QSGD(7)) remembers by example"
        )
