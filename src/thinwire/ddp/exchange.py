"""The loop of :mod:`.methods`, as functions of a rank's state: what a rank does with its step, and with a gradient.

Large vectors are written in place and not copied where that can be avoided. With the block compressor a step reads x,
e and the parameters once after the optimiser, and e and the parameters once before the next gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..key import Key
from ..optimizers import keep
from ..params import Layout, Params, is_finite
from ..wire import State
from .average import deliver
from .blocks import runs_of
from .collectives import AllReduce, Later, Talk, agree
from .feedback import Feedback
from .overlap import Flight, Flying, Outgoing, spread
from .sketch import sample, square_of_mean, with_square
from .unsent import owe, set_aside

PIECE = 1 << 16  # entries worked on at a time on a CPU: what stays in a cache between two operations
EVERY = 16  # steps between two looks at what was measured: a GPU is waited for there
KEPT = 0.99  # of what was measured, from step to step


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
    flying: Flying | None = None  # None: nothing ever is
    parts: tuple[Layout, ...] = ()  # of the fragments, one after another
    flight: Flight | None = None  # what is on its way and was not waited for; see :func:`settle`

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
    flying = Flying(torch.zeros_like(x), x.new_zeros(2)) if method.delay else None
    rank = Rank(layout, x.clone(), e, total, sender, ranks, method.first(ranks), seen, [], flying, tuple(parts))
    for part, where in map(rank.part, range(method.fragments)):
        rank.v.append(method.outer_of(ranks).init(Params(part, rank.x[where])))
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

    ``w`` are the parameters, other arguments those of :func:`exchange`. What is to be applied is waited for.
    """
    due = (rounds := method.rounds).due(key.round)
    if method.delay and due.apply is not None:
        settle(rank)
    if due.send is not None:
        numbered = key._replace(round=rounds.number(key.round))
        yield from exchange(method, rank, w, numbered, debug, still, due.send, rates)
    if method.delay and due.apply is not None:
        land(method, rank, key._replace(round=rounds.number(key.round - method.delay)), still, due.apply, rates)
    if method.delay and due.begin is not None:
        begin(method, rank, w, due.begin)


def exchange(
    method: Feedback,
    rank: Rank,
    w: Float[Tensor, " d"],
    key: Key,
    debug: bool = False,
    still: Sequence[tuple[int, int]] = (),
    fragment: int = 0,
    rates: Sequence[float] = (),
    share: float = 1.0,
) -> Talk[None]:
    """The end of a round of a fragment, on all ranks; ``key.round`` is the number of the exchange.
    ``share``, K * h_k / sum h, is how often a rank's movement counts where ranks made different numbers of steps.

    ``w`` is where the optimiser went from x - lam * e. It becomes x - at_rest * e, or where the fragment's next round
    begins, x - lam * e. With a delay it stays, and what is sent is ``rank.flight``. ``rates`` are the learning rates of
    the optimisers' groups. The runs of entries ``still`` are of frozen layers: nothing is sent of them, and x and what
    is owed stay there. Raises with ``debug`` :class:`~thinwire.errors.OutOfSync` if ranks are not at the same step and
    block, and :class:`~thinwire.errors.NonFinite` if one would send NaN or infinity. Without ``debug`` only links raise
    the latter.

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
        if share != 1:
            mean_w.mul_(share)
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
    p = e if method.owes else torch.empty_like(w)
    faded = [e[a:b] * (1 - method.decay) for a, b in still]  # what is owed of frozen layers does not decay
    for x_part, w_part, e_part, p_part in _pieces(x, w, e, p):
        moved = torch.sub(x_part, w_part, out=None if method.delay else w_part)  # u + lam * e
        moved = moved if share == 1 else moved.mul_(share)  # of p = share * u + decay * e
        torch.add(moved, e_part, alpha=method.decay - share * lam, out=p_part)
        if resting:
            w_part.copy_(x_part)
    sides = [set_aside(x, p, own, w, a, b, part) for (a, b), part in zip(still, faded, strict=True)]
    runs, sender = runs_of(method, layout, key), rank.sender
    frozen = [(a, b, kept[1]) for (a, b), kept in zip(still, sides, strict=True)]
    out = Outgoing(layout, where, key, p, runs, frozen, [])
    try:
        if debug:
            yield from agree([key.round, [run[0] for run in runs[:1]], is_finite(p)])
        if not method.delay:
            arrived, looked = yield from _carry(method, out, *_encode(method, rank, out))
            if method.every is not None and (key.round + 1) % method.every == 0:
                everyone = e.clone()
                for a, b, part in frozen:
                    everyone[a:b] = part
                yield AllReduce(everyone)
                e.copy_(everyone)
                for a, b, part in frozen:
                    part.copy_(everyone[a:b])
            if direct:
                _apply(x, own, arrived, runs)
            else:
                _step(method, rank, spread(arrived, runs, torch.zeros_like(x)), fragment, rates, still)
    except BaseException:
        rank.sender = sender
        owe(method, lam, x, e, p, w, runs, out.whole, frozen)
        raise
    if method.delay:
        coded = yield Later(_depart(method, rank, out))
        rank.flight = Flight(out, coded, (yield Later(_arrive(method, out, coded))))
        return
    _look(method, rank, looked, key.round)
    if own is not None:
        e.sub_(w)  # minus the estimate: u is forgotten, what was sent towards it is not
        x.sub_(own)
    for (a, b), kept in zip(still, sides, strict=True):
        for vector, part in zip((x, e if method.owes else p, own), kept, strict=False):
            vector[a:b] = part  # type: ignore[index]
    if resting:
        for a, b in runs:
            w[a:b].copy_(x[a:b])
    else:
        to = method.at_rest if method.fragments == 1 else lam
        w.copy_(x) if not to else torch.sub(x, e, alpha=to, out=w)


def _encode(method: Feedback, rank: Rank, out: Outgoing) -> tuple[Any, Tensor | None]:
    """C(p) as it is sent, and a sample of e where its mean is to be looked at. e becomes p - C(p)."""
    p, e, key = out.p, rank.e[out.where], out.key
    if method.link is None:
        parts = [p[a:b] for a, b in out.runs]
        block = with_square(parts) if method.measures else torch.cat(parts)
        out.whole.extend([] if method.delay else [torch.cat(parts)])
        for a, b in out.runs:
            p[a:b] = 0  # p - C(p)
        return block, None
    packet, seen, rank.sender = method.link.send(Params(out.layout, p.cpu()), rank.sender, key)
    if method.owes:
        out.whole.extend([] if method.delay else [p.clone()])
        e.sub_(seen.flat.to(e.device))
    # What a link sends may be each rank's own choice, and says nothing of the rest: a sample of e does.
    looks = method.measures and key.round % exchanges_a_look(method) == 0
    return packet, with_square([sample(e, method.length, key.everyone())]) if looks else None


def _carry(
    method: Feedback, out: Outgoing, sent: Any, sample: Tensor | None
) -> Talk[tuple[Tensor, Float[Tensor, "2"] | None]]:
    """d = mean C(p) of what is sent, and the numbers that :func:`_look` takes in; None: nothing was looked at."""
    if method.link is None:
        yield AllReduce(sent)
        return sent, square_of_mean(sent) if method.measures else None
    senders = method.count == "senders"
    mean, _, _ = yield from deliver(method.link, sent, out.layout, None, out.key, senders=senders)
    if sample is not None:
        yield AllReduce(sample)
    return mean.flat.to(out.p.device), None if sample is None else square_of_mean(sample)


def _depart(method: Feedback, rank: Rank, out: Outgoing) -> Talk[tuple[Any, Tensor | None]]:
    """The half of a delayed exchange after which e is what is owed."""
    sent, e = _encode(method, rank, out), rank.e[out.where]
    for a, b, owed in out.still if method.owes else ():
        e[a:b] = owed
    if method.every is not None and (out.key.round + 1) % method.every == 0:
        yield AllReduce(e)
    return sent


def _arrive(method: Feedback, out: Outgoing, coded: Future[Any]) -> Talk[tuple[Tensor, Tensor | None]]:
    """The other half, which comes after it: the runs of d, and what was looked at."""
    return (yield from _carry(method, out, *coded.result()))


def settle(rank: Rank) -> None:
    """Wait for what is on its way. Raises what its sending has raised, again each time."""
    if rank.flight is not None and rank.flying is not None:
        rank.flight.take_in(rank.flying)
        rank.flight = None


def land(
    method: Feedback,
    rank: Rank,
    key: Key,
    still: Sequence[tuple[int, int]],
    fragment: int,
    rates: Sequence[float],
) -> None:
    """Apply the exchange of ``key``, which has arrived: x moves. It has nothing yet of what was sent since."""
    layout, where = rank.part(fragment)
    assert rank.flying is not None
    x, still, d = rank.x[where], _within(still, where), rank.flying.d[where]
    kept = [x[a:b].clone() for a, b in still]
    if method.plain:
        for a, b in runs_of(method, layout, key):
            x[a:b].sub_(d[a:b])
    else:
        _step(method, rank, d, fragment, rates, still)
    for (a, b), part in zip(still, kept, strict=True):
        x[a:b] = part
    for a, b in runs_of(method, layout, key):
        d[a:b] = 0
    _look(method, rank, rank.flying.looked, key.round)


def begin(method: Feedback, rank: Rank, w: Float[Tensor, " d"], fragment: int) -> None:
    """The next round of a delayed fragment: ``w`` becomes (1 - mix) (x - lam * e) + mix * w.

    Where its message was sent just before, e is what was left of it, which is waited for.
    """
    where = rank.part(fragment)[1]
    x, e, w = rank.x[where], rank.e[where], w[where]
    if rank.flight is not None and rank.flight.out.where == where and (rank.lam or method.mix):
        rank.flight.coded.result()
    if method.mix:
        w.mul_(method.mix).add_(torch.sub(x, e, alpha=rank.lam), alpha=1 - method.mix)
    else:
        w.copy_(x) if not rank.lam else torch.sub(x, e, alpha=rank.lam, out=w)


def _step(
    method: Feedback, rank: Rank, d: Tensor, fragment: int, rates: Sequence[float], still: Sequence[tuple[int, int]]
) -> None:
    """The outer step of a fragment, of which d = mean C(p) came. Its state stays where layers are frozen."""
    layout, where = rank.part(fragment)
    before = Params(layout, rank.x[where])
    x, v = method.apply(before, Params(layout, d), rank.v[fragment], rates, rank.ranks)
    starts = {a for a, _ in still}
    frozen = [name for name, (first, size, _) in layout.spans.items() if size and first in starts]
    rank.v[fragment] = keep(method.outer_of(rank.ranks), before, rank.v[fragment], v, frozen) if frozen else v
    rank.x[where] = x.flat


def _within(runs: Sequence[tuple[int, int]], where: slice) -> list[tuple[int, int]]:
    """The runs that lie in a part of the vector, counted from where it begins."""
    return [(a - where.start, b - where.start) for a, b in runs if where.start <= a and b <= where.stop]


def exchanges_a_look(method: Feedback) -> int:
    """Exchanges from one look at what was measured to the next."""
    return max(1, EVERY // method.length)


def _look(method: Feedback, rank: Rank, looked: Float[Tensor, "2"] | None, number: int) -> None:
    """Take in what was measured by the exchange of that number, and let lambda follow."""
    asked = number % exchanges_a_look(method) == 0
    if rank.seen is not None and looked is not None and (asked or method.link is None):
        since = method.length * (1 if method.link is None else exchanges_a_look(method))  # steps from the look before
        rank.seen.mul_(KEPT**since).add_(looked)
    if method.detach is None and asked:
        rank.lam = rank.lam_rule or rank.lam


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


def output(method: Feedback, rank: Rank) -> Talk[Float[Tensor, " d"]]:
    """The model that is evaluated, x - at_output * mean e: one dense all-reduce, or none where that is x.

    What is on its way is waited for, and is a part of it.
    """
    settle(rank)
    if not method.at_output:
        return rank.x
    mine = rank.e.clone()
    yield AllReduce(mine)
    y = torch.sub(rank.x, mine, alpha=method.at_output)
    return y if rank.flying is None else y.sub_(rank.flying.d)
