"""ATOMO: the chances of atoms, and how many are sent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size

from problems import KNOWN, gaussian, lost, seen_of
from thinwire.errors import WireError
from thinwire.key import Key
from thinwire.links import ATOMO
from thinwire.links.atomo import probabilities
from thinwire.params import Layout
from thinwire.wire import dumps


@pytest.mark.parametrize(
    ("values", "budget", "expected"),
    [
        # Algorithm 1 by hand: 6 * 2 > 10, so the first is certain; 2 * 1 <= 4, so the rest share what is left
        ((6.0, 2.0, 1.0, 1.0), 2, (1.0, 0.5, 0.25, 0.25)),
        ((6.0, 2.0, 1.0, 1.0), 1, (0.6, 0.2, 0.1, 0.1)),
        ((3.0, 2.0, 2.0, 1.0), 2, (0.75, 0.5, 0.5, 0.25)),
        ((5.0, 3.0, 1.0, 1.0), 3, (1.0, 1.0, 0.5, 0.5)),  # 15 > 10, 6 > 5, 1 <= 2
        ((1.0, 1.0, 1.0, 1.0), 3, (0.75, 0.75, 0.75, 0.75)),
        ((4.0, 0.0, 0.0, 0.0), 2, (1.0, 0.0, 0.0, 0.0)),
        ((0.0, 0.0, 0.0, 0.0), 2, (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_chances_of_atoms_are_those_of_the_papers_algorithm(
    values: tuple[float, ...], budget: int, expected: tuple[float, ...]
) -> None:
    found = probabilities(torch.tensor(values, dtype=torch.float64), budget)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=9), st.integers(1, 4))
def test_chances_are_chances_and_add_up_to_the_budget(values: list[float], budget: int) -> None:
    p = probabilities(torch.tensor(sorted(values, reverse=True), dtype=torch.float64), budget)
    assert p.min() > 0
    assert p.max() <= 1
    assert p.sum().item() == pytest.approx(budget, rel=1e-9)


def test_atoms_are_right_on_average_with_the_variance_that_their_chances_give() -> None:
    # Chances .6, .2, .1, .1: the variance is 36/.6 + 4/.2 + 1/.1 + 1/.1 - 42 = 58, 3.625 an entry.
    rounds, total, squares = 800, torch.zeros(4, 4, dtype=torch.float64), 0.0
    for t in range(rounds):
        seen = seen_of(ATOMO(1), KNOWN, Key(1, t))
        total += seen
        squares += lost(KNOWN, seen)
    # Five standard errors: 5 sqrt(3.625 / 800)
    assert (total / rounds - KNOWN).abs().max() < 0.337
    assert squares / rounds == pytest.approx(58.0, rel=0.1)


def test_as_many_atoms_are_sent_as_asked_for_on_average() -> None:
    # 40 x 60, singular values far from alike: between 5 and 15 sent, each 100 floats.
    x = (gaussian(40, 40) * torch.logspace(0, -1.5, 40)) @ gaussian(40, 60, seed=1)
    counts = [len(ATOMO(8).encode(x, Key(1, t))) / 100 for t in range(400)]
    assert all(count == int(count) for count in counts)
    assert len(set(counts)) > 5
    # The variance is at most 8 and the standard error of the mean at most 0.14.
    assert sum(counts) / 400 == pytest.approx(8.0, abs=0.6)


def test_atoms_that_would_be_longer_than_the_layer_are_sent_as_their_sum() -> None:
    # 4 x 4: one atom is 8 floats, two would be the 16 of the layer.
    sizes = [len(ATOMO(1).encode(KNOWN, Key(1, t))) for t in range(300)]
    assert {size: sizes.count(size) > 30 for size in set(sizes)} == {0: True, 8: True, 16: True}


def test_rounds_clients_and_layers_draw_atoms_of_their_own() -> None:
    x = gaussian(40, 60)
    keys = [Key(1, 1, 1, "a"), Key(1, 2, 1, "a"), Key(1, 1, 2, "a"), Key(1, 1, 1, "b"), Key(2, 1, 1, "a")]
    drawn = [dumps(ATOMO(8).encode(x, key)) for key in keys]
    assert len(set(drawn)) == 5
    assert drawn[0] == dumps(ATOMO(8).encode(x, keys[0]))


def test_a_layer_that_is_sent_whole_takes_no_atoms() -> None:
    square = Layout(("a",), (Size([4, 4]),))
    with pytest.raises(WireError):
        ATOMO(2).recv([torch.zeros(8)], square, None, Key(1))  # rank 1 would fit, rank 2 never does
