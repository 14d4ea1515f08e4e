"""The kernels: C against its references bit for bit at every level of the instruction set, and both by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.kernels import counter, fastfood, gaps, hadamard, native, quantize, rans, select, signs, sketch
from thinwire.kernels.native import build

SIZES = [0, 1, 7, 8, 9, 63, 64, 65, 1_000, 5_000, (1 << 17) - 1, 1 << 17, (1 << 17) + 1]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    chosen = list(native._chosen)
    yield
    native._chosen[:] = chosen
    native._level()
    torch.set_num_threads(1)


@pytest.fixture
def levels() -> list[str]:
    """Every level that this machine has."""
    if native._load() is None:
        pytest.skip("the kernels are not compiled here")
    return [level for level in native.LEVELS if native.use(level) == level]


@pytest.mark.parametrize("level", native.LEVELS)
def test_this_machine_has_the_level(level: str) -> None:
    if native.use(level) != level:
        pytest.skip(f"not here: {level} is not tested")


def normal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def special(n: int) -> Tensor:
    """Both zeros, subnormals, infinities, the largest numbers, and ties."""
    x = normal(n, 1)
    x[n // 2 :] = 2.0
    x[n // 4 : n // 2 : 3] = -2.0
    extreme = torch.tensor([0.0, -0.0, 1e-45, -1e-42, INF, -INF, 3.4e38, -3.4e38, 2**-126, 5e-40])
    x[: min(n, 10)] = extreme[: min(n, 10)]
    return x


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if not isinstance(expected, Tensor):
        return bool(found == expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return found.contiguous().numpy().tobytes() == expected.contiguous().numpy().tobytes()


def agree(run: Callable[[], Any], levels: list[str]) -> None:
    """At each level, with one thread and with two, what the reference gives."""
    native.use("reference")
    expected = run()
    for level in levels:
        assert native.use(level) == level
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert same(run(), expected), f"{level}, {threads} threads"
    torch.set_num_threads(1)


vectors = pytest.mark.parametrize("make", [normal, special, torch.zeros], ids=["normal", "special", "zeros"])
sizes = pytest.mark.parametrize("n", SIZES)

# -- C and the references -----------------------------------------------------------------------


@sizes
@vectors
def test_selection_is_the_references(levels: list[str], n: int, make: Callable[[int], Tensor]) -> None:
    x = make(n)
    for k in {0, min(n, 1), n // 100, n // 2, n}:
        agree(lambda k=k: select.top_k(x, k), levels)
        agree(lambda k=k: select.largest(x, k), levels)
    for t in (0.0, -1.0, 1.0, 2.0, 1e-45, 1e300, INF, -INF, NAN):
        agree(lambda t=t: select.above(x, t), levels)


@pytest.mark.slow
def test_selection_from_more_than_a_sample_is_the_references(levels: list[str]) -> None:
    n = 600_000  # the count leaves out what a sample of 65,536 says is small
    odd = torch.zeros(n)
    odd[::9] = 1.0  # every entry that is sampled lies at a multiple of 9, or nearly so: the guess is far off
    for x in (normal(n), odd, normal(n).exp() ** 4, normal(n) * 1e-44):
        for k in (6_000, 66_666, 590_000):
            agree(lambda x=x, k=k: select.top_k(x, k), levels)
            agree(lambda x=x, k=k: select.largest(x, k), levels)


@sizes
@vectors
def test_signs_and_magnitudes_are_the_references(levels: list[str], n: int, make: Callable[[int], Tensor]) -> None:
    x = make(n)
    agree(lambda: signs.pack_signs(x), levels)
    bits = signs.pack_signs(x)
    agree(lambda: signs.unpack_signs(bits, n, 0.3), levels)
    agree(lambda: signs.unpack_signs(bits, n, 0.3, out=torch.empty(n)), levels)
    agree(lambda: signs.partial_sums(x), levels)
    agree(lambda: signs.mean_magnitude(x), levels)


def test_long_results_are_written_past_the_cache_all_the_same(levels: list[str]) -> None:
    bits = signs.pack_signs(normal(3_000_001))
    for start in (0, 8, 24):  # aligned to 64 bytes, and not
        held = torch.empty(3_000_100)
        agree(lambda out=held[start : start + 3_000_001]: signs.unpack_signs(bits, 3_000_001, 2.0, out=out), levels)


@sizes
@vectors
@pytest.mark.parametrize(("steps", "bits"), [(1, 1), (1, 2), (5, 4), (127, 8)])
def test_quantisation_is_the_references(
    levels: list[str], n: int, make: Callable[[int], Tensor], steps: int, bits: int
) -> None:
    x = make(n)
    for scale in (2.0, 0.0, 1e-40):
        agree(lambda scale=scale: quantize.quantize(x, scale, steps, bits, 77), levels)
        packed = quantize.quantize(x, scale, steps, bits, 77)
        agree(lambda scale=scale, packed=packed: quantize.dequantize(packed, n, scale, steps, bits), levels)


@sizes
@vectors
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (4, 64), (5, 1_000)])
def test_sketches_are_the_references(
    levels: list[str], n: int, make: Callable[[int], Tensor], rows: int, cols: int
) -> None:
    x = make(n).clamp(-1e30, 1e30)
    agree(lambda: sketch.count_sketch(x, rows, cols, 5), levels)
    made = sketch.count_sketch(x, rows, cols, 5)
    agree(lambda: sketch.estimate(made, n, 5), levels)
    agree(lambda: sketch.heavy(made, n, n // 10, 5), levels)


@sizes
@pytest.mark.parametrize("spread", [0.0, 3.0, 300.0])
def test_ranges_are_the_references(levels: list[str], n: int, spread: float) -> None:
    if n == 0:
        return
    data = (normal(n) * spread).round().to(torch.int64).to(torch.uint8)
    agree(lambda: rans.encode(data), levels)
    coded = rans.encode(data)
    agree(lambda: rans.decode(coded, n), levels)
    odd = coded._replace(words=coded.words.flip(0))  # what no sender makes is read alike too

    def refused() -> Tensor:
        with pytest.raises(WireError) as said:
            rans.decode(odd, n)
        return torch.tensor([len(str(said.value))])

    if not torch.equal(odd.words, coded.words):
        agree(refused, levels)


@sizes
def test_gap_codes_are_the_references(levels: list[str], n: int) -> None:
    for k in {0, min(n, 1), n // 50, n // 3, n}:
        positions = torch.randperm(n, generator=torch.Generator().manual_seed(k))[:k].sort().values
        agree(lambda p=positions: gaps.best(p, n), levels)
        for b in {0, 1, 3, gaps.best(positions, n)[0], n.bit_length()} & set(range(n.bit_length() + 1)):
            agree(lambda p=positions, b=b: gaps.encode(p, n, b), levels)
            code = gaps.encode(positions, n, b)
            agree(lambda code=code, b=b: gaps.decode(*code, n, b), levels)
        agree(lambda p=positions: gaps.encode_bits(p, n), levels)
        bits = gaps.encode_bits(positions, n)
        agree(lambda bits=bits: gaps.decode_bits(bits, n), levels)


@pytest.mark.parametrize("exponent", [*range(12), 14, 15, 16, 17, 18, 20])
def test_the_hadamard_transform_is_the_references(levels: list[str], exponent: int) -> None:
    x = normal(1 << exponent)
    agree(lambda: hadamard.hadamard_(x.clone()), levels)


FASTFOOD = [(1, 1), (5, 5), (8, 3), (100, 7), (5, 12), (1_000, 64), (70_000, 300), (40_000, 60_000), (300_000, 5_000)]


@pytest.mark.parametrize(("size", "dim"), FASTFOOD)
def test_fastfood_is_the_references(levels: list[str], size: int, dim: int) -> None:
    agree(lambda: fastfood.fastfood(normal(dim), size, 3), levels)
    agree(lambda: fastfood.fastfood_transpose(normal(size), dim, 3), levels)


def test_parts_and_strides_are_taken_as_they_are(levels: list[str]) -> None:
    x = normal(4_000)[1::2]  # neither contiguous nor aligned
    agree(lambda: select.top_k(x, 20), levels)
    agree(lambda: signs.pack_signs(x), levels)
    agree(lambda: quantize.quantize(x, 3.0, 7, 4, 1), levels)
    agree(lambda: sketch.count_sketch(x, 3, 50, 1), levels)
    agree(lambda: fastfood.fastfood_transpose(x, 30, 1), levels)
    agree(lambda: hadamard.hadamard_(normal(4_096)[1:2_049].clone()), levels)


def test_nan_gives_some_value_and_reads_nothing_out_of_bounds(levels: list[str]) -> None:
    x = torch.full((1_000,), NAN)
    assert select.top_k(x, 10).tolist() == list(range(10))
    assert select.largest(x, 10).tolist() == list(range(1_000))
    assert select.above(x, 0.0).tolist() == []
    assert signs.pack_signs(x).tolist() == [0] * 125
    assert quantize.quantize(x, 1.0, 127, 8, 0).tolist() == [254] * 1_000
    sketch.heavy(sketch.count_sketch(x, 4, 10, 0), 1_000, 10, 0)
    fastfood.fastfood(x, 100, 0), fastfood.fastfood_transpose(x, 100, 0), hadamard.hadamard_(x[:512].clone())


# -- by hand, whatever runs ---------------------------------------------------------------------


def test_the_largest_are_taken_ties_from_the_front_and_nan_before_all() -> None:
    x = torch.tensor([1.0, -2.0, 0.0, 2.0, -0.0, 2.0, 1e-45, -2.0])
    assert select.top_k(x, 2).tolist() == [1, 3]
    assert select.top_k(x, 5).tolist() == [0, 1, 3, 5, 7]
    assert select.top_k(x, 7).tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert select.top_k(torch.tensor([INF, 1.0, NAN, -INF]), 2).tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"^the 9 largest of 8 entries$"):
        select.top_k(x, 9)


def test_the_largest_with_all_ties_and_without_zeros() -> None:
    x = torch.tensor([1.0, -2.0, 0.0, 2.0, -0.0, 2.0, 1e-45, -2.0])
    assert select.largest(x, 0).tolist() == []
    assert select.largest(x, 1).tolist() == select.largest(x, 4).tolist() == [1, 3, 5, 7]
    assert select.largest(x, 5).tolist() == [0, 1, 3, 5, 7]
    assert select.largest(x, 7).tolist() == select.largest(x, 8).tolist() == [0, 1, 3, 5, 6, 7]
    assert select.largest(torch.tensor([INF, 1.0, NAN, -INF]), 2).tolist() == [0, 2, 3]
    assert select.largest(torch.zeros(5), 3).tolist() == []
    near = torch.tensor([1 - 2**-12, 1 - 2**-13, 1.0, 1 - 2**-10, 3.0])
    assert select.largest(near, 2).tolist() == [1, 2, 4]  # 2^11 steps of 2^-24 below 1
    with pytest.raises(ValueError, match=r"^the 9 largest of 8 entries$"):
        select.largest(x, 9)


def test_other_types_and_numbers_are_selected_by_the_reference() -> None:
    assert select.top_k(torch.tensor([1.0, -3.0, 2.0], dtype=torch.float64), 2).tolist() == [1, 2]
    assert select.top_k(torch.tensor([1.0, -3.0, 2.0], dtype=torch.bfloat16), 1).tolist() == [1]
    assert select.largest(torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64), 1).tolist() == [1, 2]
    assert select.above(torch.tensor([1.0, -3.0, 2.0], dtype=torch.float16), 2.0).tolist() == [1, 2]


def test_what_reaches_the_threshold_is_above_it_and_zeros_never_are() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, NAN, INF])
    assert select.above(x, 1.0).tolist() == [2, 3, 6]
    assert select.above(x, 0.0).tolist() == [2, 3, 4, 6]
    assert select.above(x, -5.0).tolist() == [2, 3, 4, 6]
    assert select.above(x, INF).tolist() == [6]
    assert select.above(x, NAN).tolist() == []


def test_a_sampled_threshold_keeps_about_as_many_as_asked_for() -> None:
    x = normal(500_000)
    for k, low, high in ((50_000, 47_500, 52_500), (5_000, 4_000, 6_000)):
        found = len(select.above(x, select.sample_threshold(x, k, torch.Generator().manual_seed(1))))
        assert low < found < high
    few = torch.tensor([3.0, -1.0, 2.0])
    assert select.sample_threshold(few, 2, torch.Generator()) == 2.0
    assert select.sample_threshold(few, 0, torch.Generator()) == INF


def test_signs_by_hand() -> None:
    x = torch.tensor([1.0, -1.0, 0.0, -0.0, NAN, -INF, INF, -1e-45, 5.0])
    assert signs.pack_signs(x).tolist() == [0b01001101, 0b1]
    assert signs.unpack_signs(torch.tensor([0b01001101, 1], dtype=torch.uint8), 9, 2.0).tolist() == [
        2, -2, 2, 2, -2, -2, 2, -2, 2,
    ]  # fmt: skip
    for bad, n in (([1], 9), ([1, 1, 0], 9), ([1, 2], 9), ([255], 7), ([0], 0)):
        with pytest.raises(WireError):
            signs.unpack_signs(torch.tensor(bad, dtype=torch.uint8), n, 1.0)
    with pytest.raises(ValueError, match=r"^out= takes a contiguous vector of 9 entries of torch.float32$"):
        signs.unpack_signs(torch.tensor([1, 1], dtype=torch.uint8), 9, 1.0, out=torch.zeros(10))


def test_the_mean_magnitude_is_exact_where_a_float_sum_is_not() -> None:
    # 2^24 in single precision swallows the ones that follow, and 4,096 would be left: (2^24 + 4,095) / 4,096 rounds up.
    x = torch.ones(4_096)
    x[0] = -(2.0**24)
    assert signs.mean_magnitude(x).item() == 4097.0
    assert signs.mean_magnitude(torch.zeros(0)).item() == 0.0
    assert signs.mean_magnitude(torch.tensor([INF])).item() == 3.4028234663852886e38


def test_levels_by_hand() -> None:
    # Multiples of scale / levels need no dither: 7 levels of 0.5, stored with 7 added, two to a byte.
    x = torch.tensor([0.0, 0.5, -0.5, 3.5, -3.5, 9.0, -INF])
    packed = quantize.quantize(x, 3.5, 7, 4, 1)
    assert packed.tolist() == [0x87, 0xE6, 0xE0, 0x00]
    assert quantize.dequantize(packed, 7, 3.5, 7, 4).tolist() == [0.0, 0.5, -0.5, 3.5, -3.5, 3.5, -3.5]
    packed = quantize.quantize(torch.tensor([1.0, -1.0, 0.0, -0.0, 1.0]), 1.0, 1, 2, 1)
    assert packed.tolist() == [0b01010010, 0b10]
    assert quantize.quantize(torch.tensor([2.0, -2.0] * 5), 2.0, 1, 1, 1).tolist() == [0b01010101, 0b01]
    assert quantize.quantize(torch.tensor([1.0, NAN]), 0.0, 127, 8, 1).tolist() == [127, 254]


def test_levels_that_do_not_exist_are_refused() -> None:
    for n, levels, bits, data in [(2, 127, 8, [255, 0]), (2, 6, 4, [0x0D]), (3, 1, 2, [0b11]), (2, 7, 4, [0xF0])]:
        with pytest.raises(WireError, match="levels from 0 to"):
            quantize.dequantize(torch.tensor(data, dtype=torch.uint8), n, 1.0, levels, bits)
    for n, bits, data in [(3, 4, [0, 0x10]), (3, 2, [0b01000000]), (2, 4, []), (2, 4, [0, 0]), (1, 1, [2])]:
        with pytest.raises(WireError, match=r"bits|bytes|beyond"):
            quantize.dequantize(torch.tensor(data, dtype=torch.uint8), n, 1.0, 1, bits)
    for bad in ((1.0, 8, 4), (1.0, 0, 8), (1.0, 2, 2), (1.0, 1, 3), (-1.0, 1, 8), (INF, 1, 8), (NAN, 1, 8)):
        with pytest.raises(ValueError, match=r"bits|scale"):
            quantize.quantize(torch.zeros(3), *bad, 0)


@pytest.mark.parametrize(("levels", "bits"), [(1, 1), (1, 2), (7, 4), (127, 8), (16, 8)])
def test_quantisation_is_right_on_average(levels: int, bits: int) -> None:
    n = 20_000
    for value in (0.0, 0.013, -0.3, 0.77, -1.0):
        packed = quantize.quantize(torch.full((n,), value), 1.0, levels, bits, 9)
        mean = quantize.dequantize(packed, n, 1.0, levels, bits).double().mean()
        step = 2.0 if bits == 1 else 1 / levels
        assert abs(mean - value) < 5 * step / 2 / n**0.5 + 1e-6  # a step's coin has a deviation of at most half of it
    with pytest.raises(ValueError, match="split the tensor"):
        counter.bits(0, 2**32 + 1, 1)


# -- random bits by counter ---------------------------------------------------------------------


def drawn(i: int, key: int) -> int:
    """In Python's own numbers."""
    x = (i + key) % 2**32
    x = ((x ^ x >> 16) * 0x21F0AAAD) % 2**32 ^ key >> 32
    x = ((x ^ x >> 15) * 0x735A2D97) % 2**32
    return x ^ x >> 15


def test_bits_and_keys_are_these_for_ever() -> None:
    # SplitMix64's published first numbers from 1234567.
    assert counter.keys(1_234_567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    key = counter.keys(1_234_567, 1)[0]
    found = counter.bits(2**32 - 3, 2**32, key).tolist() + counter.bits(0, 5, key).tolist()
    assert found == [drawn(i, key) for i in (2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1, 2, 3, 4)]
    assert counter.keys(2**64 + 5, 1) == counter.keys(5, 1)


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_the_dither_is_uniform_and_neighbours_and_seeds_are_independent(seed: int) -> None:
    n = 1 << 18
    key, other = counter.keys(seed, 1)[0], counter.keys(seed + 1, 1)[0]
    bits = counter.bits(0, n, key)
    u = (bits >> 8).double() / 2**24
    bound = 5 / n**0.5
    assert abs(u.mean() - 0.5) < bound * 12**-0.5
    assert abs(u.var() - 1 / 12) < bound * 180**-0.5
    for shift in (1, 2, 3, 7, 16, 64, 4_096, 65_536):
        assert abs(np.corrcoef(u[shift:], u[:-shift])[0, 1]) < 2 * bound
    v = (counter.bits(0, n, other) >> 8).double() / 2**24
    for shift in (0, 1, 2, 1_000):
        assert abs(np.corrcoef(u[shift:], v[: n - shift])[0, 1]) < 2 * bound
    for place in (0, 8, 16, 24):  # chi-square over 256 values: 255 expected, 22.6 its deviation
        counts = (bits >> place & 255).bincount(minlength=256).double()
        assert 150 < ((counts - n / 256) ** 2 / (n / 256)).sum() < 370
    for one in range(32):  # each bit, alone and against the next
        assert abs((bits >> one & 1).double().mean() - 0.5) < bound / 2
        assert abs(((bits >> one ^ bits >> (one + 1) % 32) & 1).double().mean() - 0.5) < bound / 2


# -- sketches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("cols", "run"), [(7, 1), (15, 1), (16, 16), (21, 16)])
def test_a_sketch_is_what_its_description_says(cols: int, run: int) -> None:
    x, rows, seed = normal(50), 3, 11
    places = np.zeros((rows, 50), np.int64)
    signs_of = np.zeros((rows, 50), np.float32)
    for r, key in enumerate(counter.keys(seed, rows)):
        for i in range(50):
            number, lane = i // run, i % run
            places[r, i] = ((drawn(2 * number, key) * cols >> 32) + lane) % cols
            signs_of[r, i] = -1 if drawn(2 * number + 1, key) >> lane & 1 else 1
    expected = np.zeros((rows, cols), np.float32)
    for r in range(rows):
        for i in range(50):
            expected[r, places[r, i]] += signs_of[r, i] * x.numpy()[i]
    found = sketch.count_sketch(x, rows, cols, seed)
    assert found.numpy().tobytes() == expected.tobytes()
    guesses = np.take_along_axis(expected, places, 1) * signs_of
    assert sketch.estimate(found, 50, seed).tolist() == np.median(guesses, 0).tolist()


def test_an_even_number_of_rows_takes_the_mean_of_the_middle_two() -> None:
    made = torch.tensor([[7.0], [-1.0], [2.0], [5.0]])
    made *= torch.tensor([[1.0 - 2 * (drawn(1, key) & 1)] for key in counter.keys(3, 4)])
    assert sketch.estimate(made, 1, 3).tolist() == [3.5]


def test_runs_side_by_side_leave_an_entry_the_error_of_a_hash_of_its_own() -> None:
    # Pairwise: a row's estimate of entry i is x_i + sum of +-x_j over those it meets, of variance |x|^2 / columns.
    x = normal(4_000, 2)
    x[96:112] = 30.0  # large entries in a run, which meet another all at once
    cols = 160
    errors = [sketch.estimate(sketch.count_sketch(x, 1, cols, seed), 4_000, seed) - x for seed in range(400)]
    variance = torch.stack(errors).double().square().mean(0)
    elsewhere = torch.cat([variance[:96], variance[112:]]).mean()
    assert elsewhere == pytest.approx(float(x.double().square().sum()) / cols, rel=0.05)
    own = float(x.double().square().sum() - 16 * 900) / cols  # entries of one run never meet
    assert variance[96:112].mean() == pytest.approx(own, rel=0.2)


def test_what_is_heavy_is_found_again_and_sketches_add_up() -> None:
    x, y = 0.01 * normal(20_000, 1), 0.01 * normal(20_000, 2)
    heavy = torch.tensor([5, 77, 4_096, 19_999])
    x[heavy] = torch.tensor([3.0, -4.0, 5.0, -6.0])
    one, other = (sketch.count_sketch(v, 5, 2_000, 8) for v in (x, y))
    positions, values = sketch.heavy(one, 20_000, 4, 8)
    assert positions.tolist() == heavy.tolist()
    assert (values - x[heavy]).abs().max() < 0.2
    torch.testing.assert_close(sketch.count_sketch(x - 2 * y, 5, 2_000, 8), one - 2 * other, atol=1e-5, rtol=1e-5)


def test_one_rows_estimates_are_right_on_average() -> None:
    x = normal(40)
    found = torch.stack([sketch.estimate(sketch.count_sketch(x, 1, 16, seed), 40, seed) for seed in range(2_000)])
    error = found.std(0) / 2_000**0.5
    assert ((found.mean(0) - x).abs() < 4.5 * error).all()
    assert error.max() < 0.05


def test_sketches_of_impossible_shapes_are_refused() -> None:
    for rows, cols in ((0, 5), (65, 5), (3, 0), (3, 2**31)):
        with pytest.raises(ValueError, match=r"^a sketch of -?\d+ (rows|columns): 1 to"):
            sketch.count_sketch(torch.zeros(3), rows, cols, 0)


# -- gaps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", ["reference", "avx512"])
def test_positions_that_do_not_ascend_are_never_written(runs: str) -> None:
    native.use(runs)
    for bad in ([3, 3], [4, 2], [-1], [10], [2**62], [-(2**63)], [0, 2**63 - 1]):
        positions = torch.tensor(bad)
        for write in (
            lambda p=positions: gaps.encode(p, 10, 2),
            lambda p=positions: gaps.encode_bits(p, 10),
            lambda p=positions: gaps.best(p, 10),
        ):
            with pytest.raises(ValueError, match=r"^positions must ascend from 0 to less than 10$"):
                write()
    with pytest.raises(ValueError, match="Rice parameter"):
        gaps.encode(torch.tensor([3]), 10, 5)


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["reference", "avx512"])
def test_random_bytes_are_positions_or_refused_by_both(runs: str) -> None:
    native.use(runs)
    draw = np.random.default_rng(6)
    good = 0
    for _ in range(2_000):
        n, b = int(draw.integers(1, 300)), int(draw.integers(0, 10))
        quotients = torch.from_numpy((draw.random(draw.integers(0, 9)) * 256).astype(np.uint8))
        k = int(sum(int(q).bit_count() for q in quotients))
        rests = torch.zeros(max(0, (k * b + 7) // 8 + int(draw.choice([0, 0, 0, -1, 1]))), dtype=torch.uint8)
        try:
            positions = gaps.decode(quotients, rests, n, b).tolist()
        except WireError:
            continue
        good += 1
        assert len(positions) == k
        assert positions == sorted(set(positions))
        assert all(0 <= p < n for p in positions)
        assert same(gaps.encode(torch.tensor(positions, dtype=torch.int64), n, b), (quotients, rests))
    assert good > 100


@pytest.mark.parametrize("runs", ["reference", "avx512"])
def test_a_run_that_overflows_is_refused(runs: str) -> None:
    native.use(runs)
    one = torch.tensor([0] * 100_000 + [1], dtype=torch.uint8)  # a quotient of 800,000
    rest = torch.full((6,), 255, dtype=torch.uint8)
    for n, b in ((2**48, 48), (2**40, 40), (10, 0), (800_000, 0)):
        with pytest.raises(WireError):
            gaps.decode(one, rest[: (b + 7) // 8], n, b)
    assert gaps.decode(one, rest[:0], 800_001, 0).tolist() == [800_000]
    assert gaps.decode(torch.tensor([1], dtype=torch.uint8), rest, 2**48, 48).tolist() == [2**48 - 1]


# -- what runs, and what does without -------------------------------------------------------------


def test_without_the_compiled_library_torch_does_the_work_after_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = normal(100)
    expected = select.top_k(x, 10), signs.pack_signs(x), fastfood.fastfood(x, 1_000, 2)
    native._load.cache_clear()
    native._chosen.clear()
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "missing.so")
    try:
        with pytest.warns(UserWarning, match="compiled kernels are missing.*python -m thinwire") as told:
            found = select.top_k(x, 10), signs.pack_signs(x), fastfood.fastfood(x, 1_000, 2)
        assert len(told) == 1
        assert native.use("avx512") == "reference"
        assert same(found, expected)
    finally:
        native._load.cache_clear()


def test_a_library_of_another_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if native._load() is None:
        pytest.skip("the kernels are not compiled here")
    native._load.cache_clear()
    monkeypatch.setattr(build, "checksum", lambda: 1)
    try:
        with pytest.warns(UserWarning, match="they were compiled of another version"):
            assert native._load() is None
    finally:
        native._load.cache_clear()


def test_a_compiler_that_fails_is_an_error_of_the_build_and_leaves_what_was_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "native.so")
    for compiler, error in (("/bin/false", subprocess.CalledProcessError), ("/no/such/cc", OSError)):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(error):
            build.build()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("asked", "level"), [("reference", "reference"), ("plain", "plain")])
def test_the_environment_says_what_runs(asked: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_KERNELS", asked)
    native._chosen.clear()
    expected = "reference" if native._load() is None else level
    assert native._level() == expected
    assert (native.library(torch.zeros(1)) is None) is (expected == "reference")
    monkeypatch.setenv("THINWIRE_KERNELS", "fast")
    native._chosen.clear()
    with pytest.raises(ValueError, match=r"^no level 'fast': reference, plain, avx2, avx512$"):
        native.library(torch.zeros(1))


def test_only_floats_of_32_bits_on_the_cpu_go_to_c() -> None:
    assert native.library(torch.zeros(1, dtype=torch.float64)) is None
    assert native.library(torch.zeros(1, device="meta")) is None


MEASURED = """
import torch
from thinwire import Key, Layout, Params, ScaledSign, TopK
torch.set_num_threads(1)
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name + ":"))
for link in (TopK(0.01), ScaledSign()):
    for n in (100_000, 20_000_000):
        x = Params(Layout(("w",), (torch.Size([n]),)), torch.ones(n).uniform_(-1, 1))
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        before = status("VmRSS")
        packet, seen, _ = link.send(x, None, Key(0))
        peak = status("VmHWM") - before
        del x, packet, seen
    print(peak)
"""


@pytest.mark.deployment
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="writes /proc/self/clear_refs")
def test_links_take_little_more_memory_than_what_they_return() -> None:
    if native._load() is None:
        pytest.skip("the kernels are not compiled here: the references take more")
    if native.build.SANITIZED:
        pytest.skip("what checks memory keeps some of what was freed")
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    top_k, scaled_sign = map(int, done.stdout.split())
    # 80 MB of x; what is seen is 80 MB once as a layer and once joined. Beside it positions and values, 2.4 MB, or
    # bits, 2.5 MB.
    assert top_k < 175_000_000
    assert scaled_sign < 175_000_000


# -- on a GPU -----------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_same_comes_out() -> None:
    native.use("reference")
    x, c = special(10_001), special(10_001).cuda()
    assert same(select.top_k(c, 300).cpu(), select.top_k(x, 300))
    assert same(select.largest(c, 300).cpu(), select.largest(x, 300))
    assert same(select.above(c, 2.0).cpu(), select.above(x, 2.0))
    assert same(signs.pack_signs(c).cpu(), signs.pack_signs(x))
    assert same(
        signs.unpack_signs(signs.pack_signs(c), 10_001, 0.3).cpu(), signs.unpack_signs(signs.pack_signs(x), 10_001, 0.3)
    )
    assert same(signs.mean_magnitude(c).cpu(), signs.mean_magnitude(x))
    for levels, bits in ((1, 1), (7, 4), (127, 8)):
        packed = quantize.quantize(c, 3.0, levels, bits, 5)
        assert same(packed.cpu(), quantize.quantize(x, 3.0, levels, bits, 5))
        assert same(
            quantize.dequantize(packed, 10_001, 3.0, levels, bits).cpu(),
            quantize.dequantize(packed.cpu(), 10_001, 3.0, levels, bits),
        )
    y = normal(10_001)
    made = sketch.count_sketch(y, 5, 300, 1)
    torch.testing.assert_close(sketch.count_sketch(y.cuda(), 5, 300, 1).cpu(), made, atol=1e-4, rtol=1e-4)
    assert same(sketch.estimate(made.cuda(), 10_001, 1).cpu(), sketch.estimate(made, 10_001, 1))
    positions = select.top_k(y, 900)
    code = gaps.encode(positions.cuda(), 10_001, 3)
    assert same(tuple(part.cpu() for part in code), gaps.encode(positions, 10_001, 3))
    assert same(gaps.decode(*code, 10_001, 3).cpu(), positions)
    assert same(hadamard.hadamard_(y[:8_192].cuda()).cpu(), hadamard.hadamard_(y[:8_192].clone()))
    assert same(fastfood.fastfood(y[:50].cuda(), 999, 1).cpu(), fastfood.fastfood(y[:50], 999, 1))


def test_long_messages_are_joined_to_the_same_bytes() -> None:
    long = torch.arange(1_500_000, dtype=torch.float32)  # 6 MB: on large pages, by several threads
    parts = [bytearray(b"\x01\x02"), long.view(torch.uint8).numpy().data, bytes(3), b"", memoryview(b"end")]
    assert native.join(parts) == b"".join(parts)
    assert native.join([]) == b""
    short = [b"a", b"bc"]
    assert native.join(short) == b"abc"
