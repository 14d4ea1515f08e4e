"""A budget of bytes for a whole update: each layer in the basis where it is shortest, one step for all numbers.

Updates of a network's layers are nearly of low rank, and not sparse. So a layer is sent as a few rank-one terms of its
singular value decomposition, rounded so that a bit more takes the same error off everywhere: transform coding, as
images are coded (Goyal, "Theoretical Foundations of Transform Coding", IEEE Signal Processing Magazine, 2001). The
choices are those of rate and distortion together (Shoham, Gersho, IEEE Trans. ASSP, 1988).

Differences from the paper: none claims this method. The transform is each layer's own and is sent with it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, UInt8
from torch import Size, Tensor

from ..errors import check, require
from ..kernels.adaptive import Reader, Writer
from ..kernels.outer import outer_sum
from ..key import Key
from ..params import Layout, Params
from ..wire import Packet, State, length
from .base import Link, finite, join, octets, vector
from .lowrank import atoms, sides

DEAD = 0.6  # of a step: what is shorter becomes zero
SLOPE = 0.11  # squared steps of error that a bit has to take off; 2 ln 2 / 12 = 0.116 for many levels
BESIDE = 12  # bits of a layer, or of a term, beside its numbers, about
FINEST = 1 << 20  # levels to a unit vector, at most
COARSEST = float(1 << 20)  # step, in which the largest entry is 1
LARGEST = 3e38  # step that is sent
NARROW = 64  # the shorter side of a layer that is decomposed whole
BLOCK = 16  # terms by which a larger one is decomposed at least
GAINS = 64  # parts in which the scale of a layer's own entries is corrected
ENTRIES_TRIED, SIDE_TRIED = 1 << 13, 64  # numbers of all layers, and of one side of a term, that steps are tried on
TRIES = 24  # steps that are tried on these, at most
AGAIN = 8  # times that terms are chosen anew, at most, where those that were chosen cannot do
CODED = 6  # steps with which all is coded, at most
AROUND = 8  # bytes of a packet beside those of a step and the levels
CLOSE = 0.985  # of the bytes allowed, which end the search

MODE, CLASS, LEVELS, GAIN, TERMS, ENTRIES = 0, 1, 2, 3, 4, 36  # contexts; of the last two 32 each
CONTEXTS = ENTRIES + 32


@dataclass(frozen=True)
class TransformCoding(Link):
    """At most ``bytes`` a message, spent over all layers where they take most error off.

    A layer is the matrix [first dimension, all others]. It is sent as rounded rank-one terms of its singular value
    decomposition, as its rounded entries, or not at all, whatever is least error for its bits. Layers of one dimension
    are sent as entries. All numbers of a message are rounded to multiples of one step; for a term, in units of the
    layer it is part of. The step is found by bisection so that the message fills its bytes. Levels are coded by
    :mod:`thinwire.kernels.adaptive`.

    Give one of three. ``bytes`` holds for the serialised packet, ``len(dumps(packet))``, and for every message. With
    ``rate`` it is so many bits an entry of what is sent, and 64 bytes. ``share`` is the share of the squared length
    that the receiver sees, at least, in as few bytes as that takes.

    Where the numbers themselves, 4 bytes each, fit the bytes (with ``share``: are fewer), they are sent as they are. It
    is a contraction: error feedback may go around it. For broadcasts: ``EF21(TransformCoding(16000))``. What the
    receiver sees are the same bits on every machine; the packet depends on the library that decomposes. Raises
    ``ValueError`` where not exactly one is given or one is out of range, and if the bytes do not hold a single entry.
    """

    bytes: int | None = None
    rate: float | None = None
    share: float | None = None

    contraction = True
    example: ClassVar[str] = "TransformCoding(4000)"

    def __post_init__(self) -> None:
        given = [value for value in (self.bytes, self.rate, self.share) if value is not None]
        require(len(given) == 1, f"{self!r}: give one of bytes, rate (bits an entry) and share (of the squared length)")
        require(self.bytes is None or self.bytes > 0, f"{self!r}: bytes must be positive")
        require(
            self.rate is None or 0 < self.rate <= 64, f"{self!r}: rate must be above 0 and at most 64 bits an entry"
        )
        require(self.share is None or 0 < self.share < 1, f"{self!r}: share must be above 0 and below 1")

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        x = Params(Layout(x.layout.names, x.layout.shapes), finite(self, x.flat.to(torch.float32)))
        most = self._most(x.layout)
        largest = float(x.flat.abs().max()) if x.layout.size else 0.0
        if not largest:
            return torch.zeros(0, dtype=torch.uint8), x.zeros(), None
        if most is not None and length(x.flat) <= most:
            return x.flat, x.clone(), None
        found = _searched(x, largest, most, self.share, key)
        if found is None or (most is None and length(x.flat) <= length(found[0])):
            require(most is None, f"{self!r}: a single entry of {x.layout} takes more; raise bytes to 64")
            return x.flat, x.clone(), None
        packet, seen = found
        finite(self, seen.flat)
        return packet, seen, None

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if isinstance(packet, Tensor) and packet.dtype == torch.float32:
            return Params(layout, vector(packet, layout.size, torch.float32).to(layout.dtype)), None
        coded = octets(packet)
        most = self._most(layout)
        check(most is None or length(coded) <= most, f"at most {most} bytes")
        return _seen(coded, layout), None

    def _most(self, layout: Layout) -> int | None:
        """The bytes of a packet of these layers, at most."""
        if self.rate is not None:
            return 64 + math.ceil(self.rate * layout.size / 8)
        return self.bytes

    def floats(self, packet: Packet) -> float:
        return float(packet.numel() * packet.dtype.itemsize / 4)


class Part(NamedTuple):
    """One layer as it is coded: nothing, its rounded entries, or rank-one terms."""

    mode: int  # 0: nothing, 1: entries, 2 and more: terms, and one more
    levels: list[int]  # of each term, to a unit vector
    gains: list[int]  # corrections of scales: of each term in its levels, of entries in 64ths
    left: Int32[Tensor, "rank m"]  # or all entries, [1, n]
    right: Int32[Tensor, "rank n"]


NONE = torch.zeros(0, 0, dtype=torch.int32)
NOTHING = Part(0, [], [], NONE, NONE)


def _searched(
    x: Params, largest: float, most: int | None, share: float | None, key: Key
) -> tuple[Tensor, Params] | None:
    """The bytes with about the smallest step that fits ``most`` bytes, or the largest that keeps ``share``, and what is
    seen of them. None: not even one entry fits.
    """
    layers = [_Layer(tensor / largest, key.at(name)) for name, tensor in x.items()]
    whole = sum(layer.energy for layer in layers)
    room = 5 * x.layout.size + 64 if most is None else most - AROUND
    for layer in layers:
        if not layer.done:
            layer.decompose(BLOCK if most is None else math.ceil(most * 8 / (2 * sum(sides(layer.shape)))))
    bits, error = 8.0 * room, None if share is None else (1 - share) * whole
    enough = whole - 1  # of error: so much is left if the largest entry is sent alone
    enough = enough if error is None else min(enough, error)
    trial, step = _Trial(layers), math.sqrt(whole / (2 * (most or x.layout.size)))
    found: tuple[Tensor, list[Part], float] | None = None
    for _ in range(AGAIN if enough > 0 else 0):
        step, ways, slope = trial.solved(step, bits, error)
        while trial.extended(ways, layers):
            trial = _Trial(layers)
            step, ways, slope = trial.solved(step, bits, error)
        found = _fitted(
            x.layout, layers, trial.each(ways), step, slope, largest, room, None if error is None else enough
        )
        if found is not None:
            break
        bits, error = bits * 0.7, None if error is None else error * 0.9  # these terms cannot do
    if found is not None:
        packet, parts, sent = found
        seen = _joined(x.layout, parts, sent)
        off = (x.flat - seen.flat) / largest
        if error is not None or float(torch.dot(off, off)) <= enough:
            return packet, seen
    single = _single(x, room)
    return None if single is None or enough < whole - 1 else (single, _seen(single, x.layout))


def _fitted(
    layout: Layout,
    layers: list[_Layer],
    ways: list[tuple[int, Tensor]],
    step: float,
    slope: float,
    largest: float,
    room: int,
    enough: float | None,
) -> tuple[Tensor, list[Part], float] | None:
    """Layers coded in these ways with the step that fills ``room``, or leaves no more error than ``enough``.

    None: no step that was tried does. ``slope`` is the power of the step that bytes, or errors, go by about.
    """
    fine, coarse = 0.0, math.inf  # the coarsest step that is too fine, the finest that is coarse enough
    last: tuple[float, float] | None = None
    best: tuple[Tensor, list[Part], float] | None = None
    for _ in range(CODED):
        step = max(step, 1 / FINEST)
        if step > COARSEST or step * largest > LARGEST or (last is not None and step == last[0]):
            break
        sent = float(np.float32(step * largest))
        if sent == 0:
            break
        parts = [layer.part(step, mode, terms) for layer, (mode, terms) in zip(layers, ways, strict=True)]
        packet = _written(sent, parts, layout.shapes, 2 * room + 64)
        if enough is None:  # of the bytes, how many times too many
            off = 2.0 if packet is None else packet.numel() / room
            fits, better = off <= 1, best is None or (packet is not None and packet.numel() > best[0].numel())
        else:  # of the error, how many times too little
            off = enough / max(_missed(parts, step, layers), 1e-30)
            fits, better = off >= 1, best is None or (packet is not None and packet.numel() < best[0].numel())
        if packet is not None and fits and better:
            best = packet, parts, sent
        if fits and min(off, 1 / off) >= CLOSE:
            break
        fine, coarse = (max(fine, step), coarse) if off > 1 else (fine, min(coarse, step))
        if last is not None and last[0] != step:
            slope = min(4.0, max(0.2, math.log(last[1] / off) / math.log(step / last[0])))
        last = step, off
        step *= (off / (0.993 if enough is None else 1.005)) ** (1 / slope)
        if not fine < step < coarse:
            step = between(fine, coarse)
    return best


def _joined(layout: Layout, parts: list[Part], step: float) -> Params:
    return join(layout, (_built(part, step, shape) for part, shape in zip(parts, layout.shapes, strict=True)))


def between(fine: float, coarse: float) -> float:
    """A step between two, of which the first may be 0 and the second infinite."""
    return math.sqrt(max(fine, coarse / 16 if coarse < math.inf else 0) * min(coarse, 16 * fine if fine else coarse))


def _missed(parts: list[Part], step: float, layers: list[_Layer]) -> float:
    """The squared error that is left."""
    total = 0.0
    for part, layer in zip(parts, layers, strict=True):
        if part.mode:
            off = layer.x - _built(part, step, layer.shape)
            total += float(torch.dot(off.view(-1), off.view(-1)))
        else:
            total += layer.energy
    return total


def _single(x: Params, room: int) -> Tensor | None:
    """The largest entry alone; None where it does not fit."""
    at = int(x.flat.abs().argmax())
    parts = []
    for start, size, _ in x.layout.spans.values():
        entries = torch.zeros(1, size, dtype=torch.int32)
        if start <= at < start + size:
            entries[0, at - start] = 1 if float(x.flat[at]) > 0 else -1
            parts.append(Part(1, [], [0], entries, NONE))
        else:
            parts.append(NOTHING)
    return _written(float(x.flat.abs().max()), parts, x.layout.shapes, room)


class _Layer:
    """A layer and as many terms of its decomposition as were asked for."""

    def __init__(self, x: Tensor, key: Key) -> None:
        self.x, self.key, self.shape = x, key, x.shape
        self.flat = x.reshape(-1)
        self.energy = float(torch.dot(self.flat, self.flat)) if self.flat.numel() else 0.0
        self.most = most_terms(x.shape) if self.energy else 0
        # An orthonormal basis of columns, and the layer in it.
        self.q: Tensor | None = None
        self.b: Tensor | None = None
        self.u, self.s, self.v = torch.zeros(0, 0), torch.zeros(0), torch.zeros(0, 0)  # terms are rows
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
        found = 0 if self.q is None else self.q.shape[1]
        more = min(max(BLOCK, -(-more // BLOCK) * BLOCK, found), self.most - found)
        y = x @ torch.randn(x.shape[1], more, generator=self.key.generator(f"sketch{found}"))
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

    def part(self, step: float, mode: int, terms: Int[Tensor, " rank"]) -> Part:
        """The layer with this step: nothing (0), entries (1) or these terms of it (2)."""
        return self._entries(step) if mode == 1 else self._terms(step, terms) if mode == 2 and len(terms) else NOTHING

    def _entries(self, step: float) -> Part:
        y = self.flat / step
        levels = _levels(y)
        squares = float(torch.dot(levels, levels))
        if not squares:
            return NOTHING
        gain = round(GAINS * (float(torch.dot(levels, y)) / squares - 1))
        return Part(1, [], [max(-GAINS // 2, min(GAINS // 2, gain))], levels.to(torch.int32)[None], NONE)

    def _terms(self, step: float, terms: Tensor) -> Part:
        u, s, v = self.u[terms], self.s[terms], self.v[terms]
        levels = (s / step).round().clamp(1, FINEST)  # to a unit vector
        left, right = _levels(u * levels[:, None]), _levels(v * levels[:, None])
        # The scales that leave least error, given all terms: (left leftT * right rightT) c = left x right.
        gram = ((left @ left.T) * (right @ right.T)).double()
        along = ((left @ u.T) * (s / step) * (right @ v.T)).sum(1).double()
        scales = torch.linalg.solve(gram + 1e-9 * torch.diag(gram.diagonal().clamp_min(1)), along)
        gains = ((scales * levels - 1) * levels).round()
        gains = torch.minimum(torch.maximum(gains, -levels), levels)
        own = [int(value) for value in levels.tolist()], [int(value) for value in gains.tolist()]
        return Part(1 + len(terms), *own, left.to(torch.int32), right.to(torch.int32))


class _Ways(NamedTuple):
    """How layers are coded."""

    modes: Int[Tensor, " layers"]  # as nothing, as entries or as terms
    worth: Bool[Tensor, " terms"]  # which terms


class _Guess(NamedTuple):
    """What a step comes to, about."""

    nothing: Float[Tensor, " layers"]  # the squared error of a layer that is left out, in squared steps
    bits: Float[Tensor, " layers"]  # of layers as entries
    error: Float[Tensor, " layers"]
    cost: Float[Tensor, " terms"]  # bits of terms
    gained: Float[Tensor, " terms"]  # what they take off the error


class _Trial:
    """Layers as some of their numbers, all in a few tensors, on which a step is tried in half a millisecond."""

    def __init__(self, layers: list[_Layer]) -> None:
        many = max(128, ENTRIES_TRIED // max(1, len(layers)))
        self.size = torch.tensor([float(layer.flat.numel()) for layer in layers])
        self.energy = torch.tensor([layer.energy for layer in layers])
        self.entries, self.times = _samples([layer.flat[None] for layer in layers], many)
        self.terms = [len(layer.s) for layer in layers]
        self.s, self.owner = torch.cat([layer.s for layer in layers]), torch.repeat_interleave(torch.tensor(self.terms))
        there = [layer for layer in layers if len(layer.s)]
        sides_of = [layer.u for layer in there], [layer.v for layer in there]
        self.sides = [(*_samples(each, SIDE_TRIED), _lengths(each)) for each in sides_of]

    def at(self, step: float) -> _Guess:
        """What this step comes to."""
        y = self.entries / step
        levels = _levels(y)
        bits = _bits(levels, self.size / self.times) * self.times + BESIDE
        error = (y - levels).square_().sum(1) * self.times
        scale, gained = (self.s / step).round().clamp(1, FINEST), (self.s / step).square()
        cost = torch.full_like(self.s, BESIDE)
        for sample, times, n in self.sides:
            rounded = _levels(sample * scale[:, None])
            share = torch.linalg.vecdot(rounded, sample).square() / rounded.square().sum(1).clamp_min(1)
            gained = gained * (share * times).clamp_max(1)
            cost = cost + _bits(rounded, n / times) * times
        return _Guess(self.energy / step**2, bits, error, cost, gained)

    def best(self, guess: _Guess) -> _Ways:
        """Of each layer what is least error for its bits."""
        worth = guess.gained > SLOPE * guess.cost
        saved = self.over_layers((guess.gained - SLOPE * guess.cost) * worth)
        modes = torch.stack([guess.nothing, guess.error + SLOPE * guess.bits, guess.nothing - saved])
        modes[2][saved == 0] = math.inf
        return _Ways(modes.argmin(0), worth)

    def over_layers(self, x: Float[Tensor, " terms"]) -> Float[Tensor, " layers"]:
        """The sum of each layer's terms."""
        return torch.zeros_like(self.size).index_add_(0, self.owner, x)

    def off(self, step: float, guess: _Guess, ways: _Ways, bits: float, error: float | None) -> float:
        """Of the bits how many times too many, or of the error how many times too little; as a logarithm."""
        entries, terms = ways.modes == 1, (ways.modes == 2)[self.owner] & ways.worth
        if error is None:
            found = len(self.size) + float((guess.bits * entries).sum() + (guess.cost * terms).sum())
            return math.log(found / bits)
        left = (guess.nothing - self.over_layers(guess.gained * terms)).clamp_min(0)
        left = torch.where(entries, guess.error, left)
        return math.log(error / max(float(left.sum()) * step**2, 1e-300))

    def solved(self, step: float, bits: float, error: float | None) -> tuple[float, _Ways, float]:
        """About the step with so many bits, or with so much error; how layers are coded; the power that these go by.

        Where a layer, or a term, comes in with a finer step, bits may jump beyond what is allowed. Then it is left out.
        """
        fine, coarse, slope = 0.0, math.inf, 0.9
        last: tuple[float, float] | None = None
        ways = coarser = _Ways(torch.zeros(0), torch.zeros(0))
        for _ in range(TRIES):
            guess = self.at(step)
            ways = self.best(guess)
            off = self.off(step, guess, ways, bits, error)
            if last is not None and last[0] != step:
                slope = min(3.0, max(0.3, (last[1] - off) / math.log(step / last[0])))
            last = step, off
            if abs(off) < 0.03:
                return step, ways, slope
            if off > 0:
                fine = max(fine, step)
            elif step < coarse:
                coarse, coarser = step, ways
            if coarse < 1.03 * fine or (step <= 1 / FINEST and off < 0):
                return coarse, coarser, 1.0
            step = max(step * math.exp(max(-3.0, min(3.0, off / slope))), 1 / FINEST)
            if not fine < step < coarse:
                step = between(fine, coarse)
        return step, ways, slope

    def each(self, ways: _Ways) -> list[tuple[int, Tensor]]:
        """Of each layer its way, and which of its terms are sent."""
        worth = torch.split(ways.worth, self.terms)
        return [(mode, own.nonzero().view(-1)) for mode, own in zip(ways.modes.tolist(), worth, strict=True)]

    def extended(self, ways: _Ways, layers: list[_Layer]) -> bool:
        """Whether some layers were decomposed further: those of which the last term is sent."""
        more = [
            layer
            for layer, (mode, terms) in zip(layers, self.each(ways), strict=True)
            if not layer.done and mode == 2 and len(terms) and int(terms[-1]) == len(layer.s) - 1
        ]
        for layer in more:
            layer.decompose(BLOCK)
        return bool(more)


def _samples(rows: list[Tensor], most: int) -> tuple[Float[Tensor, "rows some"], Float[Tensor, " rows"]]:
    """Some entries of each row of matrices of several widths, zeros behind them, and for how many each stands."""
    strides = [max(1, -(-each.shape[1] // most)) for each in rows]
    some = [each[:, ::stride] for each, stride in zip(rows, strides, strict=True)]
    wide = max((each.shape[1] for each in some), default=0)
    times = [
        torch.full((len(each),), max(1, each.shape[1]) / max(1, part.shape[1]))
        for each, part in zip(rows, some, strict=True)
    ]
    padded = [torch.nn.functional.pad(part, (0, wide - part.shape[1])) for part in some]
    return torch.cat(padded) if rows else torch.zeros(0, 0), torch.cat(times) if rows else torch.zeros(0)


def _lengths(rows: list[Tensor]) -> Float[Tensor, " rows"]:
    """The length of each row of matrices of several widths."""
    return torch.cat([torch.full((len(each),), float(each.shape[1])) for each in rows]) if rows else torch.zeros(0)


def most_terms(shape: Size) -> int:
    """The most terms a layer is sent as: half as many numbers as it has entries; 0 of a layer of one dimension."""
    if len(shape) < 2:
        return 0
    m, n = sides(shape)
    return m * n // (2 * (m + n)) if m > 1 and n > 1 else 0


def _levels(x: Tensor) -> Tensor:
    """The nearest whole numbers; zero where that is not worth the bits."""
    return torch.where(x.abs() < DEAD, 0.0, x.round().clamp_(-FINEST, FINEST))


def _bits(levels: Float[Tensor, "rows n"], n: Float[Tensor, " rows"] | int) -> Float[Tensor, " rows"]:
    """About how many bits each row of ``n`` numbers takes, by how many are not zero and how long these are."""
    sizes = levels.abs()
    some = sizes.count_nonzero(1).float()
    chance = (some / (n + 1e-9)).clamp(1e-6, 1 - 1e-6)
    flags = -(chance * chance.log2() + (1 - chance) * (1 - chance).log2())
    return n * flags + 1.5 * some + 1.4 * sizes.clamp_min_(1).log2_().sum(1)


def _written(step: float, parts: list[Part], shapes: Sequence[Size], room: int) -> UInt8[Tensor, " bytes"] | None:
    """Step and layers as bytes; None where they are more than ``room``."""
    writer = Writer(CONTEXTS, room - 4)
    kinds = [_kind(part.left) for part in parts if part.mode == 1]
    _put(writer, [part.mode for part in parts], MODE, negative=False)
    _put(writer, kinds, CLASS, negative=False)
    _put(writer, [each for part in parts if part.levels for each in (part.levels[0], *_steps(part.levels))], LEVELS)
    _put(writer, [each for part in parts for each in part.gains], GAIN)
    queue = iter(kinds)
    for part, shape in zip(parts, shapes, strict=True):
        if part.mode == 1:
            entries = part.left.view(-1)
            writer.put(entries, torch.full(entries.shape, ENTRIES + next(queue), dtype=torch.uint8), row_of(shape))
        elif part.mode:
            for side in (part.left, part.right):
                writer.put(side.reshape(-1), _about(part.levels, side.shape[1]), side.shape[1])
    coded = writer.bytes()
    if coded is None:
        return None
    return torch.cat([torch.frombuffer(bytearray(struct.pack("<f", step)), dtype=torch.uint8), coded])


def _steps(levels: list[int]) -> list[int]:
    return [b - a for a, b in pairwise(levels)]


def _put(writer: Writer, values: list[int], context: int, negative: bool = True) -> None:
    numbers = torch.tensor(values, dtype=torch.int32)
    writer.put(numbers, torch.full_like(numbers, context, dtype=torch.uint8), 0, negative)


def _get(reader: Reader, n: int, context: int, negative: bool = True) -> list[int]:
    found: list[int] = reader.get(n, torch.full((n,), context, dtype=torch.uint8), 0, negative).tolist()
    return found


def row_of(shape: Size) -> int:
    """How far apart two entries are that have the same place in two rows."""
    return sides(shape)[1] if len(shape) > 1 else 0


def _kind(entries: Int32[Tensor, "1 n"]) -> int:
    """How large a layer's entries are: :func:`_octave` of the sum of their squares."""
    return _octave(int(entries.long().square().sum()), entries.numel())


def _octave(squares: int, n: int) -> int:
    """How large numbers are whose squares have this sum, in half octaves from a quarter on: 0 to 31."""
    return min(31, (16 * squares // max(n, 1)).bit_length())


def _about(levels: list[int], n: int) -> UInt8[Tensor, " entries"]:
    """The contexts of terms with ``n`` entries each."""
    return torch.tensor([TERMS + _octave(each * each, n) for each in levels], dtype=torch.uint8).repeat_interleave(n)


def _seen(packet: UInt8[Tensor, " bytes"], layout: Layout) -> Params:
    """What the bytes stand for. Raises ``WireError`` for bytes that no sender makes."""
    if packet.numel() == 0:
        return layout.zeros()
    check(packet.numel() >= 4, "a step")
    (step,) = struct.unpack("<f", packet[:4].numpy().tobytes())
    check(math.isfinite(step) and step > 0, "a step above zero")
    reader = Reader(packet[4:], CONTEXTS)
    parts = _read(reader, layout.shapes)
    reader.end()
    return _joined(layout, parts, step)


def _read(reader: Reader, shapes: Sequence[Size]) -> list[Part]:
    """Layers as they were coded. Raises ``WireError``."""
    modes = _get(reader, len(shapes), MODE, negative=False)
    ranks = [max(0, mode - 1) for mode in modes]
    check(all(rank <= most_terms(shape) for rank, shape in zip(ranks, shapes, strict=True)), "fewer terms")
    kinds = _get(reader, modes.count(1), CLASS, negative=False)
    check(all(kind < 32 for kind in kinds), "sizes of entries")
    levels = _get(reader, sum(ranks), LEVELS)
    gains = _get(reader, sum(ranks) + modes.count(1), GAIN)
    parts = []
    for mode, rank, shape in zip(modes, ranks, shapes, strict=True):
        if mode == 0:
            parts.append(NOTHING)
        elif mode == 1:
            n, kind, own = shape.numel(), kinds.pop(0), [gains.pop(0)]
            check(abs(own[0]) <= GAINS // 2, "scales of entries")
            entries = reader.get(n, torch.full((n,), ENTRIES + kind, dtype=torch.uint8), row_of(shape))
            parts.append(Part(1, [], own, entries.view(1, n), NONE))
        else:
            (m, n), each, own = sides(shape), list(accumulate(levels[:rank])), gains[:rank]
            levels, gains = levels[rank:], gains[rank:]
            check(all(1 <= x <= FINEST for x in each), "levels of terms")
            check(all(abs(g) <= x for g, x in zip(own, each, strict=True)), "scales of terms")
            left = reader.get(rank * m, _about(each, m), m).view(rank, m)
            parts.append(Part(mode, each, own, left, reader.get(rank * n, _about(each, n), n).view(rank, n)))
    return parts


def _built(part: Part, step: float, shape: Size) -> Tensor:
    """A layer of its parts. Scales are computed in 64 bits, each operation rounded, then in 32 bits: the same bits
    wherever it is done.
    """
    if part.mode == 0:
        return torch.zeros(shape)
    if part.mode == 1:
        return (part.left.to(torch.float32) * float(np.float32(step * (GAINS + part.gains[0]) / GAINS))).view(shape)
    scales = [step * (each + g) / (each * each) for each, g in zip(part.levels, part.gains, strict=True)]
    left = part.left.to(torch.float32) * torch.tensor(scales, dtype=torch.float64).to(torch.float32)[:, None]
    return outer_sum(left, part.right.to(torch.float32)).view(shape)
