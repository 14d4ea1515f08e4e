"""Error feedback and its kin for data-parallel training: one loop, and its switches.

An Xu, "New Efficient and Privacy-Preserving Methods for Distributed Training", PhD thesis, University of Pittsburgh,
2023, chapter 2; An Xu, Heng Huang, "Detached Error Feedback for Distributed SGD with Random Sparsification", ICML
2022.

Every rank keeps the model x, which all share, and e, what it has not sent yet. Its optimiser, whichever that is,
makes a step u from where the gradient was taken (momentum SGD: u = eta * m), and

    p = u + e;  send C(p);  e <- p - C(p);  x <- x - mean C(p)

The learning rate is in p, so e is in the units of parameters and a decay of the rate needs no correction. With
``steps=H`` a rank makes H steps between two exchanges, and u is what they came to: the methods that do so by default
are in :mod:`.local`. The switches of a method say what it is:

=========  =================  =======================  =====================  ===========
method     gradient taken at  what is kept             applied to local       evaluated
                                                       model at once
=========  =================  =======================  =====================  ===========
EF         x                  the error                nothing                x
SAEF       x - e              the error, averaged      nothing                x
                              every 100 steps
PSync      x - e              the error                e                      x - mean e
EF21       x                  the estimate of u        nothing                x
DEF        x - lam * e        the error                nothing                x - mean e
DEFA       x - lam * e        the error                nothing                x
=========  =================  =======================  =====================  ===========

Differences from the thesis: C is one block of the whole vector (``scope="vector"``). That is what the analysis
assumes: one run of memory, one all-reduce, and exactly 1 / ratio of the entries. The authors' code takes a block of
each tensor (``scope="tensor"``), which sends at least one entry of each. Equation 2-4 has lost an eta; the listing is
right. Weight decay acts where the gradient is taken, as in the authors' code.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated

from ..errors import CombinationError, require
from ..links import Link
from ..links.secure import holds_secret
from ..ranges import Range
from .feedback import Method, Ratio, check_no_rate
from .local import DeMo, DetachedLoCo, DiLoCo, DisTrO, LocalSGD, SparseLoCo, StreamingDiLoCo

__all__ = ["DEF", "DEFA", "EF", "EF21", "SAEF", "Hook", "Method", "PSync"]
__all__ += ["DeMo", "DetachedLoCo", "DiLoCo", "DisTrO", "LocalSGD", "SparseLoCo", "StreamingDiLoCo"]


@dataclass(frozen=True)
class EF(Ratio):
    """Error feedback: what was not sent is added to the next step.

    Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, arXiv:1901.09847; with momentum, Zheng, Huang,
    Kwok, NeurIPS 2019.

    Differences from the papers: momentum is each rank's own, as in the thesis.
    """

    paper = "Karimireddy et al., ICML 2019, arXiv:1901.09847"


@dataclass(frozen=True)
class SAEF(Ratio):
    """Step-ahead error feedback: the gradient is taken where the error has been applied.

    Every ``average`` exchanges each rank's residual becomes the mean of all. That happens after the block is sent and
    before the next gradient is taken, and costs as many bytes as a dense gradient, which are in the ledger. None:
    never. Raises ``ValueError`` for an ``average`` below 1. Xu, Huo, Huang, "Step-Ahead Error Feedback for
    Distributed Training with Compressed Gradient", AAAI 2021.

    Differences from the paper: the default of 100 steps is ours. It adds a hundredth of dense training's bytes to
    those of the blocks. ``average=None`` leaves out that half of the method: it then makes the steps of
    ``DEF(lam=1)``, and so of ``PSync``, and is evaluated at x.
    """

    paper = "Xu, Huo, Huang, AAAI 2021, arXiv:2008.05823"

    average: int | None = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        some = self.average is None or self.average > 0
        require(some, f"SAEF(average={self.average}): steps between averages, at least 1, or None")

    @property
    def detach(self) -> float:
        return 1.0

    @property
    def every(self) -> int | None:
        return self.average


@dataclass(frozen=True)
class PSync(Ratio):
    """Partial synchronisation: every rank goes its own way, and one block at a time is made equal.

    A rank's own model is x - e: it steps with its own gradient, and on the block all models are averaged. So ranks
    hold different models between steps. ``averaged()`` evaluates the mean of their models, and ``state_dict()`` saves
    x, which they share. Xie, Zheng, Koyejo, Gupta, Li, Lin, "CSER: Communication-Efficient SGD with Error Reset",
    NeurIPS 2020, with an error reset at every step and nothing else sent.

    Differences from the paper: the recursion is written with x and e, and is that of ``DEF(lam=1)``. The two differ
    in which model a rank evaluates, and in which model others find in the parameters.
    """

    paper = "Xie et al., NeurIPS 2020, arXiv:2007.13221"

    @property
    def detach(self) -> float:
        return 1.0

    @property
    def at_rest(self) -> float:
        return 1.0

    @property
    def at_output(self) -> float:
        return 1.0


@dataclass(frozen=True)
class EF21(Ratio):
    """Both ends keep an estimate of each rank's step; what is sent is compressed progress towards the truth.

    g <- g + C(u - g); x <- x - mean g. It needs a compressor that sends what is large, ``EF21(TopK(0.1))``. Over
    random blocks an estimate is ``ratio`` steps old and, as the thesis says, training does not converge. Richtárik,
    Sokolov, Fatkhullin, NeurIPS 2021, arXiv:2106.05203, Algorithm 2.

    Differences from the paper: the optimiser's step is estimated in place of the gradient, so momentum is each rank's
    own. ``Hook(EF21(TopK(0.1)))``, around the link of that name, estimates gradients.
    """

    paper = "Richtárik, Sokolov, Fatkhullin, NeurIPS 2021, arXiv:2106.05203"

    @property
    def estimate(self) -> bool:
        return True


@dataclass(frozen=True)
class DEF(Ratio):
    """Detached error feedback: the gradient is taken at x - lam * e, between x and the rank's own model.

    ``averaged()`` gives y = x - mean e, which follows uncompressed SGD: y <- y - mean u. The thesis, Algorithm 1;
    with momentum, Equation 2-11.

    The points where gradients are taken are nearest to y at lam = ||mean e||^2 / mean ||e_k||^2 (Equation 2-9, case
    2). That is 1 for one rank. For K ranks whose residuals have no more in common than chance it is 1 / K, and more
    otherwise. It is measured on the blocks that are sent, whose entries are a random sample. Each block has one float
    more, the rank's own ||p_k||^2 of the block. So the mean that comes back has the mean of these beside ||mean
    p||^2. Both are kept as sums that lose a hundredth each step. Where a link sends, which may choose the largest
    entries, every 1,024th entry of e is averaged every 16 steps.

    ``lam=None``, the default: lam follows what was measured, anew every 16 steps. It is the middle one of the measured
    lambda, of its square root, and of 1/2. Before the first step it is (1 + 1 / K) / 2. It is the same on all ranks and
    a part of the state. What a rank owes alone moves its own gradient, and averages out of the mean of gradients to
    first order. What all owe, times 1 - lam, does not. So the best lam lies above the measured one where that is small,
    as it is late in a training, when it comes down to 1 / K. A number is kept constant, and ``lam_star`` of what
    ``compress`` returns says what was measured, with one step a round. With a number and ``steps`` above 1 nothing is
    measured. That saves a link 260 bytes, in each exchange or once in 16 steps. A number below 1 / K is warned of.
    Raises ``ValueError`` for a number outside 0 to 1.

    Differences from the thesis: by default lam follows what is measured; the thesis has one tuned number, .3 for its 16
    workers, which is ``lam=0.3``. Those of this module.
    """

    paper = "Xu, Huang, ICML 2022"

    lam: Annotated[float, Range(lambda x: 0 <= x <= 1, "must be from 0 to 1, or None: as measured")] | None = None

    @property
    def detach(self) -> float | None:
        return self.lam

    @property
    def measures(self) -> bool:
        return self.lam is None or self.length == 1

    def warn(self, ranks: int) -> None:
        if self.lam is not None and self.lam < 1 / ranks:
            warnings.warn(
                f"{self!r}: of {ranks} ranks the best lam is at least 1/{ranks} = {1 / ranks:.3g}, and a smaller one "
                "trains worse: leave lam out, and it is measured, or give a larger one",
                stacklevel=3,
            )

    @property
    def at_output(self) -> float:
        return 1.0 if self.count == "all" else 0.0  # y <- y - mean u is of the mean over all


@dataclass(frozen=True)
class DEFA(DEF):
    """DEF-A: trained as DEF, but x itself is evaluated, an average of where y has been.

    The thesis, section 2.3: it generalises sooner. To evaluate x needs no all-reduce.

    Differences from the thesis: by default lam is measured, as in DEF. Those of this module.
    """

    @property
    def at_output(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Hook(Method):
    """Any link for the gradient: every rank sees the mean of what the links deliver.

    It stands where DistributedDataParallel averages gradients. So clipping, the optimiser and all that follows see
    one gradient, the same on every rank. Linear links go by all-reduce and the others by all-gather, and each rank
    keeps the receiving ends of all: ``Hook(LBGM(SignSGD()))``, ``Hook(ErrorFeedback(TopK(0.01)))``,
    ``Hook(PowerSGD(2))``, ``Hook(Half())``. ``Hook(Dense())`` is plain data-parallel training.

    What a link remembers moves when an optimiser's step has used the gradient that it delivered, layer by layer. A
    gradient that is thrown away leaves it where it was. So what was applied and what is owed add up to what plain
    data-parallel training applies. Around a link that remembers ``compress`` has to be given all optimisers, each of
    which takes one gradient a step.
    """

    link: Link

    def __post_init__(self) -> None:
        if holds_secret(self.link):
            raise CombinationError(
                f"{self!r}: ranks exchange no keys, so a SecureSum would hide nothing: it is for replies of clients, "
                f"FedAvg(up=SecureSum(...)), and here Hook(Dense()) is exact"
            )
        check_no_rate(self, self.link)


METHODS: dict[str, type[Method]] = {name: globals()[name] for name in __all__ if name != "Method"}
"""The methods by name: those of ``__all__``, without their base."""
