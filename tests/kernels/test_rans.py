"""Range coding beside an independent reader."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import octets
from thinwire.errors import WireError
from thinwire.kernels import rans

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


def read_ranges(coded: rans.Coded, n: int) -> bytes:
    """One symbol after the other, in Python's own numbers."""
    shares, counts = {}, iter(coded.counts.tolist())
    start = 0
    for value, present in enumerate(coded.present.tolist()):
        if present:
            size = next(counts) + 1
            shares[value] = range(start, start + size)
            start += size
    assert start == 1 << 14
    words = [word & 0xFFFF for word in coded.words.tolist()]
    width = max(1, math.isqrt(n) // 8)
    states = [words[2 * lane] + (words[2 * lane + 1] << 16) for lane in range(width)]
    place, data = 2 * width, []
    for i in range(n):
        x = states[i % width]
        slot = x % (1 << 14)
        value = next(value for value, share in shares.items() if slot in share)
        x = len(shares[value]) * (x >> 14) + slot - shares[value].start
        if x < 1 << 16:
            x = (x << 16) + words[place]
            place += 1
        states[i % width] = x
        data.append(value)
    assert place == len(words)
    assert states == [1 << 16] * width
    return bytes(data)


@given(st.binary(min_size=1, max_size=400))
def test_coded_ranges_are_read_by_an_independent_reader(data: bytes) -> None:
    coded = rans.encode(octets(*data))
    assert read_ranges(coded, len(data)) == data
    assert bytes(rans.decode(coded, len(data)).tolist()) == data


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 575, 576, 577, 40_000])
def test_every_length_survives_range_coding(n: int) -> None:
    skewed = (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 2).round().add(100).to(torch.uint8)
    for data in (skewed, torch.zeros(n, dtype=torch.uint8), torch.arange(n).to(torch.uint8)):
        assert rans.decode(rans.encode(data), n).equal(data)


def test_values_that_hardly_ever_occur_survive_beside_one_that_nearly_always_does() -> None:
    data = torch.zeros(3_000_000, dtype=torch.uint8)
    data[torch.arange(255) * 1_000] = torch.arange(1, 256).to(torch.uint8)
    coded = rans.encode(data)
    assert rans.decode(coded, 3_000_000).equal(data)
    assert coded.counts.min() == 0  # a share of one is the least there is


def test_coded_ranges_that_no_sender_makes_are_refused() -> None:
    data = octets(*b"abracadabra" * 30)
    good = rans.encode(data)
    one = torch.ones(1, dtype=torch.int16)
    bad = [
        good._replace(present=good.present[:-1]),
        good._replace(present=~good.present),
        good._replace(counts=good.counts[:-1]),
        good._replace(counts=torch.cat([good.counts, one])),
        good._replace(counts=good.counts + 1),
        good._replace(counts=torch.cat([good.counts[:-2], good.counts[-1:] + good.counts[-2:-1] + 1, -one])),
        good._replace(words=good.words[:-1]),
        good._replace(words=torch.cat([good.words, one])),
        good._replace(words=good.words[:3]),
        good._replace(words=good.words[:0]),
    ]
    for coded in bad:
        with pytest.raises(WireError):
            rans.decode(coded, 330)
    draw, different = random.Random(2), 0
    for _ in range(300):  # a word that is another one is noticed, or else decodes to other bytes: nothing else happens
        words = good.words.clone()
        words[draw.randrange(len(words))] ^= 1 << draw.randrange(15)
        try:
            different += not rans.decode(good._replace(words=words), 330).equal(data)
        except WireError:
            different += 1
    assert different == 300
