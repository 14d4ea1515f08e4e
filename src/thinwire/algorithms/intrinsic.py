"""Intrinsic gradient compression: train in a random subspace of the parameters.

Melas-Kyriazi, Wang, "Intrinsic Gradient Compression for Federated Learning", 2021.

===============  ==========================================================
static           ``Intrinsic(16384)``
K-subspace       ``Intrinsic(16384, subspaces=8)``
time-varying     ``Intrinsic(16384, varying=True, epoch=10)``
both             ``Intrinsic(16384, subspaces=8, varying=True, epoch=10)``
===============  ==========================================================

The model is theta_c + A Sigma: a starting point and d coefficients per subspace. Clients
train in the full space from it and send A^T of the change, d floats; everyone is sent the
coefficients.

Differences from the paper: clients may take any local training before they compress its whole
change; the paper compresses one gradient. The constant of A makes E[A A^T] = I, so a learning rate
means what it means in the full space. Public Fastfood code has unit columns instead, and takes a rate D/d
times as large for the same path. "A A^dagger" in the text is read as the transpose. In the
time-varying form everyone is sent this epoch's coefficients and the final ones of the epoch before,
as in Algorithm 3. Algorithm 3 needs each client once an epoch; here a client that skipped
epochs is sent the messages that it missed or the model, whichever is fewer bytes. The starting point is
sent once to each client, unless it is ``known`` (drawn from the shared seed, or a published
pre-trained model). The mean is weighted as ``weights`` says, by examples unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

from torch import Size

from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense
from ..links.subspace import Basis, Fastfood
from ..local import Local, LocalSGD, Trainer
from ..optimizers import SGD, Optimizer
from ..params import Layout, Params
from ..ranges import PositiveInt, Range
from ..task import Task
from ..wire import State
from .base import Algorithm, Client, Message, Start, each_link


class Server(NamedTuple):
    """What the server keeps."""

    base: Params  # theta at the start of the epoch
    sigma: Params  # this epoch's coefficients, one layer a subspace
    opt: State  # of the coefficients
    before: Params  # the epoch before: its final coefficients
    seed: int  # of the matrices
    round: int  # rounds done


class Broadcast(NamedTuple):
    """What everyone is sent: d floats a subspace, twice that in the time-varying form."""

    base: Params  # in the first broadcast, unless it is known
    sigma: Params
    before: Params
    round: int


class View(NamedTuple):
    """What a client holds."""

    base: Params
    sigma: Params
    seed: int
    round: int


class Reply(NamedTuple):
    """What a client sends back: the coefficients of one subspace."""

    update: Params


@dataclass(frozen=True)
class Intrinsic(Algorithm):
    """Upload and download ``dim`` coefficients of a random subspace instead of the model.

    ``subspaces`` is the paper's K: each client draws one of K matrices for its upload, and
    everyone downloads the coefficients of all K. ``varying`` draws new matrices every
    ``epoch`` rounds. ``basis`` is how they are made: ``Fastfood()``, whose memory is little more
    than one vector of D, or for small models ``Gaussian()``, or ``PerTensor(...)`` of either, with
    a matrix for each tensor.

    Raises ``ValueError`` where ``dim`` times ``subspaces`` is more than the model's parameters, and
    :class:`~thinwire.errors.CombinationError` for ``varying`` with a ``down`` other than ``Dense()``.
    """

    dim: PositiveInt
    subspaces: Annotated[int, Range(lambda x: x >= 1, "at least 1")] = 1
    varying: bool = False
    epoch: Annotated[int, Range(lambda x: x >= 1, "an epoch has at least 1 round")] = 10
    local: Trainer = LocalSGD()
    opt: Optimizer = SGD(1.0)
    basis: Basis = Fastfood()
    known: bool = False

    paper = "Melas-Kyriazi, Wang, 2021"
    chained = True  # a chain is an epoch, and every broadcast has the final coefficients of the epoch before

    def __post_init__(self) -> None:
        if self.varying and any(link != Dense() for link in each_link(self.down)):
            raise CombinationError(
                f"Intrinsic(varying=True, down={self.down!r}): clients move their starting point by what they see of "
                f"an epoch's coefficients, and nothing would bring it back; use down=Dense()"
            )

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        size = x.layout.size
        require(
            self.dim * self.subspaces <= size,
            f"Intrinsic(dim={self.dim}, subspaces={self.subspaces}): more than the model's {size} parameters",
        )
        names = tuple(f"subspace{k}" for k in range(self.subspaces))
        zero = Layout(names, (Size([self.dim]),) * self.subspaces).zeros()
        server = Server(x, zero, self.opt.init(zero), zero.only(names if self.varying else ()), key.seed, 0)
        view = View(x if self.known else x.zeros(), zero, key.seed, 0)
        return Start(server, view, None, Reply(zero))

    def broadcast(self, server: State, view: State) -> Message:
        base = server.base if server.round == 0 and not self.known else server.base.only(())
        return Broadcast(base, server.sigma, server.before, server.round)

    def see(self, view: State, msg: Message, key: Key) -> State:
        base = msg.base if msg.base.names else view.base
        if self._epoch(msg.round) > self._epoch(view.round):
            base = self._point(base, msg.before, view.seed, self._epoch(view.round))
        return View(base, msg.sigma, view.seed, msg.round)

    def supersedes(self, older: Message, newer: Message) -> bool:
        return not older.base.names and self._epoch(older.round) == self._epoch(newer.round)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        x = self._point(view.base, view.sigma, view.seed, self._epoch(view.round))
        y = yield Local(x, self.local)
        name = self._choice(key)
        s = self.basis.project_model(y.x - x, self.dim, self._matrix(view.seed, self._epoch(view.round), name))
        return Reply(Params(view.sigma.layout.only([name]), s)), state

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        return (Reply(blank.update.only([self._choice(key)])),)

    def _choice(self, key: Key) -> str:
        """The subspace of a client in a round."""
        return f"subspace{key.at('subspace').number('choice') % self.subspaces}"

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        step = server.sigma.zeros().replace(mean.update)
        sigma, opt = self.opt.step(server.sigma, step, server.opt)
        base, before, done = server.base, server.before, server.round + 1
        if self._epoch(done) > self._epoch(server.round):
            base = self._point(base, sigma, server.seed, self._epoch(server.round))
            before, sigma = sigma, sigma.zeros()
            opt = self.opt.init(sigma)  # moments of the old matrix's coordinates mean nothing in the new one's
        return Server(base, sigma, opt, before, server.seed, done)

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        return self._point(server.base, server.sigma, server.seed, self._epoch(server.round))

    def at_client(self, view: State, client: int | None, own: State) -> Params:
        return self._point(view.base, view.sigma, view.seed, self._epoch(view.round))

    def _epoch(self, round: int) -> int:
        return round // self.epoch if self.varying else 0

    def _matrix(self, seed: int, epoch: int, name: str) -> Key:
        return Key(seed, epoch, None, f"intrinsic/{name}")

    def _point(self, base: Params, sigma: Params, seed: int, epoch: int) -> Params:
        return _model_at(self, base, sigma, seed, epoch)


@lru_cache(maxsize=1)  # a version's point is the same for all its clients, and for the server
def _model_at(method: Intrinsic, base: Params, sigma: Params, seed: int, epoch: int) -> Params:
    """theta = theta_c + A Sigma."""
    flat = base.flat.clone()
    for name, s in sigma.items():
        flat += method.basis.expand_model(s, base.layout, method._matrix(seed, epoch, name)).flat
    return Params(base.layout, flat)
