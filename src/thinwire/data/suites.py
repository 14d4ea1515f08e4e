"""Clients as large as those of published suites: the users of LEAF, the sites of FLamby. Sizes alone, and no data.

- LEAF: Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar, "LEAF: A Benchmark for Federated Settings", 2018,
  arXiv:1812.01097: users, examples, mean and standard deviation of a user's examples.
- FLamby: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic
  Healthcare Settings", NeurIPS 2022, arXiv:2210.04620: examples a site. Fed-Camelyon16 and Fed-LIDC-IDRI are
  not here.

The numbers are those that the suites publish. They were not counted in the data sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import nearest, require
from ..ranges import Range
from .splits import Split, one_label_each, shuffle


class Crowd(NamedTuple):
    """The users of a set of LEAF."""

    users: int
    examples: int
    mean: float  # examples a user
    deviation: float

    @property
    def spread(self) -> float:
        """The deviation over the mean."""
        return self.deviation / self.mean


USERS = {
    "celeba": Crowd(9_343, 200_288, 21.44, 7.63),
    "femnist": Crowd(3_550, 805_263, 226.83, 88.94),
    "reddit": Crowd(1_660_820, 56_587_343, 34.07, 62.95),
    "sent140": Crowd(660_120, 1_600_498, 2.42, 4.71),
    "shakespeare": Crowd(1_129, 4_226_158, 3_743.28, 6_212.26),
}
SITES = {
    "heart_disease": (303, 261, 46, 130),
    "isic2019": (12_413, 3_954, 3_363, 2_259, 819, 439),
    "ixi": (311, 181, 74),
    "kits19": (12, 14, 12, 12, 16, 30),
    "tcga_brca": (311, 196, 206, 162, 162, 51),
}

Alpha = Annotated[float, Range(lambda x: 0 < x < math.inf, "must be positive")] | None


@dataclass(frozen=True)
class Users(Split):
    """Many clients whose sizes are log-normal, as those of users are.

    ``like`` is a set of LEAF ("celeba", "femnist", "reddit", "sent140", "shakespeare"), or a number: the standard
    deviation of a client's examples over their mean. All examples are dealt, one to each client at least, so it is the
    ratio of the two that is as it is there, not the mean. ``alpha`` is that of :class:`Sites`.
    """

    like: str | float = "femnist"
    alpha: Alpha = None

    def __post_init__(self) -> None:
        if isinstance(self.like, str):
            _check_like(self, USERS)
        else:
            require(0 <= self.like < math.inf, f"Users(like={self.like:g}): a deviation over a mean is not negative")

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        spread = USERS[self.like].spread if isinstance(self.like, str) else self.like
        sizes = np.random.default_rng([seed, 1]).lognormal(sigma=math.sqrt(math.log1p(spread**2)), size=num_clients)
        return _deal(self, labels, torch.from_numpy(sizes), self.alpha, seed)


@dataclass(frozen=True)
class Sites(Split):
    """A few clients as unequal as hospitals.

    ``like`` is a set of FLamby ("heart_disease", "isic2019", "ixi", "kits19", "tcga_brca"), or the sites' sizes: client
    k has the share of all examples that is site k's there, and at least one. There are as many clients as sites.

    ``alpha``: None deals at random, so that all have the same mixture of classes. Else a client's mixture is drawn from
    a Dirichlet distribution of alpha times the classes' shares, and classes that have run out are left out (Hsu, Qi,
    Brown, 2019, arXiv:1909.06335). Sites of FLamby differ in their instruments too, which no split makes:
    see the sets ``retina`` and ``fashion_sites``.
    """

    like: str | tuple[int, ...] = "isic2019"
    alpha: Alpha = None

    def __post_init__(self) -> None:
        if isinstance(self.like, str):
            _check_like(self, SITES)
        else:
            require(min(self.like, default=0) >= 1, f"Sites(like={self.like}): a site has one example or more")

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        sites = SITES[self.like] if isinstance(self.like, str) else self.like
        require(len(sites) == num_clients, f"{self!r} has {len(sites)} sites: take as many clients, not {num_clients}")
        return _deal(self, labels, torch.tensor(sites, dtype=torch.float64, device="cpu"), self.alpha, seed)


def _check_like(split: Users | Sites, table: dict[str, Crowd] | dict[str, tuple[int, ...]]) -> None:
    like, name = str(split.like), type(split).__name__
    require(like in table, f"{name}(like={like!r}): unknown{nearest(like, table)}; known are {', '.join(table)}")


def _deal(split: Split, labels: Tensor, weights: Tensor, alpha: float | None, seed: int) -> list[Tensor]:
    """All examples, to clients with sizes like ``weights``."""
    counts, order = share_out(len(labels), weights), shuffle(len(labels), seed)
    if alpha is None:
        return list(torch.split(order, counts))
    classes, kinds = torch.unique(one_label_each(split, labels)[order], return_inverse=True)
    left = [order[kinds == kind].tolist() for kind in range(len(classes))]
    prior = np.array([len(some) for some in left]) * (alpha / len(labels))
    draws = np.random.default_rng([seed, 2])
    parts = [_take(left, draws.dirichlet(prior), count, draws) for count in counts]
    return [torch.tensor(part, dtype=torch.int64, device="cpu") for part in parts]


def _take(left: list[list[int]], mixture: NDArray[np.float64], count: int, draws: np.random.Generator) -> list[int]:
    """``count`` examples out of ``left``, by class, each of a class drawn by ``mixture`` among those that have any."""
    taken = list[int]()
    while len(taken) < count:
        shares = np.maximum(mixture, 1e-300) * [bool(some) for some in left]
        for kind in draws.choice(len(left), count - len(taken), p=shares / shares.sum()):
            if left[kind]:
                taken.append(left[kind].pop())
    return taken


def share_out(total: int, weights: Tensor) -> list[int]:
    """Whole numbers, at least one each, with the sum ``total``, as near to ``weights`` as may be.

    ``weights`` [n] are positive. Of what is over the largest remainders get one each, the first among equals.
    """
    free = total - len(weights)
    exact = weights / weights.sum() * total
    above = (exact - 1).clamp_min(0)
    exact = above * (free / float(above.sum())) if free else torch.zeros_like(above)
    counts = exact.floor()
    over = free - int(counts.sum())
    counts[(exact - counts).argsort(descending=True, stable=True)[:over]] += 1
    return (counts.long() + 1).tolist()
