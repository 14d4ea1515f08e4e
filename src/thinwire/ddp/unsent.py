"""What a rank has after an exchange that came to no end: what could not be sent is owed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .feedback import Feedback


def set_aside(x: Tensor, p: Tensor, total: Tensor | None, w: Tensor, a: int, b: int, faded: Tensor) -> list[Tensor]:
    """What x, e and the mean estimate are to be on a run that is not sent; of p nothing is left there meanwhile."""
    e = p[a:b] + faded
    p[a:b] = 0
    if total is None:
        return [x[a:b].clone(), e]
    return [x[a:b].clone(), e.sub_(w[a:b]), total[a:b].clone()]  # the estimate without the step


def owe(
    method: Feedback,
    lam: float,
    x: Tensor,
    e: Tensor,
    p: Tensor,
    w: Tensor,
    runs: Sequence[tuple[int, int]],
    whole: Sequence[Tensor],
    frozen: Sequence[tuple[int, int, Tensor]],
) -> None:
    """An exchange came to no end: e is p, but of estimates what it was, and ``w`` as :func:`exchange` says.

    ``whole`` is p on its ``runs``, if C(p) was subtracted already. ``frozen`` is what is owed of frozen layers.
    """
    for before in whole:
        for (a, b), part in zip(runs, torch.split(before, [b - a for a, b in runs]), strict=True):
            e[a:b] = part
    if method.estimate:
        e.sub_(w)  # p = u + e, and w is u
    for a, b, part in frozen:
        p[a:b] = part
    if method.length > 1 and (method.estimate or not method.owes):
        torch.sub(x, w if method.estimate else p, out=w)
    else:
        to = method.at_rest if method.length == 1 else lam
        w.copy_(x) if not to else torch.sub(x, e, alpha=to, out=w)
