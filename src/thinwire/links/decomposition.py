"""Transform coding, its transform: a layer's singular value decomposition, as far as its terms are worth their bits.

Small layers are decomposed whole, larger ones by random projections, some terms at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int32
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


class Chosen:
    """Layers that are coded in ways of their own, for the steps that are tried: as nothing (0), as entries (1), or as
    those terms of them (2).

    Terms have few numbers, so rows of one width are rounded together, whichever layer they are of.
    """

    def __init__(self, layers: list[Layer], ways: list[tuple[int, Int[Tensor, " _"]]]) -> None:
        self.layers = layers
        self.modes = [mode if mode != 2 or terms.numel() else 0 for mode, terms in ways]
        there = [(layer, terms) for layer, (_, terms), mode in zip(layers, ways, self.modes, strict=True) if mode == 2]
        self.s = [layer.s[terms].numpy() for layer, terms in there]
        sides_of = [side[terms] for layer, terms in there for side in (layer.u, layer.v)]
        self.sides = [side.numpy() for side in sides_of]  # numpy's small operations take half the time of torch's
        self.places: dict[int, list[int]] = {}  # of the sides of a width
        for i, side in enumerate(sides_of):
            self.places.setdefault(side.shape[1], []).append(i)
        self.rows = {n: torch.cat([sides_of[i] for i in places]) for n, places in self.places.items()}

    def parts(self, step: float) -> list[CodedLayer]:
        """The layers with this step."""
        terms = iter(self._terms(step))
        return [
            next(terms) if mode == 2 else _entries(layer.flat, step) if mode else NOTHING
            for layer, mode in zip(self.layers, self.modes, strict=True)
        ]

    def _terms(self, step: float) -> list[CodedLayer]:
        exact = [s / np.float32(step) for s in self.s]
        levels = [np.rint(scale).clip(1, FINEST) for scale in exact]  # to a unit vector
        rounded = self._round(levels)
        coded = []
        for i, (own, each) in enumerate(zip(exact, levels, strict=True)):
            (a, left), (b, right) = rounded[2 * i : 2 * i + 2]
            gains = _gains(a, b, self.sides[2 * i], self.sides[2 * i + 1], own, each.astype(np.float64))
            coded.append(CodedLayer(1 + len(own), each.astype(np.int64).tolist(), gains, left, right))
        return coded

    def _round(self, levels: list[NDArray[np.float32]]) -> list[tuple[NDArray[np.float32], Int32[Tensor, "_ _"]]]:
        """Each side in units of its terms' levels, as floats and as integers."""
        sides: list[tuple[NDArray[np.float32], Tensor]] = [None] * len(self.sides)  # type: ignore[list-item]
        for n, places in self.places.items():
            own = [levels[i // 2] for i in places]
            whole, integers = round_rows(self.rows[n], torch.from_numpy(np.concatenate(own)), DEAD, FINEST)
            floats, at = whole.numpy(), 0
            for i, some in zip(places, own, strict=True):
                sides[i] = floats[at : at + len(some)], integers[at : at + len(some)]
                at += len(some)
        return sides


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
