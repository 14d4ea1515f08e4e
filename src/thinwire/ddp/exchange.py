"""The loop of :mod:`.methods`, as functions of a rank's state: what a rank does with its step, and with a gradient.

Large vectors are written in place and not copied where that can be avoided. With the block compressor a step reads x,
e and the parameters once after the optimiser, and e and the parameters once before the next gradient.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import CombinationError, NonFinite, OutOfSync
from ..key import Key
from ..links import Link, PowerSGD
from ..params import Layout, Params, is_finite, mean
from ..wire import Packet, Several, State, dumps, loads
from .collectives import Gather, Mean, Talk
from .methods import Feedback
from .powersgd import low_rank

PIECE = 1 << 16  # entries worked on at a time on a CPU: what stays in a cache between two operations
EVERY = 16  # steps between two looks at what was measured: a GPU is waited for there
KEPT = 0.99  # of what was measured, from step to step
STRIDE = 1024  # entries from one to the next of those that are looked at where a link sends


@dataclass
class Rank:
    """What one rank keeps for a :class:`~thinwire.ddp.methods.Feedback` method."""

    layout: Layout
    x: Float[Tensor, " d"]  # the same on every rank
    e: Float[Tensor, " d"]  # this rank's: not sent yet, or minus the estimate of its step
    total: Float[Tensor, " d"] | None  # the mean of all estimates
    sender: State  # of the link
    ranks: int  # K
    lam: float  # the gradient is taken at x - lam * e
    seen: Float[Tensor, "2"] | None  # ||mean p||^2 and mean ||p_k||^2, of what was looked at; None: nobody looks

    @property
    def lam_star(self) -> float | None:
        """What Equation 2-9 has for the best lambda, as measured; None before anything was."""
        if self.seen is None:
            return None
        common, own = self.seen.tolist()
        # What ranks do not have in common averages to a K-th: less than that is chance.
        return min(1.0, max(1 / self.ranks, common / own)) if 0 < own < math.inf else None


def start(method: Feedback, layout: Layout, x: Float[Tensor, " d"], ranks: int) -> Rank:
    """A rank's state before its first step, from parameters ``x``; there are ``ranks`` of them."""
    sender = None if method.link is None else method.link.open(layout.zeros())[0]
    total = torch.zeros_like(x) if method.estimate else None
    seen = torch.zeros(2, dtype=x.dtype, device=x.device) if method.measured else None
    return Rank(layout, x.clone(), torch.zeros_like(x), total, sender, ranks, method.first(ranks), seen)


def place(rank: Rank, lam: float, out: Float[Tensor, " d"]) -> None:
    """``out`` <- x - lam * e."""
    if lam:
        torch.sub(rank.x, rank.e, alpha=lam, out=out)
    else:
        out.copy_(rank.x)


def leave(rank: Rank, lam: float, w: Float[Tensor, " d"]) -> None:
    """From rest to where the gradient is taken: x <- w, which the parameters hold; then w <- x - lam * e."""
    for x_part, w_part, e_part in _pieces(rank.x, w, rank.e):
        x_part.copy_(w_part)
        if lam:
            w_part.sub_(e_part, alpha=lam)


def exchange(
    method: Feedback,
    rank: Rank,
    w: Float[Tensor, " d"],
    key: Key,
    debug: bool = False,
    still: Sequence[tuple[int, int]] = (),
) -> Talk[None]:
    """One step of all ranks. ``w`` is where the optimiser went from x - lam * e, and becomes x - applied * e.

    The runs of entries ``still`` are of frozen layers: nothing is sent of them, and x and what is owed stay there.
    Raises with ``debug`` :class:`~thinwire.errors.OutOfSync` if ranks are not at the same step and block, and
    :class:`~thinwire.errors.NonFinite` if one would send NaN or infinity. Without ``debug`` only links raise the
    latter.
    """
    lam, e = rank.lam, rank.e
    resting = not (method.applied or method.estimate or method.every)  # w is x, but for what is about to be sent
    for x_part, w_part, e_part in _pieces(rank.x, w, e):
        torch.sub(x_part, w_part, out=w_part)  # u + lam * e
        torch.add(w_part, e_part, alpha=1 - lam, out=e_part)  # p = u + e
        if resting:
            w_part.copy_(x_part)
    kept = [_set_aside(rank, w, a, b) for a, b in still]
    runs = [(0, len(e))] if method.link is not None else list(blocks(method, rank.layout, key))
    if debug:
        yield from agree([key.round, [run[0] for run in runs[:1]], is_finite(e)])
    if method.link is None:
        parts = [e[a:b] for a, b in runs]
        arrived = torch.cat(parts) if rank.seen is None else _with_square(parts)
        for a, b in runs:
            e[a:b] = 0  # p - C(p)
        yield Mean(arrived)
        _look(rank, arrived, 1)
    else:
        packet, seen, rank.sender = method.link.send(Params(rank.layout, e.cpu()), rank.sender, key)
        mean, _, _ = yield from deliver(method.link, packet, rank.layout, None, key)
        e.sub_(seen.flat.to(e.device))
        arrived = mean.flat.to(e.device)
        if rank.seen is not None and key.round % EVERY == 0:
            # What a link sends may be each rank's own choice, and says nothing of the rest: a sample of e does.
            sample = _with_square([e[key.everyone().number("lambda") % min(STRIDE, len(e)) :: STRIDE]])
            yield Mean(sample)
            _look(rank, sample, EVERY)
    _apply(rank, arrived, runs)
    if rank.total is not None:
        e.sub_(w)  # minus the estimate: u is forgotten, what was sent towards it is not
        rank.x.sub_(rank.total)
    for (a, b), parts in zip(still, kept, strict=True):
        for vector, part in zip((rank.x, e, rank.total), parts, strict=False):
            vector[a:b] = part  # type: ignore[index]
    if method.every is not None and (key.round + 1) % method.every == 0:
        yield Mean(e)
    if resting:
        for a, b in runs:
            w[a:b].copy_(rank.x[a:b])
    else:
        place(rank, method.applied, w)
    if method.detach is None and key.round % EVERY == 0:
        rank.lam = rank.lam_star or rank.lam


def _set_aside(rank: Rank, w: Tensor, a: int, b: int) -> list[Tensor]:
    """What x, e and the mean estimate are to be on a run that is not sent; of e nothing is left there meanwhile."""
    e = rank.e[a:b].clone()
    rank.e[a:b] = 0
    if rank.total is None:
        return [rank.x[a:b].clone(), e]
    return [rank.x[a:b].clone(), e.sub_(w[a:b]), rank.total[a:b].clone()]  # the estimate without the step


def _with_square(parts: list[Tensor]) -> Float[Tensor, " n"]:
    """The entries of all parts, and the sum of their squares."""
    found = torch.cat([*parts, parts[0].new_zeros(1)])
    found[-1] = torch.dot(found[:-1], found[:-1])
    return found


def _look(rank: Rank, sums: Tensor, steps: int) -> None:
    """Take in the mean over ranks of some entries and of the sum of their squares; the last look was ``steps`` ago."""
    if rank.seen is not None:
        common = torch.dot(sums[:-1], sums[:-1])
        rank.seen.mul_(KEPT**steps).add_(torch.stack([common, sums[-1]]))


def _pieces(*vectors: Float[Tensor, " d"]) -> Iterator[tuple[Tensor, ...]]:
    """Vectors of one length, a piece of all at a time; on a GPU whole."""
    piece = PIECE if vectors[0].device.type == "cpu" else max(1, len(vectors[0]))
    yield from zip(*(torch.split(vector, piece) for vector in vectors), strict=True)


def _apply(rank: Rank, arrived: Tensor, runs: list[tuple[int, int]]) -> None:
    """x <- x - mean C(p); of estimates the mean of all that was ever sent."""
    at = 0
    for a, b in runs:
        part = arrived[at : at + b - a]
        at += b - a
        if rank.total is None:
            rank.x[a:b].sub_(part)
        else:
            rank.total[a:b].add_(part)


def blocks(method: Feedback, layout: Layout, key: Key) -> Iterator[tuple[int, int]]:
    """The runs of entries that are sent at a step: one, or two where a block goes on at the beginning."""
    spans = [("", 0, layout.size)]
    if method.scope == "tensor":
        spans = [(name, first, size) for name, (first, size, _) in layout.spans.items() if size]
    for name, first, size in spans:
        begin, length = method.block.block(size, key.at(name) if name else key)
        yield first + begin, first + min(begin + length, size)
        if begin + length > size:
            yield first, first + begin + length - size


def agree(mine: list[Any]) -> Talk[None]:
    """Raise on every rank unless all are at the same step and block with finite numbers."""
    found = yield Gather(dumps(mine))
    everyone = [loads(data) for data in found]
    for number, (step, begin, finite) in enumerate(everyone):
        if [step, begin] != everyone[0][:2]:
            raise OutOfSync(
                f"rank {number} is at step {step} and sends the block that starts at {begin}; "
                f"rank 0 is at step {everyone[0][0]} with {everyone[0][1]}"
            )
        if not finite:
            raise NonFinite(f"step {step}: rank {number} would send NaN or infinity; lower the learning rate or clip")


def output(method: Feedback, rank: Rank) -> Talk[Float[Tensor, " d"]]:
    """The model that is evaluated, x - given * mean e: one dense all-reduce, or none where that is x."""
    if not method.given:
        return rank.x
    mine = rank.e.clone()
    yield Mean(mine)
    return torch.sub(rank.x, mine, alpha=method.given)


@dataclass
class Ends:
    """What one rank keeps for a link: its own sender's half, and the receivers' halves of all ranks."""

    sender: State
    receivers: list[State] | None  # None for a link whose receivers keep nothing

    def take(self, later: Ends, names: Collection[str], layers: Collection[str]) -> Ends:
        """These ends, with what ``later`` has of the layers ``names``; ``layers`` are those that there are.

        What belongs to no layer, such as a look-back gradient that is kept as messages, is that of ``later``: both ends
        have the same. Raises ``CombinationError`` for numbers of which nobody can say to which layer they belong.
        """
        names, layers = set(names), set(layers)
        if names == layers:
            return later
        sender = _take(self.sender, later.sender, names, layers)
        return Ends(sender, _take(self.receivers, later.receivers, names, layers))


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


def ends(link: Link, layout: Layout, ranks: int) -> Ends:
    """The states of a link before the first message."""
    zeros = layout.zeros()
    sender, receiver = link.open(zeros)
    return Ends(sender, [receiver] * ranks if link.memory else None)


class Since(NamedTuple):
    """What a script did with gradients since they were last averaged. It has to be the same on all ranks."""

    steps: list[int]  # of each optimiser
    unused: list[str]  # layers whose gradient was thrown away
    waiting: list[str]  # layers whose gradient is still there, and that no optimiser has used

    @property
    def usual(self) -> bool:
        """Whether all was used once. Then nothing is said, and no byte is sent for it."""
        return set(self.steps) <= {1} and not self.unused and not self.waiting


def average(link: Link, own: Ends, g: Params, key: Key, since: Since | None = None) -> Talk[Params | None]:
    """The mean of what all ranks' links deliver of their gradients. ``own`` becomes the link's next states.

    None, on every rank, if the gradient of any rank has NaN or infinity: then nothing is kept of that step. PowerSGD
    has a way of its own, because its iteration can be that of the mean. A rank says what happened ``since`` the last
    time, where that was unusual. Raises :class:`~thinwire.errors.OutOfSync` where ranks did not do the same.
    """
    finite = g.finite()
    if isinstance(link, PowerSGD):
        mine = flag(finite, since, g.flat.dtype)
        heard = partial(check_flags, since, key)
        found = yield from low_rank(link, own.sender, g if finite else g.zeros(), key, mine, heard)
        if found is None:
            return None
        arrived, own.sender = found
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
) -> Talk[tuple[Params, list[State] | None, bool]]:
    """Send a packet to all: the mean of what all packets decode to, the receivers' next states, whether all are finite.

    The packets of linear links are averaged. If they are numbers and nothing else, that is an all-reduce in their own
    precision. If not (DropoutAvg also says which entries it kept) it happens after an all-gather.
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
            yield Mean(sums[kind])
        all_finite = not kinds or (yield from check_flags(since, key, sums[kinds[0]][-1]))
        if not all_finite:
            return layout.zeros(), receivers, False
        seen, _ = link.recv(_fill(packet, sums, dict.fromkeys(kinds, 0)), layout, None, key)
        return seen, receivers, True
    usual = since is None or since.usual
    data = dumps(packet) if usual else UNUSUAL + dumps([*since, packet])  # type: ignore[misc]
    found = yield Gather(data if finite else b"")
    if not all(found):
        return layout.zeros(), receivers, False
    packets, told = [], []
    for message in found:
        unusual = message.startswith(UNUSUAL)
        *words, one = loads(message[1:], max_values=None) if unusual else [loads(message, max_values=None)]
        packets.append(one)
        told.append(Since(*words) if unusual else None)
    alike(told, key)
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
        found = yield Gather(dumps(mine))
        told = [loads(data, max_values=None) for data in found]
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
