"""The mean of what all ranks' links deliver of a gradient, what they keep, and whether ranks did the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import CombinationError, OutOfSync
from ..key import Key
from ..links import Link, PowerSGD
from ..params import Layout, Params, mean
from ..wire import Packet, Several, State, dumps, loads
from .collectives import AllReduce, Gather, Talk
from .powersgd import low_rank


@dataclass
class LinkEnds:
    """What one rank keeps for a link: its own sender's half, and the receivers' halves of all ranks."""

    sender: State
    receivers: list[State] | None  # None for a link whose receivers keep nothing

    def take(self, later: LinkEnds, names: Collection[str], layers: Collection[str]) -> LinkEnds:
        """These ends, with what ``later`` has of the layers ``names``; ``layers`` are those that there are.

        What belongs to no layer, such as a look-back gradient that is kept as messages, is that of ``later``: both ends
        have the same. Raises ``CombinationError`` for numbers of which nobody can say to which layer they belong.
        """
        names, layers = set(names), set(layers)
        if names == layers:
            return later
        sender = _take(self.sender, later.sender, names, layers)
        return LinkEnds(sender, _take(self.receivers, later.receivers, names, layers))


def _take(old: State, new: State, names: set[str], layers: set[str]) -> State:
    if new is old or isinstance(new, Several):
        return new
    if isinstance(new, Params):
        mine = [name for name in new.names if name in names]
        return old.replace(new.only(mine)) if mine else old
    if isinstance(new, dict):
        own = {key: new[key] if key in names else old[key] for key in new.keys() & layers}
        return {key: own[key] if key in own else _take(old[key], new[key], names, layers) for key in new}
    if isinstance(new, list | tuple):
        parts = [_take(one, other, names, layers) for one, other in zip(old, new, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else type(new)(parts)
    if isinstance(new, Tensor) and not torch.equal(old, new):
        raise CombinationError(
            "some layers of a gradient were used and others not, and this link keeps numbers that belong to no layer: "
            "use all of a gradient in each step, or none, or put the link into Layerwise"
        )
    return new


def ends(link: Link, layout: Layout, ranks: int) -> LinkEnds:
    """The states of a link before the first message."""
    zeros = layout.zeros()
    sender, receiver = link.open(zeros)
    return LinkEnds(sender, [receiver] * ranks if link.memory else None)


class Since(NamedTuple):
    """What a script did with gradients since they were last averaged. It has to be the same on all ranks."""

    steps: list[int]  # of each optimiser
    unused: list[str]  # layers whose gradient was thrown away
    waiting: list[str]  # layers whose gradient is still there, and that no optimiser has used

    @property
    def usual(self) -> bool:
        """Whether all was used once. Then nothing is said, and no byte is sent for it."""
        return set(self.steps) <= {1} and not self.unused and not self.waiting


def average(link: Link, own: LinkEnds, g: Params, key: Key, since: Since | None = None) -> Talk[Params | None]:
    """The mean of what all ranks' links deliver of their gradients. ``own`` becomes the link's next states.

    None, on every rank, if the gradient of any rank has NaN or infinity: then nothing is kept of that step. PowerSGD
    has a way of its own, because its iteration can be that of the mean. A rank says what happened ``since`` the last
    time, where that was unusual. Raises :class:`~thinwire.errors.OutOfSync` where ranks did not do the same.
    """
    finite = g.finite()
    if isinstance(link, PowerSGD):
        mine = flag(finite, since, torch.float32)
        heard = partial(check_flags, since, key)
        step = yield from low_rank(link, own.sender, g if finite else g.zeros(), key, mine, heard)
        if step is None:
            return None
        arrived, own.sender = step
        return arrived
    packet, _, sender = link.send(g if finite else g.zeros(), own.sender, key)
    arrived, receivers, all_finite = yield from deliver(link, packet, g.layout, own.receivers, key, finite, since)
    if not all_finite:
        return None
    own.sender, own.receivers = sender, receivers
    return arrived


def deliver(
    link: Link,
    packet: Packet,
    layout: Layout,
    receivers: list[State] | None,
    key: Key,
    finite: bool = True,
    since: Since | None = None,
    senders: bool = False,
) -> Talk[tuple[Params, list[State] | None, bool]]:
    """Send a packet to all: the mean of what all packets decode to, the receivers' next states, whether all are finite.

    The packets of linear links are averaged. If they are numbers and nothing else, that is an all-reduce in their own
    precision. If not (DropoutAvg also says which entries it kept) it happens after an all-gather. With ``senders``
    the mean of an entry is that of the ranks that sent it, over a sparse link.
    """
    linear = link.linear and not link.memory
    leaves = list(_leaves(packet))
    if linear and all(leaf.is_floating_point() for leaf in leaves):
        kinds = sorted({leaf.dtype for leaf in leaves}, key=str)
        sums = {}
        for number, kind in enumerate(kinds):
            parts = [leaf.reshape(-1) for leaf in leaves if leaf.dtype == kind]
            if number == 0:
                parts.append(flag(finite, since, kind))
            sums[kind] = torch.cat(parts)
            yield AllReduce(sums[kind])
        all_finite = not kinds or (yield from check_flags(since, key, sums[kinds[0]][-1]))
        if not all_finite:
            return layout.zeros(), receivers, False
        seen, _ = link.recv(_fill(packet, sums, dict.fromkeys(kinds, 0)), layout, None, key)
        return seen, receivers, True
    usual = since is None or since.usual
    data = dumps(packet) if usual else UNUSUAL + dumps([*since, packet])  # type: ignore[misc]
    messages = yield Gather(data if finite else b"")
    if not all(messages):
        return layout.zeros(), receivers, False
    packets, told = [], []
    for message in messages:
        unusual = message.startswith(UNUSUAL)
        *words, one = loads(message[1:], max_values=None) if unusual else [loads(message, max_values=None)]
        packets.append(one)
        told.append(Since(*words) if unusual else None)
    alike(told, key)
    if senders:
        return link.mean_of_senders(packets, layout, key), receivers, True
    if linear:
        seen, _ = link.recv(link.mean(packets, [1.0] * len(packets)), layout, None, key)
        return seen, receivers, True
    parts, nexts = [], []
    for number, received in enumerate(packets):
        end = None if receivers is None else receivers[number]
        part, end = link.recv(received, layout, end, key._replace(client=number))
        parts.append(part.flat)
        nexts.append(end)
    whole = parts[0] if len(parts) == 1 else mean(parts, [1.0] * len(parts))
    return Params(layout, whole), None if receivers is None else nexts, True


UNUSUAL = b"?"  # before a message that says what a rank did since the last one; all others begin with wire.VERSION


def flag(finite: bool, since: Since | None, kind: torch.dtype) -> Float[Tensor, " 1"]:
    """A number that is averaged with the rest: 0 where all is as usual, 1 where a rank has something to say."""
    unusual = since is not None and not since.usual
    return torch.full((1,), float(unusual) if finite else math.inf, dtype=kind, device="cpu")


def check_flags(since: Since | None, key: Key, mean: Tensor) -> Talk[bool]:
    """Whether all gradients are finite, of the mean of all ranks' flags. What ranks have to say they say here."""
    if float(mean) and math.isfinite(mean):
        mine = [] if since is None or since.usual else list(since)
        answers = yield Gather(dumps(mine))
        told = [loads(data, max_values=None) for data in answers]
        alike([Since(*words) if words else None for words in told], key)
    return math.isfinite(mean)


def alike(told: Sequence[Since | None], key: Key) -> None:
    """Raise ``OutOfSync``, naming a rank, unless all did the same since the last message; None: as usual."""
    if not any(told):
        return
    optimisers = len(next(since for since in told if since).steps)
    everyone = [since or Since([1] * optimisers, [], []) for since in told]
    common = max(everyone, key=everyone.count)
    other = everyone.index(common)
    for number, since in enumerate(everyone):
        if since.steps != common.steps:
            made, expected = (", ".join(map(str, steps)) for steps in (since.steps, common.steps))
            raise OutOfSync(
                f"message {key.round}: since the one before rank {number} has made {made} optimiser step(s), and rank "
                f"{other} {expected}: their models are no longer the same. Let all ranks step, or skip a step, together"
            )
        if since != common:
            name = sorted({*since.unused, *since.waiting} ^ {*common.unused, *common.waiting})[:1] or since.unused[:1]
            raise OutOfSync(
                f"message {key.round}: rank {number} did something else with the averaged gradient "
                f"{f'of {name[0]!r} ' if name else ''}than rank {other}: let all keep it, use it, or throw it away"
            )


def _leaves(packet: Packet) -> Iterator[Tensor]:
    """The tensors of a packet, in order."""
    if isinstance(packet, Tensor):
        yield packet
    elif isinstance(packet, list):
        for part in packet:
            yield from _leaves(part)


def _fill(packet: Packet, sums: dict[torch.dtype, Tensor], at: dict[torch.dtype, int]) -> Packet:
    """The packet with its tensors taken from ``sums``, one after the other."""
    if isinstance(packet, Tensor):
        begin = at[packet.dtype]
        at[packet.dtype] += packet.numel()
        return sums[packet.dtype][begin : at[packet.dtype]].view(packet.shape)
    return [_fill(part, sums, at) for part in packet] if isinstance(packet, list) else packet
