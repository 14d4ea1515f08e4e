"""What an aggregator is: how the replies of a round become the one vector that the server's half is given.

A rule is two steps. ``choose`` gives every reply a share, from the inner products of all replies: each rule that goes
by distances is of this form, and needs no more than n x n numbers of replies of any length. ``join`` makes a block of
the result of the same block of all replies, by default the sum of shares times replies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..config import Config
from ..errors import require
from .rows import Rows, lower_median

FAR = 3.0  # times the lower median distance: a reply beyond is far off

Products = Float[Tensor, "m m"]  # none of a rule that is sparing
Weights = Float[Tensor, " n"]
Shares = Float[Tensor, " n"]
Block = Float[Tensor, "n b"]


class Aggregator(Config, ABC):
    """How the replies of a round become one: ``aggregate=`` of a run.

    Each field of a reply is aggregated by itself, as the server decodes it, for fields have scales of their own. A
    field that is summed counts n times what the rule makes of it, with replies that all weigh the same. All rules but
    :class:`Mean` and :class:`NormClip` count every reply alike, whatever the method's ``weights`` say: how many
    examples a client has is its own word.
    """

    example = "Median()"

    changes: ClassVar[bool] = False
    """Whether the rule shortens. That says something of changes alone: norm statistics are then averaged, and methods
    whose replies have absolute values are refused."""
    remembers: ClassVar[bool] = False
    """Whether the rule starts from its result of the round before: ``choose`` is given that as a first reply, of
    weight 0. It is zero before the first."""
    weighted: ClassVar[bool] = False
    """Whether replies have the method's weights."""
    sparing: ClassVar[bool] = False
    """Whether ``choose`` needs no products, so that none are computed."""

    @property
    def least(self) -> int:
        """How many replies the rule needs. A round with fewer makes no step."""
        return 1

    @abstractmethod
    def choose(self, products: Products, weights: Weights) -> Shares:
        """The share of each reply, given their inner products and their weights, which add up to 1."""

    def join(self, block: Block, shares: Shares) -> Float[Tensor, " b"]:
        """A block of the result."""
        return shares @ block.double()


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean: what a run without ``aggregate`` does. One hostile client can move it anywhere.

    Packets of linear links are added before they are decoded, as without ``aggregate``.
    """

    weighted = True
    sparing = True

    def choose(self, products: Products, weights: Weights) -> Shares:
        return weights


class Reduced(NamedTuple):
    """What a rule made of rows."""

    value: Float[Tensor, " d"]
    distances: Float[Tensor, " n"]  # of each reply from it


def reduce(rule: Aggregator, replies: Rows, weights: Weights, before: Float[Tensor, " d"] | None = None) -> Reduced:
    """Apply a rule. ``weights`` are positive; ``before`` is its result of the round before, for one that remembers.

    Raises ``ValueError`` for a rule of one's own that gives no share of each reply, or no block of the result.
    """
    n, rows, weights = len(replies), replies, weights.double()
    if not rule.weighted:
        weights = torch.ones_like(weights)
    weights = weights / weights.sum()
    if rule.remembers:
        rows = replies.behind(before)
        weights = torch.cat([weights.new_zeros(len(rows) - n), weights])
    none = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
    shares = _numbers(rule.choose(none if rule.sparing else rows.products(), weights), len(rows), f"{rule!r}.choose")
    value = torch.empty(rows.size, dtype=rows.dtype, device="cpu")
    apart = torch.zeros(len(rows), dtype=torch.float64, device="cpu")
    for columns, block in rows.blocks():
        value[columns] = _numbers(rule.join(block, shares), block.shape[1], f"{rule!r}.join").to(rows.dtype)
        apart += (block.double() - value[columns].double()).square().sum(1)
    return Reduced(value, apart[len(rows) - n :].sqrt())


def _numbers(x: Any, count: int, who: str) -> Float[Tensor, " n"]:
    """What a rule gave, in 64 bits. Raises ``ValueError`` where it is no tensor of so many floats."""
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.shape == (count,)
    given = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
    require(fits, f"{who} gave {given}: a tensor of floats of shape [{count}] is expected")
    numbers: Tensor = x.double()
    return numbers


def far_off(distances: Float[Tensor, " n"]) -> list[int]:
    """Which rows are further from the result than :data:`FAR` times the lower median distance."""
    return (distances > FAR * lower_median(distances)).nonzero().flatten().tolist()
