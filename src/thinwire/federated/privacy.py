"""Central differential privacy: what a client adds is bounded, and hidden in the server's noise.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018, arXiv:1710.06963, Algorithm 1 with flat clipping. The guarantee is that of
composed Gaussian mechanisms: Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022,
arXiv:1905.02383, Corollaries 2.13 and 3.3.

Differences from the paper: every client that replied has the same weight, and the mean is
over those who replied, whose number is taken as known. Nothing is gained from sampling:
the seed, which clients are told, says who is sampled.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from ..config import Config
from ..errors import CombinationError, require
from ..links import SecureSum
from ..params import Params
from ..ranges import Range
from ..wire import dumps

if TYPE_CHECKING:
    from .secure.noise import ClientNoise

BLOCK = 1 << 18  # numbers that are drawn at once
Noise = Annotated[float, Range(lambda x: 0 <= x < math.inf, "must not be negative, nor infinite")]


@dataclass(frozen=True)
class Privacy(Config):
    """Every reply counts as if its norm were at most ``clip``; the mean of n gets noise of std ``noise * clip / n``.

    Clipped is what the server decodes, so that any link may carry it. What the server makes
    of the mean, broadcasts and models, is then private towards everyone but the server: with
    and without one client's data they are hard to tell apart, by as much as
    :meth:`epsilon` says. The record's ``train_loss`` is the clients' own and is not covered.

    For methods whose reply is one field of which the server sees the mean alone, with
    weights="uniform": FedAvg with any optimiser, FedProx, LUAR and others.

    Of a secure sum (:class:`~thinwire.SecureSum`) the server sees no reply. Its clients then shorten the numbers that
    they send to a norm of ``clip`` and add noise themselves (:mod:`thinwire.federated.secure.noise`), which keeps the
    server out too. What it amounts to is :meth:`client_noise`.
    """

    paper = "McMahan et al., ICLR 2018, arXiv:1710.06963"
    example = "Privacy(clip=1, noise=1)"

    clip: float
    noise: Noise

    def __post_init__(self) -> None:
        require(self.clip > 0, f"Privacy(clip={self.clip}): a norm is positive")
        require(
            self.clip < math.inf or not self.noise,
            f"Privacy(clip={self.clip}, noise={self.noise}): noise is in units of clip, which must be finite",
        )

    def check(self, method: str, weights: str, fields: dict[str, str]) -> None:
        """Raise :class:`CombinationError` where a client would add more than its clipped share of a mean.

        ``fields`` are those of a reply, each with what becomes of it: "mean", "each", "sum",
        or "number" for the mean of what no link carries.
        """
        if list(fields.values()) != ["mean"]:
            local = "; keep norm statistics with the clients: buffers='local'" if "buffers" in fields else ""
            each = ", some of them one client's alone, which no mean hides" if "each" in fields.values() else ""
            raise CombinationError(
                f"{self!r} bounds what a client adds to the mean of one field; the replies of {method} have "
                f"{', '.join(fields)}{each or local}"
            )
        if weights != "uniform":
            raise CombinationError(
                f"{self!r}: with weights={weights!r} a client's share has no bound; give {method} weights='uniform'"
            )

    def hide(self, mean: Params, replies: float, secret: str, round: int) -> Params:
        """The mean of so many clipped replies, with its noise: a function of all of this.

        The same mean gets the same noise, and a run that is resumed the same bits. Another mean of the same round,
        where a server's folder was put back from a copy, gets another: else the difference of two models would be
        that of the replies, without any noise.
        """
        if not self.noise:
            return mean
        seen = hashlib.sha256(repr(mean.names).encode() + dumps(mean)).hexdigest()
        drawn = normal(mean.flat.numel(), f"{secret}|{self!r}|{round}|{replies}|{seen}")
        drawn *= self.noise * self.clip / replies
        return Params(mean.layout, (mean.flat.double() + drawn.to(mean.flat.device)).to(mean.flat.dtype))

    def client_noise(self, link: SecureSum, numbers: int, clients: int) -> ClientNoise:
        """The same with the clients' own noise, below a secure sum of so many ``clients`` a round.

        ``numbers`` is how many a reply has. Its ``epsilon(rounds, delta)`` takes the place of this one's.
        """
        from .secure.noise import ClientNoise

        return ClientNoise(self, link, numbers, clients)

    def epsilon(self, rounds: int, delta: float = 1e-5) -> float:
        """The epsilon, for this ``delta``, of a client that has replied in so many rounds.

        Neighbours are runs with a client's replies and with zeros in their place. The sum
        of a round is a Gaussian mechanism, 1/noise-GDP; ``rounds`` of them, each of which may
        depend on those before, are sqrt(rounds)/noise-GDP, which is exactly (epsilon,
        delta)-DP with delta = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2).
        """
        check_spent(rounds, delta)
        if not rounds:
            return 0.0
        if not self.noise:
            return math.inf
        mu = math.sqrt(rounds) / self.noise
        low, high = 0.0, 1.0
        while _delta(high, mu) > delta:
            low, high = high, 2 * high
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
        return high


def check_spent(rounds: Any, delta: Any) -> None:
    """Raise ``ValueError`` for no number of rounds, or no probability."""
    whole = isinstance(rounds, int) and not isinstance(rounds, bool) and rounds >= 0
    require(whole, f"rounds={rounds!r}: a whole number is expected, which is not negative")
    share = isinstance(delta, int | float) and 0 < delta < 1
    require(share, f"delta={delta!r}: a probability between 0 and 1 is expected")


def _delta(epsilon: float, mu: float) -> float:
    """Dong, Roth, Su, Corollary 2.13."""
    points = torch.tensor([-epsilon / mu + mu / 2, -epsilon / mu - mu / 2], dtype=torch.float64, device="cpu")
    first, second = torch.special.log_ndtr(points).tolist()
    return math.exp(first) - math.exp(epsilon + second)


def normal(size: int, secret: str) -> Tensor:
    """``size`` float64 draws of the standard normal distribution, a function of ``secret`` that nobody can guess.

    Box-Muller on the bits of SHAKE-256: torch's generators know only 2**32 seeds. Floating
    point leaves traces in the last bits of a Gaussian (Mironov, CCS 2012), and so here.
    """
    blocks = []
    for start in range(0, size, BLOCK):
        pairs = (min(BLOCK, size - start) + 1) // 2
        bits = hashlib.shake_256(f"{secret}|{start}".encode()).digest(16 * pairs)
        words = torch.frombuffer(bytearray(bits), dtype=torch.int64)
        uniform = (((words >> 11) & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53  # in (0, 1)
        radius, angle = (-2 * uniform[:pairs].log()).sqrt(), 2 * math.pi * uniform[pairs:]
        blocks += [radius * angle.cos(), radius * angle.sin()]
    return torch.cat(blocks)[:size] if blocks else torch.zeros(0, dtype=torch.float64, device="cpu")
