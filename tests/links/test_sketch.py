"""CountSketch by hand: estimates that are right on average, how far they are off, who shares the hashes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Size, Tensor

from thinwire.errors import CombinationError, WireError
from thinwire.key import Key
from thinwire.links import LBGM, CountSketch, ErrorFeedback, Flat
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

X = torch.arange(1.0, 31.0) * torch.tensor([1.0, -1.0, -1.0] * 10)  # length^2 = 9455
KEY = Key(1, 0).at("up").at("update")


def errors(link: CountSketch, rounds: int) -> Tensor:
    """Estimate less truth: [rounds, entries]."""
    keys = [KEY._replace(round=t) for t in range(rounds)]
    return torch.stack([link.decode(link.encode(X, key), X.shape, key) - X for key in keys]).double()


def test_a_rows_estimates_are_right_on_average_and_off_by_what_shares_their_columns() -> None:
    # Of an entry x in 10 columns the variance is (9455 - x^2) / 10: summed over 30 entries 29/10 of 9455.
    found = errors(CountSketch(1, 10), 800)
    standard = found.std(0) / 800**0.5
    assert (found.mean(0).abs() / standard).max() < 5
    assert found.square().sum(1).mean().item() == pytest.approx(27_419.5, rel=0.1)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_so_are_medians_and_of_three_they_are_less_far_off(rows: int) -> None:
    # The rows' signs are independent, so errors are symmetric, and so is the median's.
    found = errors(CountSketch(rows, 7), 500)
    assert (found.mean(0).abs() / (found.std(0) / 500**0.5)).max() < 5
    if rows > 2:
        assert found.square().mean() < 0.6 * errors(CountSketch(1, 7), 300).square().mean()


def test_an_entry_without_company_is_seen_exactly() -> None:
    x = torch.zeros(1_000)
    x[123] = -2.5
    for link in (CountSketch(1, 10), CountSketch(5, 10), CountSketch(4, 10)):
        assert link.decode(link.encode(x, KEY), x.shape, KEY)[123].item() == -2.5


def test_everyone_in_a_round_has_the_same_hashes_and_each_round_its_own() -> None:
    def sketched(link: CountSketch, key: Key) -> list[float]:
        return link.encode(X, key).tolist()

    fresh, fixed = CountSketch(2, 7), CountSketch(2, 7, fixed=True)
    clients = [KEY._replace(round=3, client=client) for client in (None, 0, 9)]
    for link in (fresh, fixed):
        assert sketched(link, clients[0]) == sketched(link, clients[1]) == sketched(link, clients[2])
    later = [KEY._replace(round=t) for t in (3, 4)]
    assert sketched(fresh, later[0]) != sketched(fresh, later[1])
    assert sketched(fixed, later[0]) == sketched(fixed, later[1])
    for link in (fresh, fixed):
        places = [KEY, KEY.at("layer"), KEY._replace(seed=2)]
        assert len({tuple(sketched(link, place)) for place in places}) == 3


def test_a_layer_no_longer_than_its_sketch_is_sent_whole() -> None:
    for rows, cols in ((5, 6), (3, 10), (1, 30), (30, 1)):
        assert CountSketch(rows, cols).encode(X, KEY).tolist() == X.tolist()
    assert len(CountSketch(1, 29).encode(X, KEY)) == 29


@pytest.mark.parametrize(
    "packet",
    [
        torch.zeros(13),
        torch.zeros(15),
        torch.zeros(30),
        torch.zeros(2, 7),
        torch.zeros(7, 2),
        torch.zeros(14, dtype=torch.float64),
        torch.zeros(14, dtype=torch.int32),
        [2, 7, torch.zeros(14)],
        [-1, 2**62, torch.zeros(0)],
        None,
        14,
    ],
    ids=lambda p: str(getattr(p, "shape", p)),
)
def test_tables_of_another_size_or_kind_are_refused(packet: Any) -> None:
    layout = Layout(("a",), (Size([30]),))
    for link, sent in ((CountSketch(2, 7), [packet]), (Flat(CountSketch(2, 7)), packet)):
        with pytest.raises(WireError, match=r"a packet of another shape: 14 numbers of float32 expected|one packet"):
            link.recv(loads(dumps(sent)), layout, None, KEY)


def test_no_error_feedback_goes_around_a_sketch_but_look_back_does() -> None:
    with pytest.raises(CombinationError, match="needs a link that always keeps a part"):
        ErrorFeedback(CountSketch(3, 100))
    assert not LBGM(CountSketch(3, 100)).linear
    x = Params.of([("a", X)])
    assert CountSketch(2, 7).floats(CountSketch(2, 7).send(x, None, KEY)[0]) == 14.0
