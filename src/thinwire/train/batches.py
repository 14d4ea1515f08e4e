"""The mini-batches of a client's training, drawn or as its task orders them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import require
from ..key import Key
from ..local import Local, Trainer
from ..task import Task


def order(task: Task, request: Local, key: Key, generator: torch.Generator, at_least: int = 1) -> Tensor:
    """Positions of every mini-batch, [steps, batch], -1 where a batch has no more examples.

    They are those of the task's ``order``, if it has one, else drawn: of training aside too, where it is on the
    mini-batches of an earlier request. Raises ``ValueError`` for an order without
    batches for this round, or with a batch that cannot be trained on.
    """
    rounds = None if request.aside and not request.again else getattr(task, "order", None)
    if rounds is None:
        return draw_batches(len(task), request.trainer, generator, at_least)
    who = f"round {key.round}, client {key.client}: the task's order"
    batches = rounds[key.round - 1] if key.round <= len(rounds) else ()
    given = [torch.as_tensor(batch, device="cpu") for batch in batches]
    require(len(given) > 0, f"{who} has no batches for this round")
    for number, batch in enumerate(given):
        fits = batch.ndim == 1 and not batch.is_floating_point() and len(batch) >= at_least
        fits = fits and int(batch.min()) >= 0 and int(batch.max()) < len(task)
        require(fits, f"{who} has at {number} {batch.tolist()}: at least {at_least} positions below {len(task)}")
    return nn.utils.rnn.pad_sequence([batch.long() for batch in given], batch_first=True, padding_value=-1)


def draw_batches(n: int, trainer: Trainer, generator: torch.Generator, at_least: int = 1) -> Tensor:
    """:func:`order` as it is drawn: a fresh permutation an epoch, batches of fewer than ``at_least`` left out."""
    size = n if trainer.batch is None else min(trainer.batch, n)
    epoch, steps = trainer.per_epoch(n, at_least), trainer.num_steps(n, at_least)
    orders = [torch.randperm(n, generator=generator, device="cpu") for _ in range(-(-steps // epoch))]
    if (rest := epoch * size - n) > 0:
        orders = [nn.functional.pad(order, (0, rest), value=-1) for order in orders]
    elif rest < 0:
        orders = [order[: epoch * size] for order in orders]
    drawn = (orders[0] if len(orders) == 1 else torch.cat(orders)).view(-1, size)
    return drawn if len(drawn) == steps else drawn[:steps]
