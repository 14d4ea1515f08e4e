"""One block of each layer: where it lies, how long it is, what it is on average."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from problems import key, once, vector
from thinwire.links import RandomBlock
from thinwire.params import Params

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


TWENTY = torch.arange(1.0, 21.0) * torch.tensor([1.0, -1.0] * 10)


def test_a_block_is_a_run_of_neighbours_that_may_go_round() -> None:
    x = vector(*range(1, 9))
    seen = Counter()
    for t in range(400):
        _, values = once(RandomBlock(3.0), x, key(t))  # floor(8 / 3) = 2
        seen[tuple(values)] += 1
    expected = {
        tuple(float(v) if v in pair else 0.0 for v in range(1, 9))
        for pair in zip(range(1, 9), [*range(2, 9), 1], strict=True)
    }
    assert set(seen) == expected
    assert max(seen.values()) < 50 + 5 * 6.7  # 50 each; five standard errors


@pytest.mark.parametrize(
    ("n", "ratio", "length"), [(8, 1.0, 8), (9, 2.0, 4), (100, 64.0, 1), (5, 64.0, 1), (0, 2.0, 0)]
)
def test_a_block_has_at_least_one_entry_and_rounds_down(n: int, ratio: float, length: int) -> None:
    packet, seen = once(RandomBlock(ratio), vector(*([1.0] * n)))
    assert packet[0].numel() == length == sum(seen)


def test_unbiased_blocks_are_the_vector_on_average() -> None:
    x, total = Params.of([("a", TWENTY)]), torch.zeros(20, dtype=torch.float64)
    for t in range(1_500):
        total += RandomBlock(10.0, unbiased=True).send(x, None, key(t))[1].flat
    # 2 of 20, times ten: variance 9 x^2, standard error 3 |x| / sqrt(1500) = 0.0775 |x|; five of them
    assert ((total / 1_500 - TWENTY) / TWENTY).abs().max() < 0.387


def test_unbiased_blocks_are_scaled_by_the_share_really_sent() -> None:
    _, seen = once(RandomBlock(2.0, unbiased=True), vector(*([2.0] * 9)))
    assert sorted(seen) == [0.0] * 5 + [4.5] * 4


def test_everyone_sends_the_same_block_and_another_one_every_round_and_layer() -> None:
    x = Params.of([("a", torch.ones(1_000)), ("b", torch.ones(1_000))])
    link = RandomBlock(50.0)
    seen = [link.send(x, None, k)[1] for k in (key(3, None), key(3, 0), key(3, 9), key(4, 0))]
    assert seen[0].flat.equal(seen[1].flat)
    assert seen[0].flat.equal(seen[2].flat)
    starts = [int(run[name].argmax()) for run in (seen[0], seen[3]) for name in ("a", "b")]
    assert len(set(starts)) == 4


def test_a_block_keeps_its_share_on_average() -> None:
    x = vector(1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0)  # |x|^2 = 204
    lost = [(x - RandomBlock(4.0).send(x, None, key(t))[1]).norm() ** 2 for t in range(1_000)]
    assert sum(lost) / 1_000 == pytest.approx(153.0, abs=6)  # 6/8 of 204; five standard errors of 38 / sqrt(1000)
