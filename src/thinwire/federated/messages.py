"""Replies and broadcasts as bytes: every Params field through its link.

A message is a NamedTuple, of NamedTuples where algorithms wrap each other. It is sent as
the list of its leaves, in order; a Params leaf as ``[which layers, packet]``: None for all
of them, the number of one, a bit for each otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms.base import Algorithm, Start, exact, kinds
from ..errors import CombinationError, NonFinite, WireError, check
from ..key import Key
from ..links import Dense, Link, PerClient, Wrapper
from ..links.bandwidth import goes_by_rate
from ..links.base import floats
from ..params import Layout, Params, is_finite
from ..wire import MOST, Packet, State, all_finite, largest, length, loads, modest, restore

Message = Any  # a NamedTuple
BUFFERS = "buffers"  # the name of a field of norm statistics
ABSOLUTE = {"down": "a broadcast", "personal": "a message to one client"}  # whose fields are absolute values


class Leaf(NamedTuple):
    """A field of a message that holds a value."""

    name: str  # "update"; "inner/x" inside another message
    blank: Any  # a value of its type and layout
    link: Link | None  # of Params fields
    kind: str = "mean"  # or "each", "sum"
    exact: bool = False  # whether it is marked so

    @property
    def statistics(self) -> bool:
        """Whether it is norm statistics."""
        return self.name.rpartition("/")[2] == BUFFERS


class Body(list[Packet]):
    """The packets of a message that was read, field by field, and the largest number of each."""

    def __init__(self, packets: Sequence[Packet]) -> None:
        super().__init__(packets)
        self.largest = [largest(packet) for packet in packets]


@dataclass(frozen=True)
class Form:
    """The form of a message: its blank, its leaves and their links, the direction it goes."""

    blank: Message
    leaves: tuple[Leaf, ...]
    where: str  # "up", "down", or "personal" for what one client alone is sent

    @staticmethod
    def of(blank: Message, links: Link | Mapping[str, Link], where: str, buffers: Params | None = None) -> Form:
        """``links`` is one for every Params field, or a dict by field name (Dense for the others).

        ``buffers``, where given, are a last leaf of their own. Norm statistics, which any field of this name is, are
        always dense, and so is an ``Exact`` field that no dict names.
        """
        names = {name.rpartition("/")[2] for name, value, _ in _walk(blank) if isinstance(value, Params)} - {BUFFERS}
        if isinstance(links, Mapping) and (unknown := set(links) - names):
            raise ValueError(
                f"{where}= names {sorted(unknown)[0]!r}, but the fields it can carry are {', '.join(sorted(names))}"
            )
        leaves, kept = [], set(_exact(blank))
        for name, value, kind in _walk(blank):
            link = None
            if isinstance(value, Params):
                last = name.rpartition("/")[2]
                link = links if isinstance(links, Link) else links.get(last, Dense())
                link = Dense() if last == BUFFERS or (name in kept and links is link) else link
                _apart(link, where)
                if where == "down" and goes_by_rate(link):
                    raise CombinationError(
                        f"{where}={link!r}: what the server sends goes by no client's uplink: ByBandwidth is for up="
                    )
                if where in ABSOLUTE and not link.absolute:
                    raise CombinationError(
                        f"{where}={link!r} cannot carry {ABSOLUTE[where]}: its fields are absolute values, and the "
                        f"link does not promise to keep them (absolute = True in its class); send differences with "
                        f"EF21(...), e.g. {where}=EF21(TopK(0.1)), or use Half()"
                    )
            leaves.append(Leaf(name, value, link, kind, name in kept))
        if buffers is not None and buffers.names:
            leaves.append(Leaf(BUFFERS, buffers, Dense()))
        return Form(blank, tuple(leaves), where)

    @property
    def fields(self) -> dict[str, str]:
        """What becomes of each field: "mean", "each", "sum", or "number" for the mean of what no link carries."""
        return {leaf.name: "number" if leaf.link is None and leaf.kind == "mean" else leaf.kind for leaf in self.leaves}

    def values(self, msg: Message, buffers: Params | None = None) -> list[Any]:
        """The leaves' values, in order."""
        values = [value for _, value, _ in _walk(msg)]
        return [*values, buffers] if len(values) < len(self.leaves) else values

    def norms(self, values: Sequence[Any], exact: bool = True) -> dict[str, float]:
        """The Euclidean norms of the Params fields that have layers here, by name; norm statistics aside.

        Unless ``exact`` they are summed in the numbers' own type, to four digits in a tenth of the time.
        """
        pairs = zip(self.leaves, values, strict=True)
        fields = {leaf.name: x for leaf, x in pairs if isinstance(x, Params) and x.names and not leaf.statistics}
        return {name: x.norm() if exact else _about_norm(x) for name, x in fields.items()}

    def build(self, values: Sequence[Any]) -> tuple[Message, Params | None]:
        """The message, and the buffers it carries."""
        queue = iter(values)
        msg = _build(self.blank, queue)
        return msg, next(queue, None)

    def fill(self, values: Sequence[Any]) -> list[Any]:
        """Values all of whose layers are there: those that are not are the blank's."""
        pairs = zip(self.leaves, values, strict=True)
        return [leaf.blank.replace(value) if isinstance(value, Params) else value for leaf, value in pairs]

    def open(self, like: Sequence[Any] | None = None) -> tuple[State, State]:
        """The states of both ends of every leaf's link, opened on ``like`` or on the blank."""
        values = [leaf.blank for leaf in self.leaves] if like is None else like
        ends = [leaf.link.open(v) if leaf.link else (None, None) for leaf, v in zip(self.leaves, values, strict=True)]
        return [tx for tx, _ in ends], [rx for _, rx in ends]

    def residual(self, tx: State) -> Message:
        """The blank message with what the links of these sending ends still owe: no layers where nothing is kept."""
        triples = zip(self.leaves, tx, self.nothing, strict=True)
        owed = [(None if leaf.link is None else leaf.link.residual(end), none) for leaf, end, none in triples]
        return self.build([none if value is None else value for value, none in owed])[0]

    @cached_property
    def nothing(self) -> list[Any]:
        """Of every leaf a value without layers; of one that no link carries its blank."""
        return [leaf.blank if leaf.link is None else leaf.blank.only(()) for leaf in self.leaves]

    @property
    def memory(self) -> bool:
        """Whether a receiver needs more than the last message."""
        return any(leaf.link is not None and leaf.link.memory for leaf in self.leaves)

    @property
    def per_client(self) -> bool:
        """Whether a link asks for ends of each client's own."""
        return any(isinstance(leaf.link, PerClient) for leaf in self.leaves)

    @property
    def auto(self) -> bool:
        """Whether all links that ask for ends of each client's own leave it open."""
        return all(leaf.link.auto for leaf in self.leaves if isinstance(leaf.link, PerClient))

    def mirror(self, tx: State) -> State:
        """The receiving ends that go with these sending ends, of links each of which is PerClient or has no memory."""
        pairs = zip(self.leaves, tx, self.open()[1], strict=True)
        return [leaf.link.mirror(end) if isinstance(leaf.link, PerClient) else rx for leaf, end, rx in pairs]

    def send(self, values: Sequence[Any], tx: State, key: Key) -> tuple[Packet, list[Any], State]:
        """The body of a message, what the other side will see of each leaf, the next states."""
        body, seen, ends = [], [], []
        for leaf, value, end in zip(self.leaves, values, tx, strict=True):
            packet = value
            if leaf.link is not None:
                which, packet = which_layers(value.layout, leaf.blank.layout), None
                if value.names or not leaf.blank.names:  # of a field without layers nothing is sent, no end moves
                    packet, value, end = self._code(leaf, value, end, key)
                packet = [which, packet]
            body.append(packet)
            seen.append(value)
            ends.append(end)
        return body, seen, ends

    def _code(self, leaf: Leaf, value: Params, end: State, key: Key) -> tuple[Packet, Params, State]:
        """What a field's link makes of its value. Raises :class:`NonFinite`, which names the field."""
        assert leaf.link is not None
        try:
            return leaf.link.send(value, end, key.at(f"{self.where}/{leaf.name}"))
        except NonFinite as error:
            client = "" if key.client is None else f", client {key.client}"
            layer = next((name for name, one in value.items() if not is_finite(one)), "")
            raise NonFinite(
                f"round {key.round}{client}: {leaf.name}{layer and f', layer {layer!r}'}: {error}"
            ) from error

    def look(self, values: Sequence[Any], tx: State, key: Key) -> list[dict[str, Any]]:
        """How links test what :meth:`send` is given the same: a line for each field and layer. No state changes."""
        lines: list[dict[str, Any]] = []
        for leaf, value, end in zip(self.leaves, values, tx, strict=True):
            if leaf.link is not None and value.names:
                looks = leaf.link.look(value, end, key.at(f"{self.where}/{leaf.name}"))
                lines += [{"field": leaf.name, "layer": layer, **look._asdict()} for layer, look in looks.items()]
        return lines

    def unsent(self, values: Sequence[Any]) -> list[str]:
        """The layers that fields leave out of which they have others: LUAR's recycled ones."""
        layers: list[str] = []
        for leaf, value in zip(self.leaves, values, strict=True):
            if leaf.link is not None and value.names:
                layers += [name for name in leaf.blank.names if name not in value.layout.spans]
        return layers

    def recv(self, body: Packet, rx: State, key: Key, strange: bool = False) -> tuple[list[Any], State]:
        """The value of each leaf, the next states. Raises ``WireError``. Links look at one that is ``strange``."""
        values, ends = [], []
        for leaf, packet, end, value in zip(self.leaves, self.check(body), rx, self.nothing, strict=True):
            if leaf.link is None:
                value = restore(packet, leaf.blank)
                check(not strange or modest(value), f"{leaf.name}: numbers of at most {MOST:.0e}")
            else:
                layout, inner = present(packet, leaf)
                decode = leaf.link.check if strange else leaf.link.recv
                if layout.names or not leaf.blank.names:
                    value, end = decode(inner, layout, end, key.at(f"{self.where}/{leaf.name}"))
            values.append(value)
            ends.append(end)
        return values, ends

    def read(self, blob: bytes, **bounds: Any) -> Body:
        """The body of a message; ``bounds`` are arguments of :func:`~thinwire.wire.loads`.

        Raises ``WireError``, which names the field, and the layer where it can be told, if a number is NaN or infinite.
        """
        body = Body(self.check(loads(blob, finite=False, **bounds)))
        for leaf, packet, size in zip(self.leaves, body, body.largest, strict=True):
            if not math.isfinite(size):
                layer = _flaw(leaf, packet)
                raise WireError(f"NaN or infinity in a message: in {leaf.name}{layer and f', layer {layer!r}'}")
        return body

    def own_part(self, blob: bytes) -> int:
        """Bytes of the fields that are not averaged, such as a client's own model; 0 if none can be read."""
        try:
            body = loads(blob)
            return sum(length(part) for leaf, part in zip(self.leaves, body, strict=True) if leaf.kind == "each")
        except (WireError, ValueError, TypeError):
            return 0

    def check(self, body: Packet) -> list[Any]:
        check(isinstance(body, list) and len(body) == len(self.leaves), f"{len(self.leaves)} fields")
        packets: list[Any] = body
        return packets

    def compare(self, body: Packet, outlines: Sequence[Message]) -> None:
        """Raise ``WireError`` where the fields of a body have other layers than each of some ``outlines`` has."""
        pairs = zip(self.leaves, self.check(body), strict=True)
        layers = [None if leaf.link is None else present(packet, leaf)[0].names for leaf, packet in pairs]
        choices = []
        for outline in outlines:
            values = [value.names if isinstance(value, Params) else None for _, value, _ in _walk(outline)]
            values += [leaf.blank.names for leaf in self.leaves[len(values) :]]  # norm statistics
            if values == layers:
                return
            choices.append(values)
        for leaf, names, expected in zip(self.leaves, layers, choices[0], strict=True):
            for name in expected or ():
                if name not in (names or ()):
                    raise WireError(f"its {leaf.name} lacks layer {name!r}, which no client leaves out in this round")
            for name in names or ():
                if name not in (expected or ()):
                    raise WireError(f"its {leaf.name} has layer {name!r}, which clients leave out in this round")

    def floats(self, body: Packet) -> float:
        """The papers' figure for a body that was sent here, or checked: what each link counts."""
        count = 0.0
        for leaf, packet in zip(self.leaves, body, strict=True):
            if leaf.link is None:
                count += floats(packet)
            elif packet[1] is not None:
                count += leaf.link.floats(packet[1])
        return count


def forms(algorithm: Algorithm, start: Start, buffers: Params | None) -> tuple[Form, Form]:
    """The forms of a method's replies and of its broadcasts."""
    message = algorithm.broadcast(start.server, start.view) if start.message is None else start.message
    up, down = Form.of(start.reply, algorithm.up, "up", buffers), Form.of(message, algorithm.down, "down", buffers)
    if down.per_client:
        if not algorithm.whole:
            raise CombinationError(
                f"{algorithm!r}: down=PerClient(...) needs broadcasts each of which is whole by itself, and this "
                f"method's clients go by all that they have heard; leave down at its default, or give it a link for "
                f"everyone"
            )
        for leaf in down.leaves:
            if leaf.link is not None and leaf.link.memory and not isinstance(leaf.link, PerClient):
                raise CombinationError(
                    f"down={{..., {leaf.name!r}: {leaf.link!r}}}: beside a field with PerClient(...) each client has "
                    f"ends of its own, so a link with a memory has to be one too, such as PerClient(TopK(0.1))"
                )
    return up, down


def _apart(link: Link, where: str) -> None:
    """Raise :class:`CombinationError` for a PerClient that is not the link of a broadcast's field."""
    inside = list(link.held) if isinstance(link, Wrapper) else []
    while inside:
        held = inside.pop()
        if isinstance(held, PerClient):
            raise CombinationError(
                f"{where}={link!r}: PerClient goes around other links, not into them: "
                f"PerClient({type(link).__name__}(...))"
            )
        inside += held.held if isinstance(held, Wrapper) else []
    if isinstance(link, PerClient) and where != "down":
        raise CombinationError(
            f"{where}={link!r}: PerClient is for broadcasts (down=); these messages have ends of one client's own"
        )


def noise_like(values: Sequence[Any], draw: torch.Generator) -> list[Any]:
    """Values in whose Params, layer by layer, there are normally distributed numbers."""

    def noise(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=draw, dtype=torch.float32, device="cpu").to(x.dtype)

    return [value.map(noise) if isinstance(value, Params) else value for value in values]


def present(packet: Packet, leaf: Leaf) -> tuple[Layout, Packet]:
    """Which layers a Params leaf carries, and its link's packet: None where it carries none of those there are."""
    check(isinstance(packet, list) and len(packet) == 2, f"layers and packet of {leaf.name}")
    layout, which = leaf.blank.layout, packet[0]
    if type(which) is int:
        check(0 <= which < len(layout.names), "the number of a layer")
        layout = layout.only([layout.names[which]])
    elif which is not None:
        bits = isinstance(which, Tensor) and which.dtype == torch.bool and which.shape == (len(layout.names),)
        check(bits, "a bit a layer")
        layout = layout.only(layout.named(which))
    check(layout.names or not leaf.blank.names or packet[1] is None, f"nothing for no layers of {leaf.name}")
    return layout, packet[1]


def _flaw(leaf: Leaf, packet: Packet) -> str:
    """The layer of a field's packet in which a number is NaN or infinite; empty where that cannot be told."""
    if leaf.link is None:
        return ""
    try:
        layout, inner = present(packet, leaf)
        if isinstance(inner, Tensor) and inner.shape == (layout.size,):
            parts = dict(Params(layout, inner).items())
        else:
            parts = leaf.link.by_layer(inner, layout)
    except Exception:  # a packet of any shape, that nobody has checked
        return ""
    return next((name for name, part in parts.items() if name in layout.spans and not all_finite(part)), "")


def which_layers(layers: Layout, whole: Layout) -> Packet:
    """What :func:`present` reads."""
    if layers is whole or layers == whole:
        return None
    return whole.names.index(layers.names[0]) if len(layers.names) == 1 else whole.mask(layers.names)


def _about_norm(x: Params) -> float:
    """The Euclidean norm to four digits."""
    norm = float(torch.linalg.vector_norm(x.flat))
    return norm if x.flat.dtype.itemsize >= 4 and 1e-15 < norm < 1e15 else x.norm()  # squares may not fit


def _walk(msg: Message, prefix: str = "", outer: str = "mean") -> Iterator[tuple[str, Any, str]]:
    """(name, value, kind) of every leaf. What is inside of a field that is marked is of its kind."""
    averaged = kinds(type(msg))  # type: ignore[arg-type]  # a class has a hash
    for name, value in zip(msg._fields, msg, strict=True):
        kind = averaged[name] if outer == "mean" else outer
        if hasattr(value, "_fields"):
            yield from _walk(value, f"{prefix}{name}/", kind)
        else:
            yield f"{prefix}{name}", value, kind


def _exact(msg: Message, prefix: str = "", outer: bool = False) -> Iterator[str]:
    """The names of leaves that are marked as exact, or lie in a field that is."""
    marked = exact(type(msg))  # type: ignore[arg-type]  # a class has a hash
    for name, value in zip(msg._fields, msg, strict=True):
        if hasattr(value, "_fields"):
            yield from _exact(value, f"{prefix}{name}/", outer or name in marked)
        elif outer or name in marked:
            yield f"{prefix}{name}"


def _build(blank: Message, queue: Iterator[Any]) -> Message:
    return type(blank)(*(_build(value, queue) if hasattr(value, "_fields") else next(queue) for value in blank))
