"""Local steps: methods whose ranks train by themselves for H steps, and then exchange what that came to.

They are settings of the loop of :mod:`.methods`, by the names that people look for. Every rank keeps x and the state v
of the outer optimiser, which are the same on all, and e, what it has not sent yet. A round is

    w <- x - lam * e;  H steps of the rank's own optimiser from w
    p = (x - w) + (decay - lam) * e;  send C(p);  e <- p - C(p)
    d = mean C(p);  x, v <- outer.step(x, -d, v)

=================  ====  ======  ==============  =====  =========  =====================================
method             lam   decay   outer           count  H          what is sent
=================  ====  ======  ==============  =====  =========  =====================================
LocalSGD           0             SGD(1.0)        all    20         everything
DiLoCo             0     1       Nesterov        all    500        everything, or what a link sends
StreamingDiLoCo    0     1       Nesterov        all    100        that by fragments, and applied later
SparseLoCo         0     .95     SGD(1.0)        those  30         64 of 4,096, two bits each
DetachedLoCo       .5    .8      SGD(2.5)        those  20         1.4 % of each layer, two bits each
DeMo, DisTrO       0     .999    sign            those  1          32, 4 of 4,096 cosine coefficients
=================  ====  ======  ==============  =====  =========  =====================================

Those: the mean of an entry is over the ranks that sent it. Differences from the papers, for all: the optimiser's state
is each rank's own and is never exchanged. An exchange is a step of the training, after the optimiser's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

import torch

from ..errors import CombinationError, require
from ..links import DCT, Bins, ChunkTopK, Dense, Link, ScaledSign, TopK
from ..optimizers import SGD, Nesterov, Optimizer
from ..params import Params
from ..ranges import BelowOne, Count, Fraction, Natural, NonNegative, Share
from ..wire import State
from .feedback import Feedback
from .rounds import Seconds

__all__ = ["DeMo", "DetachedLoCo", "DiLoCo", "DisTrO", "LocalSGD", "SparseLoCo", "StreamingDiLoCo"]


@dataclass(frozen=True)
class Local(Feedback):
    """A setting of the loop by a name of its own, whose expression begins with what is peculiar to it."""

    @classmethod
    def _in_order(cls) -> Sequence[Field[Any]]:
        return sorted(fields(cls), key=lambda f: ("later" in f.metadata, f.kw_only))


@dataclass(frozen=True)
class LocalSGD(Local):
    """Every ``steps`` steps all models become their mean.

    ``link`` sends the changes in place of whole models, with a residual. Stich, "Local SGD Converges Fast and
    Communicates Little", ICLR 2019, arXiv:1805.09767, Algorithm 1.

    Differences from the paper: any optimiser may take the steps. It is not ``thinwire.LocalSGD``, which is how clients
    of federated training train.
    """

    paper = "Stich, ICLR 2019, arXiv:1805.09767"

    steps: Count | Seconds = 20
    link: Link = Dense()


@dataclass(frozen=True)
class DiLoCo(Local):
    """Distributed low-communication training: AdamW inside, Nesterov's momentum over what ``steps`` steps came to.

    ``link`` sends it: ``DiLoCo(100, Bins(256))`` in 8 bits. MuLoCo is ``compress(model, [muon, adamw], DiLoCo(30,
    Bins(4)))``. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
    arXiv:2311.08105, Algorithm 1.

    Differences from the paper: over a link that sends a part a residual is kept. It has no learning-rate schedule of
    the outer optimiser, as the paper has none.
    """

    paper = "Douillard et al., 2023, arXiv:2311.08105"

    steps: Count | Seconds = 500
    link: Link = Dense()
    outer: Optimizer = field(default=Nesterov(0.7, 0.9), kw_only=True)


@dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo by fragments of the model, each with a round of its own, whose exchange is applied ``delay`` steps later.

    Every ``steps`` / ``fragments`` steps one fragment is sent, so no message is as long as the model. ``mix`` is how
    much of a rank's own model stays when what was sent is applied. Douillard et al., "Streaming DiLoCo with overlapping
    communication", 2025, arXiv:2501.18512, Algorithm 2.

    Differences from the paper: its values are floats of 4 bits; here they are what ``link`` sends, with a residual. How
    layers are dealt to fragments is said in :mod:`.rounds`.
    """

    paper = "Douillard et al., 2025, arXiv:2501.18512"

    steps: Count | Seconds = 100
    fragments: Count = 4
    delay: Natural = 5
    mix: BelowOne = field(default=0.5, kw_only=True)
    outer: Optimizer = field(default=Nesterov(0.4, 0.9), kw_only=True)


@dataclass(frozen=True)
class SparseLoCo(Local):
    """The ``k`` largest of every 64 x 64 entries of what ``steps`` steps came to, with two bits each, and a residual.

    x moves by the mean, without a momentum. Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM
    Pre-training with SparseLoCo", 2025, arXiv:2508.15706, Algorithm 1.

    Differences from the paper: an entry's mean is over the ranks that sent it, as in the authors' code, where the paper
    has all ranks (``count="all"``). Positions and values are coded, so the same message takes fewer bytes than with 12
    and 2 bits: those of :class:`~thinwire.links.ChunkTopK` and :class:`~thinwire.links.Bins`.
    """

    paper = "Sarfi, Thérien, Lidin, Belilovsky, 2025, arXiv:2508.15706"

    steps: Count | Seconds = 30
    k: Count = 64
    decay: Fraction = field(default=0.95, kw_only=True)
    count: Literal["all", "senders"] = field(default="senders", kw_only=True)

    @property
    def link(self) -> Link:
        return ChunkTopK(self.k, values=Bins(4))


@dataclass(frozen=True)
class DetachedLoCo(Local):
    """Short messages, and rounds that begin at x - ``lam`` * e, where a part of what was not sent yet is done already.

    The detached point is that of :class:`~thinwire.ddp.DEF`. A rank that begins at x does again what it owes; with that
    gone a longer outer step does not overshoot. Of each layer the largest entries are sent, ``share`` of them and one
    at least, with two bits each. A message is about as long as SparseLoCo's. Of what was not sent ``decay`` is kept
    until the next. ``outer`` is by default SGD at a rate of 2.5, and of 2 with more than four ranks: the more ranks
    send, the more entries of x move.

    Differences from the papers: this is no paper's method, and ours. Detached error feedback has one step a round,
    sends random blocks, and forgets nothing. SparseLoCo begins rounds at x, keeps .95 of a residual, has an outer rate
    of 1, and sends the largest of every 4,096 entries.
    """

    paper = "Sarfi et al., 2025, arXiv:2508.15706, with the point of Xu, Huang, ICML 2022"

    steps: Count | Seconds = 20
    share: Share = 0.014
    lam: Fraction = field(default=0.5, kw_only=True)
    decay: Fraction = field(default=0.8, kw_only=True)
    count: Literal["all", "senders"] = field(default="senders", kw_only=True)
    outer: Optimizer | None = field(default=None, kw_only=True)  # type: ignore[assignment]  # it is asked for K ranks

    @property
    def link(self) -> Link:
        return TopK(self.share, values=Bins(4))

    @property
    def detach(self) -> float:
        return self.lam

    def outer_of(self, ranks: int) -> Optimizer:
        return SGD(2.5 if ranks <= 4 else 2.0) if self.outer is None else self.outer


@dataclass(frozen=True)
class DeMo(Local):
    """Decoupled momentum: the ``k`` largest cosine coefficients of every chunk of the momentum, and a step by the sign.

    e is the momentum, without what was sent of it: e <- ``decay`` * e + lr * g. With lr the optimiser's rate as well,
    x <- x (1 - lr * weight_decay) - lr * sign(d), where of each coefficient d has the mean over the ranks that sent it.
    Give it plain SGD, whose step is lr * g. Raises ``ValueError`` where the groups of the optimisers have several
    rates. Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024, arXiv:2411.19870, Algorithm 1.

    Differences from the paper: of another optimiser what is added to e is its step, in place of lr * g. The decay of
    weights is ``weight_decay`` here, and not the optimiser's. Those of :class:`~thinwire.links.DCT` and
    :class:`~thinwire.links.ChunkTopK`: positions are coded where the authors' code sends 8 bytes each.
    """

    paper = "Peng, Quesnelle, Kingma, 2024, arXiv:2411.19870"

    k: Count = 32
    chunk: Count = 64
    decay: Fraction = field(default=0.999, kw_only=True)
    weight_decay: NonNegative = field(default=0.0, kw_only=True)
    count: Literal["all", "senders"] = field(default="senders", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outer != SGD(1.0):
            raise CombinationError(
                f"{type(self).__name__}(outer={self.outer!r}): its outer step is by the sign: leave outer out"
            )

    @property
    def link(self) -> Link:
        return DCT(ChunkTopK(self.k, self.chunk), self.chunk)

    @property
    def plain(self) -> bool:
        return False

    def apply(self, x: Params, d: Params, v: State, rates: Sequence[float], ranks: int) -> tuple[Params, State]:
        name = type(self).__name__
        require(len(set(rates)) == 1, f"{name} has one learning rate, and the groups of the optimisers have {rates}")
        return x * (1 - rates[0] * self.weight_decay) - d.map(torch.sign) * rates[0], v


@dataclass(frozen=True)
class DisTrO(DeMo):
    """DeMo with a bit a value, as it is run over the Internet: signs of ``k`` coefficients of every chunk.

    No paper has it: the code of Psyche (PsycheFoundation/psyche, 2026), with the settings of its public runs.

    Differences from that code: all signs of a layer have one magnitude, the mean of the coefficients that are sent (4
    bytes), and that is subtracted from e; there a rank subtracts its own coefficients, and others see their signs. A
    result is applied at once, and one step later with ``delay=1``. Gradients are taken at x.
    """

    paper = "PsycheFoundation/psyche, 2026"

    k: Count = 4
    decay: Fraction = field(default=0.995, kw_only=True)

    @property
    def link(self) -> Link:
        return DCT(ChunkTopK(self.k, self.chunk, values=ScaledSign()), self.chunk)
