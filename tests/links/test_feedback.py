"""What is owed and what was last seen: ErrorFeedback and EF21 by hand."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Size

from problems import key, rounds, seen_by, through, vector
from thinwire.links import (
    EF21,
    STC,
    Entropy,
    ErrorFeedback,
    Flat,
    Half,
    Int8,
    Layerwise,
    Link,
    RandK,
    RandomBlock,
    TopK,
)
from thinwire.params import Layout, Params


def test_error_feedback_by_hand() -> None:
    """Numpy, top-1:

    e = 0; for x in xs: p = x + e; s = where(|p| == max |p|, p, 0); e = p - s
    """
    xs = [vector(4.0, 3.0, 1.0), vector(1.0, 1.0, 1.0), vector(0.0, 0.0, 1.0), vector(0.0, 0.0, 0.0)]
    results = list(rounds(ErrorFeedback(TopK(0.01)), *xs))
    assert [seen for _, seen, _ in results] == [[4, 0, 0], [0, 4, 0], [0, 0, 3], [1, 0, 0]]
    assert [tx.residual.flat.tolist() for _, _, tx in results] == [[0, 3, 1], [1, 0, 2], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "link",
    [
        TopK(0.2),
        TopK(0.2, values=Half()),
        TopK(0.2, sampled=True),
        RandK(0.3),
        RandomBlock(3.0),
        Flat(TopK(0.1)),
        Flat(RandomBlock(3.0)),
        Layerwise(TopK(0.1)),
        Half(),
        Entropy(TopK(0.2)),
    ],
    ids=repr,
)
def test_what_error_feedback_delivers_and_what_it_still_owes_is_all_it_was_given(link: Link) -> None:
    # Multiples of 1/64 below 64: every sum is exact in 32 bits.
    draw = random.Random(3)
    layout = Layout(("a", "b"), (Size([4, 5]), Size([7])))
    feedback = ErrorFeedback(link)
    tx, _ = feedback.open(layout.zeros())
    given_, delivered = torch.zeros(27), torch.zeros(27)
    for t in range(30):
        x = Params(layout, torch.tensor([draw.randint(-99, 99) / 64 for _ in range(27)]))
        _, seen, tx = feedback.send(x, tx, key(t))
        given_ += x.flat
        delivered += seen.flat
        assert (delivered + tx.residual.flat).equal(given_)
    assert tx.residual.flat.abs().max() > 0 or isinstance(link, Half)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "link",
    [Int8(), STC(0.2), Flat(STC(0.1)), TopK(0.2, values=Int8()), Entropy(STC(0.2)), RandomBlock(4.0)],
    ids=repr,
)
def test_error_feedback_delivers_all_it_was_given_but_for_its_residual(link: Link) -> None:
    feedback, layout = ErrorFeedback(link), Layout(("a", "b"), (Size([4, 5]), Size([7])))
    tx, _ = feedback.open(layout.zeros())
    given_, delivered = torch.zeros(27, dtype=torch.float64), torch.zeros(27, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    for t in range(40):
        x = Params(layout, torch.randn(27, generator=generator))
        _, seen, tx = feedback.send(x, tx, key(t))
        given_, delivered = given_ + x.flat, delivered + seen.flat
    assert (delivered + tx.residual.flat - given_).abs().max() < 1e-4
    assert 1e-3 < tx.residual.flat.abs().max() < 100
    assert given_.abs().max() > 5


def test_layers_that_a_round_leaves_out_keep_their_residual() -> None:
    x = Params.of([("a", torch.tensor([4.0, 1.0])), ("b", torch.tensor([8.0, 2.0]))])
    link = ErrorFeedback(TopK(0.5))
    _, _, tx = link.send(x, link.open(x.zeros())[0], key(0))
    assert tx.residual.flat.tolist() == [0, 1, 0, 2]
    _, seen, tx = link.send(x.zeros().drop(["a"]), tx, key(1))
    assert seen.flat.tolist() == [0, 2]
    assert tx.residual.flat.tolist() == [0, 1, 0, 0]


def test_ef21_by_hand() -> None:
    """Numpy, top-1 of two: g = 0; for x in xs: d = x - g; g += where(|d| == max |d|, d, 0)."""
    xs = [vector(4.0, 3.0), vector(4.0, 3.0), vector(5.0, 1.0), vector(5.0, 1.0), vector(5.0, 1.0)]
    assert seen_by(EF21(TopK(0.5)), *xs) == [[4, 0], [4, 3], [4, 1], [5, 1], [5, 1]]


def test_ef21_starts_at_what_both_ends_know() -> None:
    start = vector(10.0, 20.0)
    link = EF21(TopK(0.5))
    tx, rx = link.open(start)
    _, seen, tx, rx = through(link, vector(11.0, 25.0), tx, rx, key(0))
    assert seen.flat.tolist() == [10, 25]
    _, seen, tx, rx = through(link, vector(11.0, 25.0), tx, rx, key(1))
    assert seen.flat.tolist() == [11, 25]
    assert rx.flat.tolist() == [11, 25]
