"""The loop of :mod:`.methods`, as functions of a rank's state: what a rank does with its step, and with a gradient.

Large vectors are written in place and not copied where that can be avoided. With the block compressor a step reads x,
e and the parameters once after the optimiser, and e and the parameters once before the next gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import NonFinite, OutOfSync
from ..key import Key
from ..params import Layout, Params, is_finite
from ..wire import State, dumps, loads
from .average import deliver
from .collectives import AllReduce, Gather, Talk
from .methods import Feedback

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

    @property
    def lam_rule(self) -> float | None:
        """The lambda that is not given: the middle one of 1/2, the measured one and its square root."""
        best = self.lam_star
        return None if best is None else sorted((best, math.sqrt(best), 0.5))[1]


def start(method: Feedback, layout: Layout, x: Float[Tensor, " d"], ranks: int) -> Rank:
    """A rank's state before its first step, from parameters ``x``; there are ``ranks`` of them."""
    sender = None if method.link is None else method.link.open(layout.zeros())[0]
    total = torch.zeros_like(x) if method.estimate else None
    seen = torch.zeros(2, dtype=x.dtype, device=x.device) if method.measures else None
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
    """One step of all ranks. ``w`` is where the optimiser went from x - lam * e, and becomes x - at_rest * e.

    The runs of entries ``still`` are of frozen layers: nothing is sent of them, and x and what is owed stay there.
    Raises with ``debug`` :class:`~thinwire.errors.OutOfSync` if ranks are not at the same step and block, and
    :class:`~thinwire.errors.NonFinite` if one would send NaN or infinity. Without ``debug`` only links raise the
    latter.
    """
    lam, e = rank.lam, rank.e
    resting = not (method.at_rest or method.estimate or method.every)  # w is x, but for what is about to be sent
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
        yield AllReduce(arrived)
        _look(rank, arrived, 1)
    else:
        packet, seen, rank.sender = method.link.send(Params(rank.layout, e.cpu()), rank.sender, key)
        mean, _, _ = yield from deliver(method.link, packet, rank.layout, None, key)
        e.sub_(seen.flat.to(e.device))
        arrived = mean.flat.to(e.device)
        if rank.seen is not None and key.round % EVERY == 0:
            # What a link sends may be each rank's own choice, and says nothing of the rest: a sample of e does.
            sample = _with_square([e[key.everyone().number("lambda") % min(STRIDE, len(e)) :: STRIDE]])
            yield AllReduce(sample)
            _look(rank, sample, EVERY)
    _apply(rank, arrived, runs)
    if rank.total is not None:
        e.sub_(w)  # minus the estimate: u is forgotten, what was sent towards it is not
        rank.x.sub_(rank.total)
    for (a, b), parts in zip(still, kept, strict=True):
        for vector, part in zip((rank.x, e, rank.total), parts, strict=False):
            vector[a:b] = part  # type: ignore[index]
    if method.every is not None and (key.round + 1) % method.every == 0:
        yield AllReduce(e)
    if resting:
        for a, b in runs:
            w[a:b].copy_(rank.x[a:b])
    else:
        place(rank, method.at_rest, w)
    if method.detach is None and key.round % EVERY == 0:
        rank.lam = rank.lam_rule or rank.lam


def _set_aside(rank: Rank, w: Tensor, a: int, b: int) -> list[Tensor]:
    """What x, e and the mean estimate are to be on a run that is not sent; of e nothing is left there meanwhile."""
    e = rank.e[a:b].clone()
    rank.e[a:b] = 0
    if rank.total is None:
        return [rank.x[a:b].clone(), e]
    return [rank.x[a:b].clone(), e.sub_(w[a:b]), rank.total[a:b].clone()]  # the estimate without the step


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
    return torch.sub(rank.x, mine, alpha=method.at_output)
