"""Whole layers, in 32 bits and in 16."""

from __future__ import annotations

import torch
from torch import Size

from problems import LAYOUT, UPDATES, key, seen_by, vector
from thinwire import params
from thinwire.key import Key
from thinwire.links import BF16, Dense, ErrorFeedback, Flat, Half, Layerwise
from thinwire.params import Layout


def test_dense_packets_are_averaged_by_the_one_formula_bit_for_bit() -> None:
    xs, weights = UPDATES, [0.3, 7.0, 1.1]
    whole = [xs[0], xs[1], xs[3]]
    for link in (Dense(), ErrorFeedback(Dense())):
        packets = [link.send(x, link.open(x.zeros())[0], key(0))[0] for x in whole]
        got, _ = link.recv(link.mean(packets, weights), LAYOUT, None, key(0))
        assert got.flat.equal(params.mean([x.flat for x in whole], weights))
    layerwise = Layerwise(Dense())
    packets = [layerwise.send(x, layerwise.open(x)[0], key(0))[0] for x in whole]
    got, _ = layerwise.recv(layerwise.mean(packets, weights), LAYOUT, None, key(0))
    assert got.flat.equal(params.mean([x.flat for x in whole], weights))


def test_halves_that_would_overflow_together_are_averaged_in_32_bits() -> None:
    packet = torch.full((2,), 60_000.0, dtype=torch.float16)
    got, _ = Flat(Half()).recv(Flat(Half()).mean([packet] * 5, [1.0] * 5), Layout(("a",), (Size([2]),)), None, Key(0))
    assert got.flat.tolist() == [60_000.0, 60_000.0]


def test_halves_round_to_even_and_stop_at_their_largest_number() -> None:
    assert seen_by(Half(), vector(1 + 2**-11, 1 + 3 * 2**-11, 1e6, -1e6, 2**-25, 2**-24)) == [
        [1.0, 1.001953125, 65504.0, -65504.0, 0.0, 2**-24]
    ]
    values = vector(1 + 2**-8, 1 + 3 * 2**-8, 1e6, 3.4e38)
    assert seen_by(BF16(), values) == [[1.0, 1.015625, 999424.0, 3.3895313892515355e38]]
