"""Transform coding, its transform: a layer's singular value decomposition, as far as its terms are worth their bits.

Small layers are decomposed whole, larger ones by random projections, some terms at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

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


class Encoder:
    """Layers with any step, each in a way of its own: as nothing (0), as entries (1), or as those terms of it (2).

    Terms have few numbers, so those of one width are rounded together, whichever layer and side they are of.
    """

    def __init__(self, layers: list[Layer], ways: list[tuple[int, Int[Tensor, " _"]]]) -> None:
        self.layers = layers
        self.modes = [mode if mode != 2 or terms.numel() else 0 for mode, terms in ways]
        there = [(layer, terms) for layer, (_, terms), mode in zip(layers, ways, self.modes, strict=True) if mode == 2]
        ends = np.cumsum([0, *(len(terms) for _, terms in there)])
        self.spans = list(pairwise(ends.tolist()))  # of a layer's terms in all of them
        self.s = np.concatenate([np.zeros(0, np.float32), *(layer.s[terms].numpy() for layer, terms in there)])
        widths: dict[int, tuple[list[Tensor], list[int]]] = {}
        self.sides: list[tuple[int, slice]] = []  # left and right of each layer: a width, and which of its rows
        for (layer, terms), (first, last) in zip(there, self.spans, strict=True):
            for side in (layer.u, layer.v):
                rows, places = widths.setdefault(side.shape[1], ([], []))
                self.sides.append((side.shape[1], slice(len(places), len(places) + last - first)))
                rows.append(side[terms])
                places.extend(range(first, last))
        self.rows = {n: (torch.cat(rows), np.array(places)) for n, (rows, places) in widths.items()}

    def encode(self, step: float) -> list[CodedLayer]:
        """The layers with this step."""
        terms = iter(self._terms(step))
        return [
            next(terms) if mode == 2 else _entries(layer.flat, step) if mode else NOTHING
            for layer, mode in zip(self.layers, self.modes, strict=True)
        ]

    def _terms(self, step: float) -> list[CodedLayer]:
        exact = self.s / np.float32(step)  # numpy's small operations take half the time of torch's
        levels = np.rint(exact).clip(1, FINEST)  # to a unit vector
        rounded = {n: self._round(n, levels) for n in self.rows}
        coded = []
        for (first, last), left, right in zip(self.spans, self.sides[::2], self.sides[1::2], strict=True):
            (u, a, coded_left), (v, b, coded_right) = ([part[rows] for part in rounded[n]] for n, rows in (left, right))
            own = levels[first:last]
            gains = _gains(a, b, u, v, exact[first:last], own.astype(np.float64))
            coded.append(CodedLayer(1 + len(own), own.astype(np.int64).tolist(), gains, coded_left, coded_right))
        return coded

    def _round(self, n: int, levels: NDArray[np.float32]) -> tuple[Any, Any, Any]:
        """The rows of a width, as they are, and in units of their terms' levels as floats and as integers."""
        rows, places = self.rows[n]
        whole, integers = round_rows(rows, torch.from_numpy(levels[places]), DEAD, FINEST)
        return rows.numpy(), whole.numpy(), integers


def _gains(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    u: NDArray[np.float32],
    v: NDArray[np.float32],
    exact: NDArray[np.floating],
    levels: NDArray[np.float64],
) -> list[int]:
    """The scales that leave least error, given all terms: (left leftT * right rightT) c = left x right."""
    gram = ((a @ a.T) * (b @ b.T)).astype(np.float64)
    along = ((a @ u.T) * exact * (b @ v.T)).sum(1).astype(np.float64)
    diagonal = gram.reshape(-1)[:: len(exact) + 1]
    diagonal += 1e-9 * np.maximum(diagonal, 1)
    gains = np.rint(((np.linalg.solve(gram, along) * levels - 1) * levels).clip(-levels, levels))
    return gains.astype(np.int64).tolist()  # type: ignore[no-any-return]


def _entries(flat: Tensor, step: float) -> CodedLayer:
    y = flat / step
    levels = round_levels(y)
    squares = float(torch.dot(levels, levels))
    if not squares:
        return NOTHING
    gain = round(GAINS * (float(torch.dot(levels, y)) / squares - 1))
    return CodedLayer(1, [], [max(-GAINS // 2, min(GAINS // 2, gain))], levels.to(torch.int32)[None], NONE)


def round_levels(x: Tensor) -> Tensor:
    """The nearest whole numbers; zero where that is not worth the bits."""
    return rounding.round_levels(x, DEAD, FINEST)
