"""FedMut: every client starts from a mutant of the model, along the last global update or against it.

Hu, Cao, Li, Li, Liu, Li, Chen, Liu, "FedMut: Generalized Federated Learning via Stochastic Mutation",
AAAI 2024, Algorithm 1.

A mutant is x + alpha * s_l * (x - x_before), with a sign s_l for each layer, and the signs of all
clients add up to zero. The server sends x to everyone. Each client makes its own mutant from x and the
x before, with signs from the common key. A client that took part in the round before is sent one model.
A client that was away is sent the two models that it lacks.

Differences from the paper: signs are balanced within fixed pairs of clients, 2i and 2i + 1. The last client of an odd
number starts from x itself. The paper balances signs among the clients sampled, but clients here do not know who else
was sampled. Over the rounds every client gets each sign equally often. alpha does not change with the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..key import Key
from ..local import Local, LocalSGD, Trainer
from ..params import Params
from ..ranges import NonNegative
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start
from .fedavg import Broadcast, Reply


class View(NamedTuple):
    """What a client holds."""

    x: Params
    step: Params  # x less the x before
    heard: bool  # whether there was one before
    num_clients: int


@dataclass(frozen=True)
class FedMut(Algorithm):
    """FedAvg whose clients start from mutants of the model, ``alpha`` last steps away from it.

    ``alpha`` = 0 is FedAvg. Raises ``ValueError`` for a negative ``alpha``.
    """

    paper = "Hu et al., AAAI 2024"

    local: Trainer = LocalSGD()
    alpha: NonNegative = 0.5

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        return Start(Broadcast(x), View(zero, zero, heard=False, num_clients=num_clients), None, Reply(zero))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x)

    def see(self, view: State, msg: Message, key: Key) -> State:
        step = msg.x - view.x if view.heard else view.step
        return View(msg.x, step, heard=True, num_clients=view.num_clients)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x + mutation(view, key) * self.alpha, self.local)
        return Reply(update=y.x - view.x), state

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        return Broadcast(server.x + mean.update)


def mutation(view: View, key: Key) -> Params:
    """The last step, each layer times this client's sign for it; nothing for the last of an odd number of clients."""
    client = key.client or 0
    if client ^ 1 >= view.num_clients:
        return view.step.zeros()
    pair = key._replace(client=client // 2)
    layout = view.step.layout
    drawn = torch.randint(2, (len(layout.names),), generator=pair.generator("mutation"), device="cpu")
    signs = drawn.to(torch.float32) * 2 - 1
    signs = -signs if client % 2 else signs
    return view.step * signs.repeat_interleave(torch.tensor(layout.sizes, device="cpu"))
