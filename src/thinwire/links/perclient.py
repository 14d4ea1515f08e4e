"""A downlink per client: the server knows what each client holds, and sends it the difference to what there is now.

Differences from the paper: none claims this method. The step that a message makes is that of EF21 (Richtárik, Sokolov,
Fatkhullin, NeurIPS 2021, arXiv:2106.05203, Algorithm 2), taken for each client by itself and after each absence.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import CombinationError
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State, length
from .base import Link, Wrapper, finite, parts, vector
from .dense import Dense
from .feedback import Estimate, check_compressor, check_memoryless
from .sparse import TopK


@dataclass(frozen=True)
class PerClient(Wrapper):
    """A link of broadcasts (``down=``): each client is sent one message for all that changed since it was called last.

    g is what a client holds. Client and server keep it: g <- g + C(x - g), where C is ``inner`` and x the newest value.
    After ten rounds away a client gets one message about the whole difference, which takes fewer bytes, or leaves less
    error, than the ten messages of a stream such as ``EF21(inner)``. Where C(x - g) is no fewer bytes than x, x is sent
    as it is: so ``PerClient(Dense())`` loses nothing. What a message leaves out is in the next difference. Error
    feedback is therefore in it already, and ``inner`` needs none.

    A message that was lost, or whose answer was, leaves both ends as they were. The first message is the whole
    broadcast as it is; with ``start="known"`` it is the difference to the starting model, and nothing while that is the
    newest.

    The server keeps one vector of the field's size for each client that has taken part, and one for each call that is
    not answered yet: 4 bytes a parameter, in memory or with ``states="disk"`` on disk. It encodes one message for each
    client it calls, where a stream encodes one a round. A simulation keeps no second copy for the client.

    ``auto`` takes the stream instead, as ``EF21(inner)`` has it, where that is predicted to be no more bytes
    (:func:`thinwire.federated.views.visit`), as it is where every client takes part in each round.

    It may be the link of one field or of all (``down={"x": PerClient(TopK(0.1))}``), and goes around other links, never
    into them. Raises ``CombinationError`` if the inner link is no contraction, or if its receiver keeps a memory; and
    when a run begins, over a method whose broadcasts are not whole by themselves (FLSS, FedMut and others), and as an
    uplink, whose ends are one client's anyway.
    """

    inner: Link = TopK(0.1)
    auto: bool = False

    linear = False
    contraction = False
    memory = True
    absolute = True

    def __post_init__(self) -> None:
        if isinstance(self.inner, PerClient):
            raise CombinationError(f"PerClient goes around other links, not into them: {self.inner!r} is one already")
        check_compressor(self, self.inner, "what a client holds would not come nearer")
        check_memoryless(self, self.inner)

    def open(self, like: Params) -> tuple[State, State]:
        return Estimate(like.clone(), self.inner.open(like.zeros())[0]), like.clone()

    def mirror(self, tx: State) -> State:
        """The receiving end that goes with a sending end."""
        return tx.seen

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        before = tx.seen.only(x.names)
        packet, step, inner = self.inner.send(x - before, tx.inner, key)
        if length(packet) >= length(x.flat):
            finite(self, x.flat)
            return x.flat, x.clone(), Estimate(tx.seen.replace(x), inner)
        seen = before + step
        finite(self, seen.flat)
        return [packet], seen, Estimate(tx.seen.replace(seen), inner)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if isinstance(packet, Tensor):
            seen = Params(layout, vector(packet, layout.size, layout.dtype))
        else:
            step, _ = self.inner.recv(parts(packet, 1, "one packet, or the numbers")[0], layout, None, key)
            seen = rx.only(layout.names) + step
        return seen, rx.replace(seen)

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        inner, packet = (Dense(), packet) if isinstance(packet, Tensor) else (self.inner, packet[0])
        return inner.by_layer(packet, layout)

    def floats(self, packet: Packet) -> float:
        return Dense().floats(packet) if isinstance(packet, Tensor) else self.inner.floats(packet[0])
