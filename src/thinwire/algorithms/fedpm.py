"""FedPM: the weights stay at random, and what is learnt is which of them to use.

Isik, Pase, Gunduz, Weissman, Zorzi, "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR 2023,
arXiv:2209.15328, Algorithms 1 and 2.

Every kernel holds one magnitude with random signs. Each of its entries is in the network with a probability theta.
Clients train the logits of theta by sampling a mask at every step, with the sigmoid's slope in place of the mask's,
and send one sampled mask. The server's theta is the share of clients whose mask has the entry, counted since the last
reset: the mode of the Beta posterior whose prior is uniform.

Differences from the paper: a mask is coded by rows and columns (:mod:`thinwire.kernels.levels`), where the paper codes
it by the share of its ones. Vectors (biases, norms) are neither masked nor trained. Rounds count alike, however many
clients reply. theta is cut to [least, 1 - least] before logits are taken, which are infinite at 0 and 1. The network
that is evaluated has a mask that both ends sample from theta with the run's seed; ``shown="mean"`` has the expected
weights, and ``"threshold"`` the entries with theta of at least one half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require
from ..key import Key
from ..links import STC, Dense, Link
from ..local import Local, LocalAdam, Loss, Net, Trainer
from ..losses import Ratio
from ..params import Layout, Params, call_with
from ..ranges import Count, Range
from ..task import Batch, Task
from ..wire import State
from .base import Algorithm, Client, Message, Start, Weights


class Server(NamedTuple):
    """What the server keeps."""

    base: Params  # the weights, and the vectors as they were at the start
    theta: Params  # of kernels
    ones: Params  # means of masks, summed since the last reset
    seed: int
    round: int  # rounds done


class Broadcast(NamedTuple):
    """What everyone is sent: in the first round the weights, from the second on the probabilities."""

    base: Params
    theta: Params
    round: int


class View(NamedTuple):
    """What a client holds."""

    base: Params
    theta: Params
    seed: int
    round: int


class Reply(NamedTuple):
    """What a client sends back."""

    mask: Params  # zeros and ones


@dataclass(frozen=True)
class Sampled(Loss):
    """The task's loss of the network with a mask sampled from the logits that the module holds."""

    base: Params  # kernels

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"] | Ratio:
        logits = dict(net.module.named_parameters())
        weights = {}
        for name, w in self.base.items():
            theta = torch.sigmoid(logits[name])
            drawn = torch.rand(w.shape, generator=net.generator, dtype=torch.float32, device="cpu").to(theta.device)
            mask = (drawn < theta).to(theta.dtype)
            masked = (theta + (mask - theta).detach()) * w.to(theta.device)  # straight through
            weights[name] = masked.to(logits[name].dtype)
        return task.loss(_With(net.module, weights), batch)


class _With(nn.Module):
    """A module with these weights in place of its own."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self._held = (module, weights)  # in a tuple: no part of this module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        module, weights = self._held
        return call_with(module, weights, inputs, named)


@dataclass(frozen=True)
class FedPM(Algorithm):
    """Train and send masks over random weights: at most about a bit a parameter up.

    ``reset`` is the number of rounds after which the server begins to count anew; the paper takes one over the share
    of clients that take part. ``least`` bounds theta. Up, ``STC(1.0)`` codes a mask without loss: its ones all have the
    magnitude 1. Down go 4 bytes a parameter, or what ``down`` makes of them; ``Entropy(Dense())`` codes them without
    loss, since theta has few values. Learning rates are those of logits: 0.1 of Adam. Raises ``ValueError`` for a
    model without kernels and for numbers out of range.
    """

    local: Trainer = LocalAdam(0.1)
    reset: Count = 1
    least: Annotated[float, Range(lambda x: 0 < x < 0.5, "must be above 0 and below 0.5")] = 0.01
    shown: Literal["sample", "mean", "threshold"] = "sample"
    up: Link | dict[str, Link] = field(default=STC(1.0), kw_only=True)
    down: Link | dict[str, Link] = field(default=Dense(), kw_only=True)
    weights: Weights = field(default="uniform", kw_only=True)

    paper = "Isik et al., ICLR 2023, arXiv:2209.15328"
    scalable = False

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        names = [name for name, shape in zip(x.layout.names, x.layout.shapes, strict=True) if len(shape) > 1]
        require(bool(names), "FedPM masks kernels, and this model has none")
        theta = _fill(x.layout.only(names), 0.5)
        server = Server(_sign_kernels(x, names), theta, theta.zeros(), key.seed, 0)
        view = View(x.zeros(), theta, key.seed, 0)
        return Start(server, view, None, Reply(theta.zeros()), Broadcast(x.zeros(), theta, 0))

    def broadcast(self, server: State, view: State) -> Message:
        if server.round == 0:
            return Broadcast(server.base, server.theta.only(()), 0)
        return Broadcast(server.base.only(()), server.theta, server.round)

    def see(self, view: State, msg: Message, key: Key) -> State:
        base, theta = (new if new.names else old for new, old in ((msg.base, view.base), (msg.theta, view.theta)))
        return View(base, theta, view.seed, msg.round)

    def supersedes(self, older: Message, newer: Message) -> bool:
        return not older.base.names

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        names = view.theta.names
        logits = view.base.replace(Params(view.theta.layout, torch.logit(view.theta.flat, self.least)))
        moved = view.base.zeros().replace(_fill(view.theta.layout, 1.0))  # vectors stay where they are
        y = yield Local(logits, self.local, mask=moved, loss=Sampled(view.base.only(names)))
        return Reply(_draw(Params(view.theta.layout, torch.sigmoid(y.x.only(names).flat)), key.at("mask"))), state

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        counted = server.round % self.reset  # rounds since the last reset
        ones = server.ones + mean.mask if counted else mean.mask
        theta = Params(ones.layout, (ones.flat / (counted + 1)).clamp(0, 1))
        return Server(server.base, theta, ones, server.seed, server.round + 1)

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        base: Params = server.base
        theta: Params = server.theta
        if self.shown == "sample":
            theta = _draw(theta, Key(server.seed, server.round).at("fedpm"))
        elif self.shown == "threshold":
            theta = Params(theta.layout, (theta.flat >= 0.5).to(theta.flat.dtype))
        return base.replace(Params(theta.layout, base.only(theta.names).flat * theta.flat))


def _fill(layout: Layout, value: float) -> Params:
    return Params(layout, torch.full_like(layout.zeros().flat, value))


def _sign_kernels(x: Params, names: list[str]) -> Params:
    """Kernels of one magnitude, the deviation that Kaiming's initialisation has, with the signs of the start."""
    kernels = []
    for name in names:
        w = x[name]
        kernels.append((name, torch.where(w < 0, -1.0, 1.0).to(w.dtype) * math.sqrt(2 / max(1, w.shape[1:].numel()))))
    return x.replace(Params.of(kernels))


def _draw(theta: Params, key: Key) -> Params:
    """A mask: each entry is 1 with its probability."""
    flat = (
        torch.rand(theta.layout.size, generator=key.generator("bernoulli"), dtype=torch.float32, device="cpu")
        < theta.flat
    )
    return Params(theta.layout, flat.to(theta.flat.dtype))
