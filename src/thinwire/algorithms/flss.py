"""FLSS: train in a subspace of the updates seen so far, and let it follow them.

"Federated Learning in Streaming Subspace", anonymous submission, Algorithms 1 and 2.

The first ``start`` rounds (the paper's L) are the inner method's, and everyone keeps the
global updates g_1 .. g_L. P is then an orthonormal basis of their ``rank`` leading
directions (R). From there on one round in ``every`` (s) is full. In the others clients send
the R coefficients P^T g, everyone is sent their mean, and the step is P times that mean. Each
full update moves the basis: P, Sigma <- SVD_R([decay P Sigma, g]).

Differences from the paper: Algorithm 2 never forms the first P; here it is formed when round L ends. A projected round
is decoded with the P that encoded it. The new basis is computed another way. The paper takes the eigenvectors of the
Gram matrix of [decay P Sigma, g]. Its eigenvalues are squares, so a direction whose sigma is below 1e-8 of the largest
is lost in rounding, and with decay < 1 every old direction soon is. Here the rows of P and g are made orthonormal
first, and the small matrix of their weights along these rows is decomposed (Brand, "Fast low-rank modifications of the
thin singular value decomposition", 2006). A direction is then kept however small its sigma is. g adds no direction
where the share of its length outside P is so small that it may be rounding (1e-6; a sixty-fourth with "bfloat16"). The
server alone decomposes, in double precision. It sends clients the small matrix that makes the new basis out of the old
one and g, and clients only multiply, in an order and a precision that give the same bits on every machine
(:func:`mix`). Coefficients always travel as 32-bit floats, or up by ``coefficients``, and the small matrix as 64-bit
floats, whatever ``up`` and ``down`` are. After a full round the matrix has rank + 1 times rank entries; with 32 bits a
new direction would be wrong by 1e-7 over the share of g that lies outside P. The mean is weighted as the inner method's
``weights`` says, by examples unless told otherwise; the paper averages uniformly.

The server takes the inner products of the rows as they are stored, so each basis makes good the rounding of the one
before. With 32-bit floats, P^T P is the identity to 1e-6 and P is within an angle of 1e-5 of the basis without
rounding, after 40 full rounds of R = 50. With "bfloat16", P^T P is the identity to 1e-3 and the angles of the weakest
directions are some hundredths.

Error feedback pauses in projected rounds. Memory is ``rank`` models at each end (``start`` models before round L ends),
half of that with "bfloat16". A server also keeps broadcasts for clients that were away, up to the length of a
snapshot: in the first rounds as many models again. A simulator is both ends, so it has three times as many in memory
and in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Size, Tensor
from torch.nn import functional as F

from ..config import LATER
from ..errors import CombinationError, require
from ..key import Key
from ..links import Dense, Link
from ..optimizers import SGD
from ..params import Layout, Params
from ..ranges import AboveZero, CountOrNone, PositiveInt, Share
from ..schedules import at
from ..task import Task
from ..wire import Several, State
from .around import Around, asking
from .base import Client, Message, Start
from .fedavg import FedAvg

BLOCK = 1 << 18  # entries of the model whose inner products are taken at a time
CACHED = 1 << 11  # entries of the model that are mixed at a time: rank times as many stay in the processor's cache
STEEP = 1e-3  # rows that have less than this of their length to themselves are made orthonormal in two goes


class Server(NamedTuple):
    """What the server keeps: its inner state, the basis, and what the last round brought."""

    inner: State
    rows: Several  # g_1 .. g_t in the first rounds, then the basis: a [d] tensor a direction
    sigma: Tensor  # [rank] float64, falling; zero where there is no direction
    update: Params  # of the last full round
    coefficients: Params  # of the last projected round
    first: Tensor  # [start, rank] float64: makes the first basis of the first updates
    mix: Tensor  # [rank + 1, rank] float64: makes a basis of the one before and the last update
    round: int  # rounds done


class Broadcast(NamedTuple):
    """What everyone is sent; parts that are not needed have no layers or no items."""

    inner: Message
    update: Params
    coefficients: Params
    first: Several
    mix: Several
    round: int


class View(NamedTuple):
    """What a client holds."""

    inner: State
    rows: Several
    round: int


class Reply(NamedTuple):
    """What a client sends back: the inner reply, or its update's coefficients."""

    inner: Message
    coefficients: Params


@dataclass(frozen=True)
class FLSS(Around):
    """Send ``rank`` coefficients in all but one round of ``every``, in a subspace that follows the updates.

    ``decay`` is the paper's lambda. ``store`` is how the basis is kept. ``project`` says what
    is projected in a coefficient round: the client's update, or every gradient on its way;
    ``scale`` multiplies the local learning rate of these rounds (the paper's sr).
    ``every=None`` never returns to full rounds: the fixed subspace. ``coefficients`` is the link of a reply's
    coefficients: ``SecureSum(clip=8.0)``, where updates go by a ``SecureSum`` too.

    The downlink is in coefficients too where the inner server adds lr times the mean update
    (``FedAvg`` with ``SGD`` and a ``Dense`` downlink); other servers send the model each round.
    A client that was away is sent the steps it missed or, in one piece, the model and the
    basis: where few clients are sampled that costs more downlink than is saved of the uplink
    (``thinwire predict`` counts both).

    Raises ``ValueError`` for a number out of range and for a ``start`` below ``rank``, and
    :class:`~thinwire.errors.CombinationError` around anything but :class:`FedAvg` and its variants, and for
    ``coefficients`` that are not linear.
    """

    rank: PositiveInt = 50
    start: int = 200
    every: CountOrNone = 5
    decay: Share = 1.0
    store: Literal["float32", "bfloat16"] = "float32"
    project: Literal["update", "gradient"] = "update"
    scale: AboveZero = 1.0
    coefficients: Link = field(default=Dense(), metadata=LATER)

    paper = "Federated Learning in Streaming Subspace, anonymous submission"
    late = False  # an earlier round's coefficients are those of another basis
    nests = ("server", "view")
    chained = False

    def __post_init__(self) -> None:
        require(
            self.start >= self.rank,
            f"FLSS(rank={self.rank}, start={self.start}): {self.start} updates span at most as many directions; "
            f"start must be at least rank",
        )
        if not self.coefficients.linear or self.coefficients.memory:
            raise CombinationError(
                f"coefficients={self.coefficients!r}: after a full round coefficients are those of another basis, so "
                f"what a link remembers means nothing: give a linear link, such as Half() or SecureSum()"
            )
        if self.inner.personal_models:
            raise CombinationError(
                f"FLSS sends coefficients in a subspace of the shared updates, and bends all of a client's training to "
                f"it; {type(self.inner).__name__} gives clients models of their own, which do not lie there"
            )
        if not isinstance(self.inner, FedAvg):
            raise CombinationError(
                f"FLSS goes around FedAvg and what its arguments make of it (FedProx, FedNTD, MOON, FedAdam, SignSGD "
                f"with error feedback); {self.inner!r} sends more than one update, or does more with it than step "
                f"along the mean"
            )

    @property  # type: ignore[misc]  # a field of others
    def up(self) -> dict[str, Link]:
        up = self.inner.up if isinstance(self.inner.up, dict) else {"update": self.inner.up}
        return {**up, "coefficients": self.coefficients}

    @property  # type: ignore[misc]  # a field of others
    def down(self) -> dict[str, Link]:
        return self.inner.down if isinstance(self.inner.down, dict) else {"x": self.inner.down}

    @property
    def linear(self) -> bool:
        """Whether clients can make the server's step themselves."""
        return isinstance(self.inner, FedAvg) and type(self.inner.opt) is SGD and self.down.get("x", Dense()) == Dense()

    @property
    def warm_up(self) -> int:
        return self.start

    def full(self, round: int) -> bool:
        """Whether round ``round``, counted from 0, sends whole updates."""
        if round < self.start:
            return True
        return self.every is not None and (round - self.start) % self.every == 0

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        inner = self.inner.init_with(x, buffers, num_clients, key)
        zero = Layout(("coefficients",), (Size([self.rank]),), x.layout.dtype).zeros()
        rows = Several([], torch.zeros(x.layout.size, dtype=getattr(torch, self.store), device="cpu"))
        first, mix, sigma = (
            torch.zeros(*shape, dtype=torch.float64, device="cpu")
            for shape in ((self.start, self.rank), (self.rank + 1, self.rank), (self.rank,))
        )
        server = Server(inner.server, rows, sigma, x.zeros(), zero, first, mix, 0)
        message = self.inner.broadcast(inner.server, inner.view) if inner.message is None else inner.message
        blank = Broadcast(message, x.zeros(), zero, Several([], first), Several([], mix), 0)
        return Start(server, View(inner.view, rows, 0), inner.client, Reply(inner.reply, zero), blank, inner.alone)

    def broadcast(self, server: State, view: State) -> Message:
        inner, last = self.inner.broadcast(server.inner, view.inner), server.round - 1
        begun, full = last >= 0, self.full(last)
        return Broadcast(
            inner=inner._replace(x=inner.x.only(())) if begun and self.linear else inner,
            update=server.update if begun and full else server.update.only(()),
            coefficients=server.coefficients if begun and not full and self.linear else server.coefficients.only(()),
            first=Several([server.first] if server.round == self.start else [], server.first),
            mix=Several([server.mix] if server.round > self.start and full else [], server.mix),
            round=server.round,
        )

    def see(self, view: State, msg: Message, key: Key) -> State:
        inner, rows = view.inner, view.rows
        if 0 < msg.round == view.round:
            return view  # the same again: nobody answered in the round before
        if msg.inner.x.names:
            inner = self.inner.see(inner, msg.inner, key)
        elif msg.update.names:
            inner = inner._replace(x=self._step(inner.x, msg.update))
        else:
            inner = inner._replace(x=self._step(inner.x, combine(rows, msg.coefficients.flat, inner.x.layout)))
        if msg.update.names:
            rows = self._move(rows, msg.update, [*msg.first, *msg.mix])
        return View(inner, rows, msg.round)

    def supersedes(self, older: Message, newer: Message) -> bool:
        return False  # each moves the model or the basis by a step

    def afresh(self, view: State) -> Message | None:
        return None  # the basis is in no message

    def take(self, view: State, msg: Message) -> State:
        return view._replace(inner=self.inner.take(view.inner, msg))

    def depart(self, view: State, owed: Message, lam: float = 0.0) -> State:
        return view._replace(inner=self.inner.depart(view.inner, owed.inner, lam))

    def sent(self, state: State, seen: Message) -> State:
        return self.inner.sent(state, seen.inner)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        if self.full(view.round):
            reply, state = yield from self.inner.client(view.inner, state, task, key)
            return Reply(reply, Layout((), (), view.inner.x.layout.dtype).zeros()), state
        assert isinstance(self.inner, FedAvg)
        trainer = self.inner.local
        scaled = replace(self.inner, local=replace(trainer, lr=at(trainer.lr, key.round) * self.scale))
        work, basis = scaled.client(view.inner, state, task, key), view.rows if self.project == "gradient" else None
        reply, state = yield from asking(work, lambda request: request._replace(basis=basis))
        g = reply.update.flat
        coefficients = torch.stack([torch.dot(row.to(g.dtype), g) for row in view.rows])  # P^T g
        layout = Layout(("coefficients",), (Size([self.rank]),), coefficients.dtype)
        return Reply(reply._replace(update=reply.update.only(())), Params(layout, coefficients)), state

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        inner = self.inner.outlines(view.inner, blank.inner, key)
        if self.full(view.round):
            return [Reply(one, blank.coefficients.only(())) for one in inner]
        return [Reply(one._replace(update=one.update.only(())), blank.coefficients) for one in inner]

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        return reply._replace(inner=self.inner.admit(view.inner, reply.inner, examples, clip))

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        full, done = self.full(server.round), server.round + 1
        layout = server.update.layout
        g = mean.inner.update if full else combine(server.rows, mean.coefficients.flat, layout)
        inner = self.inner.server(server.inner, view.inner, mean.inner._replace(update=g), key)
        if not full:
            return server._replace(inner=inner, coefficients=mean.coefficients, round=done)
        sigma, first, mix, made = server.sigma, server.first, server.mix, []
        if done == self.start:
            weights = torch.ones(self.start, dtype=torch.float64, device="cpu")
            first, sigma = leading([*server.rows, g.flat], weights, self.rank, self.rounding)
            made = [first]
        elif done > self.start:
            weights = torch.cat([self.decay * sigma, torch.ones(1, dtype=torch.float64, device="cpu")])
            mix, sigma = leading([*server.rows, g.flat], weights, self.rank, self.rounding)
            made = [mix]
        rows = self._move(server.rows, g, made)
        return Server(inner, rows, sigma, g, server.coefficients, first, mix, done)

    @property
    def rounding(self) -> float:
        """The share of a row's length that lies outside of a space for no other reason than how rows are stored."""
        return max(1e-6, 2 * torch.finfo(getattr(torch, self.store)).eps)

    def _step(self, x: Params, g: Params) -> Params:
        assert isinstance(self.inner, FedAvg)
        return self.inner.opt.step(x, g, None)[0]

    def _move(self, rows: Several, g: Params, matrices: Sequence[Tensor]) -> Several:
        """The rows after an update: one more in the first rounds, later those that the one matrix makes."""
        if matrices:
            return mix([*rows, g.flat], matrices[0], rows.like)
        return Several([*rows, g.flat.to(rows.like.dtype, copy=True)], rows.like)


def combine(rows: Sequence[Tensor], coefficients: Tensor, layout: Layout) -> Params:
    """P times coefficients. Raises ``ValueError`` for a basis of another model."""
    flat = layout.zeros().flat
    sizes = {row.numel() for row in rows} - {layout.size}
    require(not sizes, f"a basis for {max(sizes, default=0)} parameters, and a model of {layout.size}: it has changed")
    for row, c in zip(rows, coefficients.tolist(), strict=True):
        flat.add_(row, alpha=c)
    return Params(layout, flat)


def mix(rows: Sequence[Tensor], matrix: Tensor, like: Tensor) -> Several:
    """New rows stored as ``like`` is, each the sum of the old ones weighted by a column of ``matrix`` [old, new].

    The same bits on every machine: in double precision, and one product and one sum after the
    other in the order of the rows, where a product of matrices would choose its own.
    """
    size = like.numel()
    new = [torch.empty(size, dtype=like.dtype, device="cpu") for _ in range(matrix.shape[1])]
    weights = matrix[:, :, None]  # [old, new, 1]
    for start in range(0, size, CACHED):
        parts = [row[start : start + CACHED] for row in rows]
        total = torch.zeros(len(new), parts[0].numel(), dtype=torch.float64, device="cpu")
        for weight, part in zip(weights, parts, strict=True):
            total.add_(weight * part.double())  # not addcmul: some processors round it once, some twice
        for row, part in zip(new, total, strict=True):
            row[start : start + CACHED] = part
    return Several(new, like)


def gram(rows: Sequence[Tensor], matrix: Tensor | None = None) -> Tensor:
    """Inner products of rows, [rows, rows], in double precision, block by block; or of their sums by ``matrix``."""
    num = len(rows) if matrix is None else matrix.shape[1]
    total = torch.zeros(num, num, dtype=torch.float64, device="cpu")
    for start in range(0, rows[0].numel(), BLOCK):
        block = torch.stack([row[start : start + BLOCK].double() for row in rows])
        if matrix is not None:
            block = matrix.T @ block
        total += block @ block.T
    return total


def leading(rows: Sequence[Tensor], weights: Tensor, rank: int, rounding: float) -> tuple[Tensor, Tensor]:
    """SVD_R of rows times ``weights`` [rows], as (matrix [rows, rank], sigma [rank]): :func:`mix` makes the new rows.

    A row whose share outside the space of those before it is at most ``rounding`` adds no
    direction to it. Where there are fewer directions than ``rank``, the last are zeros.
    """
    make, parts, least = orthonormal(gram(rows), rounding)
    if least < STEEP:  # the products were good to 1e-16, what is left of a row in them to 1e-16 / least^2
        again, rest, _ = orthonormal(gram(rows, make), rounding)
        make, parts = make @ again, parts @ rest
    weighted = weights[:, None] * parts  # [rows, directions]
    falling = weighted.norm(dim=1).argsort(descending=True)  # else small values drown in the rounding of large ones
    _, sigma, right = torch.linalg.svd(weighted[falling], full_matrices=False)
    matrix, short = (make @ right.T)[:, :rank], max(0, rank - len(sigma))
    return F.pad(matrix, (0, short)).contiguous(), F.pad(sigma[:rank], (0, short))


def orthonormal(products: Tensor, rounding: float) -> tuple[Tensor, Tensor, float]:
    """Gram-Schmidt, in order, of rows of which the inner products [n, n] are known: (make [n, m], parts [n, m], least).

    The m orthonormal rows are ``make.T @ rows``, and the rows are ``parts`` times them. ``least``
    is the smallest share of its length that one of the m had to itself.
    """
    lengths = products.diag().sqrt()
    unit = lengths.where(lengths > 0, torch.ones_like(lengths))
    cosines = products / unit[:, None] / unit
    parts, kept = torch.zeros_like(products), []  # a Cholesky factor that skips rows
    for row in range(len(products)):
        own = cosines[:, row] - parts @ parts[row]
        if own[row] > rounding**2:
            parts[row:, row] = own[row:] / own[row].sqrt()
            kept.append(row)
    factor, make = parts[kept][:, kept], torch.zeros(len(products), len(kept), dtype=torch.float64, device="cpu")
    eye = torch.eye(len(kept), dtype=torch.float64, device="cpu")
    make[kept] = torch.linalg.solve_triangular(factor, eye, upper=False).T / unit[kept][:, None]
    least = float(factor.diag().min()) if kept else 1.0
    return make, lengths[:, None] * parts[:, kept], least
