"""The largest of every chunk, bins and cosines: beside independent ones in numpy and scipy, by hand, and in bytes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import torch

from thinwire import Key, dumps
from thinwire.links import DCT, Bins, ChunkTopK, Dense, Link
from thinwire.links.chunk import Chunks
from thinwire.params import Params

KEY = Key(0, 1)


def matrices(*shapes: tuple[int, ...], seed: int = 0) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return Params.of((f"w{i}", torch.randn(shape, generator=generator) * (i + 1)) for i, shape in enumerate(shapes))


def seen(link: Link, x: Params) -> Params:
    return link.send(x, link.open(x.zeros())[0], KEY)[1]


def largest(chunks: np.ndarray, k: int) -> np.ndarray:
    """Of each row the k entries of largest magnitude, the others zero."""
    kept = np.zeros_like(chunks)
    for row, out in zip(chunks, kept, strict=True):
        for i in sorted(range(len(row)), key=lambda i: -abs(row[i]))[:k]:
            out[i] = row[i]
    return kept


def in_bins(values: np.ndarray, levels: int) -> np.ndarray:
    """A uniform quantiser as it is usual: bins by mean and deviation, and their means."""
    shift = values.mean()
    centred = values - shift
    scale = 6 * np.linalg.norm(centred) / np.sqrt(len(values) - 1) / levels
    code = np.clip(np.round(centred / scale + levels // 2), 0, levels - 1)
    return np.array([centred[code == own].mean() + shift for own in code])


@pytest.mark.parametrize("levels", [0, 4, 256])
@pytest.mark.parametrize("rows", [False, True], ids=["blocks", "rows"])
def test_what_is_seen_is_what_an_independent_listing_delivers(rows: bool, levels: int) -> None:
    x = matrices((128, 192), (64, 64))
    link = ChunkTopK(2 if rows else 32, values=Bins(levels) if levels else Dense(), rows=rows)
    found = seen(link, x)
    for name, layer in x.items():
        w = layer.numpy().astype(np.float64)
        tall, wide = w.shape
        if rows:
            kept = largest(w.reshape(-1, 64), 2).reshape(w.shape)
        else:
            blocks = w.reshape(tall // 64, 64, wide // 64, 64).swapaxes(1, 2)
            kept = largest(blocks.reshape(-1, 4096), 32).reshape(blocks.shape).swapaxes(1, 2).reshape(w.shape)
        sent = kept != 0
        if levels:
            kept[sent] = in_bins(kept[sent], levels)
        assert (found[name].numpy() != 0)[~sent].sum() == 0
        np.testing.assert_allclose(found[name].numpy(), kept, rtol=1e-5, atol=1e-6)


def test_edges_have_smaller_chunks_and_vectors_are_one() -> None:
    # 3 x 5 in chunks of 2 x 2: areas of 2 x 4, 2 x 1, 1 x 4, 1 x 1; of four entries one is sent, of fewer one too.
    w = torch.tensor([[1.0, 2, 3, 4, 9], [5, -6, 7, 8, 1], [4, 3, 2, 1, -1]])
    x = Params.of(
        [("w", w), ("a", torch.tensor([1.0, 5, 2])), ("b", torch.tensor([3.0, -4])), ("c", torch.tensor(2.0))]
    )
    found = seen(ChunkTopK(1, chunk=2), x)
    assert found["w"].tolist() == [[0, 0, 0, 0, 9], [0, -6, 0, 8, 0], [4, 0, 2, 0, -1]]
    # 1 5 2 3 | -4 2
    assert [found[name].flatten().tolist() for name in "abc"] == [[0, 5, 0], [0, -4], [0]]


def test_of_equal_magnitudes_the_first_are_sent_and_zeros_are_not() -> None:
    x = Params.of([("w", torch.tensor([[2.0, -2, 2, 2], [0, 0, 0, 0], [0, 1, 0, 0]]))])
    assert seen(ChunkTopK(2, chunk=4, rows=True), x)["w"].tolist() == [[2, -2, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


def test_cutting_and_joining_is_nothing() -> None:
    for shape in ((7, 11), (8, 12), (1, 9), (3, 2)):
        chunks = Chunks(shape, 4, 4)
        w = torch.randn(shape)
        areas = chunks.cut(w)
        assert [area.shape for area in areas] == chunks.sizes()
        assert torch.equal(chunks.join(torch.cat([area.reshape(-1) for area in areas])), w)


def test_a_message_is_two_hundred_times_smaller() -> None:
    # A transformer of 421,697 parameters; of random numbers, whose positions are as dear as can be.
    block = [
        (128,),
        (128,),
        (384, 128),
        (384,),
        (128, 128),
        (128,),
        (128,),
        (128,),
        (512, 128),
        (512,),
        (128, 512),
        (128,),
    ]
    x = matrices((65, 128), (64, 128), *block, *block, (128,), (128,), (65,))
    link = ChunkTopK(64, values=Bins(4))
    packet, decoded, _ = link.send(x, None, KEY)
    sent = int((decoded.flat != 0).sum())
    assert 4 * x.flat.numel() / len(dumps(packet)) > 215
    assert 8 * len(dumps(packet)) / sent < 9.3  # for the 14 bits of an index of 12 and a value of 2


def test_a_position_takes_seven_and_a_half_bits_and_a_value_one() -> None:
    packet, decoded, _ = ChunkTopK(64, values=Bins(4)).send(matrices((1024, 1024)), None, KEY)
    (where, _), values = packet
    sent = int((decoded.flat != 0).sum())
    assert 8 * len(dumps(where)) / sent == pytest.approx(7.53, abs=0.02)
    assert 8 * len(dumps(values)) / sent == pytest.approx(1.02, abs=0.02)


@pytest.mark.parametrize("shape", [(64, 128), (70, 130), (8, 3, 5), (200,)])
def test_cosines_are_those_of_scipy(shape: tuple[int, ...]) -> None:
    x = matrices(shape)
    found = DCT(Dense())._each(x, forward=True)["w0"].numpy()
    flat = x["w0"].numpy().astype(np.float64)
    w = flat.reshape(flat.shape[0], -1) if len(shape) > 1 else flat.reshape(1, -1)
    expected = w.copy()
    for axis, side in enumerate(w.shape):
        for start in range(0, side, 64):
            part = [slice(None), slice(None)]
            part[axis] = slice(start, min(start + 64, side))
            expected[tuple(part)] = scipy.fft.dct(expected[tuple(part)], axis=axis, norm="ortho")
    np.testing.assert_allclose(found.reshape(w.shape), expected, atol=2e-5)
    np.testing.assert_allclose(seen(DCT(Dense()), x)["w0"].numpy(), flat, atol=2e-5)
