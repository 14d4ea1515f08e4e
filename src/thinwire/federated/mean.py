"""The mean of a round's replies, field by field: of packets where links are linear, so that they are decoded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import check
from ..key import Key
from ..links import Link
from ..params import Layout, Params, fold
from ..robust import Aggregator
from ..wire import MOST, Packet, State, conform, largest, restore
from .messages import Body, Form, Leaf, Message, present
from .ruled import Centres, Ruled

Groups = dict[tuple[Layout, bool], Any]
"""The totals of a Params leaf, one for each set of layers: of packets, or (True) of what they were decoded to."""


class Mean:
    """The runner's mean of replies: one rule, Σ w·p / Σ w, in packet space where the link is linear.

    ``add`` in client order; nothing but running totals is kept. Layers that some replies
    carry and others do not count as zero in the others. With ``clip``, a Params field that is
    longer (in the Euclidean norm; norm statistics aside) counts as if it were that long. It is one number, or one for
    each field.

    With ``rule``, an aggregator, replies are decoded one by one and held, and the fields that are averaged or summed
    become what it makes of them (:mod:`thinwire.federated.ruled`).

    ``add`` trusts a packet to be one that its link made; those of strangers go through
    ``check`` before.
    """

    def __init__(
        self,
        form: Form,
        clip: float | Mapping[str, float] | None = None,
        rule: Aggregator | None = None,
        centres: Centres | None = None,
    ) -> None:
        self.form, self.clip = form, clip
        self.ruled = None if rule is None else Ruled(form, rule, centres or {})
        self.clipped: list[tuple[int, str, float | None]] = []  # client, field, its norm (None: one of numbers)
        self.totals: list[Any] = [None] * len(form.leaves)  # of a Params leaf Groups
        self.shapes: dict[tuple[int, Layout], Packet] = {}
        self.largest = (0.0, -1, "")  # the largest number of all replies, whose it is, in which field
        self.whole = 0.0

    def check(self, body: Packet, rx: State, key: Key) -> Message:
        """What a stranger's reply says, every packet looked at by its link. Raises ``WireError``; nothing changes."""
        return self.form.build(self.form.recv(body, rx, key, strange=True)[0])[0]

    def add(
        self,
        client: int,
        weight: float,
        body: Packet,
        rx: State,
        key: Key,
        late: bool = False,
        admit: Callable[[Message], Message] | None = None,
        discount: float = 1.0,
    ) -> State:
        """Take in one reply, whole or not at all; returns the receiving ends' next states. Raises ``WireError``.

        One that is ``late``, of a round before (``key`` is that round's), is decoded by itself. With ``clip``,
        ``admit`` is what the method makes of a reply whose Params fields have been clipped. With a ``discount`` each
        field of a late reply that is averaged counts that much, norm statistics aside.
        """
        body = body if isinstance(body, Body) else Body(self.form.check(body))
        packets = enumerate(zip(self.form.check(body), rx, strict=True))
        taken = [self._take(i, packet, end, key, late) for i, (packet, end) in packets]
        values = [value for value, _ in taken]
        for leaf, value, size in zip(self.form.leaves, values, body.largest, strict=True):
            self._check_bounds(client, leaf.name, largest(value) if isinstance(value, Params) else size)
        if self.clip is not None:
            values = self._clip(client, values, admit)
        if discount != 1.0:
            pairs = zip(self.form.leaves, values, strict=True)
            values = [x * discount if leaf.kind == "mean" and not leaf.statistics else x for leaf, x in pairs]
        for i, (leaf, value) in enumerate(zip(self.form.leaves, values, strict=True)):
            if self.ruled is not None and self.ruled.rules(leaf):
                self.ruled.add(i, value)
            elif leaf.kind == "each":
                self.totals[i] = {**(self.totals[i] or {}), client: value}
            elif not isinstance(value, Params) or value.names or not leaf.blank.names:
                self.totals[i] = _fold(leaf, self.totals[i], value, 1.0 if leaf.kind == "sum" else weight)
        self.whole += weight
        if self.ruled is not None:
            self.ruled.enter(client, weight)
        return [end for _, end in taken]

    def _take(self, i: int, packet: Packet, end: State, key: Key, late: bool) -> tuple[Any, State]:
        """What a leaf carries, and its end's next state: a value, or layers and packet of a linear link."""
        leaf = self.form.leaves[i]
        if leaf.link is None:
            return restore(packet, leaf.blank), end
        where = key.at(f"{self.form.where}/{leaf.name}")
        layout, inner = present(packet, leaf)
        if not layout.names and leaf.blank.names:  # of a field without layers nothing is sent
            return leaf.blank.only(()), end
        if leaf.link.linear and leaf.kind != "each":
            if (i, layout) not in self.shapes:
                self.shapes[i, layout] = leaf.link.shape(layout, where)
            conform(inner, self.shapes[i, layout], leaf.name)
            if not late and self.clip is None and self.ruled is None:
                return (layout, inner), end
        return leaf.link.recv(inner, layout, end, where)

    def _check_bounds(self, client: int, name: str, size: float) -> None:
        """Raise ``WireError`` where the largest number is NaN or beyond ``MOST``; note whose it is."""
        check(size <= MOST, f"{name}: numbers of at most {MOST:.0e}")
        if size > self.largest[0]:
            self.largest = size, client, name

    def limit(self, name: str) -> float:
        """The norm that a field has at most."""
        if isinstance(self.clip, Mapping):
            return self.clip.get(name, math.inf)
        return math.inf if self.clip is None else self.clip

    def _clip(self, client: int, values: list[Any], admit: Callable[[Message], Message] | None) -> list[Any]:
        """The values of a reply, none of which does more than a vector as long as its bound."""
        values, norms = list(values), self.form.norms(values)
        for i, leaf in enumerate(self.form.leaves):
            norm, clip = norms.get(leaf.name, 0.0), self.limit(leaf.name)
            if norm > clip:
                values[i] = values[i] * (clip / norm)
                self.clipped.append((client, leaf.name, norm))
        if admit is None:
            return values
        msg, buffers = self.form.build(values)
        admitted = self.form.values(admit(msg), buffers)
        for leaf, value, other in zip(self.form.leaves, values, admitted, strict=True):
            if other is not value:
                self.clipped.append((client, leaf.name, None))
        return admitted

    @property
    def enough(self) -> bool:
        """Whether there are as many replies as a step is made of."""
        return self.whole > 0 and (self.ruled is None or self.ruled.enough)

    def result(self, key: Key) -> tuple[Message, Params | None]:
        """The mean reply and the mean buffers."""
        values: list[Any] = []
        for leaf, total in zip(self.form.leaves, self.totals, strict=True):
            whole = 1.0 if leaf.kind == "sum" else self.whole
            if self.ruled is not None and self.ruled.rules(leaf):
                values.append(self.ruled.value(len(values)))
            elif leaf.kind == "each":
                values.append(total)
            elif leaf.link is None:
                values.append(total / whole)
            else:
                where = key.everyone().at(f"{self.form.where}/{leaf.name}")
                values.append(self._join(leaf, leaf.link, total or {}, whole, where))
        return self.form.build(values)

    def _join(self, leaf: Leaf, link: Link, groups: Groups, whole: float, key: Key) -> Params:
        """The totals of all sets of layers, decoded, over the layers that any of them has."""
        parts = []
        for (layout, decoded), total in groups.items():
            if decoded:
                parts.append(Params(layout, total / whole))
            else:
                parts.append(link.recv(link.scale(total, whole), layout, None, key)[0])
        if len(parts) == 1:
            return parts[0]
        layout = leaf.blank.layout.only({name for part in parts for name in part.names})
        joined: Params = layout.zeros()
        for part in parts:
            joined = joined + layout.zeros().replace(part)
        return joined


def _fold(leaf: Leaf, total: Any, value: Any, weight: float) -> Any:
    """A leaf's total with one more value: of Params a total for every set of layers."""
    if leaf.link is None:
        return fold(total, value, weight) if isinstance(value, Tensor) else (total or 0.0) + value * weight
    groups: Groups = total or {}
    if isinstance(value, Params):
        group = value.layout, True
        return {**groups, group: fold(groups.get(group), value.flat, weight)}
    layout, packet = value
    group = layout, False
    return {**groups, group: leaf.link.fold(groups.get(group), packet, weight)}
