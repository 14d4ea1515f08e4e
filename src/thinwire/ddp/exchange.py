"""The loop of :mod:`.methods`, as functions of a rank's state: what a rank does with its step, and with a gradient.

Large vectors are written in place and not copied where that can be avoided. With the block compressor a step reads x,
e and the parameters once after the optimiser, and e and the parameters once before the next gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import NonFinite, OutOfSync
from ..key import Key
from ..optimizers import keep
from ..params import Layout, Params, is_finite
from ..wire import State, dumps, loads
from .average import deliver
from .collectives import AllReduce, Gather, Talk
from .feedback import Feedback
from .sketch import sketch
from .unsent import owe

PIECE = 1 << 16  # entries worked on at a time on a CPU: what stays in a cache between two operations
EVERY = 16  # steps between two looks at what was measured: a GPU is waited for there
KEPT = 0.99  # of what was measured, from step to step
STRIDE = 1024  # entries from one to the next of those that are looked at where a link sends at every step


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
    v: list[State] = field(
        default_factory=lambda: [None]
    )  # of the outer optimiser, the same on every rank: by fragment
    flying: Float[Tensor, " d"] | None = None  # mean C(p) of the fragment on its way; None: nothing ever is
    parts: tuple[Layout, ...] = ()  # of the fragments, one after another

    @property
    def lam_star(self) -> float | None:
        """What Equation 2-9 has for the best lambda, as measured; None before anything was."""
        if self.seen is None:
            return None
        common, own = self.seen.tolist()
        # What ranks do not have in common averages to a K-th: less than that is chance.
        return min(1.0, max(1 / self.ranks, common / own)) if 0 < own < math.inf else None

    @property
    def lam_rule(self) -> float | None:
        """The lambda that is not given: the middle one of 1/2, the measured one and its square root."""
        best = self.lam_star
        return None if best is None else sorted((best, math.sqrt(best), 0.5))[1]

    def part(self, fragment: int) -> tuple[Layout, slice]:
        """The layers of a fragment, and where they lie."""
        if not self.parts:
            return self.layout, slice(0, self.layout.size)
        first = sum(part.size for part in self.parts[:fragment])
        return self.parts[fragment], slice(first, first + self.parts[fragment].size)


def start(method: Feedback, layout: Layout, x: Float[Tensor, " d"], ranks: int, parts: Sequence[Layout] = ()) -> Rank:
    """A rank's state before its first step, from parameters ``x``; there are ``ranks`` of them.

    ``parts`` are the layouts of the fragments, which lie one after another in ``x``.
    """
    sender = None if method.link is None else method.link.open(layout.zeros())[0]
    e = torch.zeros_like(x) if method.owes else x.new_zeros(1).expand(len(x))  # one zero for all
    total = torch.zeros_like(x) if method.estimate else None
    seen = torch.zeros(2, dtype=x.dtype, device=x.device) if method.measures else None
    flying = torch.zeros_like(x) if method.delay else None
    rank = Rank(layout, x.clone(), e, total, sender, ranks, method.first(ranks), seen, [], flying, tuple(parts))
    for part, where in map(rank.part, range(method.fragments)):
        rank.v.append(method.outer.init(Params(part, rank.x[where])))
    return rank


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


def take_in(rank: Rank, at: float, w: Float[Tensor, " d"]) -> None:
    """What a script has written to parameters that held x - at * e becomes x (of PSync: the rank's own model)."""
    if at == 0:
        rank.x.copy_(w)
    elif not torch.equal(w, rank.x - at * rank.e):
        torch.sub(rank.x, w, out=rank.e).div_(at)


def advance(
    method: Feedback,
    rank: Rank,
    w: Float[Tensor, " d"],
    key: Key,
    rates: Sequence[float] = (),
    debug: bool = False,
    still: Sequence[tuple[int, int]] = (),
) -> Talk[None]:
    """What is due after an optimiser's step, the number of which is ``key.round``: most often nothing.

    ``w`` are the parameters. Other arguments are those of :func:`exchange`.
    """
    rounds = method.rounds
    due, numbered = rounds.due(key.round), key._replace(round=rounds.number(key.round))
    if due.send is not None:
        yield from exchange(method, rank, w, numbered, debug, still, due.send, rates)
    if method.delay and due.apply is not None:
        land(method, rank, w, still, due.apply, rates)


def exchange(
    method: Feedback,
    rank: Rank,
    w: Float[Tensor, " d"],
    key: Key,
    debug: bool = False,
    still: Sequence[tuple[int, int]] = (),
    fragment: int = 0,
    rates: Sequence[float] = (),
) -> Talk[None]:
    """The end of a round of a fragment, on all ranks; ``key.round`` is the number of the exchange.

    ``w`` is where the optimiser went from x - lam * e. It becomes x - at_rest * e, or where the fragment's next round
    begins, x - lam * e; of what is delayed it stays. ``rates`` are the learning rates of the optimisers' groups. The
    runs of entries ``still`` are of frozen layers: nothing is sent of them, and x and what is owed stay there. Raises
    with ``debug`` :class:`~thinwire.errors.OutOfSync` if ranks are not at the same step and block, and
    :class:`~thinwire.errors.NonFinite` if one would send NaN or infinity. Without ``debug`` only links raise the
    latter.

    Where it comes to no end, since another rank is lost or for what it raises, x and all that is kept beside it are as
    they were, and what could not be sent is owed: e is p, and ``w`` where a round begins. A method that keeps no
    residual, or an estimate, stays at its own ``w``; with ``steps`` = 1 its step is lost.
    """
    (layout, where), lam = rank.part(fragment), rank.lam
    x, e, w = rank.x[where], rank.e[where], w[where]
    own = None if rank.total is None else rank.total[where]
    still = _within(still, where)
    if method.averages:
        mean_w = w.clone()  # w stays whole until all have it
        for a, b in still:  # of a layer that was frozen within the round its steps until then; else exact zeros
            mean_w[a:b].sub_(x[a:b])
        if debug:
            yield from agree([key.round, [where.start], is_finite(w)])
        yield AllReduce(mean_w)
        for a, b in still:
            mean_w[a:b].add_(x[a:b])
        x.copy_(mean_w)
        w.copy_(mean_w)
        return
    direct = method.plain and not method.delay  # x is but for what was sent
    # w is x, but for what is about to be sent
    resting = direct and method.fragments == 1 and not (method.at_rest or method.estimate or method.every)
    local = w.clone() if method.delay else None
    p = e if method.owes else torch.empty_like(w)
    faded = [e[a:b] * (1 - method.decay) for a, b in still]  # what is owed of frozen layers does not decay
    for x_part, w_part, e_part, p_part in _pieces(x, w, e, p):
        torch.sub(x_part, w_part, out=w_part)  # u + lam * e
        torch.add(w_part, e_part, alpha=method.decay - lam, out=p_part)  # p = u + decay * e
        if resting:
            w_part.copy_(x_part)
    sides = [_set_aside(x, p, own, w, a, b, part) for (a, b), part in zip(still, faded, strict=True)]
    runs = [(0, len(p))] if method.link is not None else list(blocks(method, layout, key))
    looks = max(1, EVERY // method.steps)  # exchanges from one look to the next
    averaging = method.every is not None and (key.round + 1) % method.every == 0
    sender, sent = rank.sender, None
    try:
        if debug:
            yield from agree([key.round, [run[0] for run in runs[:1]], is_finite(p)])
        if method.link is None:
            parts = [p[a:b] for a, b in runs]
            arrived = torch.cat(parts) if rank.seen is None else _with_square(parts)
            block = arrived.clone() if averaging else None  # which may still be owed
            yield AllReduce(arrived)
            for a, b in runs:
                p[a:b] = 0  # p - C(p)
            sent = block
            _look(rank, arrived, method.steps)
        else:
            packet, seen, sender = method.link.send(Params(layout, p.cpu()), sender, key)
            senders = method.count == "senders"
            mean, _, _ = yield from deliver(method.link, packet, layout, None, key, senders=senders)
            if method.owes:
                sent = seen.flat.to(e.device)
                e.sub_(sent)
            arrived = mean.flat.to(e.device)
            if rank.seen is not None and key.round % looks == 0:
                # What a link sends may be each rank's own choice, and says nothing of the rest: a sample of e does.
                sample = _with_square([_sample(method, e, key.everyone())])
                yield AllReduce(sample)
                _look(rank, sample, looks * method.steps)
        if averaging:
            everyone = e.clone()
            for (a, b), kept in zip(still, sides, strict=True):
                everyone[a:b] = kept[1]
            yield AllReduce(everyone)
            e.copy_(everyone)
            for (a, b), kept in zip(still, sides, strict=True):
                kept[1].copy_(everyone[a:b])
        if direct:
            _apply(x, own, arrived, runs)
        else:
            d = _whole(arrived, runs, x)
            if rank.flying is None:
                _step(method, rank, d, fragment, rates, still)
            else:
                rank.flying[where] = d
    except BaseException:
        owe(method, lam, x, e, p, w, runs, sent, [(a, b, kept[1]) for (a, b), kept in zip(still, sides, strict=True)])
        raise
    rank.sender = sender
    if own is not None:
        e.sub_(w)  # minus the estimate: u is forgotten, what was sent towards it is not
        x.sub_(own)
    for (a, b), kept in zip(still, sides, strict=True):
        for vector, part in zip((x, e if method.owes else p, own), kept, strict=False):
            vector[a:b] = part  # type: ignore[index]
    if local is not None:
        w.copy_(local)
    elif resting:
        for a, b in runs:
            w[a:b].copy_(x[a:b])
    else:
        to = method.at_rest if method.fragments == 1 else lam
        w.copy_(x) if not to else torch.sub(x, e, alpha=to, out=w)
    if method.detach is None and key.round % looks == 0:
        rank.lam = rank.lam_rule or rank.lam


def land(
    method: Feedback,
    rank: Rank,
    w: Float[Tensor, " d"],
    still: Sequence[tuple[int, int]],
    fragment: int,
    rates: Sequence[float],
) -> None:
    """Apply what is on its way: x moves, and ``w`` becomes (1 - mix) (x - lam * e) + mix * w."""
    _, where = rank.part(fragment)
    assert rank.flying is not None
    x, w, still = rank.x[where], w[where], _within(still, where)
    kept = [x[a:b].clone() for a, b in still]
    _step(method, rank, rank.flying[where], fragment, rates, still)
    for (a, b), part in zip(still, kept, strict=True):
        x[a:b] = part
    begin = torch.sub(x, rank.e[where], alpha=rank.lam)
    w.mul_(method.mix).add_(begin, alpha=1 - method.mix)
    rank.flying[where] = 0


def _step(
    method: Feedback, rank: Rank, d: Tensor, fragment: int, rates: Sequence[float], still: Sequence[tuple[int, int]]
) -> None:
    """The outer step of a fragment, of which d = mean C(p) came. Its state stays where layers are frozen."""
    layout, where = rank.part(fragment)
    before = Params(layout, rank.x[where])
    x, v = method.apply(before, Params(layout, d), rank.v[fragment], rates)
    starts = {a for a, _ in still}
    frozen = [name for name, (first, size, _) in layout.spans.items() if size and first in starts]
    rank.v[fragment] = keep(method.outer, before, rank.v[fragment], v, frozen) if frozen else v
    rank.x[where] = x.flat


def _within(runs: Sequence[tuple[int, int]], where: slice) -> list[tuple[int, int]]:
    """The runs that lie in a part of the vector, counted from where it begins."""
    return [(a - where.start, b - where.start) for a, b in runs if where.start <= a and b <= where.stop]


def _sample(method: Feedback, e: Tensor, key: Key) -> Tensor:
    """Numbers whose mean over ranks says how long the mean of e is: some of e, or between steps a sketch of all."""
    if method.steps > 1:
        return sketch(e, key.at("lambda"))
    return e[key.number("lambda") % min(STRIDE, len(e)) :: STRIDE]


def _whole(arrived: Tensor, runs: list[tuple[int, int]], like: Tensor) -> Float[Tensor, " d"]:
    """What arrived as a vector of all entries, with zeros where nothing was sent."""
    d, at = torch.zeros_like(like), 0
    for a, b in runs:
        d[a:b] = arrived[at : at + b - a]
        at += b - a
    return d


def _set_aside(x: Tensor, p: Tensor, total: Tensor | None, w: Tensor, a: int, b: int, faded: Tensor) -> list[Tensor]:
    """What x, e and the mean estimate are to be on a run that is not sent; of p nothing is left there meanwhile."""
    e = p[a:b] + faded
    p[a:b] = 0
    if total is None:
        return [x[a:b].clone(), e]
    return [x[a:b].clone(), e.sub_(w[a:b]), total[a:b].clone()]  # the estimate without the step


def _with_square(parts: list[Tensor]) -> Float[Tensor, " n"]:
    """The entries of all parts, and the sum of their squares."""
    entries = torch.cat([*parts, parts[0].new_zeros(1)])
    entries[-1] = torch.dot(entries[:-1], entries[:-1])
    return entries


def _look(rank: Rank, sums: Tensor, steps: int) -> None:
    """Take in the mean over ranks of some entries and of the sum of their squares; the last look was ``steps`` ago."""
    if rank.seen is not None:
        common = torch.dot(sums[:-1], sums[:-1])
        rank.seen.mul_(KEPT**steps).add_(torch.stack([common, sums[-1]]))


def _pieces(*vectors: Float[Tensor, " d"]) -> Iterator[tuple[Tensor, ...]]:
    """Vectors of one length, a piece of all at a time; on a GPU whole."""
    piece = PIECE if vectors[0].device.type == "cpu" else max(1, len(vectors[0]))
    yield from zip(*(torch.split(vector, piece) for vector in vectors), strict=True)


def _apply(
    x: Float[Tensor, " d"], total: Float[Tensor, " d"] | None, arrived: Tensor, runs: list[tuple[int, int]]
) -> None:
    """x <- x - mean C(p); of estimates the mean of all that was ever sent."""
    at = 0
    for a, b in runs:
        part = arrived[at : at + b - a]
        at += b - a
        if total is None:
            x[a:b].sub_(part)
        else:
            total[a:b].add_(part)


def blocks(method: Feedback, layout: Layout, key: Key) -> Iterator[tuple[int, int]]:
    """The runs of entries that are sent at a step: one, or two where a block goes on at the beginning."""
    spans = [("", 0, layout.size)]
    if method.by_tensor:
        spans = [(name, first, size) for name, (first, size, _) in layout.spans.items() if size]
    for name, first, size in spans:
        begin, length = method.block.block(size, key.at(name) if name else key)
        yield first + begin, first + min(begin + length, size)
        if begin + length > size:
            yield first, first + begin + length - size


def agree(mine: list[Any]) -> Talk[None]:
    """Raise on every rank unless all are at the same step and block with finite numbers."""
    answers = yield Gather(dumps(mine))
    everyone = [loads(data) for data in answers]
    for number, (step, begin, finite) in enumerate(everyone):
        if [step, begin] != everyone[0][:2]:
            raise OutOfSync(
                f"rank {number} is at step {step} and sends the block that starts at {begin}; "
                f"rank 0 is at step {everyone[0][0]} with {everyone[0][1]}"
            )
        if not finite:
            raise NonFinite(f"step {step}: rank {number} would send NaN or infinity; lower the learning rate or clip")


def output(method: Feedback, rank: Rank) -> Talk[Float[Tensor, " d"]]:
    """The model that is evaluated, x - at_output * mean e: one dense all-reduce, or none where that is x."""
    if not method.at_output:
        return rank.x
    mine = rank.e.clone()
    yield AllReduce(mine)
    y = torch.sub(rank.x, mine, alpha=method.at_output)
    return y if rank.flying is None else y.sub_(rank.flying)
