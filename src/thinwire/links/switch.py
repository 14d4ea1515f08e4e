"""A link with other numbers after some rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from ..errors import CombinationError
from ..key import Key
from ..params import Layout, Params
from ..ranges import Range
from ..wire import Packet, State
from .base import LBGMTest, Link, Wrapper


@dataclass(frozen=True)
class Switch(Wrapper):
    """``first`` in rounds 1 to ``rounds``, and ``then`` in all that follow.

    Both are links of one kind with other numbers, as are the links that they hold. Neither keeps anything between
    messages:
    ``Switch(TransformCoding(8000), then=TransformCoding(16000), rounds=10)``. Links with a memory go around it:
    ``ErrorFeedback(Switch(...))``. A method that :class:`~thinwire.Auto` chose is written out with it where its split
    has changed. A packet is read as one of the round in which it was sent, so both ends change together, and a reply
    that comes late is read as it was meant.

    Raises ``ValueError`` where ``rounds`` is below 1, and ``CombinationError`` for links of two kinds, for links whose
    receivers have a memory, and when it is opened for links that keep a state at the sender's end alone.
    """

    example: ClassVar[str] = "Switch(TopK(0.01), then=TopK(0.02), rounds=10)"

    first: Link
    then: Link
    rounds: Annotated[int, Range(lambda x: x >= 1, "is a number of rounds, 1 or more")]

    linear = False

    def __post_init__(self) -> None:
        if _kind(self.first) != _kind(self.then):
            raise CombinationError(
                f"Switch({self.first!r}, {self.then!r}): both must be links of one kind, such as TopK(0.01) and "
                f"TopK(0.02), and so must the links that they hold"
            )
        if self.memory:
            raise self._stateful()

    def _stateful(self) -> CombinationError:
        return CombinationError(
            f"Switch({self.first!r}, ...): {type(self.first).__name__} keeps a state between messages, which the other "
            f"would have to take over; put it around: ErrorFeedback(Switch(...))"
        )

    @property
    def held(self) -> Iterable[Link]:
        return self.first, self.then

    def of(self, key: Key) -> Link:
        """The link of a round."""
        return self.first if key.round <= self.rounds else self.then

    def open(self, like: Params) -> tuple[State, State]:
        if any(state is not None for link in self.held for state in link.open(like)):
            raise self._stateful()
        return None, None

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        return self.of(key).send(x, tx, key)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self.of(key).recv(packet, layout, rx, key)

    def check(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self.of(key).check(packet, layout, rx, key)

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        return self.of(key).look(x, tx, key)

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return self.first.by_layer(packet, layout)  # a packet shows of which numbers it is

    def floats(self, packet: Packet) -> float:
        return self.first.floats(packet)


def _kind(value: Any) -> Any:
    """What a link and the links in it are, without their numbers: so a packet of one is counted as one of the other."""
    if isinstance(value, Link):
        return type(value), [_kind(getattr(value, field.name)) for field in fields(value)]  # type: ignore[arg-type]
    if isinstance(value, dict):
        return [(name, _kind(part)) for name, part in value.items()]
    return list(map(_kind, value)) if isinstance(value, tuple | list) else None
