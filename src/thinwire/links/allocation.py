"""Transform coding, its bit allocation: one step for all numbers, and of each layer what is least error for its bits.

A step is tried on some of the numbers of each layer, with an estimate of their bits, until it about fits. Then all is
coded a few times. The choices are those of rate and distortion together: Shoham, Gersho, IEEE Trans. ASSP, 1988.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from ..kernels.rounding import round_rows
from ..key import Key
from ..params import Layout, Params
from .bitstream import FINEST, NONE, NOTHING, CodedLayer, build, join_parts, most_terms, read, write
from .decomposition import BLOCK, DEAD, Encoder, Layer, round_levels
from .lowrank import sides

SLOPE = 0.11  # squared steps of error that a bit has to take off; 2 ln 2 / 12 = 0.116 for many levels
BESIDE = 12  # bits of a layer, or of a term, beside its numbers, about
COARSEST = float(1 << 20)  # step, in which the largest entry is 1
LARGEST = 3e38  # step that is sent
ENTRIES_TRIED, SIDE_TRIED = 1 << 13, 64  # numbers of all layers, and of one side of a term, that steps are tried on
TRIES = 24  # steps that are tried on these, at most
AGAIN = 8  # times that terms are chosen anew, at most, where those that were chosen cannot do
CODED = 6  # steps with which all is coded, at most, or twice as many where the best leaves much of the room
AROUND = 8  # bytes of a packet beside those of a step and the levels
SPREAD = 4  # bytes by which packets of a single entry differ beside those that its place takes
CLOSE = 0.985  # of the bytes allowed, which end the search
LITTLE = 0.7  # of the bytes allowed; with less, as many steps are tried again,
LEFT = 64  # but not for so few bytes
FILLED = 0.9  # of the bytes allowed; with less, layers are coded as they would be with a finer step, too


def search(x: Params, largest: float, most: int | None, share: float | None, key: Key) -> tuple[Tensor, Params] | None:
    """The bytes with about the smallest step that fits ``most`` bytes, or the largest that keeps ``share``, and what is
    seen of them. None: not even one entry fits.
    """
    layers = [Layer(tensor / largest, key.at(name)) for name, tensor in x.items()]
    whole = sum(layer.energy for layer in layers)
    room = 5 * x.layout.size + 64 if most is None else most - AROUND
    if room < 1:
        return None
    for layer in layers:
        if not layer.done:
            layer.decompose(BLOCK if most is None else math.ceil(most * 8 / (2 * sum(sides(layer.shape)))))
    bits, error = 8.0 * room, None if share is None else (1 - share) * whole
    enough = whole - 1  # of error: so much is left if the largest entry is sent alone
    enough = enough if error is None else min(enough, error)
    trial, step = Trial(layers), math.sqrt(whole / (2 * (most or x.layout.size)))
    best: tuple[Tensor, list[CodedLayer], float] | None = None
    for _ in range(AGAIN if enough > 0 else 0):
        step, ways, finer, slope = trial.solve(step, bits, error)
        while trial.extends(ways, layers):
            trial = Trial(layers)
            step, ways, finer, slope = trial.solve(step, bits, error)
        limits = largest, room, None if error is None else enough
        best = fit(x.layout, layers, trial.each(ways), step, slope, *limits)
        if best is not None:
            if error is None and finer is not None and best[0].numel() < FILLED * room:
                other = fit(x.layout, layers, trial.each(finer), step, slope, *limits)
                both = [each for each in (best, other) if each is not None]
                best = min(both, key=lambda each: error_of(each[1], each[2], layers, largest))
            break
        bits, error = bits * 0.7, None if error is None else error * 0.9  # these terms cannot do
    if best is not None:
        packet, parts, sent = best
        seen = join_parts(x.layout, parts, sent)
        off = (x.flat - seen.flat).div_(largest)
        if error is not None or float(torch.dot(off, off)) <= enough:
            return packet, seen
    alone = single(x, room)
    return None if alone is None or enough < whole - 1 else (alone, read(alone, x.layout))


def fit(
    layout: Layout,
    layers: list[Layer],
    ways: list[tuple[int, Tensor]],
    step: float,
    slope: float,
    largest: float,
    room: int,
    enough: float | None,
) -> tuple[Tensor, list[CodedLayer], float] | None:
    """Layers coded in these ways with the step that fills ``room``, or leaves no more error than ``enough``.

    None: no step that was tried does. ``slope`` is the power of the step that bytes, or errors, go by about.
    """
    fine, coarse = 0.0, math.inf  # the coarsest step that is too fine, the finest that is coarse enough
    last: tuple[float, float] | None = None
    best: tuple[Tensor, list[CodedLayer], float] | None = None
    encoder = Encoder(layers, ways)
    for tried in range(2 * CODED):
        if tried >= CODED and (enough is not None or best is None or best[0].numel() + LEFT >= LITTLE * room):
            break
        step = max(step, finest(layers))
        if step > COARSEST or step * largest > LARGEST or (last is not None and step == last[0]):
            break
        sent = float(np.float32(step * largest))
        if sent == 0:
            break
        parts = encoder.encode(step)
        packet = write(sent, parts, layout.shapes, 2 * room + 64)
        if enough is None:  # of the bytes, how many times too many
            off = 2.0 if packet is None else packet.numel() / room
            fits, better = off <= 1, best is None or (packet is not None and packet.numel() > best[0].numel())
        else:  # of the error, how many times too little
            off = enough / max(error_of(parts, step * largest, layers, largest), 1e-30)
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


def finest(layers: list[Layer]) -> float:
    """The finest step of which no entry and no singular value is more than ``FINEST``. Entries are at most 1."""
    return max([1.0, *(float(layer.s[0]) for layer in layers if len(layer.s))]) / FINEST


def between(fine: float, coarse: float) -> float:
    """A step between two, of which the first may be 0 and the second infinite."""
    return math.sqrt(max(fine, coarse / 16 if coarse < math.inf else 0) * min(coarse, 16 * fine if fine else coarse))


def error_of(parts: list[CodedLayer], sent: float, layers: list[Layer], largest: float) -> float:
    """The squared error that is left with the step that is sent."""
    total = 0.0
    for part, layer in zip(parts, layers, strict=True):
        if part.mode:
            off = layer.x - build(part, sent / largest, layer.shape)
            total += float(torch.dot(off.view(-1), off.view(-1)))
        else:
            total += layer.energy
    return total


def single(x: Params, room: int) -> Tensor | None:
    """The largest entry alone, among its layer's entries or, if these are too many, as a term; None: no room."""
    at = int(x.flat.abs().argmax())
    plain = _alone(x, at, False, room)
    return _alone(x, at, True, room) if plain is None else plain


def least(layout: Layout) -> int:
    """Bytes that hold a single entry of these layers, whichever it is: the last one of the longest layer takes most."""
    x = Layout(layout.names, layout.shapes).zeros()
    places = zip(layout.shapes, x.layout.spans.values(), strict=True)
    _, last = max((sum(sides(s)) if most_terms(s) else size, start + size - 1) for s, (start, size, _) in places)
    x.flat[last] = 1.0
    ways = (_alone(x, last, term, 5 * layout.size + 64) for term in (False, True))
    return AROUND + SPREAD + min(coded.numel() for coded in ways if coded is not None)


def _alone(x: Params, at: int, term: bool, room: int) -> Tensor | None:
    """The entry at one place, among its layer's entries or as a term; None: no room, or a layer without terms."""
    parts, sign = [], 1 if float(x.flat[at]) > 0 else -1
    for shape, (start, size, _) in zip(x.layout.shapes, x.layout.spans.values(), strict=True):
        if not start <= at < start + size:
            parts.append(NOTHING)
        elif not term:
            parts.append(CodedLayer(1, [], [0], _one(size, at - start, sign), NONE))
        elif most_terms(shape):
            m, n = sides(shape)
            row, column = divmod(at - start, n)
            parts.append(CodedLayer(2, [1], [0], _one(m, row, sign), _one(n, column, 1)))
        else:
            return None
    return write(float(x.flat[at].abs()), parts, x.layout.shapes, room)


def _one(n: int, at: int, value: int) -> Int32[Tensor, "1 n"]:
    """Zeros, and one entry that is none."""
    made = torch.zeros(1, n, dtype=torch.int32, device="cpu")
    made[0, at] = value
    return made


class Ways(NamedTuple):
    """How layers are coded."""

    modes: Int[Tensor, " layers"]  # as nothing, as entries or as terms
    worth: Bool[Tensor, " terms"]  # which terms


class Guess(NamedTuple):
    """What a step comes to, about."""

    nothing: Float[Tensor, " layers"]  # the squared error of a layer that is left out, in squared steps
    bits: Float[Tensor, " layers"]  # of layers as entries
    error: Float[Tensor, " layers"]
    cost: Float[Tensor, " terms"]  # bits of terms
    gained: Float[Tensor, " terms"]  # what they take off the error


class Trial:
    """Layers as some of their numbers, all in a few tensors, on which a step is tried in half a millisecond."""

    def __init__(self, layers: list[Layer]) -> None:
        many = max(128, ENTRIES_TRIED // max(1, len(layers)))
        self.finest = finest(layers)
        self.size = torch.tensor([float(layer.flat.numel()) for layer in layers], dtype=torch.float32, device="cpu")
        self.energy = torch.tensor([layer.energy for layer in layers], dtype=torch.float32, device="cpu")
        self.entries, self.times = _samples([layer.flat[None] for layer in layers], many)
        self.terms = [len(layer.s) for layer in layers]
        self.s, self.owner = (
            torch.cat([layer.s for layer in layers]),
            torch.repeat_interleave(torch.tensor(self.terms, device="cpu")),
        )
        there = [layer for layer in layers if len(layer.s)]
        sides_of = [layer.u for layer in there], [layer.v for layer in there]
        samples = [(*_samples(each, SIDE_TRIED), _lengths(each)) for each in sides_of]
        self.sides = [(sample, *rest, sample.square().sum(1).clamp_min(1e-30)) for sample, *rest in samples]

    def at(self, step: float) -> Guess:
        """What this step comes to."""
        y = self.entries / step
        levels = round_levels(y)
        bits = _bits(levels, self.size / self.times) * self.times + BESIDE
        nothing = self.energy / step**2
        gained = (levels * (2 * y - levels)).sum(1) / y.square().sum(1).clamp_min(1e-30)
        error = nothing * (1 - gained)
        scale, gained = (self.s / step).round().clamp(1, FINEST), (self.s / step).square()
        cost = torch.full_like(self.s, BESIDE)
        for sample, times, n, square in self.sides:
            rounded, _ = round_rows(sample, scale, DEAD, FINEST)
            squares = rounded.square().sum(1).clamp_min(1) * square
            gained = gained * torch.linalg.vecdot(rounded, sample).square() / squares
            cost = cost + _bits(rounded, n / times) * times
        return Guess(nothing, bits, error, cost, gained)

    def best(self, guess: Guess) -> Ways:
        """Of each layer what is least error for its bits."""
        worth = guess.gained > SLOPE * guess.cost
        saved = self.over_layers((guess.gained - SLOPE * guess.cost) * worth)
        modes = torch.stack([guess.nothing, guess.error + SLOPE * guess.bits, guess.nothing - saved])
        modes[2][saved == 0] = math.inf
        return Ways(modes.argmin(0), worth)

    def over_layers(self, x: Float[Tensor, " terms"]) -> Float[Tensor, " layers"]:
        """The sum of each layer's terms."""
        return torch.zeros_like(self.size).index_add_(0, self.owner, x)

    def off(self, step: float, guess: Guess, ways: Ways, bits: float, error: float | None) -> float:
        """Of the bits how many times too many, or of the error how many times too little; as a logarithm."""
        entries, terms = ways.modes == 1, (ways.modes == 2)[self.owner] & ways.worth
        if error is None:
            needed = len(self.size) + float((guess.bits * entries).sum() + (guess.cost * terms).sum())
            return math.log(needed / bits)
        left = (guess.nothing - self.over_layers(guess.gained * terms)).clamp_min(0)
        left = torch.where(entries, guess.error, left)
        return math.log(error / max(float(left.sum()) * step**2, 1e-300))

    def solve(self, step: float, bits: float, error: float | None) -> tuple[float, Ways, Ways | None, float]:
        """About the step with so many bits, or with so much error; how layers are coded; the power that these go by.

        Where a layer, or a term, comes in with a finer step, bits may jump beyond what is allowed. Then it is left out,
        and the third of what is returned is how layers would be coded with it.
        """
        fine, coarse, slope = 0.0, math.inf, 0.9
        last: tuple[float, float] | None = None
        ways = coarser = finer = Ways(
            torch.zeros(0, dtype=torch.float32, device="cpu"), torch.zeros(0, dtype=torch.float32, device="cpu")
        )
        for _ in range(TRIES):
            guess = self.at(step)
            ways = self.best(guess)
            off = self.off(step, guess, ways, bits, error)
            if last is not None and last[0] != step:
                slope = min(3.0, max(0.3, (last[1] - off) / math.log(step / last[0])))
            last = step, off
            if abs(off) < 0.03:
                return step, ways, None, slope
            if off > 0:
                fine, finer = (step, ways) if step > fine else (fine, finer)
            elif step < coarse:
                coarse, coarser = step, ways
            if coarse < 1.03 * fine or (step <= self.finest and off < 0):
                return coarse, coarser, finer if fine else None, 1.0
            step = max(step * math.exp(max(-3.0, min(3.0, off / slope))), self.finest)
            if not fine < step < coarse:
                step = between(fine, coarse)
            if step > COARSEST:  # the modes of many layers alone are more bits than there are
                return COARSEST, ways, None, slope
        return step, ways, None, slope

    def each(self, ways: Ways) -> list[tuple[int, Tensor]]:
        """Of each layer its way, and which of its terms are sent."""
        worth = torch.split(ways.worth, self.terms)
        return [(mode, own.nonzero().view(-1)) for mode, own in zip(ways.modes.tolist(), worth, strict=True)]

    def extends(self, ways: Ways, layers: list[Layer]) -> bool:
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
    some = [each[:, _spread(each.shape[1], most)] if each.shape[1] > most else each for each in rows]
    wide = max((each.shape[1] for each in some), default=0)
    times = [
        torch.full((len(each),), max(1, each.shape[1]) / max(1, part.shape[1]), dtype=torch.float32, device="cpu")
        for each, part in zip(rows, some, strict=True)
    ]
    padded = [torch.nn.functional.pad(part, (0, wide - part.shape[1])) for part in some]
    return torch.cat(padded) if rows else torch.zeros(0, 0, dtype=torch.float32, device="cpu"), torch.cat(
        times
    ) if rows else torch.zeros(0, dtype=torch.float32, device="cpu")


@cache
def _spread(n: int, most: int) -> Int[Tensor, " most"]:
    """``most`` of ``n`` positions: one anywhere in each of as many stretches. A fixed stride would meet the same column
    of a matrix, or the same corner of a kernel, again and again.
    """
    begins = torch.arange(most + 1, device="cpu") * n // most
    inside = torch.rand(most, dtype=torch.float64, generator=torch.Generator().manual_seed(n), device="cpu")
    return begins[:-1] + (inside * (begins[1:] - begins[:-1])).long()


def _lengths(rows: list[Tensor]) -> Float[Tensor, " rows"]:
    """The length of each row of matrices of several widths."""
    return (
        torch.cat([torch.full((len(each),), float(each.shape[1]), dtype=torch.float32, device="cpu") for each in rows])
        if rows
        else torch.zeros(0, dtype=torch.float32, device="cpu")
    )


def _bits(levels: Float[Tensor, "rows n"], n: Float[Tensor, " rows"] | int) -> Float[Tensor, " rows"]:
    """About how many bits each row of ``n`` numbers takes, by how many are not zero and how long these are."""
    sizes = levels.abs()
    some = sizes.count_nonzero(1).float()
    chance = (some / (n + 1e-9)).clamp(1e-6, 1 - 1e-6)
    flags = -(chance * chance.log2() + (1 - chance) * (1 - chance).log2())
    return n * flags + 1.5 * some + 1.4 * sizes.clamp_min_(1).log2_().sum(1)
