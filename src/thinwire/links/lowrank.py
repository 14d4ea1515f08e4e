"""A layer seen as a matrix, and two thin matrices whose product is near it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Size, Tensor

from ..kernels.outer import outer_sum
from ..key import Key
from ..ranges import Count
from ..wire import Packet
from .base import Codec, finite, vector

SPARE = 8  # columns of :func:`leading` beyond those that are asked for
STEPS = 10  # of it, before all eigenvectors are computed instead


@dataclass(frozen=True)
class LowRank(Codec):
    """The best approximation of each layer by a matrix of rank ``rank``: its truncated singular value decomposition.

    A layer is the matrix [first dimension, all others], m by n. rank * (m + n) floats of 4 bytes are sent in place of
    m * n. Layers of one dimension are sent whole, and so are layers whose factors would be no fewer floats. (``Flat``
    makes one dimension of everything.) It is a contraction: at least rank / min(m, n) of the squared length is kept.
    The decomposition is that of double precision. It takes O(min(m, n)^2 max(m, n)) time, and of a large layer whose
    singular values fall off, as those of updates do, a few products with rank + 8 columns. ``PowerSGD`` is the cheap
    one. What the authors of LBGM call ATOMO is this link with rank 2. Raises ``ValueError`` for a rank below 1.
    """

    rank: Count = 2

    contraction = True
    grows = True  # of an update near the end of the range a singular value is beyond it

    def encode(self, x: Tensor, key: Key) -> Packet:
        if not thin(x.shape, self.rank):
            return x.reshape(-1)
        left, right = atoms(finite(self, x).reshape(len(x), -1), self.rank)
        return factors(left, right)

    def decode(self, packet: Packet, shape: Size, key: Key) -> Tensor:
        if not thin(shape, self.rank):
            return vector(packet, shape.numel(), torch.float32).view(shape)
        return product(vector(packet, self.rank * sum(sides(shape)), torch.float32), shape, self.rank)


def sides(shape: Size) -> tuple[int, int]:
    """m and n of the matrix that a layer is."""
    return shape[0], shape[1:].numel()


def thin(shape: Size, rank: int) -> bool:
    """Whether factors of this rank are fewer floats than the layer."""
    return len(shape) > 1 and rank * sum(sides(shape)) < shape.numel()


def atoms(x: Float[Tensor, "m n"], rank: int | None = None) -> tuple[Float[Tensor, "m rank"], Float[Tensor, "rank n"]]:
    """Rank-one terms of the singular value decomposition, the largest first (None: all of them), in double precision.

    Their sum is left @ right. The factor on the shorter side has orthonormal columns (or rows), and the other factor
    carries the singular values. They are computed from the eigenvectors of the shorter side's Gram matrix, so a long
    layer costs little more than one pass; a few terms of many by :func:`leading`, where that gets there. The last bits
    differ between machines, so only the sender calls this function.
    """
    if len(x) > x.shape[1]:
        left, right = atoms(x.T, rank)
        return right.T, left.T
    wide = x.double()
    vectors = leading(wide, rank) if rank is not None and 16 * (rank + SPARE) <= len(wide) else None
    if vectors is None:
        vectors = torch.linalg.eigh(wide @ wide.T).eigenvectors.flip(1)[:, :rank]  # [m, rank]
    return vectors, vectors.T @ wide


def leading(wide: Float[Tensor, "m n"], rank: int) -> Float[Tensor, "m rank"] | None:
    """The eigenvectors of wide @ wide.T with the largest eigenvalues, that one first, by subspace iteration.

    An eigenvector is found when what its product lacks of its multiple is 1e-10 of that, or the rounding of the largest
    one. None where ``STEPS`` steps do not find all: the eigenvalues beyond the first rank + ``SPARE`` are too large.
    """
    start = torch.randn(
        rank + SPARE, wide.shape[1], dtype=wide.dtype, generator=torch.Generator().manual_seed(0), device="cpu"
    )
    block = start.to(wide.device) @ wide.T  # [rank + SPARE, m]
    for _ in range(STEPS):
        basis = torch.linalg.qr(block.T).Q.T
        block = basis @ wide @ wide.T
        values, turns = torch.linalg.eigh(block @ basis.T)
        values, turns = values[-rank:].flip(0), turns.T[-rank:].flip(0)
        vectors: Tensor = turns @ basis
        lacks = torch.linalg.vector_norm(turns @ block - values[:, None] * vectors, dim=1)
        if bool((lacks <= 1e-10 * values.abs() + 1e-14 * values[0].abs()).all()):
            return vectors.T
    return None


def factors(left: Float[Tensor, "m rank"], right: Float[Tensor, "rank n"]) -> Float[Tensor, " size"]:
    """Both factors as one vector of 32-bit floats."""
    return torch.cat([left.reshape(-1), right.reshape(-1)]).float()


def product(values: Float[Tensor, " size"], shape: Size, rank: int) -> Tensor:
    """The layer that :func:`factors` stand for: the same bits on every machine, so that both ends hold the same."""
    m, n = sides(shape)
    left, right = values[: m * rank].view(m, rank), values[m * rank :].view(rank, n)
    return outer_sum(left.T, right).view(shape)
