"""The lossless last stage: which way is taken, and what is refused."""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import zstandard
from torch import Size, Tensor

from problems import key, noise, octets, once, vector
from thinwire.errors import WireError
from thinwire.kernels import rans
from thinwire.key import Key
from thinwire.links import EF21, LBGM, QSGD, STC, Codec, Dense, Entropy, Int8, Layerwise, Link, TopK, entropy_bound
from thinwire.links.entropy import limit
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


def test_the_entropy_bound_by_hand() -> None:
    assert entropy_bound(b"") == 0.0
    assert entropy_bound(b"aaaa") == 0.0
    assert entropy_bound(b"abababab") == 1.0  # a bit a byte
    assert entropy_bound(bytes(range(256))) == 256.0
    assert entropy_bound(b"aaab") == pytest.approx((3 * math.log2(4 / 3) + 2) / 8)


INNER = [Dense(), TopK(0.1), QSGD(4), Int8(), STC(0.05), LBGM(), EF21(Int8())]


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_the_last_stage_changes_nothing_but_the_bytes(inner: Link) -> None:
    x = noise(3_000)
    assert once(Entropy(inner), x)[1] == once(inner, x)[1]
    for flag in ("contraction", "memory", "absolute"):
        assert getattr(Entropy(inner), flag) is getattr(inner, flag)
    assert not Entropy(inner).linear


STORED, ZSTD, RANS, LEVELS = range(4)


def falling() -> Params:
    """A layer whose rows are of different sizes."""
    g = torch.Generator().manual_seed(0)
    return Params.of([("a", torch.randn(100, 200, generator=g) * torch.logspace(0, -4, 100)[:, None])])


@pytest.mark.parametrize(
    ("inner", "x", "way", "plain", "coded"),
    [
        (STC(0.01), noise(20_000), STORED, 254, 258),
        (Dense(), vector(*([0.5] * 10_000)), ZSTD, 40_008, 35),
        (Int8(), noise(100_000), RANS, 100_016, 86_260),
        (Int8(), falling(), LEVELS, 20_016, 5_276),
        (QSGD(16), noise(20_000), STORED, 1_381, 1_385),
    ],
)
def test_the_shortest_of_four_ways_is_taken(inner: Link, x: Params, way: int, plain: int, coded: int) -> None:
    packet, _ = once(Entropy(inner), x)
    assert packet[0] == way
    assert (len(dumps(once(inner, x)[0])), len(dumps(packet))) == (plain, coded)


def test_range_coding_comes_within_a_percent_of_the_bound_and_beats_zstd_where_most_are_alike() -> None:
    x = noise(200_000)
    for link, zstd in [(Int8(), 1.005)]:
        data = dumps(once(link, x)[0])
        packet, _ = once(Entropy(link), x)
        assert entropy_bound(data) < len(dumps(packet)) < 1.01 * entropy_bound(data) + 250
        assert len(zstandard.ZstdCompressor(level=3).compress(data)) > zstd * len(dumps(packet))


def test_a_packet_too_long_to_be_decompressed_is_sent_as_it_is() -> None:
    @dataclass(frozen=True)
    class Long(Codec):
        """A megabyte of zeros, whatever the layer."""

        def encode(self, x: Tensor, key: Key) -> Any:
            return torch.zeros(250_000)

        def decode(self, packet: Any, shape: Size, key: Key) -> Tensor:
            return packet.sum() + torch.zeros(shape)

    x = vector(1.0)
    assert limit(x.layout) == 5 + 2_048
    packet, _ = once(Entropy(Long()), x)
    assert packet[0] == STORED
    packet, _ = once(Entropy(Long()), noise(200_000))
    assert packet[0] == ZSTD


def frame(data: bytes) -> Tensor:
    return octets(*zstandard.ZstdCompressor().compress(data))


def announced(size: int) -> Tensor:
    """A frame that says it holds so many bytes: magic number, a header of eight bytes of size, an empty last block."""
    return octets(0x28, 0xB5, 0x2F, 0xFD, 0xE0, *size.to_bytes(8, "little"), 1, 0, 0)


def ranged(data: bytes, size: int | None = None) -> list[Any]:
    return [RANS, len(data) if size is None else size, *rans.encode(octets(*data))]


GOOD = dumps([torch.tensor([1.0, 2.0])])  # of Dense, by layer


HOSTILE_CODED = {
    "nothing": None,
    "bytes alone": frame(GOOD),
    "no way": [],
    "a way alone": [ZSTD],
    "an unknown way": [3, frame(GOOD)],
    "a way that is true": [True, frame(GOOD)],
    "a negative way": [-1, [torch.ones(2)]],
    "two stored": [STORED, [torch.ones(2)], [torch.ones(2)]],
    "stored and wrong": [STORED, [torch.ones(3)]],
    "a frame of text": [ZSTD, "frame"],
    "a frame of numbers": [ZSTD, torch.ones(20)],
    "a frame in two dimensions": [ZSTD, frame(GOOD).view(1, -1)],
    "no frame": [ZSTD, octets()],
    "not a frame": [ZSTD, octets(1, 2, 3, 4, 5, 6, 7, 8, 9)],
    "half a frame": [ZSTD, frame(GOOD)[:-3]],
    "a frame and more": [ZSTD, torch.cat([frame(GOOD), octets(0)])],
    "two frames": [ZSTD, torch.cat([frame(GOOD), frame(GOOD)])],
    "a skippable frame": [ZSTD, octets(0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 7)],
    "a frame of nothing": [ZSTD, frame(b"")],
    "a frame of no message": [ZSTD, frame(b"hello")],
    "a frame of another message": [ZSTD, frame(dumps([torch.ones(3)]))],
    "a frame within a frame": [ZSTD, frame(dumps(frame(GOOD)))],
    "a frame that blows up": [ZSTD, frame(bytes(10_000_000))],
    "a frame that says so": [ZSTD, announced(1 << 60)],
    "a frame that says too little": [ZSTD, torch.cat([announced(3)[:-3], frame(bytes(5_000))[5:]])],
    "a frame with a NaN": [ZSTD, frame(dumps([torch.tensor([1.0, math.nan])]))],
    "range coding of nothing": [RANS],
    "range coding that says too much": ranged(GOOD, 1 << 60),
    "range coding of minus one byte": ranged(GOOD, -1),
    "range coding of no byte": ranged(GOOD, 0),
    "range coding of a byte too few": ranged(GOOD, len(GOOD) - 1),
    "range coding of a byte too many": ranged(GOOD, len(GOOD) + 1),
    "range coding of a size that is true": ranged(GOOD, True),
    "range coding of a NaN": ranged(dumps([torch.tensor([1.0, math.nan])])),
    "range coding of no message": ranged(b"hello"),
    "levels of nothing": [LEVELS],
    "levels without numbers": [LEVELS, [torch.ones(2)]],
    "levels of another number": [LEVELS, [torch.ones(2)], [2, 0, octets(7)]],
    "levels that say too much": [LEVELS, [torch.zeros(0, dtype=torch.int8)], [1 << 40, 0, octets(7)]],
    "levels of a negative length": [LEVELS, [torch.zeros(0, dtype=torch.int8)], [-1, 0, octets(7)]],
    "levels of a row of text": [LEVELS, [torch.zeros(0, dtype=torch.int8)], [2, "0", octets(7)]],
    "levels for a row that is there": [LEVELS, [torch.zeros(2, dtype=torch.int8)], [2, 0, octets(7)]],
}


@pytest.mark.parametrize("packet", HOSTILE_CODED.values(), ids=HOSTILE_CODED.keys())
def test_hostile_coded_packets_are_refused(packet: Any) -> None:
    layout = Layout(("a",), (Size([2]),))
    for good in ([STORED, [torch.tensor([1.0, 2.0])]], [ZSTD, frame(GOOD)], ranged(GOOD)):
        assert Entropy(Layerwise(Dense())).recv(loads(dumps(good)), layout, None, key(0))[0].flat.tolist() == [1.0, 2.0]
    with pytest.raises(WireError):
        Entropy(Layerwise(Dense())).recv(loads(dumps(packet)), layout, None, key(0))


def test_a_frame_that_blows_up_takes_no_memory() -> None:
    bomb = [ZSTD, frame(bytes(300_000_000))]
    assert bomb[1].numel() < 20_000
    data, layout = loads(dumps(bomb)), Layout(("a",), (Size([2]),))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WireError, match="no more bytes than accepted"):
        Entropy(Dense()).recv(data, layout, None, key(0))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes; it would take 300 MB
