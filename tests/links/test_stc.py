"""STC by hand and beside an independent reader."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size, Tensor

from problems import key, noise, octets, once, refused, vector
from thinwire.errors import WireError
from thinwire.kernels import gaps, levels
from thinwire.links import EF21, STC, ScaledSign, TopK
from thinwire.links.stc import golomb
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


def test_stc_by_hand() -> None:
    # k = 3 of 10: 9, -6 and 3, mean magnitude 6, at 1, 4 and 9. b = 1 for p = 0.3; gaps 1, 2, 4 are 0+1, 1+0, 2+0:
    # quotients 1 01 001, rests 1 0 0; signs + - +.
    packet, seen = once(STC(0.3), vector(0, 9, 1, -2, -6, 0, 1, 1, 0, 3))
    assert seen == [0, 6, 0, 0, -6, 0, 0, 0, 0, 6]
    assert dumps(packet) == bytes.fromhex("01 0601 0604 4800 410101 410101 410101 0000c040 05 25 01")


@pytest.mark.parametrize(
    ("k", "n", "b"),
    # numpy: 1 + floor(log2(log((5**.5 - 1) / 2) / log(1 - k / n))); 0 where that is below, and of nothing or all
    [(1, 1_000, 9), (10, 1_000, 6), (100, 1_000, 3), (1, 3, 1), (1, 2, 0), (9, 10, 0), (10, 10, 0), (0, 0, 0)],
)
def test_the_golomb_parameter_is_the_papers(k: int, n: int, b: int) -> None:
    assert golomb(k, n) == b


def read_gaps(quotients: Tensor, rests: Tensor, b: int) -> list[int]:
    """Bit by bit: zeros and a one, then b bits, the lowest first; a position is one beyond the last plus the gap."""
    high = [byte >> i & 1 for byte in quotients.tolist() for i in range(8)]
    low = [byte >> i & 1 for byte in rests.tolist() for i in range(8)]
    positions, at, place, last = [], 0, 0, -1
    while 1 in high[at:]:
        gap = 0
        while not high[at]:
            gap += 1 << b
            at += 1
        at += 1
        for i in range(b):
            gap += low[place + i] << i
        place += b
        last += 1 + gap
        positions.append(last)
    assert not any(low[place:])
    assert len(low) - place < 8
    return positions


@given(st.integers(1, 300), st.sampled_from([1, 5, 10, 30, 50, 90, 100]), st.integers(0, 99))
def test_stc_is_read_by_an_independent_reader(n: int, percent: int, seed: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    layout = Layout(("a",), (Size([n]),))
    [packet], seen, _ = STC(percent / 100).send(Params(layout, x), None, key(0))
    k = (percent * n + 99) // 100  # rounded up
    bits = [struct.unpack("<I", struct.pack("<f", abs(v)))[0] for v in x.tolist()]
    least = sorted(bits)[-k] - 2048  # what is equal to 12 of its 24 bits is taken as equal
    largest = [i for i in range(n) if bits[i] >= least and bits[i]]
    scale = packet[0]
    if len(packet) == 3:
        ternary = levels.unpack(packet[2], n, most=1)
        assert ternary.nonzero().view(-1).tolist() == largest
        assert packet[1] == len(largest)
        expected = (ternary * float(scale)).tolist()
    else:
        signs, positions = packet[1].tolist(), read_gaps(packet[2], packet[3], golomb(len(largest), n))
        assert positions == largest
        expected = [0.0] * n
        for j, i in enumerate(positions):
            expected[i] = float(scale) if signs[j // 8] >> j % 8 & 1 else -float(scale)
    assert seen.flat.tolist() == expected
    assert float(scale) == pytest.approx(sum(abs(float(x[i])) for i in largest) / len(largest), rel=1e-6)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_stc_delivers_what_top_k_with_scaled_signs_delivers_in_fewer_bytes(share: float) -> None:
    x = noise(2_000)
    ours, seen = once(STC(share), x)
    theirs, same = once(TopK(share, values=ScaledSign()), x)
    assert seen == same
    assert len(dumps(ours)) < len(dumps(theirs))


def test_gaps_of_random_positions_take_what_the_paper_says() -> None:
    # p = 0.01: b* + 1 / (1 - 0.99^(2^b*)) = 6 + 2.108 bits a position; a bit for the sign
    positions = torch.randperm(200_000, generator=torch.Generator().manual_seed(0))[:2_000].sort().values
    quotients, rests = gaps.encode(positions, 200_000, golomb(2_000, 200_000))
    assert 8 * (quotients.numel() + rests.numel()) / 2_000 == pytest.approx(8.108, rel=0.01)


def test_entries_of_a_few_rows_take_fewer_bytes_than_the_papers_gaps_and_the_same_is_seen() -> None:
    x = torch.randn(60, 200, generator=torch.Generator().manual_seed(0))
    x[::10] *= 100
    layered, flat = (Params(Layout(("a",), (Size(shape),)), x.view(-1)) for shape in ((60, 200), (12_000,)))
    (mean, k, coded), seen = STC(0.05).send(layered, None, key(0))[0][0], STC(0.05).send(layered, None, key(0))[1]
    assert seen.flat.equal(STC(0.05).send(flat, None, key(0))[1].flat)
    assert k == int(seen.flat.count_nonzero()) >= 600
    # b* = 4 for p = 0.05: 4 + 1 / (1 - 0.95^16) = 5.79 bits a position and one a sign are 509 bytes for 600
    assert coded.numel() < 300
    for bad in ([mean, k + 1, coded], [mean, True, coded], [mean, k, coded[:-1]], [mean, k, coded, coded]):
        with pytest.raises(WireError):
            STC(0.05).recv(loads(dumps([bad])), layered.layout, None, key(0))


def test_the_residual_of_the_server_is_that_of_the_paper() -> None:
    """EF21 over STC against Algorithm 2: A += update; T = STC(A); A -= T; W += T. All sums are exact here."""
    draw = random.Random(5)
    link, layout = EF21(STC(0.2)), Layout(("a",), (Size([10]),))
    tx, rx = link.open(layout.zeros())
    x, a, w = torch.zeros(10), torch.zeros(10), torch.zeros(10)
    for t in range(8):
        update = torch.tensor([draw.randint(-60, 60) / 4 for _ in range(10)])
        a = a + update
        kept = sorted(range(10), key=lambda i: (-abs(float(a[i])), i))[:2]
        magnitude = float(a[kept].abs().mean())
        ternary = torch.zeros(10)
        ternary[kept] = torch.where(a[kept] >= 0, magnitude, -magnitude)
        a, w = a - ternary, w + ternary
        x = x + update
        packet, seen, tx = link.send(Params(layout, x), tx, key(t))
        got, rx = link.recv(loads(dumps(packet)), layout, rx, key(t))
        assert seen.flat.equal(w)
        assert got.flat.equal(w)
        assert (x - w).equal(a)
    assert float(a.abs().max()) > 0


# 3 of 10 positions, b = 1; the good one of test_stc_by_hand is [6, 05, 25, 01].
HOSTILE_STC = {
    "more signs than positions": (6.0, 0x05, (0x05,), (1,)),
    "more positions than signs": (6.0, 0x01, (0xFF, 0x01), ()),
    "more positions than entries": (6.0, 0x05, (0xFF, 0x0F), ()),
    "a position beyond the end": (6.0, 0x05, (0x25,), (7,)),
    "far beyond the end": (6.0, 0x05, (0, 0, 0x25), (1,)),
    "quotients that do not end": (6.0, 0x05, (0x25, 0), (1,)),
    "no quotients": (6.0, 0x05, (), ()),
    "rests beyond the end": (6.0, 0x05, (0x25,), (0x09,)),
    "too many rests": (6.0, 0x05, (0x25,), (1, 0)),
    "no rests": (6.0, 0x05, (0x25,), ()),
    "signs beyond the end": (6.0, 0x0D, (0x25,), (1,)),
}


@pytest.mark.parametrize(("scale", "signs", "quotients", "rests"), HOSTILE_STC.values(), ids=HOSTILE_STC.keys())
def test_hostile_gaps_are_refused(scale: float, signs: int, quotients: tuple[int, ...], rests: tuple[int, ...]) -> None:
    good = [[torch.tensor(6.0), octets(5), octets(0x25), octets(1)]]
    layout = Layout(("a",), (Size([10]),))
    assert STC(0.3).recv(loads(dumps(good)), layout, None, key(0))[0].flat.tolist() == [0, 6, 0, 0, -6, 0, 0, 0, 0, 6]
    assert refused(STC(0.3), [[torch.tensor(scale), octets(signs), octets(*quotients), octets(*rests)]], 10)


@pytest.mark.parametrize("bad", [None, 3, torch.zeros(1), octets(1).view(torch.int8), octets(1).view(1, 1)])
def test_gaps_of_another_type_are_refused(bad: Any) -> None:
    good = [torch.tensor(6.0), octets(5), octets(0x25), octets(1)]
    for place in range(1, 4):
        assert refused(STC(0.3), [[*good[:place], bad, *good[place + 1 :]]], 10)
