"""Levels, ternary digits and bytes by hand, and what no sender makes of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size

import thinwire as tw
from problems import key, noise, octets, once, refused, vector
from thinwire.kernels.quantize import quantize
from thinwire.kernels.trits import pack_trits, unpack_trits
from thinwire.links import QSGD, Dense, DropoutAvg, Int8, Link, Ternary
from thinwire.params import Params
from thinwire.problem import standard
from thinwire.wire import dumps

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


def test_levels_by_hand() -> None:
    # |(3, -4)| = 5: levels 3 and -4 of 5, exactly, whatever the dither. Stored as 8 and 1, four bits each.
    packet, seen = once(QSGD(5), vector(3.0, -4.0))
    assert seen == [3.0, -4.0]
    assert dumps(packet) == bytes.fromhex("01 0601 0602 480101 410101 00 0000a040 18")
    # The largest is 4: 3 * 8 / 4 = 6 and -8 of 8, stored as 14 and 0, a byte each.
    packet, seen = once(QSGD(8, norm="max"), vector(3.0, -4.0))
    assert seen == [3.0, -4.0]
    assert dumps(packet) == bytes.fromhex("01 0601 0602 480101 410102 00 00008040 0e00")


def test_a_bucket_has_a_norm_of_its_own() -> None:
    # Largest 4, 1 and 8; of one level: 1 0 -1 | 1 0 | stored as 2 1 0 | 2 1 | in two bits each: 2 + 4 + 0 + 128, 1.
    packet, seen = once(QSGD(1, bucket=2, norm="max"), vector(4.0, 0.0, -1.0, 1.0, 0.0))
    assert seen == [4.0, 0.0, -1.0, 1.0, 0.0]
    assert packet[0][0].tolist() == [4.0, 1.0, 0.0]
    assert packet[0][1].tolist() == [2 + 4 + 0 + 128, 1]


def test_every_entry_is_rounded_to_one_of_its_two_neighbours() -> None:
    x = noise(500)
    for link, step in [(QSGD(16), x.norm() / 16), (QSGD(7, norm="max"), float(x.flat.abs().max()) / 7)]:
        _, seen = once(link, x)
        levels = torch.tensor(seen) / step
        assert (levels - levels.round()).abs().max() < 1e-5
        assert (torch.tensor(seen) - x.flat).abs().max() < step


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (2, 4), (7, 4), (8, 8), (16, 8), (127, 8)])
def test_a_level_takes_the_fewest_bits_that_hold_it(levels: int, bits: int) -> None:
    # each level as often as any other, in no order: nothing that the adaptive coder could use
    x = torch.randn(30, generator=torch.Generator().manual_seed(0)).sign() * torch.arange(30).remainder(levels + 1)
    packet, _ = once(QSGD(levels, norm="max"), vector(*(x / levels).tolist()))
    assert QSGD(levels).bits == bits
    assert packet[0][1].numel() <= (30 * bits + 7) // 8


def test_where_most_levels_are_zero_the_adaptive_coder_takes_fewer_bytes_and_the_same_is_seen() -> None:
    x, link = noise(1_000), QSGD(16)
    [[norms, coded]], seen, _ = link.send(x, None, key(0))
    assert coded.numel() < 300  # of 1,000
    levels = quantize(x.flat, float(norms), 16, 8, key(0).at("a").number("dither"))
    assert link.decode([norms, levels], Size([1_000]), key(0)).equal(seen.flat)
    assert refused(link, [[norms, torch.cat([coded, octets(*[9] * 20)])]], 1_000)


@pytest.mark.parametrize("link", [QSGD(16), QSGD(127, norm="max"), QSGD(3, bucket=2), Ternary(), Int8()], ids=repr)
def test_the_largest_and_the_smallest_numbers_stay_finite(link: Link) -> None:
    most, least = torch.finfo(torch.float32).max, 1e-45
    for x in (vector(most, -most, most), vector(least, -least, 0.0), vector(most, least, 0.0), vector(0.0, 0.0, 0.0)):
        _, seen = once(link, x)
        assert all(map(math.isfinite, seen))
        assert max(map(abs, seen)) <= 1.8 * float(x.flat.abs().max())


@pytest.mark.parametrize("link", [QSGD(2), Ternary(), QSGD(3, bucket=5), DropoutAvg()], ids=repr)
def test_every_client_layer_and_round_draws_for_itself(link: Link) -> None:
    x = Params.of([("a", torch.arange(1.0, 41)), ("b", torch.arange(1.0, 41))])
    runs = [link.send(x, None, k)[1] for k in (key(0, 0), key(0, 1), key(1, 0), key(0)._replace(seed=2))]
    seen = [tuple(run[name].tolist()) for run in runs for name in ("a", "b")]
    assert len(set(seen)) == 8


def test_fedpaq_is_fedavg_over_qsgd() -> None:
    problem = standard("digits", clients=10, seed=0)
    dense, paq = (
        tw.simulate(tw.FedAvg(tw.LocalSGD(0.3), up=up), problem.model, problem.tasks, 4, sample=4, test=problem.test)
        for up in (Dense(), QSGD(16))
    )
    assert paq.accuracy == pytest.approx(dense.accuracy, abs=0.1)
    # 16 replies of 4,810 entries in four layers: 4 bytes each and 107 more; most levels are zero
    assert (dense.bytes_up, paq.bytes_up) == (309_552, 11_294)


HOSTILE_QSGD = {
    "a norm below zero": [torch.tensor([-1.0]), octets(0x88, 0x88)],
    "two norms": [torch.ones(2), octets(0x88, 0x88)],
    "a scalar norm": [torch.tensor(1.0), octets(0x88, 0x88)],
    "a level beyond": [torch.ones(1), octets(0x88, 0x0F)],
    "bits beyond the end": [torch.ones(1), octets(0x88, 0x18)],
    "too few levels": [torch.ones(1), octets(0)],
    "too many levels": [torch.ones(1), octets(0x88, 0x08, 0)],
    "levels of another type": [torch.ones(1), octets(0x88, 0x08).view(torch.int8)],
    "levels in two dimensions": [torch.ones(1), octets(0x88, 0x08).view(1, 2)],
    "no levels": [torch.ones(1), None],
    "levels alone": octets(0x88, 0x08),
}


@pytest.mark.parametrize("packet", HOSTILE_QSGD.values(), ids=HOSTILE_QSGD.keys())
def test_hostile_levels_are_refused(packet: Any) -> None:
    assert refused(QSGD(7), [packet], 3)


def test_five_digits_share_a_byte() -> None:
    # 2 + 0*3 + 1*9 + 1*27 + 2*81 = 200; then 2 and four zeros beyond the end
    assert pack_trits(octets(2, 0, 1, 1, 2, 2)).tolist() == [200, 2]
    assert unpack_trits(octets(200, 2), 6).tolist() == [2, 0, 1, 1, 2, 2]
    packet, seen = once(Ternary(), vector(4.0, -4.0, 0.0, 0.0, 4.0, 4.0))
    assert seen == [4.0, -4.0, 0.0, 0.0, 4.0, 4.0]
    assert dumps(packet) == bytes.fromhex("01 0601 0602 4800 410102 0000 00008040 c802")


@given(st.lists(st.integers(0, 2), max_size=40))
def test_digits_are_read_by_division(digits: list[int]) -> None:
    packed = pack_trits(torch.tensor(digits, dtype=torch.uint8)).tolist()
    assert [packed[i // 5] // 3 ** (i % 5) % 3 for i in range(len(digits))] == digits
    assert unpack_trits(torch.tensor(packed, dtype=torch.uint8), len(digits)).tolist() == digits


def test_ternary_sees_what_one_level_of_the_largest_magnitude_sees() -> None:
    x = noise(300)
    assert once(Ternary(), x)[1] == once(QSGD(1, norm="max"), x)[1]


@pytest.mark.parametrize("scale", [torch.tensor(-1.0), torch.ones(1), None, 1.0])
def test_hostile_scales_are_refused(scale: Any) -> None:
    assert refused(Ternary(), [[scale, octets(200, 2)]], 6)
    assert refused(Int8(), [[scale, torch.zeros(6, dtype=torch.int8)]], 6)


@pytest.mark.parametrize("packed", [(243, 0), (255, 2), (200, 3), (200, 162), (0,), (200, 2, 0)])
def test_hostile_digits_are_refused(packed: tuple[int, ...]) -> None:
    assert refused(Ternary(), [[torch.tensor(1.0), torch.tensor(packed, dtype=torch.uint8)]], 6)


def test_int8_by_hand() -> None:
    # A step is 254 / 127 = 2; halves of it are rounded to even
    packet, seen = once(Int8(), vector(254.0, -2.0, 0.9, 1.0, 1.1, 3.0, -254.0))
    assert packet[0][1].tolist() == [127, -1, 0, 0, 1, 2, -127]
    assert seen == pytest.approx([254.0, -2.0, 0.0, 0.0, 2.0, 4.0, -254.0], rel=1e-6)
    assert dumps(once(Int8(), vector(1.0, -0.5))[0]) == bytes.fromhex("01 0601 0602 4800 420102 0000 0000803f 7fc0")


def test_a_multiple_that_no_sender_makes_is_refused() -> None:
    assert refused(Int8(), [[torch.tensor(1.0), torch.tensor([-128, 0], dtype=torch.int8)]], 2)
