"""LBGM, the look-back gradient multiplier.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are
Gradient Subspaces Low-Rank?", ICLR 2022, Algorithms 1 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Size

from ..config import LATER
from ..errors import CombinationError, check, require
from ..key import Key
from ..params import Layout, Params
from ..ranges import NonNegative, Range
from ..wire import Packet, Several, State, dumps, loads
from .base import LBGMTest, Link, Wrapper, floats, number
from .dense import Dense
from .sparse import Sparse

SquaredSine = Annotated[float, Range(lambda x: 0 <= x <= 1, "is a squared sine, 0 to 1")]


class LookBack(NamedTuple):
    """l, and the inner sender's state."""

    gradient: Params | Several  # l, or the messages that it was sent in
    inner: State


@dataclass(frozen=True)
class LBGM(Wrapper):
    """Send one scalar while the update keeps its direction.

    Both ends keep l, the last update that was sent whole, as ``inner`` delivered it. If the squared sine of the angle
    between the new update g and l is at most ``threshold`` (the paper's delta), the scalar rho = <g, l> / |l|^2 is
    sent, 4 bytes (8 of a model in 64 bits), and the receiver sees rho * l. Otherwise ``inner`` sends, and what it
    delivers becomes l. The whole vector is tested at once; ``Layerwise(LBGM(...))`` tests layer by layer, as the
    authors' code does. :meth:`look` gives the test's values, and ``simulate(..., record="looks")`` records those of
    every reply. Raises ``ValueError`` unless 0 <= threshold <= 1, and ``CombinationError`` if the receiver of ``inner``
    keeps a memory.

    ``delta``, where given, is the length that a recycled update may lose: it is recycled if |g|^2 sin^2 <= delta^2 as
    well. That is Theorem 1's condition on the threshold, Delta^2 / |d|^2, which falls where updates are long. With
    ``threshold=1.0`` it decides alone. Of ``Layerwise(LBGM(...))`` it is each layer's. A tuple has one threshold, or
    one delta, for each client by its number: ``LBGM(threshold=(0.1, 0.1, 0.4))``. Sending raises ``ValueError`` for a
    client that has none.

    ``compare`` says what g is. With "delivered", as in the paper, g is what the inner link would deliver. The inner
    link is asked in each round and keeps its next state, recycled or not: ``LBGM(ErrorFeedback(TopK(0.1)))``. With
    "dense", g is the update as it is. The inner link is asked only when it sends, and a recycled round leaves its
    state alone. Recycling then loses at most ``threshold`` of |g|^2. So if the inner link is a contraction, LBGM is
    one too, and ``ErrorFeedback(LBGM(TopK(0.1), compare="dense"))`` is allowed. l is what was delivered in both
    cases, because the receiver has nothing else. So a threshold below the share of |g|^2 that the inner link leaves
    out hardly ever recycles.

    ``store="packet"`` keeps l as the message in which it came, and decodes it in each round. The memory of both ends
    is then as small as what was sent: Appendix C.1's compressed look-back gradient. Nothing else changes. The
    appendix's other answers to a memory of clients times model are ``simulate(..., states="disk")``, which keeps
    every client's ends in a file until the client is sampled, and :class:`~thinwire.ClusteredLBGM`.

    Differences from the paper: g is the change of the model over the round. For plain SGD it equals the sum of
    gradients times the learning rate, and it stays right with momentum and decay. In the authors' code top-k enters the
    bill alone: the dense update with its residual is tested, kept and applied, and a round is billed as the smaller of
    LBGM's message and top-k's values. No link here does that, because no receiver could. With error feedback even a
    constant update is delivered at ever other places, so hardly any round recycles. Sampled clients are weighted over
    those that took part. Theorem 1's d is the gradient of a local step, and ``delta`` is in the units of g: for plain
    SGD it is the paper's Delta times the learning rates of a round's steps, added up. Algorithm 3 as printed shrinks
    the step by the share of clients sampled.
    """

    paper = "Azam et al., ICLR 2022"

    inner: Link = Dense()
    threshold: SquaredSine | tuple[SquaredSine, ...] = 0.2
    compare: Literal["delivered", "dense"] = "delivered"
    store: Literal["dense", "packet"] = "dense"
    delta: NonNegative | tuple[NonNegative, ...] | None = field(default=None, metadata=LATER)

    linear = False
    memory = True
    absolute = False

    def __post_init__(self) -> None:
        if self.inner.memory:
            raise CombinationError(f"LBGM needs an inner link whose receiver has no memory; {self.inner!r} has one")
        empty = next((name for name in ("threshold", "delta") if getattr(self, name) == ()), None)
        require(empty is None, f"LBGM({empty}=()): a number is expected, or a tuple of one for each client")

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        # Compared with what was delivered, what both leave out may add up to more than there was.
        bounded = isinstance(self.inner, Dense | Sparse) or (self.compare == "dense" and self.inner.contraction)
        return bounded and (max(self.threshold) if isinstance(self.threshold, tuple) else self.threshold) < 1

    def open(self, like: Params) -> tuple[State, State]:
        l = like.zeros() if self.store == "dense" else Several([], b"")  # noqa: E741  the paper's letter
        return LookBack(l, self.inner.open(like)[0]), l

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        l = self._look_back(tx.gradient, x.layout)  # noqa: E741
        if self.compare == "dense" and (rho := multiplier(x, l, *self._limits(key))) is not None:
            return rho, l * rho, tx
        packet, g, inner = self.inner.send(x, tx.inner, key)
        if self.compare == "delivered" and (rho := multiplier(g, l, *self._limits(key))) is not None:
            return rho, l * rho, LookBack(tx.gradient, inner)
        return [packet], g, LookBack(self._keep(tx.gradient, packet, g, key), inner)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if not isinstance(packet, list):
            return self._look_back(rx, layout) * number(packet, layout.dtype), rx
        check(len(packet) == 1, "a whole update or one number")
        g, _ = self.inner.recv(packet[0], layout, None, key)
        return g, self._keep(rx, packet[0], g, key)

    def residual(self, tx: State) -> Params | None:
        return self.inner.residual(tx.inner)

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        if isinstance(packet, list):
            return self.inner.by_layer(packet[0], layout)
        return {layout.names[0] if len(layout.names) == 1 else "*": packet}

    def floats(self, packet: Packet) -> float:
        return self.inner.floats(packet[0]) if isinstance(packet, list) else floats(packet)

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        l = self._look_back(tx.gradient, x.layout)  # noqa: E741
        g = x if self.compare == "dense" else self.inner.send(x, tx.inner, key)[1]
        return {x.names[0] if len(x.names) == 1 else "*": compare(g, l, *self._limits(key))}

    def _limits(self, key: Key) -> tuple[float, float | None]:
        """The client's threshold and delta."""
        delta = None if self.delta is None else _of_client("delta", self.delta, key.client)
        return _of_client("threshold", self.threshold, key.client), delta

    def _look_back(self, kept: State, layout: Layout) -> Params:
        """L on the layers of ``layout``; zero where nothing was sent yet."""
        if isinstance(kept, Params):
            return kept.only(layout.names)
        l = layout.zeros()  # noqa: E741
        for message in kept:  # oldest first
            then, layers, packet = _open(message)
            own = Layout(tuple(layers), tuple(map(Size, layers.values())), layout.dtype)
            g, _ = self.inner.recv(packet, own, None, Key(*then))
            l = l.replace(g.only(layers.keys() & layout.spans.keys()))  # noqa: E741
        return l

    def _keep(self, kept: State, packet: Packet, g: Params, key: Key) -> State:
        """L is now g on the layers that g has: the packet goes after those that are still needed for the others."""
        if isinstance(kept, Params):
            return kept.replace(g)
        if not g.names:
            return kept
        named = zip(g.names, g.layout.shapes, strict=True)
        messages = [dumps([list(key), {name: list(shape) for name, shape in named}, packet])]
        newer = set(g.names)
        for message in reversed(kept):
            layers = _open(message)[1].keys()
            if layers - newer:
                messages.insert(0, message)
                newer |= layers
        return Several(messages, b"")


def _open(message: bytes) -> list[Packet]:
    """The key, the layers and their shapes, and the packet of a message that was kept."""
    parts: list[Packet] = loads(message, max_values=None, finite=False)
    return parts


def _of_client(name: str, value: float | tuple[float, ...], client: int | None) -> float:
    """A number that all clients share, or a client's own."""
    if not isinstance(value, tuple):
        return value
    there, last = client is not None and client < len(value), len(value) - 1
    require(there, f"LBGM({name}={value}) is for clients 0 to {last}: give client {client} a {name} too")
    assert client is not None
    return value[client]


def compare(g: Params, l: Params, threshold: float, delta: float | None = None) -> LBGMTest:  # noqa: E741
    """How far g is from l, and whether it may be recycled (Algorithm 1, lines 6 and 7, and Theorem 1's condition).

    It may not where l is zero, or where the square of g or rho is not finite. If g is zero, rho is zero.
    """
    whole = g.to(torch.float64), l.to(torch.float64)  # once: each product would make these copies of its own
    gg, ll, gl = whole[0] @ whole[0], whole[1] @ whole[1], whole[0] @ whole[1]
    if ll == 0 or not math.isfinite(gg):
        return LBGMTest(None, None, False, math.sqrt(gg))  # nothing to look back on, or nothing to compare
    if gg == 0:
        return LBGMTest(0.0, 0.0, True, 0.0)
    sine = min(1.0, max(0.0, 1 - gl * gl / (gg * ll)))  # squared
    rho = torch.tensor(gl / ll, dtype=g.layout.dtype, device="cpu")
    near = sine <= threshold and (delta is None or sine * gg <= delta * delta)
    return LBGMTest(sine, gl / ll, near and bool(rho.isfinite()), math.sqrt(gg))


def multiplier(g: Params, l: Params, threshold: float, delta: float | None = None) -> torch.Tensor | None:  # noqa: E741
    """rho, as a number of the type that g has, if g may be recycled, else None."""
    compared = compare(g, l, threshold, delta)
    return torch.tensor(compared.rho, dtype=g.layout.dtype, device="cpu") if compared.recycled else None
