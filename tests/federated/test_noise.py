"""Noise of the clients' own below a secure sum: how it is drawn, how much there is of it, and what that amounts to."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thinwire as tw
from blobs import blobs, chosen, mlp
from test_federation import ALL, Still, method, pulls
from test_secret import Confidants, model
from thinwire import Privacy, SecureSum
from thinwire.deploy.client import Node
from thinwire.errors import CombinationError, RunError
from thinwire.federated.secure.gaussian import CLOSE, Coins, gaussian, laplace
from thinwire.federated.secure.noise import convert

SECRET = "FedAvg(up=SecureSum(clip=4.0, most=64), weights='uniform')"


# -- drawing ---------------------------------------------------------------------


def masses(size: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers, and the probability of each under exp(-x^2 / 2 size^2)."""
    numbers = np.arange(-reach, reach + 1)
    weights = np.exp(-(numbers**2) / (2 * size**2))
    return numbers, weights / weights.sum()


def squared_distance(drawn: np.ndarray, numbers: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Chi squared of the counts, and its degrees of freedom; numbers that are rare are counted as one."""
    counts = np.array([(drawn == number).sum() for number in numbers])
    often = expected * len(drawn) > 8
    counts = np.append(counts[often], len(drawn) - counts[often].sum())
    expected = np.append(expected[often], max(1 - expected[often].sum(), 1e-9)) * len(drawn)
    last = expected[-1] > 1
    gaps = ((counts - expected) ** 2 / expected)[: None if last else -1]
    return float(gaps.sum()), len(gaps) - 1


@pytest.mark.parametrize(
    ("size", "count", "close"),
    [(0.4, 40_000, CLOSE), (1.0, 40_000, CLOSE), (3.3, 40_000, CLOSE), (25.0, 40_000, CLOSE), (1.3, 1_500, 2.0)],
)
def test_each_number_is_as_likely_as_the_distribution_says(size: float, count: int, close: float) -> None:
    """With ``close=2`` floating point decides nothing, and every comparison is made in decimals."""
    drawn = gaussian(count, size, Coins(bytes(32), "test", close))
    found, freedom = squared_distance(drawn, *masses(size, int(12 * size) + 4))
    assert found < freedom + 5 * math.sqrt(2 * freedom)  # five deviations above its mean


def test_the_distribution_that_is_drawn_from_is_the_discrete_laplace() -> None:
    drawn = laplace(40_000, 4, Coins(bytes(32), "test"))
    numbers = np.arange(-80, 81)
    weights = np.exp(-np.abs(numbers) / 4)
    found, freedom = squared_distance(drawn, numbers, weights / weights.sum())
    assert found < freedom + 5 * math.sqrt(2 * freedom)


def test_numbers_are_a_function_of_the_secret_and_of_what_they_are_for() -> None:
    first = gaussian(50, 100.0, Coins(bytes(32), "a"))
    assert (first == gaussian(50, 100.0, Coins(bytes(32), "a"))).all()
    assert (first != gaussian(50, 100.0, Coins(bytes(32), "b"))).any()
    assert (first != gaussian(50, 100.0, Coins(bytes([1] * 32), "a"))).any()
    assert (gaussian(5, 0.0, Coins(bytes(32), "a")) == 0).all()


# -- what it amounts to ----------------------------------------------------------


@pytest.mark.parametrize("deviation", [0.5, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("clients", [2, 5])
def test_a_round_is_no_less_private_than_is_said(deviation: float, clients: int) -> None:
    """Against Rényi divergences of the very sums, which are no discrete Gaussian: of few clients, and little noise."""
    few = clients // 2 + 1
    link = SecureSum(bits=8, clip=128.0, most=256)  # a step of one
    shift = 2
    noise = Privacy(float(shift), deviation * math.sqrt(few) / shift).client_noise(link, 1, clients)
    assert noise.deviation == pytest.approx(deviation)
    one = masses(deviation, 60)[1]
    total = one
    for _ in range(few - 1):
        total = np.convolve(total, one)
    moved = np.concatenate([np.zeros(shift), total[:-shift]])
    there = (total > 1e-290) & (moved > 1e-290)
    for alpha in (1.5, 2.0, 3.0, 6.0):
        logarithms = alpha * np.log(moved[there]) + (1 - alpha) * np.log(total[there])
        divergence = np.log(np.exp(logarithms).sum()) / (alpha - 1)
        assert divergence <= alpha * noise.concentration() * (1 + 1e-6)
    if deviation >= 2:  # hardly any more private either
        assert 2 * noise.concentration() == pytest.approx(shift**2 / (few * deviation**2), rel=1e-6)


@pytest.mark.parametrize("rounds", [1, 20])
def test_epsilon_is_above_that_of_the_sums_themselves_and_not_far(rounds: int) -> None:
    """The loss of a round is linear in the number that comes out, so that of all is a function of their sum."""
    delta, link, shift = 1e-5, SecureSum(bits=8, clip=128.0, most=256), 3
    noise = Privacy(float(shift), 2.5).client_noise(link, 1, 3)
    size = noise.deviation
    one = np.convolve(masses(size, 90)[1], masses(size, 90)[1])  # of two clients, the fewest of three
    total = one
    for _ in range(rounds - 1):
        total = np.convolve(total, one)
    numbers = np.arange(len(total)) - len(total) // 2
    variance = 2 * size**2
    loss = (rounds * shift**2 - 2 * shift * numbers) / (2 * variance)

    def exact(epsilon: float) -> float:
        return float((total * np.maximum(0.0, 1 - np.exp(epsilon - np.maximum(loss, epsilon)))).sum())

    # The loss is that of zeros against replies: numbers are those of zeros, moved by `shift` in each round.
    said = noise.epsilon(rounds, delta)
    assert exact(said) <= delta
    assert exact(0.8 * said) > delta
    assert noise.epsilon(0) == 0.0
    assert said > Privacy(float(shift), 2.5).epsilon(rounds, delta)  # what continuous noise amounts to, exactly


def test_the_conversion_is_the_least_over_all_orders() -> None:
    for rho, delta in ((0.01, 1e-5), (0.5, 1e-6), (8.0, 1e-3)):
        alphas = 1 + np.exp(np.linspace(-8, 12, 200_001))
        values = alphas * rho + (np.log1p(-1 / alphas) * (alphas - 1) - np.log(alphas * delta)) / (alphas - 1)
        assert convert(rho, delta) == pytest.approx(float(values.min()), rel=1e-6)
    assert convert(math.inf, 1e-5) == math.inf


# -- in a run --------------------------------------------------------------------


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 3))  # 20,003 parameters


def run(privacy: Privacy | None, net: Any = mlp, rounds: int = 1, **options: Any) -> tw.Result:
    options = {"seed": 5, "workers": 1, "plan": "each"} | options
    return tw.simulate(method(SECRET), net, blobs(), rounds, privacy=privacy, **options)


def test_there_is_as_much_noise_as_the_fewest_clients_need() -> None:
    clean, noisy = (run(Privacy(0.5, noise), wide).params.flat for noise in (0.0, 3.0))
    # 3 * 0.5 on the sum of four clients, the fewest of six, and all six have answered.
    assert float((noisy - clean).std()) == pytest.approx(3 * 0.5 / 6 * math.sqrt(6 / 4), rel=0.03)
    assert torch.equal(run(Privacy(0.5, 3.0), wide).params.flat, noisy)


def test_a_reply_counts_as_if_it_were_as_long_as_the_clip() -> None:
    algorithm = tw.parse("FedAvg(LocalSGD(1.0), up=SecureSum(clip=64.0, most=64), weights='uniform')")
    result = tw.simulate(algorithm, Still, pulls(3.0, 1.0, -50.0), 1, privacy=Privacy(2.0, 0.0), workers=1)
    assert result.params.flat.tolist() == [pytest.approx((2 + 1 - 2) / 3, abs=64 / (1 << 15))]


def test_fewer_than_half_of_the_clients_are_not_uncovered() -> None:
    """Though a threshold of one neighbour would let them be."""
    expression = "FedAvg(up=SecureSum(clip=4.0, most=64, threshold=1), weights='uniform')"

    def moved(silent: set[int], privacy: Privacy | None) -> bool:
        made = chosen(expression, [(list(ALL), silent)], privacy=privacy)
        start = chosen(expression, [], privacy=privacy)
        return not torch.equal(model(made), model(start))

    assert moved({1, 3}, Privacy(0.5, 1.0))
    assert not moved({1, 3, 5}, Privacy(0.5, 1.0))
    assert moved({1, 3, 5}, None)


def test_a_sum_that_might_not_fit_is_refused() -> None:
    small = method("FedAvg(up=SecureSum(clip=4.0, most=6), weights='uniform')")
    with pytest.raises(CombinationError, match=r"may be .* steps"):
        tw.simulate(small, mlp, blobs(), 1, privacy=Privacy(8.0, 20.0))


class Private(Confidants):
    """Clients that see to their noise."""

    privacy: Privacy | None = Privacy(0.5, 1.0)

    def node(self, client: int, kind: type[Node] = Node) -> Node:
        return kind(self.method, mlp, blobs()[client], self.path / f"client-{client}", privacy=self.privacy)


def test_in_a_deployment_noise_is_the_clients_own_and_the_same_when_a_server_goes_on(tmp_path: Path) -> None:
    whole = Private(SECRET, tmp_path / "whole", privacy=Privacy(0.5, 1.0))
    whole.round()
    whole.server.pool.close()
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    parts = Private(SECRET, tmp_path / "parts", privacy=Privacy(0.5, 1.0))
    parts.round(end=False)  # the sum is uncovered, and the server dies
    parts.serve()
    whole.round()
    parts.round()
    assert torch.equal(model(whole.server), model(parts.server))
    other = Private(SECRET, tmp_path / "other", privacy=Privacy(0.5, 1.0))
    other.round()
    other.round()
    assert not torch.equal(model(whole.server), model(other.server))


def test_a_client_takes_part_under_its_own_privacy_alone(tmp_path: Path) -> None:
    parties = Private(SECRET, tmp_path)  # the server asks for none
    question = parties.server.begin(ALL)[0]
    with pytest.raises(RunError, match="privacy=None, and this client would see to Privacy"):
        parties.node(0).answer(question)
    plain = Private("FedAvg(weights='uniform')", tmp_path / "plain")
    with pytest.raises(ValueError, match="is for a secure sum"):
        plain.node(0).answer(plain.server.begin(ALL)[0])
