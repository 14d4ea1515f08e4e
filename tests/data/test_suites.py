"""Splits with the sizes of published suites."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.data import Sites, Users, suites

LABELS = torch.arange(2000) * 7 % 10  # 200 of each of ten classes


@pytest.mark.parametrize("name", suites.USERS)
def test_users_are_as_unequal_as_those_of_leaf(name: str) -> None:
    about = suites.USERS[name]
    assert about.examples / about.users == pytest.approx(about.mean, abs=0.006)  # the table agrees with itself
    parts = Users(name)(torch.zeros(4_000_000), None, 1000, seed=2)
    sizes = torch.tensor([len(part) for part in parts]).double()
    deviation = math.log1p((about.deviation / about.mean) ** 2) ** 0.5
    # A standard deviation of 1,000 normal draws is known to 2.2 %: four of those.
    assert sizes.log().std().item() == pytest.approx(deviation, rel=0.09)


@pytest.mark.parametrize(
    ("name", "clients", "examples"),
    [("heart_disease", 4, 740), ("isic2019", 6, 23_247), ("ixi", 3, 566), ("kits19", 6, 96), ("tcga_brca", 6, 1_088)],
)
def test_sites_have_the_sizes_of_flamby(name: str, clients: int, examples: int) -> None:
    parts = Sites(name)(torch.zeros(examples), None, clients, seed=0)
    assert tuple(map(len, parts)) == suites.SITES[name]
    larger = Sites(name)(torch.zeros(10 * examples), None, clients, seed=0)
    assert all(abs(len(part) - 10 * size) <= 10 for part, size in zip(larger, suites.SITES[name], strict=True))


def test_a_small_alpha_sets_sites_apart_and_a_large_one_does_not() -> None:
    def shares(alpha: float) -> torch.Tensor:
        parts = Sites((500, 500, 500, 500), alpha=alpha)(LABELS, None, 4, seed=1)
        return torch.stack([LABELS[part].bincount(minlength=10) / len(part) for part in parts])

    assert shares(1e4).std(0).max() < 0.05
    assert shares(0.01)[0].max() >= 0.4  # the 200 examples of a class, of 500


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 4000))), st.integers(0, 9))
def test_shares_of_a_whole_are_whole_and_near(numbers: tuple[int, int], seed: int) -> None:
    clients, total = numbers
    weights = torch.rand(clients, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3
    counts = suites.share_out(total, weights)
    assert (sum(counts), min(counts) >= 1) == (total, True)
    order = weights.argsort()
    assert torch.equal(torch.tensor(counts)[order].sort().values, torch.tensor(counts)[order])  # more for more
