"""Attacks of clients that know what the honest ones send: they reply last, and all the same.

:class:`ALIE`: Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS
2019, arXiv:1902.06156, Algorithm 3. :class:`IPM`: Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD
by Inner Product Manipulation", UAI 2019, arXiv:1903.03936, section 4.

Differences from the papers: ALIE's mean and deviation are of the honest replies of the round, not of what the hostile
clients would have sent, which takes many of them. Known is what the server decodes of the others. What hostile clients
send goes through their own links, with what these remember.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from ..key import Key
from ..params import Params
from ..ranges import Positive, Share
from .attack import Attack, Others


@dataclass(frozen=True)
class ALIE(Attack):
    """A little is enough: hostile clients send the mean of the honest replies less ``z`` standard deviations.

    ``z`` None is the paper's, the most at which a majority of all replies is further from the mean: the quantile of
    the normal distribution at (n - f - s) / (n - f), s = floor(n / 2 + 1) - f, of n replies of which f are hostile.
    For few clients that is zero or below, and then no attack: give it.
    """

    paper = "Baruch et al., NeurIPS 2019, arXiv:1902.06156"

    share: Share = 0.2
    z: Positive | None = None

    omniscient = True

    def bend(self, x: Params, others: Others | None, key: Key) -> Params:
        if others is None:  # nobody is honest
            return x
        z = self.z
        if z is None:
            honest, supporters = others.replies, (others.replies + others.hostile) // 2 + 1 - others.hostile
            share = min(max((honest - supporters) / honest, 0.5), 1 - 1e-9)
            z = NormalDist().inv_cdf(share)
        return others.mean - others.deviation * z


@dataclass(frozen=True)
class IPM(Attack):
    """Inner product manipulation: hostile clients send ``scale`` times the opposite of the mean of the honest replies.

    A small ``scale`` (the paper's epsilon) hides near the honest replies, a large one turns the mean around.
    """

    paper = "Xie et al., UAI 2019, arXiv:1903.03936"

    share: Share = 0.2
    scale: Positive = 0.5

    omniscient = True

    def bend(self, x: Params, others: Others | None, key: Key) -> Params:
        return x if others is None else others.mean * -self.scale
