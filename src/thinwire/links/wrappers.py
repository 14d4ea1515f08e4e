"""Links that hold links: which part of the model each of them sees."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Size

from ..errors import check, require
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State
from .base import Codec, LBGMTest, Link, Wrapper, finite, in_place, join, parts


@dataclass(frozen=True)
class Flat(Wrapper):
    """The whole vector as one layer: ``Flat(TopK(0.01))`` keeps 1 % of the model, not of each layer.

    It holds a codec. Links with a memory go around it: ``ErrorFeedback(Flat(TopK(0.01)))``.
    """

    inner: Codec

    sparse = in_place

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packet, flat = self.inner.transcode(x.to(torch.float32).flat, key)
        if self.inner.grows:
            finite(self, flat)
        return packet, Params(x.layout, flat.to(x.layout.dtype)), None

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self._decode(packet, layout, key), None

    def _decode(self, packet: Packet, layout: Layout, key: Key) -> Params:
        return Params(layout, self.inner.decode(packet, Size([layout.size]), key).to(layout.dtype))

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        return self.inner.fold(None if total is None else [total], [packet], weight)[0]

    def scale(self, total: Packet, whole: float) -> Packet:
        return self.inner.scale([total], whole)[0]

    def floats(self, packet: Packet) -> float:
        return self.inner.count(packet)


@dataclass(frozen=True)
class Layerwise(Wrapper):
    """A link of its own for every layer: ``Layerwise(LBGM())`` looks back layer by layer.

    A message has one packet a layer, and both ends keep one state of ``inner`` a layer.
    """

    inner: Link

    sparse = in_place

    def open(self, like: Params) -> tuple[State, State]:
        return apart(self, {name: self.inner.open(like.only([name])) for name in like.names})

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packets, seen, tx = [], [], dict(tx)
        for name in x.names:
            packet, part, tx[name] = self.inner.send(x.only([name]), tx[name], key.at(name))
            packets.append(packet)
            seen.append(part.flat)
        return packets, join(x.layout, seen), tx

    def residual(self, tx: State) -> Params | None:
        return _beside(self.inner.residual(end) for end in tx.values())

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        looks: dict[str, LBGMTest] = {}
        for name in x.names:
            looks |= self.inner.look(x.only([name]), tx[name], key.at(name))
        return looks

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        packets = parts(packet, len(layout.names), "one packet a layer")
        seen, rx = [], dict(rx) if self.memory else None
        for name, one in zip(layout.names, packets, strict=True):
            part, end = self.inner.recv(one, layout.only([name]), rx[name] if rx else None, key.at(name))
            seen.append(part.flat)
            if rx:
                rx[name] = end
        return join(layout, seen), rx

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        return [self.inner.fold(total[i] if total else None, p, weight) for i, p in enumerate(packet)]

    def scale(self, total: Packet, whole: float) -> Packet:
        return [self.inner.scale(t, whole) for t in total]

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        return dict(zip(layout.names, packet, strict=True))

    def floats(self, packet: Packet) -> float:
        return sum(map(self.inner.floats, packet))


@dataclass(frozen=True)
class Partition(Wrapper):
    """Different links for different layers, by the first rule that fits: a pattern of names, or a number of entries.

    ``Partition({"*.bias": Dense(), "*": TopK(0.01)})``, ``Partition({"<1000": Dense(), ">=1000": TopK(0.01)})``, or
    both kinds together. The rules are tried in order. A size is written ``<``, ``<=``, ``>`` or ``>=`` and a number.
    A message has one packet a rule. Raises ``ValueError`` for a rule that cannot be read, and when it is opened for a
    layer that no rule fits, with the layer's name.
    """

    links: dict[str, Link]

    sparse = in_place

    def __post_init__(self) -> None:
        require(bool(self.links), 'Partition needs at least one rule, such as {"*": Dense()}')
        for rule in self.links:
            sized = rule[:1] not in ("<", ">") or SIZE.fullmatch(rule)
            require(bool(sized), f'Partition({{{rule!r}: ...}}): a size is written such as "<1000" or ">=1000"')

    @property
    def held(self) -> Iterable[Link]:
        return self.links.values()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and list(self.links.items()) == list(other.links.items())  # in order

    def names(self, layout: Layout) -> dict[str, list[str]]:
        """The layers that each rule takes. Raises ``ValueError`` for a layer that no rule fits."""
        taken: dict[str, list[str]] = {rule: [] for rule in self.links}
        for name, size in zip(layout.names, layout.sizes, strict=True):
            rule = next((r for r in self.links if _fits(r, name, size)), None)
            require(rule is not None, f'Partition has no rule for layer {name!r}: add "*": Dense() as the last one')
            taken[str(rule)].append(name)
        return taken

    def open(self, like: Params) -> tuple[State, State]:
        return apart(self, {p: self.links[p].open(like.only(names)) for p, names in self.names(like.layout).items()})

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        packets, seen, tx = [], x.zeros(), dict(tx)
        for rule, names in self.names(x.layout).items():
            packet = None
            if names:
                packet, part, tx[rule] = self.links[rule].send(x.only(names), tx[rule], key.at(rule))
                seen = seen.replace(part, copy=False)
            packets.append(packet)
        return packets, seen, tx

    def residual(self, tx: State) -> Params | None:
        return _beside(link.residual(tx[rule]) for rule, link in self.links.items())

    def look(self, x: Params, tx: State, key: Key) -> dict[str, LBGMTest]:
        looks: dict[str, LBGMTest] = {}
        for rule, names in self.names(x.layout).items():
            inside = self.links[rule].look(x.only(names), tx[rule], key.at(rule)) if names else {}
            looks |= {rule if layer == "*" else layer: look for layer, look in inside.items()}
        return looks

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        packets = parts(packet, len(self.links), "one packet a rule")
        seen, rx = layout.zeros(), dict(rx) if self.memory else None
        for one, (rule, names) in zip(packets, self.names(layout).items(), strict=True):
            if not names:
                check(one is None, "nothing for a rule without layers")
                continue
            own = rx[rule] if rx else None
            part, end = self.links[rule].recv(one, layout.only(names), own, key.at(rule))
            seen = seen.replace(part, copy=False)
            if rx:
                rx[rule] = end
        return seen, rx

    def fold(self, total: Packet | None, packet: Packet, weight: float) -> Packet:
        pairs = enumerate(zip(packet, self.links.values(), strict=True))
        return [p if p is None else link.fold(total[i] if total else None, p, weight) for i, (p, link) in pairs]

    def scale(self, total: Packet, whole: float) -> Packet:
        pairs = zip(total, self.links.values(), strict=True)
        return [t if t is None else link.scale(t, whole) for t, link in pairs]

    def by_layer(self, packet: Packet, layout: Layout) -> dict[str, Packet]:
        packets: dict[str, Packet] = {}
        for one, (rule, names) in zip(packet, self.names(layout).items(), strict=True):
            parts = self.links[rule].by_layer(one, layout.only(names)) if names else {}
            packets |= {rule if layer == "*" else layer: part for layer, part in parts.items()}
        return packets

    def floats(self, packet: Packet) -> float:
        pairs = zip(packet, self.links.values(), strict=True)
        return sum(link.floats(p) for p, link in pairs if p is not None)


SIZE = re.compile("(<=?|>=?) ?([0-9]+)")
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _beside(parts: Iterable[Params | None]) -> Params | None:
    """The layers of all parts, those of each in turn; None where none is there."""
    named = [pair for part in parts if part is not None for pair in part.items()]
    return Params.of(named) if named else None


def _fits(rule: str, name: str, size: int) -> bool:
    """Whether a rule of a Partition takes a layer of this name and this many entries."""
    if sized := SIZE.fullmatch(rule):
        return bool(COMPARE[sized[1]](size, int(sized[2])))
    return fnmatchcase(name, rule)


def apart(link: Link, ends: Mapping[str, tuple[State, State]]) -> tuple[State, State]:
    """The two states of a link that keeps one of each for every name: None for a receiver without memory."""
    tx = {name: end[0] for name, end in ends.items()}
    return tx, {name: end[1] for name, end in ends.items()} if link.memory else None
