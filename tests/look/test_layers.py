"""Layers in norms, by hand: scores, how often each was recycled, kappa."""

from __future__ import annotations

import pytest

from thinwire.look.layers import kappas, layers

LINES = [
    {"round": 1, "layers": {"a": [3.0, 6.0], "b": [4.0, 2.0]}, "unsent": [], "change": {"norm": 5.0}},
    {"round": 2, "layers": {"a": [0.3, 0.0], "b": [0.4, 4.0]}, "unsent": ["a"], "change": {"norm": 0.5}},
    {"round": 3},
]


def test_a_layer_has_the_means_of_its_rounds() -> None:
    a, b = layers(LINES)
    # A layer of zeros has score 0: (3 / 6 + 0) / 2. Of b it is (4 / 2 + .4 / 4) / 2.
    assert a == ("a", pytest.approx(1.65), 3.0, 0.25, pytest.approx(0.36), 1)
    assert b == ("b", pytest.approx(2.2), 3.0, pytest.approx(1.05), pytest.approx(0.64), 0)


def test_kappa_is_the_share_of_what_was_recycled() -> None:
    assert kappas(LINES) == [(1, [], 0.0), (2, ["a"], pytest.approx(0.36))]


def test_kappa_is_not_known_of_a_change_that_is_the_servers() -> None:
    line = {"round": 1, "layers": {"a": [3.0, 6.0], "b": [4.0, 2.0]}, "change": {"of": "server", "norm": 5.0}}
    found = kappas([{**line, "unsent": []}, {**line, "unsent": ["a"]}])
    assert [one.kappa for one in found] == [0.0, None]


def test_of_rounds_without_records_there_is_nothing() -> None:
    assert layers([{"round": 1}]) == []
