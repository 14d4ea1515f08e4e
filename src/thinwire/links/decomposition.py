"""Transform coding, its transform: a layer's singular value decomposition, as far as its terms are worth their bits.

Small layers are decomposed whole, larger ones by random projections, some terms at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from ..kernels import rounding
from ..kernels.rounding import round_rows
from ..key import Key
from .bitstream import FINEST, GAINS, NONE, NOTHING, CodedLayer, most_terms
from .lowrank import atoms, sides

DEAD = 0.6  # of a step: what is shorter becomes zero
NARROW = 64  # the shorter side of a layer that is decomposed whole
BLOCK = 16  # terms by which a larger one is decomposed at least


class Layer:
    """A layer and as many terms of its decomposition as were asked for."""

    def __init__(self, x: Tensor, key: Key) -> None:
        self.x, self.key, self.shape = x, key, x.shape
        self.flat = x.reshape(-1)
        self.energy = float(torch.dot(self.flat, self.flat)) if self.flat.numel() else 0.0
        self.most = most_terms(x.shape) if self.energy else 0
        # An orthonormal basis of columns, and the layer in it.
        self.q: Tensor | None = None
        self.b: Tensor | None = None
        self.u, self.s, self.v = (
            torch.zeros(0, 0, dtype=torch.float32, device="cpu"),
            torch.zeros(0, dtype=torch.float32, device="cpu"),
            torch.zeros(0, 0, dtype=torch.float32, device="cpu"),
        )  # terms are rows
        self.chosen: tuple[Tensor, Tensor, NDArray[np.float32], Tensor] | None = None  # places of terms; u, s, v there
        self.done = self.most == 0

    def decompose(self, more: int) -> None:
        """At least so many more terms, where there are: Halko, Martinsson, Tropp, SIAM Review 2011, Algorithm 4.4."""
        if self.done:
            return
        m, n = sides(self.shape)
        x = self.x.reshape(m, n)
        if min(m, n) <= NARROW:
            left, right = atoms(x, self.most)  # one of them carries the singular values
            s = torch.linalg.vector_norm(left, dim=0) * torch.linalg.vector_norm(right, dim=1)
            unit = [
                part / torch.linalg.vector_norm(part, dim=1, keepdim=True).clamp_min(1e-30) for part in (left.T, right)
            ]
            self.u, self.s, self.v = unit[0].float(), s.float(), unit[1].float()
            self.done = True
            return
        if m > n:
            x = x.T
        known = 0 if self.q is None else self.q.shape[1]
        more = min(max(BLOCK, -(-more // BLOCK) * BLOCK, known), self.most - known)
        y = x @ torch.randn(
            x.shape[1], more, generator=self.key.generator(f"sketch{known}"), dtype=torch.float32, device="cpu"
        )
        y = x @ (x.T @ self._orthogonal(y))  # one power iteration
        y = self._orthogonal(y)
        self.q = y if self.q is None else torch.cat([self.q, y], 1)
        self.b = y.T @ x if self.b is None else torch.cat([self.b, y.T @ x])
        values, vectors = torch.linalg.eigh(self.b @ self.b.T)
        s, vectors = values.flip(0).clamp_min(0).sqrt(), vectors.flip(1)
        u, v = (self.q @ vectors).T, (vectors.T @ self.b) / s.clamp_min(1e-30)[:, None]
        self.u, self.s, self.v = (v, s, u) if m > n else (u, s, v)
        self.done = self.q.shape[1] >= self.most

    def _orthogonal(self, y: Tensor) -> Tensor:
        """A basis of what ``y`` has beside the one that is there."""
        if self.q is not None:
            y = y - self.q @ (self.q.T @ y)
            y = y - self.q @ (self.q.T @ y)  # twice is enough
        q: Tensor = torch.linalg.qr(y).Q
        return q

    def part(self, step: float, mode: int, terms: Int[Tensor, " rank"]) -> CodedLayer:
        """The layer with this step: nothing (0), entries (1) or these terms of it (2)."""
        if mode == 1:
            return self._entries(step)
        return self._terms(step, terms) if mode == 2 and terms.numel() else NOTHING

    def _entries(self, step: float) -> CodedLayer:
        y = self.flat / step
        levels = round_levels(y)
        squares = float(torch.dot(levels, levels))
        if not squares:
            return NOTHING
        gain = round(GAINS * (float(torch.dot(levels, y)) / squares - 1))
        return CodedLayer(1, [], [max(-GAINS // 2, min(GAINS // 2, gain))], levels.to(torch.int32)[None], NONE)

    def _terms(self, step: float, terms: Tensor) -> CodedLayer:
        if self.chosen is None or self.chosen[0] is not terms:
            self.chosen = terms, self.u[terms], self.s[terms].numpy(), self.v[terms]  # for the next step that is tried
        _, u, s, v = self.chosen
        exact = s / np.float32(step)  # numpy's small operations take half the time of torch's
        levels = np.rint(exact).clip(1, FINEST)  # to a unit vector
        scale = torch.from_numpy(levels)
        (left, coded_left), (right, coded_right) = (round_rows(part, scale, DEAD, FINEST) for part in (u, v))
        # The scales that leave least error, given all terms: (left leftT * right rightT) c = left x right.
        a, b = left.numpy(), right.numpy()
        gram = ((a @ a.T) * (b @ b.T)).astype(np.float64)
        along = ((a @ u.numpy().T) * exact * (b @ v.numpy().T)).sum(1).astype(np.float64)
        diagonal = gram.reshape(-1)[:: len(s) + 1]
        diagonal += 1e-9 * np.maximum(diagonal, 1)
        wide = levels.astype(np.float64)
        gains = np.rint(((np.linalg.solve(gram, along) * wide - 1) * wide).clip(-wide, wide))
        each, gains = (numbers.astype(np.int64).tolist() for numbers in (levels, gains))
        return CodedLayer(1 + len(s), each, gains, coded_left, coded_right)


def round_levels(x: Tensor) -> Tensor:
    """The nearest whole numbers; zero where that is not worth the bits."""
    return rounding.round_levels(x, DEAD, FINEST)
