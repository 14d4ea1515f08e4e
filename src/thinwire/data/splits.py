"""How the examples of one data set are dealt to many clients.

A split is called with the labels, the groups, the number of clients and a seed, and gives
one tensor of indices a client. The same seed gives the same split; no global generator is
touched. ``Dirichlet``, ``Pathological`` and ``Shards`` are the partitioners of
flwr-datasets, so that a split equals the one a Flower user gets for the same seed. ``IID``,
``Natural`` and ``Similarity`` are a few lines here: the package's first is the cut alone,
without the shuffle, its partitioner by natural id draws a progress bar that cannot be
turned off, and it has none for the last.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ..config import Config
from ..errors import require
from ..ranges import Count, Range
from .optional import optional


@dataclass(frozen=True)
class Split(Config, ABC):
    """A way to deal; calling it deals."""

    def __call__(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        """Indices of the examples of each client: int64, disjoint, none empty.

        ``labels`` [n, ...] are the targets, ``groups`` [n] the natural owners or None; ``seed``
        is not negative. Raises ValueError naming the clients left without an example.
        """
        require(num_clients >= 1, "num_clients must be at least 1")
        require(seed >= 0, "the seed of a split must not be negative")
        require(
            num_clients <= len(labels),
            f"{len(labels):,} examples cannot give each of {num_clients} clients one; take fewer clients",
        )
        parts = self.deal(labels, groups, num_clients, seed)
        empty = [k for k, part in enumerate(parts) if len(part) == 0]
        require(
            not empty,
            f"{self!r} leaves {_clients(empty)} of {num_clients} without an example "
            f"({len(labels):,} in all); take fewer clients or a milder split",
        )
        return parts

    @abstractmethod
    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        """The parts, where a client may still come out empty."""


@dataclass(frozen=True)
class IID(Split):
    """Shuffled and cut into equal parts (sizes differ by one at most)."""

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        return list(shuffle(len(labels), seed).tensor_split(num_clients))


@dataclass(frozen=True)
class Dirichlet(Split):
    """Each class is divided by shares drawn from a symmetric Dirichlet distribution.

    Small ``alpha`` means unequal. The draw is repeated, eleven times at most, until every
    client has ``min_examples``. Source: Yurochkin et al., arXiv:1905.12022.
    """

    alpha: float = 0.1
    min_examples: Annotated[int, Range(lambda x: x >= 1, "it must be at least 1")] = 1

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"Dirichlet(alpha={self.alpha:g}): alpha must be positive")
        require(self.alpha <= 1e9, f"Dirichlet(alpha={self.alpha:g}): alpha is 1e9 at most; IID() gives equal shares")

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        labels = one_label_each(self, labels)

        def draw(least: int) -> list[Tensor]:
            partitioner = _flower().DirichletPartitioner(
                num_partitions=num_clients,
                partition_by="label",
                alpha=float(self.alpha),
                min_partition_size=least,
                seed=seed,
            )
            return _deal(partitioner, labels, num_clients)

        try:
            return draw(self.min_examples)
        except ValueError as error:
            # The package does not say who went short: the first draw, taken again, does.
            short = [k for k, part in enumerate(draw(0)) if len(part) < self.min_examples]
            raise ValueError(
                f"{self!r} found no division of {len(labels):,} examples with at least {self.min_examples} "
                f"for each of {num_clients} clients (in the first draw {_clients(short)} had fewer); "
                "take a larger alpha, fewer clients or another seed"
            ) from error


@dataclass(frozen=True)
class Pathological(Split):
    """Every client holds exactly ``classes`` classes; a class is divided evenly among its clients.

    The first class of client k is k modulo the number of classes, the others are drawn. With
    fewer clients than classes some classes may fall to nobody: their examples are left out.
    """

    classes: Count = 3

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        known = len(torch.unique(one_label_each(self, labels)))
        require(self.classes <= known, f"{self!r} asks for more classes a client than the {known} there are")
        partitioner = _flower().PathologicalPartitioner(
            num_partitions=num_clients,
            partition_by="label",
            num_classes_per_partition=self.classes,
            class_assignment_mode="first-deterministic",
            seed=seed,
        )
        try:
            return _deal(partitioner, labels, num_clients)
        except ValueError as error:
            raise ValueError(
                f"{self!r} gives a class to more of the {num_clients} clients than it has examples "
                f"({len(labels):,} in all); take fewer clients or fewer classes"
            ) from error


@dataclass(frozen=True)
class Shards(Split):
    """Sorted by label, cut into equal shards, ``per_client`` of them to each client at random.

    Source: McMahan et al., AISTATS 2017, arXiv:1602.05629, Section 3. Fewer examples than
    there are shards may be left over; they are left out.
    """

    per_client: Count = 2

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        require(
            len(labels) >= num_clients * self.per_client,
            f"{self!r} for {num_clients} clients needs {num_clients * self.per_client:,} examples or more, "
            f"one a shard, and there are {len(labels):,}; take fewer clients or shards",
        )
        partitioner = _flower().ShardPartitioner(
            num_partitions=num_clients,
            partition_by="label",
            num_shards_per_partition=self.per_client,
            seed=seed,
        )
        return _deal(partitioner, one_label_each(self, labels), num_clients)


@dataclass(frozen=True)
class Natural(Split):
    """The owners the data came with.

    With fewer clients than owners the largest owners are taken, the lower index first among
    equals, and the seed changes nothing. With ``draw`` the seed draws them, each as likely as
    another. Owners of fewer than ``min_examples`` are left out. Client k is the k-th of the
    taken owners by index.
    """

    min_examples: Count = 1
    draw: bool = False

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        if groups is None:
            raise ValueError("Natural() needs a data set with groups, as shakespeare has; take another split")
        require(len(groups) == len(labels), "labels and groups differ in length")
        _, counts = torch.unique(groups, return_counts=True)
        require(
            num_clients <= (enough := int((counts >= self.min_examples).sum())),
            f"{self!r} has {enough} owners and cannot make {num_clients} clients of them; take fewer clients",
        )
        order = counts.argsort(descending=True, stable=True)[:enough]
        taken = (order[shuffle(enough, seed)] if self.draw else order)[:num_clients].sort().values
        owned = groups.argsort(stable=True).tensor_split(counts.cumsum(0)[:-1].tolist())
        return [owned[owner] for owner in taken.tolist()]


@dataclass(frozen=True)
class Similarity(Split):
    """A ``share`` of the examples dealt at random, the rest sorted by label and cut in K shards.

    Client k of K has the k-th part of both. Source: A. Xu, PhD thesis, University of
    Pittsburgh, 2023, Section 4.5.1 (its s). share = 1 is IID.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"Similarity(share={self.share:g}): share must lie between 0 and 1")

    def deal(self, labels: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> list[Tensor]:
        labels = one_label_each(self, labels)
        order = shuffle(len(labels), seed)
        cut = round(self.share * len(labels))
        mixed, rest = order[:cut], order[cut:]
        rest = rest[labels[rest].argsort(stable=True)]
        pairs = zip(mixed.tensor_split(num_clients), rest.tensor_split(num_clients), strict=True)
        return [torch.cat(pair) for pair in pairs]


def holdout(indices: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """A client's own examples cut at random into training and test: (train, test).

    The test part has ``share`` of them, rounded, but one example at least stays for training.
    Raises ValueError for no examples or a share outside [0, 1).
    """
    require(len(indices) > 0, "a client without examples cannot be cut into training and test")
    require(0 <= share < 1, "share must be at least 0 and below 1")
    order = shuffle(len(indices), seed)
    count = min(round(share * len(indices)), len(indices) - 1)
    return indices[order[count:]], indices[order[:count]]


def _flower() -> Any:
    return optional("flwr_datasets.partitioner", "this split")


def _deal(partitioner: Any, labels: Tensor, num_clients: int) -> list[Tensor]:
    """What a partitioner of flwr-datasets makes of a table with a label and an index column.

    Its public way, a table a client, takes milliseconds each: the map behind them is read instead.
    """
    table = optional("datasets", "this split").Dataset
    with warnings.catch_warnings():
        # It warns before each new draw, of classes that fall to nobody (both documented above),
        # and of its own use of pyarrow: nothing a caller could act on.
        warnings.simplefilter("ignore")
        partitioner.dataset = table.from_dict({"label": labels.numpy(), "index": np.arange(len(labels))})
        partitioner.load_partition(0)  # decides about all of them, and may sort the table
        order = torch.tensor(partitioner.dataset[:]["index"], dtype=torch.int64, device="cpu")
    rows = partitioner._partition_id_to_indices
    return [order[torch.tensor(rows[k], dtype=torch.int64, device="cpu")] for k in range(num_clients)]


def one_label_each(split: Split, labels: Tensor) -> Tensor:
    """The labels, if there is one an example."""
    require(
        labels.ndim == 1,
        f"{split!r} deals by label and needs one an example, not {tuple(labels.shape)}; take IID() or Natural()",
    )
    return labels


def shuffle(count: int, seed: int) -> Tensor:
    """The numbers below ``count``, in an order by ``seed``."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed), device="cpu")


def _clients(ids: list[int]) -> str:
    listed = ", ".join(map(str, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return f"client{'s' if len(ids) != 1 else ''} {listed}"
