"""What the parts of a pipeline do, one after the other: the description that simulator and processes both execute.

A model is cut into K parts, and each part has a list of operations (:class:`Op`): forward passes, backward passes and
steps of its optimiser. A part executes its list in order and waits where a message of a neighbour is not there yet.
Nothing else is agreed upon, so what a training comes to does not depend on when messages arrive.

All schedules but DNI are one list with four switches. While micro-batch i goes forward at part k, micro-batch i - d_k
goes backward there:

===============  ======================  ===================  =======================  ==============
schedule         micro-batches of a      delay d_k            kept of a forward pass   ends with each
                 batch                                                                 batch
===============  ======================  ===================  =======================  ==============
BPK              1                       0                    the graph                yes
DSP              1                       m_k                  the input, replayed      no
FR               1                       K - 1 - k            the input, replayed      no
DDG, PipeDream   1                       K - 1 - k            the graph and its        no
                                                              parameters
PipeDream2BW     M                       K - 1 - k            the graph and its        no
                                                              parameters
GPipe            M                       M - 1                the graph                yes
OneFOneB         M                       min(M, K - k) - 1    the graph                yes
===============  ======================  ===================  =======================  ==============

"Replayed" is computed again at the backward pass, with the parameters of that moment. A schedule that ends with each
batch makes its step once all gradients of the batch are there, which is training without staleness. The others make a
step as soon as a gradient is there. At their end :meth:`Schedule.drain` brings home what is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import require
from .base import Op, Schedule

__all__ = [
    "BPK",
    "DDG",
    "DNI",
    "DSP",
    "FR",
    "GPipe",
    "OneFOneB",
    "Op",
    "PipeDream",
    "PipeDream2BW",
    "Schedule",
]


@dataclass(frozen=True)
class BPK(Schedule):
    """Plain model parallelism: a batch goes forward through all parts and back, and no other is on its way.

    It makes the steps of training in one place, bit for bit. All other parts wait while one computes.

    Differences from the thesis: none.
    """

    paper = "A. Xu, PhD thesis, 2023, chapter 1 (BP-K)"
    flushes = True

    def delays(self, parts: int) -> tuple[int, ...]:
        return (0,) * parts


@dataclass(frozen=True)
class DSP(Schedule):
    """Diversely stale parameters: each part trains at its own delay, and waits for nobody while its queues have room.

    A batch that went forward at part k goes back there ``m[k]`` batches later. The part stores the batch's input. At
    the backward pass it computes the forward pass again with its current parameters, then the gradient with the error
    gradient that arrived, and makes a step. ``p[k]`` is how many ticks later part k + 1 goes forward. The error
    gradient takes ``q[k] = m[k - 1] - p[k - 1] - m[k]`` ticks from part k to part k - 1.

    What a training comes to depends on ``m`` alone: ``p`` says how much of the delay is there for the links forward,
    and how much for those back. Processes wait for messages, not for a clock, so either can use what the other leaves.
    :func:`~thinwire.pipeline.law.tick` says how much time that is.

    Raises ``ValueError`` for lags that cannot be: of different lengths, negative, p not 0 at the last part, or a q
    below 0. A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 1; Xu, Huo, Huang, "On the Acceleration of Deep
    Learning Model Parallelism with Staleness", CVPR 2020, arXiv:1909.02625.

    Differences from the thesis: p and q may be 0, which its analysis leaves out (it asks for t_k < t_k+1) and its
    baselines need. The last part's m may be above 0. A part makes no step before its first gradient. Random layers
    draw the same numbers when a batch is replayed, and batch norm counts a batch once, at its replay; the thesis does
    not say. Queues are bounded by the schedule: the thesis' lengths 1 + m, 1 + p and 1 + q are not allocated. A part
    computes a replay and its next forward pass in turn, and the law charges both. In the thesis they overlap (section
    1.3.3, Figure 1).
    """

    paper = "A. Xu, PhD thesis, 2023, chapter 1; CVPR 2020, arXiv:1909.02625"
    keeps = "input"

    p: tuple[int, ...]
    m: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        p, m = self.p, self.m
        require(len(p) == len(m) > 0, f"{self!r}: p has {len(p)} lags and m has {len(m)}, one a part each")
        for name, lags in (("p", p), ("m", m)):
            for part, lag in enumerate(lags):
                require(lag >= 0, f"{self!r}: {name}[{part}] is {lag}, and a lag is at least 0")
        require(p[-1] == 0, f"{self!r}: p[{len(p) - 1}] is {p[-1]}, and nothing follows the last part: it is 0")
        for part, lag in enumerate(self.q):
            require(
                lag >= 0,
                f"{self!r}: q[{part}] = m[{part - 1}] - p[{part - 1}] - m[{part}] is {lag}: an error gradient cannot "
                f"arrive before it was computed; raise m[{part - 1}] to {m[part - 1] - lag} or more",
            )

    @property
    def q(self) -> tuple[int, ...]:
        """Ticks that an error gradient takes from each part to the one before; 0 of the first part."""
        back = [self.m[k - 1] - self.p[k - 1] - self.m[k] for k in range(1, len(self.m))]
        return (0, *back)

    def delays(self, parts: int) -> tuple[int, ...]:
        return self.m

    def lags(self, parts: int) -> tuple[int, ...]:
        return self.p

    def check(self, parts: int) -> None:
        super().check(parts)
        require(
            len(self.m) == parts,
            f"{self!r} is for {len(self.m)} parts, and the model is cut into {parts}: give a lag to each part",
        )


@dataclass(frozen=True)
class _ByDepth(Schedule):
    """A part is as many batches behind as there are parts after it."""

    def delays(self, parts: int) -> tuple[int, ...]:
        return tuple(range(parts - 1, -1, -1))


@dataclass(frozen=True)
class FR(_ByDepth):
    """Features replay: part k replays the batch of K - 1 - k batches ago, with its current parameters.

    It is ``DSP((0, ..., 0), (K - 1, ..., 1, 0))``. With ``barrier=True``, as in the paper, parts wait for one another
    after each batch: a batch goes forward through all of them before any goes on. That changes the time and no number.
    Huo, Gu, Huang, "Training Neural Networks Using Features Replay", NeurIPS 2018, arXiv:1807.04511, Algorithm 1.

    Differences from the paper: without ``barrier`` a part waits for messages alone.
    """

    paper = "Huo, Gu, Huang, NeurIPS 2018, arXiv:1807.04511"
    keeps = "input"

    barrier: bool = False


@dataclass(frozen=True)
class DDG(_ByDepth):
    """Decoupled parallel backpropagation with delayed gradients: FR's delays without its replay.

    A part keeps the graph of each forward pass, and the parameters that it was made with, until the error gradient
    arrives K - 1 - k batches later. The gradient is that of the old parameters. Huo, Gu, Yang, Huang, "Decoupled
    Parallel Backpropagation with Convergence Guarantee", ICML 2018, arXiv:1804.10574.

    Differences from the paper: a part waits for messages alone; the paper's forward pass goes through all parts before
    any of them goes back. Its numbers are those of ``PipeDream()``.
    """

    paper = "Huo et al., ICML 2018, arXiv:1804.10574"
    keeps = "weights"


@dataclass(frozen=True)
class PipeDream(_ByDepth):
    """Asynchronous 1F1B with weight stashing: one forward and one backward pass in turn, a step after each gradient.

    At most K - k batches are on their way at part k, each with the parameters of its forward pass. Narayanan et al.,
    SOSP 2019, arXiv:1806.03377. With ``torch.optim.NAdam(parameters, lr, betas=(0.99, 0.999))`` as the optimiser it is
    the asynchronous pipeline with Nesterov momentum of Ajanthan et al., ICML 2025, arXiv:2505.01099.

    Differences from the papers: no vertical synchronisation (PipeDream's option). A batch is not cut into
    micro-batches. The second paper's discount of the gradient is torch's own NAdam.
    """

    paper = "Narayanan et al., SOSP 2019, arXiv:1806.03377; Ajanthan et al., ICML 2025, arXiv:2505.01099"
    keeps = "weights"


@dataclass(frozen=True)
class _Micro(Schedule):
    """A batch is cut into ``micro`` micro-batches of equal size."""

    micro: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.micro >= 1, f"{self!r}: a batch is cut into at least 1 micro-batch")

    @property
    def pieces(self) -> int:
        return self.micro


@dataclass(frozen=True)
class PipeDream2BW(_Micro, _ByDepth):
    """1F1B without a flush, on parameters that are one batch old, whatever the depth: two versions are kept.

    x_{t+1} = x_t - step(gradient at x_{t-1}), as the sum over ``micro`` micro-batches. All parts use the same version
    for a batch, so the gradient is that of the whole model at one point. Narayanan et al., ICML 2021,
    arXiv:2006.09503. Raises ``ValueError`` where there are fewer micro-batches than parts after the first: a third
    version would be needed.

    Differences from the paper: no activation recomputation.
    """

    paper = "Narayanan et al., ICML 2021, arXiv:2006.09503"
    keeps = "weights"
    lookback = 1

    def staleness(self, parts: int) -> tuple[int, ...]:
        return (1,) * parts

    def check(self, parts: int) -> None:
        super().check(parts)
        require(
            self.micro >= parts - 1,
            f"{self!r}: {parts} parts need at least {parts - 1} micro-batches, or a third version of the parameters",
        )

    def _forward(self, part: int, parts: int, batch: int, micro: int, start: int) -> Op:
        return Op("forward", batch, micro, "weights", max(start, batch - 1))


@dataclass(frozen=True)
class GPipe(_Micro):
    """All micro-batches forward, all back, one step: no staleness, and every part waits at both ends of a batch.

    The gradient is the mean over micro-batches. Huang et al., NeurIPS 2019, arXiv:1811.06965.

    Differences from the paper: activations are kept, not recomputed. Batch norm's running statistics move once a
    micro-batch, with that micro-batch's.
    """

    paper = "Huang et al., NeurIPS 2019, arXiv:1811.06965"
    flushes = True

    def delays(self, parts: int) -> tuple[int, ...]:
        return (self.micro - 1,) * parts


@dataclass(frozen=True)
class OneFOneB(_Micro):
    """1F1B: GPipe's numbers with at most K - k micro-batches kept at part k; a flush and one step a batch.

    Narayanan et al., SOSP 2019, arXiv:1806.03377, with the flush of PipeDream-Flush (arXiv:2006.09503).

    Differences from the papers: batch norm's running statistics move once a micro-batch.
    """

    paper = "Narayanan et al., SOSP 2019, arXiv:1806.03377"
    flushes = True

    def delays(self, parts: int) -> tuple[int, ...]:
        return tuple(min(self.micro, parts - part) - 1 for part in range(parts))


@dataclass(frozen=True)
class DNI(Schedule):
    """Decoupled neural interfaces: a part steps at once, with an error gradient that an auxiliary network predicts.

    Every part but the last has an auxiliary network of its output. When the next part's error gradient of a batch
    arrives, ``lag`` batches later, the network is trained towards it by the squared error. Its optimiser is one more of
    those that the part's parameters have. For pictures the network has two hidden layers of convolutions, 5 x 5 with
    batch norm and ReLU, and one to give the gradient; for other activations linear layers of the same number. Its last
    layer begins at zero, so the first steps of a part are none. The factor ``rate`` of the learning rate is of the part
    alone: the network learns at the same rate throughout. Jaderberg et al., ICML 2017, arXiv:1608.05343; the
    convolutions are those of the thesis, section 1.5.

    Differences from the paper: the auxiliary network is not given the labels. The error gradient arrives ``lag``
    batches late; with the paper's locks it is there at once. What a part sends down is made with its own predicted
    error gradient, as in the paper.
    """

    paper = "Jaderberg et al., ICML 2017, arXiv:1608.05343"

    lag: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lag >= 0, f"{self!r}: the error gradient arrives at least 0 batches late")

    def delays(self, parts: int) -> tuple[int, ...]:
        return (0,) * parts

    def slack(self, part: int, parts: int) -> int:
        return self.lag

    def tick(self, part: int, parts: int, batch: int, first: int = 0) -> list[Op]:
        begin = Op("forward", batch)
        if part == parts - 1:
            return [begin, Op("backward", batch), Op("step", batch)]
        late = [Op("teach", batch - self.lag)] if batch - self.lag >= first else []
        return [begin, Op("guess", batch), Op("step", batch), *late]

    def drain(self, part: int, parts: int, first: int, end: int) -> list[Op]:
        if part == parts - 1:
            return []
        return [Op("teach", batch) for batch in range(max(first, end - self.lag), end)]


SCHEDULES: dict[str, type[Schedule]] = {name: globals()[name] for name in __all__ if name not in ("Op", "Schedule")}
"""The schedules by name: those of ``__all__``, without their base."""
