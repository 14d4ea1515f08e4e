"""DeComFL: gradients along random directions, so that scalars are all that is sent, in both directions.

Li, Ying, Liu, Dong, Yang, "Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization",
ICLR 2025, arXiv:2405.15861, Algorithms 1 to 3.

All ends draw the same directions z from the run's seed. A client measures how much its loss changes along each of
them, which takes forward passes alone, and sends these slopes. The server broadcasts their mean. Everyone then takes
the same step, and a client that was away takes the steps that it missed, in their order.

Differences from the paper: entries of z are +1 or -1 with equal chances, where the paper's are normal. Their products
with a scalar are exact, so that all machines hold the same bits. Seeds are not sent, because directions follow from
the seed of the run and the number of the round. Slopes are weighted as ``weights`` says. A client that was away is
sent the scalars that it missed, or the model, whichever is fewer bytes. The model is sent once to each client at
first, unless the start is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Size, Tensor

from ..errors import require
from ..kernels.signs import unpack_signs
from ..key import Key
from ..links import Dense
from ..local import Local, LocalSGD, Loss, Net
from ..losses import per_example
from ..params import Layout, Params
from ..ranges import AboveZero, Count
from ..task import Batch, Task
from ..wire import State
from .base import Client, Message, Start
from .moving import Broadcast, Moving, View


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    change: Params  # of the last round: the multiple of each direction, [steps, directions]
    seed: int
    round: int  # rounds done


class Reply(NamedTuple):
    """What a client sends back."""

    slopes: Params  # [steps, directions]


@dataclass(frozen=True)
class Forward(Loss):
    """The task's own loss, of which no gradient is computed."""

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        with torch.no_grad():
            losses = per_example(task.loss(net.module, batch))
        one = next(p for p in net.module.parameters() if p.requires_grad and p.numel())
        return losses + 0 * one.reshape(-1)[0]  # what is asked for a gradient: it is zero


@dataclass(frozen=True)
class DeComFL(Moving):
    """Send ``steps`` times ``directions`` scalars in each direction, whatever the size of the model.

    ``steps`` are the local steps (the paper's K), ``directions`` the perturbations of each (P), and ``mu`` is how far
    a client looks along them. ``local`` gives the learning rate and the size of mini-batches; a step has 1 +
    ``directions`` forward passes of one mini-batch. Raises ``ValueError`` for numbers out of range.
    """

    steps: Count = 1
    directions: Count = 10
    mu: AboveZero = 1e-3
    local: LocalSGD = LocalSGD(0.001)
    # A client that saw other multiples would hold another model.
    down: ClassVar[Any] = Dense()  # type: ignore[misc]  # of all, so no field

    paper = "Li et al., ICLR 2025, arXiv:2405.15861"

    def __post_init__(self) -> None:
        require(
            not self.local.momentum and not self.local.prox,
            f"{self!r}: its steps are along random directions; leave momentum and prox of local at 0",
        )

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = Layout(("slopes",), (Size([self.steps, self.directions]),)).zeros()
        server, view = Server(x, zero, key.seed, 0), View(x.zeros(), key.seed, 0)
        return Start(server, view, None, Reply(zero), Broadcast(x.zeros(), zero, 0))

    def after(self, x: Params, change: Params, seed: int, round: int) -> Params:
        return move(x, change["slopes"], seed, round)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        one = LocalSGD(1e-3, batch=self.local.batch, steps=1)
        x, rate, slopes = (
            view.x,
            self.local.rate(key),
            torch.zeros(self.steps, self.directions, dtype=torch.float32, device="cpu"),
        )
        for k in range(self.steps):
            here = yield Local(x, one, loss=Forward())
            for p in range(self.directions):
                z = direction(x.layout.size, view.seed, view.round, k, p)
                ahead = Params(x.layout, x.flat + self.mu * z)
                there = yield Local(ahead, one, loss=Forward(), aside=True, again=p + 1)
                slopes[k, p] = (there.loss - here.loss) / self.mu
            x = move(x, -rate / self.directions * slopes[k : k + 1], view.seed, view.round, k)
        return Reply(Params(Layout(("slopes",), (slopes.shape,)), slopes.view(-1))), state

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        change = mean.slopes * (-self.local.rate(key) / self.directions)
        x = move(server.x, change["slopes"], server.seed, server.round)
        return Server(x, change, server.seed, server.round + 1)


def move(x: Params, change: Float[Tensor, "steps directions"], seed: int, round: int, first: int = 0) -> Params:
    """x + sum of change_kp z_kp, one after another."""
    flat = x.flat.clone()
    for k, row in enumerate(change.tolist(), first):
        for p, c in enumerate(row):
            flat.add_(direction(x.layout.size, seed, round, k, p), alpha=c)
    return Params(x.layout, flat)


def direction(size: int, seed: int, round: int, step: int, number: int) -> Float[Tensor, " size"]:
    """+1 and -1, drawn from the run's seed."""
    generator = Key(seed, round).at("decomfl").generator(f"{step}/{number}")
    data = torch.randint(0, 256, ((size + 7) // 8,), dtype=torch.uint8, generator=generator, device="cpu")
    if size % 8:
        data[-1] %= 1 << size % 8  # no bits beyond the last
    return unpack_signs(data, size, 1.0)
