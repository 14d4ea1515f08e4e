"""What a rank will send, before anything is trained: the exchanges themselves, of steps that are drawn.

Messages are really encoded, and go through the lines that ranks run, in the order in which they run them. Of links
whose messages are as long as their layers say, the prediction is exactly what a ledger will have. Where the length
depends on what is in a message (positions, bins), it is about that.
"""

from __future__ import annotations

import torch
from torch import nn

from ..key import Key
from ..params import Layout, Params
from ..ranges import Count, check_ranges, of_argument
from .average import average, ends
from .clock import refuse
from .collectives import Traffic, together
from .exchange import advance, start
from .feedback import Feedback, Method
from .methods import Hook
from .vector import Vector, check_real


def predict(method: Method, model: nn.Module, ranks: Count, steps: Count) -> Traffic:
    """The bytes that one of ``ranks`` gives to collectives in ``steps`` steps of ``model``, as its ledger counts them.

    ``model`` is not changed. Its gradients, and what optimisers make of them, are taken for normal random numbers, of
    which a half of the variance is common to all ranks. ``steps`` may be one round, or a few: later ones cost as much.
    What ranks compare before the first step (``setup``) is not among it. Raises ``ValueError`` for ranks or steps
    below 1, and what :func:`~thinwire.ddp.compress` raises for a model that cannot be compressed.
    """
    check_ranges(_Size, {"ranks": ranks, "steps": steps}, of_argument)
    refuse(method, "a prediction is for a number of steps")
    named = [(n, nn.Parameter(p.detach().cpu().clone())) for n, p in model.named_parameters() if p.requires_grad]
    draw, traffic = torch.Generator().manual_seed(0), Traffic()
    if isinstance(method, Feedback):
        vector = Vector(named, method.fragments)
        layout, flats = vector.layout, [vector.flat.clone() for _ in range(ranks)]
        team = [start(method, vector.layout, vector.flat, ranks, vector.parts) for _ in range(ranks)]
    else:
        assert isinstance(method, Hook)
        for name, p in named:
            check_real(name, p)
        layout = Layout.of(named)  # as ranks have it: shapes and 64-bit floats are the model's
        own = [ends(method.link, layout, ranks) for _ in range(ranks)]
    for step in range(steps):
        common = torch.randn(layout.size, generator=draw)
        keys = [Key(0, step, k, "ddp") for k in range(ranks)]
        moves = [1e-3 * (common + torch.randn(len(common), generator=draw)) for _ in keys]
        if isinstance(method, Feedback):
            for w, move in zip(flats, moves, strict=True):
                w.sub_(move)
            of = zip(team, flats, keys, strict=True)
            together([advance(method, rank, w, key, [1e-3]) for rank, w, key in of], traffic)
        else:
            grads = [Params(layout, move.to(layout.dtype)) for move in moves]
            of_link = zip(own, grads, keys, strict=True)
            together([average(method.link, end, g, key) for end, g, key in of_link], traffic)
        traffic.steps += 1
    return traffic


class _Size:
    """The ranges of :func:`predict`'s numbers."""

    ranks: Count
    steps: Count
