"""Transform coding: what fits the bytes, what is seen of it, and that it is the same bits everywhere."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys

import pytest
import torch
from torch import Size

import thinwire as tw
from problems import key
from thinwire.errors import WireError
from thinwire.kernels import native
from thinwire.kernels.adaptive import Writer
from thinwire.links import LowRank, TopK, TransformCoding
from thinwire.links.bitstream import CONTEXTS, LEVELS, MODE, _write, most_terms
from thinwire.links.decomposition import Encoder, Layer
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

SHAPES = {"conv": (16, 8, 3, 3), "bias": (16,), "fc": (90, 200), "embedding": (70, 12), "lora": (4, 200), "norm": (90,)}
LAYERS = Layout(tuple(SHAPES), tuple(map(Size, SHAPES.values())))  # 20,898 entries


def update(noise: float = 0.02, seed: int = 3) -> Params:
    """Layers of nearly low rank, as updates are: of ``fc`` terms that halve, of the embedding a few rows."""
    g = torch.Generator().manual_seed(seed)
    x = Params(LAYERS, noise * torch.randn(LAYERS.size, generator=g))
    for k in range(5):
        x["fc"].add_(0.5**k * torch.outer(torch.randn(90, generator=g), torch.randn(200, generator=g)))
    x["conv"].view(16, 72).add_(torch.outer(torch.randn(16, generator=g), torch.randn(72, generator=g)))
    x["embedding"][5:9].add_(torch.randn(4, 12, generator=g))
    return x


X = update()


def lost(link: tw.Link, x: Params = X) -> tuple[int, float]:
    """Bytes, and the share of the squared length that is not seen."""
    packet, seen, _ = link.send(x, link.open(x)[0], key(0))
    got, _ = link.recv(loads(dumps(packet)), x.layout, None, key(0))
    assert got.flat.equal(seen.flat)
    return len(dumps(packet)), ((x - seen).norm() / x.norm()) ** 2


def test_more_bytes_leave_less_error_and_are_never_exceeded() -> None:
    found = [lost(TransformCoding(most)) for most in (30, 100, 400, 1_000, 4_000, 20_000)]
    for (size, _), most in zip(found, (30, 100, 400, 1_000, 4_000, 20_000), strict=True):
        assert size <= most
        assert size > 0.9 * most or most == 30  # a single term or none more
    errors = [error for _, error in found]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 1
    assert errors[3] < 0.1
    assert errors[5] < 1e-3


def test_of_a_layer_of_four_terms_and_noise_more_bytes_leave_no_more_error() -> None:
    # Its singular values are many times its largest entry: with a step that is fine enough for entries alone, levels of
    # terms came to an end, and 4,000 bytes left .40 of the squared length where 2,700 left 1e-5.
    draw = torch.Generator().manual_seed(2)
    left, right, noise = (torch.randn(shape, generator=draw) for shape in ((64, 4), (4, 64), (64, 64)))
    x = Params.of([("w", left @ right + 0.01 * noise)])
    errors = [lost(TransformCoding(most), x)[1] for most in (1_500, 2_700, 4_000, 6_000, 12_000)]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 1e-4


def test_entries_of_a_long_narrow_layer_fill_the_bytes() -> None:
    # All of its levels are zeros or ones, so bytes jump with the step: 778 bytes left more error than 600.
    x = Params.of([("w", torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0)))])
    (_, few), (size, more) = (lost(TransformCoding(most), x) for most in (600, 778))
    assert size > 0.7 * 778
    assert more < few


def test_an_update_of_nearly_low_rank_is_seen_better_than_other_links_do_with_more_bytes() -> None:
    (few, own), (low, rank), (top, sparse) = lost(TransformCoding(1_500)), lost(LowRank(2)), lost(TopK(0.1))
    assert few < low / 2
    assert few < top / 2
    assert own < rank
    assert own < sparse


@pytest.mark.parametrize("every", [2, 8, 64])
def test_a_layer_of_low_rank_is_seen_as_well_whichever_of_its_columns_are_dead(every: int) -> None:
    generator = torch.Generator().manual_seed(1)
    layer = torch.randn(512, 3, generator=generator) @ torch.randn(3, 1024, generator=generator)
    layer += 0.2 * torch.randn(512, 1024, generator=generator)
    layer[:, ::every] = 0
    size, left = lost(TransformCoding(3000), Params.of([("w", layer)]))
    assert size <= 3000
    assert left < 0.05  # a fixed stride left 0.9997; noise alone is 0.013


def test_bytes_that_hold_the_numbers_themselves_carry_them_as_they_are() -> None:
    assert lost(TransformCoding(4 * 20_898 + 8)) == (83_600, 0.0)
    size, error = lost(TransformCoding(4 * 20_898 + 7))
    assert size <= 83_599
    assert 0 < error < 1e-7


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_share_of_the_squared_length_is_seen_at_least(share: float) -> None:
    size, error = lost(TransformCoding(share=share))
    assert (1 - share) / 2 < error <= (1 - share) * (1 + 1e-6)
    assert size < {0.3: 100, 0.9: 400, 0.999: 13_000}[share]


def test_a_rate_is_so_many_bits_an_entry_and_64_bytes() -> None:
    size, _ = lost(TransformCoding(rate=0.5))
    assert 1_300 < size <= 1_307 + 64  # 20,898 entries, half a bit each


def test_it_costs_nothing_to_send_zeros_and_little_to_send_a_single_entry() -> None:
    packet, seen, _ = TransformCoding(100).send(LAYERS.zeros(), None, key(0))
    assert len(dumps(packet)) == 4
    assert not seen.flat.any()
    one = LAYERS.zeros()
    one["fc"][3, 7] = -2.5
    size, error = lost(TransformCoding(26), one)
    assert size <= 26
    assert error < 0.02


@pytest.mark.parametrize("few", [1, 7, 8, 9, 10])
def test_too_few_bytes_for_a_single_entry_are_refused(few: int) -> None:
    with pytest.raises(ValueError, match=rf"TransformCoding\({few}\): a single entry of .* takes more; raise bytes"):
        TransformCoding(few).send(X, None, key(0))


@pytest.mark.parametrize(
    ("link", "shape"),
    [
        (TransformCoding(10), (3, 5)),
        (TransformCoding(10), (1_000, 3_000)),
        (TransformCoding(64), (400_000,)),
        (TransformCoding(rate=1e-6), (400_000,)),
    ],
)
def test_the_bytes_that_a_refusal_names_hold_a_message(link: tw.Link, shape: tuple[int, ...]) -> None:
    x = Params.of([("small", torch.zeros(7)), ("w", torch.zeros(shape)), ("last", torch.zeros(9))])
    x["w"].view(-1)[-1] = 2.0  # what takes most: zeros before it are coded one by one
    with pytest.raises(ValueError, match=r"a single entry of .* takes more; (raise|give) bytes") as caught:
        link.send(x, None, key(0))
    said = re.search(r"(?:to |bytes=)(\d+)", str(caught.value))
    assert said is not None
    size, error = lost(TransformCoding(int(said[1])), x)
    assert size <= int(said[1])
    assert error == 0


def test_64_bytes_hold_an_entry_of_a_large_matrix() -> None:
    x = Params.of([("w", torch.randn(1_000, 3_000, generator=torch.Generator().manual_seed(0)))])
    size, error = lost(TransformCoding(64), x)
    assert size <= 64
    assert error < 1


def test_a_message_does_not_depend_on_the_scale_of_an_update() -> None:
    packet, _, _ = TransformCoding(1_000).send(X, None, key(0))
    larger, _, _ = TransformCoding(1_000).send(X * 2.0**40, None, key(0))
    assert packet[4:].equal(larger[4:])


PACKET = TransformCoding(3_000).send(X, None, key(0))[0]


@pytest.mark.slow
def test_what_is_seen_is_the_same_bits_at_every_level_and_with_any_number_of_threads() -> None:
    before, expected = native._level(), TransformCoding(3_000).recv(PACKET, LAYERS, None, key(0))[0]
    sent = {}
    try:
        for level in ("reference", *native.LEVELS):
            native.use(level)
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                got, _ = TransformCoding(3_000).recv(PACKET, LAYERS, None, key(0))
                assert got.flat.equal(expected.flat), (level, threads)
                packet, seen, _ = TransformCoding(3_000).send(X, None, key(0))  # the packet may be another one
                sent[level, threads] = packet, seen
        native.use(before)
        torch.set_num_threads(1)
        for where, (packet, seen) in sent.items():
            assert TransformCoding(3_000).recv(packet, LAYERS, None, key(0))[0].flat.equal(seen.flat), where
    finally:
        torch.set_num_threads(1)
        native.use(before)


@pytest.mark.soak
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_what_is_seen_is_the_same_bits_whatever_torch_computes_with(capability: str) -> None:
    expected = TransformCoding(3_000).recv(PACKET, LAYERS, None, key(0))[0].flat.numpy().tobytes()
    program = f"""
import hashlib
from torch import Size
import thinwire as tw
layout = tw.Layout({tuple(SHAPES)!r}, tuple(map(Size, {tuple(SHAPES.values())!r})))
packet = tw.loads(bytes.fromhex({dumps(PACKET).hex()!r}))
seen = tw.parse("TransformCoding(3000)").recv(packet, layout, None, tw.Key(0))[0]
print(hashlib.sha256(seen.flat.numpy().tobytes()).hexdigest())
"""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "THINWIRE_KERNELS": "reference"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize("step", [0.02, 0.3])
def test_layers_that_are_rounded_together_are_coded_as_each_would_be_alone(step: float) -> None:
    g = torch.Generator().manual_seed(1)
    shapes = [(32, 48), (48, 32), (7,), (20, 48), (9, 9), (200, 100), (48, 32)]
    layers = [Layer(torch.randn(shape, generator=g) / 4, tw.Key(i)) for i, shape in enumerate(shapes)]
    for layer in layers:
        layer.decompose(16)
    some = [torch.arange(0, len(layer.s), 1 + i % 3) for i, layer in enumerate(layers)]
    ways = list(zip([2, 2, 1, 2, 0, 2, 1], some, strict=True))
    ways[3] = 2, some[3][:0]  # no term is sent: it is as if nothing was
    together = Encoder(layers, ways).encode(step)
    assert [part.mode for part in together] == [1 + len(some[0]), 1 + len(some[1]), 1, 0, 0, 1 + len(some[5]), 1]
    for part, layer, way in zip(together, layers, ways, strict=True):
        (alone,) = Encoder([layer], [way]).encode(step)
        assert part[:3] == alone[:3]
        assert all(torch.equal(x, y) for x, y in zip(part[3:], alone[3:], strict=True))


def test_error_feedback_goes_around_it_and_brings_everything_across_in_the_end() -> None:
    link = tw.ErrorFeedback(TransformCoding(300))
    tx, total = link.open(X)[0], X.zeros()
    for t in range(12):
        _, seen, tx = link.send(X if t == 0 else X.zeros(), tx, key(t))
        total = total + seen
    assert ((X - total).norm() / X.norm()) ** 2 < lost(TransformCoding(300))[1] / 3


def test_the_modes_of_many_layers_may_be_more_bits_than_there_are() -> None:
    x = Params(Layout(tuple(map(str, range(3_000))), (Size([2]),) * 3_000), torch.zeros(6_000))
    x.flat[:4_000] = torch.linspace(0.1, 1.0, 4_000)
    size, error = lost(TransformCoding(64), x)
    assert size <= 64
    assert error < 1


def test_a_few_bytes_that_stand_for_a_thousand_terms_are_refused_before_any_is_multiplied() -> None:
    # Beyond the last byte a reader reads zeros: these are the mode of 400 terms and the level 1 of the first.
    wide, writer = Layout(("w",), (Size([2_000, 2_000]),)), Writer(CONTEXTS, 100)
    _write(writer, [401], MODE, negative=False)
    _write(writer, [1, *[0] * 399], LEVELS)
    coded = writer.bytes()
    assert coded is not None
    packet = torch.cat([torch.tensor([0, 0, 128, 63], dtype=torch.uint8), coded])  # the step 1.0
    assert len(packet) < 20
    with pytest.raises(WireError, match="4 bytes a term expected"):
        TransformCoding(3_000).check(packet, wide, None, key(0))


def test_more_terms_than_any_sender_sends_are_refused() -> None:
    assert [most_terms(shape) for shape in LAYERS.shapes] == [6, 0, 31, 5, 1, 0]
    with pytest.raises(WireError):
        TransformCoding(3_000).recv(PACKET, LAYERS.only(["conv"]), None, key(0))
    with pytest.raises(WireError, match="at most 100 bytes"):
        TransformCoding(100).recv(PACKET, LAYERS, None, key(0))
