"""What a rank has after an exchange that came to no end: what could not be sent is owed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .feedback import Feedback


def owe(
    method: Feedback,
    lam: float,
    x: Tensor,
    e: Tensor,
    p: Tensor,
    w: Tensor,
    runs: Sequence[tuple[int, int]],
    sent: Tensor | None,
    frozen: Sequence[tuple[int, int, Tensor]],
) -> None:
    """An exchange came to no end: e is p, but of estimates what it was, and ``w`` as :func:`exchange` says.

    ``sent`` is what was subtracted from p on its ``runs`` already, and ``frozen`` what is owed of frozen layers.
    """
    if sent is not None:
        for (a, b), part in zip(runs, torch.split(sent, [b - a for a, b in runs]), strict=True):
            e[a:b].add_(part)
    if method.estimate:
        e.sub_(w)  # p = u + e, and w is u
    for a, b, part in frozen:
        p[a:b] = part
    if method.steps > 1 and (method.estimate or not method.owes):
        torch.sub(x, w if method.estimate else p, out=w)
    else:
        to = method.at_rest if method.steps == 1 else lam
        w.copy_(x) if not to else torch.sub(x, e, alpha=to, out=w)
