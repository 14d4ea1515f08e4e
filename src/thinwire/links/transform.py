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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int32, UInt8
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
FINEST = 1 << 20  # levels to a unit vector, at most
NARROW = 64  # the shorter side of a layer that is decomposed whole
BLOCK = 16  # terms by which a larger one is decomposed further
SAMPLE = 8192  # entries by which the cost of a layer's own entries is judged
GAINS = 64  # parts in which the scale of a layer's own entries is corrected
TRIES = 12
AROUND = 8  # bytes of a packet beside those of a step and the levels
CLOSE = 0.985  # of the bytes allowed, which end the search
FILLED = 0.9  # of them, below which layers are tried in other ways

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
    error: float  # squared, that it leaves; in squared steps
    bits: float  # about


NONE = torch.zeros(0, 0, dtype=torch.int32)


def _searched(
    x: Params, largest: float, most: int | None, share: float | None, key: Key
) -> tuple[Tensor, Params] | None:
    """The bytes with the smallest step that fits ``most`` bytes, or the largest that keeps ``share``, and what is seen
    of them. None: not even one entry fits.
    """
    layers = [_Layer(tensor / largest, key.at(name)) for name, tensor in x.items()]
    whole = sum(layer.energy for layer in layers)
    room = 5 * x.layout.size + 64 if most is None else most - AROUND

    kinds: dict[float, list[int]] = {}  # of each layer, with each step

    def tried(step: float, kept: Sequence[int | None] | None = None) -> tuple[Tensor | None, float]:
        """The bytes with a step, None where they are far too many; how many times too much they take, or leave.

        With ``kept`` a layer is coded as what it says: 1 is its entries, 2 terms.
        """
        parts = [layer.part(step, kind) for layer, kind in zip(layers, kept or [None] * len(layers), strict=True)]
        kinds[step] = [min(part.mode, 2) for part in parts]
        packet = _written(float(np.float32(step * largest)), parts, layers, 3 * room + 64)
        if share is not None:
            return packet, (1 - share) * whole / max(sum(part.error for part in parts) * step * step, 1e-9 * whole)
        return packet, (3 * room if packet is None else packet.numel()) / room

    def missed(packet: Tensor) -> tuple[float, Params]:
        seen = _seen(packet, x.layout)
        return float(torch.linalg.vector_norm((x - seen).flat, dtype=torch.float64)) ** 2, seen

    found = _narrowed(math.sqrt(whole / (8 * (most or x.layout.size))), tried, share is not None)
    best: tuple[Tensor, Params] | None = None
    left = x.norm() ** 2 - largest**2  # of the squared length, if the largest entry is sent alone
    if share is not None:
        left = min(left, (1 - share) * x.norm() ** 2)
    while found is not None:
        error, seen = missed(found[0])
        if error <= left:
            best, left = (found[0], seen), error
        elif share is not None:  # the error was known but for what terms have in common
            found = _narrowed(found[1] * 0.99, tried, True)
            continue
        if share is not None or found[0].numel() > FILLED * room or len(kinds) > 2 * TRIES:
            break
        # With a smaller step a layer is coded in another way, in far more bytes. That way with a larger step may do.
        kept = kinds[max((step for step in kinds if step < found[1]), default=found[1])]
        found = _narrowed(found[1] * 1.5, partial(tried, kept=kept), False)
    if best is not None:
        return best
    alone = _single(x, layers, room)
    return None if alone is None else (alone, _seen(alone, x.layout))


def _narrowed(
    step: float, tried: Callable[[float], tuple[Tensor | None, float]], rising: bool
) -> tuple[Tensor, float] | None:
    """The bytes that come nearest to what is allowed, and their step. None: there are none.

    ``tried`` says how many times of what is allowed a step takes, which falls with the step; with ``rising`` it says
    the inverse of an error, of which at least 1 is wanted, in as few bytes as that takes.
    """
    best: tuple[Tensor, float] | None = None
    fine, coarse = 0.0, math.inf  # the largest step known to take too much, the smallest known to do
    last: tuple[float, float] | None = None
    slope = 0.9
    for _ in range(TRIES):
        packet, share = tried(step)
        fits = packet is not None and (share >= 1 if rising else share <= 1)
        if packet is not None and fits and (best is None or (step > best[1]) == rising):
            best = packet, step
        if share > 1:
            fine = max(fine, step)
        else:
            coarse = min(coarse, step)
        if (
            (CLOSE <= share <= 1 and not rising)
            or (1 <= share <= 2 - CLOSE and rising)
            or coarse / max(fine, 1e-300) < 1.001
        ):
            break
        at = math.log(step), math.log(max(share, 1e-6))
        if last is not None and abs(at[0] - last[0]) > 1e-6:
            slope = min(3.0, max(0.3, (last[1] - at[1]) / (at[0] - last[0])))
        last = at
        aim = math.log(1.004 if rising else 0.993)
        step = math.exp(at[0] + max(-4.0, min(4.0, (at[1] - aim) / slope)))
        if not fine * 1.0003 < step < coarse * 0.9997:
            step = math.sqrt(fine * coarse)
        if step < 1 / FINEST:
            if coarse <= 1 / FINEST:
                break
            step = 1 / FINEST
    return best


def _single(x: Params, layers: list[_Layer], room: int) -> Tensor | None:
    """The largest entry alone; None where it does not fit."""
    at = int(x.flat.abs().argmax())
    parts = []
    for start, size, _ in x.layout.spans.values():
        entries = torch.zeros(1, size, dtype=torch.int32)
        if start <= at < start + size:
            entries[0, at - start] = 1 if float(x.flat[at]) > 0 else -1
            parts.append(Part(1, [], [0], entries, NONE, 0.0, 0.0))
        else:
            parts.append(Part(0, [], [], NONE, NONE, 0.0, 0.0))
    return _written(float(x.flat.abs().max()), parts, layers, room)


class _Layer:
    """A layer and as many terms of its decomposition as were asked for."""

    def __init__(self, x: Tensor, key: Key) -> None:
        self.x, self.key, self.shape = x, key, x.shape
        self.flat = x.reshape(-1)
        self.energy = float(torch.linalg.vector_norm(self.flat, dtype=torch.float64)) ** 2
        self.most = most_terms(x.shape)
        # An orthonormal basis of columns, and the layer in it.
        self.q: Tensor | None = None
        self.b: Tensor | None = None
        self.u, self.s, self.v = torch.zeros(0, 0), torch.zeros(0), torch.zeros(0, 0)  # terms are rows
        self.done = self.most == 0 or self.energy == 0
        self.sample = self.flat[:: max(1, self.flat.numel() // SAMPLE)]

    def part(self, step: float, kept: int | None = None) -> Part:
        """The layer with this step, whichever way has least error and bits together; with ``kept`` as it says."""
        n = self.flat.numel()
        whole = self.energy / step**2
        nothing = Part(0, [], [], NONE, NONE, whole, 0.0)
        if not self.energy:
            return nothing
        if kept == 1:
            return self._entries(step, nothing)
        terms = self._terms(step)
        if kept == 2 and terms is not None:
            return terms
        if n > SAMPLE:
            rough = self._rough(step)
            if terms is not None and terms.error + SLOPE * terms.bits <= min(rough, whole):
                return terms
            if rough > 1.2 * whole:
                return nothing
        entries = self._entries(step, nothing)
        worse = terms is None or entries.error + SLOPE * entries.bits < terms.error + SLOPE * terms.bits
        return entries if worse or terms is None else terms

    def _rough(self, step: float) -> float:
        """What the layer's own entries take, error and bits together, in squared steps; judged by some of them."""
        y, times = self.sample / step, self.flat.numel() / len(self.sample)
        levels = _levels(y)
        return times * (float((y - levels).square().sum()) + SLOPE * float(_bits(levels[None])))

    def _entries(self, step: float, nothing: Part) -> Part:
        y = self.flat / step
        levels = _levels(y)
        squares = float(levels.square().sum(dtype=torch.float64))
        if not squares:
            return nothing
        gain = max(
            -GAINS // 2, min(GAINS // 2, round(GAINS * (float((levels * y).sum(dtype=torch.float64)) / squares - 1)))
        )
        error = float((y - levels * (1 + gain / GAINS)).square().sum(dtype=torch.float64))
        bits = float(_bits(levels[None])) + 12
        if error + SLOPE * bits > nothing.error:
            return nothing
        return Part(1, [], [gain], levels.to(torch.int32)[None], NONE, error, bits)

    def _terms(self, step: float) -> Part | None:
        """The layer as those terms that are worth their bits."""
        self._decompose(step)
        if not len(self.s):
            return None
        levels = (self.s / step).round().clamp(1, FINEST)  # to a unit vector
        left, right = _levels(self.u * levels[:, None]), _levels(self.v * levels[:, None])
        squares = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)
        along = torch.linalg.vecdot(left, self.u) * torch.linalg.vecdot(right, self.v)  # of a unit term
        gained = (self.s / step * along / squares.clamp_min(1)) ** 2
        bits = _bits(left) + _bits(right) + 12
        kept = (gained > SLOPE * bits).nonzero().view(-1)
        if not len(kept):
            return None
        left, right, levels = left[kept], right[kept], levels[kept]
        # The scales that leave least error, given all terms: (left leftT * right rightT) c = left x right.
        a, b = left.double(), right.double()
        gram = (a @ a.T) * (b @ b.T)
        along = ((a @ self.u.double().T) * (self.s.double() / step) * (b @ self.v.double().T)).sum(1)
        scales = torch.linalg.solve(gram + 1e-9 * torch.eye(len(kept)) * gram.diagonal(), along)
        gains = ((scales * levels - 1) * levels).round()
        gains = torch.minimum(torch.maximum(gains, -levels), levels)
        scales = (levels + gains) / levels**2
        error = self.energy / step**2 - float(2 * scales @ along - scales @ gram @ scales)
        own = [int(value) for value in levels.tolist()], [int(value) for value in gains.tolist()]
        integers = left.to(torch.int32), right.to(torch.int32)
        return Part(1 + len(kept), *own, *integers, max(error, 0.0), float(bits[kept].sum()))

    def _decompose(self, step: float) -> None:
        """So many terms that the last is too short to be worth its bits, or all that may be sent."""
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
        while not self.done and (not len(self.s) or float(self.s[-1]) > 0.3 * step * math.sqrt(min(m, n))):
            self._extend(x)

    def _extend(self, x: Float[Tensor, "m n"]) -> None:
        """Some more terms: Halko, Martinsson, Tropp, SIAM Review 2011, Algorithm 4.4 with one power iteration."""
        found = 0 if self.q is None else self.q.shape[1]
        more = min(max(BLOCK, found), self.most - found)
        y = x @ torch.randn(x.shape[1], more, generator=self.key.generator(f"sketch{found}"))
        for last in (False, True):
            if self.q is not None:
                y = y - self.q @ (self.q.T @ y)
            y = torch.linalg.qr(y).Q
            if not last:
                y = x @ (x.T @ y)
        if self.q is not None:
            y = torch.linalg.qr(y - self.q @ (self.q.T @ y)).Q
        self.q = y if self.q is None else torch.cat([self.q, y], 1)
        self.b = y.T @ x if self.b is None else torch.cat([self.b, y.T @ x])
        values, vectors = torch.linalg.eigh(self.b.double() @ self.b.double().T)
        s, vectors = values.flip(0).clamp_min(0).sqrt().float(), vectors.flip(1).float()
        self.u, self.s = (self.q @ vectors).T, s
        self.v = (vectors.T @ self.b) / s.clamp_min(1e-30)[:, None]
        self.done = self.q.shape[1] >= self.most


def most_terms(shape: Size) -> int:
    """The most terms a layer is sent as: half as many numbers as it has entries; 0 of a layer of one dimension."""
    if len(shape) < 2:
        return 0
    m, n = sides(shape)
    return m * n // (2 * (m + n)) if m > 1 and n > 1 else 0


def _levels(x: Tensor) -> Tensor:
    """The nearest whole numbers; zero where that is not worth the bits."""
    return torch.where(x.abs() < DEAD, 0.0, x.round().clamp(-FINEST, FINEST))


def _bits(levels: Float[Tensor, "rows n"]) -> Float[Tensor, " rows"]:
    """About how many bits each row takes, by how many of its numbers are zero and how long the others are."""
    n, sizes = levels.shape[1], levels.abs()
    some = sizes.count_nonzero(1).double()
    chance = (some / max(1, n)).clamp(1e-9, 1 - 1e-9)
    flags = -(chance * chance.log2() + (1 - chance) * (1 - chance).log2())
    return (n * flags + 1.5 * some).float() + 1.4 * sizes.clamp_min_(1).log2_().sum(1)


def _written(step: float, parts: list[Part], layers: list[_Layer], room: int) -> UInt8[Tensor, " bytes"] | None:
    """Step and layers as bytes; None where they are more than ``room``."""
    writer = Writer(CONTEXTS, room - 4)
    for part, layer in zip(parts, layers, strict=True):
        _put(writer, [part.mode], MODE)
        if part.mode == 1:
            kind = _kind(int(part.left.long().square().sum()), part.left.numel())
            _put(writer, [kind], CLASS)
            _put(writer, part.gains, GAIN, negative=True)
            entries = part.left.view(-1)
            writer.put(entries, torch.full_like(entries, ENTRIES + kind, dtype=torch.uint8), row_of(layer.shape))
        elif part.mode:
            first = [part.levels[0], *(b - a for a, b in pairwise(part.levels))]
            _put(writer, first, LEVELS, negative=True)
            _put(writer, part.gains, GAIN, negative=True)
            for side in (part.left, part.right):
                writer.put(side.reshape(-1), _about(part.levels, side.shape[1]), side.shape[1])
    coded = writer.bytes()
    if coded is None:
        return None
    return torch.cat([torch.frombuffer(bytearray(struct.pack("<f", step)), dtype=torch.uint8), coded])


def _put(writer: Writer, values: list[int], context: int, negative: bool = False) -> None:
    numbers = torch.tensor(values, dtype=torch.int32)
    writer.put(numbers, torch.full_like(numbers, context, dtype=torch.uint8), 0, negative)


def _get(reader: Reader, n: int, context: int, negative: bool = False) -> list[int]:
    found: list[int] = reader.get(n, torch.full((n,), context, dtype=torch.uint8), 0, negative).tolist()
    return found


def row_of(shape: Size) -> int:
    """How far apart two entries are that have the same place in two rows."""
    return sides(shape)[1] if len(shape) > 1 else 0


def _kind(squares: int, n: int) -> int:
    """How large numbers are whose squares have this sum, in half octaves from a quarter on: 0 to 31."""
    return min(31, (16 * squares // max(n, 1)).bit_length())


def _about(levels: list[int], n: int) -> UInt8[Tensor, " entries"]:
    """The contexts of terms with ``n`` entries each."""
    return torch.tensor([TERMS + _kind(each * each, n) for each in levels], dtype=torch.uint8).repeat_interleave(n)


def _seen(packet: UInt8[Tensor, " bytes"], layout: Layout) -> Params:
    """What the bytes stand for. Raises ``WireError`` for bytes that no sender makes."""
    if packet.numel() == 0:
        return layout.zeros()
    check(packet.numel() >= 4, "a step")
    (step,) = struct.unpack("<f", packet[:4].numpy().tobytes())
    check(math.isfinite(step) and step > 0, "a step above zero")
    reader = Reader(packet[4:], CONTEXTS)
    seen = join(layout, _layers(reader, layout, step))
    reader.end()
    return seen


def _layers(reader: Reader, layout: Layout, step: float) -> Iterator[Tensor]:
    """The layers, one after the other. Scales are computed in 64 bits, each operation rounded, then in 32 bits."""
    for shape in layout.shapes:
        (mode,) = _get(reader, 1, MODE)
        if mode == 0:
            yield torch.zeros(shape)
        elif mode == 1:
            n = shape.numel()
            (kind,), (gain,) = _get(reader, 1, CLASS), _get(reader, 1, GAIN, negative=True)
            check(kind < 32 and abs(gain) <= GAINS // 2, "entries")
            levels = reader.get(n, torch.full((n,), ENTRIES + kind, dtype=torch.uint8), row_of(shape))
            yield (levels.to(torch.float32) * float(np.float32(step * (GAINS + gain) / GAINS))).view(shape)
        else:
            rank = mode - 1
            check(rank <= most_terms(shape), "fewer terms")
            m, n = sides(shape)
            levels_of = list(np.cumsum(_get(reader, rank, LEVELS, negative=True), dtype=np.int64).tolist())
            gains = _get(reader, rank, GAIN, negative=True)
            check(all(1 <= each <= FINEST for each in levels_of), "levels of terms")
            check(all(abs(g) <= each for g, each in zip(gains, levels_of, strict=True)), "scales of terms")
            left = reader.get(rank * m, _about(levels_of, m), m).view(rank, m).to(torch.float32)
            right = reader.get(rank * n, _about(levels_of, n), n).view(rank, n).to(torch.float32)
            scales = [step * (each + g) / (each * each) for each, g in zip(levels_of, gains, strict=True)]
            yield outer_sum(left * torch.tensor(scales, dtype=torch.float64).to(torch.float32)[:, None], right).view(
                shape
            )
