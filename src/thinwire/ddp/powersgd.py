"""PowerSGD by all-reduce: one power iteration of the mean gradient, in two rounds.

T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019, arXiv:1905.13727, Algorithms 1 and 2.

The link ``PowerSGD`` says which layers go in factors, and keeps what is owed and Q. Through the link each sender has
factors of its own. Here all ranks share one P, which comes from the mean of their M Q, and the mean of M^T P is exact
for it.

Differences from the paper: none. What is owed is M - P (M^T P)^T with each rank's own M, as printed, and P is that of
the mean. Numbers are sent in 32 bits, as the link sends them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..key import Key
from ..links.base import join
from ..links.powersgd import PowerSGD, Sender, unit
from ..params import Params
from .collectives import AllReduce, Talk


def low_rank(
    link: PowerSGD, own: Sender, g: Params, key: Key, flag: Tensor, heard: Callable[[Tensor], Talk[bool]]
) -> Talk[tuple[Params, Sender] | None]:
    """The mean gradient as all ranks see it, and what this rank keeps; None if the gradient of any rank is not finite.

    Two all-reduces: one of P = M Q, of the layers that are sent whole and of ``flag``, a number whose mean is
    ``heard``, and one of M^T P.
    """
    owed = g + own.residual.only(g.names)
    sent = owed.to(torch.float32)
    thin = {name: sent[name].reshape(len(owed[name]), -1) for name in owed.names if name in own.start}  # [m, n]
    starts = {name: unit(own.start[name], key.everyone().at(name)) for name in thin}  # [rank, n]
    first = {name: thin[name] @ starts[name].T if name in thin else sent[name] for name in owed.names}
    sums = torch.cat([*(part.reshape(-1) for part in first.values()), flag])
    yield AllReduce(sums)
    if not (yield from heard(sums[-1])):
        return None
    seen = _split(sums, first)
    left = {name: torch.linalg.qr(seen[name]).Q for name in thin}  # P, [m, rank]
    mine = {name: left[name].T @ matrix for name, matrix in thin.items()}  # (M^T P)^T, [rank, n]
    rest = {name: owed[name] - (left[name] @ mine[name]).view(owed[name].shape) for name in thin}
    second = torch.cat([part.reshape(-1) for part in mine.values()]) if mine else sums[:0]
    if mine:
        yield AllReduce(second)
    right = _split(second, mine)
    arrived = [left[name] @ right[name] if name in thin else seen[name] for name in owed.names]
    whole = {name: owed[name] - sent[name] for name in owed.names if name not in thin}  # of 64 bits what 32 have not
    residual = join(owed.layout, [(rest | whole)[name] for name in owed.names])
    start = own.start | right if link.warm else dict(own.start)
    return join(owed.layout, arrived), Sender(own.residual.replace(residual, copy=False), start)


def _split(flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor after the other, in the shapes of ``like``, in memory of their own."""
    parts, at = {}, 0
    for name, part in like.items():
        parts[name] = flat[at : at + part.numel()].clone().view(part.shape)
        at += part.numel()
    return parts
