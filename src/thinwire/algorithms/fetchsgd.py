"""FetchSGD: sketched updates; momentum and error live in the sketch, at the server.

Rothchild, Panda, Ullah, Ivkin, Stoica, Braverman, Gonzalez, Arora, "FetchSGD:
Communication-Efficient Federated Learning with Sketching", ICML 2020, arXiv:2007.07682,
Algorithm 1.

Clients send a count sketch of their update. It is linear, so the mean of the sketches is the
sketch of the mean, and the server's momentum and error feedback are sums of sketches: clients
keep nothing. The server takes the k largest entries out of the error sketch and applies them;
they, and where they are, are all that is broadcast.

Differences from the paper: an update (any local training) takes the place of the gradient
times its learning rate, so the rate that multiplies the momentum is the server's ``lr``. After
entries are taken out, the cells that they fall into become zero in both sketches, as in the paper's
experiments: in the momentum (``masking``) and in the error (``error="zero"``). The listing
subtracts the sketch of these entries from the error instead (``error="subtract"``). Without collisions
both are the same. In a small sketch estimates are wrong, subtraction leaves the wrong part behind,
and it builds up. Clients that were away get the changes they missed, each with its positions in a
Rice code, or the whole model, whichever is fewer bytes. The model is sent once to each client at first
unless it is ``known`` (drawn from the shared seed, or published).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import require
from ..kernels.sketch import count_sketch, heavy
from ..key import Key
from ..links import Dense, Flat, Sparse
from ..links.sketch import Rows
from ..local import Local, LocalSGD, Trainer
from ..params import Layout, Params
from ..ranges import AboveZero, Count, Decay
from ..task import Task
from ..wire import State
from .base import Client, Message, Start
from .moving import Broadcast, Moving, View


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    momentum: Tensor  # S_u, [rows, cols]
    error: Tensor  # S_e, [rows, cols]
    change: Params  # Delta of the last round
    seed: int  # of the hashes
    round: int  # rounds done


class Reply(NamedTuple):
    """What a client sends back."""

    sketch: Params


@dataclass(frozen=True)
class FetchSGD(Moving):
    """Send a sketch of ``rows`` by ``cols`` up and the ``k`` entries that stand out of it down.

    ``momentum`` is the paper's rho, ``lr`` the server's rate. ``masking`` empties the momentum's cells
    of the entries that were just applied. ``error`` says what becomes of the error: every cell
    that these entries touch is emptied ("zero"), or their sketch is subtracted ("subtract"). The paper
    has 5 rows, and ten columns for each of the k entries. A sketch is 4 ``rows`` ``cols`` bytes and framing
    under ``up=Dense()``. Raises ``ValueError`` for a number out of range and for a ``k`` above the model's size.
    """

    cols: Count
    k: Count
    rows: Rows = 5
    momentum: Decay = 0.9
    masking: bool = True
    error: Literal["zero", "subtract"] = "zero"
    lr: AboveZero = 1.0
    local: Trainer = LocalSGD()
    known: bool = False
    # A client that saw other changes would train another model.
    down: ClassVar[Any] = {"x": Dense(), "change": Flat(Sparse())}  # type: ignore[misc]  # of all, so no field

    paper = "Rothchild et al., ICML 2020, arXiv:2007.07682"

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        size = x.layout.size
        require(self.k <= size, f"FetchSGD(k={self.k}): more than the model's {size} parameters")
        zero, blank = torch.zeros(self.rows, self.cols, dtype=torch.float32, device="cpu"), x.zeros()
        server = Server(x, zero, zero, blank, key.seed, 0)
        view = View(x if self.known else blank, key.seed, 0)
        reply = Reply(Layout(("sketch",), (zero.shape,)).zeros())
        return Start(server, view, None, reply, Broadcast(blank, blank, 0))

    def broadcast(self, server: State, view: State) -> Message:
        sent = super().broadcast(server, view)
        return sent._replace(x=sent.x.only(())) if self.known else sent

    def after(self, x: Params, change: Params, seed: int, round: int) -> Params:
        return x + change

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, self.local)
        sketch = count_sketch((y.x - view.x).flat.float(), self.rows, self.cols, self._hashes(view.seed))
        return Reply(Params(Layout(("sketch",), (sketch.shape,)), sketch.reshape(-1))), state

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, hashes = server.x, self._hashes(server.seed)
        momentum = self.momentum * server.momentum + mean.sketch["sketch"]  # momentum
        error = server.error + self.lr * momentum  # error feedback
        positions, values = heavy(error, x.layout.size, self.k, hashes)  # unsketch
        change = x.zeros()
        change.flat[positions] = values.to(change.flat.dtype)
        taken = count_sketch(change.flat.float(), self.rows, self.cols, hashes)
        error = error - taken if self.error == "subtract" else error.masked_fill(taken != 0, 0)  # error accumulation
        if self.masking:
            momentum = momentum.masked_fill(taken != 0, 0)
        return Server(x + change, momentum, error, change, server.seed, server.round + 1)

    def _hashes(self, seed: int) -> int:
        """One sketch for all rounds and clients: sums of sketches are sketches."""
        return Key(seed).always().at("fetchsgd").number("sketch")
