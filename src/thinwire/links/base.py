"""A link: one direction of one wire, the sender's half and the receiver's half together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from ..config import Config
from ..errors import NonFinite, check
from ..key import Key
from ..params import Layout, Params, fold, is_finite
from ..passing import pass_on
from ..wire import MOST, Packet, State, conform, modest

SEVERAL = ("open", "send", "recv", "look", "by_layer", "floats")  # what a link that holds several has to write


class LBGMTest(NamedTuple):
    """How an update was compared with the one before it (LBGM)."""

    sin2: float | None  # the squared sine of the angle between them; None: there is nothing to compare with
    rho: float | None  # the multiple of the one before that is nearest
    recycled: bool  # whether rho alone is sent
    norm: float  # of the update


class Link(Config, ABC):
    """What one side does to send ``Params``, and what the other side does to receive them.

    The contract:

    - ``send`` returns the packet, what the receiver will see, and the sender's next state. What the receiver will see
      is, bit for bit, what ``recv`` makes of ``loads(dumps(packet))``.
    - Both ends keep a state that goes in and comes out. After a lost message both go on from the states before it.
    - ``x`` must be finite. Runners see to that. On NaN, infinity, or numbers too large for the link, ``send`` raises
      :class:`NonFinite` with the link's name, or makes a packet that ``loads`` or ``recv`` rejects; links of signs, of
      cut numbers, and of a few entries may not notice. The old states remain valid.
    - A state shares no memory with what was given or returned. A caller may reuse the buffers of ``x``, of the packet
      and of what the receiver sees.
    - ``x`` may hold fewer layers than the link was opened with. Then only their part of the state changes. ``layout``
      is the layout of the layers that were sent, and the message says which they are.
    - What the receiver sees is of the layout's ``dtype``. Dense and Sparse send 64-bit floats as they are, and links
      that hold them (LBGM, ErrorFeedback, Layerwise) compute in 64 bits. All other links round to 32 bits first.
    """

    example = "TopK(0.01)"

    linear: bool = False
    """The mean of packets decodes to the mean (of count sketches: to its estimate). So the server decodes once, and
    all-reduce is allowed."""
    contraction: bool = False
    """``‖x - seen‖ <= c ‖x‖`` with c < 1: what error feedback needs."""
    memory: bool = False
    """The receiver's half keeps a state between messages."""
    absolute: bool = False
    """The receiver sees values near ``x`` itself, whatever x is. Broadcasts need that: they are absolute values."""
    sparse: bool = False
    """A message has some entries, and the receiver sees zeros elsewhere: it is known of each entry who sent it."""
    feedback: bool = False
    """The sender keeps what a message left out, :meth:`residual`, and adds it to the next one."""

    def open(self, like: Params) -> tuple[State, State]:
        """The sender's and the receiver's state before the first message.

        ``like`` has the layers, and the values that both ends know: the model for a broadcast, zeros for a reply.
        """
        return None, None

    @abstractmethod
    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        """The packet, what the receiver will see, and the sender's next state.

        Raises :class:`NonFinite` if ``x`` is not finite and the link relies on that.
        """

    @abstractmethod
    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        """What was sent, as layers of ``layout``, and the receiver's next state.

        Raises ``WireError`` for a packet that is no packet of this link.
        """

    def residual(self, tx: State) -> Params | None:
        """What the sender adds to the next message: all that earlier ones left out. None unless ``feedback``.

        It is read, never written to: it may be a part of the state.
        """
        return None

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        """The tests that :meth:`send` would decide by, given the same: by layer, or ``*`` for all layers as one vector.

        Empty for a link that tests nothing. No state changes.
        """
        return {}

    def check(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        """:meth:`recv` of a packet that anyone may have made. Raises ``WireError``, and changes nothing.

        A packet that passes is accepted by ``recv``, and of a linear link also by ``fold`` and ``scale``. Everything
        that they make of it is finite. By default this asks ``recv``, so a link whose ``recv`` is strict about
        shapes, types, lengths and ranges needs no other check. A linear link's packet also has to be like
        :meth:`shape`. No packet may make ``recv`` take more memory or time than an honest packet of the same layers.
        """
        if self.linear:
            conform(packet, self.shape(layout, key))
        check(modest(packet), f"numbers of at most {MOST:.0e}")
        seen, rx = self.recv(packet, layout, rx, key)
        check(modest(seen), f"numbers of at most {MOST:.0e}")
        return seen, rx

    def shape(self, layout: Layout, key: Key) -> Packet:
        """The shape of all packets of a linear link: the packet of zeros, with tensors that take no memory."""
        zero = layout.zeros()
        return _hollow(self.send(zero, self.open(zero)[0], key)[0])

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        """``total + weight * packet``: how a linear link is averaged before it is decoded."""
        if isinstance(packet, Tensor):
            return fold(total, packet, weight)
        if isinstance(packet, list):
            return [self.fold(None if total is None else total[i], p, weight) for i, p in enumerate(packet)]
        return packet  # None, or what is the same for every sender

    def scale(self, total: Packet, whole: float) -> Packet:
        """``total / whole``: ends what :meth:`fold` began."""
        if isinstance(total, Tensor):
            return total / whole
        return [self.scale(t, whole) for t in total] if isinstance(total, list) else total

    def mean(self, packets: Sequence[Packet], weights: Sequence[float]) -> Packet:
        """The weighted mean of packets, for linear links."""
        total = None
        for packet, weight in zip(packets, weights, strict=True):
            total = self.fold(total, packet, weight)
        return self.scale(total, sum(weights))

    def mean_of_senders(self, packets: Sequence[Packet], layout: Layout, key: Key) -> Params:
        """Of each entry the mean over the packets that have it; zero where none has. Of sparse links without memory.

        A packet has the entries of which something other than zero is seen. ``key`` is that of the first sender, and
        the others count on from it.
        """
        total, count = layout.zeros().flat, layout.zeros().flat
        for number, packet in enumerate(packets):
            seen = self.recv(packet, layout, None, key._replace(client=number))[0].flat
            total.add_(seen)
            count.add_(seen != 0)
        return Params(layout, total.div_(count.clamp_(min=1)))

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        """The parts of a packet of these layers that belong to one layer alone; ``*`` is what belongs to several."""
        return {"*": packet}

    def floats(self, packet: Packet) -> float:
        """The paper's own figure: how many 32-bit floats the values are worth.

        Indices, masks and headers count nothing. It is not bytes: those are the ``len`` of what was sent.
        """
        return floats(packet)


class Codec(Link):
    """A link without memory that treats each layer alone: write ``encode`` and ``decode``."""

    example = "Half()"

    grows: bool = False
    """What the receiver sees may be larger than ``x``, up to infinity. So ``send`` checks that it is finite."""
    packed: bool = False
    """Whole numbers in a packet are values too, four bytes of them worth a float."""

    @abstractmethod
    def encode(self, x: Tensor, key: Key) -> Packet:
        """One layer, a 32-bit tensor in its own shape, as a packet."""

    @abstractmethod
    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        """The layer the other side sees: a 32-bit tensor of this shape."""

    def transcode(self, x: Tensor, key: Key) -> tuple[Packet, Tensor]:
        """``encode``, and what ``decode`` makes of it. To write where a sender knows that without decoding."""
        packet = self.encode(x, key)
        return packet, self.decode(packet, x.shape, key)

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, seen = list[Packet](), x.layout.zeros()
        for name, layer in x.to(torch.float32).items():
            coded, decoded = self.transcode(layer, key.at(name))
            packet.append(coded)
            seen[name].copy_(decoded)
        if self.grows:
            finite(self, seen.flat)
        return packet, seen, None

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self._decode(parts(packet, len(layout.names), "one packet a layer"), layout, key), None

    def _decode(self, packet: list[Packet], layout: Layout, key: Key) -> Params:
        named = zip(packet, layout.names, layout.shapes, strict=True)
        return join(layout, (self.decode(p, shape, key.at(name)) for p, name, shape in named))

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return dict(zip(layout.names, packet, strict=True))

    def floats(self, packet: Packet) -> float:
        return sum(self.count(p) for p in packet)

    def count(self, packet: Packet) -> float:
        """:meth:`floats` of one layer's packet."""
        return floats(packet) + (octets_in(packet) / 4 if self.packed else 0.0)


class Drawn(Codec):
    """A codec of entries that both ends draw from the shared seed, the same for all clients of a round.

    With ``unbiased``, a field of each, the receiver divides the values by the share that was sent.
    """

    unbiased: bool
    linear = True

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        return not self.unbiased

    @property
    def grows(self) -> bool:  # type: ignore[override]
        return self.unbiased


@pass_on(
    Link,
    check=("recv",),
    by_layer=("recv",),
    mean_of_senders=("recv",),
    shape=("open", "send"),
    mean=("fold", "scale"),
    look=("open",),
    residual=("open",),
)
class Wrapper(Link):
    """A link around another one, ``inner``: what it does not write, flags and methods, is the inner link's.

    Where it writes ``recv``, packets may have a form of its own: ``check`` asks ``recv`` then, and ``by_layer`` takes a
    packet for that of several layers. Where it writes ``open``, states may be of its own: ``look`` then says that
    nothing is tested, and ``residual`` that there is none. ``shape`` and ``mean`` are made of ``open``, ``send``,
    ``fold`` and ``scale`` where it writes one of these. What is right beyond that it writes itself.

    One that holds several links names them in ``held`` and writes the methods itself. It is linear, a contraction or
    absolute if all of them are, and it has a memory if one of them has. Raises ``TypeError`` when such a class is made
    that lacks one.
    """

    inner: Link

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        needed = (*SEVERAL, "fold", "scale") if cls.linear is Wrapper.linear else SEVERAL
        several = cls.held is not Wrapper.held
        lacking = [name for name in needed if several and getattr(cls, name) is getattr(Wrapper, name)]
        if lacking:
            raise TypeError(
                f"{cls.__name__} holds several links, and does not write {' and '.join(lacking)}: none of them is the "
                f"one to be asked"
            )

    @property
    def held(self) -> Iterable[Link]:
        """The links whose flags count."""
        return (self.inner,)

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return all(link.linear for link in self.held)

    @property
    def contraction(self) -> bool:  # type: ignore[override]
        return all(link.contraction for link in self.held)

    @property
    def memory(self) -> bool:  # type: ignore[override]
        return any(link.memory for link in self.held)

    @property
    def absolute(self) -> bool:  # type: ignore[override]
        return all(link.absolute for link in self.held)

    @property
    def sparse(self) -> bool:  # type: ignore[override]
        """As the flags above. A class that writes ``recv`` may move entries: one that does not says ``in_place``."""
        return type(self).recv is Wrapper.recv and all(link.sparse for link in self.held)

    @property
    def feedback(self) -> bool:  # type: ignore[override]
        """Whether one of the links has it, and this one does not hide that from others in states of its own."""
        hides = type(self).open is not Wrapper.open and type(self).residual is Wrapper.residual
        return not hides and any(link.feedback for link in self.held)

    def open(self, like: Params) -> tuple[State, State]:
        return self.inner.open(like)

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        return self.inner.send(x, tx, key)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self.inner.recv(packet, layout, rx, key)


in_place = property(lambda self: all(link.sparse for link in self.held))
"""``sparse`` of a wrapper that leaves entries where they are: whether the links in it are."""


def floats(packet: Packet) -> float:
    """32-bit floats' worth of floating-point values anywhere in a packet."""
    if isinstance(packet, Params):
        packet = packet.flat
    if isinstance(packet, Tensor):
        return packet.numel() * packet.dtype.itemsize / 4 if packet.is_floating_point() else 0.0
    if isinstance(packet, dict):
        packet = list(packet.values())
    return float(sum(map(floats, packet))) if isinstance(packet, list | tuple) else 0.0


def octets_in(packet: Packet) -> int:
    """Bytes of whole numbers in one layer's packet, a tensor or a list of tensors."""
    tensors = packet if isinstance(packet, list) else [packet]
    return sum(x.nbytes for x in tensors if not x.is_floating_point())


def _hollow(packet: Packet) -> Packet:
    """A packet whose tensors have one entry, seen as often as there were."""
    if isinstance(packet, Tensor):
        return packet.new_zeros(()).expand(packet.shape)
    return [_hollow(part) for part in packet] if isinstance(packet, list) else packet


def finite(link: Link, x: Tensor) -> Tensor:
    """Return ``x``. Raises :class:`NonFinite`, with the link's name, if an entry is NaN or infinite."""
    if not is_finite(x):
        raise NonFinite(
            f"{link!r} was given NaN, infinity, or numbers too large for what it makes of them; "
            f"lower the learning rate or clip"
        )
    return x


def join(layout: Layout, layers: Iterable[Tensor]) -> Params:
    """The layers of a layout, given in its order, as one vector."""
    flat = layout.zeros().flat
    for (start, size, _), layer in zip(layout.spans.values(), layers, strict=True):
        flat[start : start + size] = layer.reshape(-1)
    return Params(layout, flat)


def width(shape: Size) -> int:
    """The length of a row of a layer as the matrix [first dimension, all others]; 0 of a layer of one dimension."""
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def parts(packet: Packet, count: int, expected: str) -> list[Packet]:
    """The packet. Raises ``WireError``, with ``expected`` in its text, unless it is a list of ``count`` parts."""
    check(isinstance(packet, list) and len(packet) == count, expected)
    parts: list[Packet] = packet
    return parts


def vector(packet: Packet, size: int, *dtypes: torch.dtype) -> Tensor:
    """The packet. Raises ``WireError`` unless it is a vector of this size and one of these types."""
    kinds = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    check(
        isinstance(packet, Tensor) and packet.dtype in dtypes and packet.shape == (size,),
        f"{size} numbers of {kinds}",
    )
    tensor: Tensor = packet
    return tensor


def row(packet: Packet, dtype: torch.dtype) -> Tensor:
    """The packet. Raises ``WireError`` unless it is a vector of this type, of any size: the caller checks that."""
    check(isinstance(packet, Tensor) and packet.dtype == dtype and packet.ndim == 1, f"a row of {dtype}")
    tensor: Tensor = packet
    return tensor


def octets(packet: Packet) -> Tensor:
    """The packet. Raises ``WireError`` unless it is a row of bytes. The caller checks how many bytes there are."""
    return row(packet, torch.uint8)


def number(packet: Packet, dtype: torch.dtype = torch.float32) -> Tensor:
    """The packet. Raises ``WireError`` unless it is one number of this type."""
    check(isinstance(packet, Tensor) and packet.dtype == dtype and packet.shape == (), "one number")
    tensor: Tensor = packet
    return tensor
